//! Archives of tar: the file `disk` is looked for in them.

use device::Params;

use crate::{image, mended, said};

pub(crate) fn run(bytes: &[u8]) {
    find(bytes);
    if let Some(mended) = mended::tar(bytes) {
        find(&mended);
    }
}

fn find(bytes: &[u8]) {
    let (archive, looks, context) = image::container(bytes);
    let size = archive.info().size;
    let mut params = Params::default();
    params.add("tar-entry", "disk");
    let found = said(filters::open("tar", &params, archive, &context));
    // One for each name that is too long for a header, and one for each 64 KiB.
    assert!(looks.reads() < 200, "{} reads", looks.reads());
    let Some(disk) = found else { return };
    let len = disk.info().size;
    assert!(len <= size, "{len} of {size}");
    let mut buffer = vec![0; usize::try_from(len.min(4096)).unwrap()];
    disk.read(&mut buffer, 0).unwrap();
    disk.read(&mut buffer, len - len.min(4096)).unwrap();
}
