//! Every kernel compiles for every architecture without spilling or passing its shared memory. Needs the compiler, no
//! GPU.

use aqueduct::card::cuda::{Built, Compiler, CompilerSettings, Form, Module, Target, shared_limit};

/// A driver that loads what any compiler makes.
const DRIVER: (u32, u32) = (13, u32::MAX);

/// The numbers before `what` in the compiler's report, with the kernel they belong to.
fn reported<'a>(log: &'a str, what: &str) -> Vec<(&'a str, usize)> {
    let mut kernel = "";
    let mut found = Vec::new();
    for line in log.lines() {
        if let Some((_, rest)) = line.split_once("entry function '") {
            kernel = rest.split('\'').next().unwrap_or_default();
        }
        if let Some((before, _)) = line.split_once(what) {
            let digits = before.rsplit(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
            found.push((kernel, digits.parse().expect("a number stands there")));
        }
    }
    found
}

/// What is wrong with a module, and how many kernels it has.
fn check(built: &Built, arch: u32, wrong: &mut Vec<String>) -> usize {
    let name = built.module.to_string();
    assert!(built.code.starts_with(b"\x7fELF"), "{name} sm_{arch}");
    let spills = reported(&built.log, " bytes spill stores");
    assert_eq!(
        spills.len(),
        built.module.kernels(arch).len(),
        "{name} sm_{arch} reports each kernel once:\n{}",
        built.log
    );
    for (kernel, bytes) in &spills {
        assert!(built.module.kernels(arch).contains(kernel), "{kernel} is not listed");
        if *bytes > 0 {
            wrong.push(format!("{name} sm_{arch}: {kernel} spills {bytes} bytes"));
        }
    }
    let own = reported(&built.log, " bytes smem").into_iter().map(|(_, bytes)| bytes).max().unwrap_or(0);
    let all = own + built.module.dynamic_shared(arch);
    if all > shared_limit(arch) {
        wrong.push(format!("{name} sm_{arch}: {all} bytes of shared memory, {} is the limit", shared_limit(arch)));
    }
    spills.len()
}

#[test]
#[ignore = "takes minutes: .ci/kernels runs it"]
fn every_kernel_compiles_for_every_architecture() {
    let Some(nvrtc) = std::env::var_os("AQUEDUCT_NVRTC") else {
        println!("skipped: AQUEDUCT_NVRTC does not name a compiler");
        return;
    };
    let archs =
        std::env::var_os("AQUEDUCT_ARCHS").map_or_else(|| "75 86 120".to_owned(), |archs| archs.into_string().unwrap());
    let only = std::env::var_os("AQUEDUCT_MODULES").map_or_else(String::new, |only| only.into_string().unwrap());
    let only: Vec<String> = only.split_whitespace().map(str::to_owned).collect();
    let compiler = Compiler::new(CompilerSettings { nvrtc: Some(nvrtc.into()), ..CompilerSettings::default() }, DRIVER);
    println!("NVRTC {:?} at {}", compiler.nvrtc().unwrap().version(), compiler.nvrtc().unwrap().path().display());
    let mut wrong = Vec::new();
    for arch in archs.split_whitespace().map(|arch| arch.parse().expect("an architecture such as 86")) {
        let mut modules = Module::all(arch);
        modules.retain(|module| only.is_empty() || only.contains(&module.to_string()));
        let began = std::time::Instant::now();
        let built = compiler.build(Target::cubin(arch), &modules).unwrap();
        let kernels: usize = built.iter().map(|built| check(built, arch, &mut wrong)).sum();
        println!("sm_{arch}: {} modules, {kernels} kernels, {:.0?}", built.len(), began.elapsed());
        // As PTX, which other cards may run, all of it is there, too.
        let began = std::time::Instant::now();
        let built = compiler.build(Target::ptx(arch), &modules).unwrap();
        for built in &built {
            assert_eq!(built.target.form, Form::Ptx);
            let text = String::from_utf8_lossy(&built.code);
            let missing =
                built.module.kernels(arch).into_iter().find(|name| !text.contains(&format!(".entry {name}(")));
            assert!(missing.is_none(), "{} for compute_{arch} lacks {missing:?}", built.module);
        }
        let bytes: usize = built.iter().map(|built| built.code.len()).sum();
        println!("compute_{arch}: {} MiB of PTX, {:.0?}", bytes >> 20, began.elapsed());
        assert!(kernels > if only.is_empty() { 250 } else { 0 });
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
#[ignore = "needs the compiler: .ci/kernels runs it"]
fn kernels_that_were_built_ahead_need_no_compiler() {
    let Some(nvrtc) = std::env::var_os("AQUEDUCT_NVRTC") else {
        println!("skipped: AQUEDUCT_NVRTC does not name a compiler");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let build = |nvrtc: std::path::PathBuf, newest: u32| {
        let cache = Some(folder.path().join("kernels"));
        let settings = CompilerSettings { nvrtc: Some(nvrtc), cache, ..CompilerSettings::default() };
        Compiler::new(settings, (newest, 0)).build(Target::cubin(86), &[Module::Base])
    };
    let first = build(nvrtc.into(), 13).unwrap();
    assert!(!first[0].cached && !first[0].code.is_empty());
    let again = build("/nonexistent/nvrtc".into(), 13).unwrap();
    assert!(again[0].cached && again[0].code == first[0].code);
    assert!(build("/nonexistent/nvrtc".into(), 11).is_err(), "an older driver does not load them");
}

#[test]
fn a_missing_compiler_is_named() {
    let nowhere = std::path::PathBuf::from("/nonexistent/nvrtc");
    let compiler = Compiler::new(CompilerSettings { nvrtc: Some(nowhere), ..CompilerSettings::default() }, DRIVER);
    let message = match compiler.build(Target::cubin(90), &[Module::Base]) {
        Ok(_) => panic!("nothing was compiled"),
        Err(error) => error.to_string(),
    };
    assert!(message.contains("/nonexistent/nvrtc"), "{message}");
}
