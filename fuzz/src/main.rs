//! The fuzzer of all targets of `hostile`: `DISKFERRY_FUZZ` names the one to try. With
//! `DISKFERRY_FUZZ_COVERAGE`, directories with a colon between them, it only tells what the inputs
//! in them reach. See `fuzz/run`.

#![no_main]

mod allocations;
mod coverage;

use std::sync::OnceLock;

use hostile::FuzzTarget;

static TARGET: OnceLock<&FuzzTarget> = OnceLock::new();

#[global_allocator]
static ALLOCATOR: allocations::Limited = allocations::Limited;

/// For `fuzz/run`, instead of a target: prints them all, with the longest input of each.
const LIST: &str = "list";

fn chosen() -> &'static FuzzTarget {
    let name = std::env::var("DISKFERRY_FUZZ").unwrap_or_default();
    if name == LIST {
        for target in hostile::TARGETS {
            println!("{} {}", target.name, target.longest);
        }
        std::process::exit(0);
    }
    hostile::target(&name).unwrap_or_else(|| {
        eprintln!("DISKFERRY_FUZZ={name}: there is no such target; use fuzz/run");
        std::process::exit(2);
    })
}

libfuzzer_sys::fuzz_target!(
    init: {
        let target = chosen();
        if let Ok(directories) = std::env::var("DISKFERRY_FUZZ_COVERAGE") {
            coverage::print(target, &directories).expect("what is reached is printed");
            std::process::exit(0);
        }
        let _ = TARGET.set(target);
    },
    |input: &[u8]| if let Some(target) = TARGET.get() { (target.run)(input) }
);
