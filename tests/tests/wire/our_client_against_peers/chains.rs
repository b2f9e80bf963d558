//! Our server, a peer in the middle, our client: in every order, contents verified at the end.

use blackbox::MIB;
use blackbox::launch::{Serve, Server};
use blackbox::peers::peer;
use blackbox::temp::TempDir;

use super::{copy, copy_with, disk, fetch, map, size, there_and_back};

/// qemu-nbd in front of another server.
fn qemu_in_front(uri: &str) -> Option<Server> {
    let qemu_nbd = peer("qemu-nbd")?;
    Some(Server::qemu_nbd(&qemu_nbd, "raw", uri.as_ref()))
}

#[test]
fn ours_then_qemu_nbd_then_ours() {
    let inner = Serve::memory("6M").start();
    let Some(middle) = qemu_in_front(&inner.uri("")) else { return };
    let outer = Serve::proxy(&middle.uri("")).start();
    assert_eq!(size(&outer.uri("proxy")), 6 * MIB);
    there_and_back(&outer.uri("proxy"), &disk());
    assert!(fetch(&inner.uri("")) == disk(), "the inner server holds something else");
}

#[test]
fn ours_then_nbdkit_then_ours() {
    let Some(nbdkit) = peer("nbdkit") else { return };
    let inner = Serve::memory("6M").start();
    let uri = format!("uri={}", inner.uri(""));
    let middle = Server::nbdkit(&nbdkit, &["nbd", &uri, "shared=true"]);
    let outer = Serve::proxy(&middle.uri("")).start();
    there_and_back(&outer.uri("proxy"), &disk());
    assert!(fetch(&inner.uri("")) == disk(), "the inner server holds something else");
}

#[test]
fn ours_in_front_of_ours_passes_the_map_on() {
    let temp = TempDir::new();
    let mut content = disk();
    content.truncate(4 << 20);
    let source = temp.file("source", &content);
    let path = temp.join("sparse");
    copy(&source, &path);
    let inner = Serve::file(&path).start();
    let outer = Serve::proxy(&inner.uri("")).start();
    assert_eq!(map(&outer.uri("proxy")), map(&inner.uri("")));
    there_and_back(&outer.uri("proxy"), &content);
}

#[test]
fn sparse_random_through_two_servers_and_back_onto_itself() {
    // Source and oracle are one server: it accepts only what it holds already.
    let spec = ["sparse-random", "1G", "seed=42", "percent=10", "runlength=1048576"];
    let oracle = Serve::device(spec).start();
    let middle = Serve::memory("1G").start();
    copy_with(&["-C", "4"], oracle.uri(""), middle.uri("")).succeeded();
    copy_with(&["-C", "4"], middle.uri(""), oracle.uri("")).succeeded();
    // One byte that changed in transit is noticed.
    let mut session = middle.session(blackbox::session::Mode::Simple, "");
    let old = session.read(5 * MIB, 1).unwrap();
    session.write(5 * MIB, &[old[0] ^ 0x55]);
    session.disconnect();
    copy_with(&["-C", "4"], middle.uri(""), oracle.uri("")).failed();
}

#[test]
fn every_readable_device_is_served_as_it_is() {
    for (spec, words) in [
        ("pattern:1M", &["pattern", "1M"][..]),
        ("random:1M?seed=8", &["random", "1M", "seed=8"]),
        ("sparse-random:1M?seed=3", &["sparse-random", "1M", "seed=3"]),
        ("ones:1M", &["ones", "1M"]),
        ("null:1M", &["null", "1M"]),
        ("memory:1M", &["memory", "1M"]),
        ("full:1M", &["full", "1M"]),
        ("data:1 2 3 @0x1000 4?size=1M", &["data", "1 2 3 @0x1000 4", "size=1M"]),
    ] {
        let server = Serve::device(words.iter().copied()).start();
        let served = fetch(&server.uri(""));
        assert_eq!(served.len(), 1 << 20, "{spec}");
        assert!(served == fetch(spec), "{spec}");
    }
}
