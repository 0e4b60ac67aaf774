//! Experts of a launch by value, and the sets that kernels test.

use super::Launch;
use crate::card::command::{ExpertSet, HeldExpert};
use crate::ops::BlobLayout;
use crate::units::ExpertId;

/// Experts of one launch.
pub(super) const TABLE_EXPERTS: usize = 256;

/// `ExpertTable` of the kernels.
#[repr(C)]
pub(super) struct ExpertTable {
    blob: [u64; TABLE_EXPERTS],
    id: [u16; TABLE_EXPERTS],
    pub(super) count: i32,
}

/// `Members` of the kernels: a set of at most 1,024 experts.
#[repr(C)]
pub(super) struct Members([u32; 32]);

impl Members {
    pub(super) fn of(set: &ExpertSet) -> Self {
        let mut members = Self([0; 32]);
        for (pair, word) in members.0.as_chunks_mut::<2>().0.iter_mut().zip(&set.0) {
            *pair = [*word as u32, (*word >> 32) as u32];
        }
        members
    }

    pub(super) fn listed(experts: &[HeldExpert]) -> Self {
        Self::of(&ExpertSet::new(1024, experts.iter().map(|expert| expert.id)))
    }
}

impl Launch<'_> {
    /// The table of at most [`TABLE_EXPERTS`] experts with ascending ids.
    pub(super) fn table(&self, experts: &[HeldExpert], layout: &BlobLayout) -> Result<ExpertTable, String> {
        let mut table = ExpertTable { blob: [0; TABLE_EXPERTS], id: [0; TABLE_EXPERTS], count: 0 };
        let mut before: Option<ExpertId> = None;
        for ((expert, blob), id) in experts.iter().zip(&mut table.blob).zip(&mut table.id) {
            if before.is_some_and(|before| before >= expert.id) {
                return Err(format!("expert {} does not follow in ascending order", expert.id.0));
            }
            before = Some(expert.id);
            *blob = self
                .wide(&expert.blob, layout.bytes, "the blob")
                .map_err(|reason| format!("expert {}: {reason}", expert.id.0))?;
            *id = u16::try_from(expert.id.0).map_err(|_| format!("expert {} is too many", expert.id.0))?;
            table.count += 1;
        }
        Ok(table)
    }
}
