use std::os::unix::net::UnixDatagram;

use super::*;

fn scratch(name: &str) -> std::path::PathBuf {
    std::env::temp_dir().join(format!("diskferry-log-{}-{name}", std::process::id()))
}

/// The lines that a closure logs into a file, without the times.
fn said(name: &str, verbose: bool, say: impl FnOnce(&ServerLog)) -> Vec<String> {
    let path = scratch(name);
    std::fs::write(&path, "before\n").unwrap();
    let log = ServerLog::file(&path).unwrap();
    log.start(verbose).unwrap();
    say(&log);
    assert!(log.flush(Duration::from_secs(60)));
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let lines = text.strip_prefix("before\n").unwrap().lines();
    lines.map(|line| line.split_at(27).1.to_owned()).collect()
}

#[test]
fn a_file_keeps_what_it_had_and_gets_whole_lines() {
    let lines = said("file", false, |log| {
        log.say(format_args!("one"));
        let peer = Peer::Ip("[::1]:7".parse().unwrap());
        log.clone().event(
            Severity::Error,
            Some(&peer),
            Some("a \"b\"\n"),
            format_args!("two\nthree"),
        );
        log.event(Severity::Info, Some(&peer), None, format_args!("not asked for"));
    });
    assert_eq!(lines, ["warning - -: one", "error [::1]:7 \"a \\\"b\\\"\\n\": two three"]);
}

#[test]
fn a_level_that_comes_too_fast_is_dropped_and_counted_and_the_others_are_not() {
    let (burst, _) = Severity::Warning.pace();
    let lines = said("fast", true, |log| {
        for i in 0..1000 + burst {
            log.say(format_args!("{i}"));
        }
        log.event(Severity::Error, None, None, format_args!("heard"));
        log.event(Severity::Info, None, None, format_args!("heard"));
    });
    // The clock goes on while they are logged, which allows some more.
    let dropped = lines.iter().filter_map(|line| line.strip_suffix(" lines were dropped"));
    let dropped = dropped.filter_map(|line| line.rsplit(' ').next()?.parse::<usize>().ok());
    let dropped: usize = dropped.sum();
    assert!(dropped > 900, "{dropped}");
    let warnings = lines.iter().filter(|line| line.starts_with("warning")).count();
    assert!(warnings + dropped >= 1000 + burst as usize);
    assert_eq!(lines.iter().filter(|line| line.ends_with("heard")).count(), 2);
}

#[test]
fn no_thread_waits_for_a_reader_that_does_not_read() {
    let path = scratch("fifo");
    let fifo = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
    assert!(fifo.success());
    let reader = std::fs::File::options().read(true).write(true).open(&path).unwrap();
    let log = ServerLog::file(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    log.start(true).unwrap();
    let long = "x".repeat(LONGEST);
    for _ in 0..1900 {
        log.event(Severity::Info, None, None, format_args!("{long}"));
    }
    assert!(!log.flush(Duration::from_millis(10)));
    let state = log.shared().state.lock();
    assert!(state.bytes <= QUEUED && state.dropped > 1000, "{} {}", state.bytes, state.dropped);
    drop((state, reader));
}

#[test]
fn a_file_that_got_another_name_is_left_behind_when_it_is_opened_again() {
    let (path, old) = (scratch("rotated"), scratch("rotated.1"));
    let log = ServerLog::file(&path).unwrap();
    log.start(false).unwrap();
    log.say(format_args!("one"));
    assert!(log.flush(Duration::from_secs(60)));
    std::fs::rename(&path, &old).unwrap();
    log.reopen();
    log.say(format_args!("two"));
    assert!(log.flush(Duration::from_secs(60)));
    let texts = [&old, &path].map(|path| std::fs::read_to_string(path).unwrap());
    [&old, &path].iter().for_each(|path| std::fs::remove_file(path).unwrap());
    assert!(texts[0].ends_with("one\n") && texts[1].ends_with("two\n"), "{texts:?}");
}

#[test]
fn a_client_has_few_errors_logged_and_all_counted() {
    let lines = said("voice", false, |log| {
        let voice = Voice::new(log.clone(), &Peer::Vsock { cid: 3, port: 4 });
        voice.chose("disk");
        for i in 0..50 {
            voice.failed(format_args!("read {i}"));
        }
        voice.ended("it has gone");
    });
    assert_eq!(lines.len(), 12, "{lines:?}");
    assert_eq!(lines[0], "error vsock:3:4 \"disk\": read 0");
    assert_eq!(lines[11], "error vsock:3:4 \"disk\": 50 requests have failed in all");
}

#[test]
fn the_system_log_gets_a_datagram_a_line_with_its_priority() {
    let path = scratch("syslog");
    let listener = UnixDatagram::bind(&path).unwrap();
    let log = ServerLog::new(Outlet::syslog(&path).unwrap());
    std::fs::remove_file(&path).unwrap();
    log.say(format_args!("a peer misbehaved"));
    let mut line = [0; 100];
    let n = listener.recv(&mut line).unwrap();
    let id = std::process::id();
    let expected = format!("<28>diskferry[{id}]: warning - -: a peer misbehaved");
    assert_eq!(&line[..n], expected.as_bytes());
    // A log that went away harms no client.
    drop(listener);
    log.say(format_args!("lost"));
    assert!(Outlet::syslog(&path).is_err());
}

#[test]
fn a_line_of_json_is_an_object_whatever_a_client_has_put_into_it() {
    let path = scratch("json");
    let log = ServerLog::file(&path).unwrap().in_format(LogFormat::Json);
    log.start(true).unwrap();
    let (peer, long) = (Peer::Ip("[::1]:7".parse().unwrap()), "n".repeat(200));
    log.event(
        Severity::Error,
        Some(&peer),
        Some("a \"b\"\n"),
        format_args!("\"two\"\nthree\u{1b}"),
    );
    log.event(Severity::Info, None, Some(&long), format_args!(""));
    log.say(format_args!("one"));
    assert!(log.flush(Duration::from_secs(60)));
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let without_time = |line: &serde_json::Value| {
        let time = line["time"].as_str().unwrap();
        assert!(time.len() == 27 && time.contains('T') && time.ends_with('Z'), "{time}");
        let keys = ["level", "peer", "export", "message"];
        keys.map(|key| line[key].as_str().unwrap_or("null").to_owned())
    };
    let lines: Vec<_> = lines.iter().map(without_time).collect();
    assert_eq!(lines[0], ["error", "[::1]:7", "a \"b\"\n", "\"two\" three "]);
    assert_eq!(lines[1], ["info", "null", &("n".repeat(100) + "..."), ""]);
    assert_eq!(lines[2], ["warning", "null", "null", "one"]);
}

#[test]
fn a_long_name_is_cut_and_says_so() {
    let name = "é".repeat(101);
    assert_eq!(voice::quoted(voice::start_of(&name)), format!("{:?}...", "é".repeat(100)));
    let name = "é".repeat(100);
    assert_eq!(voice::quoted(voice::start_of(&name)), format!("{name:?}"));
}
