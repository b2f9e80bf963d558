//! qcow2 images in files, for tests of what is served from where it lies.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use device::{Edge, Extent, Params};
use disk::{Creation, External, Image, Named, OpenOptions, Stack};
use runtime::Context;

/// A directory that is gone in the end: on a disk, unless the build directory is in memory.
pub(crate) struct Directory(pub(crate) PathBuf);

impl Directory {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("images-{}-{n}", std::process::id());
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn stack(image: Image) -> Stack {
    let image = Image { external: External::Chain, ..image };
    Stack::default().over_image(image)
}

fn named(path: &Path) -> Named {
    Named::parse(path.to_str().unwrap()).unwrap()
}

/// Makes an image of `size` bytes, which `fill` fills.
pub(crate) fn create(
    path: &Path,
    (size, options, compress): (u64, &[&str], bool),
    fill: impl FnOnce(&Edge),
) {
    let options = Params::parse(options.iter().copied()).unwrap();
    let image = Image { options, compress, ..Image::of("qcow2").unwrap() };
    let creation = Creation::of(size, OpenOptions::read_write());
    let created =
        disk::create(&named(path), &stack(image), &creation, &Context::default()).unwrap();
    fill(&created.edge);
    created.edge.device().finish().unwrap();
    created.made.unwrap().keep();
}

/// Opens one, to be written or read. It is closed when the context ends.
pub(crate) fn open(path: &Path, write: bool) -> (Edge, Context) {
    let context = Context::default();
    let options = OpenOptions { write, lock: false, ..OpenOptions::default() };
    let stack = stack(Image::of("qcow2").unwrap());
    let opened = disk::open(&named(path), &stack, &options, &context).unwrap();
    (opened.edge, context)
}

/// The map of a range of a disk.
pub(crate) fn map(edge: &Edge, offset: u64, len: u64) -> Vec<Extent> {
    let (mut found, mut at) = (Vec::new(), offset);
    while at < offset + len {
        edge.resolve(at, offset + len - at, 100, &mut found).unwrap();
        at = found.last().map_or(at, Extent::end);
    }
    found
}
