//! The kernel modules: which sources make each, for what it is specialised, and which kernels it has.

use std::fmt;

use super::product::{ProductBlock, ProductTile};
use crate::ops::{ATTENTION_TILE, AttentionShape, KvType};
use crate::quant::{QuantType, codebook};

const PLATFORM: &str = include_str!("../../../kernels/platform.cuh");
const COMMON: &str = include_str!("../../../kernels/common.cuh");
const ELEMENTWISE: &str = include_str!("../../../kernels/elementwise.cu");
const ROUTER: &str = include_str!("../../../kernels/router.cu");
const CELLS: &str = include_str!("../../../kernels/cells.cuh");
const ATTENTION: &str = include_str!("../../../kernels/attention.cu");
const TILE: &str = include_str!("../../../kernels/attention_tile.cuh");
const ATTENTION_PROMPT: &str = include_str!("../../../kernels/attention_prompt.cu");
const ATTENTION_WIDE: &str = include_str!("../../../kernels/attention_wide.cu");
const ATTENTION_DECODE: &str = include_str!("../../../kernels/attention_decode.cu");
const QUANT: &str = include_str!("../../../kernels/quant.cuh");
const PRODUCT: &str = include_str!("../../../kernels/product.cuh");
const PRODUCT_WIDE: &str = include_str!("../../../kernels/product_wide.cuh");
const LINEAR: &str = include_str!("../../../kernels/linear.cu");
const VECTOR: &str = include_str!("../../../kernels/vector.cuh");
const LINEAR_DECODE: &str = include_str!("../../../kernels/linear_decode.cu");

/// Kernels that are compiled together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Module {
    /// What every model needs.
    Base,
    /// Attention for any head size and cell type.
    Attention,
    /// Attention on tensor cores.
    AttentionTensor {
        /// Elements of a head: 64, 128 or 256.
        head_dim: usize,
        /// Cell type: F16 or INT8.
        kv: TensorKv,
    },
    /// Products with one weight format.
    Weights(QuantType),
}

/// The cell types that tensor cores attend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TensorKv {
    /// [`KvType::F16`].
    F16,
    /// [`KvType::Int8`].
    Int8,
}

impl Module {
    /// Every module for an architecture.
    pub fn all(arch: u32) -> Vec<Self> {
        let mut all = vec![Self::Base, Self::Attention];
        for head_dim in [64, 128, 256] {
            for kv in [TensorKv::F16, TensorKv::Int8] {
                all.push(Self::AttentionTensor { head_dim, kv });
            }
        }
        all.retain(|module| module.exists(arch));
        all.extend(QuantType::ALL.map(Self::Weights));
        all
    }

    /// The tensor-core module for these layers, or `None` where [`Module::Attention`] does all.
    pub fn for_attention(shape: &AttentionShape, kind: KvType, arch: u32) -> Option<Self> {
        let kv = match kind {
            KvType::F32 => return None,
            KvType::F16 => TensorKv::F16,
            KvType::Int8 => TensorKv::Int8,
        };
        let head_dim = shape.head_dim;
        let module = Self::AttentionTensor { head_dim, kv };
        (matches!(head_dim, 64 | 128 | 256) && shape.value_dim == head_dim && module.exists(arch)).then_some(module)
    }

    // Turing's 64 KiB of shared memory hold no tile of keys, values and queries of 256 elements.
    fn exists(self, arch: u32) -> bool {
        !matches!(self, Self::AttentionTensor { head_dim: 256, .. }) || arch >= 80
    }

    /// Shared memory that its largest launch asks for, beside what kernels hold of themselves (of
    /// [`Module::Attention`], with heads of 256).
    pub fn dynamic_shared(self, arch: u32) -> usize {
        match self {
            Self::Base => 0,
            Self::Attention => general_shared(256, 256),
            Self::AttentionTensor { head_dim, kv } => {
                PromptBlock::of(head_dim, kv, arch).shared.max(decode_shared(head_dim))
            }
            Self::Weights(ty) => {
                ProductTile::of(ty, arch).map(|tile| ProductBlock::of(ty, tile, arch).shared).max().unwrap_or(0)
            }
        }
    }

    /// The source, complete in one text.
    pub fn source(self) -> String {
        let parts: &[&str] = match self {
            Self::Base => &[PLATFORM, COMMON, ELEMENTWISE, ROUTER],
            Self::Attention => &[PLATFORM, COMMON, CELLS, ATTENTION],
            Self::AttentionTensor { .. } => {
                &[PLATFORM, COMMON, CELLS, TILE, ATTENTION_PROMPT, ATTENTION_WIDE, ATTENTION_DECODE]
            }
            Self::Weights(ty) => {
                return [PLATFORM, &grid(ty), COMMON, QUANT, PRODUCT, PRODUCT_WIDE, LINEAR, VECTOR, LINEAR_DECODE]
                    .concat();
            }
        };
        parts.concat()
    }

    /// Compiler options that specialise the source.
    pub fn options(self) -> Vec<String> {
        match self {
            Self::Base | Self::Attention => Vec::new(),
            Self::AttentionTensor { head_dim, kv } => {
                let kind = match kv {
                    TensorKv::F16 => 1,
                    TensorKv::Int8 => 2,
                };
                vec![format!("-DHEAD_DIM={head_dim}"), format!("-DKV_KIND={kind}")]
            }
            Self::Weights(ty) => vec![format!("-DQUANT={ty}")],
        }
    }

    /// Its kernels for an architecture.
    pub fn kernels(self, arch: u32) -> Vec<&'static str> {
        let all: &[&str] = match self {
            Self::Base => &[
                "rms_norm",
                "rms_norm_short",
                "rope",
                "gated_activation",
                "store_kv",
                "rows_to_halves",
                "route",
                "group",
                "combine",
                "plan_tiles",
                "gate_rows",
            ],
            Self::Attention => &["attend_tiles", "merge_tiles", "attend_rows", "bring_cells"],
            Self::AttentionTensor { .. } => &["attend_prompt", "decode_tiles"],
            Self::Weights(_) => &["linear_decode_1", "linear_decode_8", "experts_decode_in", "experts_decode_out"],
        };
        let tiles = match self {
            Self::Weights(ty) => Some(ProductTile::of(ty, arch)),
            _ => None,
        };
        let products = tiles.into_iter().flatten();
        let products = products.flat_map(|tile| [tile.linear(), tile.experts_in(), tile.experts_out()]);
        all.iter().copied().chain(products).collect()
    }
}

/// Query heads that a block of the general attention kernels takes.
pub(super) const GROUP: usize = 8;

/// A block of a prompt's attention on tensor cores.
pub(super) struct PromptBlock {
    /// Rows of one head.
    pub(super) rows: usize,
    pub(super) threads: u32,
    pub(super) shared: usize,
}

impl PromptBlock {
    pub(super) fn of(head_dim: usize, kv: TensorKv, arch: u32) -> Self {
        let large = head_dim > 128;
        let wide = arch == 90 && !large;
        let stages = if wide {
            4
        } else if arch >= 80 && !large {
            2
        } else {
            1
        };
        let rows = if large { 64 } else { 128 };
        let queries = if large { rows * head_dim } else { 0 };
        let scales = match kv {
            TensorKv::F16 if !wide => 0,
            _ => stages * 2 * ATTENTION_TILE * 4,
        };
        let barriers = if wide { 2 * stages * 8 } else { 0 };
        let shared = (2 * stages * ATTENTION_TILE * head_dim + queries) * 2 + scales + barriers;
        Self { rows, threads: if wide { 384 } else { 256 }, shared }
    }
}

/// Query heads that a block of decode on tensor cores takes.
pub(super) const DECODE_HEADS: usize = 16;

/// Shared memory of decode on tensor cores: a tile's keys and values, queries, probabilities, scores, scales.
pub(super) fn decode_shared(head_dim: usize) -> usize {
    let halves = 2 * ATTENTION_TILE * head_dim + DECODE_HEADS * head_dim + DECODE_HEADS * ATTENTION_TILE;
    halves * 2 + DECODE_HEADS * 68 * 4 + 2 * ATTENTION_TILE * 4
}

/// Shared memory of the general attention kernels: queries, scores, and the cells that are looked at together.
pub(super) fn general_shared(head_dim: usize, value_dim: usize) -> usize {
    let cells = |dim: usize, pitch: usize| if dim <= 128 { ATTENTION_TILE * pitch } else { ATTENTION_TILE / 2 * pitch };
    let stage = cells(head_dim, head_dim + 1).max(cells(value_dim, value_dim));
    (GROUP * head_dim + ATTENTION_TILE * GROUP + stage) * 4
}

impl fmt::Display for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Base => f.pad("base"),
            Self::Attention => f.pad("attention"),
            Self::AttentionTensor { head_dim, kv } => f.pad(&format!("attention-{head_dim}-{kv:?}").to_lowercase()),
            Self::Weights(ty) => f.pad(&ty.name().to_lowercase()),
        }
    }
}

/// The codebook of a format as source text, if it has one.
fn grid(ty: QuantType) -> String {
    let eights = |entries: &[u64]| {
        let pairs = entries.iter().map(|entry| format!("{{{}u,{}u}}", entry & 0xffff_ffff, entry >> 32));
        table("uint2", "GRID2", pairs)
    };
    let fours = |entries: &[u32]| table("u32", "GRID3", entries.iter().map(|entry| format!("{entry}u")));
    match ty {
        QuantType::IQ2_XXS => eights(&codebook::IQ2_XXS),
        QuantType::IQ2_XS => eights(&codebook::IQ2_XS),
        QuantType::IQ2_S => eights(&codebook::IQ2_S),
        QuantType::IQ3_XXS => fours(&codebook::IQ3_XXS),
        QuantType::IQ3_S => fours(&codebook::IQ3_S),
        _ => String::new(),
    }
}

fn table(ty: &str, name: &str, entries: impl Iterator<Item = String>) -> String {
    let entries: Vec<String> = entries.collect();
    format!("__device__ const {ty} GRID_TABLE[] = {{{}}};\n#define {name} GRID_TABLE\n", entries.join(","))
}
