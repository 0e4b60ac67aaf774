//! Products with weights.

use super::Bound;
use crate::card::command::{Linear, LinearPart};
use crate::cpu;
use crate::cpu::linear::{Pick, Product, Weight, linear};

pub(super) fn run(of: &Linear, at: &Bound<'_>) -> Result<(), String> {
    let Linear { x, rows, parts, epilogue, scratch, .. } = of;
    let product = |part: &LinearPart| {
        let weight = part.weight;
        let bytes = at.read(&weight.at)?;
        let weight = Weight { ty: weight.ty, bytes, outs: weight.rows, cols: weight.cols };
        Ok(Product { weight, rows: Pick::All, y: at.write(&part.out)?, epilogue: *epilogue })
    };
    let mut products = parts.iter().map(product).collect::<Result<Vec<_>, String>>()?;
    let (x, scratch) = (at.read(x)?, at.write(scratch)?);
    linear(at.shared.isa, at.team(), x, *rows, &mut products, scratch).map_err(|e| e.to_string())?;
    for part in parts {
        if let Some(bias) = &part.bias {
            cpu::add_bias(at.team(), at.write(&part.out)?, at.read(bias)?);
        }
    }
    Ok(())
}
