//! See `cases/topology.rs`.
#![no_main]

#[path = "../cases/topology.rs"]
mod case;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    case::check(bytes);
});
