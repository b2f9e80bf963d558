#![allow(clippy::unwrap_used, reason = "a test that fails here has failed")]

use device::{ErrorKind, Params};
use formats::{Creator, Files, Making};
use runtime::WorkPool;
use trial::{PowerCut, TestDice};

use super::*;

const SIZE: u64 = 24 << 10;

/// Two backing images.
#[derive(Debug)]
struct Bases {
    old: Vec<u8>,
    new: Vec<u8>,
}

impl Files for Bases {
    fn open(&self, reference: &Reference<'_>) -> Result<Edge> {
        let bytes = if reference.name == "old" { &self.old } else { &self.new };
        Ok(PowerCut::new(bytes.clone(), false).edge())
    }

    fn create(&self, name: &str) -> Result<Edge> {
        formats::Closed.create(name)
    }

    fn name(&self) -> Option<String> {
        None
    }
}

fn noise(len: u64, alike: u64, many: u64, dice: &mut TestDice) -> Vec<u8> {
    // Some of it is the same in both.
    let byte = |at: u64, dice: &mut TestDice| match at / 1024 % 3 {
        0 => alike.to_be_bytes()[7],
        1 => 0,
        _ => 1 + dice.below(many).to_be_bytes()[7],
    };
    (0..len).map(|at| byte(at, dice)).collect()
}

/// An overlay over the old one, in which some is written.
fn overlay(options: &[&str], opening: &Opening<'_>, dice: &mut TestDice) -> Vec<u8> {
    let qcow2 = formats::format("qcow2").unwrap();
    let named = ["backing_file=old", "backing_fmt=raw"];
    let options = Params::parse(options.iter().copied().chain(named)).unwrap();
    let (files, context) = (opening.files, opening.context);
    let (compress, zeroed, durable) = (false, true, true);
    let making =
        Making { size: SIZE, options: &options, compress, zeroed, durable, files, context };
    let disk = PowerCut::new(vec![0; 1 << 18], true);
    let Creator { open, .. } = qcow2.create.unwrap();
    open(disk.edge(), &making, &mut std::iter::empty()).unwrap().finish().unwrap();
    let mut bytes = disk.bytes();
    let end = bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1;
    bytes.truncate(end.next_multiple_of(2048));
    let disk = PowerCut::new(bytes, true);
    let write = qcow2.write.unwrap();
    let over = Edge::new(write(disk.edge(), opening).unwrap(), WorkPool::new(1));
    for n in 0..6 {
        let at = dice.below(SIZE - 2048);
        match n % 3 {
            0 => over.zero(at, 1 + dice.below(2000), UNMAP).unwrap(),
            _ => over.write(&[7; 700], at, false).unwrap(),
        }
    }
    over.flush().unwrap();
    over.device().finish().unwrap();
    disk.bytes()
}

fn rebase(
    disk: &PowerCut,
    opening: &Opening<'_>,
    to: BackingName<'_>,
    compress: bool,
) -> Result<()> {
    let qcow2 = formats::format("qcow2").unwrap();
    let (rebase, container) = (qcow2.upkeep.rebase.unwrap(), disk.edge());
    let cluster = (qcow2.describe)(&container, opening.context)?.cluster_size.unwrap();
    let open = |(name, word)| {
        opening.files.open(&Reference { name, role: Role::Backing, format: Some(word) })
    };
    let below = to.map(open).transpose()?;
    let write = if compress { rebase.pack } else { rebase.write };
    keep_disk(&container, write, opening, below, cluster, &mut |_, _| {})?;
    (rebase.rename)(&container, to)
}

fn bytes_of(container: Vec<u8>, opening: &Opening<'_>, what: &str) -> Vec<u8> {
    let qcow2 = formats::format("qcow2").unwrap();
    let disk = PowerCut::new(container, true);
    let found = (qcow2.check.unwrap())(&disk.edge(), opening.context).unwrap();
    assert_eq!(found.corruptions, [""; 0], "{what}");
    let over = Edge::new((qcow2.open)(disk.edge(), opening).unwrap(), WorkPool::new(1));
    let mut bytes = vec![0xaa; to_usize(SIZE)];
    over.read(&mut bytes, 0).unwrap();
    bytes
}

/// How many clusters are compressed; nothing else is wrong with it.
fn packed_in(disk: &PowerCut, opening: &Opening<'_>) -> u64 {
    let check = formats::format("qcow2").unwrap().check.unwrap();
    let found = check(&disk.edge(), opening.context).unwrap();
    assert_eq!(found.leaks, 0);
    found.compressed_clusters
}

#[test]
fn whenever_a_rebase_loses_its_power_or_fails_the_overlay_reads_as_before() {
    // How many steps there are depends on threads: disks must not.
    let (mut dice, mut cuts) = (TestDice(2), TestDice(3));
    let mut packed_in_all = 0;
    for (options, compress) in [
        (&["cluster_size=512"][..], false),
        (&["cluster_size=2k"], false),
        (&["cluster_size=512", "compat=0.10"], false),
        (&["cluster_size=512"], true),
        (&["cluster_size=2k", "compression_type=zstd"], true),
        (&["cluster_size=2k", "refcount_bits=1"], true),
        (&["cluster_size=2k", "refcount_bits=2"], true),
    ] {
        for to in [Some(("new", "raw")), None] {
            let bases = Bases {
                old: noise(SIZE - 3000, 9, if compress { 3 } else { 250 }, &mut dice),
                new: noise(SIZE - 5000, 9, 250, &mut dice),
            };
            let (context, params) = (Context::new(WorkPool::new(1)), Params::default());
            let opening = Opening { params: &params, files: &bases, context: &context };
            let container = overlay(options, &opening, &mut dice);
            let expected = bytes_of(container.clone(), &opening, "before");
            let disk = PowerCut::new(container.clone(), true);
            rebase(&disk, &opening, to, compress).unwrap();
            let packed = packed_in(&disk, &opening);
            // How many fit beside one another depends on threads.
            packed_in_all += packed;
            assert!(compress || packed == 0, "{packed}: {options:?} over {to:?}");
            assert!(bytes_of(disk.bytes(), &opening, "after") == expected, "{options:?}");
            for step in 0..=disk.steps() {
                let what = format!(
                    "{options:?}, {compress}, over {to:?}, step {step} of {}",
                    disk.steps()
                );
                let left = bytes_of(disk.cut(step, &mut cuts), &opening, &what);
                assert!(left == expected, "{what}");
            }
            for step in 0..disk.steps() {
                let what = format!("{options:?}, {compress}, over {to:?}, step {step} fails");
                let failing = PowerCut::new(container.clone(), true);
                let kinds = [ErrorKind::Io, ErrorKind::NoSpace];
                failing.fail(step, 1 + step % 3, kinds[step % 2]);
                let done = rebase(&failing, &opening, to, compress);
                assert!(bytes_of(failing.bytes(), &opening, &what) == expected, "{what}");
                let left = failing.cut(failing.steps(), &mut dice);
                assert!(bytes_of(left, &opening, &what) == expected, "{what}: {done:?}");
            }
        }
    }
    assert!(packed_in_all > 20, "{packed_in_all}");
}
