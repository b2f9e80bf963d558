//! Encrypted disks from outside: QEMU reads what we make and we read what it makes, with the words
//! of both; a server writes into one in place; and no passphrase is on a command line.

use blackbox::peers::{info_as_before, peer};
use blackbox::run::Outcome;
use serde_json::Value;

use super::ground::{Ground, ferry, text};

/// A disk of a MiB, and a file with a secret that ends with a line.
struct Keyed {
    ground: Ground,
    raw: String,
    key: String,
    object: String,
}

impl Keyed {
    fn new() -> Option<Self> {
        let ground = Ground::new()?;
        let raw = text(&ground.raw(blackbox::MIB)).to_owned();
        let key = ground.path("key");
        std::fs::write(&key, "open sesame\n").unwrap();
        let object = format!("secret,id=s,file={key}");
        Some(Self { ground, raw, key, object })
    }

    /// What QEMU does, with the secret. It measures how long a key takes, and gives up where others
    /// use the processor.
    fn theirs(&self, words: &[&str]) -> Option<Outcome> {
        let (verb, rest) = words.split_first().unwrap();
        let words = [&[*verb, "--object", &self.object], rest].concat();
        for _ in 0..20 {
            let outcome = self.ground.try_img(&words);
            let is_late = outcome.status.code() == Some(124);
            if !is_late && !outcome.stderr.contains("Unable to get accurate CPU usage") {
                outcome.succeeded();
                return Some(outcome);
            }
        }
        eprintln!("skipped: QEMU made no key in 20 tries, the processors are busy");
        None
    }

    fn ours(&self, words: &[&str]) -> Outcome {
        let (verb, rest) = words.split_first().unwrap();
        ferry([&[*verb, "--object", &self.object], rest].concat())
    }

    fn is_same(&self, path: &str) {
        assert!(std::fs::read(path).unwrap() == std::fs::read(&self.raw).unwrap(), "{path}");
    }
}

#[test]
fn the_same_words_make_and_read_an_encrypted_disk_here_and_in_qemu() {
    let Some(keyed) = Keyed::new() else { return };
    let (made, plain) = (keyed.ground.path("made"), keyed.ground.path("plain"));
    let make = ["convert", "-f", "raw", "-O", "luks", "-o", "key-secret=s,iter-time=10"];
    let make = [&make[..], &[&keyed.raw, &made]].concat();
    let source = format!("driver=luks,key-secret=s,file.filename={made}");
    let read = ["convert", "--image-opts", &source, "-O", "raw", &plain];
    keyed.ours(&make).succeeded();
    keyed.theirs(&read).unwrap();
    keyed.is_same(&plain);
    std::fs::remove_file(&made).unwrap();
    if keyed.theirs(&make).is_none() {
        return;
    }
    keyed.ours(&read).succeeded();
    keyed.is_same(&plain);
    // What is told of it needs no key, and is the same.
    for words in [&["info", &*made][..], &["info", "--output=json", &made]] {
        let [ours, theirs] = [ferry(words), keyed.ground.try_img(words)]
            .map(|outcome| info_as_before(outcome.succeeded()));
        assert_eq!(ours, theirs);
    }
    // All of it is data, and its map is known without reading it.
    let words = ["map", "--output=json", "--image-opts", &source];
    let [ours, theirs] = [keyed.ours(&words), keyed.theirs(&words).unwrap()]
        .map(|outcome| serde_json::from_str::<Value>(&outcome.stdout).unwrap());
    let all =
        |map: &Value| (map[0]["start"].clone(), map[0]["length"].clone(), map[0]["data"].clone());
    assert_eq!(all(&ours), all(&theirs));
    // An existing one is written into, with its header as it is.
    let header = std::fs::read(&made).unwrap()[..4096].to_vec();
    std::fs::write(&keyed.raw, vec![3; 1 << 20]).unwrap();
    let into = ["convert", "-n", "-f", "raw", "--target-image-opts", &keyed.raw, &source];
    keyed.ours(&into).succeeded();
    keyed.ours(&read).succeeded();
    keyed.is_same(&plain);
    assert!(std::fs::read(&made).unwrap()[..4096] == header);
}

#[test]
fn an_encrypted_qcow2_of_qemu_is_read_and_told_of_in_the_same_words() {
    let Some(keyed) = Keyed::new() else { return };
    let (made, plain) = (keyed.ground.path("made"), keyed.ground.path("plain"));
    let options = "encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=10";
    let make = ["convert", "-f", "raw", "-O", "qcow2", "-o", options, &keyed.raw, &made];
    if keyed.theirs(&make).is_none() {
        return;
    }
    let source =
        format!("driver=qcow2,encrypt.format=luks,encrypt.key-secret=s,file.filename={made}");
    keyed.ours(&["convert", "--image-opts", &source, "-O", "raw", &plain]).succeeded();
    keyed.is_same(&plain);
    let name = format!("file:{made}?key-file={}", keyed.key);
    ferry(["compare", "-f", "qcow2", "-F", "raw", &name, &keyed.raw]).succeeded();
    for words in [&["info", &*made][..], &["info", "--output=json", &made]] {
        let [ours, theirs] = [ferry(words), keyed.ground.try_img(words)]
            .map(|outcome| info_as_before(outcome.succeeded()));
        assert_eq!(ours, theirs);
    }
    // No extent may say where its bytes are: they are cipher text there.
    let words = ["map", "--output=json", "--image-opts", &source];
    let ours = keyed.ours(&words);
    assert!(!ours.succeeded().contains("offset"), "{ours:#?}");
    let refused = ferry(["convert", "-f", "qcow2", &made, &plain]);
    assert!(refused.failed().contains("passphrase=+FILE"), "{refused:#?}");
    // And one is made by them.
    std::fs::remove_file(&made).unwrap();
    keyed.ours(&make).succeeded();
    keyed.theirs(&["convert", "--image-opts", &source, "-O", "raw", &plain]).unwrap();
    keyed.is_same(&plain);
    is_written(&keyed, &made, &source, &plain);
    let size = ["measure", "--output=json", "-O", "qcow2", "-o", options, "--size", "1G"];
    let [ours, theirs] = [keyed.ours(&size), keyed.theirs(&size).unwrap()]
        .map(|outcome| serde_json::from_str::<Value>(&outcome.stdout).unwrap());
    assert_eq!(ours["required"], theirs["required"]);
}

/// A server and a copy write into it, and QEMU reads that.
fn is_written(keyed: &Keyed, made: &str, source: &str, plain: &str) {
    let words = ["file", made, &format!("key-file={}", keyed.key), "--run"];
    let serve =
        |command: &str| ferry([&["serve", "--format", "qcow2"], &words[..], &[command]].concat());
    serve("qemu-io -f raw -c 'write -P 1 1000 3k' -c 'write -z -u 128k 64k' \"$uri\"").succeeded();
    keyed.theirs(&["check", "--image-opts", source]).unwrap();
    keyed.theirs(&["convert", "--image-opts", source, "-O", "raw", plain]).unwrap();
    let mut expected = std::fs::read(&keyed.raw).unwrap();
    expected[1000..1000 + 3072].fill(1);
    expected[128 << 10..192 << 10].fill(0);
    assert!(std::fs::read(plain).unwrap() == expected);
    let into = ["convert", "-n", "-f", "raw", "--target-image-opts", &keyed.raw, source];
    keyed.ours(&into).succeeded();
    keyed.theirs(&["convert", "--image-opts", source, "-O", "raw", plain]).unwrap();
    keyed.is_same(plain);
}

#[test]
fn a_server_and_a_copy_open_it_with_a_passphrase_from_a_file() {
    let Some(keyed) = Keyed::new() else { return };
    let (made, plain) = (keyed.ground.path("made"), keyed.ground.path("plain"));
    let passphrase = format!("passphrase=+{}", keyed.key);
    for version in ["version=1", "version=2,pbkdf-memory=1M"] {
        let options = format!("{passphrase},iter-time=1,{version}");
        let create = ["create", "-q", "-f", "luks", "-o", &options, &made, "1M"];
        ferry(create).succeeded();
        let fill =
            format!("'{}' copy '{}' \"$uri\"", blackbox::peers::diskferry().display(), keyed.raw);
        ferry(["serve", "--format", "luks", "file", &made, &passphrase, "--run", &fill])
            .succeeded();
        let name = format!("file:{made}?{passphrase}");
        ferry(["copy", "-f", "luks", &name, &plain]).succeeded();
        keyed.is_same(&plain);
        ferry(["compare", "-f", "luks", "-F", "raw", &name, &plain]).succeeded();
        std::fs::remove_file(&plain).unwrap();
        // By the filter, over any device.
        let filter = format!("luks?{passphrase}");
        ferry(["copy", "--source-filter", &filter, &format!("file:{made}"), &plain]).succeeded();
        keyed.is_same(&plain);
        std::fs::remove_file(&plain).unwrap();
        std::fs::remove_file(&made).unwrap();
    }
}

/// A key of ours in the kernel for a minute, by its number; `None`: there are no keyrings here.
fn kernel_key(payload: &str) -> Option<String> {
    let script = "import ctypes, os, platform, sys
add, control = {'x86_64': (248, 250), 'aarch64': (217, 219)}[platform.machine()]
libc = ctypes.CDLL(None, use_errno=True)
name, bytes = b'diskferry-%d' % os.getpid(), sys.argv[1].encode()
serial = libc.syscall(add, b'user', name, bytes, len(bytes), -4)
if serial < 0 or libc.syscall(control, 15, serial, 60) < 0:
    sys.exit(os.strerror(ctypes.get_errno()))
print(serial)";
    let python = peer("python3")?;
    let mut add = blackbox::run::program(&python, ["-c", script, payload]);
    let outcome = blackbox::run::run(&mut add);
    if !outcome.status.success() {
        blackbox::peers::skip_environment(&format!("no keyrings here: {}", outcome.stderr));
        return None;
    }
    Some(outcome.stdout.trim().to_owned())
}

#[test]
fn a_key_of_the_kernel_opens_it_also_where_calls_are_confined() {
    let Some(keyed) = Keyed::new() else { return };
    let Some(serial) = kernel_key("open sesame\n") else { return };
    let made = keyed.ground.path("made");
    let object = format!("secret_keyring,id=k,serial={:#x}", serial.parse::<i32>().unwrap());
    let make = ["convert", "--object", &object, "-f", "raw", "-O", "luks", "-o"];
    let make = [&make[..], &["key-secret=k,iter-time=1", &keyed.raw, &made]].concat();
    ferry(make).succeeded();
    let whole = format!("file:{made}?key-serial={serial}");
    // The first line alone, which is another key.
    let line = format!("file:{made}?passphrase=-key:{serial}");
    let in_a_file = format!("file:{made}?key-file={}", keyed.key);
    for name in [&whole, &in_a_file] {
        // This verb may make no call for keys any more when it opens an image.
        for sandbox in ["--sandbox=auto", "--sandbox=off"] {
            ferry(["compare", sandbox, "-f", "luks", "-F", "raw", name, &keyed.raw]).succeeded();
        }
    }
    let serial = format!("key-serial={serial}");
    ferry(["serve", "--format", "luks", "file", &made, &serial, "--run", "nbdinfo \"$uri\""])
        .succeeded();
    let none = format!("file:{made}?key-serial=0x7fffffff");
    let said = "read key-serial= from the kernel's keyring: there is no such key";
    for (name, said) in [(&line, "does not open"), (&none, said)] {
        for sandbox in ["--sandbox=auto", "--sandbox=off"] {
            let refused = ferry(["compare", sandbox, "-f", "luks", name, &keyed.raw]);
            assert!(refused.stderr.contains(said), "{refused:#?}");
        }
    }
}

#[test]
fn without_its_key_it_is_refused_and_nothing_that_exists_is_changed() {
    let Some(keyed) = Keyed::new() else { return };
    let (made, out) = (keyed.ground.path("made"), keyed.ground.path("out"));
    let make = ["create", "-q", "-f", "luks", "-o", "key-secret=s,iter-time=1", &made, "64k"];
    keyed.ours(&make).succeeded();
    let wrong = keyed.ground.path("wrong");
    std::fs::write(&wrong, "open").unwrap();
    let wrong = format!("file:{made}?key-file={wrong}");
    for (words, said) in [
        (&["convert", "-f", "luks", &*made, &out][..], "passphrase=+FILE"),
        (&["convert", &wrong, &out], "does not open"),
        (&["convert", &format!("file:{made}?passphrase=open"), &out], "the process list"),
        (&["convert", &format!("file:{made}?key-file=/nonexistent"), &out], "No such file"),
        (&["convert", &format!("file:{made}?key-secret=s"), &out], "--object"),
    ] {
        let refused = ferry(words);
        assert_eq!(refused.status.code(), Some(1), "{refused:#?}");
        assert!(refused.stderr.contains(said), "{refused:#?}");
        assert!(!std::path::Path::new(&out).exists(), "{refused:#?}");
    }
    let before = std::fs::read(&keyed.raw).unwrap();
    let refused = ferry(["convert", "-f", "raw", "-O", "luks", &made, &keyed.raw]);
    assert!(refused.failed().contains("passphrase=+FILE"), "{refused:#?}");
    let inline = ["create", "--object", "secret,id=s,data=hunter2", "-f", "luks", &out, "1M"];
    let refused = ferry(inline);
    assert!(refused.failed().contains("file=FILE") && !refused.stderr.contains("hunter2"));
    assert!(std::fs::read(&keyed.raw).unwrap() == before);
}

#[test]
fn a_disk_of_cryptsetup_is_read() {
    let Some(keyed) = Keyed::new() else { return };
    let Some(cryptsetup) = peer("cryptsetup") else { return };
    let (made, plain) = (keyed.ground.path("made"), keyed.ground.path("plain"));
    std::fs::File::create(&made).unwrap().set_len(17 << 20).unwrap();
    let words =
        "luksFormat -q --type luks2 --pbkdf-memory 1024 --pbkdf-force-iterations 4 --key-file";
    let words: Vec<_> = words.split(' ').chain([&*keyed.key, &made]).collect();
    blackbox::run::run(&mut blackbox::run::program(&cryptsetup, words)).succeeded();
    let name = format!("file:{made}?key-file={}", keyed.key);
    ferry(["copy", "-f", "luks", &name, &plain]).succeeded();
    assert_eq!(std::fs::metadata(&plain).unwrap().len(), 1 << 20);
}

#[test]
fn an_encrypted_overlay_is_rebased_and_committed_with_its_key() {
    let Some(keyed) = Keyed::new() else { return };
    let [over, plain, other] = ["over", "plain", "other"].map(|name| keyed.ground.path(name));
    std::fs::write(&other, vec![0; 1 << 20]).unwrap();
    let options = "encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=10";
    let create = ["create", "-q", "-f", "qcow2", "-o", options, "-F", "raw", "-b", &keyed.raw];
    keyed.ours(&[&create[..], &[&over]].concat()).succeeded();
    let image = format!("driver=qcow2,encrypt.key-secret=s,file.filename={over}");
    let with = ["--allow-external", "chain", "--image-opts", &image];
    // Over a disk of zeroes all that it shows is its own.
    let rebase = ["rebase", "-F", "raw", "-b", &other];
    keyed.ours(&[&rebase[..], &with].concat()).succeeded();
    keyed.theirs(&["convert", "-O", "raw", "--image-opts", &image, &plain]).unwrap();
    keyed.is_same(&plain);
    keyed.ours(&[&["commit", "-q"][..], &with].concat()).succeeded();
    keyed.is_same(&other);
    keyed.theirs(&["check", "-q", "--image-opts", &image]).unwrap();
}
