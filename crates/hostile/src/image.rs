//! Images: everything that is done with an untrusted one. The gate refuses the files that it names.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use device::model::Model;
use device::{Blocking, Edge, Info, Params, Result, Simple, ZeroFlags};
use formats::{Closed, Format, Head, ImageOpener, Opening};
use runtime::{Context, WorkPool};

use crate::{line, mended, said};

/// Reads, and questions about the map, of one image.
const STEPS: u64 = 24;
/// What an image that is written has room for, in bytes.
const ROOM: usize = 64 << 10;
/// Bytes of a read.
const READ: u64 = 64 << 10;
/// Requests and bytes that a container is asked for so that its image is described: what describes
/// looks at heads of tables only. Inputs are short, so this is the number of times that they are
/// read.
const DESCRIBED: (u64, u64) = (5_000, 40 << 20);

/// How often, and for how much, a container was asked.
#[derive(Debug, Default)]
pub(crate) struct Looks {
    reads: AtomicU64,
    bytes: AtomicU64,
}

impl Looks {
    pub(crate) fn reads(&self) -> u64 {
        self.reads.load(Relaxed)
    }

    fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }
}

/// No `trial::TestDevice`: it is read millions of times, and keeps no record.
struct Bytes {
    info: Info,
    bytes: Vec<u8>,
    looks: Arc<Looks>,
}

impl Blocking for Bytes {
    fn info(&self) -> &Info {
        &self.info
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.looks.reads.fetch_add(1, Relaxed);
        self.looks.bytes.fetch_add(buf.len() as u64, Relaxed);
        let at = usize::try_from(offset).unwrap();
        buf.copy_from_slice(&self.bytes[at..at + buf.len()]);
        Ok(())
    }

    fn write_at(&self, _: &[u8], _: u64, _: bool) -> Result<()> {
        panic!("what is read is never written")
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }
}

/// A disk of these bytes.
pub(crate) fn container(bytes: &[u8]) -> (Edge, Arc<Looks>, Context) {
    let context = Context::new(WorkPool::new(1));
    let looks = Arc::new(Looks::default());
    let info = Info::new("bytes", bytes.len() as u64);
    let disk = Bytes { info, bytes: bytes.to_vec(), looks: looks.clone() };
    (Simple::shared_edge(Arc::new(disk), &context.pool), looks, context)
}

/// Whatever the bytes look like; also the contents of a compressed stream.
pub(crate) fn recognise(bytes: &[u8]) {
    let (container, _, context) = container(bytes);
    let Some(format) = formats::recognise(&Head::of(&container).unwrap()) else { return };
    exercise(format, bytes);
    if format.packing.is_none() {
        return;
    }
    let Some(unpacked) = open(format, container, &context) else { return };
    let Some(head) = said(Head::beginning(&unpacked)) else { return };
    if let Some(inside) = formats::recognise(&head).filter(|inside| inside.packing.is_none())
        && let Some(disk) = open(inside, unpacked, &context)
    {
        read(&disk);
    }
}

/// As an image of `format`: as it is, and with right checksums.
pub(crate) fn run(format: &str, bytes: &[u8]) {
    let known = formats::format(format).unwrap();
    exercise(known, bytes);
    if let Some(mended) = mended::image(format, bytes) {
        exercise(known, &mended);
    }
}

/// Describes, checks, opens and reads it. None of these may panic or take long.
fn exercise(format: &Format, bytes: &[u8]) {
    let (container, looks, context) = container(bytes);
    let described = said((format.describe)(&container, &context));
    let (reads, most) = DESCRIBED;
    assert!(looks.reads() <= reads && looks.bytes() <= most, "{looks:?}");
    if let Some(described) = described {
        described.unknown_features.iter().for_each(|name| line(name));
    }
    if let Some(check) = format.check
        && let Some(found) = said(check(&container, &context))
    {
        assert!(found.corruptions.len() <= 100);
        found.corruptions.iter().for_each(|text| line(text));
    }
    if let Some(disk) = open(format, container, &context) {
        read(&disk);
    }
    if let Some(open) = format.write {
        write(open, bytes);
    }
}

/// Writes into it where it lies. It may be refused at any time, and never panics or takes long.
fn write(open: ImageOpener, bytes: &[u8]) {
    let context = Context::new(WorkPool::new(1));
    let model = Model::new(bytes.len().next_multiple_of(ROOM) + ROOM);
    model.write_at(bytes, 0, false).unwrap();
    let container = Simple::edge(model, &context.pool);
    let params = Params::default();
    let opening = Opening { params: &params, files: &Closed, context: &context };
    let Some(disk) = said(open(container, &opening)) else { return };
    let disk = Edge::new(disk, context.pool.clone());
    let size = disk.info().size;
    let flags = ZeroFlags { may_unmap: true, ..ZeroFlags::default() };
    for i in 0..STEPS {
        let at = (size / STEPS).saturating_mul(i);
        let len = 700.min(size - at);
        said(disk.write(&[7; 700][..usize::try_from(len).unwrap()], at, false));
        said(disk.zero(at, READ.min(size - at), flags));
        said(disk.write(&[9; 700][..usize::try_from(len).unwrap()], at, i % 3 == 0));
        said(disk.trim(at, size - at, false));
    }
    read(&disk);
    said(disk.flush());
    context.control.end();
}

fn open(format: &Format, container: Edge, context: &Context) -> Option<Edge> {
    let params = Params::default();
    let opening = Opening { params: &params, files: &Closed, context };
    let disk = said((format.open)(container, &opening))?;
    Some(Edge::new(disk, context.pool.clone()))
}

fn read(disk: &Edge) {
    let size = disk.info().size;
    assert!(i64::try_from(size).is_ok(), "{size}");
    let mut buffer = vec![0; usize::try_from(READ.min(size)).unwrap()];
    for i in 0..STEPS {
        let at = (size / STEPS).saturating_mul(i);
        let len = READ.min(size - at);
        let buffer = &mut buffer[..usize::try_from(len).unwrap()];
        said(disk.read_now(buffer, at));
        let whole = said(disk.read(buffer, at));
        let mut extents = Vec::new();
        if said(disk.resolve(at, size - at, 50, &mut extents)).is_some() && size > at {
            assert!(!extents.is_empty() && extents.len() <= 50);
            is_true(&extents, buffer, whole.is_some());
        }
        for context in disk.info().contexts.iter().take(3) {
            said(disk.status(context, at, size - at, 50, &mut Vec::new()));
        }
    }
}

/// Ranges that the map calls zero read as zeroes.
fn is_true(extents: &[device::Extent], read: &[u8], is_read: bool) {
    let mut at = 0;
    for extent in extents {
        assert_ne!(extent.len, 0);
        let end =
            usize::try_from(extent.len).unwrap_or(usize::MAX).saturating_add(at).min(read.len());
        if is_read && extent.kind.reads_zero() {
            assert!(device::is_zero(&read[at..end]), "what is a hole is data: {extent:?}");
        }
        at = end;
    }
}
