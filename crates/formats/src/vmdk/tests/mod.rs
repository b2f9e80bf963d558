//! Images laid out at random, as any writer might, compared with their disk; broken images; and
//! streams filled in any order.

#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test that fails here has failed"
)]

mod hostile;
mod layouts;
mod streams;
mod writing;

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use device::{Abilities, Blocking, Edge, Error, Info, Order, Params, Result, Simple};
use runtime::{Context, Mutex};

use crate::{Files, Opening, Reference};

/// Numbers that are the same in every run.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }

    pub(super) fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut byte = self.below(255) as u8;
        (0..len)
            .map(|i| {
                byte = if i % 7 == 0 { self.below(256) as u8 } else { byte };
                byte
            })
            .collect()
    }
}

/// A container that grows, or of a fixed size. No `trial::TestDevice`, which does not grow.
#[derive(Default)]
pub(super) struct Bytes {
    bytes: Mutex<Vec<u8>>,
    info: Option<Info>,
    /// It takes each byte once, in ascending order.
    pipe: bool,
}

impl Bytes {
    pub(super) fn fixed(bytes: Vec<u8>) -> Edge {
        let info = Info::new("bytes", bytes.len() as u64);
        edge(Arc::new(Self { bytes: Mutex::new(bytes), info: Some(info), pipe: false }))
    }

    pub(super) fn growing(pipe: bool) -> Arc<Self> {
        let abilities = Abilities { write: true, flush: true, ..Abilities::READ };
        let order = if pipe { Order::Upwards } else { Order::Any };
        let info = Info { abilities, order, ..Info::new("growing", i64::MAX.cast_unsigned()) };
        Arc::new(Self { info: Some(info), pipe, ..Self::default() })
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        self.bytes.lock().clone()
    }
}

/// One pool for all tests.
pub(super) fn context() -> &'static Context {
    static CONTEXT: OnceLock<Context> = OnceLock::new();
    CONTEXT.get_or_init(Context::default)
}

pub(super) fn edge(bytes: Arc<Bytes>) -> Edge {
    Simple::shared_edge(bytes, &context().pool)
}

impl Blocking for Bytes {
    fn info(&self) -> &Info {
        self.info.as_ref().unwrap()
    }

    fn waits(&self) -> bool {
        self.pipe
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let bytes = self.bytes.lock();
        let at = usize::try_from(offset).unwrap();
        buf.copy_from_slice(&bytes[at..at + buf.len()]);
        Ok(())
    }

    fn write_at(&self, data: &[u8], offset: u64, _: bool) -> Result<()> {
        let mut bytes = self.bytes.lock();
        let at = usize::try_from(offset).unwrap();
        assert!(!self.pipe || at == bytes.len(), "{at} is not where the pipe is");
        if bytes.len() < at + data.len() {
            bytes.resize(at + data.len(), 0);
        }
        bytes[at..at + data.len()].copy_from_slice(data);
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn resize(&self, size: u64) -> Result<()> {
        assert!(!self.pipe || size == self.bytes.lock().len() as u64);
        self.bytes.lock().resize(usize::try_from(size).unwrap(), 0);
        Ok(())
    }
}

/// Files by name.
#[derive(Debug, Default)]
pub(super) struct Named(pub(super) HashMap<String, Edge>);

impl Files for Named {
    fn open(&self, reference: &Reference<'_>) -> Result<Edge> {
        let file = self.0.get(reference.name);
        file.cloned().ok_or_else(|| Error::unfit("there is no such file"))
    }

    fn create(&self, _: &str) -> Result<Edge> {
        Err(Error::unsupported("make files"))
    }

    fn name(&self) -> Option<String> {
        Some("disk.vmdk".to_owned())
    }
}

pub(super) fn open(container: Edge, files: &Named) -> Result<Edge> {
    let params = Params::default();
    let opening = Opening { params: &params, files, context: context() };
    let disk = (super::FORMAT.open)(container, &opening)?;
    Ok(Edge::new(disk, context().pool.clone()))
}

/// Checks that the disk holds `wanted`, however it is read, and that its map is true.
pub(super) fn check(disk: &Edge, wanted: &[u8], random: &mut Random) {
    assert_eq!(disk.info().size, wanted.len() as u64);
    let read = |at: usize, len: usize| {
        let mut bytes = vec![0xaa; len];
        disk.read(&mut bytes, at as u64).unwrap();
        assert!(bytes == wanted[at..at + len], "{len} bytes at {at}");
    };
    read(0, wanted.len());
    for _ in 0..20 {
        let at = random.below(wanted.len() as u64) as usize;
        read(at, 1 + random.below((wanted.len() - at) as u64) as usize);
    }
    let (mut all, mut at) = (Vec::new(), 0);
    while at < disk.info().size {
        disk.resolve(at, disk.info().size - at, 3, &mut all).unwrap();
        at = all.last().unwrap().end();
    }
    for extent in all.iter().filter(|extent| extent.kind.reads_zero()) {
        let range = extent.start as usize..extent.end() as usize;
        assert!(wanted[range].iter().all(|b| *b == 0), "{extent:?}");
    }
}
