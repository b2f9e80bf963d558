//! How many connections there are to the other server: as many as help our clients.

use std::thread;
use std::time::{Duration, Instant};

use blackbox::launch::{Serve, Server};
use blackbox::meddler::{Fault, Meddler, Mishap};
use blackbox::run::{Job, ours, run};
use blackbox::temp::{TempDir, pattern};
use blackbox::{GUARD, MIB};

use super::in_front_of;

/// A way to a server on which each connection carries a few MB in a second, and no more.
fn narrow(server: &Server) -> Meddler {
    Meddler::start(server.socket(), |_| {
        let to = |to_server| Mishap { to_server, after: 2000, fault: Fault::Cap(4000) };
        vec![to(true), to(false)]
    })
}

#[test]
fn a_proxy_has_more_connections_while_many_clients_want_much_and_one_otherwise() {
    let server = Serve::device(["pattern", "16M"]).start();
    for words in [&[][..], &["reconnect-delay=30"]] {
        let way = narrow(&server);
        let proxy = in_front_of(&way.uri(""), words);
        assert_eq!(way.count(), 1);
        let copies: Vec<_> = (0..6)
            .map(|_| {
                let uri = proxy.uri("");
                Job::start(&mut ours(["copy", "--connections=1", "--no-extents", &uri, "null:"]))
            })
            .collect();
        for copy in copies {
            copy.wait().succeeded();
        }
        let most = way.count();
        // How many help is a matter of what else the machine does.
        assert!(most > 1, "{words:?}: there was never another one");
        let begun = Instant::now();
        while way.now() > 1 {
            assert!(begun.elapsed() < GUARD, "{words:?}: {} for no client", way.now());
            thread::sleep(Duration::from_millis(20));
        }
        // It still works.
        run(&mut ours(["copy", &proxy.uri(""), "null:"])).succeeded();
    }
}

#[test]
fn an_image_behind_another_server_is_read_over_as_many_as_help() {
    let temp = TempDir::new();
    let raw = temp.file("raw", &pattern(0, usize::try_from(32 * MIB).unwrap()));
    let image = temp.join("image.qcow2");
    run(ours(["convert", "-O", "qcow2"]).arg(&raw).arg(&image)).succeeded();
    let server = Serve::device([&format!("file:{}", image.display())]).start();
    let way = narrow(&server);
    let target = temp.join("copy");
    run(ours(["copy", "-f", "qcow2", &way.uri("")]).arg(&target)).succeeded();
    assert!(std::fs::read(&raw).unwrap() == std::fs::read(&target).unwrap());
    assert!(way.count() > 1);
}
