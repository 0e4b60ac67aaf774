//! Activations in the form that a weight format multiplies with.
//!
//! | form | for | a block of 32 |
//! |---|---|---|
//! | floats | F32, F16, BF16 | as they are |
//! | bytes | up to 6 unsigned bits, scale, offset: Q2_K to Q6_K, Q4, Q5, MXFP4 | 32 x i8, scale, sums of all and each 16 |
//! | words | signed values up to 8 bits: Q8_0 and the I formats | 32 x i16 (each four in the order 0 2 1 3), scale |
//!
//! Scales and sums are f32; the sums stand in the order all, first 16, last 16.
//!
//! `scale = max |x| / 127` (or 32767) and `q = round(x * (127 / max |x|))`, halves to even. A block whose largest value
//! is below 1e-30 is zero; one with an infinity or a NaN gets a NaN scale, so that it shows in every output.

use super::isa::{Isa, Kind};
use super::{LinearError, Team};
use crate::quant::QuantType;

/// Elements of a quantised block.
pub(super) const BLOCK: usize = 32;
/// Bytes of a block of bytes.
pub(super) const BYTES_BLOCK: usize = 48;
/// Bytes of a block of words.
pub(super) const WORDS_BLOCK: usize = 68;
/// Below this, the largest magnitude of a block counts as zero: its inverse would overflow.
pub(super) const TINY: f32 = 1e-30;
/// Activations below this number are quantised by the caller's thread alone.
const ALONE: usize = 16_384;

/// The form of activations that a weight format multiplies with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Floats,
    Bytes,
    Words,
}

impl Form {
    pub(super) const fn of(ty: QuantType) -> Self {
        match ty {
            QuantType::F32 | QuantType::F16 | QuantType::BF16 => Self::Floats,
            QuantType::Q4_0 | QuantType::Q4_1 | QuantType::Q5_0 | QuantType::Q5_1 | QuantType::MXFP4 => Self::Bytes,
            QuantType::Q2_K | QuantType::Q3_K | QuantType::Q4_K | QuantType::Q5_K | QuantType::Q6_K => Self::Bytes,
            QuantType::Q8_0 | QuantType::IQ4_NL | QuantType::IQ4_XS => Self::Words,
            QuantType::IQ2_XXS | QuantType::IQ2_XS | QuantType::IQ2_S => Self::Words,
            QuantType::IQ3_XXS | QuantType::IQ3_S => Self::Words,
        }
    }

    /// Bytes of a row of `cols` elements.
    pub(super) const fn row_bytes(self, cols: usize) -> usize {
        match self {
            Self::Floats => 4 * cols,
            Self::Bytes => cols / BLOCK * BYTES_BLOCK,
            Self::Words => cols / BLOCK * WORDS_BLOCK,
        }
    }
}

/// The forms that a set of weights needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Formats {
    bytes: bool,
    words: bool,
}

impl Formats {
    /// The forms that weights of these formats need.
    pub fn of(types: impl IntoIterator<Item = QuantType>) -> Self {
        let mut formats = Self::default();
        for ty in types {
            match Form::of(ty) {
                Form::Floats => {}
                Form::Bytes => formats.bytes = true,
                Form::Words => formats.words = true,
            }
        }
        formats
    }

    fn row_bytes(self, cols: usize) -> usize {
        let bytes = if self.bytes { Form::Bytes.row_bytes(cols) } else { 0 };
        bytes + if self.words { Form::Words.row_bytes(cols) } else { 0 }
    }
}

/// Bytes that [`quantise`] needs for `rows` rows of `cols` elements.
pub fn scratch_bytes(formats: Formats, rows: usize, cols: usize) -> usize {
    rows.saturating_mul(formats.row_bytes(cols))
}

/// Rows of activations, ready to be multiplied.
#[derive(Clone, Copy, Debug)]
pub struct Activations<'a> {
    rows: usize,
    cols: usize,
    floats: &'a [f32],
    bytes: Option<&'a [u8]>,
    words: Option<&'a [u8]>,
}

impl Activations<'_> {
    /// Rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Elements of a row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The rows in the form that `ty` multiplies with, [`Form::row_bytes`] each; `None` when they were not made.
    pub(super) fn form(&self, ty: QuantType) -> Option<&[u8]> {
        match Form::of(ty) {
            Form::Floats => Some(bytemuck::cast_slice(self.floats)),
            Form::Bytes => self.bytes,
            Form::Words => self.words,
        }
    }
}

/// Brings `rows` rows of `cols` activations into `formats`, written to `scratch`, which holds at least
/// [`scratch_bytes`].
///
/// # Errors
/// When `x` is not `rows * cols` long, the scratch is too small, or a row is no whole number of blocks of 32 although a
/// quantised form was asked for.
pub fn quantise<'a>(
    isa: Isa,
    team: &Team,
    x: &'a [f32],
    rows: usize,
    cols: usize,
    formats: Formats,
    scratch: &'a mut [u8],
) -> Result<Activations<'a>, LinearError> {
    if rows.checked_mul(cols) != Some(x.len()) {
        return Err(LinearError::Floats { what: "activations", rows, cols, found: x.len() });
    }
    if formats == Formats::default() {
        return Ok(Activations { rows, cols, floats: x, bytes: None, words: None });
    }
    if !cols.is_multiple_of(BLOCK) {
        return Err(LinearError::PartBlock { cols });
    }
    let wanted = scratch_bytes(formats, rows, cols);
    let found = scratch.len();
    let scratch = scratch.get_mut(..wanted).ok_or(LinearError::Scratch { wanted, found })?;
    let (bytes, words) = scratch.split_at_mut(if formats.bytes { rows * Form::Bytes.row_bytes(cols) } else { 0 });
    if formats.bytes {
        fill(team, x, bytes, BYTES_BLOCK, bytes_kernel(isa));
    }
    if formats.words {
        fill(team, x, words, WORDS_BLOCK, words_kernel(isa));
    }
    let (bytes, words) = (&*bytes, &*words);
    Ok(Activations {
        rows,
        cols,
        floats: x,
        bytes: formats.bytes.then_some(bytes),
        words: formats.words.then_some(words),
    })
}

/// Quantises whole blocks: as many of `x` as of `out`.
type Quantiser = fn(x: &[f32], out: &mut [u8]);

fn bytes_kernel(isa: Isa) -> Quantiser {
    match isa.kind() {
        Kind::Scalar => super::scalar::quantise_bytes,
        #[cfg(target_arch = "x86_64")]
        Kind::Avx2 => |x, out| {
            // SAFETY: an `Isa` of this kind exists only where the CPU has AVX2, FMA and F16C.
            unsafe { super::avx2::quantise_bytes(x, out) }
        },
    }
}

fn words_kernel(isa: Isa) -> Quantiser {
    match isa.kind() {
        Kind::Scalar => super::scalar::quantise_words,
        #[cfg(target_arch = "x86_64")]
        Kind::Avx2 => |x, out| {
            // SAFETY: an `Isa` of this kind exists only where the CPU has AVX2, FMA and F16C.
            unsafe { super::avx2::quantise_words(x, out) }
        },
    }
}

fn fill(team: &Team, x: &[f32], out: &mut [u8], block_bytes: usize, kernel: Quantiser) {
    if x.len() <= ALONE {
        return kernel(x, out);
    }
    let blocks = x.len() / BLOCK;
    let parts = (4 * team.workers()).min(blocks);
    let each = blocks.div_ceil(parts);
    let out = OutBytes(out.as_mut_ptr());
    team.run(parts, |part| {
        let first = (part * each).min(blocks);
        let last = (first + each).min(blocks);
        // SAFETY: parts cut `0..blocks` into disjoint ranges, and `out` holds `blocks * block_bytes` bytes, which
        // outlive `run`.
        let out = unsafe { std::slice::from_raw_parts_mut(out.at(first * block_bytes), (last - first) * block_bytes) };
        kernel(&x[first * BLOCK..last * BLOCK], out);
    });
}

struct OutBytes(*mut u8);

// SAFETY: it is only used by `fill`, whose parts write disjoint ranges.
unsafe impl Sync for OutBytes {}

impl OutBytes {
    fn at(&self, offset: usize) -> *mut u8 {
        self.0.wrapping_add(offset)
    }
}
