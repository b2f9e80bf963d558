//! qcow2 images that are made here, judged by qemu-img: no error, no leak, and the bytes that were written,
//! whatever the options, the order and the number of those who write.
//!
//! Without qemu-img it is skipped; with `REQUIRE_PEERS=1` that fails.

#![allow(clippy::unwrap_used, reason = "a test that fails here has failed")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use device::{Edge, Params, ZeroFlags};
use disk::{Created, Creation, Holds, Image, Named, OpenOptions, Stack};
use runtime::Context;

/// A directory that is removed with all that is in it.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let name = format!("diskferry-new-qcow2-{name}-{}", std::process::id());
        let place = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&place);
        std::fs::create_dir(&place).unwrap();
        Self(place)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Whether the judge is here.
fn has_qemu() -> bool {
    let here = Command::new("qemu-img").arg("--version").output().is_ok();
    assert!(here || std::env::var_os("REQUIRE_PEERS").is_none_or(|v| v != "1"), "no qemu-img");
    here
}

fn qemu(what: &str, words: &[&str]) -> String {
    let mut run = Command::new(what).args(words).output().unwrap();
    // A thread of the pool may still be about to let go of the file.
    let deadline = Instant::now() + Duration::from_secs(60);
    while String::from_utf8_lossy(&run.stderr).contains("lock") && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
        run = Command::new(what).args(words).output().unwrap();
    }
    let said = String::from_utf8_lossy(&run.stdout).into_owned();
    let error = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{what} {words:?}: {said}{error}");
    said
}

/// A new image, to be filled.
fn create(path: &Path, size: u64, options: &[&str], compress: bool) -> device::Result<Created> {
    let mut image = Image::of("qcow2").unwrap();
    image.options = Params::parse(options.iter().copied()).unwrap();
    image.compress = compress;
    image.external = disk::External::Chain;
    image.check()?;
    let stack = Stack::parse([]).unwrap().over_image(image);
    let named = Named::parse(path.to_str().unwrap()).unwrap();
    let (options, write_back) = (OpenOptions::read_write(), false);
    let creation =
        Creation { size, grows: false, appears: false, whole: true, write_back, options };
    disk::create(&named, &stack, &creation, &Context::default())
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }

    /// Noise, or something that can be compressed.
    fn bytes(&mut self, len: usize) -> Vec<u8> {
        if self.below(3) == 0 {
            let noise = std::iter::repeat_with(|| self.next().to_le_bytes());
            return noise.take(len.div_ceil(8)).flatten().take(len).collect();
        }
        let word = self.next() | 1;
        let text = (0u64..).map(|i| word.wrapping_mul(i / 5 % 97).to_le_bytes());
        text.flatten().take(len).collect()
    }
}

/// Fills about half of a disk by four threads, each in stretches of its own, in any order; some twice, some
/// are zeroed. What it holds then.
fn fill(disk: &Edge, size: u64, seed: u64) -> Vec<u8> {
    let len = usize::try_from(size).unwrap();
    let mut bytes = vec![0; len];
    fill_over(disk, &mut bytes, seed);
    bytes
}

fn fill_over(disk: &Edge, model: &mut [u8], seed: u64) {
    let block = usize::try_from(disk.info().blocks.minimum).unwrap().max(1);
    let stretch = (model.len() / 64).next_multiple_of(block.max(512)).max(block);
    let mut shares: Vec<Vec<(usize, &mut [u8])>> = (0..4).map(|_| Vec::new()).collect();
    for (i, part) in model.chunks_mut(stretch).enumerate() {
        shares[i % 4].push((i * stretch, part));
    }
    std::thread::scope(|scope| {
        for (i, mut share) in shares.into_iter().enumerate() {
            let mut random = Random(seed * 4 + i as u64 + 1);
            scope.spawn(move || {
                runtime::having_time(|| {
                    for _ in 0..share.len() {
                        let at = usize::try_from(random.below(share.len() as u64)).unwrap();
                        let (start, part) = &mut share[at];
                        change(disk, *start, part, block, &mut random);
                    }
                });
            });
        }
    });
}

fn change(disk: &Edge, start: usize, part: &mut [u8], block: usize, random: &mut Random) {
    let blocks = part.len().div_ceil(block) as u64;
    let from = usize::try_from(random.below(blocks)).unwrap() * block;
    let most = part.len() - from;
    let len = (usize::try_from(random.below(blocks)).unwrap() + 1).saturating_mul(block).min(most);
    let range = from..from + len;
    let at = (start + from) as u64;
    if random.below(5) == 0 {
        let flags = ZeroFlags { may_unmap: random.below(2) == 0, ..ZeroFlags::default() };
        disk.zero(at, len as u64, flags).unwrap();
        part[range].fill(0);
    } else {
        let bytes = random.bytes(len);
        disk.write(&bytes, at, false).unwrap();
        part[range].copy_from_slice(&bytes);
    }
}

/// qemu-img finds nothing wrong, and the same bytes.
fn judge(place: &Place, image: &Path, bytes: &[u8]) -> String {
    let (raw, image) = (place.file("model"), image.to_str().unwrap());
    std::fs::write(&raw, bytes).unwrap();
    let checked = qemu("qemu-img", &["check", "-f", "qcow2", image]);
    assert!(checked.contains("No errors were found"), "{checked}");
    let raw = raw.to_str().unwrap();
    qemu("qemu-img", &["compare", "-f", "raw", "-F", "qcow2", raw, image]);
    checked
}

fn round(name: &str, size: u64, options: &[&str], compress: bool, seed: u64) {
    let place = Place::new(name);
    let image = place.file("image");
    let created = create(&image, size, options, compress).unwrap();
    assert_eq!(created.holds, Holds::Zeroes);
    let whole = created.edge.info().size;
    assert_eq!(whole, size.next_multiple_of(512));
    let bytes = fill(&created.edge, whole, seed);
    assert_eq!(std::fs::read(&image).unwrap_or_default().iter().take(512).max().unwrap_or(&0), &0);
    created.edge.device().finish().unwrap();
    // Nobody locks the file any more.
    drop(created);
    let checked = judge(&place, &image, &bytes);
    let end = checked.lines().find_map(|line| line.strip_prefix("Image end offset: "));
    assert_eq!(end.unwrap(), std::fs::metadata(&image).unwrap().len().to_string(), "{checked}");
}

const MIB: u64 = 1 << 20;

#[test]
fn clusters_of_all_sizes_and_refcounts_of_all_widths() {
    if !has_qemu() {
        return;
    }
    for (i, bits) in (9..=21).enumerate() {
        let (cluster, width) = (format!("cluster_size={}", 1 << bits), 1 << (i % 7));
        let options = [cluster.as_str(), &format!("refcount_bits={width}")];
        round("sizes", 3 * MIB + 512 * 3, &options, false, bits);
        round("sizes-z", 3 * MIB + 512 * 3, &options, true, bits);
        let zstd = [options[0], options[1], "compression_type=zstd"];
        round("sizes-zstd", 3 * MIB + 512 * 3, &zstd, true, bits);
    }
}

#[test]
fn disks_of_all_lengths() {
    if !has_qemu() {
        return;
    }
    // The last needs more than one L1 entry, and more than a cluster of them.
    for (i, size) in [0, 1, 512, 1000, 65536, 65537, 5 * MIB + 1].into_iter().enumerate() {
        for compress in [false, true] {
            round("lengths", size, &[], compress, i as u64 + 1);
            round("lengths", size, &["compat=0.10"], compress, i as u64 + 1);
        }
        round("lengths", size, &["preallocation=metadata"], false, i as u64 + 1);
    }
    round("l1", 5 * MIB, &["cluster_size=512"], false, 3);
    round("l1-z", 5 * MIB, &["cluster_size=512"], true, 3);
}

#[test]
fn preallocated_images_and_those_with_subclusters() {
    if !has_qemu() {
        return;
    }
    for (i, how) in ["metadata", "falloc", "full"].into_iter().enumerate() {
        for more in ["compat=1.1", "compat=0.10", "cluster_size=4K", "extended_l2=on"] {
            let options = [&format!("preallocation={how}"), more];
            round("preallocated", 3 * MIB + 512, &options, false, i as u64 + 9);
        }
    }
    round("extended", 3 * MIB, &["extended_l2=on", "lazy_refcounts=on"], false, 5);
    round("extended-z", 3 * MIB, &["extended_l2=on", "cluster_size=16K"], true, 5);
}

#[test]
fn every_level_of_compression_and_the_fast_ones() {
    if !has_qemu() {
        return;
    }
    for (kind, levels) in [("zlib", &["fast", "1", "9"][..]), ("zstd", &["fast", "1", "19"])] {
        for (i, level) in levels.iter().enumerate() {
            let kind = format!("compression_type={kind}");
            let options = [kind.as_str(), &format!("compression_level={level}")];
            round("levels", 2 * MIB, &options, true, i as u64 + 1);
        }
    }
}
