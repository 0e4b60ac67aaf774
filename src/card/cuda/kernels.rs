//! Loaded kernels, and how one is launched.

use std::collections::{HashMap, HashSet};
use std::ffi::{CString, c_void};
use std::sync::Arc;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;

use super::compile::Built;
use super::device::{Context, CudaDevice};
use super::error::{CudaError, say, while_doing};
use super::module::Module;
use super::target::Form;

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

/// Whether a kernel fills the card for long. Placed beside the one before, its blocks would be spread unevenly: some
/// processors would have two and others none.
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

    /// Refuses more blocks than every GPU takes.
    fn check(self) -> Result<(), String> {
        let (x, y, z) = self.blocks;
        if x <= MOST_IN_A_ROW && y <= MOST_ACROSS && z <= MOST_ACROSS {
            return Ok(());
        }
        Err(format!(
            "{x} x {y} x {z} blocks are more than a launch has: choose a smaller run.prompt.wave or fewer sequences"
        ))
    }
}

/// Most blocks of a grid's first dimension.
const MOST_IN_A_ROW: u32 = i32::MAX as u32;

/// Most blocks of its second and third.
pub(super) const MOST_ACROSS: u32 = 65_535;

/// A count as the driver takes it; what does not fit is refused when it is launched.
pub(super) fn small(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// A count as kernels take it; one that does not fit is refused, never another one.
pub(super) fn int(n: usize) -> Result<i32, String> {
    i32::try_from(n)
        .map_err(|_| format!("{n} is more than kernels count: choose a smaller run.prompt.wave or run.context"))
}

/// Pointers to a kernel's arguments, which live until the launch has returned.
macro_rules! arguments {
    ($($argument:expr),* $(,)?) => {
        &mut [$((&raw const $argument).cast_mut().cast::<std::ffi::c_void>()),*]
    };
}
pub(super) use arguments;

impl Kernels {
    /// Loads built modules into the context that is current, for the device as its kernels see it.
    pub(super) fn load(context: &Arc<Context>, built: &[Built], device: &CudaDevice) -> Result<Self, CudaError> {
        let mut kernels = Self {
            context: Arc::clone(context),
            modules: Vec::with_capacity(built.len()),
            loaded: built.iter().map(|built| built.module).collect(),
            functions: HashMap::new(),
        };
        for built in built {
            let doing = || format!("loading the {} kernels", built.module);
            let module = load_module(built)?;
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

    /// Queues a kernel. The outer error is a refusal, the inner one the driver's.
    ///
    /// # Safety
    /// `arguments` point to values of the kernel's parameter types, whose addresses the kernel may use until it has
    /// run.
    pub(super) unsafe fn launch(
        &self,
        stream: sys::CUstream,
        module: Module,
        kernel: &'static str,
        grid: Grid,
        arguments: &mut [*mut c_void],
    ) -> Result<Result<(), DriverError>, String> {
        if grid.blocks.0 == 0 || grid.blocks.1 == 0 || grid.blocks.2 == 0 {
            return Ok(Ok(()));
        }
        grid.check().map_err(|reason| format!("{kernel}: {reason}"))?;
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
        // SAFETY: the function's module is loaded; the configuration and its attribute live until the call returns; the
        // caller vouches for the arguments.
        let status = unsafe {
            sys::cuLaunchKernelEx(&raw const config, function.handle, arguments.as_mut_ptr(), std::ptr::null_mut())
        };
        Ok(status.result())
    }
}

/// Loads machine code, or has the driver compile PTX.
fn load_module(built: &Built) -> Result<sys::CUmodule, CudaError> {
    // PTX is a text that ends in zero.
    let mut image = built.code.clone();
    if built.target.form == Form::Ptx && image.last() != Some(&0) {
        image.push(0);
    }
    let mut log = [0_u8; 4096];
    use sys::CUjit_option_enum as J;
    let mut options = [J::CU_JIT_ERROR_LOG_BUFFER, J::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
    let mut values = [log.as_mut_ptr().cast::<c_void>(), std::ptr::without_provenance_mut(log.len())];
    let mut module = std::ptr::null_mut();
    // SAFETY: the image is whole (its checksum was compared, or it was compiled just now) and is copied by the driver;
    // the log has the size that its option says.
    let status = unsafe {
        sys::cuModuleLoadDataEx(
            &raw mut module,
            image.as_ptr().cast(),
            options.len() as u32,
            options.as_mut_ptr(),
            values.as_mut_ptr(),
        )
    };
    status.result().map(|()| module).map_err(|error| {
        let text = log.split(|byte| *byte == 0).next().unwrap_or_default();
        let text = String::from_utf8_lossy(text);
        let doing = format!("loading the {} kernels for {}", built.module, built.target);
        CudaError::Driver { doing, reason: format!("{} {}", say(error), text.trim()).trim_end().to_owned() }
    })
}

fn allow_shared(function: sys::CUfunction, shared: usize) -> Result<(), DriverError> {
    use sys::CUfunction_attribute_enum as A;
    // SAFETY: the function's module is loaded.
    unsafe {
        let fixed = result::function::get_function_attribute(function, A::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?;
        let most = i32::try_from(shared).unwrap_or(i32::MAX) - fixed;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_refused_and_not_cut() {
        assert_eq!(int(i32::MAX as usize), Ok(i32::MAX));
        let reason = int(1 << 31).unwrap_err();
        assert!(reason.contains("2147483648"), "{reason}");
    }

    #[test]
    fn grids_that_no_gpu_takes_are_refused() {
        let grid = |x, y, z| Grid { blocks: (x, y, z), threads: 32, shared: 0 };
        assert!(grid(i32::MAX as u32, 65_535, 65_535).check().is_ok());
        for beyond in [grid(u32::MAX, 1, 1), grid(1, 65_536, 1), grid(1, 1, 65_536), Grid::row(usize::MAX, 32)] {
            let reason = beyond.check().unwrap_err();
            assert!(reason.contains("blocks"), "{reason}");
        }
    }
}
