//! What the program takes of the machine's memory is what its plan says: pages of its own and pages of the model's file
//! told apart.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::ops::ControlFlow;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use aqueduct::quant::QuantType;
use aqueduct::synth::{Overrides, Shape, write_model};
use serde_json::Value;

/// Most bytes of a process while it ran.
#[derive(Clone, Copy, Debug, Default)]
struct Peak {
    anonymous: u64,
    file: u64,
}

fn status(pid: u32) -> Option<Peak> {
    let text = fs_err::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let of = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key))?;
        Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
    };
    Some(Peak { anonymous: of("RssAnon:")?, file: of("RssFile:")? })
}

fn program(folder: &Path, command: &str, topology: &str, more: &[&str]) -> Command {
    let mut program = Command::new(env!("CARGO_BIN_EXE_aqueduct"));
    program.current_dir(folder).args([command, "-m", "model.gguf", "-t", topology]).args(more);
    // One arena of the allocator: freed memory of many threads would blur what is measured.
    program.env("MALLOC_ARENA_MAX", "1").stdin(Stdio::null());
    program
}

fn planned(folder: &Path, topology: &str) -> Value {
    let output = program(folder, "plan", topology, &["--json"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn measured(folder: &Path, topology: &str) -> Peak {
    let prompt = "a few words that fill the context ".repeat(12);
    let more = ["-p", &prompt, "-n", "24", "--temperature", "0", "--ignore-end"];
    let mut child =
        program(folder, "run", topology, &more).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut peak = Peak::default();
    while child.try_wait().unwrap().is_none() {
        if let Some(now) = status(child.id()) {
            peak.anonymous = peak.anonymous.max(now.anonymous);
            peak.file = peak.file.max(now.file);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    peak
}

/// A folder with a model and topologies.
fn folder(sizes: &Overrides) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let shape = Shape::named("tiny-qwen3moe").unwrap().with(sizes).unwrap();
    write_model(&shape, &folder.path().join("model.gguf"), &mut |_, _| ControlFlow::Continue(())).unwrap();
    folder
}

fn topology(folder: &Path, name: &str, cards: &[&str], host: &str) {
    let cards: String =
        (0..).zip(cards).map(|(i, memory)| format!("    v{i}: {{kind: virtual, memory: {memory}}}\n")).collect();
    let text = format!(
        "rig:\n  host: {{{host}, workers: 2}}\n  cards:\n{cards}run: {{context: 384, prompt: {{wave: 32, floor: 8}}}}\n"
    );
    fs_err::write(folder.join(name), text).unwrap();
}

#[test]
fn memory_that_is_taken_is_memory_that_was_planned() {
    let large = Overrides {
        layers: Some(6),
        width: Some(256),
        experts: Some(64),
        ff: Some(512),
        ffn_type: Some(QuantType::Q8_0),
        down_type: Some(QuantType::Q8_0),
        ..Overrides::default()
    };
    // What the program takes beside any plan: its own heap, stacks, the tokenizer.
    let small = folder(&Overrides::default());
    topology(small.path(), "all.yaml", &["200 MiB"], "memory: 1 GiB");
    let host = &planned(small.path(), "all.yaml")["host"];
    let sum = |host: &Value| ["arena", "buffers", "cards"].iter().map(|key| host[*key].as_u64().unwrap()).sum::<u64>();
    let alone = measured(small.path(), "all.yaml");
    let base = alone.anonymous.saturating_sub(sum(host));
    println!("base: {base} bytes beside {}, {} of files", sum(host), alone.file);
    assert!(base < 48 << 20, "the program alone takes {base} bytes");

    let folder = folder(&large);
    let path = folder.path();
    topology(path, "all.yaml", &["400 MiB"], "memory: 60 MiB");
    topology(path, "part.yaml", &["80 MiB"], "memory: 400 MiB");
    topology(path, "two.yaml", &["70 MiB", "90 MiB"], "memory: 400 MiB");
    topology(path, "file.yaml", &["80 MiB"], "memory: 60 MiB");
    let mut in_file = 0;
    for name in ["all.yaml", "part.yaml", "two.yaml", "file.yaml"] {
        let plan = planned(path, name);
        let (host, peak) = (&plan["host"], measured(path, name));
        let wanted = (sum(host) + base) as f64;
        let off = peak.anonymous as f64 / wanted - 1.0;
        println!(
            "{name}: planned {wanted}, taken {} ({:+.1}%), {} of files; {host}",
            peak.anonymous,
            100.0 * off,
            peak.file
        );
        assert!(off.abs() < 0.05, "{name}: planned {wanted} bytes, {} were taken", peak.anonymous);
        // Pages of the file: what is used in place, beside those of the program itself. The system maps the neighbours
        // of a page, too.
        let most = host["in_place"].as_u64().unwrap() + alone.file + (4 << 20);
        assert!(peak.file <= most, "{name}: {} bytes of files, of {most}", peak.file);
        in_file += host["file_experts"].as_u64().unwrap();
    }
    assert!(in_file > 0, "no plan reads experts from the file");
}
