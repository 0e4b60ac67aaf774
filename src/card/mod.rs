//! Cards: memory, in-order streams, commands and events.
