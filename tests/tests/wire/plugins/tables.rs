//! Tables of other lengths than ours, and what is no plugin.

use blackbox::run::{ours, run};
use blackbox::temp::TempDir;

use super::{Host, WITNESS, beside, has_peers, scene, witness};

#[test]
fn a_plugin_for_an_older_or_a_newer_interface_is_served() {
    if !has_peers() {
        return;
    }
    for flags in [
        &["-DOLDER", "-DV=2"][..],
        &["-DOLDER", "-DV=1"],
        &["-DNEWER", "-DV=2"],
        &["-DNEWER", "-DV=1"],
    ] {
        let temp = TempDir::new();
        witness(&temp, flags);
        let command = "nbdcopy \"$uri\" - | cksum; nbdinfo --size \"$uri\"";
        let [theirs, ours] = Host::BOTH.map(|host| beside(host, &temp, "size=64K", command));
        assert_eq!(theirs.outcome.succeeded(), ours.outcome.succeeded(), "{flags:?}");
        assert!(ours.log.iter().any(|line| line == "unload"), "{flags:?}");
    }
}

#[test]
fn what_is_no_plugin_is_refused() {
    if !has_peers() {
        return;
    }
    let temp = TempDir::new();
    temp.file("nbdkit-text-plugin.so", b"hello");
    std::fs::write(temp.join("empty.c"), "int nothing;").unwrap();
    let compile = "cc -shared -fPIC -o nbdkit-empty-plugin.so empty.c";
    Host::Ours.line(temp.path(), compile).succeeded();
    for (name, why) in [("text", "load"), ("empty", "plugin_init"), ("none", "no such plugin")] {
        let path = format!("{}/nbdkit-{name}-plugin.so", temp.path().display());
        let outcome = run(&mut ours(["copy", &format!("plugin:{path}"), "null:"]));
        assert!(outcome.failed().contains(why), "{outcome:?}");
    }
    let outcome = run(&mut ours(["copy", "plugin:no-such-plugin", "null:"]));
    assert!(outcome.failed().contains("nbdkit-no-such-plugin-plugin.so"), "{outcome:?}");
    let outcome = run(&mut ours(["copy", "plugin:", "null:"]));
    assert!(outcome.refused().contains("plugin"), "{outcome:?}");
}

#[test]
fn one_library_takes_parameters_once() {
    let Some(temp) = scene(&[]) else { return };
    let library = temp.join(WITNESS);
    let disk = |size| format!("plugin:{}?size={size}", library.display());
    let twice = run(&mut ours(["compare", &disk("64K"), &disk("64K")]));
    twice.succeeded();
    let other = run(&mut ours(["compare", &disk("64K"), &disk("128K")]));
    assert!(other.failed().contains("isolate=true"), "{other:?}");
}
