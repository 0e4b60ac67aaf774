//! The sample mixture of experts comes out byte for byte as published, and only from the right file.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use aqueduct::synth::{DENSE_NAME, SAMPLE_EXPERTS_USED, SampleError, write_sample};
use aqueduct::units::Bytes;

/// The dense model, if it was fetched. `.ci/run` fetches it, and there its absence is a failure.
fn dense() -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(".cache/models").join(DENSE_NAME);
    if path.is_file() {
        return Some(path);
    }
    assert!(std::env::var_os("AQUEDUCT_NO_SKIP").is_none(), "{} is missing", path.display());
    println!("SKIPPED: {} is missing; `deploy/fetch-sample.sh` fetches it", path.display());
    None
}

#[test]
fn the_sample_is_the_published_file() {
    let Some(dense) = dense() else { return };
    let folder = tempfile::tempdir().unwrap();
    for (used, _) in SAMPLE_EXPERTS_USED {
        let out = folder.path().join(format!("k{used}.gguf"));
        let mut told = Vec::new();
        // The writer keeps a file only with the published SHA-256.
        let written = write_sample(&dense, used, &out, &mut |written: Bytes, wanted: Bytes| {
            told.push((written, wanted));
            ControlFlow::Continue(())
        })
        .unwrap();
        assert_eq!(written.bytes, Bytes(if used == 8 { 99_471_584 } else { 99_471_616 }));
        assert_eq!(fs_err::metadata(&out).unwrap().len(), written.bytes.0);
        assert!(told.len() > 10 && told.is_sorted() && told.last() == Some(&(written.bytes, written.bytes)));
        fs_err::remove_file(out).unwrap();
    }
}

#[test]
fn stopping_leaves_nothing() {
    let Some(dense) = dense() else { return };
    let folder = tempfile::tempdir().unwrap();
    let error = write_sample(&dense, 12, &folder.path().join("out.gguf"), &mut |written, _| {
        if written > Bytes(40_000_000) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })
    .unwrap_err();
    assert!(error.to_string().contains("nothing is left of"), "{error}");
    assert_eq!(fs_err::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn another_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.gguf");
    let other = folder.path().join("other.gguf");
    fs_err::write(&other, "no model").unwrap();
    let mut watch = |_, _| ControlFlow::Continue(());
    let error = write_sample(&other, 12, &out, &mut watch).unwrap_err();
    assert!(matches!(error, SampleError::OtherInput { .. }));
    assert!(error.to_string().contains("other.gguf is not SmolLM2-135M-Instruct.Q4_1.gguf"), "{error}");
    let error = write_sample(&folder.path().join("none.gguf"), 12, &out, &mut watch).unwrap_err();
    assert!(error.to_string().contains("none.gguf") && error.to_string().contains("deploy/fetch-sample.sh"), "{error}");
    let error = write_sample(&other, 11, &out, &mut watch).unwrap_err();
    assert!(error.to_string().contains("12, 10, 8 experts a token, not 11"), "{error}");
    assert!(!out.exists());
}

/// The program's answer to a text whose answer stands at its beginning, with these settings of the cache.
fn found(model: &Path, folder: &Path, kv: &str) -> String {
    let topology = folder.join("kv.yaml");
    let cards = "{a: {kind: virtual, memory: 90 MiB}, b: {kind: virtual, memory: 100 MiB}}";
    let run = format!("run: {{context: 1024, kv: {{{kv}}}, prompt: {{wave: 128}}}}");
    fs_err::write(&topology, format!("rig: {{cards: {cards}}}\n{run}\n")).unwrap();
    let fact = "The password of the old castle is pineapple. ".repeat(2);
    let filler = "The river runs slowly through the valley, and in the evening the wind moves the grass. ".repeat(20);
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_aqueduct"))
        .args(["run", "-n", "4", "-m"])
        .arg(model)
        .arg("-t")
        .arg(&topology)
        .arg("-p")
        .arg(format!("{fact}{filler}The password of the old castle is"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn an_answer_placed_early_is_found_wherever_its_cells_live() {
    let Some(dense) = dense() else { return };
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("sample.gguf");
    write_sample(&dense, 12, &model, &mut |_, _| ControlFlow::Continue(())).unwrap();
    for kv in ["", "resident_cells: 64", "resident_cells: 0, staging: 128, prefetch: on"] {
        let answer = found(&model, folder.path(), kv);
        assert!(answer.contains("pineapple"), "{kv}: {answer}");
    }
}
