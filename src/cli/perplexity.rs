//! `aqueduct perplexity`: how well the model predicts a text.

use std::io::Write as _;

use anyhow::bail;
use serde::Serialize;

use super::interrupt::Interrupt;
use super::machine::MachineArgs;
use super::prompt::PromptArgs;
use crate::text::{Ends, Specials, Tokenizer, Vocabulary};
use crate::units::TokenId;

/// Arguments of `perplexity`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    machine: MachineArgs,
    #[command(flatten)]
    text: PromptArgs,
    /// Tokens of a window; each window starts with an empty context.
    #[arg(long, value_name = "TOKENS", default_value_t = 512, value_parser = clap::value_parser!(u32).range(2..))]
    window: u32,
    /// Prints the result as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    tokens: usize,
    predicted: usize,
    mean_log_loss: f64,
    perplexity: f64,
}

/// Measures and prints.
pub fn run(args: &Args, interrupt: &Interrupt) -> anyhow::Result<()> {
    let text = args.text.text()?;
    let cancel = interrupt.begin();
    let model = args.machine.open_model()?;
    let tokens = {
        let tokenizer = Tokenizer::new(&Vocabulary::from_gguf(model.gguf())?)?;
        tokenizer.encode(&text, Specials::Parsed, Ends::Begun)?
    };
    let mut engine = args.machine.load(model, None)?;
    let window = (args.window as usize).min(engine.plan().context);
    if window < args.window as usize {
        tracing::warn!("--window: {} tokens are asked for, the context holds {window}: {window} are used", args.window);
    }
    let mut losses = Vec::new();
    for part in tokens.chunks(window).filter(|part| part.len() > 1) {
        let mut sequence = engine.sequence()?;
        engine.prompt_all(&mut sequence, part, &cancel, &mut |row, logits| {
            if let Some(next) = part.get(row + 1) {
                losses.push(log_loss(logits, *next));
            }
        })?;
    }
    if losses.is_empty() {
        bail!("the text has {} tokens; at least two are needed", tokens.len());
    }
    let mean = losses.iter().sum::<f64>() / losses.len() as f64;
    let report = Report { tokens: tokens.len(), predicted: losses.len(), mean_log_loss: mean, perplexity: mean.exp() };
    if args.json {
        return super::print_json(&report);
    }
    writeln!(
        std::io::stdout(),
        "perplexity {:.4} (mean log loss {:.5} over {} predicted tokens, windows of {window})",
        report.perplexity,
        report.mean_log_loss,
        report.predicted
    )?;
    Ok(())
}

/// Minus the natural logarithm of the probability of `token`.
fn log_loss(logits: &[f32], token: TokenId) -> f64 {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|logit| f64::from(logit - most).exp()).sum();
    let own = logits.get(token as usize).copied().unwrap_or(f32::NEG_INFINITY);
    sum.ln() - f64::from(own - most)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_loss_of_even_logits_is_the_logarithm_of_their_number() {
        let loss = super::log_loss(&[3.0; 8], 5);
        assert!((loss - 8.0_f64.ln()).abs() < 1e-9, "{loss}");
        assert!(super::log_loss(&[0.0, 20.0], 0) > 19.0);
    }
}
