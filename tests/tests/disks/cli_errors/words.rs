//! Words on the command line that make no sense.

use blackbox::run::{measured, ours, run};
use blackbox::temp::TempDir;

use super::{fails_saying, ferry};

#[test]
fn an_unknown_option_is_a_usage_error() {
    for words in [
        &["--nonsense"][..],
        &["serve", "--readonyl", "memory", "1M"],
        &["copy", "--nonsense", "a", "b"],
        &["list", "--nonsense", "a"],
    ] {
        let outcome = ferry(words);
        let said = outcome.refused();
        let wrong = words.iter().find(|w| w.starts_with("--")).unwrap();
        assert!(said.contains(wrong), "{wrong} should be in {said:?}");
    }
}

#[test]
fn a_misspelt_option_gets_the_right_one_named() {
    let outcome = ferry(["serve", "--readonyl", "memory", "1M"]);
    assert!(outcome.refused().contains("--readonly"), "{outcome:?}");
}

#[test]
fn an_unknown_or_missing_verb_is_a_usage_error() {
    for words in [&["convrt"][..], &[]] {
        let outcome = ferry(words);
        assert_eq!(outcome.status.code(), Some(2), "{outcome:#?}");
        assert!(!outcome.stderr.is_empty());
    }
}

#[test]
fn a_missing_argument_is_a_usage_error() {
    for words in [&["copy", "only-one"][..], &["copy"], &["zero"], &["trim"], &["list"]] {
        assert_eq!(ferry(words).status.code(), Some(2), "{words:?}");
    }
    // Those with qemu-img's words end as it does.
    for words in [&["info"][..], &["map"], &["convert", "only-one"], &["compare", "only-one"]] {
        assert_eq!(ferry(words).status.code(), Some(1), "{words:?}");
    }
}

#[test]
fn help_and_version_are_no_errors() {
    for words in [
        &["--help"][..],
        &["--version"],
        &["serve", "--help"],
        &["copy", "--help"],
        &["info", "--help"],
        &["list", "--help"],
        &["map", "--help"],
    ] {
        let outcome = ferry(words);
        // The name printed is that of the file, which need not be ours under test.
        assert!(!outcome.succeeded().is_empty(), "{words:?}: {outcome:?}");
    }
}

#[test]
fn a_missing_file_is_named() {
    for words in [
        &["info", "/nonexistent/disk.raw"][..],
        &["map", "/nonexistent/disk.raw"],
        &["copy", "/nonexistent/disk.raw", "null:"],
        &["serve", "--run", "true", "file", "/nonexistent/disk.raw"],
    ] {
        fails_saying(words, &["/nonexistent/disk.raw", "No such file"]);
    }
}

#[test]
fn a_missing_socket_is_named() {
    let uri = "nbd+unix:///?socket=/nonexistent/socket";
    for words in [&["info", uri][..], &["list", uri], &["copy", uri, "null:"]] {
        fails_saying(words, &["/nonexistent/socket"]);
    }
}

#[test]
fn a_refused_connection_is_named() {
    // A port that was free a moment ago.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let uri = format!("nbd://127.0.0.1:{port}");
    fails_saying(&["info", &uri], &[&port.to_string()]);
}

#[test]
fn uris_that_make_no_sense_are_refused() {
    for uri in [
        "nbd+unix:///",
        "nbd+unix:///?socket=",
        "nbd+unix://host/?socket=/tmp/s",
        "nbd://host:99999/",
        "nbd://host:port/",
        "nbd://127.0.0.1:1/%zz",
        "nbd://127.0.0.1:1/%00",
        "nbd:///?socket=/tmp/s",
        "nbd+vsock://notanumber",
        "nbd+unix:///?sockt=/tmp/s",
        "nbd+carrier-pigeon://host",
    ] {
        let outcome = ferry(["info", uri]);
        outcome.failed();
    }
}

#[test]
fn sizes_that_make_no_sense_are_refused() {
    for size in [
        "",
        "x",
        "-1",
        "1Q",
        "1.5.5M",
        "1.5",
        "0x",
        "1KB",
        "1 M",
        "99999999999999999999",
        "16E",
        "9223372036854775808",
    ] {
        let spec = format!("memory:{size}");
        let outcome = ferry(["info", &spec]);
        assert!(!outcome.status.success(), "{spec} was accepted: {outcome:?}");
        outcome.failed();
        let outcome = ferry(["serve", "--run", "true", "memory", size]);
        assert!(!outcome.status.success(), "{size} was accepted: {outcome:?}");
        outcome.failed();
    }
}

#[test]
fn sizes_are_powers_of_two() {
    for (size, bytes) in [
        ("0", "0"),
        ("1", "1"),
        ("512", "512"),
        ("1K", "1024"),
        ("1k", "1024"),
        ("1b", "512"),
        ("3M", "3145728"),
        ("1.5G", "1610612736"),
        ("1GiB", "1073741824"),
        ("0x1000", "4096"),
        ("3s", "1536"),
        ("2G", "2147483648"),
        ("1T", "1099511627776"),
        ("1P", "1125899906842624"),
        ("7E", "8070450532247928832"),
        ("9223372036854775807", "9223372036854775807"),
    ] {
        let outcome = ferry(["info", "--json", &format!("memory:{size}")]);
        let json: serde_json::Value = serde_json::from_str(outcome.succeeded()).unwrap();
        let export = json.get("exports").map_or(&json, |list| &list[0]);
        let told = export["export-size"].to_string();
        // `1b` is a sector in some tools and a byte in others.
        assert!(told == bytes || (size == "1b" && told == "1"), "{size}: {told}");
    }
}

#[test]
fn an_unknown_device_gets_the_nearest_one_named() {
    fails_saying(&["info", "memry:1M"], &["memry", "memory"]);
    fails_saying(&["copy", "sparserandom:1M", "null:"], &["sparserandom", "sparse-random"]);
    fails_saying(&["serve", "--run", "true", "memry", "1M"], &["memry", "memory"]);
}

#[test]
fn an_unknown_key_gets_the_nearest_one_named() {
    fails_saying(&["info", "sparse-random:1M?percnt=5"], &["percnt", "percent"]);
    fails_saying(&["copy", "random:1M?sed=5", "null:"], &["sed", "seed"]);
    let words = ["serve", "--run", "true", "sparse-random", "1M", "runlenth=5"];
    fails_saying(&words, &["runlenth", "runlength"]);
}

#[test]
fn values_that_make_no_sense_are_refused() {
    for spec in [
        "sparse-random:1M?percent=101",
        "sparse-random:1M?percent=many",
        "sparse-random:1M?seed=-1",
        "sparse-random:1M?percent",
        "random:1M?seed=",
        "data:999",
        "data:(1 2",
        "data:@-5 1",
        "data:\"open",
    ] {
        let outcome = ferry(["info", spec]);
        assert!(!outcome.status.success(), "{spec} was accepted: {outcome:?}");
        outcome.failed();
    }
}

#[test]
fn a_data_bomb_is_refused_quickly() {
    // Repetition of repetition: 10^12 bytes from thirty.
    let bomb = "data:((((1*1000)*1000)*1000)*1000)";
    let outcome = measured(&ours(["copy", bomb, "null:"]));
    outcome.fits_in(512 * blackbox::MIB);
    if !outcome.status.success() {
        outcome.failed();
    }
}

#[test]
fn numbers_of_options_are_checked() {
    for option in [
        ["--connections", "0"],
        ["--connections", "-1"],
        ["--connections", "many"],
        ["--requests", "0"],
        ["--request-size", "0"],
        ["--request-size", "12345"],
        ["--request-size", "1T"],
        ["--threads", "x"],
        ["--sparse", "3"],
        ["--queue-size", "no"],
        ["--progress=yes", "--quiet"],
    ] {
        let outcome = ferry(["copy", option[0], option[1], "memory:1M", "null:"]);
        assert!(!outcome.status.success(), "{option:?} was accepted: {outcome:?}");
        assert!(outcome.stderr.starts_with("diskferry: "), "{option:?}: {outcome:?}");
        assert!(!outcome.stderr.contains("panicked"));
    }
}

#[test]
fn contradictory_listeners_are_refused() {
    let temp = TempDir::new();
    let socket = temp.join("s");
    let socket = socket.to_str().unwrap();
    let words = ["serve", "-U", socket, "-p", "0", "--run", "true", "memory", "1M"];
    let outcome = ferry(words);
    // Two listeners at once would be allowed too; not one of them forgotten silently.
    if !outcome.status.success() {
        assert!(outcome.stderr.starts_with("diskferry: "), "{outcome:?}");
    }
}

#[test]
fn exports_that_make_no_sense_are_refused() {
    for words in [
        &["--export", "nothing"][..],
        &["--export", "a=memory:1M", "--export", "a=memory:2M"],
        &["--export", "a=memory:1M", "--default-export", "b"],
        &["--export", "a=nonexistent-device:1M"],
        &[],
    ] {
        let mut all = vec!["serve", "--run", "true"];
        all.extend(words);
        let outcome = ferry(&all);
        assert!(!outcome.status.success(), "{words:?} was accepted: {outcome:?}");
        assert!(outcome.stderr.starts_with("diskferry: "), "{words:?}: {outcome:?}");
    }
}

#[test]
fn names_with_odd_bytes_do_not_reach_the_terminal_raw() {
    let outcome = ferry(["info", "/nonexistent/\x1b[2Jdisk"]);
    assert!(!outcome.failed().contains('\x1b'), "{outcome:?}");
    let outcome = ferry(["info", "/nonexistent/two\nlines"]);
    outcome.failed();
}

/// Exit status 2 for what is wrong in the words, whatever there is; 1 of those with qemu-img's words.
#[test]
fn a_mistake_in_the_words_is_status_2_whichever_part_finds_it() {
    for (words, said) in [
        (&["serve", "memory", "1M", "foo=1"][..], "foo"),
        (&["copy", "random:1M?sed=7", "null:"], "seed"),
        (&["serve", "--filter=delay?foo=1", "memory", "1M"], "foo"),
        (&["serve", "--filter=delay?rdelay=foo", "memory", "1M"], "rdelay"),
        (&["copy", "--source-filter=delya", "memory:1M", "null:"], "delay"),
        (&["serve", "memroy", "1M"], "memory"),
        (&["copy", "memroy:1M", "null:"], "memory"),
        (&["serve", "--export", "a=memroy:1M"], "memory"),
        (&["info", "nbd://[::1/root"], "nbd://[::1/root"),
        (&["copy", "nbd://localhost:99999/", "null:"], "99999"),
        (&["info", "ndb://localhost/"], "did you mean nbd://"),
        (&["map", "gopher://localhost/"], "gopher"),
        (&["info", "nbd:localhost:10809"], "nbd://localhost:10809"),
        (&["list", "disk.raw"], "NBD"),
        (&["zero", "--offset", "5X", "memory:1M"], "5X"),
        (&["trim", "--length", "1.5", "memory:1M"], "1.5"),
        (&["copy", "memory:1X", "null:"], "1X"),
        (&["serve", "memory", "1X"], "1X"),
        (&["serve", "memory"], "size"),
        (&["serve"], "no disk"),
        (&["serve", "--export", &format!("{}=memory:1M", "x".repeat(4097))], "4097 bytes"),
        (&["serve", "-p", "abc", "memory", "1M"], "not a number"),
        (&["serve", "--filter=log", "memory", "1M"], "logfile"),
        (&["serve", "--filter=partition", "memory", "1M"], "partition"),
        (&["info", "file:?lock=perhaps&file=/dev/null"], "lock"),
        (&["info", "data:\"open"], "data"),
        (&["help", "memroy"], "memory"),
        (&["completions", "dos"], "dos"),
        (&["srve"], "did you mean `serve`"),
    ] {
        let outcome = ferry(words);
        let line = outcome.failed();
        assert!(line.contains(said), "{words:?}: {said} should be in {line:?}");
        let code = if ["info", "map"].contains(&words[0]) { 1 } else { 2 };
        assert_eq!(outcome.status.code(), Some(code), "{outcome:#?}");
    }
}

/// Exit status 1 for what failed when it was tried.
#[test]
fn what_fails_when_it_is_tried_is_status_1() {
    let temp = TempDir::new();
    let file = temp.file("disk", &[0; 4096]);
    let file = file.to_str().unwrap();
    for words in [
        &["info", "/nonexistent/disk"][..],
        &["info", "/dev/null"],
        &["map", temp.path().to_str().unwrap()],
        &["copy", "memory:1M", "random:1M?seed=1"],
        &["copy", "memory:1M", "memory:1K"],
        &["zero", "--offset", "1G", file],
        &["serve", "--filter=partition", file, "partition=1", "--run", "true"],
        &["serve", "--filter=offset?offset=1G", file, "--run", "true"],
    ] {
        let outcome = ferry(words);
        assert_eq!(outcome.status.code(), Some(1), "{words:?}: {outcome:#?}");
        outcome.failed();
    }
}

/// Exit status 75 for a server that is not there, also for verbs with qemu-img's words.
#[test]
fn a_server_that_is_not_there_is_status_75_however_it_is_missing() {
    let temp = TempDir::new();
    let file = temp.file("file", b"no socket");
    let uri = |path: &str| format!("nbd+unix:///?socket={path}");
    // A label that is too long: no name server is asked for it.
    let host = format!("{}.invalid", "x".repeat(64));
    for name in [
        uri("/nonexistent"),
        uri("/nonexistent/socket"),
        uri(&format!("{}/socket", file.display())),
        uri(file.to_str().unwrap()),
        "nbd://127.0.0.1:1".to_owned(),
        "http://127.0.0.1:1/disk".to_owned(),
        format!("nbd://{host}/"),
        format!("http://{host}/disk"),
    ] {
        for words in [
            &["info", &name][..],
            &["map", &name],
            &["copy", &name, "null:"],
            &["convert", "-f", "raw", &name, "null:1M"],
        ] {
            let outcome = ferry(words);
            assert_eq!(outcome.status.code(), Some(75), "{words:?}: {outcome:#?}");
            outcome.failed();
        }
    }
}

#[test]
fn suggestions_are_near_and_there_is_none_from_afar() {
    for (words, not) in [
        (&["help", "foo"][..], "did you mean"),
        (&["serve", "gopher", "http://x"], "did you mean"),
        (&["shuffle", "x"], "did you mean"),
        (&["copy", "--size", "1", "a", "b"], "as a value"),
    ] {
        let outcome = ferry(words);
        let line = outcome.refused();
        assert!(!line.contains(not), "{line}");
    }
}

#[test]
fn an_escaped_ampersand_is_part_of_a_parameter() {
    let outcome = ferry(["info", "--json", r"data:?raw=a\&b&size=100"]);
    assert!(outcome.succeeded().contains("\"export-size\": 100"), "{outcome:?}");
    let temp = TempDir::new();
    let target = temp.join("x");
    let target = target.to_str().unwrap();
    ferry(["copy", r"data:?raw=a\&\&b", target]).succeeded();
    assert_eq!(std::fs::read(target).unwrap(), b"a&&b");
}

#[test]
fn a_link_that_leads_nowhere_is_called_so() {
    let temp = TempDir::new();
    let link = temp.join("link");
    std::os::unix::fs::symlink("nowhere", &link).unwrap();
    let link = link.to_str().unwrap();
    fails_saying(&["copy", "memory:1M", link], &["symbolic link to nowhere"]);
    fails_saying(&["info", link], &["symbolic link to nowhere"]);
}

#[test]
fn too_few_descriptors_are_reported_with_the_cure() {
    let ours = blackbox::peers::diskferry();
    let script = format!("ulimit -n 10; exec {} copy memory:1M null:", ours.display());
    let outcome = run(std::process::Command::new("sh").args(["-c", &script]));
    if !outcome.status.success() {
        assert!(outcome.failed().contains("ulimit -n"), "{outcome:?}");
    }
}
