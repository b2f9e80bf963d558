//! The file device on a real block device: a loop device over a sparse file. Needs root and a free
//! loop device; where there is none the tests say so and pass.

use crate::scratch;

use runtime::WorkPool;
use std::os::unix::fs::MetadataExt;
use std::process::Command;
use std::sync::Arc;

use device::{Blocking, Device, Edge, ErrorKind, ExtentKind, Name, ZeroFlags};
use devices::{Holds, OpenOptions};
use scratch::Scratch;

struct Loop {
    device: String,
    scratch: Scratch,
}

impl Loop {
    fn new(size: u64, sector: u32) -> Option<Self> {
        let scratch = Scratch::new("/tmp");
        let backing = scratch.path("backing");
        std::fs::File::create(&backing).unwrap().set_len(size).unwrap();
        let mut losetup = Command::new("losetup");
        losetup.args(["--show", "--sector-size", &sector.to_string(), "-f"]).arg(&backing);
        match losetup.output() {
            Ok(output) if output.status.success() => {
                let device = String::from_utf8(output.stdout).unwrap().trim().to_owned();
                Some(Self { device, scratch })
            }
            _ => {
                eprintln!("skipped: no loop device to be had");
                None
            }
        }
    }

    fn open(&self, write: bool) -> Arc<dyn Device> {
        let options = OpenOptions { write, ..OpenOptions::default() };
        devices::Named::of(&Name::Path(self.device.clone()))
            .and_then(|disk| disk.open(&options, &runtime::Context::default()))
            .unwrap()
    }

    fn blocks(&self) -> u64 {
        std::fs::metadata(self.scratch.path("backing")).unwrap().blocks()
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.device]).status();
    }
}

const SIZE: u64 = 8 << 20;

#[test]
fn a_block_device_is_described_and_zeroed_to_the_byte() {
    let _alone = scratch::alone();
    for sector in [512, 4096] {
        let Some(disk) = Loop::new(SIZE, sector) else { return };
        let edge = Edge::new(disk.open(true), WorkPool::new(1));
        let info = edge.info();
        assert_eq!((info.size, info.blocks.minimum), (SIZE, 1));
        assert!(info.abilities.write && !info.abilities.extents);
        let mut want = vec![0xee; usize::try_from(SIZE).unwrap()];
        edge.write(&want, 0, false).unwrap();
        for (i, (offset, len)) in [
            (0, 4096u64),
            (5, 1),
            (5000, 3000),
            (8191, 2),
            (100_000, 500_000),
            (1 << 20, 1 << 20),
            ((4 << 20) + 511, (1 << 20) + 2),
            (SIZE - 5000, 5000),
        ]
        .into_iter()
        .enumerate()
        {
            for fast_only in [true, false] {
                let flags =
                    ZeroFlags { written: false, may_unmap: i % 2 == 0, fast_only, fua: i == 3 };
                let done = edge.zero(offset, len, flags);
                if let Err(e) = &done {
                    assert!(fast_only && e.kind() == ErrorKind::NotFast, "{e}");
                } else {
                    let start = usize::try_from(offset).unwrap();
                    want[start..start + usize::try_from(len).unwrap()].fill(0);
                }
                let mut got = vec![1; want.len()];
                edge.read(&mut got, 0).unwrap();
                assert!(got == want, "{sector}: {offset}+{len} {flags:?}");
            }
        }
        let mut out = Vec::new();
        edge.resolve(0, SIZE, 10, &mut out).unwrap();
        assert_eq!((out.len(), out[0].kind, out[0].len), (1, ExtentKind::Data, SIZE));
    }
}

#[test]
fn a_fast_zero_of_a_block_device_is_a_hole_and_without_leave_to_unmap_it_is_refused_unchanged() {
    let _alone = scratch::alone();
    let Some(disk) = Loop::new(SIZE, 512) else { return };
    let edge = Edge::new(disk.open(true), WorkPool::new(1));
    edge.write(&vec![0xee; 4 << 20], 0, true).unwrap();
    let full = disk.blocks();
    let fast = ZeroFlags { may_unmap: false, fast_only: true, ..ZeroFlags::default() };
    assert_eq!(edge.zero(100, 1 << 20, fast).unwrap_err().kind(), ErrorKind::NotFast);
    let mut bytes = vec![0; 1 << 20];
    edge.read(&mut bytes, 100).unwrap();
    assert!(bytes.iter().all(|b| *b == 0xee));
    edge.zero(100, 1 << 20, ZeroFlags { may_unmap: true, ..fast }).unwrap();
    edge.read(&mut bytes, 100).unwrap();
    assert!(bytes.iter().all(|b| *b == 0));
    assert!(disk.blocks() < full);
    let less = disk.blocks();
    edge.trim(2 << 20, 1 << 20, true).unwrap();
    assert!(disk.blocks() < less);
}

#[test]
fn a_block_device_as_target_is_kept_as_it_is_and_must_be_large_enough() {
    let _alone = scratch::alone();
    let Some(disk) = Loop::new(SIZE, 512) else { return };
    let path = disk.device.as_ref();
    let create = |size| devices::file::create(path, size, true, Default::default());
    let target = create(SIZE - 1).unwrap();
    assert!(target.holds == Holds::Unknown && target.made.is_none());
    assert_eq!(target.file.info().size, SIZE);
    target.file.finish().unwrap();
    drop(target);
    let error = create(SIZE + 1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
}

/// Another program gives a volume another size, here the loop device and what is behind it.
#[test]
fn a_block_device_and_a_file_that_grow_are_used_to_their_new_end() {
    let _alone = scratch::alone();
    let Some(disk) = Loop::new(SIZE, 512) else { return };
    let backing = disk.scratch.path("backing");
    let file = backing.to_str().unwrap().to_owned();
    for (name, direct) in [(&disk.device, false), (&disk.device, true), (&file, false)] {
        std::fs::File::options().write(true).open(&backing).unwrap().set_len(SIZE).unwrap();
        let seen = || {
            assert!(Command::new("losetup").args(["-c", &disk.device]).status().unwrap().success());
        };
        seen();
        let text = format!("file:{name}?cache={}", if direct { "direct" } else { "default" });
        let options = OpenOptions { write: true, lock: false, ..OpenOptions::default() };
        let opened = devices::Named::of(&Name::parse(&text).unwrap()).unwrap();
        let opened = opened.open(&options, &runtime::Context::default()).unwrap();
        let edge = Edge::new(opened, WorkPool::new(1));
        assert_eq!((edge.look(), edge.info().size), (SIZE, SIZE));
        let longer = SIZE + (1 << 20);
        std::fs::File::options().write(true).open(&backing).unwrap().set_len(longer).unwrap();
        seen();
        assert_eq!(edge.look(), longer, "{name}");
        for offset in [SIZE - 100, SIZE + 4096, longer - 1000] {
            edge.write(&[0xab; 1000], offset, true).unwrap();
            let mut read = [0; 1000];
            edge.read(&mut read, offset).unwrap();
            assert_eq!(read, [0xab; 1000]);
        }
        assert!(edge.write(&[1; 1000], longer - 999, false).is_err());
        edge.zero(SIZE - 4096, 4096 + (1 << 20), ZeroFlags::default()).unwrap();
        let mut out = Vec::new();
        edge.resolve(0, longer, 100, &mut out).unwrap();
        let mut read = vec![1; 1 << 20];
        edge.read(&mut read, SIZE).unwrap();
        assert!(read.iter().all(|byte| *byte == 0));
    }
}

fn told(device: &str, name: &str) -> Option<String> {
    let name = format!("/sys/block/{}/{name}", device.rsplit('/').next().unwrap());
    Some(std::fs::read_to_string(name).ok()?.trim().to_owned())
}

#[test]
fn a_block_device_says_of_itself_what_the_kernel_tells_of_it() {
    let _alone = scratch::alone();
    for sector in [512, 4096] {
        let Some(disk) = Loop::new(SIZE, sector) else { return };
        let opened = disk.open(false);
        let (info, limit) = (opened.info(), |name: &str| {
            told(&disk.device, &format!("queue/{name}")).unwrap().parse::<u32>().unwrap()
        });
        assert!(info.granules.physical >= sector);
        assert_eq!(info.granules.physical, limit("physical_block_size"));
        assert_eq!(info.granules.trim, limit("discard_granularity"));
        assert_eq!(info.granules.zero, 0, "the kernel tells of none");
        assert_eq!(info.serial, None, "a loop device has none");
    }
    let all = std::fs::read_dir("/sys/block").unwrap().map(|one| one.unwrap().file_name());
    let has_serial = |name: &String| {
        let serial = ["serial", "device/serial"].iter().find_map(|file| told(name, file));
        serial.filter(|serial| !serial.is_empty())
    };
    let all = all.map(|name| name.into_string().unwrap());
    let Some((name, serial)) =
        all.into_iter().find_map(|name| has_serial(&name).map(|it| (name, it)))
    else {
        return eprintln!("skipped: no block device here has a serial number");
    };
    let named = devices::Named::of(&Name::Path(format!("/dev/{name}"))).unwrap();
    let options = OpenOptions { lock: false, ..OpenOptions::default() };
    match named.open(&options, &runtime::Context::default()) {
        Ok(opened) => assert_eq!(opened.info().serial.as_deref(), Some(&*serial)),
        Err(e) => eprintln!("skipped: {e}"),
    }
}
