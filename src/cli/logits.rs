//! `aqueduct logits`: the logits of every position, for comparing engines.

use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use npyz::WriterBuilder as _;

use super::interrupt::Interrupt;
use super::machine::MachineArgs;
use crate::engine::Cancel;
use crate::files::{Output, read_text};
use crate::units::{Bytes, TokenId};

/// Arguments of `logits`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    machine: MachineArgs,
    /// Token ids, separated by white space or commas; a JSON list is fine.
    #[arg(long, value_name = "FILE")]
    tokens: PathBuf,
    /// The .npy file to write: float32 `[tokens, vocabulary]`.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Feeds one token at a time, as decoding does.
    #[arg(long)]
    step: bool,
}

/// The most text that is read as token ids: some ten million of them.
const MOST_TOKENS_TEXT: Bytes = Bytes(64 << 20);

const BUFFER: usize = 1 << 20;

/// Writes the logits.
pub fn run(args: &Args, interrupt: &Interrupt) -> anyhow::Result<()> {
    let tokens = read_tokens(&args.tokens)?;
    let inputs = args.machine.inputs();
    let inputs: Vec<&Path> = inputs.iter().map(PathBuf::as_path).chain([args.tokens.as_path()]).collect();
    let output = Output::create(&args.output, &inputs)?;
    let cancel = interrupt.begin();
    let mut engine = args.machine.load(args.machine.open_model()?, None)?;
    let vocab = engine.model().spec.vocab;
    output.reserve(Bytes((tokens.len() as u64).saturating_mul(vocab as u64).saturating_mul(4)))?;
    let mut out = BufWriter::with_capacity(BUFFER, output);
    let shape = [tokens.len() as u64, vocab as u64];
    let mut writer = npyz::WriteOptions::new().default_dtype().shape(&shape).writer(&mut out).begin_nd()?;
    let mut written = Ok(());
    let mut write = |_: usize, logits: &[f32]| {
        if written.is_ok() {
            written = writer.extend(logits.iter().copied());
        }
    };
    compute(&mut engine, &tokens, args.step, &cancel, &mut write)?;
    let written = written.and_then(|()| writer.finish());
    written.and_then(|()| out.flush()).map_err(|error| out.get_ref().fault(error))?;
    let (output, _) = out.into_parts();
    Ok(output.keep()?)
}

fn compute(
    engine: &mut crate::engine::Engine,
    tokens: &[TokenId],
    step: bool,
    cancel: &Cancel,
    write: &mut dyn FnMut(usize, &[f32]),
) -> anyhow::Result<()> {
    let mut sequence = engine.sequence()?;
    if !step {
        return Ok(engine.prompt_all(&mut sequence, tokens, cancel, write)?);
    }
    for (row, token) in tokens.iter().enumerate() {
        let logits = engine.step(&mut [(&mut sequence, *token)], cancel)?;
        write(row, logits.first().map_or(&[][..], Vec::as_slice));
    }
    Ok(())
}

fn read_tokens(path: &Path) -> anyhow::Result<Vec<TokenId>> {
    let text = read_text(path, MOST_TOKENS_TEXT)?;
    let words = text.split(|c: char| c.is_whitespace() || ",[]".contains(c)).filter(|word| !word.is_empty());
    let mut tokens = Vec::new();
    for word in words {
        tokens.push(word.parse().with_context(|| format!("{}: `{word}` is no token id", path.display()))?);
    }
    if tokens.is_empty() {
        bail!("{} holds no token ids", path.display());
    }
    Ok(tokens)
}
