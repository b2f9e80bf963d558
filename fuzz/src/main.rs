//! The fuzzer of all targets of `hostile`: `DISKFERRY_FUZZ` names the one to try. See `fuzz/run`.

#![no_main]

mod allocations;

use std::sync::OnceLock;

use hostile::Target;

static TARGET: OnceLock<&Target> = OnceLock::new();

#[global_allocator]
static ALLOCATOR: allocations::Limited = allocations::Limited;

/// For `fuzz/run`, instead of a target: prints them all, with the longest input of each.
const LIST: &str = "list";

fn chosen() -> &'static Target {
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
        let _ = TARGET.set(chosen());
    },
    |input: &[u8]| if let Some(target) = TARGET.get() { (target.run)(input) }
);
