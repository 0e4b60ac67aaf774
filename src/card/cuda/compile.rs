//! Building kernels: compiled for one target, kept in a cache on disk, or taken from what a release carries.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::cache::{self, Folder, Found};
use super::error::CudaError;
use super::module::Module;
use super::nvrtc::Nvrtc;
use super::target::{Form, PACKAGED, Target};

/// Where kernels come from.
#[derive(Clone, Debug, Default)]
pub struct CompilerSettings {
    /// The compiler library or its folder; `None` searches the usual places.
    pub nvrtc: Option<PathBuf>,
    /// The cache folder; `None` compiles afresh.
    pub cache: Option<PathBuf>,
    /// A folder of PTX, for machines without a compiler.
    pub packaged: Option<PathBuf>,
    /// Takes the kernels, limits and launches of an earlier compute capability, for tests and measurements on a newer
    /// card.
    pub kernels_for: Option<u32>,
}

/// One built module.
pub struct Built {
    /// Which.
    pub module: Module,
    /// What it is for.
    pub target: Target,
    /// Its device code, or its PTX.
    pub code: Vec<u8>,
    /// The compiler's messages; empty when it came from a folder.
    pub log: String,
    /// Whether it came from a folder.
    pub cached: bool,
}

/// Kernels for the cards of one driver.
pub struct Compiler {
    settings: CompilerSettings,
    driver: (u32, u32),
    nvrtc: OnceLock<Nvrtc>,
    /// Why something could not be kept, the first time.
    unkept: OnceLock<String>,
}

impl Compiler {
    /// A compiler for a driver of this CUDA version. The library is looked for when it is first needed.
    pub fn new(settings: CompilerSettings, driver: (u32, u32)) -> Self {
        Self { settings, driver, nvrtc: OnceLock::new(), unkept: OnceLock::new() }
    }

    /// The compiler library.
    ///
    /// # Errors
    /// When there is none.
    pub fn nvrtc(&self) -> Result<&Nvrtc, CudaError> {
        if let Some(found) = self.nvrtc.get() {
            return Ok(found);
        }
        let found = Nvrtc::find(self.settings.nvrtc.as_deref(), self.driver.0)?;
        Ok(self.nvrtc.get_or_init(|| found))
    }

    /// Why the cache could not be written, if it could not.
    pub fn unkept(&self) -> Option<&str> {
        self.unkept.get().map(String::as_str)
    }

    /// Builds for a card of capability `device`: for the card itself, or for the capability that the settings name;
    /// without a compiler, from what is packaged. `modules` lists what is needed of a capability.
    ///
    /// # Errors
    /// When there is no compiler and nothing was built before, or a module cannot be built.
    pub fn build_for(
        &self,
        device: u32,
        modules: impl Fn(u32) -> Vec<Module>,
    ) -> Result<(Target, Vec<Built>), CudaError> {
        if let Some(arch) = self.settings.kernels_for {
            let target = Target::ptx(arch);
            if !target.runs_on(device) {
                return Err(CudaError::NotOnThisCard { arch, device });
            }
            return Ok((target, self.build(target, &modules(arch))?));
        }
        let own = Target::cubin(device);
        match self.build(own, &modules(device)) {
            Err(error @ CudaError::NoCompiler { .. }) => self.packaged(device, modules).ok_or(error),
            built => Ok((own, built?)),
        }
    }

    /// What a release carries for a card: all modules of one capability.
    fn packaged(&self, device: u32, modules: impl Fn(u32) -> Vec<Module>) -> Option<(Target, Vec<Built>)> {
        let folder = Folder(self.settings.packaged.clone()?);
        let targets = PACKAGED.map(Target::ptx).into_iter().filter(|target| target.runs_on(device));
        let mut complete = targets.filter_map(|target| {
            let built = modules(target.arch).into_iter().map(|module| {
                let (source, options) = (module.source(), options(module, target));
                let stem = cache::stem(&format!("{module}-{target}"), &source, &options);
                match folder.newest(&stem, target.extension(), |version| target.loads(version, self.driver)) {
                    Found::Whole(code) => Some(Built { module, target, code, log: String::new(), cached: true }),
                    Found::Damaged(file) => {
                        tracing::warn!("{} is damaged", file.display());
                        None
                    }
                    Found::Nothing => None,
                }
            });
            Some((target, built.collect::<Option<Vec<_>>>()?))
        });
        complete.next()
    }

    /// Builds modules, several at a time, in the order asked for.
    ///
    /// # Errors
    /// The first module that cannot be built.
    pub fn build(&self, target: Target, modules: &[Module]) -> Result<Vec<Built>, CudaError> {
        if let Some(folder) = self.folder() {
            folder.tidy();
        }
        let next = AtomicUsize::new(0);
        let slots: Vec<OnceLock<Result<Built, CudaError>>> = modules.iter().map(|_| OnceLock::new()).collect();
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(modules.len());
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    loop {
                        let i = next.fetch_add(1, Ordering::Relaxed);
                        let (Some(module), Some(slot)) = (modules.get(i), slots.get(i)) else { break };
                        let _ = slot.set(self.build_one(target, *module));
                    }
                });
            }
        });
        slots.into_iter().filter_map(OnceLock::into_inner).collect()
    }

    fn folder(&self) -> Option<Folder> {
        self.settings.cache.clone().map(Folder)
    }

    fn build_one(&self, target: Target, module: Module) -> Result<Built, CudaError> {
        let (source, options) = (module.source(), options(module, target));
        let stem = cache::stem(&format!("{module}-{target}"), &source, &options);
        let found = match (self.nvrtc(), self.folder()) {
            (Ok(nvrtc), Some(folder)) => cache::read(&folder.file(&stem, nvrtc.version(), target.extension())),
            // Without a compiler, what any made of this source serves, if the driver takes it.
            (Err(_), Some(folder)) => {
                folder.newest(&stem, target.extension(), |version| target.loads(version, self.driver))
            }
            (_, None) => Found::Nothing,
        };
        match found {
            Found::Whole(code) => return Ok(Built { module, target, code, log: String::new(), cached: true }),
            Found::Damaged(file) => tracing::info!("{} is damaged and is built again", file.display()),
            Found::Nothing => {}
        }
        let nvrtc = self.nvrtc()?;
        if !target.loads(nvrtc.version(), self.driver) {
            let (path, version) = (nvrtc.path().to_owned(), nvrtc.version());
            return Err(CudaError::CompilerTooNew { path, version, driver: self.driver });
        }
        let compiled = nvrtc
            .compile(&format!("{module}.cu"), &source, &options, target.form)
            .map_err(|log| CudaError::Compile { module: module.to_string(), target: target.to_string(), log })?;
        if let Some(folder) = self.folder() {
            self.keep(&folder, &folder.file(&stem, nvrtc.version(), target.extension()), &compiled.code);
        }
        Ok(Built { module, target, code: compiled.code, log: compiled.log, cached: false })
    }

    /// Keeps what was compiled, if the folder can be written.
    fn keep(&self, folder: &Folder, file: &Path, code: &[u8]) {
        if let Err(error) = folder.keep(file, code) {
            let _ = self.unkept.set(format!("{}: {error}", folder.0.display()));
        }
    }
}

/// The compiler's options for a module.
fn options(module: Module, target: Target) -> Vec<String> {
    let mut options = module.options();
    options.extend([
        format!("--gpu-architecture={}", target.architecture()),
        "--std=c++17".to_owned(),
        // A fused multiply-add is written where it is meant: values must not depend on the kernel variant.
        "--fmad=false".to_owned(),
    ]);
    if target.form == Form::Cubin {
        options.extend(["--generate-line-info".to_owned(), "--ptxas-options=-v".to_owned()]);
    }
    options
}
