//! `diskferry serve` with filters that keep something of a disk, over a plugin whose exports are
//! different disks.
//!
//! What needs nbdkit's plugin `sh` is skipped, and said to be, where it is missing.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Output;

use super::{Room, complaint, ours};

/// A disk of 1 MiB for each name, which is what its bytes are; the default one consists of minuses.
const PLUGIN: &str = "#!/bin/sh
case $1 in
    thread_model) echo parallel ;;
    open) echo \"${3:--}\" ;;
    get_size) echo 1048576 ;;
    pread) yes \"$2\" | tr -d '\\n' | head -c \"$3\" ;;
    can_write) exit 3 ;;
    *) exit 2 ;;
esac
";

/// Serves around a shell script, in which `$ferry` is the program, and `get NAME` and `put NAME
/// FILE` copy.
fn serve(words: &[&str], script: &str) -> Output {
    let ferry = env!("CARGO_BIN_EXE_diskferry");
    let script = format!(
        "ferry='{ferry}'
        get() {{ \"$ferry\" copy -q \"nbd+unix:///$1?socket=$unixsocket\" - | head -c 8; echo; }}
        put() {{ \"$ferry\" copy -q \"$2\" \"nbd+unix:///$1?socket=$unixsocket\"; }}
        {script}"
    );
    ours(&[&["serve"], words, &["--run", &script]].concat())
}

fn plugin(room: &Room) -> Option<String> {
    if !Path::new("/usr/lib/x86_64-linux-gnu/nbdkit/plugins/nbdkit-sh-plugin.so").exists() {
        println!("skipped: nbdkit's plugin sh is not installed");
        return None;
    }
    let script = room.path("plugin.sh");
    std::fs::write(&script, PLUGIN).unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    Some(script)
}

#[test]
fn no_export_ever_shows_what_was_kept_of_another() {
    let room = Room::new("one-disk");
    let Some(script) = plugin(&room) else { return };
    for filter in ["--filter=cow", "--filter=cache"] {
        let words = ["--filter=exportname", filter, "sh", &script];
        let served = serve(&words, "get ''; get a; get b; get ''");
        let (out, complaints) = (served.stdout, String::from_utf8(served.stderr).unwrap());
        assert_eq!(String::from_utf8(out).unwrap(), "--------\n\n\n--------\n", "{complaints}");
        for name in ["a", "b"] {
            assert!(complaints.contains(&format!("open `{name}`: a filter")), "{complaints}");
        }
        assert!(complaints.contains("export-name=NAME"), "{complaints}");
        let words = ["--filter=exportname", filter, "sh", &script, "export-name=c"];
        let served = serve(&words, "get ''; get a; get b");
        assert_eq!(served.stdout, b"cccccccc\ncccccccc\ncccccccc\n", "{served:?}");
    }
    let data = room.path("data");
    std::fs::write(&data, vec![b'X'; 1 << 20]).unwrap();
    let change = format!("get a; put a '{data}'; get a; get ''; get b");
    let served = serve(&["-e", "a", "--filter=cow", "sh", &script], &change);
    assert_eq!(served.stdout, b"aaaaaaaa\nXXXXXXXX\nXXXXXXXX\n\n", "{served:?}");
}

#[test]
fn the_files_of_a_directory_are_not_served_over_what_keeps_one_of_them() {
    let room = Room::new("one-file");
    std::fs::write(room.path("a"), [1; 512]).unwrap();
    let dir = format!("dir={}", room.0.display());
    for words in [
        &["--filter=cow"][..],
        &["--filter=exportname", "--filter=cache"],
        &["-e", "a", "--filter=cow"],
    ] {
        let refused = serve(&[words, &["file", &dir]].concat(), "get a");
        let line = complaint(&refused, 1);
        assert!(line.contains("without filters that keep something of one disk"), "{line}");
    }
}
