//! What `file` leaves in the page cache, by its parameter `cache`: whatever is done to it, the
//! bytes are those of the model, few pages stay, and those that others had there do.

#![allow(clippy::cast_possible_truncation, reason = "small numbers")]

use crate::scratch;

use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use device::residency::pages;
use device::{Buffer, Device, Edge, Operation, Outcome, ZeroFlags};
use devices::OpenOptions;
use runtime::{Context, WorkPool, spread_bits};
use scratch::Scratch;

const MIB: usize = 1 << 20;
const PAGES_OF_MIB: u64 = (MIB / 4096) as u64;

/// A small generator: the same every time.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = spread_bits(self.0.wrapping_add(1));
        self.0 as usize % n
    }
}

fn bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut all = Vec::with_capacity(len + 8);
    (seed << 32..).take(len.div_ceil(8)).for_each(|i| all.extend(spread_bits(i).to_ne_bytes()));
    all.truncate(len);
    all
}

/// A file on the disk, of which nothing is in memory.
fn cold(scratch: &Scratch, name: &str, content: &[u8]) -> PathBuf {
    let path = scratch.path(name);
    std::fs::write(&path, content).unwrap();
    drop_pages(&path);
    path
}

fn drop_pages(path: &Path) {
    let file = File::open(path).unwrap();
    file.sync_all().unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
}

fn resident(path: &Path) -> u64 {
    let file = File::open(path).unwrap();
    let len = file.metadata().unwrap().len().max(1);
    pages::count(file.as_fd(), 0, len).unwrap().cached
}

/// How many pages stay when at most `most` should, after the last that works on the file has gone.
fn left(path: &Path, most: u64) -> u64 {
    let begun = std::time::Instant::now();
    while resident(path) > most && begun.elapsed() < std::time::Duration::from_secs(20) {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    resident(path)
}

fn device(path: &Path, mode: &str) -> Arc<dyn Device> {
    let name = format!("file:{}?lock=off&cache={mode}", path.display());
    devices::Named::parse(&name)
        .and_then(|disk| disk.open(&OpenOptions::read_write(), &Context::default()))
        .unwrap()
}

fn edge(path: &Path, mode: &str) -> Edge {
    Edge::new(device(path, mode), WorkPool::new(4))
}

/// Reads as a server does: in buffers of its own.
fn read(edge: &Edge, offset: u64, len: usize) -> Vec<u8> {
    let operation = Operation::Read { offset, buffer: Buffer::zeroed(len) };
    match edge.device().run(operation).unwrap() {
        Outcome::Read(buffer) => buffer.to_vec(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_read_leaves_few_pages_whatever_the_length_of_the_requests() {
    let scratch = Scratch::new("/tmp");
    let content = bytes(44 * MIB + 777, 1);
    let path = cold(&scratch, "disk", &content);
    for mode in ["none", "direct"] {
        for step in [16 << 10, 64 << 10, 2 << 20] {
            drop_pages(&path);
            let edge = edge(&path, mode);
            for at in (0..content.len()).step_by(step) {
                let want = &content[at..content.len().min(at + step)];
                assert!(read(&edge, at as u64, want.len()) == want, "{mode} {step} {at}");
            }
            let most = 41 * PAGES_OF_MIB;
            assert!(resident(&path) < most, "{mode} {step}: {} while open", resident(&path));
            drop(edge);
            let left = left(&path, 0);
            assert!(left == 0, "{mode} {step}: {left} pages stay");
        }
    }
}

#[test]
fn what_is_written_leaves_few_pages_and_is_there() {
    let scratch = Scratch::new("/tmp");
    let content = bytes(44 * MIB + 777, 2);
    for mode in ["none", "direct"] {
        for step in [64 << 10, 2 << 20] {
            let path = cold(&scratch, "disk", &[]);
            File::options().write(true).open(&path).unwrap().set_len(content.len() as u64).unwrap();
            let edge = edge(&path, mode);
            for at in (0..content.len()).step_by(step) {
                let piece = &content[at..content.len().min(at + step)];
                edge.write(piece, at as u64, false).unwrap();
            }
            assert!(resident(&path) <= 33 * PAGES_OF_MIB, "{mode} {step}: {}", resident(&path));
            edge.flush().unwrap();
            assert!(resident(&path) <= 1, "{mode} {step}: {} after a flush", resident(&path));
            drop(edge);
            drop_pages(&path);
            assert!(std::fs::read(&path).unwrap() == content, "{mode} {step}");
        }
    }
}

#[test]
fn what_is_not_flushed_is_let_go_at_the_end_and_is_there() {
    let scratch = Scratch::new("/tmp");
    let path = cold(&scratch, "disk", &vec![0; 8 * MIB]);
    let edge = edge(&path, "none");
    edge.write(&vec![7; 300_000], 5, false).unwrap();
    drop(edge);
    let left = left(&path, 0);
    assert_eq!(left, 0, "pages stay");
    let content = std::fs::read(&path).unwrap();
    assert!(
        content[5..300_005].iter().all(|b| *b == 7) && content[4] == 0 && content[300_005] == 0
    );
}

#[test]
fn what_was_in_memory_before_stays_there_and_is_served_from_its_place() {
    let scratch = Scratch::new("/tmp");
    let content = bytes(40 * MIB, 3);
    for mode in ["none", "auto"] {
        let path = cold(&scratch, mode, &content);
        // Every second half MiB, and a part of a window.
        let file = File::open(&path).unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random).unwrap();
        let mut half = vec![0; MIB / 2];
        for at in (0..content.len()).step_by(MIB) {
            std::os::unix::fs::FileExt::read_exact_at(&file, &mut half, at as u64).unwrap();
        }
        let hot =
            |at: usize| pages::count(file.as_fd(), at as u64, (MIB / 2) as u64).unwrap().cached;
        let all = |name: &str| {
            let sum: u64 = (0..content.len()).step_by(MIB).map(hot).sum();
            // The system may take a few for others.
            assert!(sum >= 20 * PAGES_OF_MIB * 95 / 100, "{mode}, {name}: {sum} pages are left");
        };
        all("before");
        let edge = edge(&path, mode);
        let place = edge.info().flat.clone().unwrap();
        assert!(place.is_resident((MIB / 2) as u64), "{mode}: it is served from its place");
        assert!(place.is_kept());
        for at in (0..content.len()).step_by(256 << 10) {
            assert!(read(&edge, at as u64, 256 << 10) == content[at..at + (256 << 10)]);
        }
        all("after reading");
        for at in (0..content.len()).step_by(256 << 10) {
            edge.write(&content[at..at + (256 << 10)], at as u64, false).unwrap();
        }
        edge.flush().unwrap();
        drop(edge);
        all("after writing");
        if mode == "none" {
            let left = left(&path, 21 * PAGES_OF_MIB);
            assert!(left <= 21 * PAGES_OF_MIB, "the rest has left: {left}");
        }
        assert!(std::fs::read(&path).unwrap() == content);
    }
}

/// Random reads, writes, zeroes and trims of all lengths, on the disk and on a plain array.
fn random_operations(mode: &str, seed: u64, len: usize) {
    let scratch = Scratch::new("/tmp");
    let mut model = bytes(len, seed);
    let path = cold(&scratch, "disk", &model);
    let edge = edge(&path, mode);
    let mut random = Random(seed);
    for i in 0..80 {
        let longest = [600, 5_000, 200_000, 3 << 20][random.below(4)];
        let mut offset = random.below(len);
        let mut n = 1 + random.below(longest);
        if random.below(2) == 0 {
            (offset, n) = (offset - offset % 4096, n.next_multiple_of(4096));
        }
        n = n.min(len - offset);
        let (range, at) = (offset..offset + n, offset as u64);
        match random.below(9) {
            0..=3 => {
                let data = bytes(n, random.0);
                edge.write(&data, at, random.below(12) == 0).unwrap();
                model[range].copy_from_slice(&data);
            }
            4 => {
                let flags = ZeroFlags { may_unmap: random.below(2) == 0, ..ZeroFlags::default() };
                edge.zero(at, n as u64, flags).unwrap();
                model[range].fill(0);
            }
            5 if random.below(4) == 0 => edge.flush().unwrap(),
            _ => assert!(read_any(&edge, at, n) == model[range], "{mode} {seed}: read {i} at {at}"),
        }
    }
    edge.flush().unwrap();
    edge.device().finish().unwrap();
    drop(edge);
    drop_pages(&path);
    let found = std::fs::read(&path).unwrap();
    assert_eq!(found.len(), model.len(), "{mode} {seed}");
    assert!(found == model, "{mode} {seed}");
}

fn read_any(edge: &Edge, offset: u64, len: usize) -> Vec<u8> {
    let mut into = vec![0; len];
    edge.read(&mut into, offset).unwrap();
    into
}

#[test]
fn random_operations_leave_the_bytes_of_the_model() {
    for mode in ["none", "auto", "direct"] {
        for seed in 0..2 {
            random_operations(mode, seed, 9 * MIB + 1234);
        }
        random_operations(mode, 9, 3 << 20);
    }
}

#[test]
fn many_threads_that_write_parts_of_the_same_blocks_lose_nothing() {
    let scratch = Scratch::new("/tmp");
    for mode in ["none", "direct"] {
        let path = cold(&scratch, mode, &vec![0; 2 * MIB + 100]);
        let edge = edge(&path, mode);
        std::thread::scope(|scope| {
            for thread in 0..8usize {
                let edge = &edge;
                scope.spawn(move || {
                    let mut random = Random(thread as u64);
                    for _ in 0..60 {
                        // Bytes of its own, in blocks that all threads share; and blocks of its own
                        // now and then.
                        let at = random.below(250) * 8192 + thread * 512;
                        edge.write(&[thread as u8 + 1; 512], at as u64, false).unwrap();
                        let own = (random.below(30) * 8 + thread) * 8192 + 4096;
                        edge.write(&[thread as u8 + 11; 4096], own as u64, false).unwrap();
                    }
                    edge.write(&[thread as u8 + 1; 9], (2 * MIB + thread * 10) as u64, false)
                        .unwrap();
                });
            }
        });
        edge.flush().unwrap();
        drop(edge);
        drop_pages(&path);
        let found = std::fs::read(&path).unwrap();
        assert_eq!(found.len(), 2 * MIB + 100);
        for thread in 0..8usize {
            let at = 2 * MIB + thread * 10;
            assert!(
                found[at..at + 9].iter().all(|b| usize::from(*b) == thread + 1),
                "{mode}: the tail"
            );
            let mut random = Random(thread as u64);
            for _ in 0..60 {
                let at = random.below(250) * 8192 + thread * 512;
                let own = (random.below(30) * 8 + thread) * 8192 + 4096;
                for (at, n, byte) in [(at, 512, thread + 1), (own, 4096, thread + 11)] {
                    let is = |b: &u8| usize::from(*b) == byte;
                    assert!(found[at..at + n].iter().all(is), "{mode}: {thread} at {at}");
                }
            }
        }
    }
}

#[test]
fn a_file_in_memory_is_as_it_is_in_every_mode() {
    let scratch = Scratch::new("/dev/shm");
    let content = bytes(2 * MIB + 5, 4);
    for mode in ["default", "none", "auto", "direct"] {
        let path = scratch.path(mode);
        std::fs::write(&path, &content).unwrap();
        let edge = edge(&path, mode);
        assert!(edge.info().flat.as_ref().unwrap().is_resident(content.len() as u64));
        edge.write(&[9; 1000], 700, true).unwrap();
        assert!(read_any(&edge, 0, content.len())[1700..] == content[1700..]);
    }
}

#[test]
fn direct_reads_say_where_a_file_that_was_cut_short_ends() {
    let scratch = Scratch::new("/tmp");
    for mode in ["none", "direct"] {
        let path = cold(&scratch, mode, &bytes(4 * MIB, 5));
        let edge = edge(&path, mode);
        File::options().write(true).open(&path).unwrap().set_len(3 * MIB as u64 + 5).unwrap();
        let operation = Operation::Read { offset: 0, buffer: Buffer::zeroed(4 * MIB) };
        let error = edge.device().run(operation).unwrap_err().to_string();
        assert!(error.contains("shorter"), "{mode}: {error}");
        let mut end = [0; 5];
        edge.read(&mut end, 3 * MIB as u64).unwrap();
    }
}
