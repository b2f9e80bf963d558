//! Chains of images, snapshots and bitmaps; and names in images that lead where nothing is allowed.

use std::ffi::OsString;
use std::os::unix::fs::symlink;

use blackbox::MIB;
use blackbox::launch::{Serve, Server};
use blackbox::peers::{find, peer};
use blackbox::run::{program, run};

use super::ground::{Ground, ferry, none_failed, sound, text, told};
use super::made_by_qemu::CHAIN;
use super::recipes::{Recipe, SIZE};

/// What is over the base: options, and bytes more or less than the base has.
const LAYERS: &[(&str, i64)] = &[
    ("cluster_size=64k", 0),
    ("compat=0.10,cluster_size=512", -700_416),
    ("extended_l2=on,cluster_size=16k", 1 << 20),
    ("cluster_size=4k,compression_type=zstd", 4096),
];

/// A chain of five over a base of this format; the name of the top.
fn chain(ground: &Ground, format: &'static str, options: &str) -> Result<String, String> {
    let recipe = Recipe { format, options: options.into(), compress: false, size: SIZE };
    std::fs::rename(recipe.make(ground).unwrap(), ground.path("base")).unwrap();
    let (mut below, mut below_format) = ("base".to_owned(), format);
    for (number, (options, more)) in LAYERS.iter().enumerate() {
        let name = format!("layer{number}");
        let size = SIZE.checked_add_signed(*more).unwrap() / 512 * 512;
        let size = size.to_string();
        let words =
            ["create", "-q", "-f", "qcow2", "-o", options, "-b", &below, "-F", below_format];
        ground.img(&words.iter().copied().chain([&*name, &*size]).collect::<Vec<_>>());
        let at = |n: u64| (u64::try_from(number).unwrap() * 150_016 + n * 400_384) / 512 * 512;
        let mut commands: Vec<String> = (0..4)
            .map(|n| format!("write -P {} {} {}", 16 * (number + 1) + n, at(n as u64), 70_144))
            .collect();
        commands.push(format!("write -z {} 131072", at(1) + 100_352));
        if number != 1 {
            commands.push(format!("write -z -u {} 65536", at(2) + 80_384));
        }
        if number == 3 {
            commands.push("write -c -P 200 1048576 4096".to_owned());
        }
        ground.io("qcow2", &ground.path(&name), &commands)?;
        (below, below_format) = (name, "qcow2");
    }
    Ok(ground.path(&below))
}

/// It is refused in one line with all of these words, and nothing is made.
fn refused(ground: &Ground, image: &str, options: &[&str], said: &[&str]) -> Result<(), String> {
    let out = ground.path("out");
    let words = ["convert", "-f", "qcow2", "-O", "raw"];
    let outcome = ferry(words.iter().chain(options).chain(&[image, &out]));
    sound(&outcome)?;
    let right = outcome.status.code() == Some(1)
        && outcome.stderr.lines().count() == 1
        && said.iter().all(|word| outcome.stderr.contains(word));
    let served = ferry(
        ["serve", "--format", "qcow2"].iter().chain(options).chain(&[image, "--run", "true"]),
    );
    sound(&served)?;
    let clean = !std::path::Path::new(&out).exists() && !served.status.success();
    if right && clean { Ok(()) } else { Err(format!("{said:?}: {}", told(&outcome))) }
}

#[test]
fn chains_of_five_are_read_where_that_is_allowed_and_refused_elsewhere() {
    let Some(ground) = Ground::new() else { return };
    let mut failures = Vec::new();
    for (base, options) in [
        ("raw", ""),
        ("vmdk", "subformat=monolithicSparse"),
        ("vmdk", "subformat=streamOptimized"),
        ("vmdk", "subformat=twoGbMaxExtentSparse"),
        ("vdi", ""),
        ("vpc", "force_size=on"),
        ("vhdx", ""),
        ("qed", "cluster_size=4k"),
        ("parallels", ""),
        ("qcow", ""),
    ] {
        let top = chain(&ground, base, options).unwrap();
        let truth = ground.truth("qcow2", &top, "truth");
        let here = ["--allow-external", text(ground.temp.path())];
        let all = ground
            .reads("qcow2", &top, CHAIN, &truth)
            .and_then(|()| ground.reads("qcow2", &top, &here, &truth))
            .and_then(|()| refused(&ground, &top, &[], &["--allow-external"]))
            .and_then(|()| refused(&ground, &top, &["--allow-external", "/usr"], &[]));
        failures.extend(all.err().map(|e| format!("{base} {options}: {e}")));
        ground.clear();
    }
    none_failed(&failures);
}

#[test]
fn names_that_lead_elsewhere_are_refused() {
    let Some(ground) = Ground::new() else { return };
    let elsewhere = blackbox::temp::TempDir::new();
    let outside = elsewhere.sparse_file("outside", MIB);
    let fifo = ground.temp.join("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RUSR).unwrap();
    symlink(&outside, ground.temp.join("link")).unwrap();
    ground.img(&["create", "-q", "-f", "raw", "base", "1M"]);
    let image = ground.path("image");
    ground.img(&["create", "-q", "-f", "qcow2", "-b", "base", "-F", "raw", &image]);
    let here = ["--allow-external", text(ground.temp.path())];
    let mut failures = Vec::new();
    let nbd = "nbd+unix:///?socket=/nonexistent/socket";
    let json = "json:{\"driver\":\"file\",\"filename\":\"/etc/passwd\"}";
    for (name, everywhere) in [
        (text(&outside), false),
        ("link", false),
        ("../../etc/passwd", true),
        ("fifo", true),
        ("/dev/zero", true),
        (text(ground.temp.path()), true),
        ("image", true),
        ("missing", true),
        (nbd, true),
        (json, true),
    ] {
        let format = if name == "image" { "qcow2" } else { "raw" };
        ground.img(&["rebase", "-u", "-f", "qcow2", "-b", name, "-F", format, &image]);
        failures.extend(refused(&ground, &image, &here, &[]).err());
        if everywhere {
            failures.extend(refused(&ground, &image, CHAIN, &[]).err());
        }
    }
    none_failed(&failures);
}

/// The ranges of a context, with neighbours that are alike made one.
fn map(uri: &str, context: &str) -> Vec<(u64, u64, u64)> {
    let nbdinfo = peer("nbdinfo").unwrap();
    let outcome = run(&mut program(&nbdinfo, ["--json", &format!("--map={context}"), uri]));
    let extents: serde_json::Value = serde_json::from_str(outcome.succeeded()).unwrap();
    let mut merged: Vec<(u64, u64, u64)> = Vec::new();
    for extent in extents.as_array().unwrap() {
        let number = |key: &str| extent[key].as_u64().unwrap();
        let (offset, length, kind) = (number("offset"), number("length"), number("type"));
        match merged.last_mut() {
            Some(last) if last.2 == kind => last.1 += length,
            _ => merged.push((offset, length, kind)),
        }
    }
    merged
}

/// Our map of a context of an image is as qemu-nbd's.
fn same_map(image: &str, context: &str, theirs: &str) -> Result<(), String> {
    let qemu_nbd = find("qemu-nbd").expect("qemu-nbd");
    let peer = Server::peer(&qemu_nbd, |socket| {
        let mut all: Vec<OsString> = ["-t", "-r", "-f", "qcow2"].map(Into::into).into();
        all.extend(theirs.split(' ').map(Into::into));
        all.extend(["-k".into(), socket.into(), image.into()]);
        all
    });
    let serve = Serve::device(["file", image]).option("--format").option("qcow2");
    let ours = serve.option("--allow-external").option("chain").start();
    let (wanted, found) = (map(&peer.uri(""), context), map(&ours.uri(""), context));
    if wanted == found { Ok(()) } else { Err(format!("{context}: {found:?}, and not {wanted:?}")) }
}

#[test]
fn bitmaps_and_depths_are_reported_as_qemu_nbd_reports_them() {
    let Some(ground) = Ground::new() else { return };
    if peer("nbdinfo").is_none() || peer("qemu-nbd").is_none() {
        return;
    }
    let recipe =
        Recipe { format: "qcow2", options: "cluster_size=64k".into(), compress: false, size: SIZE };
    let image = recipe.make(&ground).unwrap();
    ground.img(&["bitmap", "--add", "-g", "512", &image, "fine"]);
    ground.img(&["bitmap", "--add", "-g", "128k", &image, "coarse"]);
    ground.io("qcow2", &image, &["write 0 512".into(), "write 1000448 300032".into()]).unwrap();
    ground.img(&["bitmap", "--disable", &image, "fine"]);
    ground.io("qcow2", &image, &["write -z 2000384 65536".into()]).unwrap();
    let mut failures = Vec::new();
    for name in ["fine", "coarse"] {
        let context = format!("qemu:dirty-bitmap:{name}");
        failures.extend(same_map(&image, &context, &format!("-B {name}")).err());
    }
    ground.clear();
    let top = chain(&ground, "raw", "").unwrap();
    failures.extend(same_map(&top, "qemu:allocation-depth", "-A").err());
    none_failed(&failures);
}
