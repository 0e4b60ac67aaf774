//! The tiles of a prompt's products: their kernels, threads and shared memory. The numbers are those of `product.cuh`,
//! `product_wide.cuh` and `linear.cu` (`TILES`).

use crate::quant::QuantType;

/// Outputs of a tile.
pub(super) const TILE_OUTPUTS: usize = 128;

/// Inputs of a step.
const STEP: usize = 64;

/// Most row tiles of a launch: the blocks of a grid's second dimension.
const MOST_ROW_TILES: usize = 65_535;

/// Refuses rows whose elements the kernels cannot count in 32 bits.
pub(super) fn check_count(rows: usize, stride: usize) -> Result<(), String> {
    match u32::try_from(rows.saturating_mul(stride)) {
        Ok(_) => Ok(()),
        Err(_) => Err(format!(
            "{rows} rows of {stride} are more elements than a product counts: choose a smaller run.prompt.wave"
        )),
    }
}

/// The rows of a tile. Results do not depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProductTile {
    R16,
    R32,
    R64,
    R128,
    R256,
}

/// How a format is multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// F32, by fused multiply-adds.
    Float,
    /// A warp's tensor cores.
    Tensor,
    /// Four warps together (Hopper).
    Wide,
}

impl Way {
    fn of(ty: QuantType, arch: u32) -> Self {
        match (ty, arch) {
            (QuantType::F32, _) => Self::Float,
            (_, 90) => Self::Wide,
            _ => Self::Tensor,
        }
    }

    /// The tiles there are, ascending, and what a block of each takes beside the others: unpacking weights costs the
    /// same for few rows.
    fn tiles(self) -> &'static [(ProductTile, usize)] {
        match self {
            Self::Float => &[(ProductTile::R16, 2), (ProductTile::R32, 4), (ProductTile::R64, 8)],
            Self::Tensor => &[(ProductTile::R32, 5), (ProductTile::R64, 7), (ProductTile::R128, 10)],
            Self::Wide => &[(ProductTile::R64, 6), (ProductTile::R128, 7), (ProductTile::R256, 10)],
        }
    }
}

impl ProductTile {
    /// The tiles there are for a format, ascending.
    pub(super) fn of(ty: QuantType, arch: u32) -> impl Iterator<Item = Self> {
        Way::of(ty, arch).tiles().iter().map(|(tile, _)| *tile)
    }

    /// For a dense product: the tile with which `rows` rows by `across` tiles of outputs keep so many processors busy
    /// for the shortest time.
    pub(super) fn for_linear(rows: usize, across: usize, ty: QuantType, arch: u32, processors: usize) -> Self {
        let time = |(tile, cost): &(Self, usize)| (across * rows.div_ceil(tile.rows())).div_ceil(processors) * cost;
        let tiles = Way::of(ty, arch).tiles().iter().filter(|(tile, _)| rows.div_ceil(tile.rows()) <= MOST_ROW_TILES);
        tiles.rev().min_by_key(|at| time(at)).map_or(Self::R64, |(tile, _)| *tile)
    }

    /// For experts: the smallest tile that all of these formats have and that holds so many rows, or the largest.
    pub(super) fn for_experts(rows: usize, types: &[QuantType], arch: u32) -> Self {
        let shared = |tile: &Self| types.iter().all(|ty| Self::of(*ty, arch).any(|of| of == *tile));
        let mut tiles = [Self::R16, Self::R32, Self::R64, Self::R128, Self::R256].into_iter().filter(shared);
        let last = tiles.clone().next_back().unwrap_or(Self::R64);
        tiles.find(|tile| tile.rows() >= rows).unwrap_or(last)
    }

    pub(super) fn rows(self) -> usize {
        match self {
            Self::R16 => 16,
            Self::R32 => 32,
            Self::R64 => 64,
            Self::R128 => 128,
            Self::R256 => 256,
        }
    }

    pub(super) fn linear(self) -> &'static str {
        match self {
            Self::R16 => "linear_prompt_16",
            Self::R32 => "linear_prompt_32",
            Self::R64 => "linear_prompt_64",
            Self::R128 => "linear_prompt_128",
            Self::R256 => "linear_prompt_256",
        }
    }

    pub(super) fn experts_in(self) -> &'static str {
        match self {
            Self::R16 => "experts_in_16",
            Self::R32 => "experts_in_32",
            Self::R64 => "experts_in_64",
            Self::R128 => "experts_in_128",
            Self::R256 => "experts_in_256",
        }
    }

    pub(super) fn experts_out(self) -> &'static str {
        match self {
            Self::R16 => "experts_out_16",
            Self::R32 => "experts_out_32",
            Self::R64 => "experts_out_64",
            Self::R128 => "experts_out_128",
            Self::R256 => "experts_out_256",
        }
    }
}

/// A block of a product.
pub(super) struct ProductBlock {
    pub(super) threads: u32,
    pub(super) shared: usize,
}

impl ProductBlock {
    pub(super) fn of(ty: QuantType, tile: ProductTile, arch: u32) -> Self {
        let rows = tile.rows();
        // `ROW_STAGES`; the wide ones' are `Stages::COUNT`. F32 rows are 36 words apart (`PITCH`).
        let stages = if arch >= 80 { 3 } else { 2 };
        match Way::of(ty, arch) {
            Way::Float => Self { threads: 256, shared: stages * (rows + TILE_OUTPUTS) * 36 * 4 },
            Way::Tensor => Self { threads: 256, shared: (2 * TILE_OUTPUTS + stages * rows) * STEP * 2 },
            Way::Wide => {
                let pitch = raw_pitch(ty);
                let stages = match (rows > 128, pitch > 0) {
                    (true, true) => 3,
                    (true, false) => 4,
                    (false, true) => 5,
                    (false, false) => 6,
                };
                let raw = 2 * TILE_OUTPUTS * pitch;
                let barriers = 2 * stages * 8;
                Self { threads: 512, shared: stages * (rows + TILE_OUTPUTS) * STEP * 2 + raw + barriers }
            }
        }
    }
}

/// Bytes from row to row of raw weights in shared memory (`Chunks` in `product_wide.cuh`).
fn raw_pitch(ty: QuantType) -> usize {
    let chunk = match ty.block_len() {
        1 => return 0,
        32 => 128,
        _ => 256,
    };
    let bytes = chunk / ty.block_len() * ty.block_bytes();
    if ty.block_bytes().is_multiple_of(16) { 0 } else { (((bytes + 30) / 16) | 1) * 16 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tile_is_as_large_as_keeps_the_processors_busy() {
        use ProductTile::{R16, R32, R64, R128, R256};
        let tile = |rows, across, ty, arch| ProductTile::for_linear(rows, across, ty, arch, 132);
        // 16 x 8 large tiles fit once, 16 x 16 of half their rows only in two turns.
        assert_eq!(tile(2048, 16, QuantType::Q8_0, 90), R256);
        assert_eq!(tile(512, 16, QuantType::Q8_0, 90), R64);
        assert_eq!(tile(8192, 1, QuantType::F32, 90), R64);
        assert_eq!(tile(2048, 1, QuantType::F32, 90), R16);
        // Tiles of 16 rows would be more than a grid has room for.
        assert_eq!(tile(1 << 20, 9, QuantType::F32, 90), R32);
        assert_eq!(tile(2048, 16, QuantType::Q4_K, 86), R128);
        assert_eq!(tile(8, 16, QuantType::Q4_K, 86), R32);
        assert_eq!(ProductTile::for_experts(20, &[QuantType::Q4_K; 3], 86), R32);
        assert_eq!(ProductTile::for_experts(500, &[QuantType::Q4_K; 3], 86), R128);
        assert_eq!(ProductTile::for_experts(500, &[QuantType::Q4_K, QuantType::Q4_K, QuantType::Q6_K], 90), R256);
        assert_eq!(ProductTile::for_experts(500, &[QuantType::Q4_K, QuantType::Q4_K, QuantType::F32], 90), R64);
        assert_eq!(ProductTile::for_experts(3, &[QuantType::Q4_K, QuantType::Q4_K, QuantType::F32], 86), R32);
        assert_eq!(ProductTile::for_experts(3, &[QuantType::F32; 3], 75), R16);
        assert!(check_count(1 << 20, 4095).is_ok() && check_count(1 << 20, 4096).is_err());
    }
}
