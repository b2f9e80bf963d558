//! The effect of a plugin's answers about its abilities.

use blackbox::temp::TempDir;

use super::{Host, data, has_peers, python, scene, witness};

/// What a client sees of each ability, and what it leads to.
const LOOK: &str = r#"
h.set_strict_mode(0)
h.connect_uri(uri)
print(h.is_read_only(), h.can_flush(), h.can_fua(), h.can_trim(), h.can_zero(), h.can_fast_zero(), h.can_cache())
print(h.can_multi_conn(), h.is_rotational())
h.pwrite(b"a" * 4096, 0) if not h.is_read_only() else None
if h.can_fua(): attempt(lambda: h.pwrite(b"b" * 512, 512, nbd.CMD_FLAG_FUA))
if h.can_zero(): attempt(lambda: h.zero(1024, 1024))
if h.can_fast_zero(): attempt(lambda: h.zero(512, 3072, nbd.CMD_FLAG_FAST_ZERO))
if h.can_trim(): attempt(lambda: h.trim(512, 3584))
if h.can_cache(): attempt(lambda: h.cache(4096, 0))
if h.can_flush(): attempt(lambda: h.flush())
found = []
h.block_status(8192, 0, lambda context, offset, entries, error: found.append(entries))
print(found)
print(h.pread(4096, 0))
h.shutdown()
"#;

#[test]
fn what_a_plugin_cannot_is_made_of_what_it_can_as_by_nbdkit() {
    if !has_peers() {
        return;
    }
    let temp = TempDir::new();
    for version in ["-DV=2", "-DV=1"] {
        witness(&temp, &[version]);
        // Version 1 has the same rules, but for what it does not have.
        let all = if version == "-DV=2" { usize::MAX } else { 5 };
        let words = [
            "fail-zero=95:set",
            "say-can_write=0",
            "say-can_fua=0",
            "say-can_fua=1",
            "say-can_flush=0",
            "say-can_flush=0 say-can_fua=1",
            "say-can_zero=0",
            "say-can_zero=0 say-can_fast_zero=0",
            "say-can_fast_zero=0",
            "say-can_trim=0",
            "say-can_cache=0",
            "say-can_cache=1",
            "say-can_extents=0",
            "say-can_multi_conn=0 say-is_rotational=0",
            "",
            "fail-zero=95:errno",
        ];
        for words in words.into_iter().take(all) {
            let [theirs, ours] = Host::BOTH.map(|host| python(host, &temp, words, LOOK));
            assert_eq!(theirs.outcome.succeeded(), ours.outcome.succeeded(), "{version} {words}");
            assert_eq!(data(&theirs.log), data(&ours.log), "{version} {words}");
        }
    }
}

#[test]
fn a_map_without_extents_is_an_error_and_no_hole() {
    let Some(temp) = scene(&[]) else { return };
    let program = "h.connect_uri(uri)\nattempt(lambda: h.block_status(4096, 0, lambda *a: None))\n";
    let [theirs, ours] = Host::BOTH.map(|host| python(host, &temp, "say-told=0", program));
    assert_eq!(theirs.outcome.succeeded(), ours.outcome.succeeded());
}

#[test]
fn blocks_that_a_plugin_insists_on_are_advertised_and_kept() {
    let Some(temp) = scene(&[]) else { return };
    let program = r#"
h.set_strict_mode(0)
h.connect_uri(uri)
print([h.get_block_size(which) for which in (nbd.SIZE_MINIMUM, nbd.SIZE_PREFERRED, nbd.SIZE_MAXIMUM)])
h.pwrite(b"x" * 100, 1000)
print(h.pread(102, 999))
"#;
    let ours = python(Host::Ours, &temp, "say-minimum=512", program);
    let said = ours.outcome.succeeded();
    assert!(said.starts_with("[512, 4096, 1048576]"), "{said}");
    assert!(said.contains(&format!("\\x00{}\\x00", "x".repeat(100))), "{said}");
    for line in data(&ours.log) {
        let numbers: Vec<u64> = line.split(' ').skip(1).map(|word| word.parse().unwrap()).collect();
        assert!(numbers[0].is_multiple_of(512) && numbers[1].is_multiple_of(512), "{line}");
    }
}
