//! Files that commands read: what is no file of the wanted kind is refused before it is read, and one that changes
//! while it is in use is told.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        let folder = Self(TempDir::new().unwrap());
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/oracle/models/qwen3moe-iq2.gguf");
        fs_err::copy(source, folder.at("m.gguf")).unwrap();
        fs_err::write(folder.at("tokens"), "1 2 3").unwrap();
        folder
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn command(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_aqueduct"));
        command.args(line.split_whitespace()).current_dir(self.0.path()).stdin(Stdio::null());
        command
    }

    fn run(&self, line: &str) -> Output {
        let begin = Instant::now();
        let output = self.command(line).output().unwrap();
        assert!(begin.elapsed() < Duration::from_secs(20), "{line} took {:?}", begin.elapsed());
        output
    }

    fn fifo(&self, name: &str) -> PathBuf {
        assert!(Command::new("mkfifo").arg(self.at(name)).status().unwrap().success());
        self.at(name)
    }
}

fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn what_is_no_file_is_refused_before_it_is_read() {
    let folder = Folder::new();
    folder.fifo("fifo");
    fs_err::create_dir(folder.at("folder")).unwrap();
    fs_err::os::unix::fs::symlink("/dev/zero", folder.at("link")).unwrap();
    fs_err::os::unix::fs::symlink("fifo", folder.at("set-00002-of-00002.gguf")).unwrap();
    fs_err::copy(folder.at("m.gguf"), folder.at("set-00001-of-00002.gguf")).unwrap();
    let kinds = [
        ("fifo", "a FIFO"),
        ("/dev/zero", "a device"),
        ("/dev/stdin", "a device"),
        ("folder", "a folder"),
        ("link", "a device"),
    ];
    let lines = [
        "plan -m",
        "inspect",
        "run -p hi -m",
        "chat -m",
        "tokenize -p hi -m",
        "perplexity -p hi -m",
        "logits --tokens tokens -o out -m",
        "bench -m",
        "bench prompt -m",
        "sample -o out",
        "plan -m m.gguf -t",
        "run -p hi -m m.gguf -t",
    ];
    for line in lines {
        for (name, kind) in kinds {
            let output = folder.run(&format!("{line} {name}"));
            assert_eq!(output.status.code(), Some(1), "{line} {name}: {}", told(&output));
            assert!(told(&output).contains(&format!("`{name}` is {kind}; ")), "{line} {name}: {}", told(&output));
        }
    }
    let part = folder.run("inspect set-00001-of-00002.gguf");
    assert!(told(&part).contains("set-00002-of-00002.gguf` is a FIFO; "), "{}", told(&part));
    for (line, kind) in
        [("run -m m.gguf -f folder", "a folder"), ("logits -m m.gguf -o out --tokens folder", "a folder")]
    {
        assert!(told(&folder.run(line)).contains(kind), "{line}");
    }
    assert!(!folder.at("out").exists());
}

#[test]
fn texts_come_from_pipes_too_up_to_a_limit() {
    let folder = Folder::new();
    let ids = |mut command: Command, text: &str| {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        output.stdout
    };
    let wanted = folder.run("tokenize -m m.gguf -p hello").stdout;
    assert!(!wanted.is_empty());
    for line in ["tokenize -m m.gguf", "tokenize -m m.gguf -f -", "tokenize -m m.gguf -f /dev/stdin"] {
        assert_eq!(ids(folder.command(line), "hello"), wanted, "{line}");
    }
    for (name, line) in [("text", "tokenize -m m.gguf -f text"), ("ids", "logits -m m.gguf -o out --tokens ids")] {
        let path = folder.fifo(name);
        let writer =
            std::thread::spawn(move || fs_err::write(path, if name == "ids" { "1 2" } else { "hello" }).unwrap());
        let output = folder.run(line);
        assert!(output.status.success(), "{line}: {}", told(&output));
        writer.join().unwrap();
    }
    for line in
        ["run -m m.gguf -f /dev/zero", "logits -m m.gguf -o out --tokens /dev/zero", "tokenize -m m.gguf -f /dev/zero"]
    {
        let output = folder.run(line);
        assert_eq!(output.status.code(), Some(1), "{line}");
        assert!(told(&output).contains("/dev/zero has more than 64.0 MiB"), "{line}: {}", told(&output));
    }
    // A file's length is known before it is read.
    let sparse = fs_err::File::create(folder.at("sparse")).unwrap();
    sparse.set_len(1 << 40).unwrap();
    assert!(told(&folder.run("run -m m.gguf -f sparse")).contains("sparse has more than"));
    assert!(told(&folder.run("plan -m m.gguf -t sparse")).contains("sparse has more than 1.0 MiB"));
}

/// Starts an answer, waits for its first text, changes the file, and reads the rest.
fn change_while_running(line: &str, change: impl FnOnce(&Folder)) -> (Option<i32>, String) {
    let folder = Folder::new();
    let mut command = folder.command(line);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let _ = input.write_all(b"hello\n");
    let mut out = child.stdout.take().unwrap();
    out.read_exact(&mut [0; 8]).unwrap();
    change(&folder);
    let _ = input.write_all(b"and more\nand more\n");
    drop(input);
    out.read_to_end(&mut Vec::new()).unwrap();
    let output = child.wait_with_output().unwrap();
    (output.status.code(), told(&output))
}

#[test]
fn a_model_that_changes_while_it_is_used_is_told() {
    let run = "run -m m.gguf -p hi -n 3000 --ignore-end";
    let chat = "chat -m m.gguf -n 600";
    let cut = |bytes: u64| {
        move |folder: &Folder| {
            let file = fs_err::OpenOptions::new().write(true).open(folder.at("m.gguf")).unwrap();
            file.set_len(bytes).unwrap();
        }
    };
    let over = |folder: &Folder| {
        let mut bytes = fs_err::read(folder.at("m.gguf")).unwrap();
        bytes.iter_mut().skip(100_000).for_each(|byte| *byte ^= 0x55);
        fs_err::write(folder.at("m.gguf"), bytes).unwrap();
    };
    for line in [run, chat] {
        let ends = [
            ("emptied", change_while_running(line, cut(0))),
            ("cut", change_while_running(line, cut(400_000))),
            (
                "cut by one byte",
                change_while_running(line, |folder| {
                    cut(fs_err::metadata(folder.at("m.gguf")).unwrap().len() - 1)(folder)
                }),
            ),
            ("written over", change_while_running(line, over)),
        ];
        for (how, (code, told)) in ends {
            assert_eq!(code, Some(1), "{line}, {how}: {told}");
            assert!(told.contains("m.gguf changed while it was in use"), "{line}, {how}: {told}");
        }
    }
    let replace = |folder: &Folder| {
        fs_err::write(folder.at("new"), "another file").unwrap();
        fs_err::rename(folder.at("new"), folder.at("m.gguf")).unwrap();
    };
    let (code, told) = change_while_running(run, replace);
    assert_eq!(code, Some(0), "a file that took the name of the model does not concern it: {told}");
}
