//! Loaded kernels, and how one is launched.

use std::collections::{HashMap, HashSet};
use std::ffi::{CString, c_void};
use std::sync::Arc;

use cudarc::driver::result;
use cudarc::driver::sys;

use super::compile::Built;
use super::device::{Context, CudaDevice};
use super::error::{CudaError, say, while_doing};
use super::module::Module;

/// The kernels of a card.
pub(super) struct Kernels {
    context: Arc<Context>,
    modules: Vec<sys::CUmodule>,
    loaded: HashSet<Module>,
    functions: HashMap<(Module, &'static str), Function>,
}

/// A kernel.
#[derive(Clone, Copy)]
struct Function {
    handle: sys::CUfunction,
    /// Whether it may be placed while the kernel before it runs: it waits by itself (`follow` in `platform.cuh`).
    overlapped: bool,
}

/// Whether a kernel fills the card for long. Placed beside the one before, its blocks would be spread unevenly: some processors would have two and
/// others none.
fn is_long(name: &str) -> bool {
    let products = ["linear_prompt_", "experts_in_", "experts_out_"];
    ["attend_prompt", "attend_rows"].contains(&name) || products.iter().any(|start| name.starts_with(start))
}

// SAFETY: modules and functions are handles that any thread may use.
unsafe impl Send for Kernels {}
// SAFETY: as above.
unsafe impl Sync for Kernels {}

/// The extent of a launch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grid {
    pub(super) blocks: (u32, u32, u32),
    pub(super) threads: u32,
    pub(super) shared: usize,
}

impl Grid {
    /// `blocks` blocks of `threads` threads in a row.
    pub(super) fn row(blocks: usize, threads: u32) -> Self {
        Self { blocks: (small(blocks), 1, 1), threads, shared: 0 }
    }
}

/// A count as the driver takes it; what does not fit is refused by the driver.
pub(super) fn small(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// A count as kernels take it.
pub(super) fn int(n: usize) -> i32 {
    i32::try_from(n).unwrap_or(i32::MAX)
}

/// Pointers to a kernel's arguments, which live until the launch has returned.
macro_rules! arguments {
    ($($argument:expr),* $(,)?) => {
        &mut [$((&raw const $argument).cast_mut().cast::<std::ffi::c_void>()),*]
    };
}
pub(super) use arguments;

impl Kernels {
    /// Loads built modules into the context of `device`, which is current.
    pub(super) fn load(context: &Arc<Context>, built: &[Built], device: &CudaDevice) -> Result<Self, CudaError> {
        let mut kernels = Self {
            context: Arc::clone(context),
            modules: Vec::with_capacity(built.len()),
            loaded: built.iter().map(|built| built.module).collect(),
            functions: HashMap::new(),
        };
        for built in built {
            let doing = || format!("loading the {} kernels", built.module);
            // SAFETY: the image is a whole CUBIN in memory; the driver copies it.
            let module =
                unsafe { result::module::load_data(built.cubin.as_ptr().cast()) }.map_err(while_doing(doing()))?;
            kernels.modules.push(module);
            for name in built.module.kernels(device.arch) {
                let missing = |reason| CudaError::NoKernel { module: built.module.to_string(), kernel: name, reason };
                let c_name = CString::new(name).map_err(|e| missing(e.to_string()))?;
                // SAFETY: the module was loaded above and lives as long as `kernels`.
                let handle = unsafe { result::module::get_function(module, c_name) }.map_err(|e| missing(say(e)))?;
                allow_shared(handle, device.shared).map_err(while_doing(doing()))?;
                let overlapped = device.arch >= 90 && !is_long(name);
                kernels.functions.insert((built.module, name), Function { handle, overlapped });
            }
        }
        Ok(kernels)
    }

    /// Whether a module was loaded.
    pub(super) fn has(&self, module: Module) -> bool {
        self.loaded.contains(&module)
    }

    /// Queues a kernel.
    ///
    /// # Safety
    /// `arguments` point to values of the kernel's parameter types, whose addresses the kernel may use until it has run.
    pub(super) unsafe fn launch(
        &self,
        stream: sys::CUstream,
        module: Module,
        kernel: &'static str,
        grid: Grid,
        arguments: &mut [*mut c_void],
    ) -> Result<(), String> {
        if grid.blocks.0 == 0 || grid.blocks.1 == 0 || grid.blocks.2 == 0 {
            return Ok(());
        }
        let function = self
            .functions
            .get(&(module, kernel))
            .copied()
            .ok_or_else(|| format!("the {module} kernels were not loaded when the card was opened"))?;
        let mut overlap = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
        };
        let config = sys::CUlaunchConfig {
            gridDimX: grid.blocks.0,
            gridDimY: grid.blocks.1,
            gridDimZ: grid.blocks.2,
            blockDimX: grid.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: small(grid.shared),
            hStream: stream,
            attrs: &raw mut overlap,
            numAttrs: u32::from(function.overlapped),
        };
        // SAFETY: the function's module is loaded; the configuration and its attribute live until the call returns; the caller vouches for
        // the arguments.
        unsafe {
            sys::cuLaunchKernelEx(&raw const config, function.handle, arguments.as_mut_ptr(), std::ptr::null_mut())
        }
        .result()
        .map_err(|error| format!("{kernel}: {}", say(error)))
    }
}

fn allow_shared(function: sys::CUfunction, shared: usize) -> Result<(), result::DriverError> {
    use sys::CUfunction_attribute_enum as A;
    // SAFETY: the function's module is loaded.
    unsafe {
        let fixed = result::function::get_function_attribute(function, A::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?;
        let most = int(shared) - fixed;
        result::function::set_function_attribute(function, A::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, most)
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            for module in self.modules.drain(..) {
                // SAFETY: loaded once; the card drained its streams before it dropped the kernels.
                let _ = unsafe { result::module::unload(module) };
            }
        }
    }
}
