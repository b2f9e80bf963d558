//! Every image that we make is what qemu-img takes it for: whole, of the same disk, and fit to be
//! written to.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use blackbox::MIB;
use blackbox::dice::tried;

use super::disks::{differ, disk};
use super::ground::{Ground, ferry, none_failed, sound, text, told};
use super::made_by_qemu::CHAIN;
use super::recipes::{self, Recipe, SIZE};

/// What qemu-img has no check for.
const UNCHECKED: i32 = 63;

/// Makes an image of the disk; it must be right in every way.
fn made(ground: &Ground, recipe: &Recipe) -> Result<(), String> {
    let image = ground.path("image");
    let raw = ground.raw(recipe.size);
    // Our data file lies beside its image.
    let recipe = &Recipe { options: recipe.options.replace("DIR/", ""), ..recipe.clone() };
    let mut words = vec!["convert".to_owned(), "-f".to_owned(), "raw".to_owned()];
    words.extend(recipe.words(ground));
    words.extend(CHAIN.iter().map(|word| (*word).to_owned()));
    words.extend([text(&raw).to_owned(), image.clone()]);
    let outcome = ferry(&words);
    sound(&outcome)?;
    if !outcome.status.success() {
        return Err(told(&outcome));
    }
    checked(ground, recipe.format, &image)?;
    compared(ground, recipe.format, &raw, &image)?;
    sized(ground, recipe, &image)?;
    let truth = ground.truth_of(recipe.format, &image, recipe.size);
    ground.reads(recipe.format, &image, CHAIN, &truth)?;
    patterns(ground, recipe, &image)?;
    if recipe.size <= 32 * MIB && !recipe.options.contains("streamOptimized") {
        changed(ground, recipe.format, &image, &truth)?;
    }
    Ok(())
}

/// Without an error and without a leak.
fn checked(ground: &Ground, format: &str, image: &str) -> Result<(), String> {
    let check = ground.try_img(&["check", "-f", format, image]);
    let unchecked = check.status.code() == Some(UNCHECKED) && matches!(format, "raw" | "vpc");
    if !check.status.success() && !unchecked {
        return Err(format!("{check:#?}"));
    }
    let ours = ferry(["check", "-f", format, "--allow-external", "chain", image]);
    sound(&ours)?;
    let same = ours.status.success() || ours.status.code() == Some(UNCHECKED);
    if same { Ok(()) } else { Err(told(&ours)) }
}

fn compared(ground: &Ground, format: &str, raw: &Path, image: &str) -> Result<(), String> {
    if matches!(format, "vhdx" | "vmdk") && raw.metadata().unwrap().len() > 1 << 33 {
        // qemu-img would read every byte of it.
        return Ok(());
    }
    let words = ["compare", "-f", "raw", "-F", format, text(raw), image];
    let compare = ground.try_img(&words);
    if compare.status.success() { Ok(()) } else { Err(format!("{compare:#?}")) }
}

/// The disk is as large as in the image that qemu-img makes.
fn sized(ground: &Ground, recipe: &Recipe, image: &str) -> Result<(), String> {
    let ours = ground.virtual_size(recipe.format, image);
    let theirs = ground.path("theirs");
    let options = recipe.options.replace("data_file=", "data_file=DIR/theirs.");
    let recipe = Recipe { options, compress: false, ..recipe.clone() };
    let mut words = vec!["create".to_owned()];
    let made = recipe.words(ground);
    words.extend(made.into_iter().map(|word| if word == "-O" { "-f".into() } else { word }));
    words.extend([theirs.clone(), recipe.size.to_string()]);
    if !ground.try_img(&words).status.success() {
        return Ok(());
    }
    let theirs = ground.virtual_size(recipe.format, &theirs);
    if ours == theirs { Ok(()) } else { Err(format!("{ours} bytes, and {theirs} by qemu-img")) }
}

/// Where one byte lies over and over, qemu-io finds it.
fn patterns(ground: &Ground, recipe: &Recipe, image: &str) -> Result<(), String> {
    let disk = disk(recipe.size);
    let runs = disk.pieces.iter().filter_map(|piece| piece.byte.map(|byte| (piece, byte)));
    let reads: Vec<_> = runs
        .map(|(piece, byte)| format!("read -P {byte} {} {}", piece.offset, piece.bytes.len()))
        .collect();
    if reads.is_empty() { Ok(()) } else { ground.io(recipe.format, image, &reads) }
}

/// qemu writes to it in many places, and it is whole and right again; `truth` is changed too.
fn changed(ground: &Ground, format: &str, image: &str, truth: &Path) -> Result<(), String> {
    let file = File::options().write(true).open(truth).unwrap();
    let size = file.metadata().unwrap().len();
    let mut commands = Vec::new();
    for (number, at) in (0..size).step_by(300_032).enumerate() {
        let at = at / 512 * 512;
        let len = (size - at).min([512, 4096, 100_352][number % 3]);
        let byte = u8::try_from(number % 250).unwrap() + 1;
        commands.push(format!("write -P {byte} {at} {len}"));
        file.write_all_at(&vec![byte; blackbox::index(len)], at).unwrap();
    }
    ground.io(format, image, &commands)?;
    checked(ground, format, image).map_err(|e| format!("after qemu-io wrote: {e}"))?;
    let changed = ground.truth(format, image, "changed");
    differ(truth, &changed, false).map_err(|e| format!("after qemu-io wrote: {e}"))
}

fn make_all(recipes: &[Recipe]) {
    let Some(ground) = Ground::new() else { return };
    let make = |recipe: &Recipe| {
        let wrong = made(&ground, recipe).err();
        ground.clear();
        wrong.map(|e| format!("{}: {e}", recipe.name()))
    };
    let failures: Vec<_> = tried(recipes).filter_map(make).collect();
    none_failed(&failures);
}

#[test]
fn every_qcow2_that_we_make_is_whole() {
    let mut recipes = recipes::qcow2();
    for (options, compress) in [
        ("compression_level=fast", true),
        ("compression_level=1", true),
        ("compression_level=9,cluster_size=2M", true),
        ("compression_type=zstd,compression_level=fast", true),
        ("compression_type=zstd,compression_level=7", true),
    ] {
        recipes.push(Recipe { format: "qcow2", options: options.into(), compress, size: SIZE });
    }
    make_all(&recipes);
}

#[test]
fn every_vmdk_that_we_make_is_whole() {
    // What qemu-img makes besides is refused by name.
    let ours = |recipe: &Recipe| !recipe.options.contains("preallocation") && recipe.size > 0;
    make_all(&recipes::vmdk().into_iter().filter(ours).collect::<Vec<_>>());
}

#[test]
fn every_vdi_that_we_make_is_whole() {
    make_all(&recipes::vdi());
}

#[test]
fn every_vpc_that_we_make_is_whole() {
    // qemu-img itself does not open a fixed disk of no bytes.
    make_all(&recipes::vpc().into_iter().filter(|recipe| recipe.size > 0).collect::<Vec<_>>());
}

#[test]
fn every_vhdx_that_we_make_is_whole() {
    // Without a block, qemu-img wants a table of thousands of millions of entries.
    make_all(&recipes::vhdx().into_iter().filter(|recipe| recipe.size > 0).collect::<Vec<_>>());
}

/// What is made of an image is of its disk, whatever either is.
#[test]
fn every_format_becomes_every_other() {
    const KINDS: &[(&str, &str, bool)] = &[
        ("raw", "", false),
        ("qcow2", "", false),
        ("qcow2", "compression_type=zstd", true),
        ("qcow2", "extended_l2=on,preallocation=metadata", false),
        ("vdi", "", false),
        ("vpc", "force_size=on", false),
        ("vhdx", "block_size=1M", false),
        ("vmdk", "", false),
        ("vmdk", "subformat=streamOptimized", false),
    ];
    let Some(ground) = Ground::new() else { return };
    let mut failures = Vec::new();
    for (source, options, compress) in KINDS {
        let options = (*options).to_owned();
        let recipe = Recipe { format: source, options, compress: *compress, size: SIZE };
        let from = recipe.make(&ground).unwrap();
        let from_here = ground.path("from");
        std::fs::rename(from, &from_here).unwrap();
        for (target, options, compress) in KINDS {
            let to = ground.path("to");
            let mut words = vec!["convert", "-f", source, "-O", target];
            words.extend(if options.is_empty() { vec![] } else { vec!["-o", options] });
            words.extend(compress.then_some("-c"));
            let outcome = ferry(words.iter().chain(&[&*from_here, &to]));
            let right = sound(&outcome)
                .and_then(|()| compared(&ground, target, &ground.raw(SIZE), &to))
                .and_then(|()| checked(&ground, target, &to));
            if let Err(e) = right {
                failures.push(format!("{}: {e}", told(&outcome)));
            }
            let _ = std::fs::remove_file(to);
        }
        ground.clear();
    }
    none_failed(&failures);
}
