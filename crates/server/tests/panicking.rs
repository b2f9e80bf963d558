//! A device that panics: that request fails, all other clients are served, and it is counted.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod client;

use runtime::WorkPool;

use client::{ask, connect, reply, serve};
use device::{Blocking, Info, Result, Simple};
use server::Options;

/// It panics when it is read beyond its first 4 KiB.
struct Panicking(Info, bool);

impl Blocking for Panicking {
    fn info(&self) -> &Info {
        &self.0
    }
    fn waits(&self) -> bool {
        self.1
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        assert!(offset < 4096, "on purpose");
        buf.fill(7);
        Ok(())
    }
    fn write_at(&self, _data: &[u8], _offset: u64, _fua: bool) -> Result<()> {
        Ok(())
    }
    fn flush(&self) -> Result<()> {
        Ok(())
    }
}

#[test]
fn a_panic_of_a_device_ends_its_request_or_connection_and_nothing_else() {
    for waits in [true, false] {
        let before = runtime::panics();
        let disk = Panicking(Info::new("panicking", 1 << 20), waits);
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
