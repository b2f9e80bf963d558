//! How many connections there are to the other server: as many as help our clients.

use blackbox::launch::{Serve, Server};
use blackbox::meddler::{Fault, Meddler, Mishap};
use blackbox::run::{Job, ours, run};
use blackbox::temp::{TempDir, pattern};
use blackbox::{MIB, wait_for};

use super::in_front_of;

/// Short requests, so that some are answered in every fifth of a second, however slow this machine.
const SHORT: &str = "--request-size=16K";

/// A way to a server on which each connection carries a few MB in a second, and no more.
fn narrow(server: &Server) -> Meddler {
    Meddler::start(server.socket(), |_| {
        let to = |to_server| Mishap { to_server, after: 2000, fault: Fault::Cap(4000) };
        vec![to(true), to(false)]
    })
}

#[test]
fn a_proxy_has_more_connections_while_many_clients_want_much_and_one_otherwise() {
    let server = Serve::device(["pattern", "4M"]).start();
    for words in [&[][..], &["reconnect-delay=30"]] {
        let way = narrow(&server);
        let proxy = in_front_of(&way.uri(""), words);
        assert_eq!(way.count(), 1);
        // How many help, and when that is known, is a matter of what else the machine does.
        wait_for("another connection", || {
            let copies = [(); 6].map(|()| {
                let uri = proxy.uri("");
                Job::start(&mut ours([
                    "copy",
                    SHORT,
                    "--connections=1",
                    "--no-extents",
                    &uri,
                    "null:",
                ]))
            });
            copies.into_iter().for_each(|copy| drop(copy.wait().succeeded().to_owned()));
            way.count() > 1
        });
        wait_for("the others, for no client, are given up", || way.now() == 1);
        // It still works.
        run(&mut ours(["copy", &proxy.uri(""), "null:"])).succeeded();
    }
}

#[test]
fn an_image_behind_another_server_is_read_over_as_many_as_help() {
    let temp = TempDir::new();
    let raw = temp.file("raw", &pattern(0, usize::try_from(8 * MIB).unwrap()));
    let image = temp.join("image.qcow2");
    run(ours(["convert", "-O", "qcow2"]).arg(&raw).arg(&image)).succeeded();
    let server = Serve::device([&format!("file:{}", image.display())]).start();
    let way = narrow(&server);
    let target = temp.join("copy");
    wait_for("another connection", || {
        let before = way.count();
        run(ours(["copy", SHORT, "-f", "qcow2", &way.uri("")]).arg(&target)).succeeded();
        assert!(std::fs::read(&raw).unwrap() == std::fs::read(&target).unwrap());
        way.count() > before + 1
    });
}
