//! Every image that qemu-img can create is read as qemu-img reads it.

use blackbox::dice::tried;

use super::ground::{Ground, ferry, none_failed, sound, text};
use super::recipes::{self, Recipe};

/// What images that consist of several files, or name others, need.
pub(crate) const CHAIN: &[&str] = &["--allow-external", "chain"];

/// The sizes are those that qemu-img sees.
fn described(ground: &Ground, format: &str, image: &str) -> Result<(), String> {
    let words = ["info", "--output=json", "-f", format, image];
    let (ours, theirs) = (ferry(words), ground.img(&words));
    sound(&ours)?;
    let [ours, theirs] = [&ours.stdout, &theirs]
        .map(|text| serde_json::from_str::<serde_json::Value>(text).unwrap_or_default());
    // The files of a split image are only named, and not opened.
    let split = format == "vmdk" && ours["cluster-size"].is_null();
    let same = ours["virtual-size"].is_u64()
        && ours["virtual-size"] == theirs["virtual-size"]
        && (split || ours["cluster-size"] == theirs["cluster-size"]);
    if same { Ok(()) } else { Err(format!("{ours}, and not {theirs}")) }
}

fn read_all(recipes: &[Recipe]) {
    let Some(ground) = Ground::new() else { return };
    let read = |recipe: &Recipe| {
        let Some(image) = recipe.make(&ground) else {
            println!("qemu-img cannot make {}", recipe.name());
            ground.clear();
            return None;
        };
        let truth = ground.truth_of(recipe.format, &image, recipe.size);
        let read = ground.reads(recipe.format, &image, CHAIN, &truth);
        let wrong = read.and_then(|()| described(&ground, recipe.format, &image)).err();
        ground.clear();
        wrong.map(|e| format!("{}: {e}", recipe.name()))
    };
    let failures: Vec<_> = tried(recipes).filter_map(read).collect();
    none_failed(&failures);
}

#[test]
fn raw_disks_are_read() {
    read_all(&recipes::raw());
}

#[test]
fn every_qcow2_is_read() {
    read_all(&recipes::qcow2());
}

#[test]
fn every_vmdk_is_read() {
    read_all(&recipes::vmdk());
}

#[test]
fn every_vdi_is_read() {
    read_all(&recipes::vdi());
}

#[test]
fn every_vpc_is_read() {
    read_all(&recipes::vpc());
}

#[test]
fn every_vhdx_is_read() {
    read_all(&recipes::vhdx());
}

#[test]
fn every_qed_is_read() {
    read_all(&recipes::qed());
}

#[test]
fn every_parallels_disk_is_read() {
    read_all(&recipes::parallels());
}

#[test]
fn every_qcow_is_read() {
    read_all(&recipes::qcow());
}

/// What is encrypted, or packed in a way that is not unpacked here, is refused by name, and never
/// read as something else.
#[test]
fn images_that_need_a_key_or_another_tool_are_refused_with_its_name() {
    let Some(ground) = Ground::new() else { return };
    let raw = ground.raw(blackbox::MIB);
    let (secret, image, out) =
        ("secret,id=s,data=hunter2", ground.path("image"), ground.path("out"));
    for (format, words, said) in [
        ("qcow2", &["-o", "encrypt.format=aes,encrypt.key-secret=s"][..], "encrypted"),
        ("qcow2", &["-o", "encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=10"], "LUKS"),
        ("qcow", &["-o", "encrypt.format=aes,encrypt.key-secret=s"], "qemu-img"),
        ("luks", &["-o", "key-secret=s,iter-time=10"], "LUKS"),
    ] {
        let make = ["convert", "--object", secret, "-f", "raw", "-O", format];
        // A key takes its time, and QEMU, which measures it, gives up where others use the
        // processor.
        let made = (0..20).any(|_| {
            let outcome = ground.try_img(&[&make[..], words, &[text(&raw), &image]].concat());
            // Or it was still at it after ten seconds.
            let late = outcome.status.code() == Some(124);
            let busy = late || outcome.stderr.contains("Unable to get accurate CPU usage");
            assert!(outcome.status.success() || busy, "{outcome:#?}");
            !busy
        });
        if !made {
            eprintln!("skipped: {format}: QEMU made no key in 20 tries, the processors are busy");
            continue;
        }
        let named = ["-f", format];
        let named = if format == "luks" { &[][..] } else { &named };
        let convert = [&["convert"], named, &[&image, &out]].concat();
        let refused = ferry(&convert);
        assert_eq!(refused.status.code(), Some(1), "{refused:#?}");
        let line = refused.stderr.lines().last().unwrap_or_default();
        assert!(line.contains(said), "{format} {words:?}: {refused:#?}");
        assert!(!std::path::Path::new(&out).exists(), "{refused:#?}");
        // What it is can be told.
        if format != "luks" {
            let info = ferry(["info", "--output=json", "-f", format, &image]);
            assert!(info.succeeded().contains("\"encrypted\": true"), "{info:#?}");
        }
        ground.clear();
    }
    // A qcow with a compressed cluster, which this qemu-img does not make any more.
    ground.img(&["convert", "-f", "raw", "-O", "qcow", text(&raw), &image]);
    let mut bytes = std::fs::read(&image).unwrap();
    let number =
        |bytes: &[u8], at: usize| u64::from_be_bytes(bytes[at..at + 8].try_into().unwrap());
    let table = blackbox::index(number(&bytes, blackbox::index(number(&bytes, 40))));
    let used = (table..).step_by(8).find(|at| number(&bytes, *at) != 0).unwrap();
    // And one whose cluster begins within a sector, which QEMU does not read either.
    for (at, bits, said) in [(used, 0x80, "qemu-img"), (used + 7, 2, "within a sector")] {
        bytes[at] ^= bits;
        std::fs::write(&image, &bytes).unwrap();
        bytes[at] ^= bits;
        let refused = ferry(["convert", "-f", "qcow", &image, &out]);
        assert!(refused.failed().contains(said), "{refused:#?}");
        assert!(!std::path::Path::new(&out).exists(), "{refused:#?}");
    }
}
