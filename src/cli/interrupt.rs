//! Ctrl-C: cancels what runs, and ends the program when nothing does or on the second time.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context as _;

use crate::engine::Cancel;

/// Exit code of a program that Ctrl-C ended.
const INTERRUPTED: i32 = 130;

/// The running answer, if any, as Ctrl-C sees it.
#[derive(Clone, Default)]
pub struct Interrupt {
    running: Arc<Mutex<Option<Cancel>>>,
    pressed: Arc<AtomicUsize>,
}

impl Interrupt {
    /// Takes Ctrl-C over for the whole program.
    ///
    /// # Errors
    /// When the system refuses the handler.
    pub fn install() -> anyhow::Result<Self> {
        let interrupt = Self::default();
        let seen = interrupt.clone();
        ctrlc::set_handler(move || {
            let running = seen.running.lock().unwrap_or_else(PoisonError::into_inner);
            match running.as_ref() {
                Some(cancel) if seen.pressed.fetch_add(1, Ordering::Relaxed) == 0 => cancel.cancel(),
                _ => std::process::exit(INTERRUPTED),
            }
        })
        .context("taking over Ctrl-C")?;
        Ok(interrupt)
    }

    /// A token for work that begins: from now on Ctrl-C cancels it.
    pub fn begin(&self) -> Cancel {
        let cancel = Cancel::new();
        self.pressed.store(0, Ordering::Relaxed);
        *self.running.lock().unwrap_or_else(PoisonError::into_inner) = Some(cancel.clone());
        cancel
    }

    /// The work has ended: Ctrl-C ends the program again.
    pub fn end(&self) {
        *self.running.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}
