//! Where callers post jobs and workers find them.

use std::ptr;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::sync::{
    AtomicBool, AtomicPtr, AtomicUsize, Condvar, Instant, Mutex, MutexGuard, PAUSES, PLACES, spin_loop, yield_now,
};
use super::{Panic, attempt, home};

/// How long a worker watches the board after its last job before it parks.
const WATCH: Duration = Duration::from_micros(100);
/// Set in a place's state while workers may come in; the other bits count those inside.
const OPEN: usize = 1 << (usize::BITS - 1);

/// Keeps what different threads write on different cache lines.
#[derive(Debug)]
#[repr(align(128))]
struct Line<T>(T);

/// A caller's work, on the caller's stack.
pub struct Job<'a> {
    work: &'a (dyn Fn(usize) + Sync + 'a),
    parts: usize,
    /// A part has thrown: no further parts are begun.
    stop: AtomicBool,
    panic: Mutex<Option<Panic>>,
}

/// A place for one job.
#[derive(Debug)]
struct Place {
    taken: AtomicBool,
    state: Line<AtomicUsize>,
    /// The job, valid for those that are counted in `state`.
    job: AtomicPtr<Job<'static>>,
    /// For each worker the next part of its home range: workers begin in ranges of their own, then help in the others.
    next: Vec<Line<AtomicUsize>>,
}

/// The places, and the workers that sleep while all are empty.
#[derive(Debug)]
pub struct Board {
    places: Vec<Place>,
    /// A bit for each place whose job may have parts to take: all that an idle worker looks at.
    open: Line<AtomicUsize>,
    sleepers: Line<AtomicUsize>,
    closed: AtomicBool,
    bed: Mutex<()>,
    bell: Condvar,
}

/// A job on the board. Dropping it waits until no worker is inside.
pub struct Posted<'a> {
    board: &'a Board,
    job: &'a Job<'a>,
    place: usize,
}

impl<'a> Job<'a> {
    /// The work of `parts` parts.
    pub fn new(parts: usize, work: &'a (dyn Fn(usize) + Sync + 'a)) -> Self {
        Self { work, parts, stop: AtomicBool::new(false), panic: Mutex::new(None) }
    }

    /// What the first failed part threw.
    pub fn into_panic(self) -> Option<Panic> {
        self.panic.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs parts until none is left, those of worker `index` first.
    fn take_parts(&self, next: &[Line<AtomicUsize>], index: usize) {
        let workers = next.len();
        for range in (index..workers).chain(0..index) {
            let (next, end) = (&next[range].0, home(self.parts, workers, range).end);
            while next.load(Ordering::Relaxed) < end && !self.stop.load(Ordering::Relaxed) {
                let part = next.fetch_add(1, Ordering::Relaxed);
                if part >= end {
                    break;
                }
                if let Err(panic) = attempt(self.work, part) {
                    self.stop.store(true, Ordering::Relaxed);
                    self.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
                }
            }
        }
    }
}

impl Board {
    /// An empty board for `workers` workers, callers included.
    pub fn new(workers: usize) -> Self {
        let place = |_| Place {
            taken: AtomicBool::new(false),
            state: Line(AtomicUsize::new(0)),
            job: AtomicPtr::new(ptr::null_mut()),
            next: (0..workers).map(|_| Line(AtomicUsize::new(0))).collect(),
        };
        Self {
            places: (0..PLACES).map(place).collect(),
            open: Line(AtomicUsize::new(0)),
            sleepers: Line(AtomicUsize::new(0)),
            closed: AtomicBool::new(false),
            bed: Mutex::new(()),
            bell: Condvar::new(),
        }
    }

    /// Puts a job where the workers see it; `None` when no place is free.
    pub fn post<'a>(&'a self, job: &'a Job<'a>) -> Option<Posted<'a>> {
        let free = |place: &Place| !place.taken.load(Ordering::Relaxed) && !place.taken.swap(true, Ordering::Acquire);
        let index = self.places.iter().position(free)?;
        let place = &self.places[index];
        for (worker, next) in place.next.iter().enumerate() {
            next.0.store(home(job.parts, place.next.len(), worker).start, Ordering::Relaxed);
        }
        place.job.store(ptr::from_ref(job).cast_mut().cast(), Ordering::Relaxed);
        // Pairs with the Acquire of `visit`: who comes in sees the job and its ranges.
        place.state.0.store(OPEN, Ordering::Release);
        // SeqCst with `sleep`: either this thread sees the sleeper, or the sleeper sees the open place.
        self.open.0.fetch_or(1 << index, Ordering::SeqCst);
        self.rouse();
        Some(Posted { board: self, job, place: index })
    }

    /// Wakes the workers that sleep; without a job they watch a while and park again.
    pub fn rouse(&self) {
        if self.sleepers.0.load(Ordering::SeqCst) > 0 {
            drop(self.bed());
            self.bell.notify_all();
        }
    }

    /// The life of worker `index`: takes parts of posted jobs until the board is closed.
    pub fn serve(&self, index: usize) {
        let mut idle = 0;
        let mut since = Instant::now();
        while !self.closed.load(Ordering::Relaxed) {
            let open = self.open.0.load(Ordering::Relaxed);
            let mut places = (0..PLACES).map(|turn| (index + turn) % PLACES).filter(|place| open >> place & 1 == 1);
            if places.any(|place| self.visit(place, index)) {
                idle = 0;
            } else if idle < PAUSES {
                idle += 1;
                since = if idle == PAUSES { Instant::now() } else { since };
                spin_loop();
            } else if since.elapsed() < WATCH {
                yield_now();
            } else {
                self.sleep();
                idle = 0;
            }
        }
    }

    /// Ends every worker's life.
    pub fn close(&self) {
        let _bed = self.bed();
        self.closed.store(true, Ordering::SeqCst);
        self.bell.notify_all();
    }

    /// Workers that are parked now.
    #[cfg(test)]
    pub fn sleepers(&self) -> usize {
        self.sleepers.0.load(Ordering::SeqCst)
    }

    /// Helps with the job of a place if it is open; whether it was.
    fn visit(&self, index: usize, worker: usize) -> bool {
        let place = &self.places[index];
        let come_in = |state: usize| (state & OPEN != 0).then_some(state + 1);
        if place.state.0.fetch_update(Ordering::Acquire, Ordering::Relaxed, come_in).is_err() {
            return false;
        }
        // SAFETY: this worker is counted in the place's state, so the job's `Posted` cannot end before it leaves, and
        // the pointer was stored before the place was opened.
        let job = unsafe { &*place.job.load(Ordering::Relaxed) };
        job.take_parts(&place.next, worker);
        // Nothing is left here: no other worker need look. While this one is inside, the place cannot be opened anew.
        self.open.0.fetch_and(!(1 << index), Ordering::Relaxed);
        // Pairs with the Acquire of `Posted::drop`: the caller sees what the parts wrote.
        place.state.0.fetch_sub(1, Ordering::Release);
        true
    }

    fn sleep(&self) {
        let bed = self.bed();
        self.sleepers.0.fetch_add(1, Ordering::SeqCst);
        // Who is roused watches the board, whether or not there is a job already.
        if self.open.0.load(Ordering::SeqCst) == 0 && !self.closed.load(Ordering::SeqCst) {
            drop(self.bell.wait(bed).unwrap_or_else(PoisonError::into_inner));
        }
        self.sleepers.0.fetch_sub(1, Ordering::SeqCst);
    }

    fn bed(&self) -> MutexGuard<'_, ()> {
        self.bed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Posted<'_> {
    /// Runs parts on the calling thread until none is left to begin.
    pub fn take_parts(&self) {
        self.job.take_parts(&self.board.places[self.place].next, 0);
    }
}

impl Drop for Posted<'_> {
    fn drop(&mut self) {
        let place = &self.board.places[self.place];
        self.board.open.0.fetch_and(!(1 << self.place), Ordering::Relaxed);
        place.state.0.fetch_and(!OPEN, Ordering::Relaxed);
        let mut waited = 0;
        while place.state.0.load(Ordering::Acquire) != 0 {
            if waited < PAUSES {
                waited += 1;
                spin_loop();
            } else {
                yield_now();
            }
        }
        place.taken.store(false, Ordering::Release);
    }
}
