//! The bytes of the disks: noise, text, one byte over and over, zeroes and holes; and whether two
//! files hold the same.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use blackbox::dice::Dice;
use blackbox::{MIB, index, length};
use rustix::fs::SeekFrom;

/// What lies at a place of a disk.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) offset: u64,
    pub(crate) bytes: Vec<u8>,
    /// The byte that all of it is, if it is one over and over.
    pub(crate) byte: Option<u8>,
}

/// A disk: pieces in order, and zeroes between them.
#[derive(Debug)]
pub(crate) struct Disk {
    pub(crate) size: u64,
    pub(crate) pieces: Vec<Piece>,
}

/// The disk of this size: always the same one, made once.
pub(crate) fn disk(size: u64) -> Arc<Disk> {
    static MADE: Mutex<BTreeMap<u64, Arc<Disk>>> = Mutex::new(BTreeMap::new());
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    Arc::clone(made.entry(size).or_insert_with(|| Arc::new(Disk::new(size))))
}

impl Disk {
    fn new(size: u64) -> Self {
        let mut dice = Dice::new(size);
        let pieces =
            if size > 32 * MIB { far_apart(size, &mut dice) } else { close(size, &mut dice) };
        Self { size, pieces }
    }

    /// Writes it as a raw file, with holes between the pieces.
    pub(crate) fn write(&self, path: &Path) {
        let file = File::create(path).unwrap();
        file.set_len(self.size).unwrap();
        for piece in &self.pieces {
            file.write_all_at(&piece.bytes, piece.offset).unwrap();
        }
    }
}

/// One piece after the other.
fn close(size: u64, dice: &mut Dice) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut at = 0;
    while at < size {
        let len = dice.pick(&[1, 511, 512, 4096, 5000, 16 << 10, 65_536, 100_000, 300_000]);
        let len = len.min(index(size - at));
        if !dice.percent(40) {
            pieces.push(piece(at, len, dice));
        }
        at += length_of(len);
    }
    pieces
}

/// A few around the places where images begin something new.
fn far_apart(size: u64, dice: &mut Dice) -> Vec<Piece> {
    let edges =
        [0, 32 * MIB, 512 * MIB, 1 << 31, (1 << 32) - 512, 1 << 32, 1 << 36, size / 3, size];
    let mut edges: Vec<u64> = edges.into_iter().filter(|edge| *edge <= size).collect();
    edges.sort_unstable();
    let mut pieces = Vec::new();
    let mut free = 0;
    for edge in edges {
        let at = edge.saturating_sub(40_000).max(free);
        let len = index((size - at).min(80_000));
        if len > 0 {
            pieces.push(piece(at, len, dice));
            free = at + length_of(len);
        }
    }
    pieces
}

fn piece(offset: u64, len: usize, dice: &mut Dice) -> Piece {
    let value = dice.number().to_be_bytes()[0] | 1;
    let (bytes, byte) = match dice.below(4) {
        0 => (noise(len, dice), None),
        1 => (text(len, dice), None),
        2 => (vec![value; len], Some(value)),
        // Zeroes that are written.
        _ if dice.percent(20) => (vec![0; len], Some(0)),
        _ => (noise(len, dice), None),
    };
    Piece { offset, bytes, byte }
}

fn noise(len: usize, dice: &mut Dice) -> Vec<u8> {
    let numbers = std::iter::repeat_with(|| dice.number().to_be_bytes());
    numbers.flatten().take(len).collect()
}

fn text(len: usize, dice: &mut Dice) -> Vec<u8> {
    const WORDS: &[&str] =
        &["hole ", "cluster ", "grain ", "extent ", "of ", "the ", "disk\n", "0123 "];
    let words = std::iter::repeat_with(|| dice.pick(WORDS).bytes());
    words.flatten().take(len).collect()
}

fn length_of(len: usize) -> u64 {
    u64::try_from(len).unwrap()
}

/// How the second file is not as the first one, which may be shorter by zeroes if `padded`.
pub(crate) fn differ(wanted: &Path, found: &Path, padded: bool) -> Result<(), String> {
    let open = |path: &Path| File::open(path).map_err(|e| format!("{}: {e}", path.display()));
    let (a, b) = (open(wanted)?, open(found)?);
    let (wanted_len, found_len) = (a.metadata().unwrap().len(), b.metadata().unwrap().len());
    if wanted_len != found_len && !(padded && wanted_len < found_len) {
        return Err(format!("{found_len} bytes long, and not {wanted_len}"));
    }
    let mut at = 0;
    while let Some(next) = [data(&a, at), data(&b, at)].into_iter().flatten().min() {
        let (left, right) = (block(&a, next), block(&b, next));
        let most = left.len().max(right.len());
        let byte = |bytes: &[u8], i: usize| bytes.get(i).copied().unwrap_or(0);
        if left != right
            && let Some(i) = (0..most).find(|i| byte(&left, *i) != byte(&right, *i))
        {
            let place = next + length_of(i);
            let (left, right) = (byte(&left, i), byte(&right, i));
            return Err(format!("byte {place} of {found_len} is {right:#x}, and not {left:#x}"));
        }
        at = next + length_of(most);
    }
    Ok(())
}

/// The first byte from `at` on that is not in a hole.
fn data(file: &File, at: u64) -> Option<u64> {
    match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Ok(at) => Some(at),
        Err(rustix::io::Errno::NXIO) => None,
        Err(e) => panic!("SEEK_DATA: {e}"),
    }
}

fn block(file: &File, at: u64) -> Vec<u8> {
    let mut bytes = vec![0; 256 << 10];
    let mut done = 0;
    while done < bytes.len() {
        match file.read_at(&mut bytes[done..], at + length_of(done)) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => panic!("{e}"),
        }
    }
    bytes.truncate(done);
    bytes
}

#[test]
fn files_that_differ_are_found_to() {
    let temp = blackbox::temp::TempDir::new();
    let (a, b) = (temp.join("a"), temp.join("b"));
    disk(MIB + 5).write(&a);
    disk(MIB + 5).write(&b);
    assert_eq!(differ(&a, &b, false), Ok(()));
    let file = File::options().write(true).open(&b).unwrap();
    file.set_len(2 * MIB).unwrap();
    assert!(differ(&a, &b, false).is_err());
    assert_eq!(differ(&a, &b, true), Ok(()));
    file.write_all_at(&[7], 2 * MIB - 1).unwrap();
    assert!(differ(&a, &b, true).unwrap_err().contains(&format!("byte {}", 2 * MIB - 1)));
    assert_eq!(length(&std::fs::read(&a).unwrap()), MIB + 5);
}
