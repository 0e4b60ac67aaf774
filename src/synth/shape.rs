//! The sizes and types of a synthetic model, by name and with changes.

use thiserror::Error;

use super::blocks::WRITABLE;
use super::topics::Routing;
use super::vocabulary::{LEAST_VOCABULARY, MOST_VOCABULARY};
use crate::quant::QuantType;

/// Architectures that can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// `llama`, dense or with experts.
    Llama,
    /// `qwen3`, dense: norms on queries and keys.
    Qwen3,
    /// `qwen3moe`, with experts.
    Qwen3Moe,
}

impl Architecture {
    /// The name in GGUF.
    pub fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen3 => "qwen3",
            Self::Qwen3Moe => "qwen3moe",
        }
    }
}

/// The experts of each layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Experts {
    /// How many there are.
    pub count: usize,
    /// How many a token uses.
    pub used: usize,
    /// Hidden units of each.
    pub ff: usize,
}

/// All that a synthetic model is made from.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    /// The name it goes by in the file.
    pub name: String,
    /// The architecture.
    pub architecture: Architecture,
    /// Layers.
    pub layers: usize,
    /// Elements of the residual stream.
    pub width: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Hidden units of a dense FFN.
    pub ff: usize,
    /// Experts instead of a dense FFN.
    pub experts: Option<Experts>,
    /// Tokens of the vocabulary.
    pub vocabulary: usize,
    /// Longest context that the file names.
    pub context: usize,
    /// Base of the rotary position embedding.
    pub rope_base: f32,
    /// Whether the embedding serves as the output matrix too.
    pub tied: bool,
    /// Type of the FFN's gate and up matrices, of experts and dense alike.
    pub ffn_type: QuantType,
    /// Type of the FFN's down matrix.
    pub down_type: QuantType,
    /// Type of the attention's matrices.
    pub attention_type: QuantType,
    /// Type of embedding and output: Q8_0, F16, BF16 or F32.
    pub embedding_type: QuantType,
    /// What routing is like.
    pub routing: Routing,
    /// Seed of all random numbers.
    pub seed: u64,
}

/// Changes to a named shape; `None` keeps what it has.
#[derive(Clone, Debug, Default, PartialEq)]
#[allow(missing_docs, reason = "the fields of Shape, Experts and Routing")]
pub struct Overrides {
    pub layers: Option<usize>,
    pub width: Option<usize>,
    pub heads: Option<usize>,
    pub kv_heads: Option<usize>,
    pub experts: Option<usize>,
    pub experts_used: Option<usize>,
    /// Hidden units of an expert, or of the dense FFN of a shape without experts.
    pub ff: Option<usize>,
    pub vocabulary: Option<usize>,
    pub context: Option<usize>,
    /// Type of gate, up and (unless `down_type` says otherwise) down. Where a down row is no whole number of its
    /// blocks, down gets the nearest type with blocks of 32, as in common files.
    pub ffn_type: Option<QuantType>,
    pub down_type: Option<QuantType>,
    pub attention_type: Option<QuantType>,
    pub embedding_type: Option<QuantType>,
    pub popularity: Option<f32>,
    pub locality: Option<f32>,
    pub topics: Option<usize>,
    pub seed: Option<u64>,
}

/// Why a shape cannot be written.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum ShapeError {
    /// No shape has this name.
    #[error("there is no shape `{name}`; there are {}", NAMES.map(|(name, _)| name).join(", "))]
    Name {
        /// What was asked for.
        name: String,
    },
    /// A type that cannot be written there.
    #[error("`{ty}` is no type for {what}; these are: {}", list(allowed))]
    Type {
        /// Where the type was to be used.
        what: &'static str,
        /// What was asked for.
        ty: String,
        /// What is possible.
        allowed: Vec<QuantType>,
    },
    /// A row is no whole number of blocks.
    #[error("{what} has rows of {length}, which is no multiple of {block}, as {ty} wants: change the size or the type")]
    Row {
        /// The matrix.
        what: &'static str,
        /// Elements of its rows.
        length: usize,
        /// Its type.
        ty: QuantType,
        /// Elements of a block.
        block: usize,
    },
    /// A number out of range.
    #[error("{what} is {found}, but must be {allowed}")]
    Number {
        /// What the number is.
        what: &'static str,
        /// What was asked for.
        found: String,
        /// What is possible.
        allowed: String,
    },
}

/// Every named shape with a line about it.
pub const NAMES: [(&str, &str); 10] = [
    ("qwen3moe-30b-a3b", "the shape of Qwen3-30B-A3B: 48 layers of 128 experts, 8 used, 16.8 GiB"),
    ("qwen3moe-1gb", "16 layers of 64 experts, 8 used, Q4_K, 1 GB: for speed"),
    ("qwen3moe-256", "8 layers of 256 small experts, 8 used, 65 MB: for routing coverage and long prompts"),
    ("llama-135m", "dense, the shape of SmolLM2-135M, Q4_1"),
    ("llama-1b", "dense, the shape of Llama-3.2-1B, Q4_K"),
    ("tiny-qwen3moe", "2 layers of 8 experts, 2 used, width 64: for tests"),
    ("tiny-qwen3moe-k", "2 layers of 8 experts, 2 used, width 256, Q4_K and Q6_K: for tests"),
    ("tiny-llama-moe", "3 layers of 6 experts, 3 used, width 64: for tests"),
    ("tiny-llama", "dense, 2 layers, width 64: for tests"),
    ("tiny-qwen3", "dense, 2 layers, width 64, tied embedding: for tests"),
];

impl Shape {
    /// The shape of one of [`NAMES`].
    ///
    /// # Errors
    /// [`ShapeError::Name`] lists the names.
    pub fn named(name: &str) -> Result<Self, ShapeError> {
        let tiny = Self {
            name: name.to_owned(),
            architecture: Architecture::Qwen3Moe,
            layers: 2,
            width: 64,
            heads: 4,
            kv_heads: 2,
            head_dim: 16,
            ff: 128,
            experts: Some(Experts { count: 8, used: 2, ff: 32 }),
            vocabulary: 512,
            context: 4_096,
            rope_base: 1e6,
            tied: false,
            ffn_type: QuantType::Q4_0,
            down_type: QuantType::Q4_1,
            attention_type: QuantType::Q8_0,
            embedding_type: QuantType::Q8_0,
            routing: Routing::default(),
            seed: 7,
        };
        let shape = match name {
            "qwen3moe-30b-a3b" => Self {
                layers: 48,
                width: 2_048,
                heads: 32,
                kv_heads: 4,
                head_dim: 128,
                ff: 6_144,
                experts: Some(Experts { count: 128, used: 8, ff: 768 }),
                vocabulary: 151_936,
                context: 262_144,
                ffn_type: QuantType::Q4_K,
                down_type: QuantType::Q4_K,
                ..tiny
            },
            "qwen3moe-1gb" => Self {
                layers: 16,
                width: 1_024,
                heads: 16,
                kv_heads: 4,
                head_dim: 64,
                ff: 3_072,
                experts: Some(Experts { count: 64, used: 8, ff: 512 }),
                vocabulary: 32_768,
                context: 262_144,
                ffn_type: QuantType::Q4_K,
                down_type: QuantType::Q4_K,
                ..tiny
            },
            "qwen3moe-256" => Self {
                layers: 8,
                width: 256,
                heads: 8,
                kv_heads: 2,
                head_dim: 32,
                ff: 768,
                experts: Some(Experts { count: 256, used: 8, ff: 64 }),
                vocabulary: 8_192,
                context: 262_144,
                down_type: QuantType::Q4_0,
                ..tiny
            },
            "llama-135m" => Self {
                architecture: Architecture::Llama,
                layers: 30,
                width: 576,
                heads: 9,
                kv_heads: 3,
                head_dim: 64,
                ff: 1_536,
                experts: None,
                vocabulary: 49_152,
                context: 8_192,
                rope_base: 1e5,
                tied: true,
                ffn_type: QuantType::Q4_1,
                attention_type: QuantType::Q4_1,
                ..tiny
            },
            "llama-1b" => Self {
                architecture: Architecture::Llama,
                layers: 16,
                width: 2_048,
                heads: 32,
                kv_heads: 8,
                head_dim: 64,
                ff: 8_192,
                experts: None,
                vocabulary: 128_256,
                context: 131_072,
                rope_base: 5e5,
                tied: true,
                ffn_type: QuantType::Q4_K,
                down_type: QuantType::Q6_K,
                attention_type: QuantType::Q4_K,
                ..tiny
            },
            "tiny-qwen3moe" => tiny,
            "tiny-qwen3moe-k" => Self {
                width: 256,
                experts: Some(Experts { count: 8, used: 2, ff: 256 }),
                ffn_type: QuantType::Q4_K,
                down_type: QuantType::Q6_K,
                ..tiny
            },
            "tiny-llama-moe" => Self {
                architecture: Architecture::Llama,
                layers: 3,
                experts: Some(Experts { count: 6, used: 3, ff: 64 }),
                rope_base: 1e4,
                ..tiny
            },
            "tiny-llama" => Self { architecture: Architecture::Llama, experts: None, rope_base: 1e4, ..tiny },
            "tiny-qwen3" => Self { architecture: Architecture::Qwen3, experts: None, tied: true, ..tiny },
            _ => return Err(ShapeError::Name { name: name.to_owned() }),
        };
        Ok(shape)
    }

    /// The shape with changes.
    ///
    /// # Errors
    /// [`ShapeError`] where the result cannot be written.
    pub fn with(mut self, changes: &Overrides) -> Result<Self, ShapeError> {
        fn set<T: Copy>(to: &mut T, value: Option<T>) {
            *to = value.unwrap_or(*to);
        }
        set(&mut self.layers, changes.layers);
        set(&mut self.width, changes.width);
        set(&mut self.heads, changes.heads);
        set(&mut self.kv_heads, changes.kv_heads);
        match &mut self.experts {
            Some(experts) => {
                set(&mut experts.count, changes.experts);
                set(&mut experts.used, changes.experts_used);
                set(&mut experts.ff, changes.ff);
            }
            None => {
                if let Some(experts) = changes.experts.or(changes.experts_used).filter(|n| *n > 0) {
                    return Err(number("the number of experts of a dense shape", experts, "0".to_owned()));
                }
                set(&mut self.ff, changes.ff);
            }
        }
        set(&mut self.vocabulary, changes.vocabulary);
        set(&mut self.context, changes.context);
        set(&mut self.attention_type, changes.attention_type);
        set(&mut self.embedding_type, changes.embedding_type);
        if let Some(ty) = changes.ffn_type {
            self.ffn_type = ty;
            self.down_type = ty;
        }
        set(&mut self.down_type, changes.down_type);
        if changes.down_type.is_none() {
            self.down_type = fitting(self.down_type, self.ffn_units());
        }
        set(&mut self.routing.popularity, changes.popularity);
        set(&mut self.routing.locality, changes.locality);
        set(&mut self.routing.topics, changes.topics);
        set(&mut self.seed, changes.seed);
        self.check()?;
        Ok(self)
    }

    /// Hidden units of an expert, or of the dense FFN.
    pub fn ffn_units(&self) -> usize {
        self.experts.map_or(self.ff, |experts| experts.ff)
    }

    /// Checks that the shape can be written.
    ///
    /// # Errors
    /// [`ShapeError`] names the first size or type that does not fit.
    pub fn check(&self) -> Result<(), ShapeError> {
        let at_least = |what, found: usize, least: usize| {
            if found < least { Err(number(what, found, format!("at least {least}"))) } else { Ok(()) }
        };
        for (what, found) in [
            ("the number of layers", self.layers),
            ("the width", self.width),
            ("the number of hidden units", self.ffn_units()),
            ("the number of key heads", self.kv_heads),
            ("the context", self.context),
            ("the number of topics", self.routing.topics),
        ] {
            at_least(what, found, 1)?;
        }
        if self.heads == 0 || !self.heads.is_multiple_of(self.kv_heads) {
            return Err(number("the number of heads", self.heads, format!("a multiple of {}", self.kv_heads)));
        }
        if let Some(Experts { count, used, .. }) = self.experts {
            at_least("the number of experts", count, 1)?;
            if !(1..=count).contains(&used) {
                return Err(number("the number of experts used", used, format!("1 to {count}")));
            }
        }
        if !(LEAST_VOCABULARY..=MOST_VOCABULARY).contains(&self.vocabulary) {
            let allowed = format!("{LEAST_VOCABULARY} to {MOST_VOCABULARY}");
            return Err(number("the vocabulary", self.vocabulary, allowed));
        }
        for (what, part) in [("popularity", self.routing.popularity), ("locality", self.routing.locality)] {
            if !(0.0..=100.0).contains(&part) {
                return Err(ShapeError::Number { what, found: part.to_string(), allowed: "0 to 100".to_owned() });
            }
        }
        const EMBEDDING: [QuantType; 4] = [QuantType::Q8_0, QuantType::F16, QuantType::BF16, QuantType::F32];
        let attention = self.heads * self.head_dim;
        for (what, length, ty, types) in [
            ("the embedding", self.width, self.embedding_type, &EMBEDDING[..]),
            ("the attention's input", self.width, self.attention_type, &WRITABLE),
            ("the attention's output", attention, self.attention_type, &WRITABLE),
            ("the FFN's gate", self.width, self.ffn_type, &WRITABLE),
            ("the FFN's down matrix", self.ffn_units(), self.down_type, &WRITABLE),
        ] {
            if !types.contains(&ty) {
                return Err(ShapeError::Type { what, ty: ty.to_string(), allowed: types.to_vec() });
            }
            if !length.is_multiple_of(ty.block_len()) {
                return Err(ShapeError::Row { what, length, ty, block: ty.block_len() });
            }
        }
        Ok(())
    }
}

/// `ty`, or the type with blocks of 32 that files use in its place where `length` is no multiple of 256.
fn fitting(ty: QuantType, length: usize) -> QuantType {
    if length.is_multiple_of(ty.block_len()) {
        return ty;
    }
    match ty {
        QuantType::Q4_K => QuantType::Q5_0,
        QuantType::Q5_K => QuantType::Q5_1,
        QuantType::Q6_K => QuantType::Q8_0,
        other => other,
    }
}

fn number(what: &'static str, found: usize, allowed: String) -> ShapeError {
    ShapeError::Number { what, found: found.to_string(), allowed }
}

fn list(types: &[QuantType]) -> String {
    types.iter().map(|ty| ty.name()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_a_shape_that_can_be_written() {
        for (name, _) in NAMES {
            let shape = Shape::named(name).unwrap();
            assert_eq!(shape.name, name);
            shape.check().unwrap();
        }
        assert!(Shape::named("qwen").unwrap_err().to_string().contains("qwen3moe-1gb"));
    }

    #[test]
    fn changes_are_checked() {
        let shape = |changes: Overrides| Shape::named("qwen3moe-1gb").unwrap().with(&changes);
        let error = |changes: Overrides| shape(changes).unwrap_err().to_string();
        let smaller = shape(Overrides { ff: Some(96), experts: Some(12), ..Overrides::default() }).unwrap();
        assert_eq!((smaller.down_type, smaller.ffn_units()), (QuantType::Q5_0, 96));
        insta::assert_snapshot!(
            [
                error(Overrides { experts_used: Some(65), ..Overrides::default() }),
                error(Overrides { vocabulary: Some(100), ..Overrides::default() }),
                error(Overrides { width: Some(1000), ..Overrides::default() }),
                error(Overrides { ff: Some(96), down_type: Some(QuantType::Q6_K), ..Overrides::default() }),
                error(Overrides { embedding_type: Some(QuantType::Q4_K), ..Overrides::default() }),
                error(Overrides { heads: Some(6), ..Overrides::default() }),
                error(Overrides { locality: Some(f32::NAN), ..Overrides::default() }),
            ]
            .join("\n"),
            @r"
        the number of experts used is 65, but must be 1 to 64
        the vocabulary is 100, but must be 287 to 518687
        the embedding has rows of 1000, which is no multiple of 32, as Q8_0 wants: change the size or the type
        the FFN's down matrix has rows of 96, which is no multiple of 256, as Q6_K wants: change the size or the type
        `Q4_K` is no type for the embedding; these are: Q8_0, F16, BF16, F32
        the number of heads is 6, but must be a multiple of 4
        locality is NaN, but must be 0 to 100
        "
        );
    }
}
