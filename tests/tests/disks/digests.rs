//! Digests: one for one disk, whatever its form and however it is read; and what is said where a
//! disk has another.

use std::fs;
use std::path::Path;

use blackbox::launch::Serve;
use blackbox::peers::peer;
use blackbox::run::{Job, ferry, json, ours, program, run, text};
use blackbox::temp::TempDir;

/// Random data, holes and zeroes; the last block of a digest is a part of one.
fn disk(temp: &TempDir) -> std::path::PathBuf {
    let mut bytes = vec![0; 9_000_448];
    for (i, byte) in bytes.iter_mut().enumerate() {
        let word = (i as u64 / 8).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        if word >> 40 & 3 > 1 || (i / 4096) % 5 == 0 {
            *byte = u8::try_from((word >> (i % 8 * 8)) & 0xff).unwrap();
        }
    }
    bytes[2 << 20..5 << 20].fill(0);
    bytes[(6 << 20) + 12_288..(6 << 20) + 40_960].fill(0);
    temp.file("disk.raw", &bytes)
}

/// The first word that is printed.
fn first(words: &[&str]) -> String {
    ferry(words).succeeded().split_whitespace().next().unwrap().to_owned()
}

#[test]
fn a_disk_has_one_digest_in_every_form_and_by_every_way() {
    let temp = TempDir::new();
    let raw = disk(&temp);
    let raw = text(&raw);
    let path = |name: &str| temp.path().join(name).to_str().unwrap().to_owned();
    let forms: &[(&str, &[&str])] = &[
        ("sparse.raw", &["-O", "raw"]),
        ("plain.qcow2", &["-O", "qcow2"]),
        ("zlib.qcow2", &["-O", "qcow2", "-c"]),
        ("zstd.qcow2", &["-O", "qcow2", "-c", "-o", "compression_type=zstd,cluster_size=2M"]),
        ("it.vmdk", &["-O", "vmdk"]),
        ("stream.vmdk", &["-O", "vmdk", "-o", "subformat=streamOptimized"]),
        ("it.vhdx", &["-O", "vhdx"]),
    ];
    for kind in ["sha256/64K", "blake3/4K", "md5/1M"] {
        let wanted = first(&["digest", "-a", kind, "-f", "raw", raw]);
        let check = |name: &str, words: &[&str]| assert_eq!(first(words), wanted, "{kind}: {name}");
        for (name, options) in forms {
            let image = path(name);
            let all = [&["convert", "-f", "raw"], *options, &[raw, &image]].concat();
            if !Path::new(&image).exists() {
                ferry(&all).succeeded();
            }
            check(name, &["digest", "-a", kind, &image]);
        }
        let server = Serve::file(Path::new(raw)).option("-r").start();
        check("served", &["digest", "-a", kind, &server.uri("")]);
        let hash = format!("--blkhash={kind}");
        for options in [
            &["-S", "0"] as &[&str],
            &["--no-extents", "--request-size=4K", "-T", "1"],
            &["--request-size=32M", "--allocated"],
            &["--wipe"],
            &["-T", "8", "--source-filter=delay?rdelay=1ms", "--request-size=64K"],
        ] {
            let copy = path("copy.raw");
            check(&options.join(" "), &[&["copy", "-q", &hash, raw, &copy], options].concat());
            check("copied", &["digest", "-a", kind, "-f", "raw", &copy]);
        }
        let mut piped = ours(["copy", "-q", &hash, "-", "null:"]);
        let piped = Job::start(piped.stdin(fs::File::open(raw).unwrap())).wait();
        assert_eq!(piped.succeeded().trim(), wanted, "{kind}: a pipe");
        if let Some(nbdcopy) = peer("nbdcopy").filter(|_| !kind.starts_with("blake3")) {
            let theirs = run(&mut program(&nbdcopy, [hash.as_str(), "--", raw, "null:"]));
            if theirs.status.success() {
                assert_eq!(theirs.stdout.trim(), wanted, "{kind}: nbdcopy");
            }
        }
    }
}

#[test]
fn a_changed_disk_is_named_by_check_and_its_stretch_by_verify() {
    let temp = TempDir::new();
    let raw = disk(&temp);
    let (list, manifest) = (temp.path().join("list"), temp.path().join("manifest"));
    let (list, manifest) = (text(&list), text(&manifest));
    let copy = temp.path().join("copy \\ with\na line.raw");
    let copied = ferry(["copy", "-q", "--digest", "--manifest", manifest, text(&raw), text(&copy)]);
    fs::write(list, copied.succeeded()).unwrap();
    ferry(["digest", "-f", "raw", "--check", list]).succeeded();
    ferry(["verify", "-f", "raw", manifest, text(&copy)]).succeeded();
    let mut bytes = fs::read(&copy).unwrap();
    bytes[5_000_000] ^= 1;
    fs::write(&copy, &bytes).unwrap();
    let failed = ferry(["digest", "-f", "raw", "--check", list]);
    assert_eq!(failed.status.code(), Some(1));
    assert!(failed.stdout.ends_with(": FAILED\n"), "{failed:?}");
    let differs = ferry(["verify", "-f", "raw", manifest, text(&copy)]);
    assert_eq!(differs.status.code(), Some(1));
    assert_eq!(differs.stdout, "Differs: 4194304 to 8388608 (4 MiB)\n");
    let differs = ferry(["verify", "--json", "-f", "raw", manifest, text(&copy)]);
    let found = json(&differs.stdout);
    assert_eq!(found["differing"], serde_json::json!([[4_194_304, 4_194_304]]));
    assert_eq!(found["same"], false);
    bytes.push(0);
    fs::write(&copy, &bytes).unwrap();
    let longer = ferry(["verify", "-f", "raw", manifest, text(&copy)]);
    assert_eq!(longer.status.code(), Some(1));
    assert!(longer.stdout.starts_with("Sizes differ: 9000449 bytes"), "{longer:?}");
}

#[test]
fn a_file_that_is_no_old_manifest_or_digest_is_left_alone() {
    let temp = TempDir::new();
    let raw = disk(&temp);
    let before = fs::read(&raw).unwrap();
    let out = temp.path().join("out");
    for words in [
        &["copy", "--manifest", text(&raw), text(&raw), text(&out)],
        &["copy", "--blkhash", "--blkhash-file", text(&raw), text(&raw), text(&out)] as &[&str],
        &["digest", "--manifest", text(&raw), "-f", "raw", text(&raw)],
    ] {
        let refused = ferry(words);
        assert!(refused.failed().contains("nothing was changed"), "{words:?}: {refused:?}");
        assert!(fs::read(&raw).unwrap() == before && !out.exists(), "{words:?}");
    }
    // What was written here before is written over.
    let manifest = temp.path().join("manifest");
    for _ in 0..2 {
        ferry(["digest", "--manifest", text(&manifest), "-f", "raw", text(&raw)]).succeeded();
    }
    let whole = fs::read(&manifest).unwrap();
    fs::write(&manifest, &whole[..whole.len() - 2]).unwrap();
    let cut = ferry(["verify", "-f", "raw", text(&manifest), text(&raw)]);
    assert!(cut.failed().contains("line"), "{cut:?}");
}

#[test]
fn a_disk_of_zeroes_costs_nothing() {
    let temp = TempDir::new();
    let empty = temp.path().join("empty.raw");
    fs::File::create(&empty).unwrap().set_len(1 << 34).unwrap();
    let digest = first(&["digest", "-f", "raw", text(&empty)]);
    assert_eq!(digest, first(&["digest", "memory:16G"]));
    let manifest = temp.path().join("manifest");
    ferry(["digest", "--manifest", text(&manifest), "-f", "raw", text(&empty)]).succeeded();
    assert_eq!(fs::read_to_string(&manifest).unwrap().lines().count(), 2);
    let verified = ferry(["verify", text(&manifest), "memory:16G"]);
    verified.succeeded();
}
