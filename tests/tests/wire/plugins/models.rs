//! Thread models: how many callbacks of a plugin run at a time, by the plugin's own witness.

use blackbox::temp::TempDir;

use super::{Host, beside, has_peers, python, scene, witness};

/// Two clients that each ask for much at once.
const CROWD: &str =
    "for one in 1 2; do nbdcopy --connections=1 --request-size=32768 \"$uri\" null: & done; wait";

/// How many there were at most: in all, of one handle, and open handles.
fn most(model: &str, words: &str) -> [u32; 3] {
    let temp = TempDir::new();
    witness(&temp, &[model]);
    let words = format!("size=1M slow=5 say-can_extents=0 {words}");
    let ours = beside(Host::Ours, &temp, &words, CROWD);
    ours.outcome.succeeded();
    assert_eq!(ours.log.iter().filter(|line| line.starts_with("pread ")).count(), 64);
    let line = ours.log.iter().find(|line| line.starts_with("most ")).expect("it was unloaded");
    let numbers: Vec<u32> = line.split(['=', ' ']).filter_map(|word| word.parse().ok()).collect();
    numbers.try_into().unwrap()
}

#[test]
fn a_plugin_has_as_many_callbacks_at_a_time_as_its_model_and_it_allow() {
    if !has_peers() {
        return;
    }
    assert_eq!(most("-DMODEL=0", ""), [1, 1, 1], "one client at a time");
    assert_eq!(most("-DMODEL=1", "")[..2], [1, 1], "one request at a time, of all clients");
    let [all, handle, _] = most("-DMODEL=2", "");
    assert!(all <= 2 && handle == 1, "one of each client: {all} {handle}");
    let [all, handle, _] = most("-DMODEL=3", "");
    assert!(all > 1 && handle > 1, "whatever comes: {all} {handle}");
    // It may choose less than it was compiled for, and never more.
    assert_eq!(most("-DMODEL=3", "model=0"), [1, 1, 1]);
    assert_eq!(most("-DMODEL=1", "model=3")[..2], [1, 1]);
}

#[test]
fn a_request_that_waits_keeps_no_other_of_its_client_waiting() {
    let Some(temp) = scene(&[]) else { return };
    let program = r#"
h.connect_uri(uri)
def ask(offset):
    return h.aio_pread(nbd.Buffer(512), offset)
asked = [ask(4096)] + [ask(8192 + 512 * i) for i in range(40)] + [ask(4096)]
while h.aio_in_flight():
    h.poll(-1)
print("met")
"#;
    let ours = python(Host::Ours, &temp, "meet=4096", program);
    assert_eq!(ours.outcome.succeeded(), "met\n");
}
