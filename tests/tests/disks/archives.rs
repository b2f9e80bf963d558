//! Disks in archives: an OVA, a tar, and a layer of a container image with a disk (containerDisk).

use std::fs;
use std::path::Path;
use std::process::Command;

use blackbox::peers::diskferry;
use blackbox::run::{ferry, ours, run, text};
use blackbox::temp::TempDir;

/// `disk.raw`, and images of it: `one.vmdk`, as an OVA has it, and `two.qcow2`.
fn images(temp: &TempDir) -> impl Fn(&str) -> String + use<> {
    let directory = temp.path().to_owned();
    let path = move |name: &str| text(&directory.join(name)).to_owned();
    let raw = path("disk.raw");
    ferry(["copy", "-q", "sparse-random:9M?seed=4&percent=60&runlength=100K", &raw]).succeeded();
    let stream = ["convert", "-f", "raw", "-O", "vmdk", "-o", "subformat=streamOptimized", &raw];
    ferry([&stream[..], &[&path("one.vmdk")]].concat()).succeeded();
    ferry(["convert", "-f", "raw", "-O", "qcow2", &raw, &path("two.qcow2")]).succeeded();
    fs::write(path("vm.ovf"), "a machine").unwrap();
    path
}

/// Packs files of the directory.
fn pack(temp: &TempDir, archive: &str, options: &[&str], files: &[&str]) {
    let mut tar = Command::new("tar");
    run(tar.current_dir(temp.path()).args(options).args(["-cf", archive]).args(files)).succeeded();
}

fn are_same(a: &str, b: &str) -> bool {
    fs::read(Path::new(a)).unwrap() == fs::read(Path::new(b)).unwrap()
}

#[test]
fn the_disk_in_an_archive_is_found_by_itself_or_by_its_name() {
    let temp = TempDir::new();
    let path = images(&temp);
    pack(&temp, "vm.ova", &["--format=ustar"], &["vm.ovf", "one.vmdk"]);
    pack(&temp, "two.ova", &[], &["vm.ovf", "one.vmdk", "two.qcow2"]);
    let out = path("out.raw");
    let chosen = path("two.ova?entry=two.qcow2");
    let by_device = format!("file:{}", path("two.ova?entry=one.vmdk"));
    let one: &[&[&str]] = &[
        &["convert", &path("vm.ova")],
        &["convert", &chosen],
        &["convert", "-f", "qcow2", &chosen],
        &["convert", &by_device],
        &["copy", "-q", "-f", "qcow2", &chosen],
    ];
    for words in one {
        ferry([*words, &[&out]].concat()).succeeded();
        assert!(are_same(&out, &path("disk.raw")), "{words:?}");
        fs::remove_file(&out).unwrap();
    }
    // Without a format it is copied as it is in there.
    ferry(["copy", "-q", &chosen, &out]).succeeded();
    assert!(are_same(&out, &path("two.qcow2")));
    let shown = ferry(["info", &chosen]);
    let shown = shown.succeeded();
    assert!(shown.contains("file format: qcow2") && shown.contains("9 MiB"), "{shown}");
}

#[test]
fn what_is_not_one_disk_of_an_archive_is_refused_and_nothing_is_made() {
    let temp = TempDir::new();
    let path = images(&temp);
    pack(&temp, "vm.ova", &[], &["vm.ovf", "one.vmdk"]);
    pack(&temp, "two.ova", &[], &["vm.ovf", "one.vmdk", "two.qcow2"]);
    pack(&temp, "none.tar", &[], &["vm.ovf"]);
    let cut = fs::read(path("vm.ova")).unwrap();
    fs::write(path("cut.ova"), &cut[..cut.len() / 2]).unwrap();
    let out = path("out.raw");
    for (name, words, said) in [
        ("two.ova", &["convert"][..], "names one of `one.vmdk`, `two.qcow2`"),
        ("none.tar", &["convert"], "no file that is a disk"),
        ("vm.ova?entry=three.vmdk", &["convert"], "no file `three.vmdk`"),
        ("vm.ova?entry=vm.ovf", &["convert", "-f", "qcow2"], "vm.ova"),
        ("cut.ova", &["convert"], "the tar archive has a file of"),
        ("two.qcow2", &["convert", "-f", "tar"], "the tar archive"),
    ] {
        let name = path(name);
        let failed = ferry([words, &[&name, &out]].concat());
        let failed = failed.failed();
        assert!(failed.contains(said), "{name}: {failed}");
        assert!(!Path::new(&out).exists(), "{name}");
    }
    // What qemu-img's callers mean is never a file in an archive.
    for words in [&["convert", &path("vm.ova"), &out][..], &["info", &path("vm.ova")]] {
        let refused = run(ours(["as", "qemu-img"]).args(words));
        assert!(refused.stderr.contains("is an OVA"), "{refused:?}");
        assert!(!refused.status.success() && !Path::new(&out).exists());
    }
}

/// Wherever a disk is named: in a stream that is packed, behind a URL, served, in a plan.
#[test]
fn the_file_of_an_archive_is_named_alike_wherever_a_disk_is_named() {
    let temp = TempDir::new();
    let path = images(&temp);
    pack(&temp, "two.ova", &[], &["vm.ovf", "one.vmdk", "two.qcow2"]);
    pack(&temp, "two.tar.gz", &["-z"], &["one.vmdk", "two.qcow2"]);
    let out = path("out.raw");
    let is_disk = |what: &str| {
        assert!(are_same(&out, &path("disk.raw")), "{what}");
        fs::remove_file(&out).unwrap();
    };
    let names = [path("two.ova?entry=two.qcow2"), path("two.tar.gz?entry=two.qcow2")];
    for name in &names {
        for words in [&["convert"][..], &["copy", "-q", "-f", "qcow2"]] {
            ferry([words, &[name, &out]].concat()).succeeded();
            is_disk(name);
        }
        for words in [vec![name.as_str()], vec!["--export", &format!("={name}")]] {
            let copy = format!("{} copy -q \"$uri\" {out}", text(&diskferry()));
            let words = [&["serve", "--format=qcow2"][..], &words, &["--run", &copy]].concat();
            ferry(words).succeeded();
            is_disk(name);
        }
    }
    let config = path("serve.toml");
    let export = format!("[[export]]\nname = ''\ndisk = '{}'\nformat = 'qcow2'\n", names[1]);
    fs::write(&config, export).unwrap();
    let copy = format!("{} copy -q \"$uri\" {out}", text(&diskferry()));
    ferry(["serve", "--config", &config, "--run", &copy]).succeeded();
    is_disk("config");
    // A plan, each of whose processes names the file anew.
    let job = path("job.toml");
    let disk = |source: &str, target: &str, more: &str| {
        format!("[[disk]]\nsource = '{source}'\ntarget = '{target}'\n{more}")
    };
    let format = "source-format = 'qcow2'\n";
    let disks = [disk("two.ova?entry=two.qcow2", "out.raw", format), disk(&names[1], "as.is", "")];
    fs::write(&job, disks.concat()).unwrap();
    let plan = path("plan.json");
    ferry(["plan", "-q", &job, "-o", &plan]).succeeded();
    ferry(["run", "-q", &plan, "--all"]).succeeded();
    ferry(["finish", "-q", &plan]).succeeded();
    is_disk("plan");
    assert!(are_same(&path("as.is"), &path("two.qcow2")));
    // None of them is a target.
    for name in &names {
        let said = run(&mut ours(["copy", "-q", "-O", "raw", &path("disk.raw"), name]));
        assert!(said.failed().contains("files in archives cannot be written"), "{said:?}");
        assert!(!Path::new(name).exists());
    }
    fs::write(&job, disk("disk.raw", &names[0], "")).unwrap();
    let said = ferry(["plan", "-q", &job, "-o", &path("other.json")]);
    assert!(!said.status.success() && !Path::new(&names[0]).exists(), "{said:?}");
}

/// The archive is not taken for the file in it, whose name a verb that writes was given.
#[test]
fn no_verb_changes_an_archive_whose_file_is_named() {
    let temp = TempDir::new();
    let path = images(&temp);
    pack(&temp, "two.ova", &[], &["disk.raw", "two.qcow2"]);
    let before = fs::read(path("two.ova")).unwrap();
    let (raw, image) = (path("two.ova?entry=disk.raw"), path("two.ova?entry=two.qcow2"));
    let words: &[&[&str]] = &[
        &["resize", &raw, "1G"],
        &["resize", "--shrink", &raw, "1M"],
        &["resize", "-f", "raw", &raw, "1G"],
        &["resize", &path("two.ova"), "1G"],
        &["resize", "-f", "qcow2", &image, "1G"],
        &["check", "-r", "all", &image],
        &["bitmap", "--add", &image, "b"],
        &["snapshot", "-c", "s", &image],
        &["amend", "-f", "qcow2", "-o", "lazy_refcounts=on", &image],
        &["commit", "-f", "qcow2", &image],
        &["rebase", "-f", "qcow2", "-b", "", &image],
        &["convert", "-n", "-O", "raw", &path("disk.raw"), &raw],
    ];
    for words in words {
        assert!(!run(&mut ours(*words)).status.success(), "{words:?}");
        assert!(fs::read(path("two.ova")).unwrap() == before, "{words:?}");
    }
}

#[test]
fn the_disk_of_a_container_image_is_found_in_its_layer() {
    let temp = TempDir::new();
    let path = images(&temp);
    fs::create_dir(path("disk")).unwrap();
    fs::rename(path("two.qcow2"), path("disk/downloaded")).unwrap();
    // With and without an entry for the directory.
    pack(&temp, "layer.tar", &[], &["disk"]);
    pack(&temp, "packed.tar.gz", &["-z"], &["./disk/downloaded"]);
    for name in ["layer.tar", "packed.tar.gz"] {
        let out = path("out.raw");
        ferry(["convert", &path(name), &out]).succeeded();
        assert!(are_same(&out, &path("disk.raw")), "{name}");
        fs::remove_file(&out).unwrap();
    }
}
