//! File systems that mke2fs makes of a directory.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use device::model::Model;
use device::{Blocking as _, Edge, Result};

use crate::kit::tested::{put, simple};

/// Kinds of file systems, by words of mke2fs.
const KINDS: [&[&str]; 8] = [
    &["-t", "ext2", "-b", "1024"],
    &["-t", "ext2", "-b", "4096", "-O", "^sparse_super,^resize_inode,^filetype"],
    &["-t", "ext3", "-b", "1024"],
    &["-t", "ext4", "-b", "1024"],
    &["-t", "ext4", "-b", "4096", "-O", "metadata_csum,64bit,metadata_csum_seed"],
    &["-t", "ext4", "-b", "1024", "-g", "1024", "-O", "meta_bg,^resize_inode"],
    &["-t", "ext4", "-b", "1024", "-O", "^64bit,^metadata_csum,uninit_bg"],
    &["-t", "ext4", "-b", "1024", "-C", "4096", "-O", "bigalloc,sparse_super2,^resize_inode"],
];

/// A disk of 600 KiB with data at its beginning, in its middle, and at its end.
fn disk() -> Vec<u8> {
    let mut disk = vec![0; 614_413];
    for (n, byte) in (0_u32..).zip(&mut disk) {
        let [low, high, ..] = (n / 3).to_le_bytes();
        *byte = if (60_000..400_000).contains(&n) { 0 } else { low ^ high };
    }
    disk
}

/// A file system of 8 MiB; `None` if mke2fs is not installed.
fn made(kind: &[&str]) -> Option<Vec<u8>> {
    static MADE: AtomicU32 = AtomicU32::new(0);
    let number = MADE.fetch_add(1, Relaxed);
    let temp = std::env::temp_dir().join(format!("df-ext2-{}-{number}", std::process::id()));
    let _ = std::fs::remove_dir_all(&temp);
    let root = temp.join("root");
    std::fs::create_dir_all(root.join("disks/deep")).unwrap();
    for n in 0..300 {
        std::fs::write(root.join(format!("disks/other file {n}")), n.to_string()).unwrap();
    }
    let mut bytes = std::fs::File::create(root.join("disks/deep/disk.raw")).unwrap();
    let (disk, write) = (disk(), |file: &mut std::fs::File, bytes: &[u8], at| {
        std::os::unix::fs::FileExt::write_all_at(file, bytes, at).unwrap();
    });
    write(&mut bytes, &disk[..60_000], 0);
    write(&mut bytes, &disk[400_000..], 400_000);
    std::fs::write(root.join("empty"), "").unwrap();
    std::os::unix::fs::symlink("disks/deep/disk.raw", root.join("link")).unwrap();
    let image = temp.join("image");
    let path =
        ["/usr/sbin/mke2fs", "/sbin/mke2fs"].into_iter().find(|path| Path::new(path).exists());
    let mut command = Command::new(path?);
    command.args(["-q", "-F"]).args(kind).arg("-d").arg(&root).arg(&image).arg("8M");
    let made = command.output().unwrap();
    assert!(made.status.success(), "{kind:?}: {}", String::from_utf8_lossy(&made.stderr));
    let bytes = std::fs::read(&image).unwrap();
    std::fs::remove_dir_all(&temp).unwrap();
    Some(bytes)
}

fn shown(bytes: &[u8], path: &str) -> Result<Edge> {
    let below = Arc::new(Model::new(bytes.len()));
    below.write_at(bytes, 0, false).unwrap();
    put("ext2", simple(below), &[&format!("ext2file={path}")])
}

/// Why it is refused.
fn refused(bytes: &[u8], path: &str) -> String {
    shown(bytes, path).unwrap_err().to_string()
}

#[test]
fn a_file_is_read_in_all_kinds_of_file_systems() {
    let wanted = disk();
    for kind in KINDS {
        let Some(bytes) = made(kind) else { return };
        let disk = shown(&bytes, "/disks/deep/disk.raw").unwrap();
        assert_eq!(disk.info().size, wanted.len() as u64, "{kind:?}");
        assert!(!disk.info().abilities.write);
        let mut found = vec![0xaa; wanted.len()];
        disk.read(&mut found, 0).unwrap();
        assert!(found == wanted, "{kind:?}");
        let mut found = vec![0xaa; 5000];
        disk.read(&mut found, 57_777).unwrap();
        assert!(found == wanted[57_777..][..5000], "{kind:?}");
        assert!(disk.write(&[1], 0, false).is_err());
        assert_eq!(shown(&bytes, "/disks/../empty").unwrap().info().size, 0);
        for (path, why) in [
            ("/disks/nothing", "there is no `nothing`"),
            ("/disks", "is not a file's"),
            ("/link", "a link"),
            ("/empty/more", "there is no `more`"),
        ] {
            assert!(refused(&bytes, path).contains(why), "{kind:?} {path}");
        }
    }
}

#[test]
fn what_is_broken_or_would_have_to_be_recovered_is_refused() {
    let Some(bytes) = made(KINDS[0]) else { return };
    let mut to_recover = bytes.clone();
    to_recover[1024 + 0x60] |= 4;
    assert!(refused(&to_recover, "/disks/deep/disk.raw").contains("e2fsck"));
    let mut unknown = bytes.clone();
    unknown[1024 + 0x60] |= 1;
    assert!(refused(&unknown, "/disks/deep/disk.raw").contains("unknown features (0x1)"));
    assert!(refused(&vec![0; 1 << 20], "/disk").contains("no ext2"));
    assert!(refused(&bytes[..4 << 20], "/disks/deep/disk.raw").contains("longer than the disk"));
    // A bit in the superblock, in the groups, in the tables of inodes or in directories.
    let Some(bytes) = made(KINDS[4]) else { return };
    let (mut wrong, wanted) = (0, disk());
    for at in (1024..1 << 20).step_by(3001) {
        let mut flipped = bytes.clone();
        flipped[at] ^= 0x10;
        match shown(&flipped, "/disks/deep/disk.raw") {
            Ok(disk) => {
                let mut found = vec![0; wanted.len()];
                disk.read(&mut found, 0).unwrap();
                let others = found.iter().zip(&wanted).filter(|(a, b)| a != b).count();
                assert!(others <= 1, "{at}: {others} bytes differ");
            }
            Err(_) => wrong += 1,
        }
    }
    assert!(wrong > 0, "{wrong}");
}
