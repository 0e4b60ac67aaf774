//! Sizes that operations compare, with one wording for what does not fit.

/// Bytes of an f32 or u32.
pub(super) const WORD: usize = 4;

pub(super) fn product(factors: &[usize]) -> Result<usize, String> {
    let all = factors.iter().try_fold(1usize, |all, factor| all.checked_mul(*factor));
    all.ok_or_else(|| format!("the product of {factors:?} is too large"))
}

/// `found` bytes must be the product of the factors.
pub(super) fn exactly(what: &str, found: usize, factors: &[usize]) -> Result<(), String> {
    let wanted = product(factors)?;
    if found == wanted {
        return Ok(());
    }
    Err(format!("{what} has {found} bytes, but {wanted} ({factors:?}) are needed"))
}

pub(super) fn at_least(what: &str, found: usize, wanted: usize) -> Result<(), String> {
    if found >= wanted {
        return Ok(());
    }
    Err(format!("{what} has {found} bytes, but at least {wanted} are needed"))
}

pub(super) fn no_whole_blocks(ty: &str, cols: usize) -> String {
    format!("{cols} inputs are no whole number of {ty} blocks")
}
