//! Rows of tables, and what is added to rows.

use super::Team;
use crate::quant::{QuantType, dequantize};

/// Writes the exact values of `tokens`' rows of a table (rows of `cols` elements in format `ty`) to `out`, f32
/// `[tokens, cols]`.
///
/// # Panics
/// When sizes do not fit together or a token has no row.
pub fn embed(team: &Team, ty: QuantType, table: &[u8], cols: usize, tokens: &[u32], out: &mut [f32]) {
    let row = ty.row_bytes(cols).unwrap_or(0);
    assert!(
        row > 0 && table.len().is_multiple_of(row) && out.len() == tokens.len() * cols,
        "embedding: {} bytes of {ty} rows with {cols} elements, {} tokens, {} results",
        table.len(),
        tokens.len(),
        out.len()
    );
    let each = team.share(tokens.len(), 4);
    team.for_chunks(out.len() * 8, out, each * cols, |index, out| {
        for (token, out) in tokens[index * each..].iter().zip(out.chunks_exact_mut(cols)) {
            let at = *token as usize * row;
            let written = table.get(at..at + row).map(|blocks| dequantize(ty, blocks, out));
            assert!(matches!(written, Some(Ok(()))), "embedding: token {token} of {}", table.len() / row);
        }
    });
}

/// `x[r] = x[r] + bias` for each row of `bias.len()` elements.
///
/// # Panics
/// When `x` is no whole number of rows.
pub fn add_bias(team: &Team, x: &mut [f32], bias: &[f32]) {
    let cols = bias.len();
    assert!(cols > 0 && x.len().is_multiple_of(cols), "bias: {} elements in rows of {cols}", x.len());
    let each = team.share(x.len() / cols, 4);
    team.for_chunks(x.len(), x, each * cols, |_, x| {
        for row in x.chunks_exact_mut(cols) {
            row.iter_mut().zip(bias).for_each(|(x, bias)| *x += bias);
        }
    });
}

/// `x = x + y`, elementwise.
///
/// # Panics
/// When the two differ in length.
pub fn add(team: &Team, x: &mut [f32], y: &[f32]) {
    assert_eq!(x.len(), y.len(), "add: the two differ in length");
    let each = team.share(x.len(), 4).next_multiple_of(64);
    team.for_chunks(x.len(), x, each, |index, x| {
        x.iter_mut().zip(&y[index * each..]).for_each(|(x, y)| *x += y);
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::sample;

    #[test]
    fn rows_are_looked_up() {
        let (rows, cols) = (50, 24);
        let values = sample::floats(1, rows * cols);
        let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        let tokens: Vec<u32> = (0..200).map(|i| i * 7 % 50).collect();
        for workers in [1, 3] {
            let mut out = vec![0.0; tokens.len() * cols];
            embed(&Team::new(workers).unwrap(), QuantType::F32, &bytes, cols, &tokens, &mut out);
            for (token, out) in tokens.iter().zip(out.chunks(cols)) {
                assert_eq!(out, &values[*token as usize * cols..][..cols]);
            }
        }
    }

    #[test]
    #[should_panic(expected = "token 50 of 50")]
    fn a_token_without_a_row_is_named() {
        embed(&Team::new(1).unwrap(), QuantType::F32, &[0; 50 * 4], 1, &[50], &mut [0.0]);
    }

    #[test]
    fn sums_are_elementwise() {
        let team = Team::new(2).unwrap();
        let (x, y) = (sample::floats(1, 30_000), sample::floats(2, 30_000));
        let mut sum = x.clone();
        add(&team, &mut sum, &y);
        assert!(sum.iter().zip(x.iter().zip(&y)).all(|(sum, (x, y))| *sum == x + y));
        let mut sum = x.clone();
        add_bias(&team, &mut sum, &y[..300]);
        assert!(sum.iter().zip(&x).enumerate().all(|(at, (sum, x))| *sum == x + y[at % 300]));
    }
}
