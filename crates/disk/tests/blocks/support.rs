//! Images made, opened and compared.

use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

use device::{Edge, ErrorKind, Extent, Params, Result};
use disk::{Created, Creation, Holds, Image, Named, OpenOptions, Stack};
use runtime::Context;

/// A directory in memory, which is removed in the end.
pub(crate) struct Place(PathBuf);

impl Place {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("diskferry-blocks-{}-{n}", std::process::id());
        let path = PathBuf::from("/dev/shm").join(name);
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// The path of a file in it.
    pub(crate) fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> String {
        std::fs::write(self.path(name), bytes).unwrap();
        self.path(name)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// An image of a format; `""` for whatever it looks like.
pub(crate) fn image(format: &str) -> Image {
    if format.is_empty() { Image::guessed() } else { Image::of(format).unwrap() }
}

/// Tries again while a file is locked. A file that was just closed is locked for a moment: by a
/// child that another test is just starting, or a thread of the pool that has not let go yet.
fn when_unlocked<T>(open: impl Fn() -> Result<T>) -> Result<T> {
    let mut opened = open();
    for _ in 0..200 {
        if !opened.as_ref().is_err_and(|e| e.kind() == ErrorKind::Locked) {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
        opened = open();
    }
    opened
}

/// The disk in an image.
pub(crate) fn open_image(path: &str, image: Image) -> Result<Edge> {
    let stack = Stack::default().over_image(image);
    let named = Named::parse(path).unwrap();
    let open = || disk::open(&named, &stack, &OpenOptions::read_only(), &Context::default());
    when_unlocked(open).map(|opened| opened.edge)
}

pub(crate) fn open(path: &str, format: &str) -> Result<Edge> {
    open_image(path, image(format))
}

/// A new image.
pub(crate) fn create(path: &str, format: &str, options: &[&str], size: u64) -> Result<Created> {
    let options = Params::parse(options.iter().copied()).unwrap();
    let stack = Stack::default().over_image(Image { options, ..image(format) });
    let creation = Creation {
        size,
        grows: false,
        upwards: false,
        whole: true,
        appears: false,
        write_back: false,
        options: OpenOptions::read_write(),
    };
    let named = Named::parse(path).unwrap();
    when_unlocked(|| disk::create(&named, &stack, &creation, &Context::default()))
}

/// A new image that holds `bytes` wherever they are not zeroes.
pub(crate) fn make(path: &str, format: &str, options: &[&str], bytes: &[u8]) {
    let created = create(path, format, options, bytes.len() as u64).unwrap();
    assert_eq!(created.holds, Holds::Zeroes);
    for (i, piece) in bytes.chunks(64 << 10).enumerate() {
        if piece.iter().any(|b| *b != 0) {
            created.edge.write(piece, (i as u64) * (64 << 10), false).unwrap();
        }
    }
    created.edge.device().finish().unwrap();
    created.made.unwrap().keep();
}

pub(crate) fn all(edge: &Edge) -> Vec<u8> {
    let mut bytes = vec![0xaa; usize::try_from(edge.info().size).unwrap()];
    for (i, piece) in bytes.chunks_mut(3 << 20).enumerate() {
        edge.read(piece, i as u64 * (3 << 20)).unwrap();
    }
    bytes
}

/// The whole map, asked for in pieces, and checked against the bytes.
pub(crate) fn map(edge: &Edge, bytes: &[u8]) -> Vec<Extent> {
    let (mut found, mut at) = (Vec::<Extent>::new(), 0);
    while at < edge.info().size {
        edge.resolve(at, edge.info().size - at, 3, &mut found).unwrap();
        at = found.last().unwrap().end();
    }
    for extent in &found {
        let range = usize::try_from(extent.start).unwrap()..usize::try_from(extent.end()).unwrap();
        if extent.kind.reads_zero() {
            assert!(bytes[range.clone()].iter().all(|b| *b == 0), "data in a hole: {extent:?}");
        }
        if let Some(place) = &extent.place {
            let mut there = vec![0; range.len()];
            rustix::io::pread(place.fd(), &mut there, place.offset()).unwrap();
            assert!(there == bytes[range], "other bytes at {extent:?}");
        }
    }
    found
}

/// Runs a peer; `None` if it is not installed and need not be.
pub(crate) fn peer(command: &str, arguments: &[&str]) -> Option<Output> {
    match Command::new(command).args(arguments).output() {
        Ok(output) => Some(output),
        Err(e) if std::env::var_os("REQUIRE_PEERS").is_some() => panic!("{command}: {e}"),
        Err(_) => None,
    }
}

/// Runs a peer, which must succeed; false if it is not installed.
pub(crate) fn must(command: &str, arguments: &[&str]) -> bool {
    let Some(output) = peer(command, arguments) else { return false };
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{command} {arguments:?}: {said}");
    true
}

/// Bytes with holes of all lengths, data, and an end that is no whole block.
pub(crate) fn pattern(size: usize, seed: u8) -> Vec<u8> {
    let mut bytes = vec![0; size];
    let mut state = u64::from(seed) * 2_654_435_761 + 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state >> 11).unwrap()
    };
    for _ in 0..12 {
        let (at, len) = (next() % size, next() % (size / 8) + 1);
        let (end, byte) = ((at + len).min(size), u8::try_from(next() % 255).unwrap() + 1);
        bytes[at..end].fill(byte);
        let marks = at..end;
        for i in marks.step_by(4099) {
            bytes[i] = u8::try_from(i % 251).unwrap();
        }
    }
    bytes[size - 1] = 7;
    bytes
}

/// The number at `at`.
pub(crate) fn put(bytes: &mut [u8], at: usize, number: &[u8]) {
    bytes[at..at + number.len()].copy_from_slice(number);
}

/// A small generator that is the same each time.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed * 2 + 1)
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 8).unwrap() % n
    }
}
