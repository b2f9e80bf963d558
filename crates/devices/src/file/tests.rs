use runtime::WorkPool;
use std::fs;

use device::{ErrorKind, Simple};

use super::*;
use crate::{Holds, OpenOptions};
use trial::Scratch;

fn open(path: &std::path::Path, write: bool) -> Result<File> {
    let options = OpenOptions { write, ..OpenOptions::default() };
    open_path(path, FileOptions::default(), &options)
}

fn unlocked() -> FileOptions {
    FileOptions { lock: Lock::Off, ..FileOptions::default() }
}

fn resolve(file: &File, offset: u64, len: u64) -> Vec<Extent> {
    let mut out = Vec::new();
    file.resolve(offset, len, 100, &mut out).unwrap();
    out
}

fn is_hot(file: &File, offset: u64, len: u64) -> bool {
    file.info().flat.as_ref().unwrap().advanced(offset).is_resident(len)
}

fn resolve_now(file: &File, offset: u64, len: u64, max: usize, out: &mut Vec<Extent>) -> bool {
    file.now(Now::Resolve { offset, len, max, out }).unwrap()
}

fn is_data_at(file: &File, offset: u64) -> bool {
    resolve(file, offset, 1)[0].kind == ExtentKind::Data
}

#[test]
fn two_writers_and_a_reader_with_a_writer_exclude_each_other() {
    let scratch = Scratch::new("/tmp");
    let path = scratch.file("disk", &[1; 4096]);
    let (one, two) = (open(&path, false).unwrap(), open(&path, false).unwrap());
    let error = open(&path, true).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Locked);
    assert!(error.to_string().contains("is in use by another program"), "{error}");
    drop((one, two));
    let writer = open(&path, true).unwrap();
    for write in [false, true] {
        let error = open(&path, write).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Locked);
        assert!(error.to_string().contains("running VM"), "{error}");
    }
    open_path(&path, unlocked(), &OpenOptions::read_write()).unwrap();
    drop(writer);
    open(&path, true).unwrap();
}

#[test]
fn a_refused_opening_leaves_no_lock_behind() {
    let scratch = Scratch::new("/dev/shm");
    let path = scratch.file("disk", &[1; 4096]);
    let reader = open(&path, false).unwrap();
    open(&path, true).unwrap_err();
    open(&path, false).unwrap();
    drop(reader);
    open(&path, true).unwrap();
}

#[test]
fn a_lock_of_another_kind_on_the_whole_file_excludes_too() {
    let scratch = Scratch::new("/tmp");
    let path = scratch.file("disk", &[1; 4096]);
    let other = fs::File::options().read(true).write(true).open(&path).unwrap();
    lock::hold_exclusively(other.as_fd());
    assert_eq!(open(&path, false).unwrap_err().kind(), ErrorKind::Locked);
    drop(other);
    open(&path, true).unwrap();
}

#[test]
fn a_target_in_use_is_refused_before_it_is_emptied() {
    let scratch = Scratch::new("/tmp");
    let path = scratch.file("disk", &[1; 5000]);
    let reader = open(&path, false).unwrap();
    let error = create(&path, 100, true, FileOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Locked);
    assert_eq!(fs::read(&path).unwrap(), [1; 5000]);
    drop(reader);
}

#[test]
fn a_target_is_made_or_written_over_and_stays_the_same_file() {
    use std::os::unix::fs::MetadataExt;
    let scratch = Scratch::new("/tmp");
    let path = scratch.path("disk");
    let made = create(&path, 10_000, true, FileOptions::default()).unwrap();
    let inode = fs::metadata(&path).unwrap().ino();
    assert!(made.holds == Holds::Zeroes && made.made.is_some());
    assert!(made.file.info().size == 10_000 && made.file.info().abilities.write);
    made.file.write_at(&[9; 100], 50, false).unwrap();
    drop(made);
    for (size, shown) in [(20_000, 20_000), (5_000, 20_000)] {
        let before = fs::read(&path).unwrap();
        let again = create(&path, size, true, FileOptions::default()).unwrap();
        assert!(again.holds == Holds::Old && again.made.is_none());
        assert_eq!(again.file.info().size, shown);
        assert_eq!(fs::read(&path).unwrap(), before, "nothing is changed before it is filled");
        again.file.finish().unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), size);
        assert_eq!(fs::metadata(&path).unwrap().ino(), inode);
    }
    // What was empty is known to be zero, and is not made longer in advance either.
    fs::write(&path, "").unwrap();
    let again = create(&path, 100, true, FileOptions::default()).unwrap();
    assert!(again.holds == Holds::Zeroes && again.file.info().size == 100);
    assert_eq!(fs::metadata(&path).unwrap().len(), 0);
}

#[test]
fn a_target_that_cannot_have_its_size_leaves_nothing_behind() {
    let scratch = Scratch::new("/tmp");
    let path = scratch.path("disk");
    // ext4 has a limit of 16 TiB; where the limit is higher the file is made.
    if create(&path, 1 << 62, true, FileOptions::default()).is_err() {
        assert!(!path.exists());
    }
}

#[test]
fn what_is_no_disk_is_refused_and_named() {
    let scratch = Scratch::new("/tmp");
    let pipe = scratch.path("pipe");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &pipe,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    for write in [false, true] {
        let error = open(&pipe, write).unwrap_err().to_string();
        assert!(error.contains("is a pipe"), "{error}");
        let error = open(&scratch.path(""), write).unwrap_err().to_string();
        assert!(error.contains("is a directory"), "{error}");
        let error = open("/dev/null".as_ref(), write).unwrap_err().to_string();
        assert!(error.contains("/dev/null: is a character device"), "{error}");
        let error = open(&scratch.path("none"), write).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
    }
    let error = create(&pipe, 10, true, FileOptions::default()).unwrap_err().to_string();
    assert!(error.contains("is a pipe"), "{error}");
}

#[test]
fn a_file_that_another_program_cuts_short_is_an_error_and_never_zeroes() {
    for dir in ["/tmp", "/dev/shm"] {
        let scratch = Scratch::new(dir);
        let path = scratch.file("disk", &[1; 64 << 10]);
        let file = open(&path, false).unwrap();
        fs::File::options().write(true).open(&path).unwrap().set_len(10_000).unwrap();
        let mut bytes = vec![0; 1000];
        file.read_at(&mut bytes, 9000).unwrap();
        let error = file.read_at(&mut bytes, 9001).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
        assert!(error.to_string().contains("shorter than when it was opened"), "{error}");
        assert!(!file.read_now(&mut bytes, 9001));
        // A copy that trusts the map must get the error, too.
        assert!(is_data_at(&file, 20_000));
        assert!(resolve(&file, 0, 64 << 10).iter().all(|e| e.kind == ExtentKind::Data));
    }
}

#[test]
fn a_file_that_grew_and_is_cut_short_is_not_made_longer_and_one_that_an_image_extends_is() {
    let scratch = Scratch::new("/tmp");
    let path = scratch.file("disk", &[1; 10_000]);
    let file = open(&path, true).unwrap();
    let cut = |len| fs::File::options().write(true).open(&path).unwrap().set_len(len).unwrap();
    // An image reads behind the end, and is written there.
    file.read_at(&mut [0; 10], 10_000).unwrap_err();
    file.write_at(&[2; 1000], 10_000, false).unwrap();
    cut(30_000);
    assert_eq!(file.size_now(), Some(30_000));
    cut(20_000);
    file.read_at(&mut [0; 10], 25_000).unwrap_err();
    for _ in 0..2 {
        file.write_at(&[2; 10], 25_000, false).unwrap_err();
    }
    file.write_at(&[2; 10], 19_990, false).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), 20_000);
}

#[test]
fn a_file_that_another_program_cuts_short_is_not_made_longer_by_a_write() {
    let scratch = Scratch::new("/tmp");
    let path = scratch.file("disk", &[1; 64 << 10]);
    let file = open(&path, true).unwrap();
    fs::File::options().write(true).open(&path).unwrap().set_len(10_000).unwrap();
    file.read_at(&mut [0; 1000], 20_000).unwrap_err();
    let error = file.write_at(&[2; 10], 20_000, false).unwrap_err();
    assert!(error.to_string().contains("shorter than when it was opened"), "{error}");
    file.write_at(&[2; 10], 9991, false).unwrap_err();
    file.write_at(&[2; 10], 9990, false).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), 10_000);
    // A file that was repaired is believed.
    fs::write(&path, [1; 64 << 10]).unwrap();
    file.write_at(&[2; 10], 20_000, false).unwrap();
}

#[test]
fn a_hole_that_another_process_fills_is_data_at_once() {
    for dir in ["/tmp", "/dev/shm"] {
        let scratch = Scratch::new(dir);
        let path = scratch.file("disk", b"");
        let other = fs::File::options().write(true).open(&path).unwrap();
        other.set_len(1 << 20).unwrap();
        let file = open_path(&path, unlocked(), &OpenOptions::default()).unwrap();
        assert_eq!(resolve(&file, 0, 1 << 20).len(), 1);
        assert!(!is_data_at(&file, 500_000));
        std::os::unix::fs::FileExt::write_all_at(&other, &[1; 10], 500_000).unwrap();
        assert!(is_data_at(&file, 500_000));
        assert_eq!(resolve(&file, 0, 1 << 20).len(), 3);
    }
}

#[test]
fn holes_of_our_own_making_are_not_remembered_as_data() {
    let scratch = Scratch::new("/dev/shm");
    let path = scratch.file("disk", &[1; 1 << 20]);
    let file = open(&path, true).unwrap();
    let flags = ZeroFlags { may_unmap: true, fast_only: true, ..ZeroFlags::default() };
    assert_eq!(resolve(&file, 0, 1 << 20).len(), 1);
    file.zero(256 << 10, 256 << 10, flags).unwrap();
    let kinds: Vec<_> = resolve(&file, 0, 1 << 20).into_iter().map(|e| (e.kind, e.len)).collect();
    let (data, hole) = (ExtentKind::Data, ExtentKind::Hole);
    assert_eq!(kinds, [(data, 256 << 10), (hole, 256 << 10), (data, 512 << 10)]);
    file.trim(0, 4096, false).unwrap();
    assert!(!is_data_at(&file, 0) && is_data_at(&file, 4096));
}

#[test]
fn zero_without_leave_to_unmap_stays_allocated() {
    use std::os::unix::fs::MetadataExt;
    for dir in ["/tmp", "/dev/shm"] {
        let scratch = Scratch::new(dir);
        let path = scratch.file("disk", &[1; 1 << 20]);
        let file = open(&path, true).unwrap();
        let before = fs::metadata(&path).unwrap().blocks();
        let keep = ZeroFlags { ..ZeroFlags::default() };
        // Where zeroing while keeping the room would write pages (tmpfs), a fast zero changes
        // nothing.
        if let Err(e) = file.zero(4096, 512 << 10, ZeroFlags { fast_only: true, ..keep }) {
            assert_eq!(e.kind(), device::ErrorKind::NotFast, "{dir}: {e}");
            assert!(fs::read(&path).unwrap() == [1; 1 << 20], "{dir}");
        }
        file.zero(4096, 512 << 10, keep).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().blocks(), before, "{dir}");
        file.zero(4096, 512 << 10, ZeroFlags { may_unmap: true, ..keep }).unwrap();
        assert!(fs::metadata(&path).unwrap().blocks() < before, "{dir}");
        let mut bytes = vec![1; 1 << 20];
        file.read_at(&mut bytes, 0).unwrap();
        let zeroes = bytes.iter().filter(|b| **b == 0).count();
        assert_eq!(zeroes, 512 << 10, "{dir}");
    }
}

#[test]
fn parts_of_blocks_are_written_where_there_is_data_and_holes_stay_holes() {
    use std::os::unix::fs::MetadataExt;
    let flags = ZeroFlags { may_unmap: true, fast_only: true, ..ZeroFlags::default() };
    for dir in ["/tmp", "/dev/shm"] {
        let scratch = Scratch::new(dir);
        let path = scratch.file("disk", &[1; 64 << 10]);
        fs::File::options().write(true).open(&path).unwrap().set_len(1 << 20).unwrap();
        let file = open(&path, true).unwrap();
        let allocated = || fs::metadata(&path).unwrap().blocks() * 512;
        let before = allocated();
        // Part of one block, and parts of two.
        file.zero(512, 512, flags).unwrap();
        file.zero(8191, 2, flags).unwrap();
        assert_eq!(allocated(), before, "{dir}");
        // Whole blocks between two ends.
        file.zero(20_000, 20_000, flags).unwrap();
        assert_eq!(allocated(), before - (36_864 - 20_480), "{dir}");
        // What is a hole, also where the file ends within a block.
        for (offset, len) in [(100 << 10, 10), ((200 << 10) - 7, 9000), ((1 << 20) - 5, 5)] {
            file.zero(offset, len, flags).unwrap();
        }
        assert_eq!(allocated(), before - (36_864 - 20_480), "{dir}");
        let mut want = vec![0; 1 << 20];
        want[..64 << 10].fill(1);
        for (start, end) in [(512, 1024), (8191, 8193), (20_000, 40_000)] {
            want[start..end].fill(0);
        }
        assert!(fs::read(&path).unwrap() == want, "{dir}");
        // A hole that is to be kept allocated is.
        file.zero(100 << 10, 10, ZeroFlags { may_unmap: false, ..flags }).unwrap();
        assert!(is_data_at(&file, 100 << 10), "{dir}");
        // A trim does the same, and the ends of a hole stay one.
        let before = allocated();
        for (offset, len) in
            [(4000, 90), (4000, 1000), (48_000, 12_000), (70_001, 9), (65_000, 5000)]
        {
            file.trim(offset, len, false).unwrap();
            let (start, end) =
                (usize::try_from(offset).unwrap(), usize::try_from(offset + len).unwrap());
            want[start..end].fill(0);
            assert!(fs::read(&path).unwrap() == want, "{dir}: {offset}");
        }
        assert_eq!(allocated(), before - 8192, "{dir}");
        // What lies beyond the end of a file that was cut short is not written.
        fs::File::options().write(true).open(&path).unwrap().set_len(5000).unwrap();
        file.trim(4500, 1000, false).unwrap();
        file.trim(6000, 9000, false).unwrap();
        want.truncate(5000);
        want[4500..].fill(0);
        assert!(fs::read(&path).unwrap() == want, "{dir}");
    }
}

#[test]
fn what_is_just_written_is_hot_and_a_hole_of_a_disk_file_is_not() {
    let scratch = Scratch::new("/tmp");
    let path = scratch.file("disk", &[1; 1 << 20]);
    fs::File::options().write(true).open(&path).unwrap().set_len(2 << 20).unwrap();
    let file = open(&path, true).unwrap();
    assert!(is_hot(&file, 0, 1 << 20));
    assert!(is_hot(&file, 4095, 2));
    assert!(!is_hot(&file, (1 << 20) - 1, 4097));
    assert!(is_hot(&file, 0, 0) && !is_hot(&file, u64::MAX, 1 << 30));
    let mut bytes = vec![0; 1 << 20];
    assert!(file.read_now(&mut bytes, 0));
    assert!(bytes.iter().all(|b| *b == 1));
}

#[test]
fn without_waiting_only_what_is_remembered_of_the_map_is_said_and_disks_are_not_written() {
    let scratch = Scratch::new("/tmp");
    let file = open(&scratch.file("disk", &[1; 1 << 20]), true).unwrap();
    let mut out = Vec::new();
    assert!(!resolve_now(&file, 4096, 4096, 10, &mut out) && out.is_empty());
    file.resolve(4096, 4096, 10, &mut out).unwrap();
    out.clear();
    assert!(resolve_now(&file, 8192, 1 << 19, 10, &mut out));
    assert_eq!((out.len(), out[0].start, out[0].len), (1, 8192, 1 << 19));
    assert!(out[0].place.is_some());
    // What was made a hole is not remembered, not even as one.
    file.trim(8192, 4096, false).unwrap();
    out.clear();
    assert!(!resolve_now(&file, 8192, 4096, 10, &mut out) && out.is_empty());
    assert!(!file.now(Now::Write { offset: 0, data: &[2; 10], fua: false }).unwrap());

    let memory = Scratch::new("/dev/shm");
    let file = open(&memory.file("disk", &[1; 4096]), true).unwrap();
    let disk = Simple::edge(file, &WorkPool::new(1));
    assert!(disk.write_now(&[2; 10], 5, false).unwrap());
    assert!(disk.resolve_now(0, 4096, 10, &mut out).unwrap());
    let mut bytes = [0; 12];
    assert!(disk.read_now(&mut bytes, 4).unwrap());
    assert_eq!(bytes, [1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1]);
}

#[test]
fn a_file_in_memory_never_waits_and_a_file_on_a_disk_may() {
    for (dir, waits) in [("/tmp", true), ("/dev/shm", false)] {
        let scratch = Scratch::new(dir);
        let file = open(&scratch.file("disk", &[1; 4096]), false).unwrap();
        assert_eq!(file.waits(), waits);
        assert!(!file.info().abilities.write);
        let edge = Simple::edge(file, &WorkPool::new(1));
        assert_eq!(edge.write(&[1], 0, false).unwrap_err().kind(), ErrorKind::ReadOnly);
    }
}

#[test]
fn nothing_of_a_file_in_memory_is_done_at_once_while_a_long_hole_is_punched_in_it() {
    let scratch = Scratch::new("/dev/shm");
    let path = scratch.file("disk", &[1; 65536]);
    let options = OpenOptions::read_write();
    let file = || Arc::new(open_path(&path, unlocked(), &options).unwrap());
    let (first, second) = (file(), file());
    let other = open(&scratch.file("other", &[1; 65536]), true).unwrap();
    let [disk, again] =
        [&first, &second].map(|f| Simple::shared_edge(f.clone(), &WorkPool::new(2)));
    let other = Simple::edge(other, &WorkPool::new(2));
    let at_once = |disk: &device::Edge| {
        let written = disk.write_now(&[2; 10], 5, false).unwrap();
        let mut out = Vec::new();
        let resolved = disk.resolve_now(0, 4096, 10, &mut out).unwrap();
        (written, resolved)
    };
    assert_eq!(at_once(&disk), (true, true));
    // What was just found is remembered, which needs no lock.
    first.map.forget(0, 65536);
    second.map.forget(0, 65536);
    let punch = first.long.begin(1 << 30);
    for disk in [&disk, &again] {
        assert_eq!(at_once(disk), (false, false));
        disk.write(&[3; 10], 100, false).unwrap();
        let mut bytes = [0; 10];
        disk.read(&mut bytes, 100).unwrap();
        assert_eq!(bytes, [3; 10]);
    }
    assert_eq!(at_once(&other), (true, true));
    drop(punch);
    for disk in [disk, again] {
        assert_eq!(at_once(&disk), (true, true));
    }
}

#[test]
fn long_zeroes_and_trims_of_a_file_in_memory_are_counted_while_they_last() {
    const LONG: u64 = 64 << 20;
    let bytes = vec![1; usize::try_from(LONG).unwrap()];
    let scratch = Scratch::new("/dev/shm");
    let file = open(&scratch.file("disk", &bytes), true).unwrap();
    let change = |turn: u32| match turn % 3 {
        0 => file.trim(0, LONG, false),
        1 => file.zero(0, LONG, ZeroFlags { may_unmap: true, ..ZeroFlags::default() }),
        _ => file.zero(0, LONG, ZeroFlags::default()),
    };
    for turn in 0..3 {
        // Another thread may come to look only when it is over.
        let seen = (0..100).any(|_| {
            file.write_at(&bytes, 0, false).unwrap();
            std::thread::scope(|scope| {
                let work = scope.spawn(|| change(turn).unwrap());
                let mut seen = false;
                while !work.is_finished() {
                    seen |= file.waits();
                }
                seen
            })
        });
        assert!(seen && !file.waits(), "{turn}");
    }
    let mut read = bytes.clone();
    file.read_at(&mut read, 0).unwrap();
    assert!(read.iter().all(|b| *b == 0));
}

#[test]
fn flushes_and_durable_writes_from_many_threads_all_succeed() {
    let scratch = Scratch::new("/tmp");
    let path = scratch.file("disk", &[0; 64 << 10]);
    let file = open(&path, true).unwrap();
    std::thread::scope(|s| {
        for i in 0..4u8 {
            let file = &file;
            s.spawn(move || {
                for j in 0..4 {
                    let at = u64::from(i) * 4096 + j;
                    file.write_at(&[i + 1], at, j % 2 == 0).unwrap();
                    file.flush().unwrap();
                }
            });
        }
    });
    let bytes = fs::read(&path).unwrap();
    assert_eq!((bytes[0], bytes[4096 + 3], bytes[3 * 4096]), (1, 2, 4));
}

/// Makes a file that even root cannot write; `false` if that is not possible here.
fn set_immutable(path: &std::path::Path, on: bool) -> bool {
    use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};
    let file = fs::File::open(path).unwrap();
    ioctl_getflags(&file).is_ok_and(|flags| {
        let mut flags = flags;
        flags.set(IFlags::IMMUTABLE, on);
        ioctl_setflags(&file, flags).is_ok()
    })
}

#[test]
fn an_unwritable_file_is_opened_for_reading_only_when_that_will_do() {
    use std::os::unix::fs::PermissionsExt;
    let scratch = Scratch::new("/tmp");
    let path = scratch.file("disk", &[1; 512]);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).unwrap();
    let immutable = set_immutable(&path, true);
    let strict = OpenOptions::read_write();
    let refused = open_path(&path, FileOptions::default(), &strict);
    let lenient = OpenOptions { or_read_only: true, ..strict };
    let file = open_path(&path, FileOptions::default(), &lenient);
    if immutable {
        set_immutable(&path, false);
    }
    // Root without the means to make a file immutable can write all the same.
    if immutable || !rustix::process::geteuid().is_root() {
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::PermissionDenied);
        assert!(!file.unwrap().info().abilities.write);
    }
}

#[test]
fn parameters_of_a_file_are_read_and_refused_by_name() {
    let scratch = Scratch::new("/tmp");
    let path = scratch.file("a b:c", &[1; 512]);
    let named = |query: &str| {
        let disk = crate::Named::parse(&format!("file:{}?{query}", path.display()))?;
        disk.open(&OpenOptions::default(), &runtime::Context::default()).map(|d| d.info().size)
    };
    assert_eq!(named("fadvise=random&lock=on").unwrap(), 512);
    let error = named("lock=maybe").unwrap_err().to_string();
    assert!(error.contains("lock=maybe is not one of on, off, auto"), "{error}");
    for mode in ["default", "none", "direct", "auto"] {
        assert_eq!(named(&format!("cache={mode}")).unwrap(), 512);
    }
    let error = named("cache=writeback").unwrap_err().to_string();
    assert!(error.contains("cache=writeback is not one of default, none, direct, auto"), "{error}");
    let error = named("caching=none").unwrap_err().to_string();
    assert!(error.contains("there is no parameter `caching`"), "{error}");
}

#[test]
fn what_is_taken_from_another_file_is_there_and_no_more() {
    let scratch = Scratch::new("/dev/shm");
    let source = fs::File::open(scratch.file("source", &[5; 8192])).unwrap();
    let source = Place::new(Arc::new(source.into()), 0);
    let path = scratch.file("disk", &[0; 65536]);
    let disk = Simple::edge(open(&path, true).unwrap(), &WorkPool::new(1));
    // Files in memory never share.
    assert_eq!(disk.take(0, 8192, source.clone(), true).unwrap(), 0);
    assert_eq!(fs::read(&path).unwrap(), [0; 65536]);
    // The source ends.
    assert_eq!(disk.take(100, 10_000, source.clone(), false).unwrap(), 8192);
    let bytes = fs::read(&path).unwrap();
    assert!(bytes.iter().enumerate().all(|(i, b)| (*b == 5) == (100..8292).contains(&i)));
    assert_eq!(disk.take(0, 10, source.advanced(8192), false).unwrap(), 0);
}

#[test]
fn nothing_is_taken_beyond_the_end_of_a_file_that_was_shortened() {
    let scratch = Scratch::new("/dev/shm");
    let source = fs::File::open(scratch.file("source", &[5; 8192])).unwrap();
    let path = scratch.file("disk", &[1; 65536]);
    let disk = open(&path, true).unwrap();
    fs::File::options().write(true).open(&path).unwrap().set_len(100).unwrap();
    assert!(disk.read_at(&mut [0; 10], 1000).is_err());
    assert!(disk.take(4096, 4096, &Place::new(Arc::new(source.into()), 0), false).is_err());
    assert_eq!(fs::metadata(&path).unwrap().len(), 100);
}
