//! qcow2 images that are made here, checked by qemu-img: no error, no leak, and the bytes that were
//! written, whatever the options, the order and the number of writers.

use std::sync::atomic::{AtomicU32, Ordering};

use device::model::Model;
use device::{Abilities, Edge, ErrorKind, Operation, Params, Simple, ZeroFlags};
use disk::{Created, External, Holds, Image};
use runtime::{Context, to_usize};
use trial::{Fate, TestDevice};

use crate::support::{Dice, Place, all, create_image, has_qemu, image};

/// A new image, to be filled.
fn create(path: &str, size: u64, options: &[&str], compress: bool) -> device::Result<Created> {
    let image = Image { compress, external: External::Chain, ..image("qcow2") };
    create_image(path, image, options, size)
}

/// Fills about half of a disk by four threads, each in stretches of its own, in any order; some
/// twice, some are zeroed. Returns the bytes that it holds then.
fn fill(disk: &Edge, size: u64, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; to_usize(size)];
    fill_over(disk, &mut bytes, seed);
    bytes
}

fn fill_over(disk: &Edge, model: &mut [u8], seed: u64) {
    let block = (disk.info().blocks.minimum as usize).max(1);
    let stretch = (model.len() / 64).next_multiple_of(block.max(512)).max(block);
    let mut shares: Vec<Vec<(usize, &mut [u8])>> = (0..4).map(|_| Vec::new()).collect();
    for (i, part) in model.chunks_mut(stretch).enumerate() {
        shares[i % 4].push((i * stretch, part));
    }
    std::thread::scope(|scope| {
        for (i, mut share) in shares.into_iter().enumerate() {
            let mut random = Dice::new(seed * 4 + i as u64);
            scope.spawn(move || {
                runtime::having_time(|| {
                    for _ in 0..share.len() {
                        let at = random.below(share.len());
                        let (start, part) = &mut share[at];
                        change(disk, *start, part, block, &mut random);
                    }
                });
            });
        }
    });
}

fn change(disk: &Edge, start: usize, part: &mut [u8], block: usize, random: &mut Dice) {
    let blocks = part.len().div_ceil(block);
    let from = random.below(blocks) * block;
    let most = part.len() - from;
    let len = (random.below(blocks) + 1).saturating_mul(block).min(most);
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

/// qemu-img finds no error in the image `image`, and the same bytes.
fn judge(place: &Place, bytes: &[u8]) -> String {
    place.write("model", bytes);
    let checked = place.qemu_img("check -f qcow2 image");
    assert!(checked.contains("No errors were found"), "{checked}");
    place.qemu_img("compare -f raw -F qcow2 model image");
    checked
}

fn round(size: u64, options: &[&str], compress: bool, seed: u64) {
    let place = Place::on_disk();
    let created = create(&place.path("image"), size, options, compress).unwrap();
    assert_eq!(created.holds, Holds::Zeroes);
    let whole = created.edge.info().size;
    assert_eq!(whole, size.next_multiple_of(512));
    let bytes = fill(&created.edge, whole, seed);
    assert!(place.read("image").iter().take(512).all(|b| *b == 0));
    created.edge.device().finish().unwrap();
    // The file is no longer locked.
    drop(created);
    let checked = judge(&place, &bytes);
    let end = checked.lines().find_map(|line| line.strip_prefix("Image end offset: "));
    assert_eq!(end.unwrap(), place.read("image").len().to_string(), "{checked}");
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
        round(2 * MIB + 512 * 3, &options, false, bits);
        round(2 * MIB + 512 * 3, &options, true, bits);
        let zstd = [options[0], options[1], "compression_type=zstd"];
        if i % 3 == 0 {
            round(2 * MIB + 512 * 3, &zstd, true, bits);
        }
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
            round(size, &[], compress, i as u64 + 1);
            round(size, &["compat=0.10"], compress, i as u64 + 1);
        }
        round(size, &["preallocation=metadata"], false, i as u64 + 1);
    }
    round(5 * MIB, &["cluster_size=512"], false, 3);
    round(5 * MIB, &["cluster_size=512"], true, 3);
}

#[test]
fn preallocated_images_and_those_with_subclusters() {
    if !has_qemu() {
        return;
    }
    for (i, how) in ["metadata", "falloc", "full"].into_iter().enumerate() {
        for more in ["compat=1.1", "compat=0.10", "cluster_size=4K", "extended_l2=on"] {
            let options = [&format!("preallocation={how}"), more];
            round(3 * MIB + 512, &options, false, i as u64 + 9);
        }
    }
    round(3 * MIB, &["extended_l2=on", "lazy_refcounts=on"], false, 5);
    round(3 * MIB, &["extended_l2=on", "cluster_size=16K"], true, 5);
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
            round(2 * MIB, &options, true, i as u64 + 1);
        }
    }
}

#[test]
fn over_a_backing_image_zeroes_are_written_and_what_was_not_written_shows_through() {
    if !has_qemu() {
        return;
    }
    let size = 3 * MIB;
    for (i, options) in [
        &[][..],
        &["compat=0.10"],
        &["cluster_size=4K"],
        &["extended_l2=on"],
        &["extended_l2=on", "preallocation=metadata"],
    ]
    .into_iter()
    .enumerate()
    {
        for compress in [false, true] {
            if compress && options.len() == 2 {
                continue;
            }
            let place = Place::on_disk();
            // It is shorter than the disk above it.
            let below = Dice::new(77 + i as u64).bytes(2 * 1024 * 1024 + 512);
            let name = format!("backing_file={}", place.write("below", &below));
            let options: Vec<&str> =
                options.iter().copied().chain([name.as_str(), "backing_fmt=raw"]).collect();
            let created = create(&place.path("image"), size, &options, compress).unwrap();
            assert_eq!(created.holds, Holds::Unknown, "it does not read as zeroes");
            let mut bytes = below;
            bytes.resize(to_usize(size), 0);
            fill_over(&created.edge, &mut bytes, i as u64);
            created.edge.device().finish().unwrap();
            drop(created);
            judge(&place, &bytes);
        }
    }
}

/// An image over a device that is not known to be zero, unless `zeroed`.
fn over(container: &Edge, size: u64, options: &[&str], compress: bool) -> device::Result<Edge> {
    let context = Context::default();
    let options = Params::parse(options.iter().copied()).unwrap();
    let making = formats::Making {
        size,
        options: &options,
        compress,
        zeroed: false,
        durable: true,
        files: &formats::Closed,
        context: &context,
    };
    let create = formats::format("qcow2").unwrap().create.unwrap();
    let image = (create.open)(container.clone(), &making, &mut std::iter::empty())?;
    Ok(Edge::new(image, context.pool.clone()))
}

/// A disk of fixed size with old bytes on it.
fn used(size: usize) -> Edge {
    let context = Context::default();
    let model = Model::new(size);
    let edge = Simple::edge(model, &context.pool);
    edge.write(&vec![0xA5; size], 0, false).unwrap();
    edge
}

#[test]
fn what_was_in_the_container_before_never_shows() {
    if !has_qemu() {
        return;
    }
    let size = 2 * MIB + 512;
    for (i, options) in [
        &[][..],
        &["cluster_size=512"],
        &["preallocation=metadata"],
        &["preallocation=full"],
        &["extended_l2=on"],
    ]
    .iter()
    .enumerate()
    {
        for compress in [false, true] {
            if compress && options.iter().any(|o| o.starts_with("prealloc")) {
                continue;
            }
            let place = Place::on_disk();
            let container = used(5 << 20);
            let disk = over(&container, size, options, compress).unwrap();
            let bytes = fill(&disk, size, i as u64 + 11);
            assert_eq!(all(&container)[..512], [0; 512], "no header before the end");
            disk.device().finish().unwrap();
            place.write("image", &all(&container));
            judge(&place, &bytes);
        }
    }
}

#[test]
fn a_lack_of_room_is_an_error_and_nothing_opens_as_an_image() {
    for compress in [false, true] {
        let container = used(1 << 20);
        let disk = over(&container, 4 * MIB, &[], compress).unwrap();
        let noise = Dice::new(5).noise(4 << 20);
        let written = disk.write(&noise, 0, false).and_then(|()| disk.device().finish());
        assert_eq!(written.unwrap_err().kind(), device::ErrorKind::NoSpace);
        assert_eq!(all(&container)[..512], [0; 512]);
        // It is full of data, and has no room for the tables.
        let container = used(1 << 20);
        let disk = over(&container, 4 * MIB, &["cluster_size=64K"], compress).unwrap();
        disk.write(&noise[..15 << 16], 0, false).unwrap();
        assert!(disk.device().finish().is_err());
        assert_eq!(all(&container)[..512], [0; 512]);
    }
}

#[test]
fn a_range_that_is_written_again_is_right_and_nothing_leaks() {
    if !has_qemu() {
        return;
    }
    for compress in [false, true] {
        let (place, size) = (Place::on_disk(), 4 * MIB);
        let created = create(&place.path("image"), size, &[], compress).unwrap();
        let (mut random, mut bytes) = (Dice::new(99), vec![0; to_usize(size)]);
        for _ in 0..3 {
            for (i, cluster) in bytes.chunks_mut(65536).enumerate() {
                cluster.copy_from_slice(&random.bytes(65536));
                created.edge.write(cluster, i as u64 * 65536, false).unwrap();
            }
            created.edge.flush().unwrap();
        }
        created.edge.device().finish().unwrap();
        drop(created);
        judge(&place, &bytes);
    }
}

/// Packed clusters are gathered: what another's write could not put into the container, the next
/// flush reports, and it is tried again.
#[test]
fn what_was_acknowledged_is_in_the_image_although_a_later_write_has_failed() {
    if !has_qemu() {
        return;
    }
    const CLUSTER: usize = 4096;
    for options in [&["cluster_size=4k"][..], &["cluster_size=4k", "compression_type=zstd"]] {
        let (place, size) = (Place::on_disk(), 24 * MIB);
        let context = Context::default();
        let abilities = Abilities { write: true, flush: true, ..Abilities::READ };
        let writes = AtomicU32::new(0);
        // Every third write fails.
        let failing = TestDevice::over(Model::new(32 << 20))
            .info_with(|info| info.abilities = abilities)
            .hooked(move |operation| match operation {
                Operation::Write { .. } if writes.fetch_add(1, Ordering::Relaxed) % 3 == 1 => {
                    Fate::fail(ErrorKind::Io)
                }
                other => Fate::Pass(other),
            });
        let container = Simple::edge(failing.clone(), &context.pool);
        let mut tried = 0;
        let disk = loop {
            match over(&container, size, options, true) {
                Ok(disk) => break disk,
                Err(e) => assert!(tried < 3, "{e}"),
            }
            tried += 1;
        };
        let (mut random, mut failed) = (Dice::new(7), 0);
        let mut bytes = Vec::new();
        for at in (0..size).step_by(2 * CLUSTER) {
            // One that does not become shorter, and waits to be written when the next one, which
            // does, is packed.
            let mut piece = random.noise(CLUSTER + CLUSTER / 2);
            piece.resize(2 * CLUSTER, 0);
            while disk.write(&piece, at, false).is_err() {
                failed += 1;
                assert!(failed < 10_000);
            }
            bytes.extend(piece);
        }
        assert!(failed > 0);
        failing.on(Fate::Pass);
        disk.device().finish().unwrap();
        place.write("image", &all(&container));
        place.write("model", &bytes);
        place.qemu_img("compare -f raw -F qcow2 model image");
    }
}
