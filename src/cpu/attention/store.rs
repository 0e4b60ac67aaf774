//! Writing KV cells in the cache's type.
#![allow(unsafe_code)]

use crate::cpu::simd::{Kernel, LANES, Lanes};
use crate::cpu::{Isa, Team};
use crate::ops::{CellLayout, KvType};

/// Writes one cell for each row of `k` (f32 `[count, kv_heads * head_dim]`) and `v` (f32 `[count, kv_heads *
/// value_dim]`) to `cells`; padding becomes zero.
///
/// # Panics
/// When the three do not hold the same number of rows.
pub fn store_kv(team: &Team, layout: &CellLayout, k: &[f32], v: &[f32], cells: &mut [u8]) {
    let (cell, k_row, v_row) =
        (layout.cell_bytes(), layout.kv_heads * layout.head_dim, layout.kv_heads * layout.value_dim);
    let count = cells.len() / cell;
    assert!(
        cells.len() == count * cell && k.len() == count * k_row && v.len() == count * v_row,
        "store KV: {} bytes of cells of {cell}, {} elements of K in rows of {k_row}, {} of V in rows of {v_row}",
        cells.len(),
        k.len(),
        v.len()
    );
    let part = team.share(count, 4);
    team.for_chunks((k.len() + v.len()) * 2, cells, part * cell, |index, cells| {
        let rows = index * part..index * part + cells.len() / cell;
        let (k, v) = (&k[rows.start * k_row..rows.end * k_row], &v[rows.start * v_row..rows.end * v_row]);
        for ((cell, k), v) in cells.chunks_exact_mut(cell).zip(k.chunks_exact(k_row)).zip(v.chunks_exact(v_row)) {
            Isa::best().run(Cell { layout, k, v, cell });
        }
    });
}

/// One cell and its rows of K and V.
pub(super) struct Cell<'a> {
    pub layout: &'a CellLayout,
    pub k: &'a [f32],
    pub v: &'a [f32],
    pub cell: &'a mut [u8],
}

impl Kernel for Cell<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Self { layout, k, v, cell } = self;
        let (values, rest) = cell.split_at_mut(layout.scales_offset());
        let (k_to, v_to) = values.split_at_mut(layout.value_offset());
        rest.fill(0);
        match layout.kind {
            KvType::F32 => {
                k_to.copy_from_slice(bytemuck::cast_slice(k));
                v_to.copy_from_slice(bytemuck::cast_slice(v));
            }
            KvType::F16 => {
                halves::<L>(k, k_to);
                halves::<L>(v, v_to);
            }
            KvType::Int8 => {
                let (k_scales, rest) = rest.split_at_mut(4 * layout.kv_heads);
                int8::<L>(k, layout.head_dim, k_to, k_scales);
                int8::<L>(v, layout.value_dim, v_to, &mut rest[..4 * layout.kv_heads]);
            }
        }
    }
}

#[inline(always)]
fn halves<L: Lanes>(from: &[f32], to: &mut [u8]) {
    assert_eq!(to.len(), 2 * from.len());
    let whole = from.len() / LANES * LANES;
    for at in (0..whole).step_by(LANES) {
        // SAFETY: eight elements from `at` on lie within both.
        unsafe { L::load(from.as_ptr().add(at)).store_f16(to.as_mut_ptr().add(2 * at)) };
    }
    for (x, to) in from[whole..].iter().zip(to[2 * whole..].chunks_exact_mut(2)) {
        to.copy_from_slice(&half::f16::from_f32(*x).to_le_bytes());
    }
}

#[inline(always)]
fn int8<L: Lanes>(from: &[f32], dim: usize, to: &mut [u8], scales: &mut [u8]) {
    for ((x, to), scale_to) in from.chunks_exact(dim).zip(to.chunks_exact_mut(dim)).zip(scales.chunks_exact_mut(4)) {
        let whole = dim / LANES * LANES;
        // Bytes have no NaN and no infinity, and a maximum passes over NaN. So a second sum, of zeros as long as all is
        // finite, makes the scale NaN: then the whole head reads as NaN, as it would with float cells, and not as zeros
        // or a finite number.
        let (mut largest, mut finite) = (L::splat(0.0), L::splat(0.0));
        for at in (0..whole).step_by(LANES) {
            // SAFETY: eight elements from `at` on lie within the head.
            let x = unsafe { L::load(x.as_ptr().add(at)) };
            largest = x.abs().max(largest);
            finite = x.fma(L::splat(0.0), finite);
        }
        let largest = x[whole..].iter().fold(largest.largest(), |a, x| if x.abs() > a { x.abs() } else { a });
        let finite = x[whole..].iter().fold(finite.sum(), |sum, x| x.mul_add(0.0, sum));
        let scale = if finite == 0.0 { largest / 127.0 } else { f32::NAN };
        scale_to.copy_from_slice(&scale.to_le_bytes());
        for (x, to) in x.iter().zip(to) {
            let q = if scale > 0.0 { (x / scale).round() } else { 0.0 };
            *to = (q.clamp(-127.0, 127.0) as i8).cast_unsigned();
        }
    }
}
