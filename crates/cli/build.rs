//! The program exports what plugins call.

fn main() {
    println!("cargo:rustc-link-arg-bins=-Wl,--export-dynamic-symbol=nbdkit_*");
    println!("cargo:rerun-if-changed=build.rs");
}
