//! `[ CMD ARGS ]`: a server that is run for one command.

use blackbox::peers::peer;
use blackbox::run::{program, run};
use blackbox::temp::{TempDir, pattern};

use super::{ferry, text};

#[test]
fn servers_of_others_in_brackets_are_read_and_written_and_end() {
    let temp = TempDir::new();
    let source = temp.file("in", &pattern(0, 1 << 20));
    for server in [&["nbdkit", "file"][..], &["qemu-nbd", "-f", "raw"]] {
        let Some(path) = peer(server[0]) else { continue };
        let target = temp.file("out", &vec![1; 1 << 20]);
        let words = [&["[", text(&path)], &server[1..], &[text(&target), "]"]].concat();
        ferry([&["copy", text(&source)], &words[..]].concat()).succeeded();
        // A server that had not ended would still have it open, and locked.
        ferry(["compare", "-f", "raw", "-F", "raw", text(&source), text(&target)]).succeeded();
    }
}

#[test]
fn the_words_in_brackets_reach_the_server_as_they_are() {
    let Some(nbdkit) = peer("nbdkit") else { return };
    for data in ["1&2", r#""a b?c=d%41" 1"#, "0x55*3 # & x"] {
        let ours =
            ferry(["info", "--size", "[", text(&nbdkit), "data", &format!("data={data}"), "]"]);
        let words =
            ["-U", "-", "data", &format!("data={data}"), "--run", "nbdinfo --size \"$uri\""];
        let theirs = run(&mut program(&nbdkit, words));
        assert_eq!(ours.status.code() == Some(0), theirs.status.success(), "{ours:#?} {theirs:#?}");
        assert_eq!(ours.stdout, theirs.stdout, "{data}");
    }
}
