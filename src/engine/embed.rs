//! Embeddings: a token's row of the table, as the first stage's hidden states.

use std::sync::{Mutex, PoisonError};

use super::EngineError;
use crate::cpu::Team;
use crate::model::Model;
use crate::quant::dequantize;
use crate::units::TokenId;

/// Writes the embeddings of the tokens, f32 `[tokens, width]`: of a long wave they are tens of megabytes, so the
/// workers share them.
pub(super) fn embed(model: &Model, team: &Team, tokens: &[TokenId], to: &mut [f32]) -> Result<(), EngineError> {
    let width = model.spec.width;
    let each = team.share(tokens.len(), 4);
    let failed = Mutex::new(None);
    team.for_chunks(to.len(), to, each * width, |part, out| {
        let own = tokens.iter().skip(part * each);
        if let Err(error) = own.zip(out.chunks_mut(width)).try_for_each(|(token, out)| embed_one(model, *token, out)) {
            failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        }
    });
    failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}

fn embed_one(model: &Model, token: TokenId, out: &mut [f32]) -> Result<(), EngineError> {
    let table = &model.spec.embedding;
    let (bytes, row) = (model.bytes(table), table.row_bytes());
    let start = token as usize * row;
    let blocks = bytes.get(start..start + row).ok_or(EngineError::Token { token, vocab: model.spec.vocab })?;
    dequantize(table.ty, blocks, out).map_err(|error| EngineError::Internal(format!("{}: {error}", table.name)))
}
