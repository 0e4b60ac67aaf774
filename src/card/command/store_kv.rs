//! K and V into cells.

use super::cost::count;
use super::sizes::{WORD, exactly};
use super::{Access, Cells, Cost, Operation};
use crate::card::{CardKind, Span};
use crate::ops::{CellLayout, KvType};

/// Writes `cells.count` rows of K and V into cells, in the cache's type.
#[derive(Clone, Debug)]
pub struct StoreKv {
    /// f32 `[count, kv_heads * head_dim]`.
    pub k: Span,
    /// f32 `[count, kv_heads * value_dim]`.
    pub v: Span,
    /// Layout of a cell.
    pub layout: CellLayout,
    /// The cells written.
    pub cells: Cells,
}

impl Operation for StoreKv {
    fn name(&self) -> &'static str {
        "store kv"
    }

    fn accesses(&self) -> Vec<Access> {
        vec![Access::Read(self.k), Access::Read(self.v), Access::Write(self.cells.at)]
    }

    fn check(&self, _: CardKind) -> Result<(), String> {
        let Self { k, v, layout, cells } = self;
        if layout.kv_heads == 0 || layout.head_dim == 0 || layout.value_dim == 0 {
            return Err(format!(
                "cells of {} heads of {} and {} hold nothing",
                layout.kv_heads, layout.head_dim, layout.value_dim
            ));
        }
        exactly("K", k.bytes, &[cells.count, layout.kv_heads, layout.head_dim, WORD])?;
        exactly("V", v.bytes, &[cells.count, layout.kv_heads, layout.value_dim, WORD])?;
        exactly("the range of cells", cells.at.bytes, &[cells.count, layout.cell_bytes()])
    }

    fn cost(&self) -> Cost {
        let layout = &self.layout;
        // A conversion; for bytes the largest, the factor and the rounding.
        let each = match layout.kind {
            KvType::F32 => 0,
            KvType::F16 => 1,
            KvType::Int8 => 3,
        };
        Cost {
            card_read: self.k.bytes as u64 + self.v.bytes as u64,
            card_written: self.cells.at.bytes as u64,
            float: count(&[self.cells.count, layout.kv_heads, layout.head_dim + layout.value_dim, each]),
            ..Cost::default()
        }
    }
}
