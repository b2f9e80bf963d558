//! Partition tables: the first byte says which partition is wanted, the rest is the disk.

use device::{Edge, Params};
use runtime::Context;

use crate::{image, mended, said};

pub(crate) fn run(bytes: &[u8]) {
    let Some((number, disk)) = bytes.split_first() else { return };
    find(*number, disk);
    if let Some(mended) = mended::gpt(disk) {
        find(*number, &mended);
    }
}

fn find(number: u8, bytes: &[u8]) {
    let (disk, looks, context) = image::container(bytes);
    let size = disk.info().size;
    let mut params = Params::default();
    params.add("partition", &(number & 0x3f).to_string());
    if number & 0x40 != 0 {
        params.add("partition-sectorsize", "4096");
    }
    let part = said(filters::open("partition", &params, disk, &context));
    // A chain of logical partitions ends, also where it does not.
    assert!(looks.reads() < 1000, "{} reads", looks.reads());
    if let Some(part) = part {
        read(&part, size, &context);
    }
}

/// A partition lies in the disk.
fn read(part: &Edge, size: u64, _: &Context) {
    let len = part.info().size;
    assert!(len > 0 && len <= size, "{len} of {size}");
    let mut buffer = vec![0; usize::try_from(len.min(4096)).unwrap()];
    part.read(&mut buffer, 0).unwrap();
    part.read(&mut buffer, len - len.min(4096)).unwrap();
}
