//! `convert -B` and `convert -n`: targets that lie over another image, and that are there.

use std::path::Path;

use blackbox::eventually;
use blackbox::peers::peer;
use blackbox::run::{Job, Outcome, ours, program, run, text};
use blackbox::temp::TempDir;
use serde_json::Value;

use super::{ends_saying, ferry};

fn theirs(name: &str, words: &[&str]) -> Outcome {
    run(&mut program(&peer(name).unwrap(), words))
}

/// The output of `qemu-img map`, without the places.
fn map(image: &str) -> Vec<Value> {
    let told = theirs("qemu-img", &["map", "--output=json", "-f", "qcow2", image]);
    let mut map: Vec<Value> = serde_json::from_str(told.succeeded()).unwrap();
    for extent in &mut map {
        extent.as_object_mut().unwrap().remove("offset");
    }
    map
}

/// Three images, one over the other, each longer than the one below.
fn chain(temp: &TempDir) -> [String; 3] {
    let names = ["base", "middle", "top"].map(|name| text(&temp.join(name)).to_owned());
    let sizes = ["8M", "12M", "16M"];
    let writes = [
        &["write -P 1 0 1M", "write -P 2 4M 64k"][..],
        &["write -P 3 11M 64k", "write -P 4 64k 4k"],
        &["write -P 9 128k 64k", "write -z 4M 64k", "write -P 5 6M 100k", "write -P 6 15M 64k"],
    ];
    for (i, name) in names.iter().enumerate() {
        let mut words = vec!["create", "-q", "-f", "qcow2"];
        if let Some(below) = i.checked_sub(1) {
            words.extend(["-F", "qcow2", "-b", &names[below]]);
        }
        theirs("qemu-img", &[&words[..], &[name, sizes[i]]].concat()).succeeded();
        for write in writes[i] {
            theirs("qemu-io", &["-f", "qcow2", "-c", write, name]).succeeded();
        }
    }
    names
}

#[test]
fn an_overlay_holds_what_the_source_holds_itself_and_is_the_same_disk() {
    let (Some(_), Some(_)) = (peer("qemu-img"), peer("qemu-io")) else { return };
    let temp = TempDir::new();
    let [_, middle, top] = &chain(&temp);
    let over = temp.join("over");
    let over = text(&over);
    for (below, words) in [
        (middle, &[][..]),
        (middle, &["-o", "cluster_size=128k"]),
        (middle, &["-o", "compat=0.10"]),
        (middle, &["-o", "extended_l2=on"]),
        (middle, &["-c"]),
        // What comes from between is behind its end, or is lost if the user does not know.
        (&text(&temp.join("same")).to_owned(), &[]),
    ] {
        if !Path::new(below).exists() {
            // The same content as below the source, and shorter than it.
            theirs("qemu-img", &["convert", "-f", "qcow2", "-O", "qcow2", middle, below])
                .succeeded();
            theirs("qemu-img", &["resize", "-q", "--shrink", "-f", "qcow2", below, "10M"])
                .succeeded();
        }
        let all = [
            &["convert", "-f", "qcow2", "-O", "qcow2", "--allow-external", "chain"],
            &["-B", below, "-F", "qcow2"][..],
            words,
            &[top.as_str(), over],
        ];
        ferry(all.concat()).succeeded();
        theirs("qemu-img", &["compare", "-f", "qcow2", "-F", "qcow2", top, over]).succeeded();
        theirs("qemu-img", &["check", "-q", "-f", "qcow2", over]).succeeded();
        if words.is_empty() && below == middle {
            assert_eq!(map(over), map(top));
        }
    }
}

#[test]
fn an_image_that_is_there_is_written_where_it_lies_and_is_one_whenever_that_is_stopped() {
    let (Some(_), Some(_)) = (peer("qemu-img"), peer("qemu-io")) else { return };
    let temp = TempDir::new();
    let raw = text(&temp.file("raw", &blackbox::temp::pattern(1, 3 << 20))).to_owned();
    let there = temp.join("there");
    let there = text(&there);
    let options = "cluster_size=128k,extended_l2=on,lazy_refcounts=on,compression_type=zstd";
    theirs("qemu-img", &["create", "-q", "-f", "qcow2", "-o", options, there, "3M"]).succeeded();
    let convert = ["convert", "-n", "-f", "raw", "-O", "qcow2", &raw, there];
    // Killed when it has begun to write.
    let empty = std::fs::read(there).unwrap();
    let job = Job::start(ours(["convert", "-r", "512k"]).args(&convert[1..]));
    eventually("it writes", || (std::fs::read(there).unwrap() != empty).then_some(()));
    rustix::process::kill_process(job.pid(), rustix::process::Signal::KILL).unwrap();
    assert!(!job.wait().status.success());
    // 3: leaks, for the refcounts are lazy; or it is repaired.
    theirs("qemu-img", &["check", "-q", "-r", "all", "-f", "qcow2", there]).succeeded();
    ferry(convert).succeeded();
    theirs("qemu-img", &["compare", "-f", "raw", "-F", "qcow2", &raw, there]).succeeded();
    theirs("qemu-img", &["check", "-q", "-f", "qcow2", there]).succeeded();
    let info = theirs("qemu-img", &["info", "-f", "qcow2", there]);
    for line in ["cluster_size: 131072", "lazy refcounts: true", "extended l2: true", "zstd"] {
        assert!(info.succeeded().contains(line), "{line}");
    }
    // Now it holds something, and is written where it lies.
    let other = blackbox::temp::pattern(5, 2 << 20);
    let other = text(&temp.file("other", &[&other[..], &vec![0; 1 << 20]].concat())).to_owned();
    ferry(["convert", "-n", "-f", "raw", "-O", "qcow2", &other, there]).succeeded();
    theirs("qemu-img", &["compare", "-f", "raw", "-F", "qcow2", &other, there]).succeeded();
    theirs("qemu-img", &["check", "-q", "-f", "qcow2", there]).succeeded();
    // But not with packed clusters.
    let before = std::fs::read(there).unwrap();
    let packed = ["convert", "-n", "-c", "-f", "raw", "-O", "qcow2", &raw, there];
    ends_saying(1, &packed, &["-n", "not empty", "leave out -n"]);
    let with_options =
        ["convert", "-n", "-o", "compat=1.1", "-f", "raw", "-O", "qcow2", &raw, there];
    ends_saying(1, &with_options, &["-n", "-o"]);
    assert!(std::fs::read(there).unwrap() == before);
    // A larger one, something set aside, another image below.
    let rest = vec![0; 1 << 20];
    let longer = [&std::fs::read(&raw).unwrap()[..], &rest].concat();
    let longer = text(&temp.file("longer", &longer)).to_owned();
    let made: [(&[&str], &str, &str); 3] = [
        (&[], "4M", &longer),
        (&["-o", "preallocation=metadata"], "3M", &raw),
        (&["-F", "raw", "-b", &raw], "3M", &raw),
    ];
    for (i, (words, size, expected)) in made.into_iter().enumerate() {
        let image = temp.join(&format!("image{i}"));
        let image = text(&image);
        let create = ["create", "-q", "-f", "qcow2"];
        theirs("qemu-img", &[&create[..], words, &[image, size]].concat()).succeeded();
        let convert = ["convert", "-n", "-f", "raw", "-O", "qcow2", &raw, image];
        ferry([&convert[..], &["--allow-external", "chain"]].concat()).succeeded();
        theirs("qemu-img", &["compare", "-f", "raw", "-F", "qcow2", expected, image]).succeeded();
        theirs("qemu-img", &["check", "-q", "-f", "qcow2", image]).succeeded();
    }
    // A smaller one, one that names another that it may not, a format that is only read.
    let made: [(&[&str], &str, &str); 3] = [
        (&["-f", "qcow2"], "2M", "2097152"),
        (&["-f", "qcow2", "-F", "raw", "-b", &raw], "3M", "backing image"),
        (&["-f", "qed"], "3M", "qed"),
    ];
    for (i, (words, size, said)) in made.into_iter().enumerate() {
        let other = temp.join(&format!("other{i}"));
        let other = text(&other);
        theirs("qemu-img", &[&["create", "-q"], words, &[other, size]].concat()).succeeded();
        let before = std::fs::read(other).unwrap();
        let format = words[1];
        let convert = ["convert", "-n", "-f", "raw", "-O", format, &raw, other];
        ends_saying(1, &convert, &[said]);
        assert!(std::fs::read(other).unwrap() == before);
    }
}

#[test]
fn the_data_file_of_an_image_lies_where_the_user_says() {
    let Some(_) = peer("qemu-img") else { return };
    let temp = TempDir::new();
    let raw = text(&temp.file("raw", &blackbox::temp::pattern(1, 3 << 20))).to_owned();
    std::fs::create_dir(temp.join("sub")).unwrap();
    let (image, data) = (temp.join("image"), temp.join("sub/data"));
    let option = format!("data_file={}", text(&data));
    ferry(["convert", "-f", "raw", "-O", "qcow2", "-o", &option, &raw, text(&image)]).succeeded();
    assert_eq!(std::fs::metadata(&data).unwrap().len(), 3 << 20);
    let compare = ["compare", "-f", "raw", "-F", "qcow2", &raw, text(&image)];
    theirs("qemu-img", &compare).succeeded();
    let back = temp.join("back");
    let convert = ["convert", "-f", "qcow2", "--allow-external", text(temp.path())];
    ferry([&convert[..], &[text(&image), text(&back)]].concat()).succeeded();
    assert!(std::fs::read(&back).unwrap() == std::fs::read(&raw).unwrap());
}

/// A name without a directory is one in the working directory for QEMU, and one beside the image
/// for others. Where both are there, neither is taken for the other.
#[test]
fn a_data_file_of_a_relative_name_is_the_one_that_there_is() {
    let (Some(qemu_img), Some(_)) = (peer("qemu-img"), peer("qemu-io")) else { return };
    let temp = TempDir::new();
    std::fs::create_dir(temp.join("sub")).unwrap();
    let there = |mut command: std::process::Command| run(command.current_dir(temp.path()));
    let create = ["create", "-q", "-f", "qcow2", "-o", "data_file=d", "sub/image", "1M"];
    there(program(&qemu_img, create)).succeeded();
    let write = ["-f", "qcow2", "-c", "write -q -P 1 0 1M", "sub/image"];
    there(program(&peer("qemu-io").unwrap(), write)).succeeded();
    for named in ["sub/image", "file:sub/image"] {
        let convert =
            ["convert", "--allow-external", ".", "-f", "qcow2", "-O", "raw", named, "out"];
        let reads = |byte: u8| {
            there(ours(convert)).succeeded();
            assert!(std::fs::read(temp.join("out")).unwrap() == vec![byte; 1 << 20], "{named}");
            std::fs::remove_file(temp.join("out")).unwrap();
        };
        reads(1);
        std::fs::write(temp.join("sub/d"), vec![2; 1 << 20]).unwrap();
        let refused = there(ours(convert));
        assert!(refused.failed().contains("two files"), "{refused:#?}");
        assert!(!temp.join("out").exists());
        std::fs::rename(temp.join("d"), temp.join("kept")).unwrap();
        reads(2);
        // Two names of one file are one.
        std::fs::hard_link(temp.join("sub/d"), temp.join("d")).unwrap();
        reads(2);
        std::fs::remove_file(temp.join("sub/d")).unwrap();
        std::fs::rename(temp.join("kept"), temp.join("d")).unwrap();
    }
    // What is not beneath the directory is not opened, wherever it is looked for.
    let convert = ["convert", "--allow-external", "sub", "-f", "qcow2", "sub/image", "out"];
    let refused = there(ours(convert));
    assert!(refused.failed().contains("is outside sub"), "{refused:#?}");
}

/// However the locks are: what is read, and what an image is to lie over, is not emptied to become
/// that image.
#[test]
fn what_an_image_is_made_of_or_lies_over_is_never_written_over() {
    let Some(_) = peer("qemu-img") else { return };
    let temp = TempDir::new();
    let path = |name: &str| text(&temp.join(name)).to_owned();
    let raw = text(&temp.file("raw", &blackbox::temp::pattern(1, 3 << 20))).to_owned();
    let (base, top, flat, data) = (path("base"), path("top"), path("x-flat.vmdk"), path("data"));
    let (new, vmdk, with_data) = (path("new"), path("x.vmdk"), path("with-data"));
    let third = path("third");
    theirs("qemu-img", &["convert", "-f", "raw", "-O", "qcow2", &raw, &base]).succeeded();
    let create = ["create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", &base, &top];
    theirs("qemu-img", &create).succeeded();
    theirs("qemu-io", &["-f", "qcow2", "-c", "write -P 3 1M 64k", &top]).succeeded();
    let create = ["create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", &top, &third];
    theirs("qemu-img", &create).succeeded();
    std::fs::copy(&raw, &flat).unwrap();
    let option = format!("data_file={data}");
    let convert = ["convert", "-f", "raw", "-O", "qcow2", "-o", &option, &raw, &with_data];
    theirs("qemu-img", &convert).succeeded();
    let files = [&raw, &base, &top, &third, &flat, &data, &with_data];
    let before: Vec<_> = files.iter().map(|file| std::fs::read(file).unwrap()).collect();
    let over = ["-F", "qcow2", "-b"];
    let chain = ["convert", "-U", "--allow-external", "chain", "-f", "qcow2"];
    let (of_raw, of_base) = (format!("data_file={raw}"), format!("data_file={base}"));
    for words in [
        // The image would lie over itself, by one step or by two.
        [&["create", "-q", "-f", "qcow2"], &over[..], &[&base, &base]].concat(),
        [&["create", "-q", "-f", "qcow2", "-u"], &over[..], &[&base, &base, "1M"]].concat(),
        [&["create", "-q", "-f", "qcow2"], &over[..], &[&top, &base]].concat(),
        [&["create", "-q", "-f", "qcow2"], &over[..], &[&third, &base]].concat(),
        [&["create", "-q", "-f", "qcow2", "-u"], &over[..], &[&third, &base, "1M"]].concat(),
        [&["create", "-q", "-f", "qcow2"], &over[..], &[&with_data, &data]].concat(),
        [&["convert", "-f", "raw", "-O", "qcow2"], &over[..], &[&base, &raw, &base]].concat(),
        [&["convert", "-f", "raw", "-O", "qcow2"], &over[..], &[&top, &raw, &top]].concat(),
        [
            &["convert", "--allow-external", "chain", "-f", "raw", "-O", "qcow2"],
            &over[..],
            &[&top, &raw, &base],
        ]
        .concat(),
        [&["convert", "-f", "raw", "-O", "qcow2"], &over[..], &[&top, &raw, &base]].concat(),
        // Something that the source lies over, or consists of.
        [&chain[..], &["-O", "qcow2", &top, &base]].concat(),
        [&chain[..], &["-O", "raw", &top, &base]].concat(),
        [&chain[..], &["-n", "-O", "raw", &top, &base]].concat(),
        [&chain[..], &["-O", "raw", &with_data, &data]].concat(),
        // A further file of the new image would be one of these.
        vec!["convert", "-U", "-f", "raw", "-O", "qcow2", "-o", &of_raw, &raw, &new],
        [&chain[..], &["-O", "qcow2", "-o", &of_base, &top, &new]].concat(),
        vec!["create", "-q", "-f", "qcow2", "-o", &of_base, &base, "1M"],
        vec![
            "convert",
            "-U",
            "-f",
            "raw",
            "-O",
            "vmdk",
            "-o",
            "subformat=monolithicFlat",
            &flat,
            &vmdk,
        ],
    ] {
        let outcome = ferry(&words);
        assert_eq!(outcome.status.code(), Some(1), "{outcome:#?}");
        assert_eq!(outcome.stderr.lines().count(), 1, "{outcome:#?}");
        for (file, before) in files.iter().zip(&before) {
            assert!(std::fs::read(file).unwrap() == *before, "{file}: {outcome:#?}");
        }
        assert!(!Path::new(&new).exists() && !Path::new(&vmdk).exists(), "{outcome:#?}");
    }
}

#[test]
fn an_overlay_is_made_over_an_overlay_and_over_what_is_not_there_yet() {
    let Some(_) = peer("qemu-img") else { return };
    let temp = TempDir::new();
    let [_, middle, top] = &chain(&temp);
    let over = text(&temp.join("over")).to_owned();
    // Nothing that the backing image names is opened.
    ferry(["create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", middle, &over]).succeeded();
    theirs("qemu-img", &["compare", "-f", "qcow2", "-F", "qcow2", middle, &over]).succeeded();
    theirs("qemu-img", &["check", "-q", "-f", "qcow2", &over]).succeeded();
    ferry(["create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", top, &over, "20M"]).succeeded();
    let truth = ["compare", "-f", "qcow2", "-F", "qcow2", top, &over];
    theirs("qemu-img", &truth).succeeded();
    let missing = text(&temp.join("missing")).to_owned();
    let create = ["create", "-q", "-f", "qcow2", "-F", "raw", "-b", &missing, &over, "1M"];
    ends_saying(1, &create, &["missing"]);
    let create = [&create[..1], &["-u"], &create[1..]].concat();
    ferry(create).succeeded();
    let info = theirs("qemu-img", &["info", "-f", "qcow2", &over]);
    assert!(info.succeeded().contains("missing"), "{info:#?}");
}
