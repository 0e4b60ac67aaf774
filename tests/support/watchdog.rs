//! Ends the process, with a message, when something hangs.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::Duration;

/// Long enough for any case on a busy machine.
const LIMIT: Duration = Duration::from_secs(30);

/// Watches one case at a time. Making one starts its thread, so that cases do not change the number of threads.
pub struct Watchdog(Sender<Option<String>>);

impl Watchdog {
    pub fn start() -> Self {
        let (send, receive) = mpsc::channel::<Option<String>>();
        std::thread::spawn(move || {
            while let Ok(case) = receive.recv() {
                let Some(case) = case else { continue };
                if receive.recv_timeout(LIMIT) == Err(RecvTimeoutError::Timeout) {
                    eprintln!("hangs for {LIMIT:?}: {case}");
                    std::process::abort();
                }
            }
        });
        Self(send)
    }

    /// Runs a case.
    pub fn watch<T>(&self, case: &str, run: impl FnOnce() -> T) -> T {
        self.0.send(Some(case.to_owned())).unwrap();
        let result = run();
        self.0.send(None).unwrap();
        result
    }
}
