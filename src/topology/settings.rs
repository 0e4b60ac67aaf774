//! How the model is to run: the `run` part of a topology, with its defaults.

use serde::Serialize;

use crate::ops::KvType;
use crate::units::{Bytes, CardId};

/// The `run` part. [`RunSettings::default`] is what holds where a file says nothing.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunSettings {
    /// Tokens of one sequence, prompt and answer together.
    pub context: u32,
    /// Sequences that are kept at the same time.
    pub sequences: u32,
    /// The cache of keys and values.
    pub kv: KvSettings,
    /// How prompts are read.
    pub prompt: PromptSettings,
    /// How hidden states cross from card to card.
    pub hand_off: HandOff,
    /// Decisions taken from the planner.
    pub pins: Pins,
    /// Whether virtual cards slow their links to the declared rates.
    pub throttle: bool,
}

/// The cache of keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct KvSettings {
    /// Element type.
    #[serde(rename = "type")]
    pub kind: KvType,
    /// Cells of a sequence that stay on the card.
    pub resident_cells: ResidentCells,
    /// Size of the staging pool.
    pub staging: Staging,
    /// Whether streamed cells are copied ahead of the layer that reads them.
    pub prefetch: Switch,
    /// How much of a sequence's streamed cells the host pool attends in decode; cards read the others over their
    /// links.
    pub host_share: Share,
}

/// How prompts are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PromptSettings {
    /// Whether the expert stream skips experts that no token is routed to.
    pub routed_stream: Switch,
    /// Copies kept queued ahead of the link, 1 to 64.
    pub depth: u32,
    /// Tokens of a wave from which on experts are streamed ahead of the router.
    pub floor: u32,
    /// Size of the prompt ring.
    pub ring: Ring,
    /// Tokens that pass through a layer together.
    pub wave: Wave,
    /// Whether CPU workers compute experts for prompts below the floor, too.
    pub host_pool: bool,
}

/// A feature that is off, on, or on where the plan predicts a gain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Switch {
    /// Nothing of it runs.
    Off,
    /// It runs, or the plan is refused.
    On,
    /// The planner decides and says why.
    #[default]
    Auto,
}

/// How many cells of a sequence stay on the card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ResidentCells {
    /// The whole context.
    #[default]
    All,
    /// The first cells of each sequence; the whole context where that is less.
    First(u32),
}

/// Size of the staging pool, through which streamed cells pass during a prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Staging {
    /// The planner decides.
    #[default]
    Auto,
    /// It holds this many cells of one layer, rounded up to whole attention tiles.
    Cells(u32),
}

/// A share of what two sides divide between them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Share {
    /// The planner decides.
    #[default]
    Auto,
    /// So many of a hundred.
    Percent(u32),
}

/// Size of the prompt ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Ring {
    /// The planner decides.
    #[default]
    Auto,
    /// This many slots on each card.
    Slots(u32),
    /// As many slots as these bytes hold, on each card.
    Bytes(Bytes),
}

/// Tokens that pass through a layer together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Wave {
    /// The planner decides.
    #[default]
    Auto,
    /// At most this many.
    Tokens(u32),
}

/// How hidden states cross from card to card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum HandOff {
    /// The planner decides; through the host where nothing faster is allowed and tested.
    #[default]
    Auto,
    /// Through page-locked host memory.
    Host,
    /// Card to card, where `peer` allows it.
    Peer,
    /// By NCCL.
    Nccl,
}

/// Decisions taken from the planner.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Pins {
    /// Layers that a card must run; they do not overlap.
    pub layers: Vec<LayerPin>,
    /// Expert slots that a card must have.
    pub experts: Vec<ExpertPin>,
}

/// Layers that a card must run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LayerPin {
    /// The card.
    pub card: CardId,
    /// The first layer.
    pub first: u32,
    /// The last layer, itself included; `None` is the model's last.
    pub last: Option<u32>,
}

/// Expert slots that a card must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ExpertPin {
    /// The card.
    pub card: CardId,
    /// Slots of its expert pool.
    pub slots: u32,
}

impl Default for RunSettings {
    fn default() -> Self {
        Self {
            context: 8192,
            sequences: 1,
            kv: KvSettings::default(),
            prompt: PromptSettings::default(),
            hand_off: HandOff::Auto,
            pins: Pins::default(),
            throttle: false,
        }
    }
}

impl Default for KvSettings {
    fn default() -> Self {
        Self {
            kind: KvType::F16,
            resident_cells: ResidentCells::All,
            staging: Staging::Auto,
            prefetch: Switch::Auto,
            host_share: Share::Auto,
        }
    }
}

impl Default for PromptSettings {
    fn default() -> Self {
        Self {
            routed_stream: Switch::Auto,
            depth: 16,
            floor: 1024,
            ring: Ring::Auto,
            wave: Wave::Auto,
            host_pool: false,
        }
    }
}

impl From<bool> for Switch {
    fn from(on: bool) -> Self {
        if on { Self::On } else { Self::Off }
    }
}

impl RunSettings {
    /// Takes the switch of the KV prefetch from outside the file, where one is given.
    pub fn override_kv_prefetch(&mut self, on: Option<bool>) {
        if let Some(on) = on {
            self.kv.prefetch = on.into();
        }
    }

    /// Takes the switch of the routed prompt stream from outside the file, where one is given.
    pub fn override_routed_stream(&mut self, on: Option<bool>) {
        if let Some(on) = on {
            self.prompt.routed_stream = on.into();
        }
    }

    /// Takes the length of the context from outside the file, where one is given.
    pub fn override_context(&mut self, tokens: Option<u32>) {
        if let Some(tokens) = tokens {
            self.context = tokens;
        }
    }
}

impl ResidentCells {
    /// Cells on the card of a sequence of `context` tokens.
    pub fn of(self, context: u32) -> u32 {
        match self {
            Self::All => context,
            Self::First(cells) => cells.min(context),
        }
    }
}

impl LayerPin {
    /// Whether the pin names this layer.
    pub fn covers(&self, layer: u32) -> bool {
        layer >= self.first && self.last.is_none_or(|last| layer <= last)
    }

    /// Whether two pins name a layer in common.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.last.is_none_or(|last| other.first <= last) && other.last.is_none_or(|last| self.first <= last)
    }
}
