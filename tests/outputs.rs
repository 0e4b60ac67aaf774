//! Files that commands write: devices, FIFOs and links stay what they are, inputs are safe, nothing half-written stays.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

const MODELS: &str = "tests/data/oracle/models";
const SPLIT: &str = "qwen3moe-q4_k_m-split";

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(MODELS).join(name)
}

/// A folder with a model, a split one, a topology and texts.
struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        let folder = Self(TempDir::new().unwrap());
        fs_err::copy(source("qwen3moe-iq2.gguf"), folder.at("m.gguf")).unwrap();
        for part in 1..=3 {
            let name = format!("{SPLIT}-{part:05}-of-00003.gguf");
            fs_err::copy(source(&name), folder.at(&name)).unwrap();
        }
        fs_err::write(folder.at("rig.yaml"), "rig: {cards: {a: {kind: virtual, memory: 64 MiB}}}\n").unwrap();
        fs_err::write(folder.at("tokens"), "1 2 3 4 5 6 7 8").unwrap();
        fs_err::write(folder.at("text"), "hello there").unwrap();
        folder
    }

    fn at(&self, name: impl AsRef<Path>) -> PathBuf {
        self.0.path().join(name)
    }

    fn command(&self, line: &str, last: Option<&OsStr>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_aqueduct"));
        command.args(line.split_whitespace()).args(last).current_dir(self.0.path()).stdin(Stdio::null());
        command
    }

    fn run(&self, line: &str) -> Output {
        self.command(line, None).output().unwrap()
    }

    /// Names and contents of all files; other things by their kind only.
    fn all(&self) -> Vec<(OsString, Option<Vec<u8>>)> {
        let mut all: Vec<_> = fs_err::read_dir(self.0.path())
            .unwrap()
            .map(|entry| {
                let entry = entry.unwrap();
                let whole = entry.path().is_file().then(|| fs_err::read(entry.path()).unwrap());
                (entry.file_name(), whole)
            })
            .collect();
        all.sort();
        all
    }
}

fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Every command that writes a file, without the file's name.
const WRITERS: [&str; 4] = [
    "logits -m m.gguf --tokens tokens -o",
    "run -m m.gguf -p hi -n 2 --trace",
    "synth tiny-llama -o",
    "chat -m m.gguf --history",
];

fn fifo(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

#[test]
fn links_devices_and_fifos_are_written_to_and_stay() {
    let folder = Folder::new();
    for writer in WRITERS {
        let run = |name: &str| {
            let output = folder.run(&format!("{writer} {name}"));
            assert!(output.status.success(), "{writer} {name}: {}", told(&output));
        };
        run("plain");
        let whole = fs_err::read(folder.at("plain")).unwrap().len();
        let same = |path: &Path| {
            let found = fs_err::read(path).unwrap().len();
            // A trace has times in it, so its length is not always the same.
            assert!(found > 0 && found.abs_diff(whole) < 1 + whole / 4, "{writer}: {found} bytes, {whole} are whole");
        };
        fs_err::create_dir(folder.at("sub")).unwrap();
        fs_err::write(folder.at("sub/old"), "#V2\n").unwrap();
        for (link, target) in [("to-old", "sub/old"), ("to-new", "sub/new"), ("to-link", "to-new")] {
            fs_err::os::unix::fs::symlink(target, folder.at(link)).unwrap();
            run(link);
            assert!(folder.at(link).is_symlink(), "{writer}: the link {link} was replaced");
            same(&folder.at("sub/old"));
        }
        same(&folder.at("sub/new"));
        assert_eq!(fs_err::read_dir(folder.at("sub")).unwrap().count(), 2, "{writer}: a part was left");

        fifo(&folder.at("fifo"));
        let (pipe, copy) = (folder.at("fifo"), folder.at("copy"));
        let reader = std::thread::spawn(move || fs_err::write(copy, fs_err::read(pipe).unwrap()).unwrap());
        run("fifo");
        reader.join().unwrap();
        assert!(fs_err::metadata(folder.at("fifo")).unwrap().file_type().is_fifo(), "{writer}: the FIFO was replaced");
        same(&folder.at("copy"));

        run("/dev/null");
        let full = folder.run(&format!("{writer} /dev/full"));
        assert_eq!(full.status.code(), Some(1), "{writer}: {}", told(&full));
        assert!(told(&full).contains("cannot write /dev/full: the disk is full"), "{writer}: {}", told(&full));
        for device in ["/dev/null", "/dev/full"] {
            assert!(fs_err::metadata(device).unwrap().file_type().is_char_device(), "{writer}: {device} was replaced");
        }
        for name in ["plain", "copy", "fifo", "to-old", "to-new", "to-link"] {
            fs_err::remove_file(folder.at(name)).unwrap();
        }
        fs_err::remove_dir_all(folder.at("sub")).unwrap();
    }
}

#[test]
fn an_output_may_be_standard_output() {
    let folder = Folder::new();
    let piped = folder.run("logits -m m.gguf --tokens tokens -o /dev/stdout");
    assert!(piped.status.success(), "{}", told(&piped));
    folder.run("logits -m m.gguf --tokens tokens -o plain");
    assert!(piped.stdout == fs_err::read(folder.at("plain")).unwrap(), "other bytes through the pipe");
}

#[test]
fn a_fifo_that_nobody_reads_is_refused() {
    let folder = Folder::new();
    fifo(&folder.at("fifo"));
    for writer in WRITERS {
        let output = folder.run(&format!("{writer} fifo"));
        assert_eq!(output.status.code(), Some(1), "{writer}");
        assert!(told(&output).contains("start its reader first"), "{writer}: {}", told(&output));
    }
}

#[test]
fn an_output_that_is_an_input_is_refused_before_the_work() {
    let folder = Folder::new();
    let (first, second) = (format!("{SPLIT}-00001-of-00003.gguf"), format!("{SPLIT}-00002-of-00003.gguf"));
    fs_err::os::unix::fs::symlink("m.gguf", folder.at("soft")).unwrap();
    fs_err::hard_link(folder.at("m.gguf"), folder.at("hard")).unwrap();
    let logits = "logits -m m.gguf -t rig.yaml --tokens tokens -o";
    let run = "run -m m.gguf -t rig.yaml -f text -n 1 --trace";
    let mut cases: Vec<String> = Vec::new();
    for name in ["m.gguf", "./m.gguf", "soft", "hard", "rig.yaml"] {
        cases.extend([logits, run].map(|line| format!("{line} {name}")));
        cases.push(format!("chat -m m.gguf -t rig.yaml --history {name}"));
    }
    cases.push(format!("{logits} tokens"));
    cases.push(format!("{run} text"));
    cases.push(format!("logits -m {first} --tokens tokens -o {second}"));
    cases.push("sample m.gguf -o hard".to_owned());
    let before = folder.all();
    for case in &cases {
        let output = folder.run(case);
        assert_eq!(output.status.code(), Some(1), "{case}: {}", told(&output));
        assert!(told(&output).contains("which is read; give the output another name"), "{case}: {}", told(&output));
        assert!(folder.all() == before, "{case} changed a file");
    }
    // What is read from standard input is an input, too.
    let mut piped = folder.command("run -m m.gguf -n 1 --trace text", None);
    let piped = piped.stdin(fs_err::File::open(folder.at("text")).unwrap().into_file()).output().unwrap();
    assert!(told(&piped).contains("which is read"), "{}", told(&piped));
    assert!(folder.all() == before);
}

#[test]
fn of_two_runs_with_one_output_the_last_whole_file_wins() {
    let folder = Folder::new();
    let texts: Vec<String> =
        (0..3).map(|n| (1..200).map(|i| format!("{} ", 1 + (i * (n + 3)) % 500)).collect()).collect();
    let mut wholes = Vec::new();
    for (n, text) in texts.iter().enumerate() {
        fs_err::write(folder.at(format!("t{n}")), text).unwrap();
        assert!(folder.run(&format!("logits -m m.gguf --tokens t{n} -o w{n}")).status.success());
        wholes.push(fs_err::read(folder.at(format!("w{n}"))).unwrap());
    }
    for _ in 0..3 {
        let runs: Vec<_> = (0..3)
            .map(|n| folder.command(&format!("logits -m m.gguf --tokens t{n} -o out"), None).spawn().unwrap())
            .collect();
        for mut run in runs {
            assert!(run.wait().unwrap().success());
        }
        let found = fs_err::read(folder.at("out")).unwrap();
        assert!(wholes.contains(&found), "the file is none of the three");
    }
    assert!(folder.all().iter().all(|(name, _)| !name.to_string_lossy().contains("part")), "a part was left");
}

#[test]
fn a_limit_on_file_sizes_is_told_and_leaves_nothing() {
    let folder = Folder::new();
    let before = folder.all();
    for writer in [
        "logits -m m.gguf --tokens tokens -o",
        "run -m m.gguf -p hi -n 200 --ignore-end --trace",
        "synth tiny-llama -o",
    ] {
        let line = format!("ulimit -f 8; exec {} {writer} out", env!("CARGO_BIN_EXE_aqueduct"));
        let output = Command::new("sh").args(["-c", &line]).current_dir(folder.0.path()).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{writer}: {:?} {}", output.status, told(&output));
        assert!(
            told(&output).contains("cannot write out: ") && told(&output).contains("ulimit -f"),
            "{}",
            told(&output)
        );
        assert!(folder.all() == before, "{writer} left something");
    }
}

#[test]
fn names_that_are_not_utf_8_are_names() {
    let folder = Folder::new();
    let name = OsString::from_vec(b"n\xff\xfe".to_vec());
    for line in
        ["synth tiny-llama --json -o", "logits -m m.gguf --tokens tokens -o", "run -m m.gguf -p hi -n 1 --json --trace"]
    {
        let output = folder.command(line, Some(&name)).output().unwrap();
        assert!(output.status.success(), "{line}: {}", told(&output));
        assert!(fs_err::metadata(folder.at(&name)).unwrap().size() > 0, "{line}");
        if line.contains("--json") {
            let _: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        }
    }
    let model = OsString::from_vec(b"m\xff.gguf".to_vec());
    fs_err::rename(folder.at("m.gguf"), folder.at(&model)).unwrap();
    for line in [
        "inspect --json",
        "inspect",
        "plan --json -m",
        "run -p hi -n 1 --json -m",
        "perplexity -p hello --json -m",
        "tokenize -p hi --json -m",
    ] {
        let output = folder.command(line, Some(&model)).output().unwrap();
        assert!(output.status.success(), "{line}: {}", told(&output));
    }
    for line in ["sample -o x --json", "plan -m none -t", "tokenize -m none -f", "run -p hi -m"] {
        let output = folder.command(line, Some(&OsString::from_vec(b"none\xff".to_vec()))).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{line}: {}", told(&output));
    }
}
