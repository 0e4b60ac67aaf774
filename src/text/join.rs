//! Joining neighbours into longer tokens: of all pairs that may be joined the best first, of equals the leftmost.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::TokenId;

/// A run of text that is or may become a token.
#[derive(Clone, Copy, Debug)]
pub(super) struct Symbol {
    /// Its first byte.
    pub start: usize,
    /// Behind its last byte; the right side of a join has `end == start` from then on.
    pub end: usize,
    /// The token, if it is one.
    pub id: Option<TokenId>,
}

/// A possible join: how good it is, its left and its right symbol, the bytes of both when it was proposed (if they have changed, it is
/// void), and the token of both.
type Join<K> = (K, Reverse<usize>, usize, usize, TokenId);

/// The symbols of a text, as a list of neighbours.
struct Line {
    symbols: Vec<Symbol>,
    previous: Vec<Option<usize>>,
    next: Vec<Option<usize>>,
}

/// Joins as long as `union` knows a better token, which it tells with its rank (the highest is joined first).
pub(super) fn join<K: Ord>(
    symbols: Vec<Symbol>,
    union: impl Fn(&Symbol, &Symbol) -> Option<(K, TokenId)>,
) -> impl Iterator<Item = Symbol> {
    let count = symbols.len();
    let mut line = Line {
        symbols,
        previous: (0..count).map(|at| at.checked_sub(1)).collect(),
        next: (0..count).map(|at| Some(at + 1).filter(|next| *next < count)).collect(),
    };
    let mut joins: BinaryHeap<Join<K>> =
        (1..count).filter_map(|at| line.propose(Some(at - 1), Some(at), &union)).collect();
    while let Some((_, Reverse(left), right, bytes, id)) = joins.pop() {
        if line.join(left, right, bytes, id).is_some() {
            let (before, after) = (line.neighbour(&line.previous, left), line.neighbour(&line.next, left));
            joins.extend(line.propose(before, Some(left), &union));
            joins.extend(line.propose(Some(left), after, &union));
        }
    }
    line.symbols.into_iter().filter(|symbol| symbol.start < symbol.end)
}

impl Line {
    fn neighbour(&self, links: &[Option<usize>], of: usize) -> Option<usize> {
        links.get(of).copied().flatten()
    }

    fn propose<K>(
        &self,
        left: Option<usize>,
        right: Option<usize>,
        union: impl Fn(&Symbol, &Symbol) -> Option<(K, TokenId)>,
    ) -> Option<Join<K>> {
        let (left, right) = (left?, right?);
        let (first, second) = (self.symbols.get(left)?, self.symbols.get(right)?);
        let (rank, id) = union(first, second)?;
        Some((rank, Reverse(left), right, second.end - first.start, id))
    }

    /// Makes one symbol of two; `None` when the join is void.
    fn join(&mut self, left: usize, right: usize, bytes: usize, id: TokenId) -> Option<()> {
        let (first, second) = (*self.symbols.get(left)?, *self.symbols.get(right)?);
        let gone = first.start == first.end || second.start == second.end;
        if gone || second.end - first.start != bytes || self.neighbour(&self.next, left) != Some(right) {
            return None;
        }
        let after = self.neighbour(&self.next, right);
        *self.symbols.get_mut(left)? = Symbol { end: second.end, id: Some(id), ..first };
        *self.symbols.get_mut(right)? = Symbol { end: second.start, ..second };
        *self.next.get_mut(left)? = after;
        if let Some(after) = after {
            *self.previous.get_mut(after)? = Some(left);
        }
        Some(())
    }
}
