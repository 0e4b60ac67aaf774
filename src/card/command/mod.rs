//! The commands a card runs: copies and the model's kernels. Each is an [`Operation`] in a file of its own, which says
//! what it is called, what it reads and writes, which fields fit together, what work memory it needs and what it costs.
//!
//! All activations are f32, row-major, without padding. Ids and positions are u32. A command's [`Command::accesses`]
//! are all it may touch: virtual cards give a kernel only those bytes, and the ledger orders by them.
//!
//! A new operation: its file here, a line in `operations!` below, and a file each in `card/virt/run` and
//! `card/cuda/launch`.

mod attend;
mod combine;
mod copy;
mod cost;
mod experts;
mod gated_activation;
mod linear;
mod rms_norm;
mod rotate;
mod route;
mod sizes;
mod store_kv;
#[cfg(test)]
mod tests;
mod wire;

use super::{CardKind, HostSpan, Span};
pub use crate::ops::{BlobLayout, Epilogue, ExpertSet};
pub use attend::{Attend, AttentionEnd, Cells};
pub use combine::Combine;
pub use copy::{CopyAcross, CopyIn, CopyOut, CopyWithin};
pub use cost::Cost;
pub use experts::{ExpertsInto, HeldExpert, RunExperts};
pub use gated_activation::GatedActivation;
pub use linear::{Linear, LinearPart, Weight};
pub use rms_norm::RmsNorm;
pub use rotate::Rotate;
pub use route::{Route, Routing};
pub use store_kv::StoreKv;
pub use wire::{WireReceive, WireSend};

pub(super) use experts::{cuda_inner, cuda_products, cuda_scratch};
pub(super) use linear::halves;

/// What a command is part of. A card may choose its kernels by it, never by the number of rows, so that a prompt's
/// values do not depend on how the prompt was cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Many tokens of a sequence at once.
    Prompt,
    /// One token of each of a few sequences.
    Decode,
}

/// One access of a command.
#[derive(Clone, Debug)]
pub enum Access {
    /// Card bytes are read.
    Read(Span),
    /// Card bytes are written (and may be read).
    Write(Span),
    /// Host bytes are read.
    HostRead(HostSpan),
    /// Host bytes are written.
    HostWrite(HostSpan),
}

/// What every card asks of an operation.
pub trait Operation {
    /// The name in messages and traces.
    fn name(&self) -> &'static str;

    /// Every access. A kernel that may work in place has its input first, see [`Operation::in_place`].
    fn accesses(&self) -> Vec<Access>;

    /// Whether the fields fit each other on a card of this kind.
    ///
    /// # Errors
    /// What does not fit, with the sizes.
    fn check(&self, kind: CardKind) -> Result<(), String>;

    /// What the operation moves and computes.
    fn cost(&self) -> Cost;

    /// The input (the first access) and the output that may be the same bytes.
    fn in_place(&self) -> Option<(Span, Span)> {
        None
    }

    /// Bytes a copy moves over a link, a wire or inside the card; `None` for kernels.
    fn copied(&self) -> Option<usize> {
        None
    }
}

/// Makes [`Command`] of the operations: one variant each, named as its struct.
macro_rules! operations {
    ($($(#[$doc:meta])* $name:ident,)+) => {
        /// A command of a card's stream.
        #[derive(Clone, Debug)]
        pub enum Command {
            $($(#[$doc])* $name($name),)+
        }

        impl Command {
            /// The operation that the command is.
            pub fn operation(&self) -> &dyn Operation {
                match self {
                    $(Self::$name(operation) => operation,)+
                }
            }
        }

        $(impl From<$name> for Command {
            fn from(operation: $name) -> Self {
                Self::$name(operation)
            }
        })+
    };
}

operations! {
    /// Host to card.
    CopyIn,
    /// Card to host.
    CopyOut,
    /// Inside the card.
    CopyWithin,
    /// From another card's memory to this card's.
    CopyAcross,
    /// Into a wire.
    WireSend,
    /// Out of a wire.
    WireReceive,
    /// Root mean square norm.
    RmsNorm,
    /// Products with weights.
    Linear,
    /// Rotary position embedding.
    Rotate,
    /// K and V into cells.
    StoreKv,
    /// Attention over cells.
    Attend,
    /// The gate of an FFN.
    GatedActivation,
    /// The choice of experts.
    Route,
    /// The FFNs of experts.
    RunExperts,
    /// The weighted sum over experts.
    Combine,
}

impl Command {
    /// The command's name in messages and traces.
    pub fn name(&self) -> &'static str {
        self.operation().name()
    }

    /// Every access of the command.
    pub fn accesses(&self) -> Vec<Access> {
        self.operation().accesses()
    }

    /// What the command moves and computes.
    pub fn cost(&self) -> Cost {
        self.operation().cost()
    }

    /// Bytes a copy moves over a link, a wire or inside the card; `None` for kernels.
    pub fn copied(&self) -> Option<usize> {
        self.operation().copied()
    }

    /// Bytes of host memory that a kernel reads over the link.
    pub fn read_over_link(&self) -> usize {
        match self {
            Self::Attend(Attend { host_cells: Some(cells), .. }) => cells.at.bytes(),
            _ => 0,
        }
    }
}
