//! `aqueduct logits`: the logits of every position, for comparing engines.

use std::io::BufWriter;
use std::path::PathBuf;

use anyhow::{Context as _, bail};
use npyz::WriterBuilder as _;

use super::interrupt::Interrupt;
use super::machine::MachineArgs;
use crate::engine::Cancel;
use crate::units::TokenId;

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

/// Writes the logits.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let tokens = read_tokens(&args.tokens)?;
    let cancel = Interrupt::install()?.begin();
    let mut engine = args.machine.load(None)?;
    let vocab = engine.model().spec.vocab;
    let part = args.output.with_extension("npy.part");
    let file = BufWriter::new(fs_err::File::create(&part)?);
    let shape = [tokens.len() as u64, vocab as u64];
    let mut writer = npyz::WriteOptions::new().default_dtype().shape(&shape).writer(file).begin_nd()?;
    let mut written = Ok(());
    let mut write = |_: usize, logits: &[f32]| {
        if written.is_ok() {
            written = writer.extend(logits.iter().copied());
        }
    };
    let result = compute(&mut engine, &tokens, args.step, &cancel, &mut write);
    let kept = result.and_then(|()| {
        written.and_then(|()| writer.finish()).with_context(|| format!("writing {}", part.display()))?;
        Ok(fs_err::rename(&part, &args.output)?)
    });
    if kept.is_err() {
        // The error that is told is the first one, not that of the clean-up.
        let _ = fs_err::remove_file(&part);
    }
    kept
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

fn read_tokens(path: &std::path::Path) -> anyhow::Result<Vec<TokenId>> {
    let text = fs_err::read_to_string(path)?;
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
