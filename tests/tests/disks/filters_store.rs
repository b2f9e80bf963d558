//! What `cow` and `cache` keep beside a disk: a temporary file without a name, and without room;
//! one for all clients; and what its locks and states cost.

use blackbox::MIB;
use blackbox::launch::Serve;
use blackbox::nbd::cmd;
use blackbox::peers::peer;
use blackbox::run::{ours, run};
use blackbox::session::{Mode, Request, Session};
use blackbox::storage::Mounted;
use blackbox::temp::TempDir;

/// Room for one MiB.
fn small() -> Option<Mounted> {
    Mounted::new("tmpfs", MIB)
}

#[test]
fn a_write_for_which_there_is_no_room_fails_and_what_is_there_stays_right() {
    let (Some(_), Some(small)) = (peer("qemu-io"), small()) else { return };
    let script = r#"qemu-io -t writeback -f raw "$uri" -c "write -P 1 0 512k" -c "write -P 2 1M 4M" \
        -c "read -P 1 0 512k" -c "read -P 0 6M 1M" -c "write -P 3 100k 64k" \
        -c "read -P 3 100k 64k" -c "discard 0 8M" -c "write -P 4 2M 512k" -c "read -P 4 2M 512k""#;
    for filter in ["cow", "cache"] {
        let filter = format!("--filter={filter}");
        let mut command = ours(["serve", &filter, "memory", "8M", "--run", script]);
        let outcome = run(command.env("TMPDIR", small.path()));
        let said = format!("{}{}", outcome.stdout, outcome.stderr);
        assert_eq!(said.matches("write failed: No space left").count(), 1, "{filter}: {said}");
        assert!(!said.contains("Pattern verification failed"), "{filter}: {said}");
        assert_eq!(said.matches("wrote ").count(), 3, "{filter}: {said}");
        assert_eq!(said.matches("read ").count(), 4, "{filter}: {said}");
        // The file cannot be seen, and nothing is left of it.
        assert_eq!(std::fs::read_dir(small.path()).unwrap().count(), 0);
    }
}

#[test]
fn what_is_read_and_cannot_be_kept_for_want_of_room_is_read_all_the_same() {
    let Some(small) = small() else { return };
    let script = r#"diskferry=$0; for i in 1 2; do
        $diskferry copy "$uri" "random:8M?seed=1" && echo sound; done"#;
    let binary = blackbox::peers::diskferry().display().to_string();
    let script = script.replace("$0", &binary);
    for (filter, key) in [("cow", "cow-on-read=true"), ("cache", "cache-on-read=true")] {
        let filter = format!("--filter={filter}");
        let words = ["serve", &filter, "random", "8M", "seed=1", key, "--run", &script];
        let outcome = run(ours(words).env("TMPDIR", small.path()));
        assert_eq!(outcome.succeeded(), "sound\nsound\n", "{filter}");
    }
}

#[test]
fn clients_that_call_one_export_by_different_names_see_and_keep_what_both_wrote() {
    let temp = TempDir::new();
    for filter in ["cache", "cow"] {
        // Each has something of its own for a client.
        for below in ["limit?limit=9", "retry", "readahead"] {
            let disk = temp.sparse_file(&format!("{filter}-{}", &below[..5]), 1 << 20);
            let server = Serve::device([std::ffi::OsStr::new("file"), disk.as_os_str()])
                .option(format!("--filter={filter}"))
                .option(format!("--filter={below}"))
                .option("--export-name=disk")
                .start();
            let mut a = server.session(Mode::Structured, "");
            let mut b = server.session(Mode::Structured, "disk");
            // It brings the whole block, and holds it.
            b.write(8192, &[2; 4096]);
            a.write(0, &[1; 4096]);
            a.flush();
            b.flush();
            assert_eq!(b.read(0, 4096).unwrap(), [1; 4096], "{filter} over {below}");
            assert_eq!(a.read(8192, 4096).unwrap(), [2; 4096], "{filter} over {below}");
            drop((a, b));
            assert!(server.stop().success());
            let (first, third) = if filter == "cache" { (1, 2) } else { (0, 0) };
            let on_disk = std::fs::read(&disk).unwrap();
            assert_eq!(on_disk[..4096], [first; 4096], "{filter} over {below}");
            assert_eq!(on_disk[8192..12288], [third; 4096], "{filter} over {below}");
        }
    }
}

/// Sends many requests at once, and waits for all answers.
fn ask_all(session: &mut Session, requests: &[Request]) {
    let cookies: Vec<_> = requests.iter().map(|r| session.register(r)).collect();
    let all = requests.iter().zip(&cookies).flat_map(|(r, cookie)| session.bytes(r, *cookie));
    let all: Vec<u8> = all.collect();
    session.socket.send(&all);
    for cookie in cookies {
        assert_eq!(session.wait(cookie).error, 0);
    }
}

#[test]
fn requests_that_wait_for_one_another_cost_what_their_number_does() {
    let time = |count: u64| {
        let words = ["memory", "1G", "cow-block-size=4K"];
        let server = Serve::device(words).option("--filter=cow").start();
        let mut session = server.session(Mode::Structured, "");
        let before = server.processor_time();
        // Each takes the second part of one block and the first of the next, which exclude the
        // neighbours.
        let zero = |i| Request::new(cmd::WRITE_ZEROES, i * 4096 + 512, 4096);
        ask_all(&mut session, &(0..count).map(zero).collect::<Vec<_>>());
        server.processor_time() - before
    };
    let (few, many) = (time(1000), time(6000));
    // Six times as much, or 36 times if each looks at all others; and the clock is coarse.
    assert!(many <= 24 * few.max(8), "1000 cost {few} hundredths of a second, 6000 {many}");
}

#[test]
fn what_is_remembered_of_a_block_costs_about_what_was_sent_for_it() {
    let server = Serve::device(["sparse-random", "4E", "seed=1"]).option("--filter=cow").start();
    let mut session = server.session(Mode::Structured, "");
    let before = server.anonymous_memory();
    let step = (4u64 << 60) / 120_000 / 65536 * 65536;
    for base in (0..120_000u64).step_by(500) {
        let trim = |i| Request::new(cmd::TRIM, (base + i) * step, 65536);
        ask_all(&mut session, &(0..500).map(trim).collect::<Vec<_>>());
    }
    let more = server.anonymous_memory() - before;
    assert!(more < 48 * MIB, "{more} bytes for 120,000 trims");
}
