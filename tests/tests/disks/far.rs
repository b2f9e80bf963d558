//! `compare` with a disk on another machine: it is read there, and only digests come from it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use blackbox::MIB;
use blackbox::peers::{diskferry, find, skip_environment};
use blackbox::run::{Outcome, ferry, ours, run, text};
use blackbox::temp::{TempDir, pattern};

/// In the place of ssh: notes its words and what it passes on, and runs the command here, to its
/// end first, so that all is counted that could come.
const STAND_IN: &str = r#"#!/bin/sh
for word; do printf '<%s>' "$word"; last=$word; done >>"$FAR/words"
echo >>"$FAR/words"
cd "$FAR" && sh -c "$last" >"$FAR/$$"
status=$?
cat "$FAR/$$" >>"$FAR/passed"
cat "$FAR/$$"
exit $status
"#;

struct Far {
    temp: TempDir,
    ssh: PathBuf,
}

impl Far {
    fn new() -> Self {
        let temp = TempDir::new();
        let ssh = temp.file("a ssh", STAND_IN.as_bytes());
        fs::set_permissions(&ssh, fs::Permissions::from_mode(0o755)).unwrap();
        Self { temp, ssh }
    }

    /// With the stand-in, as a shell reads its name.
    fn compare(&self, words: &[&str]) -> Outcome {
        let ssh = format!("'{}' -o 'An option'", text(&self.ssh));
        let mut command = ours(["compare", "--remote-program", text(&diskferry())]);
        command.args(words).env("DISKFERRY_SSH", ssh).env("FAR", self.temp.path());
        run(&mut command)
    }

    fn noted(&self, what: &str) -> Vec<u8> {
        let file = self.temp.join(what);
        let noted = fs::read(&file).unwrap_or_default();
        drop(fs::remove_file(file));
        noted
    }
}

fn uri(path: &Path) -> String {
    format!("ssh://me@host:2200{}", text(path))
}

fn changed(temp: &TempDir, name: &str, bytes: &[u8], at: usize) -> PathBuf {
    let mut bytes = bytes.to_vec();
    bytes[at] ^= 1;
    temp.file(name, &bytes)
}

#[test]
fn a_disk_there_is_compared_by_few_bytes_whatever_the_order() {
    let far = Far::new();
    let mut bytes = pattern(7, 48 << 20);
    bytes[5 << 20..21 << 20].fill(0);
    let here = far.temp.file("here.raw", &bytes);
    let there = far.temp.file("there.raw", &bytes);
    let other = changed(&far.temp, "other.raw", &bytes, 30 << 20);
    let image = far.temp.join("here.qcow2");
    ferry(["convert", "-q", "-f", "raw", "-O", "qcow2", text(&here), text(&image)]).succeeded();
    let differs = "Content mismatch at offset 29360128, or behind it up to 33554432!\n";
    for (second, status, said) in [(&there, 0, "Images are identical.\n"), (&other, 1, differs)] {
        let (first, image) = (text(&here), text(&image));
        let (far_first, far_second) = (uri(&here), uri(second));
        for words in [
            ["-f", "raw", "-F", "raw", first, &far_second],
            ["-f", "raw", "-F", "raw", &far_second, first],
            ["-f", "raw", "-F", "raw", &far_first, &far_second],
            ["-f", "qcow2", "-F", "raw", image, &far_second],
        ] {
            let found = far.compare(&words);
            assert_eq!(found.status.code(), Some(status), "{found:?}");
            assert_eq!(found.stdout, said, "{found:?}");
            let passed = far.noted("passed").len() as u64;
            assert!(passed > 0 && passed < 48 * MIB / 1000, "{passed} bytes came over");
        }
    }
    let words = String::from_utf8(far.noted("words")).unwrap();
    assert!(words.starts_with("<-o><An option><-p2200><me@host><'"), "{words}");
    let shown = far.compare(&["-p", "-f", "raw", "-F", "raw", text(&here), &uri(&there)]);
    assert!(shown.succeeded().contains("(100.00/100%)"), "{shown:?}");
    let quiet = ["-q", "-f", "raw", "-F", "raw", text(&here), &uri(&other)];
    assert_eq!(far.compare(&quiet).stdout, "");
}

#[test]
fn where_one_is_longer_the_rest_must_be_zero() {
    let far = Far::new();
    let bytes = pattern(3, (9 << 20) + 300);
    let mut longer = bytes.clone();
    longer.resize(21 << 20, 0);
    let beyond = changed(&far.temp, "beyond.raw", &longer, 20 << 20);
    let within = changed(&far.temp, "within.raw", &longer, (9 << 20) + 500);
    let short = far.temp.file("short.raw", &bytes);
    let long = far.temp.file("long.raw", &longer);
    let warning = "Warning: Image size mismatch!\n";
    for (other, status, said) in [
        (&long, 0, "Images are identical.\n"),
        (&beyond, 1, "Content mismatch at offset 20971520, or behind it up to 22020096!\n"),
        (&within, 1, "Content mismatch at offset 8388608, or behind it up to 12582912!\n"),
    ] {
        let (short, long) = (text(&short), text(other));
        let (far_short, far_long) = (uri(Path::new(short)), uri(Path::new(long)));
        for (first, second) in [
            (short, &*far_long),
            (long, &*far_short),
            (&*far_short, long),
            (&*far_long, short),
            (&*far_short, &*far_long),
            (&*far_long, &*far_short),
        ] {
            let found = far.compare(&["-f", "raw", "-F", "raw", first, second]);
            assert_eq!(found.status.code(), Some(status), "{found:?}");
            assert!(found.stdout.ends_with(said), "{found:?}");
            let warns = found.stdout.starts_with(warning);
            assert_eq!(warns, other != &within, "{found:?}");
        }
    }
}

#[test]
fn no_name_is_taken_for_a_command_or_an_option() {
    let far = Far::new();
    let bytes = pattern(1, 1 << 20);
    let here = far.temp.file("here.raw", &bytes);
    for name in ["-f", "a b;touch oops", "it's`touch oops`", "$(touch oops)", "a\\b", "nbd:x"] {
        let there = far.temp.file(name, &bytes);
        let named = uri(&there).replace('\\', "%5C");
        far.compare(&["-f", "raw", "-F", "raw", text(&here), &named]).succeeded();
    }
    assert!(!far.temp.join("oops").exists());
    let here = text(&here);
    for (second, said) in [
        ("ssh://-oProxyCommand=x/disk", "not a valid host"),
        ("ssh://-l@host/disk", "not a valid host"),
        ("ssh://host", "write ssh://"),
        ("ssh:///disk", "write ssh://"),
        ("ssh://host:x/disk", "port"),
        ("ssh://host/disk?x=1", "%3F"),
        ("ssh://host/a%0Ab", "not text"),
    ] {
        let refused = far.compare(&["-f", "raw", "-F", "raw", here, second]);
        assert_eq!(refused.status.code(), Some(1), "{refused:?}");
        assert!(refused.failed().contains(said), "{refused:?}");
    }
    for option in ["-s", "--image-opts"] {
        let refused = far.compare(&[option, here, "ssh://host/disk"]);
        assert!(refused.failed().contains("ssh://"), "{refused:?}");
    }
    // A reason that is given there is on standard error, before ours.
    let gone = far.compare(&[here, "-f", "raw", &uri(Path::new("/nonexistent/disk"))]);
    assert_eq!(gone.status.code(), Some(2), "{gone:?}");
    assert!(gone.stderr.contains("No such file"), "{gone:?}");
    assert!(gone.stderr.contains("ended with status 1"), "{gone:?}");
    let gone = far.compare(&[here, "-f", "raw", "--remote-program", "/none", "ssh://host/disk"]);
    assert!(gone.stderr.contains("--remote-program"), "{gone:?}");
    let near = ferry(["compare", "--remote-program", "/none", here, here]);
    assert!(near.failed().contains("neither disk is named ssh://"), "{near:?}");
}

#[test]
fn a_manifest_may_come_through_a_pipe() {
    let temp = TempDir::new();
    let bytes = pattern(5, 9 << 20);
    let disk = temp.file("disk.raw", &bytes);
    let other = changed(&temp, "other.raw", &bytes, 5 << 20);
    let piped = |second: &Path| {
        let script = "\"$0\" digest --manifest - -f raw \"$1\" | \"$0\" verify - -f raw \"$2\"";
        let words =
            ["-c", script, text(&diskferry()), text(&disk), text(second)].map(str::to_owned);
        run(std::process::Command::new("sh").args(words))
    };
    piped(&disk).succeeded();
    let differs = piped(&other);
    assert_eq!(differs.status.code(), Some(1), "{differs:?}");
    assert_eq!(differs.stdout, "Differs: 4194304 to 8388608 (4 MiB)\n");
    let padded = ferry(["digest", "-f", "raw", "--pad-to", "16M", text(&disk)]);
    let mut longer = bytes;
    longer.resize(16 << 20, 0);
    let long = temp.file("long.raw", &longer);
    let whole = ferry(["digest", "-f", "raw", text(&long)]);
    assert_eq!(padded.succeeded()[..64], whole.succeeded()[..64]);
    for words in [
        &["digest", "--manifest", "-", "--json", text(&disk)] as &[&str],
        &["copy", "--digest", "--manifest", "-", text(&disk), "null:"],
        &["copy", "--manifest", "-", text(&disk), "-"],
        &["verify", "-", "-"],
    ] {
        ferry(words).refused();
    }
    // A reader that has gone away ends it.
    let script = "\"$0\" digest --manifest - -f raw \"$1\" | head -n 1";
    let words = ["-c", script, text(&diskferry()), text(&disk)].map(str::to_owned);
    let head = run(std::process::Command::new("sh").args(words));
    assert!(head.succeeded().contains("\"manifest\":1"), "{head:?}");
}

#[test]
fn a_real_ssh_does_it() {
    let (Some(_), Some(_)) = (find("ssh"), find("sshd").or_else(|| find("/usr/sbin/sshd"))) else {
        return skip_environment("needs ssh and sshd");
    };
    let temp = TempDir::new();
    let bytes = pattern(5, 20 << 20);
    let here = temp.file("here.raw", &bytes);
    let there = temp.file("it's there.raw", &bytes);
    let other = changed(&temp, "other.raw", &bytes, 9 << 20);
    let script = r#"
cd "$1"; for key in host user; do ssh-keygen -q -t ed25519 -N '' -f $key; done; cp user.pub keys; mkdir -p /run/sshd
cat >sshd.conf <<S
ListenAddress 127.0.0.1
HostKey $PWD/host
AuthorizedKeysFile $PWD/keys
StrictModes no
PidFile $PWD/pid
PermitRootLogin yes
S
port=$((20000 + $$ % 10000)); until [ -e pid ]; do port=$((port + 1))
$(command -v sshd || echo /usr/sbin/sshd) -D -f $PWD/sshd.conf -p $port 2>log & sshd=$!
while [ ! -e pid ] && kill -0 $sshd 2>/dev/null; do sleep 0.05; done; done; trap 'kill $(cat pid)' EXIT
export DISKFERRY_SSH="ssh -F none -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR -i '$PWD/user'"
for disk in "$3" "$4"; do
"$0" compare --remote-program "$0" -f raw -F raw "$2" "ssh://root@127.0.0.1:$port$disk"; echo $?
done
"#;
    let path = |path: &Path| text(path).to_owned();
    let words = [path(&diskferry()), path(temp.path()), path(&here), path(&there), path(&other)];
    let ran = run(std::process::Command::new("sh").args(["-c", script]).args(words));
    let wanted = "Images are identical.\n0\n\
        Content mismatch at offset 8388608, or behind it up to 12582912!\n1\n";
    assert_eq!(ran.stdout, wanted, "{ran:?}");
}
