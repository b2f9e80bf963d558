//! The program exports what plugins call. The option is that of Linux' linkers; with another one
//! nothing is exported, and a plugin that needs it does not load.

fn main() {
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("linux") {
        println!("cargo:rustc-link-arg-bins=-Wl,--export-dynamic-symbol=nbdkit_*");
    }
    println!("cargo:rerun-if-changed=build.rs");
}
