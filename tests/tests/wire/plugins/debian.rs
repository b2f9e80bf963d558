//! The plugins of the distribution, with what their pages show: the same bytes, the same map and
//! the same answers under nbdkit and under ours.

use std::path::{Path, PathBuf};

use blackbox::peers::{find, skip, skip_environment};
use blackbox::temp::TempDir;

use super::{Host, has_peers};

/// A plugin with an example.
struct Example {
    plugin: &'static str,
    /// What lies in the directory, a shell script.
    given: &'static str,
    words: &'static str,
    /// What is printed; without it, all that can be compared.
    look: &'static str,
}

/// An example of which everything is the same each time.
const fn plain(plugin: &'static str, given: &'static str, words: &'static str) -> Example {
    Example { plugin, given, words, look: "" }
}

/// The description of the export (without what only ours prints), its bytes and its map.
const LOOK: &str = r#"nbdinfo --json "$uri" | grep -v -e uri -e protocol -e block_size -e content; nbdcopy "$uri" - | sha256sum; nbdinfo --map "$uri""#;

const EXAMPLES: &[Example] = &[
    plain("memory", "", "1M"),
    plain("memory", "", "2M allocator=malloc"),
    plain("data", "", "'0x55*512 @32768 1 2 3 @65536 4'"),
    plain("data", "", "data='\"hello\"*1000' size=1M"),
    plain("file", "yes | head -c 300000 > disk; truncate -s 1M disk", "disk"),
    plain("file", "yes | head -c 300000 > disk", "-r disk fadvise=sequential"),
    plain("pattern", "", "1M"),
    plain("null", "", "1M"),
    plain("full", "", "1M"),
    plain("zero", "", ""),
    plain("random", "", "1M seed=7"),
    plain("sparse-random", "", "64M seed=7 runlength=1048576 percent=20"),
    plain("split", "yes | head -c 4096 > a; seq 10000 | head -c 8192 > b", "a b"),
    plain(
        "partitioning",
        "truncate -s 1M a; seq 1000000 | head -c 2097152 > b",
        "a b partition-type=mbr",
    ),
    plain(
        "floppy",
        "mkdir files; echo hello > files/one; touch -d 2020-01-01 files/one files",
        "files",
    ),
    plain("eval", "", "get_size='echo 64M' pread='dd if=/dev/zero count=$3 iflag=count_bytes'"),
    plain(
        "eval",
        "seq 100000 | head -c 65536 > disk",
        "get_size='echo 64K' pread='dd if=disk skip=$4 count=$3 iflag=count_bytes,skip_bytes' \
         extents='echo 0 32768; echo 32768 32768 hole,zero' can_extents='exit 0' can_multi_conn='exit 0' \
         is_rotational='exit 3' list_exports='echo NAMES; echo a; echo b'",
    ),
    plain(
        "sh",
        "seq 100000 | head -c 65536 > disk; cat > script <<'S'\n#!/bin/sh\ncase $1 in\n\
         get_size) echo 64K ;;\npread) dd if=disk skip=$4 count=$3 iflag=count_bytes,skip_bytes ;;\n\
         pwrite) dd of=disk seek=$4 oflag=seek_bytes conv=notrunc ;;\ncan_write) exit 0 ;;\n*) exit 2 ;;\nesac\nS\nchmod +x script",
        "./script",
    ),
    plain(
        "cc",
        "cat > disk.c <<'S'\n#include <stdint.h>\n#include <string.h>\n#define NBDKIT_API_VERSION 2\n#include <nbdkit-plugin.h>\n\
         static char data[65536];\nstatic void *my_open (int readonly) { return NBDKIT_HANDLE_NOT_NEEDED; }\n\
         static int64_t my_size (void *h) { return sizeof data; }\n\
         static int my_pread (void *h, void *buf, uint32_t n, uint64_t at, uint32_t f) { memcpy (buf, data + at, n); return 0; }\n\
         static int my_pwrite (void *h, const void *buf, uint32_t n, uint64_t at, uint32_t f) { memcpy (data + at, buf, n); return 0; }\n\
         #define THREAD_MODEL NBDKIT_THREAD_MODEL_PARALLEL\n\
         static struct nbdkit_plugin plugin = { .name = \"mine\", .open = my_open, .get_size = my_size, .pread = my_pread,\n\
         .pwrite = my_pwrite };\nNBDKIT_REGISTER_PLUGIN (plugin)\nS\n",
        "disk.c",
    ),
    plain("nbd", "", "command=nbdkit arg=pattern arg=1M"),
    plain("curl", "seq 300000 | head -c 1048576 > disk", "-r file://$PWD/disk"),
    Example {
        plugin: "info",
        given: "",
        words: "exportname",
        look: r#"nbdcopy "nbd+unix:///hello%20you?socket=$unixsocket" -; nbdinfo --size "$uri""#,
    },
    Example {
        plugin: "info",
        given: "",
        words: "mode=base64exportname",
        look: r#"nbdcopy "nbd+unix:///aGVsbG8=?socket=$unixsocket" -"#,
    },
    Example {
        plugin: "ondemand",
        given: "mkdir d",
        words: "dir=$PWD/d 1M command='truncate -s $size $disk; printf hello > $disk; truncate -s $size $disk'",
        look: r#"for name in one two; do nbdcopy "nbd+unix:///$name?socket=$unixsocket" - | sha256sum; done; nbdinfo --list "$uri" | grep ^export; ls d"#,
    },
    Example {
        plugin: "tmpdisk",
        given: "",
        words: "1M command='truncate -s $size $disk; printf hello | dd of=$disk conv=notrunc'",
        look: r#"nbdcopy "$uri" - | sha256sum; nbdinfo --can multi-conn "$uri"; echo $?"#,
    },
    // Its image has the time of its making in it. Its shell writes to a descriptor by number, one
    // digit at most.
    Example {
        plugin: "iso",
        given: "mkdir files; echo hello > files/one",
        words: "files",
        look: r#"nbdinfo --size "$uri"; nbdcopy "$uri" disk; xorriso -osirrox on -indev disk -extract /one one 2>/dev/null; cat one"#,
    },
    Example {
        plugin: "linuxdisk",
        given: "mkdir files; echo hello > files/one",
        words: "files size=8M type=ext4",
        look: r#"nbdinfo --size "$uri"; nbdcopy "$uri" disk; debugfs -R 'cat /one' disk 2>/dev/null || true"#,
    },
    Example {
        plugin: "file",
        given: "mkdir d; echo one > d/one; seq 1000 > d/two",
        words: "-r dir=$PWD/d",
        look: r#"for name in one two three; do nbdcopy "nbd+unix:///$name?socket=$unixsocket" - 2>/dev/null | cksum; done; nbdinfo --list "$uri" | grep ^export"#,
    },
    plain(
        "python",
        "cat > script.py <<'S'\nimport nbdkit, errno\nAPI_VERSION = 2\ndisk = bytearray(1024 * 1024)\ndisk[5:10] = b'hello'\n\
         def config(key, value):\n    assert key == 'greeting' and value == 'hi'\n\
         def thread_model():\n    return nbdkit.THREAD_MODEL_PARALLEL\ndef open(readonly):\n    return {'readonly': readonly}\n\
         def get_size(h):\n    return len(disk)\ndef can_multi_conn(h):\n    return True\n\
         def pread(h, buf, offset, flags):\n    buf[:] = disk[offset:offset + len(buf)]\n\
         def pwrite(h, buf, offset, flags):\n    disk[offset:offset + len(buf)] = buf\n\
         def extents(h, count, offset, flags):\n    return [(offset, count, nbdkit.EXTENT_HOLE | nbdkit.EXTENT_ZERO)] if offset >= 65536 \
         else [(offset, 65536 - offset, 0)]\nS\n",
        "script.py greeting=hi",
    ),
    plain(
        "perl",
        "cat > script.pl <<'S'\nuse strict;\nmy $disk = \"hello\" . \"\\0\" x (1024*1024 - 5);\nsub open { my $readonly = shift; return { readonly => $readonly }; }\n\
         sub get_size { return length ($disk); }\nsub pread { my ($h, $count, $offset) = @_; return substr ($disk, $offset, $count); }\n\
         sub pwrite { my ($h, $buf, $offset) = @_; substr ($disk, $offset, length $buf) = $buf; }\nS\n",
        "script.pl",
    ),
    plain(
        "lua",
        "cat > script.lua <<'S'\nlocal disk = \"hello\" .. string.rep (\"\\0\", 65536 - 5)\nfunction open (readonly) return {} end\n\
         function get_size (h) return string.len (disk) end\n\
         function pread (h, count, offset) return string.sub (disk, offset + 1, offset + count) end\nS\n",
        "script.lua",
    ),
    plain(
        "tcl",
        "cat > script.tcl <<'S'\nset disk [string repeat \"hello...\" 8192]\nproc plugin_open {readonly} { return 1 }\n\
         proc get_size {h} { global disk; return [string length $disk] }\n\
         proc pread {h count offset} { global disk; return [string range $disk $offset [expr {$offset + $count - 1}]] }\nS\n",
        "script.tcl",
    ),
    // Not ruby, which crashes under both: its interpreter is for one thread.
];

/// Where the distribution has its plugins.
fn directory() -> PathBuf {
    Path::new("/usr/lib")
        .join(format!("{}-linux-gnu", std::env::consts::ARCH))
        .join("nbdkit/plugins")
}

fn is_there(plugin: &str) -> bool {
    directory().join(format!("nbdkit-{plugin}-plugin.so")).is_file()
}

/// What a host prints for an example.
fn printed(host: Host, example: &Example) -> String {
    let temp = TempDir::new();
    let name = match host {
        Host::Nbdkit => example.plugin.to_owned(),
        // Some are the names of our devices.
        Host::Ours => format!("plugin:{}", example.plugin),
    };
    let look = if example.look.is_empty() { LOOK } else { example.look };
    std::fs::write(temp.join("look"), look).unwrap();
    std::fs::write(temp.join("given"), example.given).unwrap();
    let run = "uri=\"$uri\" unixsocket=\"$unixsocket\" sh ./look";
    let text = format!(". ./given; SERVER {name} {} --run '{run}'", example.words);
    let outcome = host.line(temp.path(), &text);
    outcome.succeeded().to_owned()
}

#[test]
fn every_plugin_of_the_distribution_serves_the_same_under_both() {
    if !has_peers() {
        return;
    }
    for example in EXAMPLES {
        if !is_there(example.plugin) {
            // Scripting languages are packages of their own; they are among those that the test
            // machine has.
            skip(&format!("needs the plugin {}", example.plugin));
            continue;
        }
        // A floppy says when its files were made, to two seconds: once they may be made at
        // different ones, but not three times.
        let both = || Host::BOTH.map(|host| printed(host, example));
        let [theirs, ours] = match both() {
            [theirs, ours] if theirs != ours && example.plugin == "floppy" => {
                Some(both()).filter(|[theirs, ours]| theirs == ours).unwrap_or_else(both)
            }
            printed => printed,
        };
        assert!(!theirs.is_empty(), "{} {}", example.plugin, example.words);
        assert_eq!(theirs, ours, "{} {}", example.plugin, example.words);
    }
}

#[test]
fn every_plugin_of_the_distribution_is_loaded_and_described() {
    if !has_peers() {
        return;
    }
    let temp = TempDir::new();
    let names = std::fs::read_dir(directory())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let names = names.filter_map(|name| {
        Some(name.strip_prefix("nbdkit-")?.strip_suffix("-plugin.so")?.to_owned())
    });
    let mut count = 0;
    for name in names {
        let theirs = Host::Nbdkit.line(temp.path(), &format!("SERVER {name} --dump-plugin"));
        let ours = Host::Ours.line(temp.path(), &format!("SERVER plugin:{name} --dump-plugin"));
        assert_eq!(theirs.succeeded(), ours.succeeded(), "{name}");
        count += 1;
    }
    assert!(count >= 20, "{count}");
}

#[test]
fn curl_reads_from_a_web_server() {
    if !has_peers() || find("nginx").is_none() || !is_there("curl") {
        return skip_environment("needs nginx and the plugin curl");
    }
    let given = "seq 300000 | head -c 1048576 > disk; cat > nginx.conf <<S\npid $PWD/pid;\nerror_log $PWD/log;\nuser root;\n\
        events {}\nhttp { access_log off; client_body_temp_path $PWD/t; server { listen unix:$PWD/http; root $PWD; } }\nS\n\
        nginx -p $PWD -c $PWD/nginx.conf; trap 'kill $(cat pid)' EXIT\n";
    let words = "-r http://localhost/disk unix-socket-path=$PWD/http";
    let example = plain("curl", given, words);
    let [theirs, ours] = Host::BOTH.map(|host| printed(host, &example));
    assert_eq!(theirs, ours);
    let gone = Example {
        look: "nbdinfo --size $uri || echo refused",
        ..plain("curl", given, "-r http://localhost/none unix-socket-path=$PWD/http")
    };
    assert_eq!(printed(Host::Ours, &gone), "refused\n");
}

#[test]
fn ssh_reads_and_writes_a_file_of_another_machine() {
    if !has_peers() || find("sshd").is_none() || !is_there("ssh") {
        return skip_environment("needs sshd and the plugin ssh");
    }
    // It does not choose a port by itself: it tries one after the other.
    let given = "seq 300000 | head -c 1048576 > disk; for key in host user; do ssh-keygen -q -t ed25519 -N '' -f $key; done\n\
        cp user.pub keys; mkdir -p /run/sshd; cat > sshd.conf <<S\nListenAddress 127.0.0.1\nHostKey $PWD/host\n\
        AuthorizedKeysFile $PWD/keys\nStrictModes no\nPidFile $PWD/pid\nSubsystem sftp internal-sftp\nPermitRootLogin yes\nS\n\
        port=$((20000 + $$ % 10000)); until [ -e pid ]; do port=$((port + 1))\n\
        $(command -v sshd || echo /usr/sbin/sshd) -D -f $PWD/sshd.conf -p $port 2>log & sshd=$!\n\
        while [ ! -e pid ] && kill -0 $sshd 2>/dev/null; do sleep 0.05; done; done; trap 'kill $(cat pid)' EXIT\n";
    let words = "host=127.0.0.1 port=$port user=root path=$PWD/disk identity=$PWD/user verify-remote-host=false";
    let look = r#"nbdcopy "$uri" - | sha256sum; echo changed > new; nbdcopy new "$uri" 2>/dev/null; nbdcopy "$uri" - | sha256sum"#;
    let example = Example { look, ..plain("ssh", given, words) };
    let [theirs, ours] = Host::BOTH.map(|host| printed(host, &example));
    assert_eq!(theirs, ours);
}
