//! Files that the program reads whole and files that it writes: one place for what may be one, and for what happens to
//! it.
//!
//! An [`Output`] is complete or not there at all, whatever ends the program; devices, FIFOs and links are written to
//! and never replaced. What is read is looked at before it is opened: [`open_regular`] for files that are mapped or
//! parsed, [`read_text`] for text that may also come from a FIFO or a terminal, both with a limit.

mod input;
mod output;

pub use input::{InputError, open_regular, read_regular_text, read_text, text_of};
pub use output::{Output, OutputError};
