//! Every image that qemu-img can create is read as qemu-img reads it.

use super::ground::{Ground, none_failed};
use super::recipes::{self, Recipe};

/// What images that consist of several files, or name others, need.
pub(crate) const CHAIN: &[&str] = &["--allow-external", "chain"];

fn read_all(recipes: &[Recipe]) {
    let Some(ground) = Ground::new() else { return };
    let read = |recipe: &Recipe| {
        let Some(image) = recipe.make(&ground) else {
            println!("qemu-img cannot make {}", recipe.name());
            ground.clear();
            return None;
        };
        let truth = ground.truth_of(recipe.format, &image, recipe.size);
        let wrong = ground.reads(recipe.format, &image, CHAIN, &truth).err();
        ground.clear();
        wrong.map(|e| format!("{}: {e}", recipe.name()))
    };
    let failures: Vec<_> = recipes.iter().filter_map(read).collect();
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
