//! nbdinfo, nbdcopy and nbdsh against our server.

use std::fs;

use blackbox::launch::{Serve, Server};
use blackbox::peers::peer;
use blackbox::run::{extents, json};
use blackbox::temp::{TempDir, pattern};
use blackbox::{MIB, index};

use super::{peer_ok, peer_run};

#[test]
fn nbdinfo_reads_size_and_flags() {
    let Some(nbdinfo) = peer("nbdinfo") else { return };
    let server = Serve::memory("1M").start();
    let info = json(&peer_ok(&nbdinfo, ["--json", &server.uri("")]));
    let export = &info["exports"][0];
    assert_eq!(info["protocol"], "newstyle-fixed");
    assert_eq!(info["structured"], true);
    assert_eq!(export["export-size"], MIB);
    assert_eq!(export["is_read_only"], false);
    for can in ["can_df", "can_fua", "can_flush", "can_multi_conn", "can_trim", "can_zero"] {
        assert_eq!(export[can], true, "{can} in {export:#}");
    }
    assert_eq!(export["can_fast_zero"], true, "{export:#}");
    assert_eq!(export["contexts"][0], "base:allocation");
    assert_eq!(export["block_size_minimum"], 1);
    assert_eq!(export["block_size_maximum"], 32 << 20);
}

fn three_exports() -> Server {
    Serve::exports(&[
        ("first", "memory:1M"),
        ("second disk", "pattern:2M"),
        ("dritte-platte-ö", "null:3M"),
    ])
    .option("--description")
    .option("What it is for")
    .start()
}

#[test]
fn nbdinfo_lists_exports_with_descriptions() {
    let Some(nbdinfo) = peer("nbdinfo") else { return };
    let server = three_exports();
    let uri = server.uri("");
    let info = json(&peer_ok(&nbdinfo, ["--list", "--json", &uri]));
    let exports = info["exports"].as_array().unwrap();
    let size = |name: &str| {
        let found = exports.iter().find(|e| e["export-name"] == name);
        found.unwrap_or_else(|| panic!("{name} is not in {info:#}"))["export-size"].clone()
    };
    assert_eq!(size("first"), MIB);
    assert_eq!(size("second disk"), 2 * MIB);
    assert_eq!(size("dritte-platte-ö"), 3 * MIB);
    // Whether the description is that of one export or of all is not specified.
    assert!(info.to_string().contains("What it is for"), "{info:#}");
}

#[test]
fn nbdinfo_opens_exports_by_name_and_by_default() {
    let Some(nbdinfo) = peer("nbdinfo") else { return };
    let server = three_exports();
    for (path, size) in
        [("", MIB), ("first", MIB), ("second%20disk", 2 * MIB), ("dritte-platte-%C3%B6", 3 * MIB)]
    {
        let told = peer_ok(&nbdinfo, ["--size", &server.uri(path)]);
        assert_eq!(told.trim(), size.to_string(), "{path}");
    }
    assert!(!peer_run(&nbdinfo, ["--size", &server.uri("fourth")]).status.success());
}

#[test]
fn nbdinfo_maps_data_and_holes() {
    let Some(nbdinfo) = peer("nbdinfo") else { return };
    let temp = TempDir::new();
    let path = temp.sparse_file("disk", 4 * MIB);
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &pattern(0, index(MIB)), MIB).unwrap();
    let server = Serve::file(&path).start();
    let map = peer_ok(&nbdinfo, ["--map", "--json", &server.uri("")]);
    assert_eq!(extents(&map), [(0, MIB, 3), (MIB, MIB, 0), (2 * MIB, 2 * MIB, 3)]);
    let totals = peer_ok(&nbdinfo, ["--map", "--totals", &server.uri("")]);
    assert!(totals.contains("25.0%") && totals.contains("75.0%"), "{totals}");
}

#[test]
fn nbdcopy_reads_what_a_file_holds() {
    let Some(nbdcopy) = peer("nbdcopy") else { return };
    let temp = TempDir::new();
    let mut content = pattern(0, index(20 * MIB));
    content[5_000_000..9_000_000].fill(0);
    let path = temp.file("source", &content);
    let server = Serve::file(&path).option("-r").start();
    let target = temp.join("target");
    peer_ok(&nbdcopy, [server.uri("").as_ref(), target.as_os_str()]);
    assert!(fs::read(&target).unwrap() == content, "the copy differs");
}

#[test]
fn nbdcopy_writes_what_we_then_hold() {
    let Some(nbdcopy) = peer("nbdcopy") else { return };
    let temp = TempDir::new();
    let mut content = pattern(0, index(20 * MIB));
    content[1_000_000..15_000_000].fill(0);
    let source = temp.file("source", &content);
    // Stale bytes where the source has zeroes.
    let path = temp.file("disk", &vec![0xd1; index(20 * MIB)]);
    let server = Serve::file(&path).start();
    peer_ok(&nbdcopy, ["--flush".as_ref(), source.as_os_str(), server.uri("").as_ref()]);
    assert!(fs::read(&path).unwrap() == content, "the copy differs");
    // The same into memory, and back.
    let memory = Serve::memory("20M").start();
    peer_ok(&nbdcopy, [source.as_os_str(), memory.uri("").as_ref()]);
    let back = temp.join("back");
    peer_ok(&nbdcopy, [memory.uri("").as_ref(), back.as_os_str()]);
    assert!(fs::read(&back).unwrap() == content, "the copy differs");
}

#[test]
fn nbdcopy_copies_between_two_of_our_servers_over_four_connections() {
    let Some(nbdcopy) = peer("nbdcopy") else { return };
    let source =
        Serve::device(["sparse-random", "512M", "seed=11", "percent=10", "runlength=1048576"])
            .start();
    let target =
        Serve::device(["sparse-random", "512M", "seed=11", "percent=10", "runlength=1048576"])
            .start();
    peer_ok(&nbdcopy, ["-C", "4", &source.uri(""), &target.uri("")]);
    // Another seed is not what the target holds: the copy must fail.
    let other =
        Serve::device(["sparse-random", "512M", "seed=12", "percent=10", "runlength=1048576"])
            .start();
    let outcome = peer_run(&nbdcopy, [&other.uri(""), &target.uri("")]);
    assert!(!outcome.status.success(), "a wrong copy was accepted");
}

#[test]
fn nbdcopy_passes_a_tebibyte_of_nothing() {
    let Some(nbdcopy) = peer("nbdcopy") else { return };
    let server = Serve::memory("1T").start();
    peer_ok(&nbdcopy, [&server.uri(""), "null:"]);
}

/// Runs a Python script in nbdsh, connected as `h` with structured replies and extents.
fn nbdsh(server: &Server, script: &str) -> Option<()> {
    let python = peer("nbdsh")?;
    let uri = server.uri("");
    let connect = format!("h.add_meta_context('base:allocation')\nh.connect_uri('{uri}')\n");
    peer_ok(&python, ["-m", "nbd", "-c", &format!("{connect}{script}")]);
    Some(())
}

#[test]
fn nbdsh_uses_every_flag() {
    let server = Serve::memory("4M").start();
    let script = r"
import nbd
b = bytes(range(1, 251)) * 100
h.pwrite(b, 1000, nbd.CMD_FLAG_FUA)
assert h.pread(len(b), 1000) == b
chunks = []
def chunk(buf, offset, status, err):
    chunks.append((offset, len(buf), status))
assert h.pread_structured(65536, 0, chunk, nbd.CMD_FLAG_DF)
assert len(chunks) == 1, chunks
h.zero(5000, 2000, nbd.CMD_FLAG_FUA | nbd.CMD_FLAG_NO_HOLE)
want = bytearray(b); want[1000:6000] = bytes(5000)
assert h.pread(len(b), 1000) == want
try:
    h.zero(4096, 0, nbd.CMD_FLAG_FAST_ZERO)
except nbd.Error as e:
    assert e.errnum == 95, e
h.trim(4096, 65536, nbd.CMD_FLAG_FUA)
if h.can_cache(): h.cache(65536, 0)
h.flush()
extents = []
h.block_status(4194304, 0, lambda c, o, e, err: extents.append((c, o, e)))
assert extents and extents[0][0] == 'base:allocation', extents
one = []
h.block_status(4194304, 0, lambda c, o, e, err: one.append(e), nbd.CMD_FLAG_REQ_ONE)
assert len(one[0]) == 2, one
";
    nbdsh(&server, script);
}

#[test]
fn nbdsh_gets_errors_and_stays_connected() {
    let server = Serve::memory("1M").option("-r").start();
    let script = r"
import nbd, errno
h.set_strict_mode(0)
def fails(want, f, *a):
    try: f(*a)
    except nbd.Error as e: assert e.errnum == want, (e, want)
    else: raise AssertionError('succeeded')
fails(errno.EPERM, h.pwrite, b'x', 0)
fails(errno.EPERM, h.zero, 512, 0)
fails(errno.EPERM, h.trim, 512, 0)
fails(errno.EINVAL, h.pread, 2, 1048575)
fails(errno.EINVAL, h.block_status, 2, 1048575, lambda *a: None)
assert h.pread(512, 0) == bytes(512)
";
    nbdsh(&server, script);
}

#[test]
fn nbdsh_keeps_a_thousand_requests_in_flight() {
    let server = Serve::device(["pattern", "1G"]).start();
    let script = r"
import struct
bufs = []
for n in range(1000):
    b = nbd.Buffer(4096)
    off = (n * 7919 * 4096) % (1 << 30)
    bufs.append((off, b, h.aio_pread(b, off)))
while h.aio_in_flight(): h.poll(-1)
for off, b, c in bufs:
    assert h.aio_command_completed(c)
    assert struct.unpack('>Q', bytes(b.to_bytearray()[:8]))[0] == off
";
    nbdsh(&server, script);
}

#[test]
fn nbdsh_enters_a_chosen_export_after_looking_around() {
    let Some(python) = peer("nbdsh") else { return };
    let server = three_exports();
    let uri = server.uri("");
    let script = format!(
        r"
h.set_opt_mode(True)
h.connect_uri('{uri}')
names = []
h.opt_list(lambda name, desc: names.append(name))
assert 'first' in names and 'second disk' in names, names
h.set_export_name('second disk')
h.opt_info()
assert h.get_size() == 2097152, h.get_size()
h.set_export_name('nowhere')
try: h.opt_info()
except nbd.Error: pass
else: raise AssertionError('nowhere exists')
h.set_export_name('first')
h.opt_go()
assert h.get_size() == 1048576
h.pwrite(b'hello', 3)
assert h.pread(5, 3) == b'hello'
"
    );
    peer_ok(&python, ["-m", "nbd", "-c", &script]);
}

#[test]
fn nbdsh_takes_extended_headers_where_it_knows_them() {
    let server = Serve::memory("8G").start();
    let script = r"
if not hasattr(h, 'get_extended_headers_negotiated'):
    print('SKIPPED: this libnbd has no extended headers')
else:
    assert h.get_extended_headers_negotiated()
    seen = []
    h.block_status_64(8 << 30, 0, lambda c, o, e, err: seen.append(e))
    assert seen[0] == [(8 << 30, 3)], seen
    h.zero(6 << 30, 0)
    h.trim(6 << 30, 0)
    h.pwrite(b'end', (8 << 30) - 3)
    assert h.pread(3, (8 << 30) - 3) == b'end'
";
    nbdsh(&server, script);
}
