//! Ctrl-C: cancels what runs. When nothing does, or on the second time, it ends the program.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context as _;

use crate::engine::Cancel;

/// How long a second Ctrl-C leaves cancelled work to remove its unfinished files before the program ends.
const GRACE: Duration = Duration::from_secs(1);

/// The running work, if any, as Ctrl-C sees it.
#[derive(Clone, Default)]
pub struct Interrupt(Arc<Mutex<Work>>);

#[derive(Default)]
struct Work {
    /// Counts what has begun or ended.
    number: u64,
    running: Option<Cancel>,
}

impl Interrupt {
    /// Takes Ctrl-C over for the whole program.
    ///
    /// # Errors
    /// When the system refuses the handler.
    pub fn install() -> anyhow::Result<Self> {
        let interrupt = Self::default();
        let seen = interrupt.clone();
        ctrlc::set_handler(move || seen.pressed()).context("taking over Ctrl-C")?;
        Ok(interrupt)
    }

    /// A token for work that begins: from now on Ctrl-C cancels it.
    pub fn begin(&self) -> Cancel {
        let cancel = Cancel::new();
        self.next(Some(cancel.clone()));
        cancel
    }

    /// The work has ended: Ctrl-C ends the program again.
    pub fn end(&self) {
        self.next(None);
    }

    fn next(&self, running: Option<Cancel>) {
        let mut work = self.work();
        *work = Work { number: work.number + 1, running };
    }

    fn work(&self) -> MutexGuard<'_, Work> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pressed(&self) {
        let number = {
            let work = self.work();
            match &work.running {
                Some(cancel) if !cancel.is_cancelled() => return cancel.cancel(),
                Some(_) => Some(work.number),
                None => None,
            }
        };
        if let Some(number) = number {
            std::thread::sleep(GRACE);
            if self.work().number != number {
                return;
            }
        }
        std::process::exit(i32::from(super::INTERRUPTED));
    }
}
