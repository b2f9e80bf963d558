//! `measure`: what qemu-img says for the same options, and never less than what an image then
//! takes.

use blackbox::peers::peer;
use blackbox::run::{program, run, text};
use blackbox::temp::{TempDir, pattern};
use serde_json::Value;

use super::ferry;

/// Disks with data here and there: their names, and their formats.
fn sources(temp: &TempDir) -> Vec<(String, &'static str)> {
    let mut found = Vec::new();
    for (name, size, every, len) in [
        ("whole", 3 << 20, 1 << 20, 1 << 20),
        ("spread", 24 << 20, 200_000, 700),
        ("odd", (2 << 20) + 1000, 300_000, 90_000),
    ] {
        let mut bytes = vec![0; size];
        let data = pattern(7, len);
        for at in (0..size).step_by(every) {
            let n = len.min(size - at);
            bytes[at..at + n].copy_from_slice(&data[..n]);
        }
        // Holes where there are zeroes.
        let raw = temp.join(name);
        let packed = temp.file("packed", &bytes);
        ferry(["convert", "-f", "raw", "-O", "raw", text(&packed), text(&raw)]).succeeded();
        found.push((text(&raw).to_owned(), "raw"));
        let image = temp.join(&format!("{name}.qcow2"));
        let options = if name == "spread" { "cluster_size=512" } else { "extended_l2=on" };
        let convert = ["convert", "-f", "raw", "-O", "qcow2", "-o", options];
        ferry([&convert[..], &[text(&raw), text(&image)]].concat()).succeeded();
        found.push((text(&image).to_owned(), "qcow2"));
    }
    found
}

/// Every mode of preallocation with every kind of cluster and refcount, and options that change
/// what is counted.
fn options(base: &str) -> Vec<String> {
    let mut all = Vec::new();
    for room in ["off", "metadata", "falloc", "full"] {
        for cluster in ["512", "4k", "16k", "2M"] {
            let refcounts = ["", ",refcount_bits=1", ",refcount_bits=64"];
            let refcounts = if cluster == "512" { &refcounts[..] } else { &refcounts[..1] };
            for refcount in refcounts {
                let option = format!("preallocation={room},cluster_size={cluster}{refcount}");
                if !["512", "4k"].contains(&cluster) {
                    all.push(format!("{option},extended_l2=on"));
                }
                all.push(option);
            }
        }
    }
    let over = format!("backing_file={base},backing_fmt=raw");
    all.extend([
        "compat=0.10".to_owned(),
        "compression_type=zstd".to_owned(),
        over.clone(),
        format!("{over},extended_l2=on"),
        format!("{over},extended_l2=on,preallocation=metadata"),
    ]);
    all
}

#[test]
fn measure_says_what_qemu_img_says_for_every_option() {
    let Some(qemu_img) = peer("qemu-img") else { return };
    let temp = TempDir::new();
    let sources = sources(&temp);
    let mut disks: Vec<Vec<&str>> =
        sources.iter().map(|(name, format)| vec!["-f", format, name]).collect();
    let sizes = ["0", "513", "100G", "63T"];
    disks.extend(sizes.map(|size| vec!["--size", size]));
    let of_raw = ["preallocation=off", "preallocation=falloc", "preallocation=full"];
    let qcow2 = options(&sources[0].0).into_iter().map(|option| ("qcow2", option));
    let all: Vec<_> =
        of_raw.iter().map(|option| ("raw", (*option).to_owned())).chain(qcow2).collect();
    for (format, option) in &all {
        for disk in &disks {
            let words =
                [&["measure", "--output=json", "-O", format, "-o", option], &disk[..]].concat();
            let wanted = run(&mut program(&qemu_img, &words));
            let said = ferry(&words);
            // A disk that is too large for such clusters.
            assert_eq!(said.status.success(), wanted.status.success(), "{words:?}: {said:#?}");
            if wanted.status.success() {
                let read = |text: &str| serde_json::from_str::<Value>(text).unwrap();
                let (said, wanted) = (read(&said.stdout), read(&wanted.stdout));
                let full = |found: &Value| found["fully-allocated"].as_u64().unwrap();
                let required = |found: &Value| found["required"].as_u64().unwrap();
                assert_eq!(full(&said), full(&wanted), "{words:?}");
                // QEMU looks for holes below an image only where it takes that for worth it.
                let is_image = disk[1] == "qcow2";
                let alike = required(&said) == required(&wanted);
                let less = is_image && required(&said) < required(&wanted);
                assert!(alike || less, "{words:?}: {said} {wanted}");
            }
        }
    }
}

#[test]
fn an_image_takes_no_more_than_measure_says() {
    let temp = TempDir::new();
    let sources = sources(&temp);
    let base = sources[0].0.clone();
    let data = format!("data_file={}", text(&temp.join("data")));
    let mut cases: Vec<(&str, String)> = options(&base)
        .into_iter()
        // With tables for all of it the last cluster has its place at the end, as with qemu-img;
        // what is not data takes no room.
        .filter(|option| !option.contains("metadata") && !option.contains("full"))
        .filter(|option| !option.contains("refcount_bits"))
        .map(|option| ("qcow2", option))
        .collect();
    cases.extend(
        [
            ("raw", "preallocation=off"),
            ("vmdk", "subformat=monolithicSparse"),
            ("vmdk", "subformat=streamOptimized"),
            ("vpc", "force_size=on"),
            ("vdi", "static=off"),
            ("vhdx", "block_size=1M"),
            ("qcow2", data.as_str()),
        ]
        .map(|(format, option)| (format, option.to_owned())),
    );
    let to = temp.join("made");
    for (format, option) in &cases {
        for (name, of) in sources.iter().step_by(2) {
            let measure = ["measure", "--output=json", "-O", format, "-o", option, "-f", of, name];
            let said: Value = serde_json::from_str(ferry(measure).succeeded()).unwrap();
            let convert = ["convert", "-f", of, "-O", format, "-o", option, name, text(&to)];
            let with_leave =
                [&convert[..1], &["--allow-external", "chain"], &convert[1..]].concat();
            ferry(with_leave).succeeded();
            let len = std::fs::metadata(&to).unwrap().len();
            assert!(len <= said["required"].as_u64().unwrap(), "{option} {name}: {len} {said}");
            std::fs::remove_file(&to).unwrap();
            let _ = std::fs::remove_file(temp.join("data"));
        }
    }
}
