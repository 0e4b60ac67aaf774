//! Where kernels come from, and all calls of a driver, without a GPU and without NVRTC: a C compiler makes stand-ins
//! for both libraries.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use aqueduct::card::cuda::{Compiler, CompilerSettings, CudaError, Form, Module, PACKAGED, SYMBOLS, Target};
use tempfile::TempDir;

const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/fake");

/// Compiles a C source to a shared library.
fn library(source: &Path, to: &Path, options: &[String]) {
    let name = to.file_name().unwrap().to_str().unwrap();
    let soname = format!("-Wl,-soname,{name}");
    let out =
        Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(to).arg(source).arg(soname).args(options).output();
    let out = out.expect("a C compiler is there: cc");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

/// A compiler library of a version, with its builtins beside it.
fn compiler(folder: &Path, (major, minor): (u32, u32)) -> PathBuf {
    let empty = folder.join("empty.c");
    fs_err::write(&empty, "int nothing;\n").unwrap();
    library(&empty, &folder.join(format!("libnvrtc-builtins.so.{major}.{minor}")), &[]);
    let file = folder.join(format!("libnvrtc.so.{major}"));
    let options = [format!("-DMAJOR={major}"), format!("-DMINOR={minor}"), "-ldl".to_owned()];
    library(&Path::new(SOURCES).join("nvrtc.c"), &file, &options);
    file
}

/// A driver library with all that the program calls but for what it `lacks`.
fn driver(folder: &Path, lacks: &str) {
    let own = fs_err::read_to_string(Path::new(SOURCES).join("driver.c")).unwrap();
    let mut source = own.replace(&format!("int {lacks}("), "static inline int lacking(");
    for symbol in SYMBOLS.iter().filter(|symbol| **symbol != lacks && !own.contains(&format!("int {symbol}("))) {
        source += &format!("int {symbol}(void) {{ return 0; }}\n");
    }
    let file = folder.join("driver.c");
    fs_err::write(&file, source).unwrap();
    library(&file, &folder.join("libcuda.so"), &[]);
}

/// A folder with both libraries, and how the program is called with them.
struct Machine {
    folder: TempDir,
}

impl Machine {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        compiler(folder.path(), (12, 0));
        driver(folder.path(), "");
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn aqueduct(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_aqueduct"));
        self.prepare(&mut command);
        command
    }

    fn prepare(&self, command: &mut Command) {
        command
            .env("LD_LIBRARY_PATH", self.folder.path())
            .env("AQUEDUCT_NVRTC", self.path("libnvrtc.so.12"))
            .env("AQUEDUCT_KERNEL_CACHE", self.path("kernels"))
            .env("FAKE_NVRTC_CALLS", self.path("calls"))
            .env("FAKE_CUDA_LEFT", self.path("left"));
    }

    /// Modules that were compiled since it was asked last.
    fn compiled(&self) -> usize {
        let calls = fs_err::read_to_string(self.path("calls")).unwrap_or_default();
        let _ = fs_err::remove_file(self.path("calls"));
        calls.lines().count()
    }

    fn entries(&self) -> Vec<PathBuf> {
        let mut files: Vec<PathBuf> =
            fs_err::read_dir(self.path("kernels")).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        files
    }

    fn kernels(&self) -> Output {
        self.aqueduct().args(["kernels", "--arch", "86"]).output().unwrap()
    }

    fn run(&self, options: &[&str]) -> Command {
        let rig = self.path("rig.yaml");
        let text = "rig:\n  host: {memory: 2 GiB, workers: 2}\n  cards:\n    gpu0: {memory: 64 MiB, reserve: 0 B}\nrun: {context: 128}\n";
        fs_err::write(&rig, text).unwrap();
        let model = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/oracle/models/qwen3moe-f32.gguf");
        let mut command = self.aqueduct();
        command.args(["run", "-m", model, "-p", "a b c", "-n", "4"]).args(options);
        if !options.contains(&"-t") {
            command.arg("-t").arg(rig);
        }
        command
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn damaged_entries_are_built_again_and_whole_ones_are_not() {
    let machine = Machine::new();
    let out = machine.kernels();
    assert!(out.status.success(), "the builtins beside the compiler are not found: {}", text(&out.stderr));
    let all = Module::all(86).len();
    let entries = machine.entries();
    assert_eq!((machine.compiled(), entries.len()), (all, all));
    fs_err::write(&entries[0], b"").unwrap();
    let whole = fs_err::read(&entries[1]).unwrap();
    fs_err::write(&entries[1], &whole[..whole.len() / 2]).unwrap();
    let mut flipped = fs_err::read(&entries[2]).unwrap();
    *flipped.last_mut().unwrap() ^= 1;
    fs_err::write(&entries[2], &flipped).unwrap();
    fs_err::remove_file(&entries[3]).unwrap();
    assert!(machine.kernels().status.success());
    assert_eq!(machine.compiled(), 4);
    assert_eq!(fs_err::read(&entries[1]).unwrap(), whole);
    assert!(machine.kernels().status.success());
    assert_eq!((machine.compiled(), machine.entries()), (0, entries));
}

#[test]
fn two_processes_fill_one_folder() {
    let machine = Machine::new();
    let mut both = [0, 1].map(|_| machine.aqueduct().args(["kernels", "--arch", "86,75"]).spawn().unwrap());
    assert!(both.iter_mut().all(|one| one.wait().unwrap().success()));
    machine.compiled();
    assert_eq!(machine.entries().len(), Module::all(86).len() + Module::all(75).len(), "{:?}", machine.entries());
    assert!(machine.aqueduct().args(["kernels", "--arch", "75,86"]).status().unwrap().success());
    assert_eq!(machine.compiled(), 0, "an entry is not whole");
}

#[test]
fn a_folder_that_cannot_be_written_costs_the_cache_and_not_the_run() {
    let machine = Machine::new();
    for folder in ["/proc/aqueduct", "/dev/null/kernels"] {
        let settings = CompilerSettings {
            nvrtc: Some(machine.path("libnvrtc.so.12")),
            cache: Some(folder.into()),
            ..CompilerSettings::default()
        };
        let compiler = Compiler::new(settings, (12, 0));
        let built = compiler.build(Target::cubin(86), &[Module::Base, Module::Attention]).unwrap();
        assert!(built.iter().all(|built| !built.cached && built.code.starts_with(b"\x7fELF of ")));
        let reason = compiler.unkept().expect("it is told");
        assert!(reason.contains(folder), "{reason}");
        // The command whose only end is the cache fails.
        let out = machine.aqueduct().args(["kernels", "--arch", "86", "--kernel-cache", folder]).output().unwrap();
        assert_eq!(out.status.code(), Some(1), "{}", text(&out.stderr));
        assert!(text(&out.stderr).contains("cannot be kept"), "{}", text(&out.stderr));
        let out = machine.run(&["--kernel-cache", folder]).output().unwrap();
        let said = text(&out.stderr);
        assert_eq!(said.matches("are not kept").count(), 1, "{said}");
    }
}

#[test]
fn a_full_disk_leaves_nothing_half_written() {
    let machine = Machine::new();
    // Files may have 4 KiB and an entry more; the signal that would come is ignored, as on a disk that is full.
    let mut shell = Command::new("bash");
    machine.prepare(&mut shell);
    let script = "ulimit -f 4; trap '' XFSZ; exec \"$0\" kernels --arch 86";
    let out = shell.args(["-c", script, env!("CARGO_BIN_EXE_aqueduct")]).output().unwrap();
    assert!(!out.status.success());
    assert_eq!(machine.entries(), Vec::<PathBuf>::new(), "{}", text(&out.stderr));
    assert!(machine.kernels().status.success());
}

#[test]
fn packaged_ptx_serves_where_there_is_no_compiler() {
    let machine = Machine::new();
    let folder = machine.path("aqueduct-kernels");
    let out = machine.aqueduct().arg("kernels").arg("--ptx").arg(&folder).output().unwrap();
    assert!(out.status.success(), "{}", text(&out.stderr));
    let made: usize = PACKAGED.iter().map(|arch| Module::all(*arch).len()).sum();
    assert_eq!(fs_err::read_dir(&folder).unwrap().count(), made);
    let nowhere = machine.path("nowhere");
    let settings = |packaged: &Path| CompilerSettings {
        nvrtc: Some(nowhere.clone()),
        packaged: Some(packaged.to_owned()),
        ..CompilerSettings::default()
    };
    let built = |device, driver| {
        let compiler = Compiler::new(settings(&folder), driver);
        compiler.build_for(device, |_| vec![Module::Base, Module::Attention]).map(|(target, built)| {
            assert!(built.iter().all(|built| built.target == target && built.target.form == Form::Ptx));
            target.arch
        })
    };
    let archs: Vec<u32> = [75, 80, 86, 87, 89, 90, 100, 120].map(|device| built(device, (12, 4)).unwrap()).into();
    assert_eq!(archs, [75, 80, 86, 86, 89, 90, 89, 120]);
    // The stand-in is of 12.0: older drivers do not load its PTX.
    let told = built(86, (11, 8)).unwrap_err().to_string();
    assert!(told.contains("pip install nvidia-cuda-nvrtc-cu12") && told.contains("apt install"), "{told}");
    let told = Compiler::new(settings(&nowhere), (13, 0)).build(Target::cubin(86), &[Module::Base]).err().unwrap();
    assert!(told.to_string().contains("nvidia-cuda-nvrtc<14"), "{told}");
    // Damage is seen here, too; another capability's kernels serve.
    for entry in fs_err::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.to_str().unwrap().contains("compute_89") {
            fs_err::write(entry, b"half").unwrap();
        }
    }
    assert_eq!(built(89, (12, 4)).unwrap(), 86);
    // The whole program, with the folder named.
    let named = folder.to_str().unwrap();
    let options = ["--log", "info", "--nvrtc", "/nonexistent/libnvrtc.so", "--kernel-ptx", named];
    let out = machine.run(&options).output().unwrap();
    assert!(text(&out.stderr).contains("compute_86"), "{}", text(&out.stderr));
}

#[test]
fn kernels_of_earlier_capabilities_are_ptx_and_later_ones_are_refused() {
    let machine = Machine::new();
    let build = |kernels_for, device, driver| {
        let nvrtc = Some(machine.path("libnvrtc.so.12"));
        let settings = CompilerSettings { nvrtc, kernels_for: Some(kernels_for), ..CompilerSettings::default() };
        Compiler::new(settings, driver).build_for(device, |arch| {
            assert_eq!(arch, kernels_for);
            vec![Module::Base]
        })
    };
    for arch in [75, 80, 86, 89, 90] {
        let (target, built) = build(arch, 90, (12, 0)).unwrap();
        assert_eq!(target, Target::ptx(arch));
        let code = text(&built[0].code);
        let suffix = if arch == 90 { "a" } else { "" };
        assert!(code.contains(&format!("compute_{arch}{suffix}")), "{}", &code[..60]);
    }
    assert!(matches!(build(120, 90, (12, 0)), Err(CudaError::NotOnThisCard { arch: 120, device: 90 })));
    assert!(matches!(build(90, 120, (12, 0)), Err(CudaError::NotOnThisCard { .. })));
    assert!(matches!(build(86, 90, (11, 8)), Err(CudaError::NoCompiler { .. } | CudaError::CompilerTooNew { .. })));
    let out = machine.run(&["--kernels-for", "90"]).output().unwrap();
    assert_eq!(out.status.code(), Some(1));
    assert!(text(&out.stderr).contains("does not run kernels for 9.0"), "{}", text(&out.stderr));
}

#[test]
fn a_driver_with_the_listed_functions_alone_is_enough() {
    let machine = Machine::new();
    let folder = machine.path("trace.json");
    for options in [&[][..], &["--kernels-for", "80"], &["--guard-regions"], &["--trace", folder.to_str().unwrap()]] {
        let out = machine.run(options).output().unwrap();
        let said = text(&out.stderr);
        assert!(!said.contains("Missing symbol") && !said.contains("panicked"), "{options:?}: {said}");
        assert!(out.status.success(), "{options:?}: {said}");
        let left = fs_err::read_to_string(machine.path("left")).unwrap();
        assert_eq!(left, "streams 0 events 0 modules 0 memory 0 hosts 0\n", "{options:?}");
    }
}

#[test]
fn two_cards_are_on_one_gpu_where_both_say_so() {
    let machine = Machine::new();
    let rig = |shared: [&str; 2]| {
        let card = |i: usize| format!("    gpu{i}: {{index: 0, memory: 64 MiB, reserve: 0 B{}}}\n", shared[i]);
        let text = format!(
            "rig:\n  host: {{memory: 2 GiB, workers: 2}}\n  cards:\n{}{}run: {{context: 128}}\n",
            card(0),
            card(1)
        );
        let file = machine.path("two.yaml");
        fs_err::write(&file, text).unwrap();
        machine.run(&["-t", file.to_str().unwrap(), "--check-order"]).output().unwrap()
    };
    let yes = ", shared: true";
    let out = rig([yes, yes]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    for shared in [["", ""], [yes, ""], ["", yes], [yes, ", shared: false"]] {
        let out = rig(shared);
        let said = text(&out.stderr);
        assert!(!out.status.success() && said.contains("same GPU") && said.contains("shared: true"), "{said}");
    }
}

#[test]
fn old_and_incomplete_drivers_are_told_in_one_line() {
    let machine = Machine::new();
    let out = machine.run(&[]).env("FAKE_CUDA_VERSION", "11080").output().unwrap();
    assert_eq!(out.status.code(), Some(1));
    assert!(text(&out.stderr).contains("is of CUDA 11.8: CUDA 12.0 is needed"), "{}", text(&out.stderr));
    driver(machine.folder.path(), "cuLaunchKernelEx");
    let out = machine.run(&[]).output().unwrap();
    assert_eq!(out.status.code(), Some(1));
    assert!(text(&out.stderr).contains("has no `cuLaunchKernelEx`"), "{}", text(&out.stderr));
    // The CPU goes on without it.
    let out = machine.run(&["--devices", "none"]).output().unwrap();
    println!("{}", text(&out.stderr));
}

#[test]
fn an_arena_that_is_refused_leaves_no_stream_behind() {
    let machine = Machine::new();
    let out = machine.run(&[]).env("FAKE_CUDA_FAIL", "cuMemAlloc_v2:0:2").output().unwrap();
    assert_eq!(out.status.code(), Some(1));
    assert!(text(&out.stderr).contains("could not be taken"), "{}", text(&out.stderr));
    let left = fs_err::read_to_string(machine.path("left")).unwrap();
    assert!(left.starts_with("streams 0 events 0 modules 0 memory 0"), "{left}");
}

#[test]
fn a_failure_of_the_device_that_a_later_launch_tells_fails_the_card() {
    let machine = Machine::new();
    for (fail, told) in [
        ("cuLaunchKernelEx:7:700", "failed on the compute stream"),
        ("cuMemcpyHtoDAsync_v2:0:700", "failed on the"),
        // Too much for one launch is a matter of that launch alone, of which something is queued or not.
        ("cuLaunchKernelEx:0:701", "CUDA_ERROR"),
    ] {
        let out = machine.run(&[]).env("FAKE_CUDA_FAIL", fail).output().unwrap();
        let said = text(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{fail}: {said}");
        assert!(said.contains(told) && !said.contains("panicked"), "{fail}: {said}");
        println!("{fail}: {said}");
    }
}
