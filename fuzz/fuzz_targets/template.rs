//! See `cases/template.rs`.
#![no_main]

#[path = "../cases/template.rs"]
mod case;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    case::check(bytes);
});
