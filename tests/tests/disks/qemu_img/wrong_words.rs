//! Every wrong option of the verbs with qemu-img's words: one line on standard error, qemu-img's status, and
//! whatever is named as it was before.

use std::path::Path;

use blackbox::peers::peer;
use blackbox::run::{program, run};
use blackbox::temp::{TempDir, pattern};

use super::ferry;

/// Where the words have the files: `RAW` a raw disk, `IMG` a qcow2 image, `SRC` another, `OLD` a target that is
/// there, `NEW` one that is not.
const FILES: [&str; 5] = ["RAW", "IMG", "SRC", "OLD", "NEW"];

/// What qemu-img ends with, where it has these words; then ours must be the same.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Theirs {
    /// The same status.
    Same,
    /// It has no such option, or takes what we refuse.
    Other,
}
use Theirs::{Other, Same};

/// The words, what the line must contain, and our status.
const WRONG: &[(&str, &str, i32, Theirs)] = &[
    // convert: the target's backing image.
    ("convert -O qcow2 -B RAW SRC NEW", "-F", 1, Other),
    ("convert -f raw -O qcow2 -F raw RAW NEW", "backing_file", 1, Other),
    ("convert -f raw -O qcow2 -B /nonexistent/base -F raw RAW NEW", "/nonexistent/base", 1, Same),
    ("convert -f raw -O qcow2 -B RAW -F nonsense RAW NEW", "nonsense", 1, Same),
    ("convert -f raw -O raw -B RAW -F raw RAW NEW", "raw", 1, Same),
    ("convert -f raw -O vmdk -B RAW -F raw RAW NEW", "vmdk", 1, Same),
    ("convert -f raw -O vdi -B RAW -F raw RAW NEW", "backing", 1, Same),
    ("convert -f raw -O qcow2 -B RAW -F raw RAW RAW NEW", "takes a single source", 1, Same),
    ("convert -f raw -O qcow2 -B RAW -F raw -o backing_file=RAW RAW NEW", "backing_file", 1, Other),
    ("convert -n -f raw -O qcow2 -B RAW -F raw RAW OLD", "-n", 1, Other),
    // convert: a target that is there.
    ("convert -n -f raw -O raw RAW NEW", "NEW", 1, Same),
    ("convert -n -f raw -O qcow2 RAW OLD", "OLD", 1, Same),
    ("convert -n -o cluster_size=4k -f raw -O qcow2 RAW IMG", "-o", 1, Other),
    ("convert -n -c -f raw -O raw RAW OLD", "-c", 1, Same),
    ("convert --target-is-zero -f raw RAW OLD", "no-create", 1, Same),
    ("convert --target-image-opts -f raw RAW driver=raw,file.filename=OLD", "no-create", 1, Same),
    (
        "convert -n --target-image-opts -O raw -f raw RAW driver=raw,file.filename=OLD",
        "-O",
        1,
        Same,
    ),
    ("convert -n --target-image-opts -f raw RAW file.filename=OLD", "driver", 1, Other),
    (
        "convert -n --target-image-opts -f raw RAW driver=nonsense,file.filename=OLD",
        "nonsense",
        1,
        Same,
    ),
    // convert: options of the format.
    ("convert -O qcow2 -o cluster_size=3k RAW NEW", "cluster_size", 1, Same),
    ("convert -O qcow2 -o cluster_size=256 RAW NEW", "cluster_size", 1, Same),
    ("convert -O qcow2 -o compat=0.9 RAW NEW", "compat", 1, Same),
    ("convert -O qcow2 -o refcount_bits=3 RAW NEW", "refcount_bits", 1, Same),
    ("convert -O qcow2 -o compat=0.10,lazy_refcounts=on RAW NEW", "lazy_refcounts", 1, Same),
    ("convert -O qcow2 -o compat=0.10,compression_type=zstd RAW NEW", "compression_type", 1, Same),
    ("convert -O qcow2 -o compression_type=lzo RAW NEW", "compression_type", 1, Same),
    ("convert -O qcow2 -o extended_l2=on,cluster_size=4k RAW NEW", "extended_l2", 1, Same),
    ("convert -O qcow2 -o extended_l2=perhaps RAW NEW", "extended_l2", 1, Same),
    ("convert -O qcow2 -o preallocation=some RAW NEW", "preallocation", 1, Same),
    ("convert -O qcow2 -c -o preallocation=full RAW NEW", "preallocation", 1, Same),
    ("convert -O qcow2 -o data_file_raw=on RAW NEW", "data_file", 1, Same),
    ("convert -O qcow2 -o encrypt.format=luks RAW NEW", "encrypt", 1, Same),
    ("convert -O qcow2 -o =1 RAW NEW", "-o", 1, Same),
    ("convert -O qcow2 -o cluster_size=4k,cluster_size=8k RAW NEW", "cluster_size", 1, Other),
    ("convert -O vmdk -o subformat=nonsense RAW NEW", "subformat", 1, Same),
    ("convert -O vmdk -o adapter_type=nonsense RAW NEW", "adapter_type", 1, Same),
    ("convert -O vmdk -o hwversion=x,compat6=on RAW NEW", "compat6", 1, Other),
    ("convert -O vmdk -o subformat=twoGbMaxExtentSparse RAW NEW", "split", 1, Other),
    ("convert -O vdi -o static=perhaps RAW NEW", "static", 1, Same),
    ("convert -O vpc -o subformat=nonsense RAW NEW", "subformat", 1, Same),
    ("convert -O vhdx -o block_size=3M RAW NEW", "block_size", 1, Same),
    ("convert -O vhdx -o log_size=100k RAW NEW", "log_size", 1, Other),
    ("convert -O raw -o cluster_size=4k RAW NEW", "cluster_size", 1, Same),
    ("convert -O raw -c RAW NEW", "compress", 1, Same),
    ("convert -O vdi -c RAW NEW", "compress", 1, Same),
    ("convert -O dmg RAW NEW", "dmg", 1, Same),
    ("convert -O nonsense RAW NEW", "nonsense", 1, Same),
    // convert: everything else.
    ("convert -f nonsense RAW NEW", "nonsense", 1, Same),
    ("convert -f vdi RAW NEW", "VDI", 1, Same),
    ("convert -S 511 RAW NEW", "-S", 1, Same),
    ("convert -S many RAW NEW", "-S", 1, Same),
    ("convert -m 0 RAW NEW", "--parallel", 1, Other),
    ("convert -m 17 RAW NEW", "17", 1, Same),
    ("convert -r fast RAW NEW", "-r", 1, Same),
    ("convert -t sometimes RAW NEW", "sometimes", 1, Same),
    ("convert -T sometimes RAW NEW", "sometimes", 1, Same),
    ("convert -C -c -O qcow2 RAW NEW", "cannot be used with", 1, Same),
    ("convert -C --salvage -O qcow2 RAW NEW", "cannot be used with", 1, Same),
    ("convert -l none -f qcow2 -O raw IMG NEW", "none", 1, Same),
    ("convert -l snapshot.id=7 -f qcow2 -O raw IMG NEW", "7", 1, Same),
    ("convert -l one -f qcow2 -O raw IMG IMG NEW", "-l", 1, Same),
    ("convert --bitmaps -f qcow2 -O qcow2 IMG NEW", "bitmaps", 1, Other),
    ("convert --image-opts -f raw driver=raw,file.filename=RAW NEW", "-f", 1, Same),
    ("convert --image-opts RAW NEW", "options", 1, Same),
    ("convert --allow-external=/nonexistent -f qcow2 IMG", "target", 1, Other),
    // create.
    ("create -f qcow2 NEW", "size", 1, Same),
    ("create -f qcow2 NEW 1X", "size", 1, Same),
    ("create -f qcow2 NEW -1", "-1", 1, Same),
    ("create -f qcow2 NEW 16E", "size", 1, Same),
    ("create -f nonsense NEW 1M", "nonsense", 1, Same),
    ("create -f qcow2 -o nonsense=1 NEW 1M", "nonsense", 1, Same),
    ("create -f qcow2 -o cluster_size=4M NEW 1M", "cluster_size", 1, Same),
    ("create -f qcow2 -b RAW NEW", "-F", 1, Same),
    ("create -f qcow2 -b /nonexistent/base -F raw NEW", "/nonexistent/base", 1, Same),
    ("create -f qcow2 -b IMG -F vdi NEW", "IMG", 1, Same),
    ("create -f qcow2 -u -b RAW -F raw NEW", "size", 1, Same),
    ("create -f raw -b RAW -F raw NEW 1M", "backing_file", 1, Same),
    (
        "create -f qcow2 -o backing_file=RAW,backing_fmt=raw,data_file=d,data_file_raw=on NEW",
        "data_file_raw",
        1,
        Same,
    ),
    ("create -f qcow2 NEW 1M 2M", "2M", 1, Same),
    ("create -f dmg NEW 1M", "dmg", 1, Same),
    ("create -f vhdx NEW 65T", "64", 1, Same),
    // measure.
    ("measure", "--size", 1, Same),
    ("measure --size 1M RAW", "--size", 1, Same),
    ("measure --size x", "--size", 1, Same),
    ("measure --size 1M -f raw", "-f", 1, Other),
    ("measure --size 1M -l one", "--snapshot", 1, Other),
    ("measure -O nonsense --size 1M", "nonsense", 1, Same),
    ("measure -O qcow2 -o cluster_size=1 --size 1M", "cluster_size", 1, Same),
    ("measure -O qcow2 -l none -f qcow2 IMG", "none", 1, Same),
    ("measure -O qcow2 /nonexistent/disk", "/nonexistent/disk", 1, Same),
    ("measure --output=xml --size 1M", "xml", 1, Same),
    // check.
    ("check", "DISK", 1, Same),
    ("check RAW", "not support checks", 63, Same),
    ("check -f nonsense IMG", "nonsense", 1, Same),
    ("check -f vdi IMG", "IMG", 1, Same),
    ("check --output=xml IMG", "xml", 1, Same),
    ("check -r some IMG", "-r", 1, Same),
    ("check -T sometimes IMG", "sometimes", 1, Same),
    ("check IMG IMG", "IMG", 1, Same),
    ("check /nonexistent/disk", "/nonexistent/disk", 1, Same),
    // compare.
    ("compare IMG", "SECOND", 1, Same),
    ("compare IMG IMG IMG", "IMG", 1, Same),
    ("compare -f nonsense IMG IMG", "nonsense", 1, Other),
    ("compare -f vdi IMG IMG", "IMG", 2, Same),
    ("compare -f qcow2 -F vdi IMG IMG", "IMG", 2, Same),
    ("compare -T sometimes IMG IMG", "sometimes", 1, Other),
    ("compare -f qcow2 IMG /nonexistent/disk", "/nonexistent/disk", 2, Same),
    // dd.
    ("dd if=RAW", "of=", 1, Same),
    ("dd of=NEW", "if=", 1, Same),
    ("dd if=RAW of=NEW bs=0", "bs=", 1, Same),
    ("dd if=RAW of=NEW bs=x", "bs=", 1, Same),
    ("dd if=RAW of=NEW bs=3G", "bs=", 1, Same),
    ("dd if=RAW of=NEW count=-1", "count=", 1, Same),
    ("dd if=RAW of=NEW skip=x", "skip=", 1, Same),
    ("dd if=RAW of=NEW conv=sync", "conv", 1, Same),
    ("dd if=RAW of=NEW RAW", "RAW", 1, Same),
    ("dd -O nonsense if=RAW of=NEW", "nonsense", 1, Same),
    ("dd -f nonsense if=RAW of=NEW", "nonsense", 1, Same),
    ("dd if=/nonexistent/disk of=NEW", "/nonexistent/disk", 1, Same),
    ("dd -O dmg if=RAW of=NEW", "dmg", 1, Same),
    // map.
    ("map", "DISK", 1, Other),
    ("map --output=xml IMG", "xml", 1, Same),
    ("map --output=json -f nonsense IMG", "nonsense", 1, Same),
    ("map --output=json -f vdi IMG", "IMG", 1, Same),
    ("map --output=json -f qcow2 -s x IMG", "start-offset", 1, Same),
    ("map --output=json -f qcow2 -l x IMG", "max-length", 1, Same),
    ("map --output=json IMG IMG", "IMG", 1, Same),
    ("map --output=json /nonexistent/disk", "/nonexistent/disk", 1, Same),
    // info.
    ("info --output=xml IMG", "xml", 1, Same),
    ("info -f nonsense IMG", "nonsense", 1, Same),
    ("info -f vdi IMG", "IMG", 1, Same),
    ("info IMG IMG", "IMG", 1, Same),
    ("info /nonexistent/disk", "/nonexistent/disk", 1, Same),
];

/// What is in a file, if it is there.
fn content(path: &Path) -> Option<Vec<u8>> {
    std::fs::read(path).ok()
}

#[test]
fn wrong_words_are_one_line_with_qemu_imgs_status_and_change_nothing() {
    let Some(qemu_img) = peer("qemu-img") else { return };
    let temp = TempDir::new();
    let paths = FILES.map(|name| temp.join(name));
    let [raw, image, source, old, new] = &paths;
    std::fs::write(raw, pattern(0, 1 << 20)).unwrap();
    std::fs::write(old, pattern(7, 1 << 20)).unwrap();
    for path in [image, source] {
        let words = ["convert", "-f", "raw", "-O", "qcow2"].map(std::ffi::OsString::from);
        let words = words.into_iter().chain([raw.into(), path.into()]);
        run(&mut program(&qemu_img, words)).succeeded();
    }
    run(&mut program(&qemu_img, ["snapshot", "-c", "one", image.to_str().unwrap()])).succeeded();
    let before = paths.each_ref().map(|path| content(path));
    let entries = std::fs::read_dir(temp.path()).unwrap().count();
    let mut failures = Vec::new();
    for (line, said, status, theirs) in WRONG {
        let word = |word: &str| {
            let place = |(name, path): (&str, &std::path::PathBuf)| {
                word.find(name).map(|at| (at, name.len(), path.to_str().unwrap().to_owned()))
            };
            match FILES.into_iter().zip(&paths).find_map(place) {
                Some((at, len, path)) => format!("{}{path}{}", &word[..at], &word[at + len..]),
                None => word.to_owned(),
            }
        };
        let words: Vec<_> = line.split(' ').map(word).collect();
        let ours = ferry(&words);
        let lines = ours.stderr.lines().count();
        if ours.status.code() != Some(*status) || lines != 1 || !ours.stderr.contains(said) {
            failures.push(format!(
                "{line}: {status} and {said:?}, not {:?}: {}",
                ours.status.code(),
                ours.stderr
            ));
        }
        // The image to be made is announced first, as qemu-img does it.
        if !ours.stdout.is_empty() && !line.starts_with("create ") {
            failures.push(format!("{line}: prints {:?}", ours.stdout));
        }
        let after = paths.each_ref().map(|path| content(path));
        if after != before || std::fs::read_dir(temp.path()).unwrap().count() != entries {
            failures.push(format!("{line}: something was changed or left"));
            let _ = std::fs::remove_file(new);
        }
        if *theirs == Same {
            // In a copy: theirs leaves what it began.
            let copy = TempDir::new();
            for path in paths.iter().filter(|path| path.exists()) {
                std::fs::copy(path, copy.join(path.file_name().unwrap().to_str().unwrap()))
                    .unwrap();
            }
            let here = |word: &String| {
                word.replace(temp.path().to_str().unwrap(), copy.path().to_str().unwrap())
            };
            let peer = run(&mut program(&qemu_img, words.iter().map(here)));
            if peer.status.code() != Some(*status) {
                failures.push(format!(
                    "{line}: qemu-img ends with {:?}: {}",
                    peer.status.code(),
                    peer.stderr
                ));
            }
        }
    }
    assert!(failures.is_empty(), "{} failed:\n{}", failures.len(), failures.join("\n"));
}
