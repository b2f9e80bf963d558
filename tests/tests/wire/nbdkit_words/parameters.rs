//! Parameters: the device or filter that gets them, and the errors for unknown ones.

use blackbox::peers::peer;
use blackbox::run::{ours, program, run};

use super::{has_peers, our_line};

/// Wrong command lines, and the error for each.
#[test]
fn what_is_misspelt_is_refused_with_the_nearest_right_word() {
    for (words, parts) in [
        (&["memory", "sise=1M"][..], &["`sise`", "`size`"][..]),
        (&["memory:1M", "sise=1M"], &["`sise`", "`size`"]),
        (&["--filter=delay", "memory", "1M", "delay-raed=1"], &["`delay-raed`", "`delay-read`"]),
        (&["--filter=delay", "memory", "1M", "delay_read=1"], &["`delay_read`", "`delay-read`"]),
        (&["--filter=delay", "memory", "1M", "sise=1"], &["`sise`", "`size`"]),
        (&["memory", "1M", "delay-read=1"], &["`delay-read`", "filter `delay`", "--filter=delay"]),
        (&["--filter=nozero", "memory", "1M", "rdelay=1"], &["filter `delay`", "--filter=delay"]),
        (&["./disk.raw", "zeromode=none"], &["--filter=nozero"]),
        (&["memry", "1M"], &["`memry`", "`memory`"]),
        (&["memry", "size=1M"], &["`memry`", "`memory`"]),
        (&["--filter=dealy", "memory", "1M"], &["`dealy`", "`delay`"]),
        (&["--filter=delay?delay-raed=1", "memory", "1M"], &["delay", "`delay-read`"]),
        (&["--filter=delay?rdelay=1", "memory", "1M", "rdelay=2"], &["delay", "`rdelay`", "twice"]),
        (&["memory", "1M", "2M"], &["memory", "`size`", "twice"]),
        (&["memory", "1M", "size=2M"], &["memory", "`size`", "twice"]),
        (&["memory", "@./no/such/file"], &["no/such/file", "No such file"]),
        (&["--tls=require", "memory", "1M"], &["--tls=require"]),
        (&["--log=here", "memory", "1M"], &["--log here"]),
        (&["--mask-handshake=x", "memory", "1M"], &["mask-handshake"]),
        (&["--timeout=x", "memory", "1M"], &["timeout"]),
        (&["--timeout=0", "memory", "1M"], &["timeout"]),
        (&["-s", "-p", "0", "memory", "1M"], &["--single"]),
        (&["-s", "--run", "true", "memory", "1M"], &["--single"]),
        (&["-u", "no-such-user", "memory", "1M"], &["no-such-user", "/etc/passwd"]),
        (&["-g", "no-such-group", "memory", "1M"], &["no-such-group", "/etc/group"]),
        (&["--exit-with-parent", "--daemon", "memory", "1M"], &["--exit-with-parent"]),
    ] {
        let outcome = run(ours(["serve"]).args(words));
        let said = outcome.failed();
        for part in parts {
            assert!(said.contains(part), "{words:?}: `{part}` should be in {said:?}");
        }
    }
}

#[test]
fn a_filter_gets_what_it_knows_and_the_device_the_rest_in_any_order() {
    if !has_peers() {
        return;
    }
    // The size of `ones` and its byte, with a filter's parameters between and around them.
    for words in [
        "--filter=delay ones 64K byte=65 rdelay=1us",
        "--filter=delay ones rdelay=1us byte=65 64K",
        "--filter=delay ones byte=65 rdelay=1us size=64K",
        "--filter='delay?rdelay=1us' ones:64K byte=65",
        "--filter='delay?rdelay=1us&wdelay=1us' --filter=delay 'ones:64K?byte=65'",
    ] {
        let text = format!("SERVER {words} --run 'nbdcopy $uri - | tr -d A | wc -c'");
        let outcome = our_line(&text);
        assert_eq!(outcome.succeeded().trim(), "0", "{words}");
    }
}

#[test]
fn filters_stand_before_every_export() {
    if !has_peers() {
        return;
    }
    let text = "SERVER -U - --filter=nozero --export a=memory:1M --export b=memory:1M --run \
                'for e in a b; do nbdinfo --can zero nbd+unix:///$e?socket=$unixsocket; \
                 echo $?; done'";
    assert_eq!(our_line(text).succeeded(), "2\n2\n");
}

#[test]
fn parameters_are_read_from_a_file() {
    if !has_peers() {
        return;
    }
    let text = "printf '# a disk\\n\\nsize=64K\\nbyte=65\\nrdelay=1us\\n' > words; \
                SERVER --filter=delay ones @./words --run 'nbdcopy $uri - | tr -d A | wc -c'";
    assert_eq!(our_line(text).succeeded().trim(), "0");
}

#[test]
fn every_parameter_of_the_curl_plugin_is_taken_by_http_or_refused_with_a_reason() {
    let Some(nbdkit) = peer("nbdkit") else { return };
    let help = run(&mut program(&nbdkit, ["curl", "--help"])).succeeded().to_owned();
    let words = help.lines().filter_map(|line| {
        let word = line.trim_start().split(char::is_whitespace).next()?;
        word.split_once('=').map(|(key, _)| key.to_owned())
    });
    let keys: std::collections::BTreeSet<_> = words
        .filter(|key| key.chars().all(|c| c.is_ascii_lowercase() || "-13".contains(c)))
        .collect();
    assert!(keys.len() > 20 && keys.contains("cookie-script"), "{keys:?}");
    for key in keys.iter().filter(|key| *key != "url") {
        // There is no listener.
        let url = "url=http://127.0.0.1:1/x";
        let outcome = run(&mut ours(["info", &format!("http:?{key}=1&{url}")]));
        let said = outcome.failed();
        assert!(!said.contains("there is no parameter"), "{said}");
        let is_tried = said.contains("127.0.0.1:1");
        assert!(
            is_tried || said.contains(&format!("{key}=")) || said.contains(&format!("{key}: ")),
            "{key}: {said}"
        );
    }
}
