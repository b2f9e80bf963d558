//! Keyslots that are filled and emptied: our own disks and those of peers are opened by the new
//! passphrases and no longer by the old ones, by peers too; and whenever that is stopped, what was
//! not being changed opens the disk.

use device::{Edge, ErrorKind, Params, Result};
use disk::{Image, Named, OpenOptions};
use formats::{Files, Opening, Reference};
use runtime::Context;
use trial::{PowerCut, TestDice};

use crate::support::{Place, all, create, must, pattern, when_unlocked};

const SIZE: usize = 64 << 10;

/// Names no files.
#[derive(Debug)]
struct Nothing;

impl Files for Nothing {
    fn open(&self, _: &Reference<'_>) -> Result<Edge> {
        panic!("it names no files")
    }

    fn create(&self, _: &str) -> Result<Edge> {
        panic!("it makes no files")
    }

    fn name(&self) -> Option<String> {
        None
    }
}

/// Secrets in files, as parameters.
fn keys(place: &Place) -> [String; 3] {
    ["one", "two", "three"].map(|word| place.write(word, format!("secret {word}").as_bytes()))
}

/// A new disk under the first secret, in a file of its own.
fn make(place: &Place, format: &str, key: &str) -> String {
    let path = place.path(format);
    let options = match format {
        "luks" => vec![format!("key-file={key}"), "iter-time=1".into()],
        _ => vec![
            "encrypt.format=luks".into(),
            format!("encrypt.key-file={key}"),
            "encrypt.iter-time=1".into(),
        ],
    };
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let created = create(&path, format, &options, SIZE as u64).unwrap();
    created.edge.write(&pattern(SIZE, 3), 0, false).unwrap();
    created.edge.device().finish().unwrap();
    created.edge.flush().unwrap();
    if let Some(made) = created.made {
        made.keep();
    }
    path
}

fn image(format: &str, key: &str) -> Image {
    let params = Params::parse([&*format!("key-file={key}")]).unwrap();
    Image { params, ..Image::of(format).unwrap() }
}

fn amend(path: &str, format: &str, key: &str, options: &[&str]) -> Result<()> {
    let prefix = if format == "luks" { "" } else { "encrypt." };
    let words: Vec<_> = options.iter().map(|option| format!("{prefix}{option}")).collect();
    let options = Params::parse(words.iter().map(String::as_str)).unwrap();
    let (image, context) = (image(format, key), Context::default());
    let named = Named::parse(path).unwrap();
    let read_write = OpenOptions::read_write();
    let kept = when_unlocked(|| disk::keep(&named, &image, &read_write, &context))?;
    kept.change("none", kept.format.upkeep.amend, |amend, container, opening| {
        amend(container, opening, &options)
    })
}

/// Whether this secret opens the disk, which then holds what it held.
fn opens(path: &str, format: &str, key: &str) -> bool {
    let stack = disk::Stack::default().over_image(image(format, key));
    let named = Named::parse(path).unwrap();
    let (options, context) = (OpenOptions::read_only(), Context::default());
    match when_unlocked(|| disk::open(&named, &stack, &options, &context)) {
        Ok(opened) => {
            assert!(all(&opened.edge)[..SIZE] == pattern(SIZE, 3));
            true
        }
        Err(e) => {
            assert_eq!(e.kind(), ErrorKind::NeedsKey, "{e}");
            false
        }
    }
}

#[test]
fn passphrases_come_and_go_and_peers_see_the_same() {
    let place = Place::new();
    let [one, two, three] = keys(&place);
    for format in ["luks", "qcow2"] {
        let path = make(&place, format, &one);
        let change = |key: &str, options: &[&str]| amend(&path, format, key, options);
        let new = |key: &str| format!("new-key-file={key}");
        let old = |key: &str| format!("old-key-file={key}");
        change(&one, &["state=active", &new(&two), "iter-time=1"]).unwrap();
        change(&two, &["state=active", &new(&three), "keyslot=6", "iter-time=1"]).unwrap();
        for key in [&one, &two, &three] {
            assert!(opens(&path, format, key), "{format} {key}");
        }
        let source = match format {
            "luks" => format!("driver=luks,key-secret=s,file.filename={path}"),
            _ => format!("driver=qcow2,encrypt.key-secret=s,file.filename={path}"),
        };
        let object = format!("secret,id=s,file={three}");
        let plain = place.path("plain");
        let convert =
            ["convert", "--object", &object, "--image-opts", &source, "-O", "raw", &plain];
        if must("qemu-img", &convert) {
            assert!(std::fs::read(&plain).unwrap()[..SIZE] == pattern(SIZE, 3));
        }
        change(&three, &["state=inactive", &old(&one)]).unwrap();
        assert!(!opens(&path, format, &one) && opens(&path, format, &two));
        change(&three, &["state=inactive", "keyslot=6"]).unwrap();
        assert!(!opens(&path, format, &three) && opens(&path, format, &two));
        let key = if format == "luks" { "key-secret" } else { "encrypt.key-secret" };
        // QEMU changes what we have changed, and we what it has.
        let prefix = if format == "luks" { "" } else { "encrypt." };
        let theirs = format!("{prefix}state=active,{prefix}new-secret=n,{prefix}iter-time=10");
        let source = format!("driver={format},{key}=s,file.filename={path}");
        let (s, n) = (format!("secret,id=s,file={two}"), format!("secret,id=n,file={one}"));
        let words =
            ["amend", "--object", &s, "--object", &n, "-o", &theirs, "--image-opts", &source];
        // It measures how long a key takes, and gives up where others use the processor.
        let amended = (0..20).any(|_| {
            crate::support::peer("qemu-img", &words).is_some_and(|out| out.status.success())
        });
        if amended {
            assert!(opens(&path, format, &one) && opens(&path, format, &two));
            change(&one, &["state=inactive", &old(&two)]).unwrap();
            assert!(opens(&path, format, &one) && !opens(&path, format, &two));
        }
    }
}

#[test]
fn what_would_lock_the_disk_or_makes_no_sense_is_refused_and_nothing_is_changed() {
    let place = Place::new();
    let [one, two, _] = keys(&place);
    let path = make(&place, "luks", &one);
    let before = std::fs::read(&path).unwrap();
    let (new, old) = (format!("new-key-file={two}"), format!("old-key-file={one}"));
    let wrong = format!("old-key-file={two}");
    for (key, options, kind) in [
        (&one, &[&*new][..], ErrorKind::InvalidInput),
        (&one, &["state=active"], ErrorKind::NeedsKey),
        (&two, &["state=active", &new], ErrorKind::NeedsKey),
        (&one, &["state=active", &new, "keyslot=0"], ErrorKind::Denied),
        (&one, &["state=active", &new, "keyslot=8"], ErrorKind::InvalidInput),
        (&one, &["state=active", &new, "iter-time=0"], ErrorKind::InvalidInput),
        (&one, &["state=active", &new, &old], ErrorKind::InvalidInput),
        (&one, &["state=inactive"], ErrorKind::InvalidInput),
        (&one, &["state=inactive", "keyslot=0"], ErrorKind::Denied),
        (&one, &["state=inactive", "keyslot=1"], ErrorKind::Denied),
        (&one, &["state=inactive", &old], ErrorKind::Denied),
        (&one, &["state=inactive", &wrong], ErrorKind::NeedsKey),
        (&one, &["state=inactive", &new, "keyslot=0"], ErrorKind::InvalidInput),
    ] {
        let error = amend(&path, "luks", key, options).unwrap_err();
        assert_eq!(error.kind(), kind, "{options:?}: {error}");
        assert!(std::fs::read(&path).unwrap() == before, "{options:?}");
    }
}

#[test]
fn whenever_a_change_is_stopped_the_other_passphrases_open_the_disk() {
    let place = Place::new();
    let [one, two, three] = keys(&place);
    let path = make(&place, "luks", &one);
    amend(&path, "luks", &one, &["state=active", &format!("new-key-file={two}"), "iter-time=1"])
        .unwrap();
    // In the keyslot of which the header's entry lies in two sectors.
    let fill = format!("new-key-file={three}");
    let fill = ["state=active", "keyslot=6", "iter-time=1", &fill];
    let empty = format!("old-key-file={two}");
    let empty = ["state=inactive", &empty];
    let mut dice = TestDice(7);
    for (options, changed) in [(&fill[..], &three), (&empty, &two)] {
        let disk = PowerCut::new(std::fs::read(&path).unwrap(), false);
        let params = Params::parse([&*format!("key-file={one}")]).unwrap();
        let (options, context) =
            (Params::parse(options.iter().copied()).unwrap(), Context::default());
        let opening = Opening { params: &params, files: &Nothing, context: &context };
        let amend = formats::format("luks").unwrap().upkeep.amend.unwrap();
        amend(disk.edge(), &opening, &options).unwrap();
        let cut = place.path("cut");
        for steps in 0..=disk.steps() {
            for _ in 0..4 {
                std::fs::write(&cut, disk.cut(steps, &mut dice)).unwrap();
                assert!(opens(&cut, "luks", &one), "{steps}");
                // It opens the disk as it should, or does not open it.
                opens(&cut, "luks", changed);
                assert!(*changed == two || opens(&cut, "luks", &two));
            }
        }
        std::fs::write(&cut, disk.bytes()).unwrap();
        assert_eq!(opens(&cut, "luks", changed), *changed == three);
    }
}
