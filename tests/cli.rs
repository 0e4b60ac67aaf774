//! The program as its users meet it: messages and exit codes, JSON, closed pipes, Ctrl-C, one card and two.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

const MODEL: &str = "tests/data/oracle/models/qwen3moe-iq2.gguf";

fn aqueduct(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_aqueduct"));
    command.args(args).current_dir(env!("CARGO_MANIFEST_DIR")).stdin(Stdio::null());
    for variable in ["STRATA_KV_PREFETCH", "STRATA_PREFILL_ROUTED_STREAM", "AQUEDUCT_LOG", "AQUEDUCT_NVRTC"] {
        command.env_remove(variable);
    }
    command
}

fn output(args: &[&str]) -> Output {
    aqueduct(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn json(args: &[&str]) -> Value {
    let output = output(args);
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{args:?}: {error}"))
}

/// A folder with files that are wrong in one way each.
struct Inputs(TempDir);

impl Inputs {
    fn new() -> Self {
        let inputs = Self(TempDir::new().unwrap());
        let model = fs_err::read(Path::new(env!("CARGO_MANIFEST_DIR")).join(MODEL)).unwrap();
        inputs.put("header.gguf", &model[..3000]);
        inputs.put("weights.gguf", &model[..200_000]);
        inputs.put("empty.gguf", b"");
        inputs.put("broken.jinja", b"a\n{% if %}");
        inputs.put("think.jinja", b"{{ enable_thinking }}");
        inputs.put("bytes.txt", b"\xff\xfe");
        inputs.put("long.txt", "word ".repeat(6000).as_bytes());
        inputs.put("tokens.txt", b"1 2 3 4 5 6 7 8 9 10");
        inputs.put("far.txt", b"1 999999");
        inputs.put("typo.yaml", b"rig:\n  cards:\n    a: {memory: 24, knd: virtual}\n");
        inputs.put("gpu.yaml", b"rig:\n  cards:\n    a: {memory: 2 GiB}\n");
        inputs.put("none.yaml", b"rig: {}\n");
        inputs.put("small.yaml", b"rig:\n  cards:\n    a: {kind: virtual, memory: 1 MiB}\n");
        inputs.put("sim.yaml", b"rig:\n  cards:\n    a: {kind: sim, memory: 8 GiB}\n");
        for (name, cards) in [("one.yaml", &["a"][..]), ("two.yaml", &["a", "b"])] {
            let cards: String =
                cards.iter().map(|card| format!("    {card}: {{kind: virtual, memory: 1200 KiB}}\n")).collect();
            let run = "run: {context: 256, prompt: {floor: 1, routed_stream: on}}\n";
            inputs.put(name, format!("rig:\n  cards:\n{cards}{run}").as_bytes());
        }
        inputs
    }

    fn put(&self, name: &str, bytes: &[u8]) {
        fs_err::write(self.path(name), bytes).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// `@name` is a file of this folder.
    fn resolve(&self, arg: &str) -> String {
        match arg.strip_prefix('@') {
            Some(name) => self.path(name).to_str().unwrap().to_owned(),
            None => arg.to_owned(),
        }
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<_> = fs_err::read_dir(self.0.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

#[test]
fn mistakes_are_told_with_place_and_remedy() {
    let inputs = Inputs::new();
    // Arguments (MODEL stands for the model), exit code, texts that must occur.
    let cases: &[(&[&str], i32, &[&str])] = &[
        (&["inspect", "/nope.gguf"], 1, &["/nope.gguf", "No such file"]),
        (&["inspect", "src"], 1, &["`src` is a folder", ".gguf file is wanted"]),
        (&["plan", "-m", "README.md"], 1, &["README.md", "not a GGUF file"]),
        (&["inspect", "@empty.gguf"], 1, &["empty.gguf", "ends inside the header"]),
        (&["inspect", "@header.gguf"], 1, &["header.gguf", "at byte", "left in the file"]),
        (&["run", "-p", "hi", "-m", "@weights.gguf"], 1, &["weights.gguf", "blk.0", "was the download complete?"]),
        (&["plan", "-m", MODEL, "-t", "/nope.yaml"], 1, &["/nope.yaml", "No such file"]),
        (&["plan", "-m", MODEL, "-t", "src"], 1, &["`src` is a folder", "a YAML file is wanted"]),
        (&["plan", "-m", MODEL, "-t", MODEL], 1, &["is this the right file?"]),
        (
            &["plan", "-m", MODEL, "-t", "@typo.yaml"],
            1,
            &["typo.yaml:3:17", "24 GB", "unknown key `knd`", "2 mistakes"],
        ),
        (&["plan", "-m", MODEL, "-t", "@none.yaml"], 1, &["no `cards`", "add `cards"]),
        (&["plan", "-m", MODEL, "-t", "@small.yaml"], 1, &["1.0 MiB is there", "raise its memory by"]),
        (&["run", "-p", "hi", "-m", MODEL, "-t", "@sim.yaml"], 1, &["card a", "kind: virtual"]),
        (&["run", "-p", "hi", "-m", MODEL, "-c", "0"], 2, &["--context", "0 is not in 1"]),
        (&["run", "-p", "hi", "-m", MODEL, "-c", "-5"], 2, &["--context", "-5"]),
        (&["run", "-f", "@long.txt", "-m", MODEL], 1, &["do not fit", "of 4096", "shorten the text or raise"]),
        (&["run", "-p", "", "-m", MODEL], 1, &["the prompt is empty", "--file"]),
        (&["run", "-m", MODEL], 1, &["the prompt is empty"]),
        (&["run", "-f", "@bytes.txt", "-m", MODEL], 1, &["bytes.txt", "UTF-8"]),
        (&["run", "-p", "hi", "-m", MODEL, "--temperature", "NaN"], 2, &["temperature is NaN", "between 0 and 100"]),
        (&["run", "-p", "hi", "-m", MODEL, "--temperature", "-1"], 2, &["temperature is -1", "between 0 and 100"]),
        (&["run", "-p", "hi", "-m", MODEL, "--top-k", "99999999999"], 1, &["top_k", "between 0 and"]),
        (&["run", "-p", "hi", "-m", MODEL, "--top-p", "0"], 2, &["top_p", "at most 1"]),
        (&["run", "-p", "hi", "-m", MODEL, "--stop", ""], 2, &["stop[0] is empty"]),
        (&["run", "-p", "hi", "-m", MODEL, "--workers", "0"], 2, &["--workers", "1..=1024"]),
        (&["run", "-p", "hi", "-m", MODEL, "--routed-stream", "2"], 2, &["neither 0 nor 1", "STRATA_PREFILL_ROUTED"]),
        (&["run", "-p", "hi", "-m", MODEL, "--kv-prefetch", "yes"], 2, &["neither 0 nor 1", "STRATA_KV_PREFETCH"]),
        (&["run", "-p", "hi", "-m", MODEL, "--trace", "/nope/t.json"], 1, &["/nope/t.json", "choose a folder"]),
        (&["run", "-p", "hi", "-m", MODEL, "--trace", "src"], 1, &["src: it is a folder"]),
        (
            &["logits", "-m", MODEL, "--tokens", "@tokens.txt", "-o", "/nope/l.npy"],
            1,
            &["/nope/l.npy", "choose a folder"],
        ),
        (&["logits", "-m", MODEL, "--tokens", "README.md", "-o", "@l.npy"], 1, &["README.md", "no token id"]),
        (&["logits", "-m", MODEL, "--tokens", "@far.txt", "-o", "@l.npy"], 1, &["999999", "vocabulary of 512"]),
        (&["perplexity", "-m", MODEL, "-p", "x"], 1, &["at least two are needed"]),
        (&["sample", MODEL, "-o", "@x.gguf"], 1, &["SHA-256", "fetch-sample.sh"]),
        (&["sample", MODEL, "-o", MODEL], 1, &["which is read", "another name"]),
        (&["synth", "nope", "-o", "@x.gguf"], 2, &["no shape `nope`", "tiny-llama"]),
        (&["synth", "tiny-llama"], 2, &["-o FILE.gguf", "--dry-run"]),
        (&["synth", "tiny-llama", "-o", "/nope/x.gguf"], 1, &["cannot write /nope/x.gguf"]),
        (&["bench", "-m", MODEL, "--arms", "a=nope=1"], 2, &["arm a", "no setting `nope`", "routed_stream"]),
        (&["bench", "-m", MODEL, "--arms", "a=depth=99"], 2, &["arm a", "depth is 99", "between 1 and 64"]),
        (&["bench", "-m", MODEL, "--prompts", "0"], 2, &["out of range", "1 to"]),
        (&["bench"], 2, &["--model"]),
        (&["bench", "prompt"], 2, &["--model"]),
        (&["bench", "prompt", "-m", MODEL, "--arms", "on"], 2, &["--arms", "both arms", "off,on"]),
        (&["bench", "prompt", "-m", MODEL, "--arms", "on,on"], 2, &["--arms", "both arms"]),
        (&["bench", "prompt", "-m", MODEL, "--follow-up", "2K"], 2, &["`2K` is no follow-up", "2K@32K"]),
        (&["bench", "prompt", "-m", MODEL, "--prompts", "64K"], 1, &["64K: 65568 tokens", "at most 4096"]),
        (&["bench", "prompt", "-m", MODEL, "--resident", "few"], 2, &["`few`", "or `all`"]),
        (&["run", "-m", MODEL, "-p", "x", "--reasoning", "off"], 2, &["--reasoning", "add --chat"]),
        (&["run", "-m", MODEL, "-p", "x", "--chat", "--reasoning", "maybe"], 2, &["maybe", "on, off, auto"]),
        (&["run", "-m", MODEL, "-p", "x", "--chat", "--reasoning", "on"], 2, &["--reasoning on", "no such choice"]),
        (&["chat", "-m", MODEL, "--template", "/nope/t"], 2, &["--template", "/nope/t"]),
        (&["chat", "-m", "/nope.gguf", "--template", "@broken.jinja"], 2, &["--template", "line 2"]),
        (&["chat", "-m", "/nope.gguf", "--template-kwargs", "[1]"], 2, &["--template-kwargs", "an object of JSON"]),
        (&["chat", "-m", "/nope.gguf", "--template-kwargs", "{a}"], 2, &["an object of JSON", "line 1"]),
        (&["chat", "-m", "/nope.gguf", "--template-kwargs", "{\"messages\": []}"], 2, &["messages are what you say"]),
        (&["chat", "-m", "/nope.gguf", "--date", "yesterday"], 2, &["--date", "2024-11-29"]),
        (
            &[
                "chat",
                "-m",
                MODEL,
                "--template",
                "@think.jinja",
                "--reasoning",
                "on",
                "--template-kwargs",
                "{\"enable_thinking\": false}",
            ],
            2,
            &["both set enable_thinking"],
        ),
        (&["chat", "-m", MODEL, "--history", "/nope/h"], 1, &["/nope/h", "choose a folder"]),
        (&["chat", "-m", MODEL, "--history", "src"], 1, &["src: it is a folder"]),
        (&["bench", "-m", MODEL, "--devices", "GPU-1"], 2, &["--devices", "GPU-1", "PCI address"]),
        (&["run", "-p", "hi", "-m", MODEL, "-t", "@gpu.yaml", "--devices", "none", "--strict"], 1, &["no NVIDIA GPU"]),
        (&["kernels", "--arch", "61"], 2, &["`61` is too old", "7.5"]),
        (&["kernels", "--arch", "ampere"], 2, &["`ampere` is no compute capability"]),
        (
            &["kernels", "--arch", "8.6", "--nvrtc", "/nope", "--kernel-cache", "@k"],
            1,
            &["libnvrtc.so", "/nope", "pip"],
        ),
        (&["nope"], 2, &["unrecognized subcommand", "--help"]),
    ];
    let before = inputs.names();
    for (args, code, wanted) in cases {
        let resolved: Vec<_> = args.iter().map(|arg| inputs.resolve(arg)).collect();
        let output = output(&resolved.iter().map(String::as_str).collect::<Vec<_>>());
        let told = text(&output.stderr);
        assert_eq!(output.status.code(), Some(*code), "{args:?}: {told}");
        for part in *wanted {
            assert!(told.contains(part), "{args:?}: no `{part}` in {told}");
        }
        assert!(!told.contains("panicked"), "{args:?}: {told}");
        assert_eq!(told.matches("No such file").count(), usize::from(told.contains("No such file")), "twice: {told}");
        assert!(output.stdout.is_empty(), "{args:?} wrote to standard output");
    }
    assert_eq!(inputs.names(), before, "a refused command left a file");
}

/// What a template makes of its variables, as it says itself when it refuses.
#[test]
fn a_template_gets_what_the_options_say() {
    let folder = TempDir::new().unwrap();
    let template = folder.path().join("t.jinja");
    let told = |source: &str, more: &[&str], input: &[u8]| {
        fs_err::write(&template, format!("{{{{ raise_exception({source}) }}}}")).unwrap();
        fs_err::write(folder.path().join("prompt.txt"), input).unwrap();
        let prompt = folder.path().join("prompt.txt");
        let mut args = vec!["run", "-m", MODEL, "--chat", "-n", "0"];
        args.extend(["--template", template.to_str().unwrap(), "-f", prompt.to_str().unwrap()]);
        args.extend(more);
        let output = output(&args);
        assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
        text(&output.stderr)
    };
    let kwargs = r#"{"enable_thinking": false, "style": {"a": [1, "é"]}}"#;
    let cases: [(&str, &[&str], &[u8], &str); 9] = [
        ("'<' ~ enable_thinking ~ style ~ '>'", &["--template-kwargs", kwargs], b"x", "<False{'a': [1, 'é']}>"),
        ("'<' ~ enable_thinking ~ '>'", &["--reasoning", "off"], b"x", "<False>"),
        ("'<' ~ enable_thinking ~ '>'", &["--reasoning", "on"], b"x", "<True>"),
        ("'<' ~ thinking ~ '>'", &["--reasoning", "off"], b"x", "<False>"),
        ("'<' ~ (enable_thinking is defined) ~ '>'", &[], b"x", "<False>"),
        ("'<' ~ strftime_now('%d %b %Y') ~ '>'", &["--date", "2024-02-29"], b"x", "<29 Feb 2024>"),
        ("'<' ~ (strftime_now('%Y') | int > 2025) ~ '>'", &[], b"x", "<True>"),
        ("'<' ~ messages[0].content ~ '>'", &[], b"\xef\xbb\xbfHi\r\n", "<Hi>"),
        ("'<' ~ messages[0].content ~ messages[1].content ~ '>'", &["--system", "S"], b"Hi\n\n", "<SHi\n>"),
    ];
    for (source, more, input, wanted) in cases {
        let told = told(source, more, input);
        assert!(told.contains(wanted), "{source} {more:?}: {told}");
    }
}

#[test]
fn a_control_token_in_a_message_is_text() {
    let tokens = |prompt: &str, more: &[&str]| {
        let mut args = vec!["run", "-m", MODEL, "--chat", "-n", "0", "--json", "-p", prompt];
        args.extend(more);
        json(&args)["prompt_tokens"].as_u64().unwrap()
    };
    let plain =
        json(&["tokenize", "-m", MODEL, "--plain", "--json", "-p", "<|im_end|>"]).as_array().unwrap().len() as u64;
    assert!(plain > 1);
    assert_eq!(tokens("hello<|im_end|>", &[]), tokens("hello", &[]) + plain);
    assert_eq!(tokens("hello<|im_end|>", &["--parse-special"]), tokens("hello", &[]) + 1);
    assert_eq!(tokens("hello", &["--system", "<|im_end|>"]), tokens("hello", &["--system", ""]) + plain);
}

/// Where there is no choice, `off` is told to change nothing, and the answer is made.
#[test]
fn reasoning_that_cannot_be_switched_is_told() {
    let output = output(&["run", "-m", MODEL, "--chat", "-p", "x", "-n", "0", "--reasoning", "off"]);
    assert!(output.status.success());
    assert!(text(&output.stderr).contains("--reasoning off changes nothing"), "{}", text(&output.stderr));
}

#[test]
fn switches_from_the_environment_are_checked() {
    for (variable, value) in [("STRATA_PREFILL_ROUTED_STREAM", "2"), ("STRATA_KV_PREFETCH", "yes")] {
        let output = aqueduct(&["plan", "-m", MODEL]).env(variable, value).output().unwrap();
        let told = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{told}");
        assert!(told.contains(variable) && told.contains(value), "{told}");
    }
}

#[test]
fn json_parses_and_says_what_was_done() {
    assert_eq!(json(&["plan", "-m", MODEL, "--json"])["context"], 4096);
    assert!(json(&["inspect", MODEL, "--json"])["layers"].as_array().is_some_and(|layers| layers.len() == 2));
    assert_eq!(json(&["tokenize", "-m", MODEL, "-p", "hi", "--json"]).as_array().unwrap().len(), 2);
    assert!(json(&["perplexity", "-m", MODEL, "-p", "hello there", "--json"])["perplexity"].as_f64().unwrap() > 1.0);
    assert!(json(&["synth", "list", "--json"]).as_array().unwrap().len() > 3);
    let answer = json(&["run", "-m", MODEL, "-p", "hi", "-n", "3", "--json"]);
    assert_eq!(answer["tokens"].as_array().unwrap().len(), 3);
    assert_eq!(json(&["run", "-m", MODEL, "-p", "hi", "-n", "0", "--json"])["tokens"].as_array().unwrap().len(), 0);
    let bench = json(&["bench", "-m", MODEL, "--prompts", "16", "-n", "2", "--pairs", "3", "--json"]);
    assert_eq!(bench[0]["same_tokens"], true);
}

/// The arguments of a small `bench prompt`.
fn bench_prompt<'a>(topology: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let mut args = vec!["bench", "prompt", "-m", MODEL, "-t", topology, "-n", "3", "--before", "2", "--pairs", "4"];
    args.extend(more);
    args
}

#[test]
fn bench_prompt_measures_both_arms_of_every_row() {
    let inputs = Inputs::new();
    let cards = b"rig:\n  cards:\n    a: {kind: virtual, memory: 700 KiB}\n    b: {kind: virtual, memory: 700 KiB}\n";
    inputs.put("tight.yaml", &[&cards[..], b"run: {context: 256, prompt: {floor: 1}}\n"].concat());
    let two = inputs.resolve("@tight.yaml");
    let cases = ["--prompts", "64,100", "--follow-up", "20@0.05K", "--vary", "routed", "--wave", "4"];
    let rows = json(&bench_prompt(&two, &[&cases[..], &["--json"]].concat()));
    let rows = rows.as_array().unwrap();
    let (names, sizes): (Vec<_>, Vec<_>) = rows
        .iter()
        .map(|row| (&row["case"]["name"], (row["case"]["cached"].as_u64(), row["case"]["new"].as_u64())))
        .unzip();
    assert_eq!(names, ["64", "100", "20@0.05K"]);
    assert_eq!(sizes, [(Some(0), Some(64)), (Some(0), Some(100)), (Some(51), Some(20))]);
    for row in rows {
        assert_eq!((&row["same_replies"], &row["streams_nothing"]), (&true.into(), &false.into()), "{row}");
        assert_eq!(row["prefill"]["ratios"].as_array().unwrap().len(), 4);
        assert_eq!((&row["arms"][0]["name"], &row["arms"][1]["name"]), (&"off".into(), &"on".into()));
        let sum = |arm: usize, what: &str| -> u64 {
            let observations = row["arms"][arm]["observations"].as_array().unwrap();
            assert_eq!(observations.len(), 4, "{row}");
            let stages = observations.iter().flat_map(|seen| seen["stages"].as_array().unwrap());
            stages.map(|stage| stage[what].as_u64().unwrap()).sum()
        };
        // The arms do what their names say.
        assert_eq!(sum(0, "skipped"), 0, "{row}");
        assert!(sum(1, "skipped") > 0 && sum(0, "streamed") == sum(1, "streamed") + sum(1, "skipped"), "{row}");
    }

    let table = output(&bench_prompt(&two, &[&cases[..], &["--arms", "on,off"]].concat()));
    let table = text(&table.stdout);
    assert_eq!(table.lines().count(), 1 + 2 * 3, "{table}");
    assert_eq!(table.matches("replies the same").count(), 3, "{table}");
}

#[test]
fn bench_prompt_varies_where_cells_are_resident_and_when_they_are_copied() {
    let inputs = Inputs::new();
    let roomy = b"rig:\n  cards:\n    a: {kind: virtual, memory: 64 MiB}\nrun: {context: 256, prompt: {wave: 32}}\n";
    inputs.put("roomy.yaml", roomy);
    let roomy = inputs.resolve("@roomy.yaml");
    let more = ["--prompts", "40", "--follow-up", "30@160", "--resident", "64,all", "--vary", "prefetch", "--json"];
    let rows = json(&bench_prompt(&roomy, &more));
    let told = |row: &Value| {
        let (resident, case) = (row["resident"].as_str().unwrap(), row["case"]["name"].as_str().unwrap());
        (format!("{case} with {resident}"), row["streams_nothing"] == true)
    };
    let wanted = [("40 with 64", true), ("30@160 with 64", false), ("40 with all", true), ("30@160 with all", true)];
    let wanted = wanted.map(|(name, nothing)| (name.to_owned(), nothing));
    assert_eq!(rows.as_array().unwrap().iter().map(told).collect::<Vec<_>>(), wanted);
    assert!(rows.as_array().unwrap().iter().all(|row| row["same_replies"] == true), "{rows}");
    let bytes = |arm: usize| {
        let stage = &rows[1]["arms"][arm]["observations"][0]["stages"][0];
        ["kv_staged_bytes", "kv_prefetched_bytes"].map(|what| stage[what].as_u64().unwrap())
    };
    let ([staged, none], [no_more, ahead]) = (bytes(0), bytes(1));
    assert!(staged > 0 && staged == ahead && (none, no_more) == (0, 0), "{rows}");
}

#[test]
fn bench_prompt_shows_no_difference_where_nothing_streams() {
    let output = output(&["bench", "prompt", "-m", MODEL, "--prompts", "8", "-n", "1", "--vary", "routed"]);
    let table = text(&output.stdout);
    assert!(output.status.success() && table.matches("streams nothing").count() == 2, "{table}");
}

#[test]
fn bench_prompt_names_the_rows_that_no_plan_fits() {
    let inputs = Inputs::new();
    let small = inputs.resolve("@small.yaml");
    let output = output(&bench_prompt(&small, &["--prompts", "8,16", "--resident", "all"]));
    let (table, told) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(table.matches("refused: arm off: no plan fits").count(), 2, "{table}");
    assert!(told.contains("2 rows were refused"), "{told}");
}

#[test]
fn a_context_that_is_lowered_is_told() {
    let inputs = Inputs::new();
    inputs.put("far.yaml", b"rig:\n  cards:\n    a: {kind: virtual, memory: 1 GiB}\nrun: {context: 9999}\n");
    let far = inputs.resolve("@far.yaml");
    let lowered = output(&["plan", "-m", MODEL, "-t", &far, "--json"]);
    let plan: Value = serde_json::from_slice(&lowered.stdout).unwrap();
    assert_eq!(plan["context"], 4096);
    let asked = output(&["plan", "-m", MODEL, "-c", "999999", "--json"]);
    assert_eq!(serde_json::from_slice::<Value>(&asked.stdout).unwrap()["context"], 4096);
    assert!(text(&asked.stderr).contains("--context: the context is 999999 tokens, the model was made for 4096"));
    let told = text(&lowered.stderr);
    assert!(told.lines().count() == 1 && told.contains("far.yaml") && told.contains("9999"), "{told}");
    assert!(text(&output(&["plan", "-m", MODEL]).stderr).is_empty());
}

#[test]
fn a_trace_names_its_tracks() {
    let inputs = Inputs::new();
    let path = inputs.path("t.json");
    let output = output(&["run", "-m", MODEL, "-p", "hi", "-n", "2", "--trace", path.to_str().unwrap()]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let trace: Value = serde_json::from_slice(&fs_err::read(path).unwrap()).unwrap();
    let events = trace.get("traceEvents").unwrap_or(&trace).as_array().unwrap();
    let count = |phase: &str| events.iter().filter(|event| event["ph"] == phase).count();
    assert!(count("M") >= 2 && count("X") > 10, "{} names, {} spans", count("M"), count("X"));
}

#[test]
fn one_card_and_two_say_the_same() {
    let inputs = Inputs::new();
    let answer = |topology: &str| {
        let path = inputs.path(topology);
        let prompt = "Hello there, how are you? ".repeat(4);
        let args =
            ["run", "-m", MODEL, "-t", path.to_str().unwrap(), "-p", &prompt, "-n", "24", "--ignore-end", "--json"];
        json(&args)
    };
    let (one, two) = (answer("one.yaml"), answer("two.yaml"));
    assert_eq!((one["stages"].as_array().unwrap().len(), two["stages"].as_array().unwrap().len()), (1, 2));
    assert_eq!((&one["text"], &one["tokens"]), (&two["text"], &two["tokens"]));
    assert_eq!(one["tokens"].as_array().unwrap().len(), 24);
    for stage in [&one["stages"][0], &two["stages"][1]] {
        assert!(stage["streamed"].as_u64().unwrap() > 0, "nothing was streamed: {one} {two}");
    }
}

#[test]
fn the_way_of_hidden_states_is_told_and_refused_where_it_cannot_act() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("rig.yaml");
    let mut answers = Vec::new();
    let mut run = |peer: &str, hand_off: &str, more: &[&str]| {
        let cards =
            "a: {kind: virtual, memory: 8 MiB}, b: {kind: virtual, memory: 8 MiB}, c: {kind: virtual, memory: 8 MiB}";
        let run = format!("run: {{context: 256, hand_off: {hand_off}}}");
        fs_err::write(&path, format!("rig:\n  cards: {{{cards}}}\n  peer: {peer}\n{run}\n")).unwrap();
        let args = ["run", "-m", MODEL, "-t", path.to_str().unwrap(), "-p", "one two", "-n", "4", "--ignore-end"];
        let output = output(&[&args[..], more].concat());
        answers.extend(output.status.success().then(|| output.stdout.clone()));
        (output.status.success(), text(&output.stderr))
    };
    let info = ["--log", "info"];
    let told = [
        ("[[a, b]]", "auto", &info[..], "INFO hidden states go from a to b by peer copy: "),
        ("false", "auto", &info, "from a to b through host memory: rig.peer does not name the two cards"),
        ("[[a, b]]", "host", &info, "from a to b through host memory: run.hand_off asks for it"),
        ("[[a, c]]", "peer", &[], "WARN hidden states go from a to b through host memory: rig.peer does not name"),
    ];
    for (peer, hand_off, more, line) in told {
        let (ended, errors) = run(peer, hand_off, more);
        assert!(ended && errors.contains(line), "{peer} {hand_off}: {errors}");
    }
    let (ended, errors) = run("[[a, c]]", "peer", &["--strict"]);
    assert!(!ended && errors.contains("--strict") && errors.contains("from a to b"), "{errors}");
    let (ended, errors) = run("[[a, b]]", "nccl", &[]);
    assert!(!ended && errors.contains("run.hand_off: NCCL joins NVIDIA GPUs"), "{errors}");
    assert_eq!(answers.len(), 4);
    assert!(answers.iter().all(|answer| *answer == answers[0]), "other answers");
}

#[test]
fn switches_and_residency_leave_a_text_as_it_is() {
    let folder = TempDir::new().unwrap();
    let prompt = "the quick brown fox jumps over the lazy dog and then ".repeat(3);
    let mut texts = Vec::new();
    for kv in ["", "resident_cells: 0", "resident_cells: 64", "resident_cells: 64, staging: 64"] {
        let topology = folder.path().join("kv.yaml");
        let run = format!("run: {{context: 256, kv: {{{kv}}}, prompt: {{floor: 1, wave: 20}}}}\n");
        let rig = "rig: {cards: {a: {kind: virtual, memory: 1500 KiB}, b: {kind: virtual, memory: 1500 KiB}}}\n";
        fs_err::write(&topology, format!("{rig}{run}")).unwrap();
        for (prefetch, routed) in [("0", "0"), ("1", "0"), ("0", "1"), ("1", "1")] {
            let args =
                ["run", "-m", MODEL, "-t", topology.to_str().unwrap(), "-p", &prompt, "-n", "24", "--ignore-end"];
            let output = aqueduct(&args)
                .env("STRATA_KV_PREFETCH", prefetch)
                .env("STRATA_PREFILL_ROUTED_STREAM", routed)
                .output()
                .unwrap();
            assert!(output.status.success(), "{kv}: {}", text(&output.stderr));
            texts.push((format!("{kv}, prefetch {prefetch}, routed {routed}"), output.stdout));
        }
    }
    assert!(texts[0].1.len() > 20, "hardly any text: {:?}", texts[0]);
    for (way, found) in &texts {
        assert_eq!(text(found), text(&texts[0].1), "{way}");
    }
}

#[test]
fn steps_and_batch_have_the_same_logits() {
    let inputs = Inputs::new();
    let (tokens, batch, steps) = (inputs.path("tokens.txt"), inputs.path("batch.npy"), inputs.path("steps.npy"));
    for (path, more) in [(&batch, &[][..]), (&steps, &["--step"])] {
        let mut args = vec!["logits", "-m", MODEL, "--tokens", tokens.to_str().unwrap(), "-o", path.to_str().unwrap()];
        args.extend(more);
        assert!(output(&args).status.success());
    }
    let (batch, steps) = (fs_err::read(batch).unwrap(), fs_err::read(steps).unwrap());
    assert!(batch.len() > 10 * 512 * 4, "{} bytes", batch.len());
    assert!(batch == steps, "the logits differ");
    assert!(!inputs.names().iter().any(|name| name.ends_with(".part")));
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    for args in [&["inspect", MODEL, "-a"][..], &["run", "-m", MODEL, "-p", "hi", "-n", "200", "--ignore-end"]] {
        let mut child = aqueduct(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut first = [0];
        let mut out = child.stdout.take().unwrap();
        out.read_exact(&mut first).unwrap();
        drop(out);
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
        assert!(!text(&output.stderr).contains("error"), "{args:?}: {}", text(&output.stderr));
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_told_with_its_place() {
    for args in [&["inspect", MODEL][..], &["plan", "-m", MODEL, "--json"]] {
        let full = fs_err::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = aqueduct(args).stdout(full.into_file()).output().unwrap();
        let told = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{told}");
        assert!(told.contains("standard output") && told.contains("No space left"), "{told}");
    }
}
