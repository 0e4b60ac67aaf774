//! What sets the supported architectures apart, as a table.

use std::fmt;

use crate::ops::RopeKind;

/// An architecture that Aqueduct runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(into = "&'static str")]
pub enum Architecture {
    /// Llama, Mistral, SmolLM; with experts: Mixtral.
    Llama,
    /// Dense Qwen3.
    Qwen3,
    /// Qwen3 with experts.
    Qwen3Moe,
}

/// What an architecture says about its models before any key is read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Family {
    /// How heads rotate.
    pub(super) rope: RopeKind,
    /// Whether the whole head must rotate.
    pub(super) whole_head_rotates: bool,
    /// Whether `rope_freqs.weight` may divide the rope's frequencies.
    pub(super) rope_factors: bool,
    /// Whether query and key heads have norms of their own.
    pub(super) head_norms: bool,
    /// Whether layers have experts.
    pub(super) experts: ExpertUse,
}

/// Whether layers have experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExpertUse {
    /// Never.
    Never,
    /// In every layer, if the file gives a number of experts.
    IfCounted,
    /// In every layer.
    Always,
}

impl Architecture {
    /// Every architecture.
    pub const ALL: [Self; 3] = [Self::Llama, Self::Qwen3, Self::Qwen3Moe];

    /// The architecture that files call by this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|architecture| architecture.name() == name)
    }

    /// The name in `general.architecture`, which is also the prefix of the model's keys.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen3 => "qwen3",
            Self::Qwen3Moe => "qwen3moe",
        }
    }

    pub(super) const fn family(self) -> Family {
        let qwen3 = Family {
            rope: RopeKind::Neox,
            whole_head_rotates: false,
            rope_factors: false,
            head_norms: true,
            experts: ExpertUse::Never,
        };
        match self {
            Self::Llama => Family {
                rope: RopeKind::Normal,
                whole_head_rotates: true,
                rope_factors: true,
                head_norms: false,
                experts: ExpertUse::IfCounted,
            },
            Self::Qwen3 => qwen3,
            Self::Qwen3Moe => Family { experts: ExpertUse::Always, ..qwen3 },
        }
    }
}

impl From<Architecture> for &'static str {
    fn from(architecture: Architecture) -> Self {
        architecture.name()
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
