//! Building kernels: compiled for one architecture, kept in a cache on disk.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use sha2::{Digest, Sha256};

use super::error::CudaError;
use super::module::Module;
use super::nvrtc::Nvrtc;

/// Where kernels come from.
#[derive(Clone, Debug, Default)]
pub struct CompilerSettings {
    /// The compiler library or its folder; `None` searches the usual places.
    pub nvrtc: Option<PathBuf>,
    /// The cache folder; `None` compiles afresh.
    pub cache: Option<PathBuf>,
}

/// One built module.
pub struct Built {
    /// Which.
    pub module: Module,
    /// Its device code.
    pub cubin: Vec<u8>,
    /// The compiler's messages; empty when it came from the cache.
    pub log: String,
    /// Whether it came from the cache.
    pub cached: bool,
}

/// Kernels for one architecture.
pub struct Compiler {
    settings: CompilerSettings,
    newest: u32,
    nvrtc: OnceLock<Nvrtc>,
}

impl Compiler {
    /// A compiler for a driver of CUDA major version `newest`. The library is looked for when it is first needed.
    pub fn new(settings: CompilerSettings, newest: u32) -> Self {
        Self { settings, newest, nvrtc: OnceLock::new() }
    }

    /// The compiler library.
    ///
    /// # Errors
    /// When there is none.
    pub fn nvrtc(&self) -> Result<&Nvrtc, CudaError> {
        if let Some(found) = self.nvrtc.get() {
            return Ok(found);
        }
        let found = Nvrtc::find(self.settings.nvrtc.as_deref(), self.newest)?;
        Ok(self.nvrtc.get_or_init(|| found))
    }

    /// Builds modules for `sm_{arch}`, several at a time, in the order asked for.
    ///
    /// # Errors
    /// The first module that cannot be built.
    pub fn build(&self, arch: u32, modules: &[Module]) -> Result<Vec<Built>, CudaError> {
        let next = std::sync::atomic::AtomicUsize::new(0);
        let slots: Vec<OnceLock<Result<Built, CudaError>>> = modules.iter().map(|_| OnceLock::new()).collect();
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(modules.len());
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    loop {
                        let i = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                        let (Some(module), Some(slot)) = (modules.get(i), slots.get(i)) else { break };
                        let _ = slot.set(self.build_one(arch, *module));
                    }
                });
            }
        });
        slots.into_iter().filter_map(OnceLock::into_inner).collect()
    }

    fn build_one(&self, arch: u32, module: Module) -> Result<Built, CudaError> {
        let source = module.source();
        let mut options = module.options();
        options.extend([
            // Hopper's own products exist for this very architecture only.
            format!("--gpu-architecture=sm_{arch}{}", if arch == 90 { "a" } else { "" }),
            "--std=c++17".to_owned(),
            // A fused multiply-add is written where it is meant: values must not depend on the kernel variant.
            "--fmad=false".to_owned(),
            "--generate-line-info".to_owned(),
            "--ptxas-options=-v".to_owned(),
        ]);
        let stem = stem(&source, &options, module, arch);
        let file = match (self.nvrtc(), &self.settings.cache) {
            (Ok(nvrtc), Some(cache)) => {
                let (major, minor) = nvrtc.version();
                Some(cache.join(format!("{stem}{major}.{minor}.cubin")))
            }
            // Without a compiler, what any made of this source serves, if the driver takes it.
            (Err(_), Some(cache)) => newest_with_stem(cache, &stem, self.newest),
            (_, None) => None,
        };
        if let Some(cubin) = file.as_deref().and_then(|file| fs_err::read(file).ok()) {
            return Ok(Built { module, cubin, log: String::new(), cached: true });
        }
        let compiled = self
            .nvrtc()?
            .compile(&format!("{module}.cu"), &source, &options)
            .map_err(|log| CudaError::Compile { module: module.to_string(), arch, log })?;
        if let Some(file) = file {
            keep(&file, &compiled.cubin)?;
        }
        Ok(Built { module, cubin: compiled.cubin, log: compiled.log, cached: false })
    }
}

/// The beginning of the cache's name for what these make; the compiler's version follows.
fn stem(source: &str, options: &[String], module: Module, arch: u32) -> String {
    let mut hash = Sha256::new();
    hash.update(source);
    for option in options {
        hash.update([0]);
        hash.update(option);
    }
    let digest: String = hash.finalize().iter().take(12).map(|b| format!("{b:02x}")).collect();
    format!("{module}-sm_{arch}-{digest}-nvrtc")
}

/// The file of the newest compiler that is not newer than the driver.
fn newest_with_stem(cache: &Path, stem: &str, newest: u32) -> Option<PathBuf> {
    let version = |path: &Path| -> Option<(u32, u32)> {
        let (major, minor) = path.file_name()?.to_str()?.strip_prefix(stem)?.strip_suffix(".cubin")?.split_once('.')?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    };
    let files = fs_err::read_dir(cache).ok()?.filter_map(Result::ok).map(|entry| entry.path());
    let built = files.filter_map(|path| Some((version(&path)?, path))).filter(|((major, _), _)| *major <= newest);
    built.max().map(|(_, path)| path)
}

// Written beside and renamed, so that another process never reads half a file.
fn keep(file: &Path, cubin: &[u8]) -> Result<(), CudaError> {
    if let Some(folder) = file.parent() {
        fs_err::create_dir_all(folder)?;
    }
    let partial = file.with_extension(format!("{}.partial", std::process::id()));
    fs_err::write(&partial, cubin)?;
    fs_err::rename(&partial, file)?;
    Ok(())
}
