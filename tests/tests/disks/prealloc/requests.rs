//! Which requests the kernel gets, in which order; and kernels that lack some of them, which strace
//! plays.

use blackbox::run::Outcome;
use blackbox::storage::Mounted;

use super::extents::all_written;
use super::{ROOM, text};

const CALLS: &str = "openat,fallocate,ftruncate,pwritev,pwritev2,pwrite64,ioctl,fdatasync";

/// Runs `words` under strace, with what it is to inject; what it did, and the calls.
fn traced(words: &[&str], inject: &[&str]) -> Option<(Outcome, Vec<String>)> {
    let injected: Vec<_> = inject.iter().map(|inject| format!("inject={inject}")).collect();
    let calls = format!("trace={CALLS}");
    let all = [&calls].into_iter().chain(&injected).flat_map(|option| ["-e", option]);
    let (outcome, log) = crate::tracing::traced(&all.collect::<Vec<_>>(), words)?;
    Some((outcome, log.lines().map(str::to_owned).collect()))
}

fn first(calls: &[String], what: &[&str]) -> usize {
    let found = calls.iter().position(|call| what.iter().all(|what| call.contains(what)));
    found.unwrap_or_else(|| panic!("no {what:?} in {calls:#?}"))
}

fn count(calls: &[String], what: &str) -> usize {
    calls.iter().filter(|call| call.contains(what)).count()
}

#[test]
fn the_room_comes_first_then_the_length_then_zeroes_past_the_cache_then_the_sync() {
    let Some(fs) = Mounted::new("ext4", ROOM) else { return };
    let disk = fs.join("disk");
    let words = ["prealloc", "--size", "64M", text(&disk)];
    let Some((outcome, calls)) = traced(&words, &[]) else { return };
    outcome.succeeded();
    let order = [
        first(&calls, &["fallocate(", "FALLOC_FL_KEEP_SIZE", "0, 67108864"]),
        first(&calls, &["ftruncate(", "67108864"]),
        first(&calls, &["openat(", "/proc/self/fd/", "O_DIRECT"]),
        first(&calls, &["pwritev"]),
        calls.iter().rposition(|call| call.contains("fdatasync(")).unwrap(),
    ];
    assert!(order.is_sorted(), "{order:?} {calls:#?}");
    // 8 MiB each: the queue of a loop device has no zeroes that need not be written.
    assert_eq!((count(&calls, "pwritev("), count(&calls, "fallocate(")), (8, 1), "{calls:#?}");
}

#[test]
fn a_file_system_that_cannot_allocate_is_written_all_the_same() {
    let Some(fs) = Mounted::new("ext4", ROOM) else { return };
    let disk = fs.join("disk");
    let words = ["prealloc", "--size", "20M", text(&disk)];
    let Some((outcome, _)) = traced(&words, &["fallocate:error=EOPNOTSUPP"]) else { return };
    assert!(outcome.succeeded().contains("direct writes"), "{outcome:?}");
    all_written(&disk);
    let other = fs.join("other");
    let words = ["prealloc", "--size", "20M", "--mode", "unwritten", text(&other)];
    let Some((outcome, _)) = traced(&words, &["fallocate:error=EOPNOTSUPP"]) else { return };
    assert!(outcome.failed().contains("allocate"), "{outcome:?}");
    assert!(!other.exists());
}

#[test]
fn without_direct_writes_it_goes_through_the_page_cache() {
    let Some(fs) = Mounted::new("xfs", ROOM) else { return };
    let disk = fs.join("disk");
    let words = ["prealloc", "--size", "20M", text(&disk)];
    let Some((outcome, _)) = traced(&words, &["pwritev:error=EINVAL"]) else { return };
    assert!(outcome.succeeded().contains("page cache"), "{outcome:?}");
    all_written(&disk);
}

#[test]
fn an_error_of_the_disk_is_reported_and_nothing_else_is_tried() {
    let Some(fs) = Mounted::new("ext4", ROOM) else { return };
    for (injected, said) in [
        ("pwritev:error=EIO:when=2", "Input/output error"),
        ("pwritev:error=ENOSPC:when=2", "No space left"),
        ("fdatasync:error=EIO", "Input/output error"),
    ] {
        let disk = fs.join("disk");
        let words = ["prealloc", "--size", "40M", text(&disk)];
        let Some((outcome, calls)) = traced(&words, &[injected]) else { return };
        let line = outcome.failed();
        assert!(line.contains(said) && line.contains("the same command completes it"), "{line}");
        assert!(count(&calls, "pwrite64(") == 0, "{calls:#?}");
        super::prealloc(&disk, &["--size", "40M"]);
        all_written(&disk);
        std::fs::remove_file(&disk).unwrap();
    }
}

/// Whatever the step at which there is no room: the exit status and the line say so, what was there
/// is there, and a second run completes what was begun.
#[test]
fn a_lack_of_room_at_any_step_is_reported_and_leaves_no_half_image() {
    let Some(fs) = Mounted::new("ext4", ROOM) else { return };
    let old = blackbox::temp::pattern(0, 100_000);
    for (injected, is_begun) in [
        ("fallocate:error=ENOSPC", false),
        ("ftruncate:error=ENOSPC:when=1", false),
        ("pwritev:error=ENOSPC:when=1", true),
        ("pwritev:error=ENOSPC:when=2", true),
        ("pwrite64:error=ENOSPC", true),
        ("fdatasync:error=ENOSPC", true),
    ] {
        for is_new in [true, false] {
            let disk = fs.join("disk");
            if !is_new {
                std::fs::write(&disk, &old).unwrap();
            }
            // The end is no whole block: it goes through the page cache.
            let words = ["prealloc", "--size", "40000001", text(&disk)];
            let Some((outcome, calls)) = traced(&words, &[injected]) else { return };
            assert!(calls.iter().any(|call| call.contains("(INJECTED)")), "{injected}");
            assert_eq!(outcome.status.code(), Some(1), "{injected}");
            assert!(outcome.failed().contains("No space left"), "{injected}: {outcome:?}");
            let want = if is_new { &[][..] } else { &old };
            assert_eq!(disk.exists(), is_begun || !is_new, "{injected}");
            if disk.exists() {
                let bytes = std::fs::read(&disk).unwrap();
                let len = if is_begun { 40_000_001 } else { want.len() };
                assert!(bytes.len() == len && bytes.starts_with(want), "{injected}");
                assert!(bytes[want.len()..].iter().all(|b| *b == 0), "{injected}");
            }
            super::prealloc(&disk, &["--size", "40000001"]);
            all_written(&disk);
            assert!(std::fs::read(&disk).unwrap().starts_with(want), "{injected}");
            std::fs::remove_file(&disk).unwrap();
        }
    }
}
