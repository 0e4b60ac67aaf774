//! Mistakes of users: told before anything is loaded, with exit code 2 where the command line is wrong, and never a
//! panic.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

fn model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/oracle/models/qwen3moe-iq2.gguf")
}

fn run(folder: &Path, args: &[impl AsRef<OsStr>]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_aqueduct"));
    command.args(args).current_dir(folder).stdin(Stdio::null()).env("HOME", folder).output().unwrap()
}

fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn wrong_values_are_refused_before_the_model_is_opened() {
    let folder = TempDir::new().unwrap();
    // There is no such model: who looks for it has come too far.
    let cases = [
        "run -p x -m none --temperature -1",
        "run -p x -m none --temperature nan",
        "run -p x -m none --temperature inf",
        "run -p x -m none --temperature 101",
        "run -p x -m none --top-p 0",
        "run -p x -m none --top-p 1.5",
        "run -p x -m none --top-p -0.5",
        "run -p x -m none --top-k -1",
        "run -p x -m none --min-p 2",
        "run -p x -m none --repetition-penalty 0",
        "run -p x -m none --presence-penalty 1000",
        "run -p x -m none --frequency-penalty nan",
        "run -p x -m none --penalty-window -2",
        "run -p x -m none --seed -1",
        "run -p x -m none -n -2",
        "run -p x -m none -n many",
        "run -p x -m none --stop ",
        "run -p x -m none -c 0",
        "run -p x -m none --workers 0",
        "run -p x -m none --system s",
        "run -p x -f y -m none",
        "chat -m none --temperature -1",
        "chat -m none -n -2",
        "chat -m none --top-p 7",
        "bench -m none --arms a=depth=99",
        "bench -m none --arms a=nope=1",
        "bench -m none --arms a=depth",
        "bench prompt -m none --arms on,on",
        "perplexity -p x -m none --window 1",
        "synth nope -o x",
        "synth tiny-llama",
        "synth tiny-llama -o x --layers 0",
        "--log =x=y=z run -p x -m none",
    ];
    for case in cases {
        let output = run(folder.path(), &case.split(' ').collect::<Vec<_>>());
        assert_eq!(output.status.code(), Some(2), "{case}: {}", told(&output));
        assert!(
            !told(&output).contains("none`") && !told(&output).contains("No such file"),
            "{case}: {}",
            told(&output)
        );
    }
    assert_eq!(fs_err::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn minus_one_token_means_as_many_as_there_are() {
    let folder = TempDir::new().unwrap();
    let model = model();
    let args = ["run", "-m", model.to_str().unwrap(), "-p", "hi", "-c", "40", "--ignore-end", "-n", "-1", "--json"];
    let output = run(folder.path(), &args);
    assert!(output.status.success(), "{}", told(&output));
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let (prompt, tokens) = (answer["prompt_tokens"].as_u64().unwrap(), answer["tokens"].as_array().unwrap().len());
    assert!((40..=41).contains(&(prompt as usize + tokens)), "{answer}");
}

#[test]
fn a_context_above_the_models_is_lowered_and_told_by_every_command() {
    let folder = TempDir::new().unwrap();
    fs_err::write(folder.path().join("tokens"), "1 2 3").unwrap();
    let model = model();
    let model = model.to_str().unwrap();
    for line in [
        "plan",
        "run -p hi -n 1",
        "chat",
        "logits --tokens tokens -o out",
        "perplexity -p hello",
        "bench --prompts 8 -n 1 --pairs 1",
        "bench prompt --prompts 8 -n 1 --pairs 1",
    ] {
        let args: Vec<&str> = line.split(' ').chain(["-m", model, "-c", "5000"]).collect();
        let output = run(folder.path(), &args);
        assert!(output.status.success(), "{line}: {}", told(&output));
        let wanted = "--context: the context is 5000 tokens, the model was made for 4096: 4096 are used";
        assert_eq!(told(&output).matches(wanted).count(), 1, "{line}: {}", told(&output));
    }
}

/// The model with other bytes in place of a text of the same length.
fn with_text(folder: &Path, from: &str, to: &[u8]) -> PathBuf {
    let mut bytes = fs_err::read(model()).unwrap();
    assert_eq!(from.len(), to.len());
    let mut count = 0;
    for at in 0..bytes.len() - from.len() {
        if bytes[at..].starts_with(from.as_bytes()) {
            bytes[at..at + from.len()].copy_from_slice(to);
            count += 1;
        }
    }
    assert!(count > 0, "{from} is not in the model");
    let path = folder.join("odd.gguf");
    fs_err::write(&path, bytes).unwrap();
    path
}

#[test]
fn names_from_files_are_escaped() {
    let folder = TempDir::new().unwrap();
    for (from, to) in
        [("output_norm.weight", &b"out\x1b[31m\x07\r__weight"[..]), ("blk.0.attn_norm", b"blk.\n\x1b]0;att\xc2\x9b_")]
    {
        let odd = with_text(folder.path(), from, to);
        for line in ["inspect", "inspect -a", "plan -m", "run -p hi -n 1 -m"] {
            let args: Vec<&str> = line.split(' ').chain([odd.to_str().unwrap()]).collect();
            let output = run(folder.path(), &args);
            assert!(matches!(output.status.code(), Some(0 | 1)), "{line}: {}", told(&output));
            for shown in [&output.stdout, &output.stderr] {
                let bad = shown.iter().find(|byte| **byte < 0x20 && **byte != b'\n');
                assert!(bad.is_none(), "{line} shows {bad:?}: {}", String::from_utf8_lossy(shown));
            }
        }
    }
    // A name of the user's own is shown, and escaped as well.
    let name = "no\u{1b}[31mfile\u{202e}";
    let output = run(folder.path(), &["inspect", name]);
    assert!(told(&output).contains("no\\u{1b}[31mfile\\u{202e}"), "{}", told(&output));
    let long = "x".repeat(100_000);
    let output = run(folder.path(), &["plan", "-m", model().to_str().unwrap(), "-t", &long]);
    assert!(told(&output).len() < 30_000 && told(&output).contains("more characters"), "{}", told(&output).len());
}

#[test]
fn warnings_have_colours_only_where_they_are_wanted() {
    // Standard error of a test is no terminal; `script` gives the program one.
    if Command::new("script").arg("--version").output().is_err() {
        println!("skipped: there is no `script`");
        return;
    }
    let folder = TempDir::new().unwrap();
    let line = format!("{} plan -c 9999 -m {}", env!("CARGO_BIN_EXE_aqueduct"), model().display());
    let on_terminal = |variables: &[(&str, &str)]| {
        let mut command = Command::new("script");
        command.args(["-qec", &line, "/dev/null"]).current_dir(folder.path()).stdin(Stdio::null());
        // In continuous integration colours count as wanted on every terminal.
        for name in ["NO_COLOR", "CI", "CLICOLOR", "CLICOLOR_FORCE"] {
            command.env_remove(name);
        }
        command.env("TERM", "xterm-256color").envs(variables.iter().copied());
        String::from_utf8_lossy(&command.output().unwrap().stdout).into_owned()
    };
    let warned = on_terminal(&[]);
    assert!(warned.contains("4096 are used") && warned.contains("\u{1b}["), "{warned:?}");
    for variables in [[("NO_COLOR", "1")], [("TERM", "dumb")]] {
        let plain = on_terminal(&variables);
        assert!(plain.contains("4096 are used") && !plain.contains('\u{1b}'), "{variables:?}: {plain:?}");
    }
}

#[test]
fn topologies_that_are_odd_in_form_are_told() {
    let folder = TempDir::new().unwrap();
    let card = "cards: {a: {kind: virtual, memory: 64 MiB}}";
    let cases = [
        (format!("rig:\n  {card}\n---\nrig:\n  {card}\n"), 1, "a second YAML document begins here"),
        ("rig:\n  cards: {a: {kind: !odd virtual, memory: 64 MiB}}\n".to_owned(), 1, "the YAML tag `!odd`"),
        (format!("rig:\n\t{card}\n"), 1, "tabs"),
        ("rig:\n  cards:\n    a:\n      kind: virtual\n      memory: 1,5 GiB\n".to_owned(), 1, "write `1.5 GiB`, if that is meant"),
        (format!("rig:\n  host: {{rate: 0 GB/s}}\n  {card}\n"), 1, "write what it really has, such as `12.1 GB/s`"),
        (format!("rig:\n  {card}\n  {card}\n"), 1, "`cards` stands twice"),
        (format!("rig:\n  {card}\n  links: [{{from: host, to: host, generation: 3}}]\n"), 1, "name the switch or the card"),
        // The two ends of a link may stand either way round.
        (format!("rig:\n  {card}\n  links: [{{from: a, to: host, generation: 3}}]\n"), 0, ""),
        ("rig:\n  cards:\n    a: {memory: 1 GiB, uuid: GPU-5AC5CBB1-1b42-4d2a-9f0a-0123456789ab}\n    b: {memory: 1 GiB, uuid: gpu-5ac5cbb1-1B42-4d2a-9f0a-0123456789AB}\n".to_owned(), 1, "are the same GPU"),
        ("rig:\n  cards:\n    a: {memory: 1 GiB, pci: '0A:00.0'}\n    b: {memory: 1 GiB, pci: '00000000:0a:00.0'}\n".to_owned(), 1, "are the same GPU"),
    ];
    for (text, code, wanted) in cases {
        fs_err::write(folder.path().join("rig.yaml"), &text).unwrap();
        let output = run(folder.path(), &["plan", "-m", model().to_str().unwrap(), "-t", "rig.yaml"]);
        assert_eq!(output.status.code(), Some(code), "{text}: {}", told(&output));
        assert!(told(&output).contains(wanted), "{text}: {}", told(&output));
    }
}

/// Options that take a value, and what a command needs besides. `MODEL` stands for the model.
const OPTIONS: &[(&str, &[&str])] = &[
    (
        "plan -m MODEL",
        &[
            "-m",
            "-t",
            "-c",
            "--workers",
            "--devices",
            "--kv-prefetch",
            "--routed-stream",
            "--log",
            "--nvrtc",
            "--kernel-cache",
        ],
    ),
    (
        "run -m MODEL -p hi -n 1",
        &[
            "-p",
            "-f",
            "-n",
            "--system",
            "--stop",
            "--temperature",
            "--top-k",
            "--top-p",
            "--min-p",
            "--repetition-penalty",
            "--presence-penalty",
            "--frequency-penalty",
            "--penalty-window",
            "--seed",
            "--trace",
            "-c",
            "--workers",
            "-t",
        ],
    ),
    ("chat -m MODEL", &["--system", "-n", "--history", "--temperature", "--seed", "-t"]),
    ("tokenize -m MODEL", &["-p", "-f", "-m"]),
    ("inspect", &["-a"]),
    (
        "synth tiny-llama -o out",
        &[
            "-o",
            "--layers",
            "--width",
            "--heads",
            "--kv-heads",
            "--experts",
            "--experts-used",
            "--ff",
            "--vocabulary",
            "--context",
            "--ffn-type",
            "--down-type",
            "--attention-type",
            "--embedding-type",
            "--popularity",
            "--locality",
            "--topics",
            "--seed",
        ],
    ),
    ("sample MODEL -o out", &["-k", "-o"]),
    ("logits -m MODEL --tokens tokens -o out", &["--tokens", "-o", "-c"]),
    ("perplexity -m MODEL -p hello", &["-p", "-f", "--window"]),
    ("bench -m MODEL --pairs 1 -n 1 --prompts 4", &["--prompts", "--arms", "--pairs", "-n", "--seed"]),
    (
        "bench prompt -m MODEL --pairs 1 -n 1 --prompts 4",
        &[
            "--prompts",
            "--follow-up",
            "--resident",
            "--arms",
            "--vary",
            "--pairs",
            "--wave",
            "-n",
            "--before",
            "--seed",
            "--warm-up",
        ],
    ),
    ("kernels --nvrtc /nope", &["--arch", "--kernel-cache", "--nvrtc"]),
    ("completions", &["bash"]),
];

/// Values that are wrong for most options. None of them makes a command long.
fn odd_values() -> Vec<OsString> {
    let texts = [
        "",
        " ",
        "-1",
        "0",
        "-0",
        "1e999",
        "nan",
        "-inf",
        "99999999999999999999",
        "-9223372036854775808",
        "0x10",
        "1,2",
        ",",
        "=",
        "a=b=c",
        "--",
        "-",
        "*",
        "/dev/null",
        "/",
        ".",
        "..",
        "../../../../..",
        "\u{1b}[31m",
        "%s%n",
        "\u{202e}",
        "ä",
        "\u{1f600}",
        "@",
        "2K@",
        "@2K",
        "1K@1K@1K",
        "all",
        "none",
        "GPU-",
        "::.",
        "0:0.0",
        "off,on,off",
        "sm_",
        "Q4_K",
        "x=routed_stream=2+",
        "x=ring=0",
    ];
    let long = "9".repeat(5000);
    texts.into_iter().map(OsString::from).chain([long.into(), OsString::from_vec(b"\xff\xfe\x80".to_vec())]).collect()
}

#[test]
fn no_value_of_any_option_makes_a_command_panic() {
    let folder = TempDir::new().unwrap();
    fs_err::write(folder.path().join("tokens"), "1 2 3").unwrap();
    let model = model();
    let values = odd_values();
    let mut ends: BTreeMap<i32, usize> = BTreeMap::new();
    // Every option with every third value: which ones differs from option to option.
    let mut number = 0;
    for (line, options) in OPTIONS {
        for option in *options {
            number += 1;
            for value in values.iter().skip(number % 3).step_by(3) {
                let words =
                    line.split(' ').map(|word| if word == "MODEL" { model.as_os_str() } else { OsStr::new(word) });
                let args: Vec<OsString> =
                    words.chain([OsStr::new(option)]).map(OsStr::to_owned).chain([value.clone()]).collect();
                let output = run(folder.path(), &args);
                let code = output.status.code();
                assert!(matches!(code, Some(0..=2)), "{args:?}: {:?}: {}", output.status, told(&output));
                assert!(!told(&output).contains("panicked"), "{args:?}: {}", told(&output));
                assert!(code == Some(0) || !told(&output).is_empty(), "{args:?} failed without a word");
                *ends.entry(code.unwrap()).or_default() += 1;
            }
        }
    }
    println!("exit codes and how often: {ends:?}");
    assert!(ends.len() == 3 && ends.values().all(|count| *count > 10), "{ends:?}");
}
