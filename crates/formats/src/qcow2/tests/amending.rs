//! Images that get other options: they hold what they held, and whenever the power is cut or
//! something fails they open.

use device::{ErrorKind, Params, Result};
use runtime::{Context, WorkPool};
use trial::{PowerCut, TestDice};

use super::laid::Layout;
use super::reading::Backing;
use super::resizing::{any_image, bytes_of};
use super::writing::checked;
use crate::Opening;
use crate::scripted::scripts;

fn amend(disk: &PowerCut, layout: &Layout, options: &Params) -> Result<()> {
    let context = Context::new(WorkPool::new(1));
    let files = Backing(layout.backing.clone(), false);
    let opening = Opening { params: &Params::default(), files: &files, context: &context };
    (super::super::FORMAT.upkeep.amend.unwrap())(disk.edge(), &opening, options)
}

fn any_options(dice: &mut TestDice, layout: &Layout) -> Params {
    let size = format!("size={}", layout.size + 512 * dice.below(100));
    let all = [
        &["compat=1.1"][..],
        &["compat=0.10"],
        &["lazy_refcounts=on"],
        &["compat=1.1", "lazy_refcounts=on"],
        &["lazy_refcounts=off", &size],
        &["compat=1.1", &size],
    ];
    let these = all[usize::try_from(dice.below(6)).unwrap()];
    Params::parse(these.iter().copied()).unwrap()
}

#[test]
fn whenever_it_is_stopped_an_image_that_gets_other_options_opens_and_holds_what_it_held() {
    let (mut done, seeds) = (0, scripts(60));
    let many = seeds.end - seeds.start;
    for seed in seeds {
        let mut dice = TestDice(9000 + seed);
        let (layout, disk, bytes) = any_image(&mut dice);
        let options = any_options(&mut dice, &layout);
        let amended = amend(&disk, &layout, &options);
        done += u64::from(amended.is_ok());
        if let Err(e) = &amended {
            let is_known = [ErrorKind::InvalidInput, ErrorKind::NoSpace].contains(&e.kind());
            assert!(is_known, "{e}");
        }
        let version = options.get("compat").map(|word| if word == "1.1" { 3 } else { 2 });
        assert!(amended.is_err() || version.is_none_or(|v| disk.bytes()[7] == v));
        for step in 0..=disk.steps() {
            let what = format!("seed {seed}, after step {step} of {}: {options:?}", disk.steps());
            let left = disk.after_cut(step, &mut dice);
            let now = bytes_of(&left, &layout);
            let (old, new) = now.split_at(bytes.len());
            assert!(old == bytes && new.iter().all(|byte| *byte == 0), "{what} {layout:?}");
            assert_eq!(checked(&left).corruptions, [""; 0], "{what}: {layout:?}");
        }
        let found = checked(&disk);
        assert_eq!((&found.corruptions[..], found.leaks), (&[][..], 0), "seed {seed}: {options:?}");
    }
    assert!(done > many / 3, "{done} were done");
}

#[test]
fn whichever_write_fails_an_image_that_gets_other_options_opens_and_holds_what_it_held() {
    for seed in scripts(6) {
        let mut fails = 0;
        loop {
            let mut dice = TestDice(9500 + seed);
            let (layout, disk, bytes) = any_image(&mut dice);
            let options = any_options(&mut dice, &layout);
            let kind = if fails % 2 == 0 { ErrorKind::Io } else { ErrorKind::NoSpace };
            disk.fail(fails, if fails % 3 == 0 { usize::MAX } else { 1 }, kind);
            let _ = amend(&disk, &layout, &options);
            let what = format!("seed {seed}, fails {fails}: {options:?} {layout:?}");
            for left in [disk.bytes(), disk.cut(disk.steps(), &mut dice)] {
                let left = PowerCut::new(left, true);
                let now = bytes_of(&left, &layout);
                let (old, new) = now.split_at(bytes.len());
                assert!(old == bytes && new.iter().all(|byte| *byte == 0), "{what}");
                assert_eq!(checked(&left).corruptions, [""; 0], "{what}");
            }
            if fails > disk.steps() {
                break;
            }
            fails += 1;
        }
    }
}
