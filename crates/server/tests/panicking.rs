//! A device that panics: that request fails, all other clients are served, and it is counted.

use crate::client;

use runtime::WorkPool;

use client::{ask, connect, reply, serve};
use device::{Info, Operation, Simple};
use server::Options;
use trial::{Fate, TestDevice};

/// It panics when it is read beyond its first 4 KiB.
fn panicking() -> TestDevice {
    TestDevice::blank(Info::new("panicking", 1 << 20)).hooked(|operation| {
        assert!(!matches!(operation, Operation::Read { offset: 4096.., .. }), "on purpose");
        Fate::Pass(operation)
    })
}

#[test]
fn a_panic_of_a_device_ends_its_request_or_connection_and_nothing_else() {
    for waits in [true, false] {
        let before = runtime::panics();
        let disk = if waits { panicking().waiting() } else { panicking() };
        let edge = Simple::edge(disk, &WorkPool::new(2));
        let (server, path) = serve(edge, Options { reactors: 1, ..Options::default() });
        let mut other = connect(&path);
        for _ in 0..5 {
            let mut socket = connect(&path);
            ask(&mut socket, 8192, 512);
            assert!([None, Some(5)].contains(&reply(&mut socket)), "{waits}");
        }
        ask(&mut other, 512, 512);
        assert_eq!(reply(&mut other), Some(0), "{waits}");
        assert!(runtime::panics() >= before + 5, "{waits}");
        drop(other);
        assert!(server.stop());
    }
}
