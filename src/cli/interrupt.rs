//! Signals that ask the program to end: Ctrl-C, SIGTERM, SIGHUP. The first cancels what runs; when nothing does, or on
//! the second, the program ends at once. This is the one place where signals are taken over.

use std::io::{self, Write};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::Signals;

use crate::engine::Cancel;

/// How long a second signal leaves cancelled work to remove its unfinished files before the program ends.
const GRACE: Duration = Duration::from_secs(1);

/// How long SIGTERM and SIGHUP leave to work that does not end, such as one that waits for the reader of a pipe.
/// Whoever sends them mostly sends no second one but SIGKILL.
const PATIENCE: Duration = Duration::from_secs(5);

/// Exit code where no signal is known: that of Ctrl-C.
const CTRL_C: u8 = 128 + SIGINT as u8;

/// The running work, if any, as signals see it.
#[derive(Clone, Default)]
pub struct Interrupt(Arc<Mutex<Work>>);

#[derive(Default)]
struct Work {
    /// Counts what has begun or ended.
    number: u64,
    running: Option<Cancel>,
    /// The signal that cancelled it.
    signal: Option<i32>,
}

impl Interrupt {
    /// Takes the signals over for the whole program.
    ///
    /// # Errors
    /// When the system refuses the handlers.
    pub fn install() -> anyhow::Result<Self> {
        let interrupt = Self::default();
        let seen = interrupt.clone();
        // nohup and the like: whoever started the program wants it to outlive the terminal.
        let all = [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|signal| *signal != SIGHUP || !is_ignored(SIGHUP));
        let mut signals = Signals::new(all).context("taking over signals")?;
        // With a handler, a write past `ulimit -f` is an error that is told; without, the system ends the program.
        signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false))).context("taking over SIGXFSZ")?;
        std::thread::Builder::new()
            .name("signals".to_owned())
            .spawn(move || signals.forever().for_each(|signal| seen.came(signal)))
            .context("starting the thread of signals")?;
        Ok(interrupt)
    }

    /// A token for work that begins: from now on a signal cancels it.
    pub fn begin(&self) -> Cancel {
        let cancel = Cancel::new();
        self.next(Some(cancel.clone()));
        cancel
    }

    /// The work has ended: a signal ends the program again.
    pub fn end(&self) {
        self.next(None);
    }

    /// Whether the last work was cancelled by a signal that means the whole program, not only its work.
    pub fn ends_program(&self) -> bool {
        self.work().signal.is_some_and(|signal| signal != SIGINT)
    }

    /// The exit code of a program whose work was cancelled: 128 and the signal's number, as shells have it.
    pub fn exit_code(&self) -> u8 {
        self.work().signal.map_or(CTRL_C, exit_code)
    }

    fn next(&self, running: Option<Cancel>) {
        let mut work = self.work();
        let signal = work.signal.take_if(|_| running.is_none());
        *work = Work { number: work.number + 1, running, signal };
    }

    fn work(&self) -> MutexGuard<'_, Work> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn came(&self, signal: i32) {
        let (number, first) = {
            let mut work = self.work();
            match work.running.clone() {
                None => std::process::exit(i32::from(exit_code(signal))),
                Some(cancel) => {
                    let first = !cancel.is_cancelled();
                    if first {
                        work.signal = Some(signal);
                        cancel.cancel();
                    }
                    (work.number, first)
                }
            }
        };
        match (first, signal) {
            (true, SIGINT) => {}
            // Without blocking this thread, which a second signal needs.
            (true, _) => {
                let later = self.clone();
                std::thread::spawn(move || later.end_unless_done(number, signal, PATIENCE));
            }
            (false, _) => self.end_unless_done(number, signal, GRACE),
        }
    }

    fn end_unless_done(&self, number: u64, signal: i32, patience: Duration) {
        let begin = Instant::now();
        while begin.elapsed() < patience {
            if self.work().number != number {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        std::process::exit(i32::from(exit_code(signal)));
    }
}

fn exit_code(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(CTRL_C)
}

/// Whether the program was started with this signal ignored.
fn is_ignored(signal: i32) -> bool {
    let status = fs_err::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal - 1) & 1 == 1
}

/// Passes writes on until the work is cancelled.
pub struct UntilCancelled<W> {
    out: W,
    cancel: Cancel,
}

impl<W: Write> UntilCancelled<W> {
    /// Writes to `out` while `cancel` is not.
    pub fn new(out: W, cancel: Cancel) -> Self {
        Self { out, cancel }
    }
}

impl<W: Write> Write for UntilCancelled<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.cancel.is_cancelled() {
            return Err(io::Error::other(super::Interrupted));
        }
        self.out.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
