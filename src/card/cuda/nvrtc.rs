//! The run-time compiler, NVRTC: found, loaded and called. It is needed only where the cache lacks a kernel.

use std::ffi::{CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};

use libloading::Library;

use super::error::CudaError;
use super::target::Form;

/// A loaded compiler.
pub struct Nvrtc {
    library: Library,
    path: PathBuf,
    version: (u32, u32),
    /// Kept open for the compiler, which looks for it by its bare name.
    _builtins: Option<Library>,
}

/// What a compilation made.
pub struct Compiled {
    /// The device code, or the PTX.
    pub code: Vec<u8>,
    /// The compiler's messages, with the resources of each kernel.
    pub log: String,
}

type Program = *mut c_void;
type Size = unsafe extern "C" fn(Program, *mut usize) -> c_int;
type Text = unsafe extern "C" fn(Program, *mut c_char) -> c_int;

impl Nvrtc {
    /// Finds a compiler of at most `newest` (the driver's CUDA major version; kernels of a newer one do not load): at
    /// `named` (a file, or a folder that holds it), in Python environments, in CUDA installations, on the loader's
    /// path.
    ///
    /// # Errors
    /// [`CudaError::NoCompiler`] with all places searched.
    pub fn find(named: Option<&Path>, newest: u32) -> Result<Self, CudaError> {
        let mut searched = Vec::new();
        for place in places(named) {
            for file in candidates(&place, newest) {
                if file.is_absolute() && !file.exists() {
                    continue;
                }
                match Self::load(&file) {
                    Ok(found) if found.version.0 <= newest => return Ok(found),
                    Ok(found) => searched.push(format!(
                        "{} (version {} is newer than the driver)",
                        file.display(),
                        found.version.0
                    )),
                    Err(error) if named == Some(place.as_path()) => return Err(error),
                    Err(_) => {}
                }
            }
            searched.push(if place.as_os_str().is_empty() {
                "the loader's path".to_owned()
            } else {
                place.display().to_string()
            });
        }
        Err(CudaError::NoCompiler { searched, install: install(newest) })
    }

    /// Loads the compiler library `file`.
    ///
    /// # Errors
    /// [`CudaError::Compiler`] when it does not load or lacks a function.
    pub fn load(file: &Path) -> Result<Self, CudaError> {
        let bad = |reason: String| CudaError::Compiler { path: file.to_owned(), reason };
        // SAFETY: NVRTC's initialisers have no preconditions.
        let library = unsafe { Library::new(file) }.map_err(|e| bad(e.to_string()))?;
        let (mut major, mut minor) = (0, 0);
        {
            type Version = unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int;
            // SAFETY: the signature of nvrtcVersion.
            let version = unsafe { library.get::<Version>(b"nvrtcVersion\0") }.map_err(|e| bad(e.to_string()))?;
            // SAFETY: writes two ints.
            if unsafe { version(&raw mut major, &raw mut minor) } != 0 {
                return Err(bad("it does not tell its version".to_owned()));
            }
        }
        let version = (u32::try_from(major).unwrap_or(0), u32::try_from(minor).unwrap_or(0));
        Ok(Self { library, path: file.to_owned(), version, _builtins: open_builtins(file, version) })
    }

    /// Where it was found.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its version, such as (13, 0).
    pub fn version(&self) -> (u32, u32) {
        self.version
    }

    /// Compiles to device code or PTX, as the options' architecture says. May be called from several threads.
    ///
    /// # Errors
    /// The compiler's messages, or what it lacks.
    pub fn compile(&self, name: &str, source: &str, options: &[String], form: Form) -> Result<Compiled, String> {
        type Create = unsafe extern "C" fn(
            *mut Program,
            *const c_char,
            *const c_char,
            c_int,
            *const *const c_char,
            *const *const c_char,
        ) -> c_int;
        type Compile = unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int;
        type Destroy = unsafe extern "C" fn(*mut Program) -> c_int;
        let text = |s: &str| CString::new(s).map_err(|e| e.to_string());
        let (source, name) = (text(source)?, text(name)?);
        let options = options.iter().map(|o| text(o)).collect::<Result<Vec<_>, _>>()?;
        let pointers: Vec<*const c_char> = options.iter().map(|o| o.as_ptr()).collect();

        // SAFETY: the signatures are NVRTC's own; the symbols live as long as `self.library`.
        let (create, compile, destroy) = unsafe {
            (
                self.library.get::<Create>(b"nvrtcCreateProgram\0").map_err(|e| e.to_string())?,
                self.library.get::<Compile>(b"nvrtcCompileProgram\0").map_err(|e| e.to_string())?,
                self.library.get::<Destroy>(b"nvrtcDestroyProgram\0").map_err(|e| e.to_string())?,
            )
        };
        let mut program: Program = std::ptr::null_mut();
        // SAFETY: both strings end in zero and outlive the call; no headers are passed.
        let made =
            unsafe { create(&raw mut program, source.as_ptr(), name.as_ptr(), 0, std::ptr::null(), std::ptr::null()) };
        if made != 0 {
            return Err(format!("NVRTC error {made}"));
        }
        // SAFETY: `program` was made above, the options end in zero and outlive the call.
        let status = unsafe { compile(program, c_int::try_from(pointers.len()).unwrap_or(0), pointers.as_ptr()) };
        let log = self.bytes(program, b"nvrtcGetProgramLogSize\0", b"nvrtcGetProgramLog\0");
        let code = match form {
            Form::Cubin => self.bytes(program, b"nvrtcGetCUBINSize\0", b"nvrtcGetCUBIN\0"),
            Form::Ptx => self.bytes(program, b"nvrtcGetPTXSize\0", b"nvrtcGetPTX\0"),
        };
        // SAFETY: made above, destroyed once.
        unsafe { destroy(&raw mut program) };
        let log = String::from_utf8_lossy(&log?).trim_end_matches('\0').to_owned();
        if status != 0 {
            return Err(format!("NVRTC error {status}\n{log}"));
        }
        match code? {
            code if code.is_empty() => Err(format!("NVRTC made nothing\n{log}")),
            code => Ok(Compiled { code, log }),
        }
    }

    fn bytes(&self, program: Program, size: &[u8], get: &[u8]) -> Result<Vec<u8>, String> {
        // SAFETY: both functions have these signatures in every NVRTC since 11.
        let (size, get) = unsafe {
            (
                self.library.get::<Size>(size).map_err(|e| e.to_string())?,
                self.library.get::<Text>(get).map_err(|e| e.to_string())?,
            )
        };
        let mut bytes = 0_usize;
        // SAFETY: writes one size.
        let status = unsafe { size(program, &raw mut bytes) };
        let mut to = vec![0_u8; bytes];
        // SAFETY: `to` has the size NVRTC asked for.
        let status = if status == 0 && bytes > 0 { unsafe { get(program, to.as_mut_ptr().cast()) } } else { status };
        if status == 0 { Ok(to) } else { Err(format!("NVRTC error {status}")) }
    }
}

/// The compiler's library of built-in functions. Some Python packages (13.0) lay it beside the compiler without a
/// search path that leads there; once it is open, the loader knows its name.
fn open_builtins(compiler: &Path, (major, minor): (u32, u32)) -> Option<Library> {
    let folder = fs_err::canonicalize(compiler).ok()?.parent()?.to_owned();
    let file = folder.join(format!("libnvrtc-builtins.so.{major}.{minor}"));
    if !file.exists() {
        return None;
    }
    // SAFETY: its initialisers have no preconditions.
    unsafe { Library::new(&file) }.inspect_err(|error| tracing::debug!(%error, "{} does not load", file.display())).ok()
}

/// The library's file names in a folder, or on the loader's path for the empty one.
fn candidates(place: &Path, newest: u32) -> Vec<PathBuf> {
    if place.extension().is_some() || place.is_file() {
        return vec![place.to_owned()];
    }
    let mut names: Vec<String> = (12..=newest.max(12)).rev().map(|major| format!("libnvrtc.so.{major}")).collect();
    names.push("libnvrtc.so".to_owned());
    names.iter().map(|name| place.join(name)).collect()
}

/// How a compiler for a driver of this CUDA major version is installed.
fn install(newest: u32) -> &'static str {
    if newest >= 13 {
        "`pip install 'nvidia-cuda-nvrtc<14'`, or `apt install cuda-nvrtc-13-0` from NVIDIA's repository; `nvidia-cuda-nvrtc-cu12` and \
         `cuda-nvrtc-12-8` do as well"
    } else {
        "`pip install nvidia-cuda-nvrtc-cu12`, or `apt install cuda-nvrtc-12-8` from NVIDIA's repository (Debian 13: `libnvrtc12`)"
    }
}

fn places(named: Option<&Path>) -> Vec<PathBuf> {
    if let Some(named) = named {
        return vec![named.to_owned()];
    }
    let mut places = Vec::new();
    for python in pythons() {
        for inside in ["nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib"] {
            places.push(python.join(inside));
        }
    }
    places.retain(|place| place.is_dir());
    for root in sorted_folders(Path::new("/usr/local"), "cuda").into_iter().rev() {
        for inside in ["lib64", "targets/x86_64-linux/lib"] {
            places.push(root.join(inside));
        }
    }
    places.push(PathBuf::new());
    places
}

/// The package folders of Python installations in the usual places.
pub(super) fn pythons() -> Vec<PathBuf> {
    let mut roots: Vec<PathBuf> = ["/usr/local/lib", "/usr/lib"].map(PathBuf::from).into();
    #[allow(deprecated, reason = "the behaviour that was deprecated concerns Windows")]
    if let Some(home) = std::env::home_dir() {
        roots.push(home.join(".local/lib"));
    }
    for folder in sorted_folders(Path::new("/opt"), "") {
        roots.push(folder.join("lib"));
        roots.push(folder.join(".venv/lib"));
    }
    for environment in [".venv/lib", "venv/lib", ".cache/nvrtc/lib"] {
        roots.push(PathBuf::from(environment));
    }
    let versions = roots.iter().flat_map(|root| sorted_folders(root, "python3"));
    versions.flat_map(|version| ["site-packages", "dist-packages"].map(|kind| version.join(kind))).collect()
}

/// The folders in `root` whose name begins with `prefix`, in order of name.
fn sorted_folders(root: &Path, prefix: &str) -> Vec<PathBuf> {
    let Ok(entries) = fs_err::read_dir(root) else { return Vec::new() };
    let mut folders: Vec<PathBuf> = entries
        .filter_map(Result::ok)
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
        .map(|entry| entry.path())
        .filter(|path| path.is_dir())
        .collect();
    folders.sort();
    folders
}
