//! A device that panics: that request fails, everybody else is served, and it is counted.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod client;

use runtime::WorkPool;
use std::sync::Arc;

use client::{ask, connect, reply, serve};
use device::{Abilities, BlockSizes, Device, Edge, Info, Result, Wait};
use server::Options;

/// It panics when it is read beyond its first 4 KiB.
struct Panicking(Info);

impl Panicking {
    fn new(wait: Wait) -> Self {
        Self(Info {
            name: "panicking".into(),
            description: String::new(),
            size: 1 << 20,
            blocks: BlockSizes::ANY,
            abilities: Abilities::READ,
            wait,
            advertised: None,
            contexts: Vec::new(),
        })
    }
}

impl Device for Panicking {
    fn info(&self) -> &Info {
        &self.0
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
    for wait in [Wait::Disk, Wait::Never, Wait::Outside] {
        let before = runtime::panics();
        let edge = Edge::new(Arc::new(Panicking::new(wait)), WorkPool::new(2));
        let (server, path) = serve(edge, Options { reactors: 1, ..Options::default() });
        let mut other = connect(&path);
        for _ in 0..5 {
            let mut socket = connect(&path);
            ask(&mut socket, 8192, 512);
            assert!([None, Some(5)].contains(&reply(&mut socket)), "{wait:?}");
        }
        ask(&mut other, 512, 512);
        assert_eq!(reply(&mut other), Some(0), "{wait:?}");
        assert!(runtime::panics() >= before + 5, "{wait:?}");
        drop(other);
        assert!(server.stop());
    }
}
