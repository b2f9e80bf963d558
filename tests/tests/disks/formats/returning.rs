//! Images on a server that dies and comes back: what is known below a format of a path that broke
//! is known above it.

use std::path::Path;
use std::process::Command;

use blackbox::launch::Serve;
use blackbox::peers::peer;
use blackbox::run::{Job, ours, run};
use blackbox::temp::TempDir;
use blackbox::wait_for_lines;

use super::ground::{ferry, text};

/// Runs `words` while the server dies once, when it has done ten requests of a kind, and another
/// comes.
fn copy_meanwhile(socket: &Path, kind: &str, slow: &[&str], then: [&str; 2], words: &[&str]) {
    let log = socket.with_file_name("log");
    let _ = std::fs::remove_file(&log);
    let logged = format!("--filter=log?logfile={}", log.display());
    let server = Serve::device([&[&*logged], slow].concat()).start_at(socket);
    let job = Job::start(&mut ours(words));
    wait_for_lines(&log, &format!("...{kind} "), 10);
    server.kill();
    let _again = Serve::device(then).start_at(socket);
    job.wait().succeeded();
}

#[test]
fn an_image_on_a_server_that_comes_back_is_read_to_its_end() {
    let temp = TempDir::new();
    let (raw, back, socket) = (temp.join("raw"), temp.join("back"), temp.join("s"));
    let uri = format!("nbd+unix:///?socket={}", text(&socket));
    ferry(["copy", "-q", "sparse-random:48M?seed=3&percent=80", text(&raw)]).succeeded();
    for format in ["qcow2", "vmdk", "vdi"] {
        let image = temp.join("image");
        ferry(["convert", "-f", "raw", "-O", format, text(&raw), text(&image)]).succeeded();
        let slow = ["--filter=delay", "file", text(&image), "delay-read=30ms"];
        // Beneath the format, and above it, where it has to reopen through the format.
        for how in ["--reconnect-delay=30", "--source-filter=retry?retry-delay=1"] {
            let words = ["copy", "-q", how, "-C", "1", "-f", format, &uri, text(&back)];
            copy_meanwhile(&socket, "Read", &slow, ["file", text(&image)], &words);
            assert!(
                std::fs::read(&back).unwrap() == std::fs::read(&raw).unwrap(),
                "{format} {how}"
            );
        }
        std::fs::remove_file(&image).unwrap();
    }
}

#[test]
fn an_image_that_is_made_on_a_server_that_comes_back_is_whole() {
    let Some(qemu_img) = peer("qemu-img") else { return };
    let temp = TempDir::new();
    let (raw, socket) = (temp.join("raw"), temp.join("s"));
    let uri = format!("nbd+unix:///?socket={}", text(&socket));
    ferry(["copy", "-q", "sparse-random:48M?seed=3&percent=80", text(&raw)]).succeeded();
    for format in ["qcow2", "vmdk", "vdi"] {
        let image = temp.sparse_file("image", 64 << 20);
        let slow = ["--filter=delay", "file", text(&image), "delay-write=20ms"];
        // One at a time, so that it is far from the tables when the server dies.
        let words = ["copy", "-q", "--reconnect-delay=30", "-C", "1", "-R", "1", "-O", format];
        let words = [&words[..], &[text(&raw), &uri]].concat();
        copy_meanwhile(&socket, "Write", &slow, ["file", text(&image)], &words);
        let mut compare = Command::new(&qemu_img);
        compare.args(["compare", "-f", "raw", "-F", format, text(&raw), text(&image)]);
        run(&mut compare).succeeded();
    }
}
