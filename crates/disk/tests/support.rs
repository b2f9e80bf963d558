//! What the tests of images share: a place for them, QEMU's programs, images made, opened and
//! compared, and numbers that look random.
//!
//! Without the programs of a peer the tests that need them pass; with `REQUIRE_PEERS=1` they fail.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use device::{Edge, ErrorKind, Extent, Params, Result};
use disk::{Created, Creation, Holds, Image, Named, OpenOptions, Stack};
use runtime::{Context, SPREAD_STEP, spread_bits, to_usize};

/// How long to wait for a file that another thread or child is about to let go.
const GUARD: Duration = Duration::from_secs(60);

/// A directory that is removed in the end.
#[derive(Debug)]
pub(crate) struct Place(pub(crate) PathBuf);

impl Place {
    /// In memory, where QEMU's many syncs cost nothing.
    pub(crate) fn new() -> Self {
        Self::within("/dev/shm".into())
    }

    /// For what is large.
    pub(crate) fn on_disk() -> Self {
        Self::within(std::env::temp_dir())
    }

    fn within(parent: PathBuf) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("diskferry-disk-{}-{n}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// The path of a file in it.
    pub(crate) fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    pub(crate) fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.0.join(name)).unwrap()
    }

    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> String {
        std::fs::write(self.path(name), bytes).unwrap();
        self.path(name)
    }

    /// Runs a program here, once no other has its files locked.
    pub(crate) fn output(&self, program: &str, words: &[&str]) -> Output {
        let deadline = Instant::now() + GUARD;
        loop {
            let command = Command::new(program).args(words).current_dir(&self.0).output();
            let output = command.unwrap();
            let is_locked =
                String::from_utf8_lossy(&output.stderr).contains("Is another process using");
            if !is_locked || Instant::now() > deadline {
                return output;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The same; what it printed. It must succeed.
    pub(crate) fn run(&self, program: &str, words: &[&str]) -> String {
        let output = self.output(program, words);
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{program} {words:?}: {printed}{error}");
        printed
    }

    /// The same for qemu-img, with words that have blanks between them.
    pub(crate) fn qemu_img(&self, words: &str) -> String {
        self.run("qemu-img", &words.split_whitespace().collect::<Vec<_>>())
    }

    /// Runs commands of qemu-io on an image.
    pub(crate) fn qemu_io<S: AsRef<str>>(&self, format: &str, name: &str, commands: &[S]) {
        let mut words = vec!["-f", format];
        commands.iter().for_each(|command| words.extend(["-c", command.as_ref()]));
        words.push(name);
        self.run("qemu-io", &words);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Whether qemu-img is installed.
pub(crate) fn has_qemu() -> bool {
    peer("qemu-img", &["--version"]).is_some()
}

/// Runs a peer; `None` if it is not installed and need not be.
pub(crate) fn peer(command: &str, arguments: &[&str]) -> Option<Output> {
    match Command::new(command).args(arguments).output() {
        Ok(output) => Some(output),
        Err(e) if std::env::var("REQUIRE_PEERS").is_ok_and(|value| value == "1") => {
            panic!("{command}: {e}")
        }
        Err(_) => {
            println!("SKIPPED: needs {command}");
            None
        }
    }
}

/// Runs a peer, which must succeed; false if it is not installed.
pub(crate) fn must(command: &str, arguments: &[&str]) -> bool {
    let Some(output) = peer(command, arguments) else { return false };
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{command} {arguments:?}: {said}");
    true
}

/// An image of a format; `""` for whatever it looks like.
pub(crate) fn image(format: &str) -> Image {
    if format.is_empty() { Image::guessed() } else { Image::of(format).unwrap() }
}

/// Tries again while a file is locked. A file that was just closed is locked for a moment where
/// another test is just starting a child, which has all descriptors until it runs its program.
pub(crate) fn when_unlocked<T>(open: impl Fn() -> Result<T>) -> Result<T> {
    let deadline = Instant::now() + GUARD;
    loop {
        let opened = open();
        let is_locked = opened.as_ref().is_err_and(|e| e.kind() == ErrorKind::Locked);
        if !is_locked || Instant::now() > deadline {
            return opened;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The disk in an image.
pub(crate) fn open_image(path: impl AsRef<Path>, image: Image) -> Result<Edge> {
    let stack = Stack::default().over_image(image);
    let named = Named::parse(path.as_ref().to_str().unwrap()).unwrap();
    let open = || disk::open(&named, &stack, &OpenOptions::read_only(), &Context::default());
    when_unlocked(open).map(|opened| opened.edge)
}

pub(crate) fn open(path: impl AsRef<Path>, format: &str) -> Result<Edge> {
    open_image(path, image(format))
}

/// What a test wants of a new disk.
pub(crate) fn creation(size: u64) -> Creation {
    Creation::of(size, OpenOptions::read_write())
}

/// A new image.
pub(crate) fn create_image(
    path: &str,
    image: Image,
    options: &[&str],
    size: u64,
) -> Result<Created> {
    let options = Params::parse(options.iter().copied()).unwrap();
    let image = Image { options, ..image };
    image.check()?;
    let (stack, named) = (Stack::default().over_image(image), Named::parse(path).unwrap());
    when_unlocked(|| disk::create(&named, &stack, &creation(size), &Context::default()))
}

pub(crate) fn create(path: &str, format: &str, options: &[&str], size: u64) -> Result<Created> {
    create_image(path, image(format), options, size)
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
    let mut bytes = vec![0xaa; to_usize(edge.info().size)];
    for (i, piece) in bytes.chunks_mut(3 << 20).enumerate() {
        edge.read(piece, i as u64 * (3 << 20)).unwrap();
    }
    bytes
}

/// The disk holds `expected`: read in long pieces, in others, and at random.
pub(crate) fn check_bytes(edge: &Edge, expected: &[u8], name: &str) {
    assert_eq!(edge.info().size, expected.len() as u64, "{name}");
    let pieces = [1 << 20, 300_001].into_iter().flat_map(|step| {
        (0..expected.len()).step_by(step).map(move |at| (at, step.min(expected.len() - at)))
    });
    let mut dice = Dice::new(7);
    let random = std::iter::repeat_with(|| {
        let at = dice.below(expected.len());
        (at, dice.below(9000).min(expected.len() - at))
    });
    for (at, len) in pieces.chain(random.take(100)) {
        let mut bytes = vec![0xee; len];
        edge.read(&mut bytes, at as u64).unwrap();
        let differs = || bytes.iter().zip(&expected[at..]).position(|(a, b)| a != b);
        assert!(bytes == expected[at..][..len], "{name}: {at}+{len}: differs at {:?}", differs());
    }
}

/// The whole map, without a gap, asked for `max` extents at a time.
pub(crate) fn whole_map(edge: &Edge, max: usize) -> Vec<Extent> {
    let (mut found, mut at) = (Vec::<Extent>::new(), 0);
    while at < edge.info().size {
        edge.resolve(at, edge.info().size - at, max, &mut found).unwrap();
        at = found.last().unwrap().end();
    }
    assert!(found.first().is_none_or(|first| first.start == 0));
    assert!(found.windows(2).all(|two| two[0].end() == two[1].start), "{found:?}");
    found
}

/// The whole map, asked for in pieces, and checked against the bytes.
pub(crate) fn map(edge: &Edge, bytes: &[u8]) -> Vec<Extent> {
    let found = whole_map(edge, 3);
    check_map(&found, bytes);
    found
}

/// Holes are zero, and places have the bytes.
pub(crate) fn check_map(found: &[Extent], bytes: &[u8]) {
    for extent in found {
        let bytes = &bytes[to_usize(extent.start)..to_usize(extent.end())];
        assert!(!extent.kind.reads_zero() || device::is_zero(bytes), "data in a hole: {extent:?}");
        if let Some(place) = &extent.place {
            let mut there = vec![0; bytes.len()];
            rustix::io::pread(place.fd(), &mut there, place.offset()).unwrap();
            assert!(there == bytes, "other bytes at {extent:?}");
        }
    }
}

/// Bytes with holes of all lengths, data, and an end that is no whole block.
pub(crate) fn pattern(size: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; size];
    let mut dice = Dice::new(seed);
    for _ in 0..12 {
        let (at, len) = (dice.below(size), dice.below(size / 8) + 1);
        let (end, byte) = ((at + len).min(size), u8::try_from(dice.below(255)).unwrap() + 1);
        bytes[at..end].fill(byte);
        for i in (at..end).step_by(4099) {
            bytes[i] = u8::try_from(i % 251).unwrap();
        }
    }
    bytes[size - 1] = 7;
    bytes
}

/// Puts `number` at `at`.
pub(crate) fn put(bytes: &mut [u8], at: usize, number: &[u8]) {
    bytes[at..at + number.len()].copy_from_slice(number);
}

/// Numbers that look random and are the same each time.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(spread_bits(seed.wrapping_add(SPREAD_STEP)))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(SPREAD_STEP);
        spread_bits(self.0)
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        to_usize(self.next() % n.max(1) as u64)
    }

    /// The same for numbers of bytes on a disk.
    pub(crate) fn below_u64(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }

    /// Bytes that cannot be compressed.
    pub(crate) fn noise(&mut self, len: usize) -> Vec<u8> {
        let words = std::iter::repeat_with(|| self.next().to_le_bytes());
        words.take(len.div_ceil(8)).flatten().take(len).collect()
    }

    /// Noise, or something that can be compressed.
    pub(crate) fn bytes(&mut self, len: usize) -> Vec<u8> {
        if self.below(3) == 0 {
            return self.noise(len);
        }
        let word = self.next() | 1;
        let text = (0u64..).map(|i| word.wrapping_mul(i / 5 % 97).to_le_bytes());
        text.flatten().take(len).collect()
    }
}
