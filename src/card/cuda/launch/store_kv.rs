//! K and V into cells.

use super::super::kernels::{Grid, arguments, int};
use super::super::module::Module;
use super::Launch;
use crate::card::command::StoreKv;
use crate::ops::KvType;

/// How kernels number the cell types.
pub(super) fn kv_number(kind: KvType) -> i32 {
    match kind {
        KvType::F32 => 0,
        KvType::F16 => 1,
        KvType::Int8 => 2,
    }
}

impl Launch<'_> {
    pub(super) fn store_kv(&self, of: &StoreKv) -> Result<(), String> {
        let StoreKv { k, v, layout, cells } = of;
        let count = cells.count;
        let k = self.words(k, count * layout.kv_heads * layout.head_dim, "k")?;
        let v = self.words(v, count * layout.kv_heads * layout.value_dim, "v")?;
        let at = self.wide(&cells.at, count * layout.cell_bytes(), "the cells")?;
        let kind = kv_number(layout.kind);
        let grid = Grid::row((count * layout.kv_heads * 2).div_ceil(8), 256);
        let (count, heads) = (int(count)?, int(layout.kv_heads)?);
        let (head_dim, value_dim) = (int(layout.head_dim)?, int(layout.value_dim)?);
        let (values, scales) = (int(layout.value_offset())?, int(layout.scales_offset())?);
        let bytes = int(layout.cell_bytes())?;
        // SAFETY: (const float*, const float*, u8*, int, int, int, int, int, u32, u32, u32).
        unsafe {
            self.launch(
                Module::Base,
                "store_kv",
                grid,
                arguments![k, v, at, count, kind, heads, head_dim, value_dim, values, scales, bytes],
            )
        }
    }
}
