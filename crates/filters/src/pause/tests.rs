//! Requests stop and resume, and the answers on the control socket are true.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use device::model::Model;
use device::{Edge, ErrorKind};
use runtime::{Context, WorkPool};

use crate::kit::tested::{client, personal, put_in, read, simple, start, write};
use trial::TestDevice;

static NUMBER: AtomicU64 = AtomicU64::new(0);

fn socket() -> PathBuf {
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("diskferry-pause-{}-{number}", std::process::id()))
}

fn pausing(device: std::sync::Arc<dyn device::Device>) -> (Edge, PathBuf, Context) {
    let (context, path) = (Context::new(WorkPool::new(2)), socket());
    let word = format!("pause-control={}", path.display());
    (put_in(&context, "pause", device, &[&word]).unwrap(), path, context)
}

fn control(path: &Path) -> UnixStream {
    let stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream
}

/// Sends `words`, and returns the answers.
fn say(mut stream: &UnixStream, words: &str, answers: usize) -> String {
    stream.write_all(words.as_bytes()).unwrap();
    let mut all = vec![0; answers];
    stream.read_exact(&mut all).unwrap();
    String::from_utf8(all).unwrap()
}

#[test]
fn what_comes_during_a_pause_is_held_back_and_begun_when_it_ends() {
    let probe = TestDevice::new(1 << 20);
    let (disk, path, context) = pausing(probe.clone());
    let control = control(&path);
    probe.hold();
    let before = start(&disk, read(0, 512));
    // There is no answer while a request is in flight.
    (&control).write_all(b"p").unwrap();
    control.set_nonblocking(true).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!((&control).read(&mut [0; 1]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    control.set_nonblocking(false).unwrap();
    probe.release();
    before.recv().unwrap().unwrap();
    assert_eq!(say(&control, "", 1), "P");
    probe.asked();
    let (first, second) = (start(&disk, write(0, 512, 1)), start(&disk, write(4096, 512, 2)));
    let flush = start(&disk, device::Operation::Flush);
    assert!(first.try_recv().is_err() && second.try_recv().is_err() && flush.try_recv().is_err());
    assert!(probe.asked().is_empty() && !disk.read_now(&mut [0; 512], 0).unwrap());
    assert_eq!(say(&control, "\n p x\nr", 3), "PXR");
    first.recv().unwrap().unwrap();
    second.recv().unwrap().unwrap();
    flush.recv().unwrap().unwrap();
    assert_eq!(probe.asked(), ["write 0+512", "write 4096+512", "flush"]);
    context.control.end();
    assert!(!path.exists());
}

#[test]
fn another_connection_may_end_a_pause_that_is_not_reached() {
    let probe = TestDevice::new(1 << 20);
    let (disk, path, _context) = pausing(probe.clone());
    let (one, other) = (control(&path), control(&path));
    probe.hold();
    let hangs = start(&disk, read(0, 512));
    (&one).write_all(b"p").unwrap();
    // The command may not have been read yet: requests may still reach the device below.
    let mut more = Vec::new();
    loop {
        let before = probe.held().len();
        more.push(start(&disk, device::Operation::Prefetch { offset: 0, len: 512 }));
        if probe.held().len() == before {
            break;
        }
    }
    assert_eq!(say(&other, "r", 1), "R");
    assert_eq!(say(&one, "", 1), "X");
    probe.release();
    hangs.recv().unwrap().unwrap();
    more.into_iter().for_each(|more| drop(more.recv().unwrap().unwrap()));
    disk.read(&mut [0; 512], 0).unwrap();
}

#[test]
fn what_is_held_back_when_its_client_leaves_is_not_done() {
    let probe = TestDevice::new(1 << 20);
    let (disk, path, _context) = pausing(probe.clone());
    let own = |client| personal(&disk, client);
    let (one, two) = (client(1), client(2));
    let (a, b) = (own(&one), own(&two));
    let control = control(&path);
    assert_eq!(say(&control, "p", 1), "P");
    let (gone, stays) = (start(&a, write(0, 512, 1)), start(&b, write(512, 512, 2)));
    one.presence.leave();
    assert_eq!(gone.recv().unwrap().unwrap_err().kind(), ErrorKind::Cancelled);
    assert_eq!(say(&control, "r", 1), "R");
    stays.recv().unwrap().unwrap();
    assert_eq!(probe.asked(), ["write 512+512"]);
}

#[test]
fn a_stop_ends_the_pause_and_what_was_held_back_is_not_done() {
    let probe = TestDevice::new(1 << 20);
    let (disk, path, context) = pausing(probe.clone());
    let control = control(&path);
    assert_eq!(say(&control, "p", 1), "P");
    let held = start(&disk, write(0, 512, 1));
    context.control.stopping();
    assert_eq!(held.try_recv().unwrap().unwrap_err().kind(), ErrorKind::Shutdown);
    // What a filter above has to write back.
    start(&disk, write(512, 512, 2)).try_recv().unwrap().unwrap();
    // There is no other pause.
    assert_eq!(say(&control, "xp", 1), "X");
    start(&disk, write(1024, 512, 2)).try_recv().unwrap().unwrap();
    assert_eq!(probe.asked(), ["write 512+512", "write 1024+512"]);
    context.control.end();
}

#[test]
fn a_socket_that_cannot_be_made_is_refused_and_one_is_removed_with_its_filter() {
    let model = || simple(std::sync::Arc::new(Model::new(512)));
    let context = Context::new(WorkPool::new(1));
    assert!(put_in(&context, "pause", model(), &[]).unwrap_err().is_usage());
    let word = "pause-control=/nonexistent/socket";
    assert!(put_in(&context, "pause", model(), &[word]).is_err());
    let (disk, path, context) = pausing(model());
    assert!(path.exists());
    drop((disk, context));
    assert!(!path.exists());
}

#[test]
fn a_socket_that_has_its_name_by_then_is_not_removed() {
    let (disk, path, context) = pausing(TestDevice::new(512));
    std::fs::remove_file(&path).unwrap();
    let other = std::os::unix::net::UnixListener::bind(&path).unwrap();
    context.control.end();
    drop(disk);
    assert!(UnixStream::connect(&path).is_ok(), "another program's name is gone");
    drop(other);
    std::fs::remove_file(path).unwrap();
}

#[test]
fn many_connections_that_say_nothing_do_not_keep_it_from_hearing_one() {
    let (_disk, path, _context) = pausing(simple(std::sync::Arc::new(Model::new(512))));
    let silent: Vec<_> = (0..40).map(|_| control(&path)).collect();
    let one = control(&path);
    drop(silent);
    assert_eq!(say(&one, "pr", 2), "PR");
}
