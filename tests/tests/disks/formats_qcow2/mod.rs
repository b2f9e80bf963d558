//! qcow2 images that QEMU made, served and converted by the binary: the bytes, the contexts, what is sent
//! from where it lies, and what it costs in memory.

use std::path::Path;

use blackbox::dice::Dice;
use blackbox::launch::{Serve, needs_ours};
use blackbox::nbd::{cflag, cmd};
use blackbox::peers::peer;
use blackbox::run::{ours, program, run};
use blackbox::session::{Mode, Request};
use blackbox::temp::{TempDir, pattern};
use blackbox::{MIB, index};

/// Where images are made: QEMU syncs often, and in memory that costs nothing.
fn room() -> TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { TempDir::below(memory) } else { TempDir::new() }
}

fn tool(name: &str, temp: &TempDir, words: &str) -> String {
    let path = peer(name).unwrap();
    let mut command = program(&path, words.split_whitespace());
    run(command.current_dir(temp.path())).succeeded().to_owned()
}

/// Writes into an image as QEMU does.
fn write(temp: &TempDir, image: &str, commands: &[&str]) {
    let commands = commands.iter().flat_map(|command| ["-c", *command]);
    let words = ["-f", "qcow2"].into_iter().chain(commands).chain([image]);
    let mut command = program(&peer("qemu-io").unwrap(), words);
    run(command.current_dir(temp.path())).succeeded();
}

fn has_qemu() -> bool {
    peer("qemu-img").is_some() && peer("qemu-io").is_some() && peer("qemu-nbd").is_some()
}

/// A disk with data, holes, and what becomes shorter when it is compressed.
fn raw(temp: &TempDir) -> Vec<u8> {
    let mut bytes = pattern(0, index(9 * MIB) + 512);
    bytes[index(2 * MIB)..index(4 * MIB) + 77].fill(0);
    for (i, byte) in bytes[index(6 * MIB)..].iter_mut().enumerate() {
        *byte = u8::try_from(i / 64 % 255).unwrap();
    }
    temp.file("raw", &bytes);
    bytes
}

fn serve(temp: &TempDir, name: &str, words: &[&str]) -> Serve {
    let path = temp.join(name).into_os_string();
    let words = words.iter().map(|word| word.into());
    let serve = Serve::device(["file".into(), path].into_iter().chain(words));
    serve.option("--format=qcow2")
}

#[test]
fn every_kind_of_image_is_converted_and_served_with_the_bytes_that_qemu_has() {
    if needs_ours("qcow2") || !has_qemu() {
        return;
    }
    let temp = room();
    let bytes = raw(&temp);
    for options in [
        "",
        "-c",
        "-c -o compression_type=zstd",
        "-c -o cluster_size=2M",
        "-o compat=0.10,cluster_size=512",
        "-o extended_l2=on",
        "-c -o extended_l2=on,compression_type=zstd",
        "-o preallocation=metadata",
        "-o preallocation=full,lazy_refcounts=on",
        "-o data_file=data,data_file_raw=on",
    ] {
        tool("qemu-img", &temp, &format!("convert -f raw -O qcow2 {options} raw image"));
        let source = temp.join("image").into_os_string();
        let target = temp.join("copy").into_os_string();
        let words = ["convert", "--allow-external", "chain", "-f", "qcow2", "-O", "raw"];
        let command = words.iter().map(Into::into).chain([source, target.clone()]);
        run(&mut ours(command)).succeeded();
        assert!(std::fs::read(&target).unwrap() == bytes, "{options}");
        let server = serve(&temp, "image", &[]).option("--allow-external=chain").start();
        let uri = server.uri("");
        let said = tool("qemu-img", &temp, &format!("compare -f raw -F raw {uri} raw"));
        assert!(said.contains("identical"), "{options}: {said}");
    }
}

#[test]
fn a_chain_is_served_when_it_is_allowed_and_snapshots_when_they_are_named() {
    if needs_ours("qcow2") || !has_qemu() {
        return;
    }
    let temp = room();
    let bytes = raw(&temp);
    tool("qemu-img", &temp, "create -q -f qcow2 -b raw -F raw low");
    tool("qemu-img", &temp, "snapshot -c one low");
    write(&temp, "low", &["write -P 7 1M 1M"]);
    tool("qemu-img", &temp, "create -q -f qcow2 -o extended_l2=on -b low -F qcow2 top");
    write(&temp, "top", &["write -P 9 1536k 1M", "write -z 5M 64k"]);
    let mut now = bytes.clone();
    now[index(MIB)..index(2 * MIB)].fill(7);
    now[index(MIB * 3 / 2)..index(MIB * 5 / 2)].fill(9);
    now[index(5 * MIB)..index(5 * MIB) + (64 << 10)].fill(0);
    for allowed in ["chain".into(), temp.path().as_os_str().to_owned()] {
        for (name, words, expected) in [("top", &[][..], &now), ("low", &["snapshot=one"], &bytes)]
        {
            let mut option = std::ffi::OsString::from("--allow-external=");
            option.push(&allowed);
            let server = serve(&temp, name, words).option(option).start();
            let mut session = server.session(Mode::Structured, "");
            for at in (0..expected.len()).step_by(1 << 20) {
                let len = (expected.len() - at).min(1 << 20);
                let read = session.read(at as u64, len as u64).unwrap();
                assert!(read == expected[at..at + len], "{name} at {at}");
            }
        }
    }
    let words = ["convert", "-f", "qcow2", "-O", "raw"].map(Into::into);
    let files = ["top", "copy"].map(|name| temp.join(name).into_os_string());
    let outcome = run(&mut ours(words.into_iter().chain(files)));
    assert!(outcome.failed().contains("--allow-external"), "{outcome:?}");
}

#[test]
fn dirty_bitmaps_and_depths_are_contexts() {
    if needs_ours("qcow2") || !has_qemu() || peer("nbdinfo").is_none() {
        return;
    }
    let temp = room();
    raw(&temp);
    tool("qemu-img", &temp, "create -q -f qcow2 -b raw -F raw image");
    tool("qemu-img", &temp, "bitmap --add image b0");
    write(&temp, "image", &["write 1M 3M", "write -z 7M 64k"]);
    let ours = serve(&temp, "image", &[]).option("--allow-external=chain").start();
    for (context, option) in [("qemu:dirty-bitmap:b0", "-B b0"), ("qemu:allocation-depth", "-A")] {
        let mine = tool("nbdinfo", &temp, &format!("--map={context} {}", ours.uri("")));
        let words = format!("--map={context} -- [ qemu-nbd -r -f qcow2 {option} image ]");
        let theirs = tool("nbdinfo", &temp, &words);
        let runs = |text: &str| -> Vec<String> {
            let lines = text.lines().map(|line| line.split_whitespace().take(3));
            lines.map(|words| words.collect::<Vec<_>>().join(" ")).collect()
        };
        assert_eq!(runs(&mine), runs(&theirs), "{context}");
    }
}

#[test]
fn plain_clusters_leave_by_sendfile_in_chunks_and_in_one() {
    if needs_ours("qcow2") || !has_qemu() || peer("strace").is_none() {
        return;
    }
    let temp = room();
    let bytes = raw(&temp);
    tool("qemu-img", &temp, "convert -f raw -O qcow2 raw image");
    let log = temp.join("calls");
    let server = serve(&temp, "image", &[]).traced_for(&log, "sendfile,pread64,preadv2").start();
    let mut session = server.session(Mode::Structured, "");
    let len: u64 = 256 << 10;
    for i in 0..16 {
        let at = 6 * MIB + i % 8 * len;
        let flags = if i < 8 { 0 } else { cflag::DF };
        let answer = session.ask(&Request::new(cmd::READ, at, len).flags(flags));
        assert_eq!(answer.error, 0);
        assert!(answer.data == bytes[index(at)..][..index(len)], "at {at}");
    }
    drop(session);
    server.stop();
    let calls = std::fs::read_to_string(&log).unwrap();
    let sent: u64 = calls
        .lines()
        .filter(|line| line.contains("sendfile"))
        .filter_map(|line| line.rsplit("= ").next()?.trim().parse::<u64>().ok())
        .sum();
    assert!(sent >= 16 * len * 9 / 10, "{sent} bytes by sendfile");
}

#[test]
fn random_reads_of_a_tebibyte_take_no_more_than_64_mib() {
    if needs_ours("qcow2") || !has_qemu() {
        return;
    }
    let temp = room();
    tool("qemu-img", &temp, "create -q -f qcow2 -o preallocation=metadata image 1T");
    let server = serve(&temp, "image", &[]).start();
    let mut session = server.session(Mode::Structured, "");
    let mut dice = Dice::new(1);
    for _ in 0..20_000 {
        let at = (dice.below(1 << 28) as u64) << 12;
        assert_eq!(session.read(at, 4096).unwrap().len(), 4096);
    }
    let grown = server.anonymous_memory();
    assert!(grown < 64 * MIB, "{grown} bytes");
}
