//! Everything that is done with an image that a stranger gave, in as much time as a test has.

use std::sync::Arc;

use device::{Blocking, Edge, Error, Info, Params, Result, Simple};
use formats::{Closed, Opening};
use runtime::{Context, WorkPool};

/// Reads, and questions about the map, of one image.
const STEPS: u64 = 24;
/// Bytes of a read.
const READ: u64 = 64 << 10;

struct Bytes(Info, Vec<u8>);

impl Blocking for Bytes {
    fn info(&self) -> &Info {
        &self.0
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let at = usize::try_from(offset).unwrap();
        buf.copy_from_slice(&self.1[at..at + buf.len()]);
        Ok(())
    }

    fn write_at(&self, _: &[u8], _: u64, _: bool) -> Result<()> {
        Err(Error::unsupported("write"))
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }
}

/// Describes, checks, opens and reads it as an image of `format`. Nothing of that may panic, or take long.
pub(crate) fn exercise(format: &str, bytes: &[u8]) {
    let format = formats::format(format).unwrap();
    let context = Context::new(WorkPool::new(1));
    let info = Info::new("bytes", bytes.len() as u64);
    let container = Simple::edge(Arc::new(Bytes(info, bytes.to_vec())), &context.pool);
    let described = (format.describe)(&container, &context);
    said(described.map(drop));
    if let Some(check) = format.check {
        let found = check(&container, &context);
        if let Ok(found) = &found {
            assert!(found.corruptions.len() <= 100);
            assert!(found.corruptions.iter().all(|line| !line.contains('\n')));
        }
        said(found.map(drop));
    }
    let params = Params::default();
    let opening = Opening { params: &params, write: false, files: &Closed, context: &context };
    match (format.open)(container, &opening) {
        Ok(disk) => read(&Edge::new(disk, context.pool.clone())),
        Err(e) => said(Err(e)),
    }
}

fn read(disk: &Edge) {
    let size = disk.info().size;
    let mut buffer = vec![0; usize::try_from(READ.min(size)).unwrap()];
    for i in 0..STEPS {
        let at = (size / STEPS).saturating_mul(i);
        let len = READ.min(size - at);
        let buffer = &mut buffer[..usize::try_from(len).unwrap()];
        said(disk.read_now(buffer, at).map(drop));
        said(disk.read(buffer, at));
        said(disk.resolve(at, size - at, 50, &mut Vec::new()));
        for context in disk.info().contexts.iter().take(3) {
            said(disk.status(context, at, size - at, 50, &mut Vec::new()));
        }
    }
}

/// An error is one line.
fn said(result: Result<()>) {
    if let Err(e) = result {
        let text = e.to_string();
        assert!(!text.contains('\n') && text.len() < 100_000, "{text}");
        assert!(!text.contains("this is a defect") && !text.contains("makes no sense"), "{text}");
    }
}
