//! Text and tokens: tokenizer, chat template, streaming detokeniser.
