//! The card itself.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;

use super::arena::Arena;
use super::bounce::Bounce;
use super::compile::{Compiler, CompilerSettings};
use super::device::{Context, CudaDevice, probe};
use super::driver;
use super::error::{CudaError, say, while_doing};
use super::event::{Events, Recorded};
use super::fault::Fault;
use super::kernels::Kernels;
use super::launch::Launch;
use super::module::Module;
use super::nccl;
use super::page_lock::CudaPageLock;
use super::peer::{Peer, Peers};
use super::target::Form;
use super::trace::Trace;
use super::wait::{self, CLOSING, PATIENCE, Unended};
use crate::card::check;
use crate::card::timeline::Timeline;
use crate::card::{
    Card, CardError, CardKind, Command, Event, HostSpan, Leases, Neighbour, PageLock, Region, Stream, Why, Wire,
};
use crate::ops::{AttentionShape, KvType};
use crate::quant::QuantType;
use crate::units::{Bytes, CardId};

/// What a card is opened for.
#[derive(Clone, Debug)]
pub struct CudaSettings {
    /// Its place in the rig.
    pub card: CardId,
    /// The driver's number of the device.
    pub ordinal: usize,
    /// Memory it may use.
    pub budget: Bytes,
    /// Weight formats of the model.
    pub weights: Vec<QuantType>,
    /// Attention layers of the model, with their cell types.
    pub attention: Vec<(AttentionShape, KvType)>,
    /// Where kernels come from.
    pub compiler: CompilerSettings,
    /// Where what runs is written down.
    pub timeline: Option<Timeline>,
    /// Takes each region by itself, between guard bands, so that tools and [`CudaCard::check_guards`] see a kernel
    /// that leaves it.
    pub guarded: bool,
}

/// An NVIDIA GPU.
pub struct CudaCard {
    settings: CudaSettings,
    device: CudaDevice,
    streams: [Queue; Stream::ALL.len()],
    leases: Arc<Leases>,
    fault: Arc<Fault>,
    events: Arc<Events>,
    kernels: Kernels,
    trace: Option<Trace>,
    arena: Arc<Arena>,
    peers: Peers,
    bounce: Option<Mutex<Bounce>>,
    free_after: Bytes,
    context: Arc<Context>,
}

/// A stream of the driver, and the host memory its queued copies use.
struct Queue {
    stream: sys::CUstream,
    held: Mutex<Held>,
    context: Arc<Context>,
}

#[derive(Default)]
struct Held {
    now: Vec<HostSpan>,
    marked: VecDeque<(Arc<Recorded>, Vec<HostSpan>)>,
}

// SAFETY: streams are handles that the driver lets any thread use.
unsafe impl Send for Queue {}
// SAFETY: as above; `held` has its own lock.
unsafe impl Sync for Queue {}

/// Host spans that are let go of together, once the stream has passed them.
const HELD_TOGETHER: usize = 32;

impl CudaCard {
    /// Opens a device: kernels first, then the memory.
    ///
    /// # Errors
    /// When the driver, the device, the compiler or the memory is not there.
    pub fn open(settings: CudaSettings) -> Result<Self, CudaError> {
        if !driver::has_driver() {
            return Err(CudaError::NoDriver);
        }
        let devices = probe()?;
        let ordinal = settings.ordinal;
        let found = devices.len();
        let device = devices.into_iter().nth(ordinal).ok_or(CudaError::NoDevice { ordinal, found })?;
        let arch = device.arch;
        if arch < 75 {
            return Err(CudaError::TooOld { ordinal, name: device.name, major: arch / 10, minor: arch % 10 });
        }
        let context =
            Arc::new(Context::retain(ordinal).map_err(while_doing(format!("opening CUDA device {ordinal}")))?);
        context.bind().map_err(while_doing("binding the context"))?;

        let compiler = Compiler::new(settings.compiler.clone(), driver::driver_version());
        let (target, built) = compiler.build_for(arch, |arch| modules(&settings, arch))?;
        if let Some(reason) = compiler.unkept() {
            tracing::warn!("compiled kernels are not kept, so every start compiles them again: {reason}");
        }
        if target.arch != arch || target.form == Form::Ptx {
            tracing::info!("{} runs the kernels of {target}, compiled by the driver", device.name);
        }
        // From here on the device is what its kernels may use of it.
        let device = target.limit(&device);
        let kernels = Kernels::load(&context, &built, &device)?;
        let mut streams = Vec::with_capacity(Stream::ALL.len());
        for stream in Stream::ALL {
            streams.push(Queue::new(&context).map_err(while_doing(format!("making the {} stream", stream.name())))?);
        }
        let streams = <[Queue; Stream::ALL.len()]>::try_from(streams).map_err(|_| CudaError::Driver {
            doing: "making the streams".to_owned(),
            reason: "some are missing".to_owned(),
        })?;
        let arena = Arc::new(Arena::take(settings.card, &context, settings.budget, settings.guarded)?);
        // Where even these are refused, the driver stages such copies itself.
        let bounce = Bounce::take(&context).ok().map(Mutex::new);
        let timeline = settings.timeline.clone();
        let trace = timeline
            .map(|timeline| Trace::begin(timeline, settings.card, &device.name, &context))
            .transpose()
            .map_err(while_doing("beginning a trace"))?;
        let (free_after, _) = result::mem_get_info().map_err(while_doing("reading the free memory"))?;
        Ok(Self {
            fault: Arc::new(Fault::new(settings.card)),
            events: Events::new(&context),
            leases: Arc::default(),
            free_after: Bytes(free_after as u64),
            settings,
            device,
            streams,
            kernels,
            arena,
            peers: Peers::default(),
            bounce,
            trace,
            context,
        })
    }

    /// The device.
    pub fn device(&self) -> &CudaDevice {
        &self.device
    }

    /// Device memory that was free after the card had taken its own.
    pub fn free_after(&self) -> Bytes {
        self.free_after
    }

    /// Whether all guard bands around regions are as they were made; the streams are drained.
    ///
    /// # Errors
    /// The regions beside which something was written.
    pub fn check_guards(&self) -> Result<(), String> {
        self.context.bind().map_err(say)?;
        self.arena.check_guards()
    }

    /// Page-locks host memory for the cards of this process.
    pub fn page_lock(&self) -> Arc<dyn PageLock> {
        Arc::new(CudaPageLock(Arc::clone(&self.context)))
    }

    fn peer(&self) -> Peer {
        Peer { context: Arc::clone(&self.context), arena: Arc::clone(&self.arena) }
    }

    fn queue(&self, on: Stream) -> &Queue {
        // Every stream has its queue at its own number.
        #[allow(clippy::indexing_slicing)]
        &self.streams[on as usize]
    }

    fn bind(&self, on: Stream) -> Result<(), CardError> {
        self.context.bind().map_err(|error| self.fault.lose(on, error))
    }

    fn launch<'a>(&'a self, queue: &Queue) -> Launch<'a> {
        Launch {
            kernels: &self.kernels,
            arena: &self.arena,
            peers: &self.peers,
            context: &self.context,
            bounce: self.bounce.as_ref(),
            stream: queue.stream,
            arch: self.device.arch,
            processors: self.device.processors as usize,
            shared: self.device.shared,
            begun: Cell::new(false),
            trouble: Cell::new(None),
        }
    }

    /// Lets go of host memory that the stream has passed, and marks what was used since.
    fn tidy(&self, on: Stream, held: &mut Held) -> Result<(), CardError> {
        if held.now.len() < HELD_TOGETHER {
            return Ok(());
        }
        let recorded =
            self.events.record(self.queue(on).stream, on, &self.fault).map_err(|error| self.fault.lose(on, error))?;
        held.marked.push_back((recorded, std::mem::take(&mut held.now)));
        while let Some((recorded, _)) = held.marked.front() {
            if !recorded.passed()? {
                break;
            }
            held.marked.pop_front();
        }
        Ok(())
    }

    fn drain_queue(&self, on: Stream, limit: Duration) -> Result<(), Unended> {
        let queue = self.queue(on);
        self.context.bind().map_err(Unended::Driver)?;
        let mut held = queue.held.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::take(&mut *held);
        drop(held);
        // SAFETY: the stream lives as long as the card.
        let drained = unsafe { wait::stream(queue.stream, limit) };
        if let Err(Unended::Hung(_)) = drained {
            // The device may still come to it: it is never given back. Page locks and other memory stay, too, whoever
            // drops them first.
            std::mem::forget(before);
            self.context.abandon();
            return drained;
        }
        // A failed device runs nothing any more: nobody reads or writes the host memory.
        drop(before);
        if let Some(trace) = &self.trace {
            trace.collect();
        }
        drained
    }
}

impl Card for CudaCard {
    fn id(&self) -> CardId {
        self.settings.card
    }

    fn kind(&self) -> CardKind {
        CardKind::Cuda
    }

    fn name(&self) -> String {
        self.device.name.clone()
    }

    fn alloc(&self, bytes: Bytes, what: &str) -> Result<Region, CardError> {
        self.arena.alloc(bytes, what)
    }

    fn adopt(&self, _host: &HostSpan, _what: &str) -> Result<Option<Region>, CardError> {
        Ok(None)
    }

    fn free_memory(&self) -> Result<Bytes, CardError> {
        Ok(self.arena.free())
    }

    fn submit(&self, on: Stream, command: Command) -> Result<(), CardError> {
        let refused = |reason| CardError::Refused { card: self.id(), stream: on, command: command.name(), reason };
        let accesses = command.accesses();
        check::command(CardKind::Cuda, &command, &accesses).map_err(refused)?;
        check::leases(&self.leases, (self.id(), on, command.name()), &accesses, |span| self.arena.what(span))?;
        self.fault.begin(on, command.name())?;
        self.bind(on)?;
        let queue = self.queue(on);
        let mut held = queue.held.lock().unwrap_or_else(PoisonError::into_inner);
        let launch = self.launch(queue);
        let lost = |error| self.fault.lose(on, error);
        let traced =
            self.trace.as_ref().map(|trace| Ok((trace, trace.start(queue.stream)?))).transpose().map_err(lost)?;
        let launched = launch.command(&command, &mut held.now);
        if let Some(unended) = launch.trouble.take() {
            if let Unended::Hung(_) = unended {
                self.context.abandon();
            }
            return Err(self.fault.unended(on, unended));
        }
        match launched {
            Ok(()) => {
                if let Some((trace, start)) = traced {
                    trace.end(start, on, queue.stream, &command).map_err(lost)?;
                }
                self.tidy(on, &mut held)
            }
            Err(reason) if launch.begun.get() => Err(self.fault.broken(on, command.name(), reason)),
            Err(reason) => Err(refused(reason)),
        }
    }

    fn record(&self, on: Stream) -> Result<Event, CardError> {
        self.fault.check()?;
        self.bind(on)?;
        let recorded =
            self.events.record(self.queue(on).stream, on, &self.fault).map_err(|error| self.fault.lose(on, error))?;
        Ok(Event::new(self.id(), recorded))
    }

    /// An event of a card of another kind is waited for by the host.
    fn wait(&self, on: Stream, event: &Event, _why: Why) -> Result<(), CardError> {
        self.fault.check()?;
        let Some(recorded) = event.state().as_any().downcast_ref::<Recorded>() else {
            return event.state().block();
        };
        self.bind(on)?;
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: both handles live; a stream may wait for an event of another context.
        unsafe { result::stream::wait_event(self.queue(on).stream, recorded.event(), flags) }
            .map_err(|error| self.fault.lose(on, error))
    }

    fn finished(&self, event: &Event) -> Result<bool, CardError> {
        event.state().finished()
    }

    fn sync(&self, event: &Event, _why: Why) -> Result<(), CardError> {
        event.state().block()
    }

    fn drain(&self, on: Stream, _why: Why) -> Result<(), CardError> {
        if self.fault.hung() {
            return self.fault.check();
        }
        let drained = self.drain_queue(on, PATIENCE).map_err(|unended| self.fault.unended(on, unended));
        self.fault.check()?;
        drained
    }

    fn recover(&self) -> Result<(), CardError> {
        if self.fault.hung() {
            return self.fault.check();
        }
        for stream in Stream::ALL {
            self.drain_queue(stream, PATIENCE).map_err(|unended| match unended {
                Unended::Driver(error) => {
                    CardError::Device { card: self.id(), reason: format!("the device is lost: {}", say(error)) }
                }
                Unended::Hung(_) => self.fault.unended(stream, unended),
            })?;
        }
        self.fault.forget();
        Ok(())
    }

    fn neighbour(&self) -> Neighbour {
        Neighbour { card: self.id(), inner: Arc::new(self.peer()) }
    }

    fn reach(&self, from: &Neighbour) -> Result<(), String> {
        self.peers.open(&self.context, from)
    }

    fn join(&self, to: &Neighbour, limit: Duration) -> Result<[Wire; 2], String> {
        nccl::join([&self.peer(), Peer::of(to)?.as_ref()], limit)
    }

    fn leases(&self) -> &Arc<Leases> {
        &self.leases
    }
}

impl Drop for CudaCard {
    fn drop(&mut self) {
        for stream in Stream::ALL {
            if let Err(Unended::Hung(waited)) = self.drain_queue(stream, CLOSING) {
                let error = self.fault.unended(stream, Unended::Hung(waited));
                tracing::warn!("{error}. Its memory is left to the end of the program");
            }
            if self.fault.hung() {
                for queue in &self.streams {
                    let mut held = queue.held.lock().unwrap_or_else(PoisonError::into_inner);
                    std::mem::forget(std::mem::take(&mut *held));
                }
                return;
            }
        }
        if let Err(reason) = self.check_guards() {
            tracing::error!("{}: {reason}", self.settings.card);
        }
    }
}

impl Queue {
    /// A stream of the current context that waits for no other.
    fn new(context: &Arc<Context>) -> Result<Self, DriverError> {
        let stream = result::stream::create(result::stream::StreamKind::NonBlocking)?;
        Ok(Self { stream, held: Mutex::default(), context: Arc::clone(context) })
    }
}

// Here and not in the card's, which does not exist yet where opening it fails later.
impl Drop for Queue {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: made by `new`, destroyed once; the card has drained it.
            let _ = unsafe { result::stream::destroy(self.stream) };
        }
    }
}

/// The modules a card needs, each once.
fn modules(settings: &CudaSettings, arch: u32) -> Vec<Module> {
    let mut modules = vec![Module::Base, Module::Attention];
    modules.extend(settings.attention.iter().filter_map(|(shape, kind)| Module::for_attention(shape, *kind, arch)));
    modules.extend(settings.weights.iter().map(|ty| Module::Weights(*ty)));
    modules.sort();
    modules.dedup();
    modules
}
