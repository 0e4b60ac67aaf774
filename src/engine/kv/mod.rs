//! The KV cache.

pub(super) mod cells;
