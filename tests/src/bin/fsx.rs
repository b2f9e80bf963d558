//! Does to a file of a fixed length what programs do to files, and compares each byte that it reads
//! with the same done to memory: as fsx does (the file system exerciser of Apple, and of xfstests),
//! without truncating.
//!
//!     fsx FILE SEED STEPS BLOCK [direct]
//!
//! Reads, writes, reads and writes by mmap(2), punches holes, zeroes ranges, fsyncs, closes and
//! opens again, in random order; offsets and lengths are multiples of BLOCK. FILE may be a block
//! device, and is zeroed first. `direct`: reads and writes bypass the page cache every other time,
//! and BLOCK is what that asks for. Prints what it has done before what went wrong.
//!
//! `unsafe` is used for mmap, which no crate here wraps.
#![allow(unsafe_code, reason = "see above")]
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::ptr::null_mut;

use blackbox::dice::Dice;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};

/// Bytes of an operation, at most.
const LONGEST: usize = 160 << 10;
/// What direct I/O asks of memory, at most.
const ALIGN: usize = 4096;
/// How many operations are told of at a failure.
const KEPT: usize = 30;

struct Trial {
    path: PathBuf,
    file: File,
    direct: Option<File>,
    model: Vec<u8>,
    dice: Dice,
    /// Aligned for direct I/O from the byte after the first `skip`.
    bytes: Vec<u8>,
    skip: usize,
    log: VecDeque<String>,
}

fn open(path: &PathBuf, flags: i32) -> File {
    OpenOptions::new().read(true).write(true).custom_flags(flags).open(path).unwrap()
}

impl Trial {
    fn new(path: PathBuf, seed: u64, is_direct: bool) -> Self {
        let mut file = open(&path, 0);
        let size = usize::try_from(file.seek(SeekFrom::End(0)).unwrap()).unwrap();
        file.write_all_at(&vec![0; size], 0).unwrap();
        let bytes = vec![0; LONGEST + ALIGN];
        let skip = bytes.as_ptr().align_offset(ALIGN);
        let direct = is_direct.then(|| open(&path, libc::O_DIRECT));
        let (model, dice) = (vec![0; size], Dice::new(seed));
        Self { path, file, direct, model, dice, bytes, skip, log: VecDeque::new() }
    }

    fn step(&mut self, block: usize) {
        let blocks = self.model.len() / block;
        let at = self.dice.below(blocks) * block;
        let most = (self.model.len() - at).min(LONGEST) / block;
        // Mostly short, so that what is written is read before it is written again.
        let most = if self.dice.percent(60) { most.min(1 + 8192 / block) } else { most };
        let len = self.dice.between(1, most) * block;
        let kind = self.dice.below(14);
        let what = match kind {
            0..=3 => self.write(at, len),
            4..=6 => self.read(at, len),
            7 => self.map_write(at, len),
            8 | 9 => self.map_read(at, len),
            10 => self.zero(at, len, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE),
            11 => self.zero(at, len, FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE),
            12 => {
                self.file.sync_all().unwrap();
                "fsync"
            }
            _ => {
                self.file = open(&self.path, 0);
                "open"
            }
        };
        self.note(what, at, len);
    }

    fn note(&mut self, what: &str, at: usize, len: usize) {
        self.log.push_back(format!("{what} {len} bytes at {at}"));
        if self.log.len() > KEPT {
            self.log.pop_front();
        }
    }

    /// The file, or the same past the page cache.
    fn way(&mut self) -> (&File, &mut [u8]) {
        let is_direct = self.dice.percent(50);
        let bytes = self.bytes.get_mut(self.skip..).unwrap();
        (self.direct.as_ref().filter(|_| is_direct).unwrap_or(&self.file), bytes)
    }

    fn write(&mut self, at: usize, len: usize) -> &'static str {
        let byte = u8::try_from(self.dice.between(1, 255)).unwrap();
        let (file, bytes) = self.way();
        let bytes = &mut bytes[..len];
        // Each byte is another one than its neighbour.
        bytes.iter_mut().zip(0_u8..=250).for_each(|(to, n)| *to = byte.wrapping_add(n));
        (251..len).for_each(|n| bytes[n] = bytes[n - 251]);
        file.write_all_at(bytes, at as u64).unwrap();
        let written = bytes.to_vec();
        self.model[at..at + len].copy_from_slice(&written);
        "write"
    }

    fn read(&mut self, at: usize, len: usize) -> &'static str {
        let (file, bytes) = self.way();
        file.read_exact_at(&mut bytes[..len], at as u64).unwrap();
        let read = bytes[..len].to_vec();
        self.compare(&read, at, "read");
        "read"
    }

    fn zero(&mut self, at: usize, len: usize, flags: FallocateFlags) -> &'static str {
        fallocate(&self.file, flags, at as u64, len as u64).unwrap();
        self.model[at..at + len].fill(0);
        if flags.contains(FallocateFlags::PUNCH_HOLE) { "punch" } else { "zero" }
    }

    /// Does something to `len` bytes of the file, in memory.
    fn mapped<T>(
        &self,
        (at, len): (usize, usize),
        rights: ProtFlags,
        work: impl FnOnce(*mut u8) -> T,
    ) -> T {
        let before = at % ALIGN;
        let all = before + len;
        let offset = (at - before) as u64;
        // SAFETY: a new mapping disturbs nothing; `work` gets its bytes, and it is unmapped after
        // that. The file does not become shorter.
        unsafe {
            let fd = self.file.as_fd();
            let start = mmap(null_mut(), all, rights, MapFlags::SHARED, fd, offset).unwrap();
            let done = work(start.cast::<u8>().add(before));
            if rights.contains(ProtFlags::WRITE) {
                msync(start, all, MsyncFlags::SYNC).unwrap();
            }
            munmap(start, all).unwrap();
            done
        }
    }

    fn map_read(&mut self, at: usize, len: usize) -> &'static str {
        let mut read = vec![0; len];
        self.mapped((at, len), ProtFlags::READ, |from| {
            // SAFETY: that many bytes are mapped there.
            unsafe { std::ptr::copy_nonoverlapping(from, read.as_mut_ptr(), len) }
        });
        self.compare(&read, at, "mapread");
        "mapread"
    }

    fn map_write(&mut self, at: usize, len: usize) -> &'static str {
        let byte = u8::try_from(self.dice.between(1, 255)).unwrap();
        self.mapped((at, len), ProtFlags::READ | ProtFlags::WRITE, |to| {
            // SAFETY: that many bytes are mapped there.
            unsafe { std::ptr::write_bytes(to, byte, len) }
        });
        self.model[at..at + len].fill(byte);
        "mapwrite"
    }

    fn compare(&self, read: &[u8], at: usize, what: &str) {
        let expected = &self.model[at..at + read.len()];
        if let Some(bad) = read.iter().zip(expected).position(|(a, b)| a != b) {
            let (got, wanted) = (read[bad], expected[bad]);
            let place = at + bad;
            panic!(
                "{what} {} bytes at {at}: the byte at {place} is {got}, not {wanted}; before: {:#?}",
                read.len(),
                self.log
            );
        }
    }
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [path, seed, steps, block, how @ ..] = &words[..] else {
        panic!("fsx FILE SEED STEPS BLOCK [direct]");
    };
    let is_direct = how.iter().any(|word| word == "direct");
    let block = block.parse().unwrap();
    let mut trial = Trial::new(path.into(), seed.parse().unwrap(), is_direct);
    for _ in 0..steps.parse().unwrap() {
        trial.step(block);
    }
    let all = trial.model.len();
    let mut read = vec![0; all];
    open(&trial.path, 0).read_exact_at(&mut read, 0).unwrap();
    trial.compare(&read, 0, "read at the end");
}
