//! What an image names is opened by no verb, with the sandbox off: each kind of reference, looked
//! at by strace.

use std::fs;
use std::path::{Path, PathBuf};

use blackbox::peers::peer;
use blackbox::run::{program, run};
use blackbox::temp::{TempDir, pattern};

use super::images::opened_by;

/// Images that name `secret`: the format, what names it, and the image.
fn naming(secret: &Path, temp: &TempDir) -> Option<Vec<(&'static str, &'static str, PathBuf)>> {
    let qemu_img = peer("qemu-img")?;
    let make = |name: &str, words: &[&str]| {
        let path = temp.join(name);
        let create = ["create", "-q", "-f"].iter().chain(words);
        run(program(&qemu_img, create).arg(&path).arg("1M")).succeeded();
        path
    };
    let text = secret.to_str().unwrap();
    let backing = make("backing", &["qcow2", "-u", "-F", "raw", "-b", text]);
    let json = format!("json:{{\"driver\":\"raw\",\"file.filename\":\"{text}\"}}");
    let by_json = make("json", &["qcow2", "-u", "-F", "raw", "-b", &json]);
    let data = make("data", &["qcow2", "-o", &format!("data_file={text}.data,data_file_raw=on")]);
    // The image by qemu-img is where the secret is.
    fs::remove_file(format!("{text}.data")).unwrap();
    fs::write(format!("{text}.data"), pattern(0, 1 << 20)).unwrap();
    let flat = format!(
        "# Disk DescriptorFile\nversion=1\nCID=12345678\nparentCID=ffffffff\ncreateType=\"monolithicFlat\"\n\n\
         RW 2048 FLAT \"{text}\" 0\n"
    );
    let parent = format!(
        "# Disk DescriptorFile\nversion=1\nCID=12345678\nparentCID=87654321\ncreateType=\"monolithicSparse\"\n\
         parentFileNameHint=\"{text}\"\n\nRW 2048 ZERO\n"
    );
    Some(vec![
        ("qcow2", "a backing image", backing),
        ("qcow2", "a backing image by JSON", by_json),
        ("qcow2", "a data file", data),
        ("vmdk", "a flat extent", temp.file("flat.vmdk", flat.as_bytes())),
        ("vmdk", "a parent", temp.file("child.vmdk", parent.as_bytes())),
    ])
}

#[test]
fn nothing_that_an_image_names_is_opened_by_any_verb() {
    let elsewhere = TempDir::new();
    let secret = elsewhere.file("secret", &pattern(0, 1 << 20));
    let temp = TempDir::new();
    let Some(images) = naming(&secret, &temp) else { return };
    let (out, off) = (temp.join("out"), "--sandbox=off");
    let out = out.to_str().unwrap();
    for (format, what, image) in &images {
        let image = image.to_str().unwrap();
        for words in [
            &["convert", off, "-f", format, "-O", "raw", image, out][..],
            &["convert", off, image, out],
            &["copy", off, "-f", format, image, out],
            &["map", off, "-f", format, image],
            &["compare", off, "-f", format, "-F", format, image, image],
            &["measure", off, "-f", format, "-O", "raw", image],
            &["info", off, "-f", format, image],
            &["info", off, image],
            &["check", off, "-f", format, image],
            &["inspect", off, "--safe", image],
            &["serve", "--format", format, image, "--run", "true"],
        ] {
            let Some((opened, outcome)) = opened_by(words) else { return };
            assert!(opened.contains(image), "{words:?}: {outcome:#?}");
            let secrets: Vec<_> = opened.lines().filter(|line| line.contains("/secret")).collect();
            assert!(secrets.is_empty(), "{what}: {words:?} opened it: {secrets:#?}");
            assert!(!Path::new(out).exists(), "{what}: {words:?}");
            let looks = ["info", "check", "inspect"].contains(&words[0]);
            assert!(looks || !outcome.status.success(), "{what}: {words:?}: {outcome:#?}");
        }
    }
}
