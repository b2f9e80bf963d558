//! `cargo +nightly fuzz run qcow -- -rss_limit_mb=512`, from this directory.

#![no_main]

#[path = "../../crates/formats/tests/hostile/exercise.rs"]
mod exercise;

libfuzzer_sys::fuzz_target!(|data: &[u8]| exercise::exercise("qcow", data));
