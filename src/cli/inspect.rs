//! `aqueduct inspect`: a model file in short.

use std::io::{self, Write};
use std::path::PathBuf;

use super::{MOST_OF_A_MESSAGE, cell, shown};
use crate::gguf::Gguf;
use crate::model::inspect::{LayerSummary, Summary, TensorSummary};
use crate::units::Bytes;

/// Arguments of `inspect`.
#[derive(clap::Args)]
pub struct Args {
    /// The GGUF file, or the first part of a split one.
    #[arg(value_name = "FILE")]
    model: PathBuf,
    /// Shows every tensor of every layer; without it, layers that are alike are shown once.
    #[arg(short, long)]
    all: bool,
    /// Prints everything as JSON.
    #[arg(long)]
    json: bool,
}

/// Prints the summary.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let gguf = Gguf::open(&args.model)?;
    let summary = Summary::of(&gguf);
    if args.json {
        return super::print_json(&summary);
    }
    print(&mut io::stdout().lock(), &summary, args.all)?;
    Ok(())
}

fn print(out: &mut impl Write, summary: &Summary, all: bool) -> io::Result<()> {
    for file in &summary.files {
        writeln!(out, "{}  {}", shown(&file.path, usize::MAX), Bytes(file.bytes))?;
    }
    writeln!(out, "\nmetadata")?;
    let wide = summary.metadata.iter().map(|entry| cell(&entry.key).chars().count()).max().unwrap_or(0);
    for entry in &summary.metadata {
        writeln!(out, "  {:wide$}  {:14}  {}", cell(&entry.key), entry.kind, cell(&entry.value))?;
    }
    match (&summary.model, &summary.refused) {
        (Some(model), _) => writeln!(
            out,
            "\nmodel     {} ({}): {} layers, width {}, vocabulary {}, context {}",
            cell(&model.name),
            cell(model.architecture),
            model.layers,
            model.width,
            model.vocab,
            model.context
        )?,
        (None, why) => writeln!(
            out,
            "\nmodel     cannot be run: {}",
            shown(why.as_deref().unwrap_or("unknown"), MOST_OF_A_MESSAGE)
        )?,
    }
    writeln!(out, "\noutside the layers")?;
    tensors(out, &summary.edge)?;
    let mut shown: Option<&LayerSummary> = None;
    let mut alike = 0;
    for layer in &summary.layers {
        if !all && shown.is_some_and(|before| same(before, layer)) {
            alike += 1;
            continue;
        }
        alike_line(out, &mut alike)?;
        writeln!(out, "\nlayer {}  {}", layer.layer, Bytes(layer.bytes))?;
        tensors(out, &layer.tensors)?;
        if let Some(experts) = &layer.experts {
            let types = experts.types.map(|ty| ty.name()).join(", ");
            let blob = Bytes(experts.blob_bytes as u64);
            let each = experts.experts;
            writeln!(out, "  {each} experts, {} used, each {blob} as one blob ({types})", experts.top_k)?;
        }
        shown = Some(layer);
    }
    alike_line(out, &mut alike)?;
    let totals = &summary.totals;
    writeln!(
        out,
        "\n{} tensors, {:.2}M parameters, {}",
        totals.tensors,
        totals.parameters as f64 / 1e6,
        Bytes(totals.bytes)
    )?;
    if totals.expert_bytes > 0 {
        writeln!(
            out,
            "experts {}, of which a token uses {}; all else {}",
            Bytes(totals.expert_bytes),
            Bytes(totals.expert_bytes_per_token),
            Bytes(totals.dense_bytes)
        )?;
    }
    for (ty, bytes) in &totals.by_type {
        writeln!(out, "  {ty:8}  {}", Bytes(*bytes))?;
    }
    Ok(())
}

fn alike_line(out: &mut impl Write, alike: &mut usize) -> io::Result<()> {
    match std::mem::take(alike) {
        0 => Ok(()),
        1 => writeln!(out, "  the next layer is alike"),
        n => writeln!(out, "  the next {n} layers are alike"),
    }
}

/// Whether two layers have tensors of the same types and shapes.
fn same(a: &LayerSummary, b: &LayerSummary) -> bool {
    let shapes = |layer: &LayerSummary| layer.tensors.iter().map(|t| (t.ty, t.dims.clone())).collect::<Vec<_>>();
    shapes(a) == shapes(b)
}

fn tensors(out: &mut impl Write, all: &[TensorSummary]) -> io::Result<()> {
    let wide = all.iter().map(|tensor| cell(&tensor.name).chars().count()).max().unwrap_or(0);
    for tensor in all {
        let dims = tensor.dims.iter().map(u64::to_string).collect::<Vec<_>>().join(" x ");
        writeln!(
            out,
            "  {:wide$}  {:8}  {dims:20}  {:>11}",
            cell(&tensor.name),
            tensor.ty.name(),
            Bytes(tensor.bytes as u64)
        )?;
    }
    Ok(())
}
