//! File systems of ext2, ext3 and ext4: the file `/d/disk` is looked for in them.

use device::Params;

use crate::{image, said};

pub(crate) fn run(bytes: &[u8]) {
    let (disk, looks, context) = image::container(bytes);
    let mut params = Params::default();
    params.add("ext2file", "/d/disk");
    let found = said(filters::open("ext2", &params, disk, &context));
    // Blocks of directories, and of pointers and extents, which may be the same again and again.
    assert!(looks.reads() < 300_000, "{} reads", looks.reads());
    let Some(file) = found else { return };
    let len = file.info().size;
    let mut buffer = vec![0; usize::try_from(len.min(4096)).unwrap()];
    file.read(&mut buffer, 0).unwrap();
    file.read(&mut buffer, len - len.min(4096)).unwrap();
    if len > 0 {
        file.resolve(0, len.min(1 << 30), 64, &mut Vec::new()).unwrap();
    }
}
