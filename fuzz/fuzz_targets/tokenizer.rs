//! See `cases/tokenizer.rs`.
#![no_main]

#[path = "../cases/tokenizer.rs"]
mod case;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    case::check(bytes);
});
