//! Wires by NCCL: a communicator of two ranks between two GPUs. The library is looked for when a wire is asked for,
//! never before.
//!
//! A wire is made by a thread of its own, which is left to itself when it takes too long. It connects the two ranks,
//! too, so that later calls only queue. An abort frees whatever a rank still waits for on its stream. Communicators are
//! blocking ones: aborts of others go on behind the caller's back, and tests that made and aborted several ended with a
//! segmentation fault.

use std::any::Any;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use cudarc::driver::{result, sys};
use libloading::Library;

use super::device::Context;
use super::error::say;
use super::line::Line;
use super::nvrtc::pythons;
use super::peer::Peer;
use crate::card::{Wire, WireEnd};

type Handle = *mut c_void;

/// `ncclUniqueId`.
#[repr(C)]
#[derive(Clone, Copy)]
struct UniqueId([c_char; 128]);

/// The oldest release with all that is called here, and with aborts of two ranks in one process.
const OLDEST: c_int = 21_400;

const SUCCESS: c_int = 0;
const UINT8: c_int = 1;

type InitRank = unsafe extern "C" fn(*mut Handle, c_int, UniqueId, c_int) -> c_int;
type Transfer = unsafe extern "C" fn(*const c_void, usize, c_int, c_int, Handle, sys::CUstream) -> c_int;

/// The loaded library.
struct Nccl {
    get_unique_id: unsafe extern "C" fn(*mut UniqueId) -> c_int,
    init_rank: InitRank,
    abort: unsafe extern "C" fn(Handle) -> c_int,
    send: Transfer,
    /// `ncclRecv` writes through its pointer; its signature is the same otherwise.
    receive: Transfer,
    group_start: unsafe extern "C" fn() -> c_int,
    group_end: unsafe extern "C" fn() -> c_int,
    error_text: unsafe extern "C" fn(c_int) -> *const c_char,
    _library: Library,
}

/// The library, looked for once.
fn nccl() -> Result<&'static Nccl, String> {
    static NCCL: OnceLock<Result<Nccl, String>> = OnceLock::new();
    NCCL.get_or_init(Nccl::find).as_ref().map_err(Clone::clone)
}

impl Nccl {
    fn find() -> Result<Self, String> {
        let mut files: Vec<PathBuf> = ["libnccl.so.2", "libnccl.so"].map(PathBuf::from).into();
        for python in pythons() {
            let inside = ["nvidia/nccl/lib", "nvidia/cu13/lib"].map(|place| python.join(place).join("libnccl.so.2"));
            files.extend(inside.into_iter().filter(|file| file.exists()));
        }
        let mut refused = Vec::new();
        for file in &files {
            // SAFETY: NCCL's initialisers have no preconditions.
            match unsafe { Library::new(file) } {
                Ok(library) => match Self::load(library) {
                    Ok(nccl) => return Ok(nccl),
                    Err(reason) => refused.push(format!("{}: {reason}", file.display())),
                },
                Err(error) => tracing::debug!(%error, "{} does not load", file.display()),
            }
        }
        refused.push(
            "libnccl.so.2 was not found on the loader's path or in Python packages; install NCCL (`pip install nvidia-nccl-cu13`, \
             or -cu12 for a driver of CUDA 12)"
                .to_owned(),
        );
        Err(refused.join("; "))
    }

    fn load(library: Library) -> Result<Self, String> {
        /// A function of the library.
        ///
        /// # Safety
        /// `T` is the function's signature.
        unsafe fn get<T: Copy>(library: &Library, name: &str) -> Result<T, String> {
            // SAFETY: the caller vouches for the signature; the pointer is kept beside the library.
            unsafe { library.get::<T>(name.as_bytes()) }.map(|symbol| *symbol).map_err(|error| error.to_string())
        }
        // SAFETY: the signatures of NCCL 2.14 and later.
        let nccl = unsafe {
            let version: unsafe extern "C" fn(*mut c_int) -> c_int = get(&library, "ncclGetVersion")?;
            let mut found = 0;
            if version(&raw mut found) != SUCCESS || found < OLDEST {
                return Err(format!("its version is {found}, {OLDEST} or newer is needed"));
            }
            Self {
                get_unique_id: get(&library, "ncclGetUniqueId")?,
                init_rank: get(&library, "ncclCommInitRank")?,
                abort: get(&library, "ncclCommAbort")?,
                send: get(&library, "ncclSend")?,
                receive: get(&library, "ncclRecv")?,
                group_start: get(&library, "ncclGroupStart")?,
                group_end: get(&library, "ncclGroupEnd")?,
                error_text: get(&library, "ncclGetErrorString")?,
                _library: library,
            }
        };
        Ok(nccl)
    }

    fn check(&self, status: c_int) -> Result<(), String> {
        if status == SUCCESS { Ok(()) } else { Err(self.say(status)) }
    }

    fn say(&self, status: c_int) -> String {
        // SAFETY: takes any number and returns a text that lives as long as the library, or nothing.
        let text = unsafe { (self.error_text)(status) };
        if text.is_null() {
            return format!("NCCL error {status}");
        }
        // SAFETY: a text that ends in zero.
        let text = unsafe { CStr::from_ptr(text) };
        format!("NCCL error {status} ({})", text.to_string_lossy())
    }
}

/// A communicator's handle.
#[derive(Clone, Copy)]
struct Comm(Handle);

// SAFETY: a handle may be used by any thread: transfers come from one thread at a time, and an abort may come beside
// them.
unsafe impl Send for Comm {}

/// One GPU's rank. After the wire is made, only its card's stage thread uses the communicator; an abort may come from
/// the other one.
struct Rank {
    context: Arc<Context>,
    comm: Line<Comm>,
}

/// How long an abort waits for a transfer that is being queued. One that blocks is freed by the abort.
const QUEUEING: Duration = Duration::from_secs(1);

struct Pair {
    nccl: &'static Nccl,
    /// The sender and the receiver.
    ranks: [Rank; 2],
    /// Whether it was cut, and whether the sending end did it.
    cut: OnceLock<bool>,
}

/// One end of a wire.
pub(super) struct End {
    pair: Arc<Pair>,
    sends: bool,
}

/// Joins two GPUs; the first one sends.
pub(super) fn join(peers: [&Peer; 2], limit: Duration) -> Result<[Wire; 2], String> {
    let peers = peers.map(Peer::clone);
    let [from, to] = peers.each_ref().map(|peer| &peer.context);
    if from.device() == to.device() {
        return Err("both cards are on one GPU, and NCCL takes a GPU only once".to_owned());
    }
    let nccl = nccl()?;
    let rank = |context: &Arc<Context>| Rank { context: Arc::clone(context), comm: Line::default() };
    let pair = Arc::new(Pair { nccl, ranks: [rank(from), rank(to)], cut: OnceLock::new() });
    let (tell, made) = mpsc::channel();
    let joining = move || {
        let result = pair.make().and_then(|()| pair.connect(&peers, Instant::now() + limit));
        // Nobody listens any more where it took too long: then the pair is dropped, which aborts it.
        let _ = tell.send(result.map(|()| pair));
    };
    let thread = std::thread::Builder::new().name("joining two GPUs".to_owned());
    thread.spawn(joining).map_err(|error| error.to_string())?;
    let pair = match made.recv_timeout(limit) {
        Ok(pair) => pair?,
        Err(RecvTimeoutError::Timeout) => return Err(format!("NCCL took longer than {:.0} s", limit.as_secs_f64())),
        Err(RecvTimeoutError::Disconnected) => return Err("NCCL ended the thread that joins two GPUs".to_owned()),
    };
    Ok([true, false].map(|sends| Wire::new(Arc::new(End { pair: Arc::clone(&pair), sends }))))
}

/// The end of an NCCL wire that sends or receives, as it is `wanted`.
pub(super) fn end(wire: &Wire, wanted: bool) -> Result<&End, String> {
    let end = wire.end().as_any().downcast_ref::<End>().ok_or("the wire leads to no NVIDIA GPU")?;
    if end.sends == wanted { Ok(end) } else { Err("it is the wire's other end".to_owned()) }
}

impl Pair {
    /// Makes the communicator of both ranks.
    fn make(&self) -> Result<(), String> {
        let nccl = self.nccl;
        let mut id = UniqueId([0; 128]);
        // SAFETY: writes the id.
        nccl.check(unsafe { (nccl.get_unique_id)(&raw mut id) })?;
        let mut handles = [std::ptr::null_mut(); 2];
        // SAFETY: no preconditions.
        let mut status = unsafe { (nccl.group_start)() };
        for (number, (rank, handle)) in (0..).zip(self.ranks.iter().zip(&mut handles)) {
            rank.context.bind().map_err(say)?;
            if status == SUCCESS {
                // SAFETY: writes the handle, at the latest when the group ends.
                status = unsafe { (nccl.init_rank)(handle, 2, id, number) };
            }
        }
        // SAFETY: ends the group that was started above.
        let ended = unsafe { (nccl.group_end)() };
        for (rank, handle) in self.ranks.iter().zip(handles) {
            if !handle.is_null() {
                rank.comm.open(Comm(handle));
            }
        }
        nccl.check(status).and_then(|()| nccl.check(ended)).map_err(|reason| format!("making a communicator: {reason}"))
    }

    /// Transfers a few bytes: the first transfer connects the two ranks, for which each waits for the other. Later ones
    /// do not.
    fn connect(&self, peers: &[Peer; 2], deadline: Instant) -> Result<(), String> {
        /// Bytes of both arenas' margins, whose content means nothing.
        const BYTES: usize = 64;
        let streams = [Passing::new(&self.ranks[0].context)?, Passing::new(&self.ranks[1].context)?];
        let ends = self.ranks.iter().zip(peers).zip(&streams);
        // SAFETY: no preconditions.
        let mut status = unsafe { (self.nccl.group_start)() };
        for (number, ((rank, peer), stream)) in ends.enumerate() {
            let (other, call) = if number == 0 { (1, self.nccl.send) } else { (0, self.nccl.receive) };
            rank.context.bind().map_err(say)?;
            if status == SUCCESS {
                let address = peer.arena.margin() as *const c_void;
                // SAFETY: the communicator lives while its line is open; the arena outlives the stream, which is
                // emptied below.
                let transfer = |Comm(comm)| unsafe { call(address, BYTES, UINT8, other, comm, stream.stream) };
                status = rank.comm.call(transfer).unwrap_or(SUCCESS);
            }
        }
        // SAFETY: ends the group that was started above.
        let ended = unsafe { (self.nccl.group_end)() };
        let queued = self.nccl.check(status).and_then(|()| self.nccl.check(ended));
        queued
            .and_then(|()| streams.iter().try_for_each(|stream| stream.empty(deadline)))
            .map_err(|reason| format!("connecting two GPUs: {reason}"))
    }

    fn abort(&self, by_sender: bool) {
        self.cut.get_or_init(|| by_sender);
        for rank in &self.ranks {
            if let Some(Comm(comm)) = rank.comm.close(QUEUEING)
                && rank.context.bind().is_ok()
            {
                // SAFETY: closed: no call begins with the handle any more, and one that is blocked in it is what an
                // abort ends.
                let status = unsafe { (self.nccl.abort)(comm) };
                if status != SUCCESS {
                    tracing::debug!("an NCCL communicator was not aborted: {}", self.nccl.say(status));
                }
            }
        }
    }
}

/// A stream of a GPU for a moment.
struct Passing {
    context: Arc<Context>,
    stream: sys::CUstream,
}

impl Passing {
    fn new(context: &Arc<Context>) -> Result<Self, String> {
        context.bind().map_err(say)?;
        let stream = result::stream::create(result::stream::StreamKind::NonBlocking).map_err(say)?;
        Ok(Self { context: Arc::clone(context), stream })
    }

    /// Waits until all that is queued has run.
    fn empty(&self, deadline: Instant) -> Result<(), String> {
        self.context.bind().map_err(say)?;
        loop {
            // SAFETY: the stream lives until `drop`.
            match unsafe { sys::cuStreamQuery(self.stream) } {
                sys::CUresult::CUDA_ERROR_NOT_READY if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_micros(50));
                }
                sys::CUresult::CUDA_ERROR_NOT_READY => return Err("it did not end in time".to_owned()),
                status => return status.result().map_err(say),
            }
        }
    }
}

impl Drop for Passing {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: made in `new`, destroyed once; what may still be queued ends by the abort of its communicator.
            let _ = unsafe { result::stream::destroy(self.stream) };
        }
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        self.abort(true);
    }
}

impl End {
    /// Queues this end's half of a transfer on a stream of its GPU.
    ///
    /// # Safety
    /// `bytes` from `address` lie in memory of this end's GPU, and stay until the stream has passed; the receiving end
    /// writes them.
    pub(super) unsafe fn transfer(&self, address: u64, bytes: usize, stream: sys::CUstream) -> Result<(), String> {
        let pair = &self.pair;
        let [sender, receiver] = &pair.ranks;
        let (rank, other, call) =
            if self.sends { (sender, 1, pair.nccl.send) } else { (receiver, 0, pair.nccl.receive) };
        rank.context.bind().map_err(say)?;
        // SAFETY: the communicator lives while its line is open; the caller vouches for the memory.
        let queue = |Comm(comm)| unsafe { call(address as *const c_void, bytes, UINT8, other, comm, stream) };
        let status = rank.comm.call(queue).ok_or("the communicator was aborted")?;
        pair.nccl.check(status)
    }
}

impl WireEnd for End {
    fn cut(&self) {
        self.pair.abort(self.sends);
    }

    fn is_cut(&self) -> bool {
        self.pair.cut.get().is_some()
    }

    fn cut_from_afar(&self) -> bool {
        self.pair.cut.get().is_some_and(|by_sender| *by_sender != self.sends)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_a_reason_and_no_panic() {
        match nccl() {
            Ok(nccl) => assert!(nccl.say(4).contains("NCCL error 4"), "{}", nccl.say(4)),
            Err(reason) => {
                println!("no NCCL here: {reason}");
                assert!(reason.contains("libnccl.so.2") && reason.contains("pip install"), "{reason}");
            }
        }
    }
}
