//! `cargo +nightly fuzz run vmdk -- -rss_limit_mb=512`, from this directory.

#![no_main]

#[path = "../../crates/formats/tests/hostile/exercise.rs"]
mod exercise;

libfuzzer_sys::fuzz_target!(|data: &[u8]| exercise::exercise("vmdk", data));
