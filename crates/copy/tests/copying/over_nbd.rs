//! Both ends over NBD, with servers that hang up and forget: the same as in `breaking`, with the
//! real client's lanes and the real server.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use copy::{Cancel, Options, Progress};
use device::{Device, Edge, Error, ErrorKind, Fault, Params};
use devices::OpenOptions;
use runtime::WorkPool;
use trial::{Fate, TestDevice};

use crate::breaking::{BLOCK, Server, Temper, disk};
use crate::support::run_until;

/// A disk whose server hangs up where its connection would break, and is there again at once.
fn hangs_up(server: &Server) -> Arc<TestDevice> {
    let (info, server) = (server.info().clone(), server.clone());
    let device = TestDevice::blank(info).hooked(move |operation| {
        let disk: &dyn Device = &server;
        Fate::Answer(disk.run(operation).map_err(|_| {
            server.state().connect(server.temper());
            Error::new(ErrorKind::Dropped, Fault::Us, "hang up")
        }))
    });
    device.shared()
}

/// Serves it, and answers with the socket.
fn serve(disk: &Server) -> (server::Server, PathBuf) {
    let edge = hangs_up(disk).edge(&WorkPool::new(2));
    let exports = serving::Exports::new();
    let (name, description, read_only) = (String::new(), String::new(), false);
    assert!(exports.add(serving::Export {
        name,
        description,
        edge,
        read_only,
        allow: serving::Allowed::default()
    }));
    let listener = server::Listener::private().unwrap();
    let server::ListenAddress::Unix(path) = listener.place().clone() else {
        panic!("not a Unix socket")
    };
    let options = server::Options { reactors: 1, ..server::Options::default() };
    (server::Server::start(exports, vec![listener], &options).unwrap(), path)
}

fn open(socket: &Path) -> Edge {
    let mut params = Params::parse(std::iter::empty::<&str>()).unwrap();
    params.add("socket", socket.to_str().unwrap());
    params.add("reconnect-delay", "60");
    let named = devices::Named::new(devices::kind("nbd").unwrap(), params).unwrap();
    let device = named.open(&OpenOptions::read_write(), &runtime::Context::default()).unwrap();
    Edge::new(device, WorkPool::new(2))
}

#[test]
fn a_copy_between_servers_that_hang_up_and_forget_ends_equal() {
    for (round, lives) in [(1, 90), (2, 110), (3, 130), (4, 150)] {
        let temper = Temper { lives, forgets: true, ..Temper::default() };
        let source = Server::new(disk(round, 300), Temper { forgets: false, ..temper }, round);
        let target = Server::new(vec![0xee; 300 * BLOCK], temper, round);
        let (from, to) = (serve(&source), serve(&target));
        let options = Options {
            apart: true,
            request_size: 16 << 10,
            requests: Some(4),
            ..Options::default()
        };
        let (progress, cancel) = (Progress::default(), Cancel::default());
        let (a, b) = (open(&from.1), open(&to.1));
        let report = run_until(&a, &b, &options, &progress, &cancel)
            .unwrap_or_else(|e| panic!("{temper:?}: {e}"));
        assert!(report.left.is_empty());
        let (bytes, state) = (source.state().now.clone(), target.state());
        assert!(state.now == bytes && state.kept == bytes, "{temper:?}: it is not there");
        assert!(state.connection > 0, "it never hung up");
    }
}
