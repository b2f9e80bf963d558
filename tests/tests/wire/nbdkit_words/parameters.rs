//! Parameters: the device or filter that gets them, and the errors for unknown ones.

use super::{has_peers, our_line};

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
