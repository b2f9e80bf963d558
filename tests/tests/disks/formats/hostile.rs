//! Images that are cut off or damaged: each ends in one clear error or in a disk, within a limit of
//! memory, and never in a panic, a signal or a hang. What is read of them is what qemu-img reads.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use blackbox::dice::{Case, Dice, long_form, seeds};
use blackbox::run::Outcome;
use blackbox::{MIB, index, length};

use super::disks::differ;
use super::ground::{Ground, ferry_in, sound, text, told};
use super::made_by_qemu::CHAIN;
use super::recipes::Recipe;

/// The address space that our program gets, in bytes.
const SPACE: u64 = 1 << 30;
/// The memory that it may use, in bytes, in a debug build.
const MEMORY: u64 = 160 * MIB;
/// The size of the disks: images are small, so that much of them is metadata.
const SIZE: u64 = 203_264;

/// A change of a file.
#[derive(Debug)]
enum Damage {
    /// It ends here.
    Cut(u64),
    /// These bytes lie there.
    Patch(u64, Vec<u8>),
}

impl Damage {
    fn new(good: &[u8], dice: &mut Dice) -> Self {
        if dice.percent(20) {
            let near = dice.percent(50);
            let at = dice.below(if near { good.len().min(4096) } else { good.len() });
            // Mostly where something ends.
            let at = if dice.percent(70) { at / 512 * 512 } else { at };
            return Self::Cut(u64::try_from(at).unwrap());
        }
        let at = place(good, dice);
        let width = dice.pick(&[1, 1, 2, 4, 8]).min(good.len() - at);
        let mut bytes = good[at..at + width].to_vec();
        match dice.below(5) {
            0 => bytes[0] ^= 1 << dice.below(8),
            1 => bytes.fill(dice.pick(&[0, 1, 0x7f, 0x80, 0xff])),
            // A little more or less, in either order of bytes.
            2 => bytes[0] = bytes[0].wrapping_add(dice.pick(&[1, 2, 0xff])),
            3 => bytes[width - 1] = bytes[width - 1].wrapping_add(dice.pick(&[1, 2, 0xff])),
            _ => bytes.fill_with(|| dice.number().to_be_bytes()[0]),
        }
        Self::Patch(u64::try_from(at).unwrap(), bytes)
    }

    fn on(&self, good: &[u8], path: &Path) {
        std::fs::write(path, good).unwrap();
        let file = File::options().write(true).open(path).unwrap();
        match self {
            Self::Cut(at) => file.set_len(*at).unwrap(),
            Self::Patch(at, bytes) => file.write_all_at(bytes, *at).unwrap(),
        }
    }
}

/// Where to change something: the header, tables, the end, or anything.
fn place(good: &[u8], dice: &mut Dice) -> usize {
    let header = good.len().min(512);
    match dice.below(10) {
        0..4 => dice.below(header) / 4 * 4 + dice.below(4).min(header - 1),
        4 => good.len() - 1 - dice.below(good.len().min(1024)),
        5 => dice.below(good.len()),
        _ => table(good, dice).unwrap_or_else(|| dice.below(good.len())),
    }
    .min(good.len() - 1)
}

/// A place in a sector that has few bytes: a table, most likely.
fn table(good: &[u8], dice: &mut Dice) -> Option<usize> {
    let few = |sector: &&[u8]| (1..200).contains(&sector.iter().filter(|b| **b != 0).count());
    let sectors: Vec<_> = good.chunks(512).enumerate().filter(|(_, s)| few(s)).collect();
    let (number, sector) = sectors.get(dice.below(sectors.len().max(1)))?;
    let filled: Vec<_> = (0..sector.len()).filter(|i| sector[*i] != 0).collect();
    // An entry, or right beside one.
    let at = dice.pick(&filled) / 8 * 8 + dice.below(16);
    Some(number * 512 + at.min(sector.len() - 1))
}

/// Our program ended by itself, with one line if it failed, and needed no more than it may.
fn modest(outcome: &Outcome) -> Result<(), String> {
    sound(outcome)?;
    let lines = outcome.stderr.lines().filter(|line| !line.trim().is_empty()).count();
    if !outcome.status.success() && lines != 1 {
        return Err(format!("{lines} lines: {}", told(outcome)));
    }
    let peak = outcome.peak_memory.expect("run by `measured`");
    if peak > MEMORY {
        return Err(format!("{peak} bytes of memory: {}", told(outcome)));
    }
    Ok(())
}

/// What became of the variants of an image.
#[derive(Debug, Default)]
struct Tally {
    read: u32,
    refused: u32,
    /// Refused here, and read by qemu-img.
    strict: Vec<String>,
}

/// Reads a damaged image.
fn judge(
    ground: &Ground,
    format: &str,
    image: &str,
    original: &Path,
    serve: bool,
    tally: &mut Tally,
) -> Result<(), String> {
    let out = ground.path("out");
    let words = ["convert", "-f", format, "-O", "raw"];
    let outcome = ferry_in(SPACE, words.iter().chain(CHAIN).chain(&[image, &out]));
    modest(&outcome)?;
    for words in [&["info", "--output=json", "-f", format][..], &["check", "-f", format]] {
        let outcome = ferry_in(SPACE, words.iter().chain(CHAIN).chain(&[image]));
        sound(&outcome)?;
    }
    // An unsafe image is a verdict, with an exit status of its own.
    sound(&ferry_in(SPACE, ["inspect", "--safe", image]))?;
    let theirs = ground.path("theirs");
    let peer = ground.try_img(&["convert", "-f", format, "-O", "raw", image, &theirs]);
    let mut cut_to = u64::MAX;
    let result = if outcome.status.success() {
        tally.read += 1;
        // Where qemu-img refuses it, what is damaged must be without meaning.
        let wanted = if peer.status.success() { Path::new(&theirs) } else { original };
        let maker = if peer.status.success() { "qemu-img's" } else { "the original" };
        // qemu-img cuts a part of a sector off.
        let cut = |path: &str| std::fs::metadata(path).map_or(0, |file| file.len() % 512);
        if peer.status.success() && cut(&out) != 0 && cut(&theirs) == 0 {
            let file = File::options().write(true).open(&out).unwrap();
            cut_to = file.metadata().unwrap().len() / 512 * 512;
            file.set_len(cut_to).unwrap();
        }
        differ(wanted, Path::new(&out), false)
            .map_err(|e| format!("not {maker}: {e} (qemu-img: {})", peer.stderr.trim()))
    } else {
        tally.refused += 1;
        if Path::new(&out).exists() {
            return Err(format!("a target was left: {}", told(&outcome)));
        }
        if peer.status.success() && differ(original, Path::new(&theirs), false) == Ok(()) {
            tally.strict.push(outcome.stderr.trim().to_owned());
        }
        Ok(())
    };
    let _ = std::fs::remove_file(&theirs);
    let was_cut = std::fs::metadata(&out).is_ok_and(|file| file.len() == cut_to);
    if serve && !was_cut && Path::new(&out).exists() {
        let again = ground.path("again");
        let copy = format!("nbdcopy \"$uri\" {again}");
        let words = ["serve", "--format", format];
        let outcome = ferry_in(SPACE, words.iter().chain(CHAIN).chain(&[image, "--run", &copy]));
        sound(&outcome)?;
        if outcome.status.success() {
            differ(Path::new(&out), Path::new(&again), false)
                .map_err(|e| format!("served: {e}"))?;
        }
        let _ = std::fs::remove_file(again);
    }
    let _ = std::fs::remove_file(out);
    result
}

/// Damages an image in many ways.
fn damage_all(format: &'static str, options: &[&str], compress: bool) {
    let Some(ground) = Ground::new() else { return };
    for seed in seeds() {
        for options in options {
            let recipe = Recipe { format, options: (*options).into(), compress, size: SIZE };
            let _case = Case::new(&recipe.name(), seed);
            let image = recipe.make(&ground).unwrap();
            let original = ground.truth(format, &image, "original");
            let rounds = if long_form() { 400 } else { 15 };
            damage(&ground, &recipe.name(), format, &image, &original, rounds, seed);
            ground.clear();
        }
    }
}

fn damage(
    ground: &Ground,
    name: &str,
    format: &str,
    image: &str,
    original: &Path,
    rounds: u64,
    seed: u64,
) {
    let good = std::fs::read(image).unwrap();
    let mut failures = Vec::new();
    let mut tally = Tally::default();
    for round in 0..rounds {
        let damage = Damage::new(&good, &mut Dice::new(seed).with(round));
        damage.on(&good, Path::new(image));
        let serve = round % 5 == 0;
        if let Err(e) = judge(ground, format, image, original, serve, &mut tally) {
            failures.push(format!("{damage:?} of {} bytes: {e}", good.len()));
        }
    }
    println!("{name}: {} read, {} refused; strict: {:#?}", tally.read, tally.refused, tally.strict);
    assert!(failures.is_empty(), "{name}: {} failed:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn damaged_qcow2_images_end_in_an_error_or_a_disk() {
    let options = ["cluster_size=512", "cluster_size=4k", "extended_l2=on,cluster_size=16k"];
    damage_all("qcow2", &options, false);
    damage_all("qcow2", &["compat=0.10,cluster_size=4k"], false);
}

#[test]
fn damaged_compressed_qcow2_images_end_in_an_error_or_a_disk() {
    damage_all("qcow2", &["cluster_size=4k", "compression_type=zstd,cluster_size=16k"], true);
}

#[test]
fn damaged_vmdk_images_end_in_an_error_or_a_disk() {
    let options = ["subformat=monolithicSparse", "subformat=streamOptimized"];
    damage_all("vmdk", &options, false);
}

#[test]
fn damaged_descriptors_of_vmdk_end_in_an_error_or_a_disk() {
    let options = ["subformat=monolithicFlat", "subformat=twoGbMaxExtentSparse"];
    damage_all("vmdk", &options, false);
}

#[test]
fn damaged_vdi_images_end_in_an_error_or_a_disk() {
    damage_all("vdi", &["", "static=on"], false);
}

#[test]
fn damaged_vpc_images_end_in_an_error_or_a_disk() {
    damage_all("vpc", &["", "subformat=fixed"], false);
}

#[test]
fn damaged_vhdx_images_end_in_an_error_or_a_disk() {
    damage_all("vhdx", &["block_size=1M,log_size=1M"], false);
}

#[test]
fn damaged_images_of_older_formats_end_in_an_error_or_a_disk() {
    damage_all("qed", &["cluster_size=4k"], false);
    damage_all("parallels", &["cluster_size=4k"], false);
    damage_all("qcow", &[""], false);
}

#[test]
fn damage_is_where_the_tables_are() {
    let mut good = vec![7; 8192];
    good[4096..8192].fill(0);
    good[5000] = 9;
    let mut dice = Dice::new(1);
    let at = table(&good, &mut dice).unwrap();
    assert!((4992..5016).contains(&at), "{at}");
    assert_eq!((index(length(&good)), SIZE % 512), (good.len(), 0));
    assert_eq!(text(Path::new("x")), "x");
}
