//! Filters that nbdkit has too, beside nbdkit's: the same words, and the same is printed by the
//! same clients. The distribution's nbdkit for those that it has; the newest one, where
//! `bench/peers` has put it, for the others.

use std::fs;
use std::path::Path;
use std::process::Command;

use blackbox::peers::{find, peer};
use blackbox::run::{Outcome, ours, program, run};
use blackbox::temp::{TempDir, pattern};

/// Where the newest peers are.
const NEWEST: &str = "/opt/peers";

/// What both print for the words of a command line, with clients of the distribution. `PYTHON` in
/// the script is a Python that has libnbd.
fn both(words: &[&str], script: &str) -> Option<(Outcome, Outcome)> {
    let (nbdkit, python) = (peer("nbdkit")?, peer("nbdsh")?);
    let script = script.replace("PYTHON", &python.display().to_string());
    let mine = run(ours(["serve"]).args(words).args(["--run", &script]));
    let theirs = run(Command::new(nbdkit).args(["-U", "-"]).args(words).args(["--run", &script]));
    Some((mine, theirs))
}

#[track_caller]
fn same(words: &[&str], script: &str) {
    let Some((mine, theirs)) = both(words, script) else { return };
    assert_eq!(mine.succeeded(), theirs.succeeded(), "{words:?}");
    assert!(!mine.stdout.is_empty(), "{words:?} prints nothing: {mine:#?}");
}

/// The same of the newest nbdkit, whose clients are its own; where it is there and may be entered.
#[track_caller]
fn same_as_newest(words: &[&str], script: &str) {
    let there = Path::new(NEWEST).join("usr/bin/nbdkit").is_file();
    let (Some(chroot), Some(python), true) = (find("chroot"), peer("nbdsh"), there) else { return };
    let enter = |inside: &str| run(Command::new(&chroot).args([NEWEST, inside, "--version"]));
    if !rustix::process::geteuid().is_root() || !enter("nbdkit").status.success() {
        return;
    }
    let my_script = script.replace("PYTHON -m nbd", &format!("{} -m nbd", python.display()));
    let mine = run(ours(["serve"]).args(words).args(["--run", &my_script]));
    let mut theirs = Command::new(chroot);
    theirs.args([NEWEST, "nbdkit", "-U", "-"]).args(words);
    let theirs = run(theirs.args(["--run", &script.replace("PYTHON -m nbd", "nbdsh")]));
    assert_eq!(mine.succeeded(), theirs.succeeded(), "{words:?}");
    assert!(!mine.stdout.is_empty(), "{words:?} prints nothing: {mine:#?}");
}

/// Both refuse the words.
#[track_caller]
fn both_refuse(words: &[&str]) {
    let Some((mine, theirs)) = both(words, "true") else { return };
    mine.refused();
    assert!(!theirs.status.success(), "{words:?}: {theirs:#?}");
}

#[test]
fn swab_swaps_as_nbdkit_does() {
    let read = "PYTHON -m nbd -u \"$uri\" -c 'print(h.get_size(), bytes(h.pread(1000, 0)).hex())'";
    for bits in ["8", "16", "32", "64"] {
        same(&["--filter=swab", "pattern", "1003", &format!("swab-bits={bits}")], read);
    }
    same(&["--filter=swab", "pattern", "1003"], read);
    let write = "PYTHON -m nbd -u \"$uri\" -c 'h.pwrite(b\"01234567\", 8)' -c 'h.zero(8, 16)' \
                 -c 'h.flush()' -c 'print(bytes(h.pread(32, 0)))'";
    same(&["--filter=swab", "memory", "1K", "swab-bits=32"], write);
    both_refuse(&["--filter=swab", "memory", "1K", "swab-bits=12"]);
}

#[test]
fn extentlist_shows_the_map_that_nbdkit_shows() {
    let temp = TempDir::new();
    let list =
        "1M 64K\n0 1024 hole,zero\n4096\t4096\n8192 4K zero\n12K 512 2\n20K 1K 3\n 30K 1K 0\n";
    let list = temp.file("list", list.as_bytes());
    let word = format!("extentlist={}", list.display());
    let map = "nbdinfo --map \"$uri\"";
    same(&["-r", "--filter=extentlist", "memory", "2M", &word], map);
    let overlapping = temp.file("overlapping", b"0 10\n5 10\n");
    let word = format!("extentlist={}", overlapping.display());
    let Some((mine, theirs)) = both(&["-r", "--filter=extentlist", "memory", "2M", &word], "true")
    else {
        return;
    };
    mine.failed();
    assert!(!theirs.status.success());
    both_refuse(&["-r", "--filter=extentlist", "memory", "2M"]);
}

#[test]
fn ddrescue_fails_what_nbdkit_fails() {
    let temp = TempDir::new();
    let map = "# c\n0x0 +\n0x0 0x400 +\n0x400 0x200 -\n0x600 512 +\n0x800 0x800 ?\n";
    let map = temp.file("map", map.as_bytes());
    let word = format!("ddrescue-mapfile={}", map.display());
    let script = "PYTHON -m nbd -u \"$uri\" -c '
for o, l in ((0, 1024), (0, 1025), (1024, 512), (1535, 2), (1536, 512), (2048, 1), (4095, 1)):
    try:
        h.pread(l, o)
        print(o, l)
    except nbd.Error as e:
        print(o, l, e.errno)
print(h.is_read_only(), h.can_cache())
'";
    same(&["--filter=ddrescue", "pattern", "4K", &word], script);
}

#[test]
fn tar_finds_what_nbdkit_finds() {
    let Some(tar) = peer("tar") else { return };
    let temp = TempDir::new();
    let long = format!("{}/disk", ["directory"; 15].join("/"));
    fs::create_dir_all(temp.join(&long).parent().unwrap()).unwrap();
    fs::write(temp.join(&long), pattern(3, 5000)).unwrap();
    temp.file("disk.img", &pattern(1, 70_000));
    temp.file("b\u{e4}r", &pattern(2, 512));
    for format in ["v7", "ustar", "gnu", "posix"] {
        let names = ["b\u{e4}r", "disk.img", &long];
        let names = &names[..if format == "v7" { 2 } else { 3 }];
        let archive = temp.join(&format!("{format}.tar"));
        let mut pack = Command::new(&tar);
        pack.arg("-C").arg(temp.path()).arg("-cf").arg(&archive).arg(format!("--format={format}"));
        run(pack.args(names)).succeeded();
        for name in names {
            let file = temp.join(name);
            let script = format!(
                "PYTHON -m nbd -u \"$uri\" -c 'bytes = h.pread(h.get_size(), 0)' \
                 -c 'print(len(bytes), bytes == open(\"{}\", \"rb\").read())'",
                file.display()
            );
            let archive = archive.display().to_string();
            let words = ["file", &archive, "--filter=tar", &format!("tar-entry={name}")];
            // nbdkit goes by what GNU tar prints: quoted names, and of long ones where the name
            // lies.
            if name.is_ascii() && name.len() < 100 {
                same(&words, &script);
            }
            let Some(python) = peer("nbdsh") else { return };
            let script = script.replace("PYTHON", &python.display().to_string());
            let outcome = run(ours(["serve"]).args(words).args(["--run", &script]));
            let size = fs::metadata(&file).unwrap().len();
            assert_eq!(outcome.succeeded(), format!("{size} True\n"), "{words:?}");
        }
    }
    let archive = temp.join("gnu.tar").display().to_string();
    let words = ["file", &archive, "--filter=tar", "tar-entry=nothing"];
    let Some((mine, theirs)) = both(&words, "nbdinfo \"$uri\"") else { return };
    // nbdkit looks for it when a client comes.
    assert!(mine.failed().contains("there is no file `nothing`"));
    assert!(!theirs.status.success());
}

#[test]
fn packed_streams_are_what_nbdkit_unpacks_of_them() {
    let temp = TempDir::new();
    let bytes = [pattern(1, 300_000), vec![0; 500_000]].concat();
    temp.file("disk", &bytes);
    for (program, filter) in [("gzip", "gzip"), ("xz", "xz")] {
        let Some(program) = peer(program) else { return };
        let packed = temp.join(filter);
        let file = fs::File::create(&packed).unwrap();
        let mut pack = Command::new(program);
        pack.arg("-c").arg(temp.join("disk")).stdout(file);
        assert!(pack.status().unwrap().success());
        let script = "PYTHON -m nbd -u \"$uri\" -c 'import hashlib' \
             -c 'print(h.get_size(), h.is_read_only(), hashlib.sha1(h.pread(h.get_size(), 0)).hexdigest())' \
             -c 'print(bytes(h.pread(16, 123457)).hex())'";
        let packed = packed.display().to_string();
        same(&["file", &packed, &format!("--filter={filter}")], script);
        let (plain, word) = (temp.join("disk").display().to_string(), format!("--filter={filter}"));
        let Some((mine, theirs)) = both(&["file", &plain, &word], "nbdinfo \"$uri\"") else {
            return;
        };
        mine.failed();
        assert!(!theirs.status.success());
    }
}

#[test]
fn a_file_in_a_file_system_is_what_nbdkit_shows_of_it() {
    let Some(make) = peer("mke2fs") else { return };
    let temp = TempDir::new();
    fs::create_dir_all(temp.join("root/disks")).unwrap();
    let bytes = [pattern(1, 300_000), vec![0; 500_000], pattern(2, 77_777)].concat();
    fs::write(temp.join("root/disks/disk.raw"), &bytes).unwrap();
    for kind in ["ext2", "ext3", "ext4"] {
        let image = temp.join(kind).display().to_string();
        let root = temp.join("root").display().to_string();
        let words = ["-q", "-F", "-t", kind, "-b", "1024", "-d", &root, &image, "8M"];
        run(&mut program(&make, words)).succeeded();
        let script = "PYTHON -m nbd -u \"$uri\" -c 'import hashlib' \
             -c 'print(h.get_size(), hashlib.sha1(h.pread(h.get_size(), 0)).hexdigest())' \
             -c 'print(bytes(h.pread(16, 123457)).hex(), bytes(h.pread(16, 299990)).hex())'";
        let words = ["--filter=ext2", "file", &image];
        same(&[&words[..], &["ext2file=/disks/disk.raw"]].concat(), script);
        let nothing = [&words[..], &["ext2file=/disks/nothing"]].concat();
        let Some((mine, theirs)) = both(&nothing, "nbdinfo \"$uri\"") else { return };
        mine.failed();
        assert!(!theirs.status.success());
    }
}

#[test]
fn exportname_lists_and_lets_through_what_nbdkit_does() {
    // What else nbdkit reports of each export is not compared.
    let script = "PYTHON -m nbd -c '
h.set_opt_mode(True)
h.connect_uri(\"'\"$uri\"'\")
names = []
try:
    h.opt_list(lambda name, text: names.append((name, text)))
except nbd.Error:
    pass
print(names)
h.opt_abort()
for name in \"\", \"a\", \"b\", \"c\":
    h = nbd.NBD()
    h.set_export_name(name)
    h.set_full_info(True)
    try:
        h.connect_unix(\"'\"$unixsocket\"'\")
        print(repr(name), h.get_size(), h.get_export_description())
    except nbd.Error:
        print(repr(name), \"refused\")
'";
    let names = ["exportname=a", "exportname=b", "exportdesc=fixed:a disk"];
    for more in [
        &["exportname-list=explicit"][..],
        &["exportname-list=explicit", "exportname-strict=true"],
        &["exportname-list=empty", "default-export=a"],
        &["exportname-list=error"],
        &["exportname-list=defaultonly"],
        &["exportname-list=defaultonly", "default-export=b"],
        &["exportname-strict=yes", "exportname-list=empty", "exportname="],
    ] {
        let words = ["--filter=exportname", "memory", "1M"];
        let words: Vec<_> = words.iter().chain(&names).chain(more).copied().collect();
        same(&words, script);
    }
    both_refuse(&["--filter=exportname", "memory", "1M", "exportname-list=some"]);
    both_refuse(&["--filter=exportname", "memory", "1M", "exportdesc=some"]);
}

#[test]
fn tls_fallback_says_what_nbdkit_says() {
    let script = "PYTHON -m nbd -u \"$uri\" -c 'print(h.get_size(), h.is_read_only())' \
                  -c 'print(bytes(h.pread(h.get_size(), 0)))'";
    same(&["--filter=tls-fallback", "memory", "1M"], script);
    let long = format!("tlsreadme={}", "long ".repeat(200));
    for words in ["tlsreadme=hello", &long] {
        same(&["--filter=tls-fallback", "memory", "1M", words], script);
    }
}

#[test]
fn a_pause_is_answered_as_nbdkit_answers_it() {
    for word in ["", "x"] {
        let temp = TempDir::new();
        let socket = format!("pause-control={}", temp.join("control").display());
        let script = format!(
            "PYTHON -m nbd -u \"$uri\" -c '
import socket
control = socket.socket(socket.AF_UNIX)
control.connect(\"{}\")
control.settimeout(60)
heard = b\"\"
control.send(b\"{word}p\\n r \\t x p\")
while len(heard) < {}:
    heard += control.recv(100)
print(heard)
buf = nbd.Buffer(512)
read = h.aio_pread(buf, 0)
print(h.aio_command_completed(read))
control.send(b\"r\")
print(control.recv(100))
while not h.aio_command_completed(read):
    h.poll(-1)
print(bytes(buf.to_bytearray()[:16]))
'",
            temp.join("control").display(),
            4 + word.len()
        );
        same(&["--filter=pause", "pattern", "1M", &socket], &script);
        assert!(!temp.join("control").exists());
    }
    both_refuse(&["--filter=pause", "memory", "1M"]);
}

#[test]
fn a_server_that_is_to_exit_already_exits_as_nbdkit_does() {
    let Some(nbdkit) = peer("nbdkit") else { return };
    let temp = TempDir::new();
    for (file, word) in [("made", "exit-when-file-created"), ("gone", "exit-when-file-deleted")] {
        if file == "made" {
            temp.file(file, b"");
        }
        let socket = |program: &str| temp.join(&format!("{program}-{file}")).display().to_string();
        let words = ["--filter=exitwhen", "memory", "1M"];
        let word = format!("{word}={}", temp.join(file).display());
        run(ours(["serve"]).args(words).arg(&word).args(["-U", &socket("ours")])).succeeded();
        let mut theirs = Command::new(&nbdkit);
        theirs.args(words).arg(&word).args(["-f", "-U", &socket("theirs")]);
        run(&mut theirs).succeeded();
    }
}

#[test]
fn requests_are_tried_again_as_often_as_nbdkit_tries_them() {
    both_refuse(&["--filter=retry-request", "memory", "1M", "retry-request-retries=1001"]);
    both_refuse(&["--filter=retry-request", "memory", "1M", "retry-request-delay=0"]);
    let failing = ["--filter=retry-request", "--filter=error", "memory", "1M", "error-rate=100%"];
    let words = [&failing[..], &["retry-request-retries=1", "retry-request-delay=1"]].concat();
    let script = "PYTHON -m nbd -u \"$uri\" -c '
try:
    h.pread(512, 0)
except nbd.Error as e:
    print(e.errno)
'";
    same(&words, script);
}

#[test]
fn scan_refuses_what_nbdkit_refuses() {
    for word in ["scan-size=256", "scan-size=3000", "scan-size=64M", "scan-ahead=maybe"] {
        both_refuse(&["--filter=scan", "memory", "1M", word]);
    }
    let script = "PYTHON -m nbd -u \"$uri\" -c 'print(h.get_size())'";
    same(&["--filter=scan", "--filter=cache", "memory", "1M", "scan-forever=true"], script);
    same(&["--filter=nofilter", "memory", "1M"], script);
}

/// A script that changes the file behind the disk between reads, and prints what each of them sees.
fn behind(file: &Path) -> String {
    format!(
        "PYTHON -m nbd -u \"$uri\" -c '
def kinds(n, at):
    print(n, at, sorted(set(bytes(h.pread(n, at)))))
def beneath(byte, n, at):
    with open(\"{}\", \"r+b\") as f:
        f.seek(at)
        f.write(byte * n)
h.pread(64 << 10, 0)
beneath(b\"a\", 128 << 10, 64 << 10)
for at in range(0, 512 << 10, 64 << 10):
    kinds(64 << 10, at)
beneath(b\"b\", 512 << 10, 0)
for n, at in (512 << 10, 0), (4096, 0), (1, 65535), (300000, 100000):
    kinds(n, at)
'",
        file.display()
    )
}

#[test]
fn cache_and_cow_keep_what_is_read_of_holes_as_nbdkit_does() {
    let temp = TempDir::new();
    let (file, flag) = (temp.join("disk"), temp.file("flag", b""));
    let absent = temp.join("absent");
    for (filter, size_of) in [("cache", "cache-min-block-size"), ("cow", "cow-block-size")] {
        for size in ["4K", "64K", "128K"] {
            for keep in ["true", "false", flag.to_str().unwrap(), absent.to_str().unwrap()] {
                let (words, path) = (format!("--filter={filter}"), file.display().to_string());
                let [size, keep] =
                    [format!("{size_of}={size}"), format!("{filter}-on-read={keep}")];
                // Empty for both.
                let script =
                    format!("truncate -s 0 {path} && truncate -s 512K {path}; {}", behind(&file));
                fs::write(&file, vec![0; 512 << 10]).unwrap();
                same(&[&words, "file", &path, &size, &keep], &script);
            }
        }
    }
}

#[test]
fn what_is_trimmed_reads_as_it_does_with_nbdkit_down_to_the_byte() {
    // On a disk, in memory, and in an overlay.
    for folder in ["/tmp", "/dev/shm"] {
        let temp = TempDir::below(Path::new(folder));
        let path = temp.sparse_file("disk", 300_000).display().to_string();
        for filter in [&[][..], &["--filter=cow"], &["--filter=cow", "cow-block-size=4K"]] {
            let script = "PYTHON -m nbd -u \"$uri\" -c '
import hashlib
h.pwrite(bytes(1 + i % 255 for i in range(200000)), 0)
ranges = [(1024, 1024), (5000, 1), (4095, 2), (8191, 4098), (20000, 50000), (65536, 65536), (199000, 50000), (250000, 50000), (199999, 1), (0, 300000)]
for at, n in ranges:
    h.trim(n, at)
    print(at, n, hashlib.sha256(h.pread(300000, 0)).hexdigest())
'";
            let words = [
                &filter[..filter.len().min(1)],
                &["file", &path],
                filter.get(1..).unwrap_or_default(),
            ];
            same(&words.concat(), script);
        }
    }
}

#[test]
fn packed_streams_are_what_the_newest_nbdkit_unpacks_of_them() {
    let temp = TempDir::new();
    temp.file("disk", &[pattern(1, 300_000), vec![0; 500_000]].concat());
    let index = format!("gzip-index-path={}", temp.join("index").display());
    for (program, filter, extra) in
        [("lzip", "lzip", None), ("gzip", "indexed-gzip", Some(&*index))]
    {
        let Some(program) = peer(program) else { return };
        let packed = temp.join(filter);
        let mut pack = Command::new(program);
        pack.arg("-c").arg(temp.join("disk")).stdout(fs::File::create(&packed).unwrap());
        assert!(pack.status().unwrap().success());
        let (packed, word) = (packed.display().to_string(), format!("--filter={filter}"));
        let words: Vec<_> = ["file", &packed, &word].into_iter().chain(extra).collect();
        let script = "PYTHON -m nbd -u \"$uri\" -c 'import hashlib' \
             -c 'print(h.get_size(), h.is_read_only(), hashlib.sha1(h.pread(h.get_size(), 0)).hexdigest())'";
        same_as_newest(&words, script);
    }
}

#[test]
fn the_newest_filters_do_what_the_newest_nbdkit_does() {
    let rotational = "PYTHON -m nbd -u \"$uri\" -c 'print(h.is_rotational())'";
    // The distribution's libnbd may not know what that is.
    let look = "import nbd; nbd.NBD.is_rotational";
    let knows = peer("nbdsh").map(|python| run(Command::new(python).args(["-c", look])));
    if knows.is_some_and(|looked| looked.status.success()) {
        same_as_newest(&["--filter=rotational", "memory", "1M"], rotational);
        same_as_newest(&["--filter=spinning", "memory", "1M"], rotational);
    } else {
        same_as_newest(&["--filter=rotational", "memory", "1M"], "nbdinfo --size \"$uri\"");
    }
    let bytes =
        "PYTHON -m nbd -u \"$uri\" -c 'print(h.get_size(), bytes(h.pread(1024, 100)).hex())'";
    let maps = ["map=0-511:512", "map=512-1023:0", "map=100-2000:3000"];
    let words = [&["--filter=map", "pattern", "8K"][..], &maps, &["map-size=4K"]].concat();
    same_as_newest(&words, bytes);
    for key in
        ["xor=0x123456 xorlen=3", "xor=0x12 xorlen=2", "xor=0x123456 xorlen=2", "xor=77 xorlen=8"]
    {
        let words: Vec<_> =
            ["--filter=xor", "pattern", "8K"].into_iter().chain(key.split(' ')).collect();
        same_as_newest(&words, bytes);
    }
    let size = "PYTHON -m nbd -u \"$uri\" -c 'print(h.get_size())'";
    same_as_newest(&["--filter=openonce", "memory", "1M"], size);
    same_as_newest(&["--filter=time-limit", "memory", "1M", "time-limit=0"], size);
    let late = "PYTHON -m nbd -u \"$uri\" -c '
import time
h.pread(512, 0)
time.sleep(6)
try:
    h.pread(512, 0)
except nbd.Error as e:
    print(e.errno, h.aio_is_closed())
'";
    same_as_newest(&["--filter=time-limit", "memory", "1M", "time-limit=5"], late);
}
