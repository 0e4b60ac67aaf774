//! Signals, and readers that go away: what a user stops ends soon, with the code that shells expect, and leaves
//! nothing.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

const MODEL: &str = "tests/data/oracle/models/qwen3moe-iq2.gguf";
const SIGNALS: [(&str, i32); 3] = [("INT", 130), ("TERM", 143), ("HUP", 129)];

fn aqueduct(line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_aqueduct"));
    command.args(line.split_whitespace()).current_dir(env!("CARGO_MANIFEST_DIR"));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn send(signal: &str, child: &Child) {
    let kill = Command::new("kill").args([&format!("-{signal}"), &child.id().to_string()]).status();
    assert!(kill.unwrap().success());
}

/// The exit code of a program that must end now.
fn wait(child: &mut Child, most: Duration) -> i32 {
    let begin = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code().expect("ended by its own hand, not by a signal");
        }
        if begin.elapsed() > most {
            child.kill().unwrap();
            panic!("the signal was not heard");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn left_in(folder: &TempDir) -> Vec<PathBuf> {
    fs_err::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect()
}

fn at(folder: &TempDir, name: &str) -> String {
    folder.path().join(name).to_str().unwrap().to_owned()
}

/// Waits until the program has written so many bytes to its files.
fn wait_for_writes(child: &Child, bytes: u64) {
    let begin = Instant::now();
    let io = format!("/proc/{}/io", child.id());
    loop {
        let text = fs_err::read_to_string(&io).unwrap_or_default();
        let written = text.lines().find_map(|line| line.strip_prefix("wchar: ")?.parse::<u64>().ok());
        if written.is_some_and(|written| written >= bytes) {
            return;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "nothing is written");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_first_signal_ends_the_work_and_leaves_nothing() {
    for (signal, code) in SIGNALS {
        let folder = TempDir::new().unwrap();
        let mut child = aqueduct(&format!("synth qwen3moe-1gb -o {}", at(&folder, "big.gguf"))).spawn().unwrap();
        wait_for_writes(&child, 20 << 20);
        send(signal, &child);
        assert_eq!(wait(&mut child, Duration::from_secs(30)), code, "synth, {signal}");
        assert!(left_in(&folder).is_empty(), "synth, {signal}: {:?}", left_in(&folder));

        let (tokens, out) = (at(&folder, "tokens"), at(&folder, "out.npy"));
        fs_err::write(&tokens, (0..3000).map(|n| format!("{} ", n % 500)).collect::<String>()).unwrap();
        let line = format!("logits -m {MODEL} --tokens {tokens} --step -o {out}");
        let mut child = aqueduct(&line).spawn().unwrap();
        wait_for_writes(&child, 1 << 20);
        send(signal, &child);
        assert_eq!(wait(&mut child, Duration::from_secs(30)), code, "logits, {signal}");
        assert_eq!(left_in(&folder), [Path::new(&tokens)], "logits, {signal}");
    }
}

#[test]
fn a_signal_ends_an_answer() {
    for (signal, code) in SIGNALS {
        let line = format!("run -m {MODEL} -p hi -n 4000 --ignore-end");
        let mut child = aqueduct(&line).spawn().unwrap();
        let mut out = child.stdout.take().unwrap();
        out.read_exact(&mut [0; 4]).unwrap();
        send(signal, &child);
        let mut rest = Vec::new();
        out.read_to_end(&mut rest).unwrap();
        assert_eq!(wait(&mut child, Duration::from_secs(30)), code, "{signal}");
        assert!(rest.ends_with(b"\n"), "{signal}: the line is not ended");
        let told = std::io::read_to_string(child.stderr.take().unwrap()).unwrap();
        assert!(told.contains("cancelled") && !told.contains("error"), "{signal}: {told}");
    }
}

/// The trace goes to a FIFO, whose reader decides when the writing is half done.
#[test]
fn a_signal_while_the_trace_is_written_ends_it() {
    for (signal, code) in SIGNALS {
        let folder = TempDir::new().unwrap();
        let fifo = at(&folder, "trace");
        assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        let line = format!("run -m {MODEL} -p hi -n 400 --ignore-end --trace {fifo}");
        let mut child = aqueduct(&line).stdout(Stdio::null()).spawn().unwrap();
        let mut trace = fs_err::File::open(&fifo).unwrap();
        trace.read_exact(&mut [0; 100]).unwrap();
        send(signal, &child);
        // Until the program has heard it, the pipe must stay full.
        std::thread::sleep(Duration::from_millis(300));
        let mut rest = Vec::new();
        trace.read_to_end(&mut rest).unwrap();
        assert_eq!(wait(&mut child, Duration::from_secs(30)), code, "{signal}");
        assert!(!rest.ends_with(b"}\n") && !rest.ends_with(b"]\n"), "{signal}: the trace came to its end");
    }
}

#[test]
fn a_program_that_nobody_reads_hears_a_second_ctrl_c_and_one_sigterm() {
    for (signals, code) in [(&["INT", "INT"][..], 130), (&["TERM"], 143)] {
        let line = format!("run -m {MODEL} -p hi -n 4000 --ignore-end");
        // An answer is short, so the pipe is made small.
        let (reader, writer) = std::io::pipe().unwrap();
        rustix::pipe::fcntl_setpipe_size(&writer, 4096).unwrap();
        let mut child = aqueduct(&line).stdout(writer).spawn().unwrap();
        std::thread::sleep(Duration::from_secs(4));
        for signal in signals {
            send(signal, &child);
            std::thread::sleep(Duration::from_millis(100));
        }
        assert_eq!(wait(&mut child, Duration::from_secs(15)), code, "{signals:?}");
        drop(reader);
    }
}

#[test]
fn nohup_outlives_the_terminal() {
    let line = format!("trap '' HUP; exec {} run -m {MODEL} -p hi -n 600 --ignore-end", env!("CARGO_BIN_EXE_aqueduct"));
    let mut child = Command::new("sh")
        .args(["-c", &line])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut out = child.stdout.take().unwrap();
    out.read_exact(&mut [0; 4]).unwrap();
    send("HUP", &child);
    out.read_to_end(&mut Vec::new()).unwrap();
    assert_eq!(wait(&mut child, Duration::from_secs(60)), 0);
}

#[test]
fn a_reader_that_goes_away_ends_the_command_quietly() {
    let chat = format!("chat -m {MODEL} -n 4000");
    let run = format!("run -m {MODEL} -p hi -n 4000 --ignore-end");
    for line in [&format!("inspect {MODEL} -a"), &run, &chat] {
        let mut child = aqueduct(line).stdin(Stdio::piped()).spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        let _ = input.write_all(b"hello\nagain\nonce more\n");
        let mut out = child.stdout.take().unwrap();
        out.read_exact(&mut [0]).unwrap();
        drop(out);
        assert_eq!(wait(&mut child, Duration::from_secs(60)), 0, "{line}");
        let told = std::io::read_to_string(child.stderr.take().unwrap()).unwrap();
        assert!(!told.contains("error"), "{line}: {told}");
    }
}
