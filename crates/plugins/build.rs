//! Compiles what Rust cannot say: functions that take as many arguments as their caller likes.

fn main() {
    cc::Build::new().file("src/host/printf.c").warnings(true).compile("diskferry_plugin_host");
    println!("cargo:rerun-if-changed=src/host/printf.c");
}
