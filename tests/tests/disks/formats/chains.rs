//! Chains of images, where they are allowed and where not.

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
