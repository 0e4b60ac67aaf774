//! The shared vocabulary of what a model computes: rope, activation, router rule, attention shape, cache type, expert
//! blobs.

use crate::quant::QuantType;
use crate::units::ExpertId;

/// Which elements of a head rotate together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RopeKind {
    /// Adjacent pairs `(2j, 2j + 1)`.
    Normal,
    /// Halves `(j, j + rotated / 2)`.
    Neox,
}

/// Rotary position embedding of one model: which pairs, how many elements of a head, at which angles.
///
/// The angle of pair `j` at position `p` is `p * frequencies[j]`, computed in f32 with the frequencies rounded once
/// from f64; unscaled, `frequencies[j] = base^(-2j / rotated) / frequency factor j`. Cosines and sines are multiplied
/// by `magnitude`.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Which elements pair up.
    pub kind: RopeKind,
    /// Elements of each head that rotate, even, at most the head's size; the others pass through.
    pub rotated: usize,
    /// Radians per position of each pair, `rotated / 2` of them.
    pub frequencies: std::sync::Arc<[f32]>,
    /// What YaRN multiplies the rotated elements by; 1 without it.
    pub magnitude: f32,
}

/// The gate function of an FFN: `down(activation(gate x) * (up x))`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
}

/// What a product does with what its output held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Epilogue {
    /// It is overwritten: `out = W x`.
    Store,
    /// The product is added to it, after its own sum is complete and rounded to f32: `out = out + W x`.
    Add,
}

/// How router logits become expert weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RouterRule {
    /// What makes scores of the logits.
    pub scores: RouterScores,
    /// Experts a token uses. Ties go to the lower id.
    pub top_k: usize,
    /// Whether the chosen weights are divided by their sum (at least 6.1035e-5).
    pub normalise: bool,
    /// Multiplies the weights last.
    pub scale: f32,
}

/// The function from router logits to scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RouterScores {
    /// Softmax over all experts.
    Softmax,
    /// Sigmoid of each.
    Sigmoid,
}

/// Sizes of one attention layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionShape {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`. Query head `h` reads key head `h / (heads / kv_heads)`.
    pub kv_heads: usize,
    /// Elements of a query and key head.
    pub head_dim: usize,
    /// Elements of a value head.
    pub value_dim: usize,
    /// Multiplies `q . k` before the softmax.
    pub scale: f32,
}

/// Element type of the KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KvType {
    /// 32-bit floats: for comparing with references.
    F32,
    /// 16-bit floats.
    F16,
    /// Signed bytes with one f32 scale for each head of each cell: `scale = max |x| / 127`, `q = round(x / scale)`,
    /// halves away from zero.
    Int8,
}

/// Where the parts of one KV cell lie: `[K of every kv head][V of every kv head][K scales][V scales]`, padded to 16
/// bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CellLayout {
    /// Element type of K and V.
    pub kind: KvType,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Elements of a key head.
    pub head_dim: usize,
    /// Elements of a value head.
    pub value_dim: usize,
}

impl KvType {
    /// Bytes of one element.
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 => 2,
            Self::Int8 => 1,
        }
    }
}

impl CellLayout {
    /// The layout of the cells of an attention layer.
    pub const fn new(kind: KvType, shape: &AttentionShape) -> Self {
        Self { kind, kv_heads: shape.kv_heads, head_dim: shape.head_dim, value_dim: shape.value_dim }
    }

    /// Offset of V inside a cell, in bytes; K starts at 0.
    pub const fn value_offset(&self) -> usize {
        self.kv_heads * self.head_dim * self.kind.bytes()
    }

    /// Offset of the K scales (f32, one a head, only for INT8) inside a cell, in bytes; the V scales follow them.
    pub const fn scales_offset(&self) -> usize {
        self.value_offset() + self.kv_heads * self.value_dim * self.kind.bytes()
    }

    /// Bytes of one cell, a multiple of 16.
    pub const fn cell_bytes(&self) -> usize {
        let scales = match self.kind {
            KvType::Int8 => 2 * self.kv_heads * 4,
            KvType::F32 | KvType::F16 => 0,
        };
        (self.scales_offset() + scales).next_multiple_of(16)
    }
}

/// Cells of one attention tile. Softmax runs tile by tile in absolute cell numbers (`0..64`, `64..128`, ...), so that
/// where a cell is kept and how its neighbours arrived never changes a sum.
pub const ATTENTION_TILE: usize = 64;

/// The shape and formats of one layer's expert blobs: `gate | up | down` at these offsets, each `[rows, cols]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlobLayout {
    /// Width of the model: inputs of gate and up, outputs of down.
    pub width: usize,
    /// Hidden units of an expert: outputs of gate and up, inputs of down.
    pub hidden: usize,
    /// Format of gate, up and down.
    pub types: [QuantType; 3],
    /// Byte offset of gate, up and down inside the blob.
    pub offsets: [usize; 3],
    /// Bytes of the blob.
    pub bytes: usize,
    /// The gate function.
    pub activation: Activation,
}

/// Each part of a blob, and each blob, begins at a multiple of this many bytes.
pub const BLOB_ALIGNMENT: usize = 256;

impl BlobLayout {
    /// The layout of gate, up and down matrices of these types and sizes in bytes: one after the other, each padded to
    /// [`BLOB_ALIGNMENT`].
    pub fn new(width: usize, hidden: usize, activation: Activation, parts: [(QuantType, usize); 3]) -> Self {
        let mut bytes = 0;
        let offsets = parts.map(|(_, part)| {
            let offset = bytes;
            bytes = (bytes + part).next_multiple_of(BLOB_ALIGNMENT);
            offset
        });
        Self { width, hidden, types: parts.map(|(ty, _)| ty), offsets, bytes, activation }
    }
}

/// A set of experts of one layer.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct ExpertSet(pub Vec<u64>);

impl ExpertSet {
    /// The set of these experts out of `experts`.
    pub fn new(experts: usize, members: impl IntoIterator<Item = ExpertId>) -> Self {
        let mut set = Self(vec![0; experts.div_ceil(64)]);
        for member in members {
            if let Some(word) = set.0.get_mut(member.0 as usize / 64) {
                *word |= 1 << (member.0 % 64);
            }
        }
        set
    }

    /// The set in the little endian words that a router writes.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        Self(bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect())
    }

    /// Whether the expert is in the set.
    pub fn contains(&self, expert: ExpertId) -> bool {
        self.0.get(expert.0 as usize / 64).is_some_and(|word| word >> (expert.0 % 64) & 1 == 1)
    }

    /// Number of members.
    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether no expert is in it.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// Bytes of the mapped words of a layer with `experts` experts.
    pub const fn bytes(experts: usize) -> usize {
        experts.div_ceil(64) * 8
    }
}
