//! `aqueduct synth`: a model of a named shape with random weights.

use std::io::Write as _;
use std::ops::ControlFlow;
use std::path::PathBuf;

use anyhow::anyhow;

use super::interrupt::Interrupt;
use super::machine::progress;
use crate::quant::QuantType;
use crate::synth::{NAMES, Overrides, Shape, write_model};

/// Arguments of `synth`.
#[derive(clap::Args)]
pub struct Args {
    /// Name of the shape; `list` shows them.
    shape: String,
    /// The file to write.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Only prints the shape and its size.
    #[arg(long, conflicts_with = "json")]
    dry_run: bool,
    /// Layers.
    #[arg(long)]
    layers: Option<usize>,
    /// Width of the hidden states.
    #[arg(long)]
    width: Option<usize>,
    /// Query heads.
    #[arg(long)]
    heads: Option<usize>,
    /// Key and value heads.
    #[arg(long)]
    kv_heads: Option<usize>,
    /// Experts of a layer.
    #[arg(long)]
    experts: Option<usize>,
    /// Experts a token uses.
    #[arg(long)]
    experts_used: Option<usize>,
    /// Hidden units of an expert or of the dense FFN.
    #[arg(long)]
    ff: Option<usize>,
    /// Tokens of the vocabulary.
    #[arg(long)]
    vocabulary: Option<usize>,
    /// Longest context the file names.
    #[arg(long)]
    context: Option<usize>,
    /// Type of the FFN or expert weights, such as Q4_K.
    #[arg(long, value_parser = quant_type)]
    ffn_type: Option<QuantType>,
    /// Type of the down weights.
    #[arg(long, value_parser = quant_type)]
    down_type: Option<QuantType>,
    /// Type of the attention weights.
    #[arg(long, value_parser = quant_type)]
    attention_type: Option<QuantType>,
    /// Type of embedding and output head.
    #[arg(long, value_parser = quant_type)]
    embedding_type: Option<QuantType>,
    /// How unequally popular experts are; 0 for equally.
    #[arg(long)]
    popularity: Option<f32>,
    /// How much neighbouring tokens share experts; 0 for not at all.
    #[arg(long)]
    locality: Option<f32>,
    /// Topics of the vocabulary.
    #[arg(long)]
    topics: Option<usize>,
    /// Seed of all random numbers.
    #[arg(long)]
    seed: Option<u64>,
    /// Prints what was written, or the list, as JSON.
    #[arg(long)]
    json: bool,
}

fn quant_type(text: &str) -> Result<QuantType, String> {
    QuantType::ALL
        .into_iter()
        .find(|ty| ty.name().eq_ignore_ascii_case(text))
        .ok_or_else(|| format!("`{text}` is none of {}", QuantType::ALL.map(QuantType::name).join(", ")))
}

/// Writes the model.
pub fn run(args: &Args, interrupt: &Interrupt) -> anyhow::Result<()> {
    let mut out = std::io::stdout();
    if args.shape == "list" {
        if args.json {
            let named = |(name, about)| serde_json::json!({"name": name, "about": about});
            return super::print_json(&NAMES.map(named));
        }
        for (name, about) in NAMES {
            writeln!(out, "{name:24} {about}")?;
        }
        return Ok(());
    }
    let shape = Shape::named(&args.shape)
        .and_then(|shape| shape.with(&overrides(args)))
        .map_err(|error| super::Mistake(error.to_string()))?;
    if args.dry_run {
        writeln!(out, "{shape:#?}")?;
        return Ok(());
    }
    let Some(output) = &args.output else {
        return Err(super::Mistake(
            "synth needs the file to write; add `-o FILE.gguf`, or `--dry-run` to see the shape only".to_owned(),
        )
        .into());
    };
    let cancel = interrupt.begin();
    let bar = progress("writing", 0);
    let written = write_model(&shape, output, &mut |done, all| {
        bar.set_length(all.0);
        bar.set_position(done.0);
        if cancel.is_cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })
    .map_err(|error| anyhow!(error))?;
    bar.finish_and_clear();
    if args.json {
        return super::print_json(
            &serde_json::json!({"path": written.path.display().to_string(), "bytes": written.bytes.0}),
        );
    }
    writeln!(out, "wrote {} ({})", written.path.display(), written.bytes)?;
    Ok(())
}

fn overrides(args: &Args) -> Overrides {
    Overrides {
        layers: args.layers,
        width: args.width,
        heads: args.heads,
        kv_heads: args.kv_heads,
        experts: args.experts,
        experts_used: args.experts_used,
        ff: args.ff,
        vocabulary: args.vocabulary,
        context: args.context,
        ffn_type: args.ffn_type,
        down_type: args.down_type,
        attention_type: args.attention_type,
        embedding_type: args.embedding_type,
        popularity: args.popularity,
        locality: args.locality,
        topics: args.topics,
        seed: args.seed,
    }
}
