//! See `cases/gguf.rs`.
#![no_main]

#[path = "../cases/gguf.rs"]
mod case;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    case::check(bytes);
});
