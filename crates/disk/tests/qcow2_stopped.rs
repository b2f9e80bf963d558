//! Images of all option sets that are written and changed by verbs in turns, and stopped at every
//! write of that: by a power cut, or by a write that fails. What is left opens, a check finds at
//! most leaks and flags that say too little, and the disk, its snapshots and its bitmaps are what
//! they were or what they were to be.
//!
//! `IMAGE_SCRIPTS=N` makes N long scripts of each option set instead of a short one.

use std::sync::Arc;

use device::{Edge, ErrorKind, Params, Result, ZeroFlags};
use formats::{BitmapChange, Files, Format, NewRoom, Opening, Reference, Role, SnapshotChange};
use runtime::{Context, WorkPool, to_usize};
use trial::{PowerCut, TestDice};

use crate::support::Place;

const SECTOR: u64 = 512;
/// Option sets, and whether the image lies over something.
const SETS: &[(&[&str], bool)] = &[
    (&[], false),
    (&["cluster_size=512"], true),
    (&["cluster_size=4k", "compat=0.10"], true),
    (&["cluster_size=1k", "refcount_bits=1"], false),
    (&["cluster_size=2k", "refcount_bits=2", "lazy_refcounts=on"], true),
    (&["cluster_size=512", "refcount_bits=64"], true),
    (&["cluster_size=16k", "extended_l2=on"], true),
    (&["cluster_size=4k", "preallocation=metadata"], false),
    (&["cluster_size=4k", "data_file=data"], true),
    (&["cluster_size=4k", "data_file=data", "data_file_raw=on"], false),
    (&["cluster_size=16k", "extended_l2=on", "data_file=data"], false),
    (&["cluster_size=512", ENCRYPTED], true),
    (&["cluster_size=16k", "extended_l2=on", ENCRYPTED], true),
    (&["cluster_size=4k", "data_file=data", ENCRYPTED], false),
];
const ENCRYPTED: &str = "encrypt.format=luks";

/// The files that an image names: they lose their power with it.
#[derive(Clone, Debug)]
struct Named {
    data: PowerCut,
    below: Option<Vec<u8>>,
}

impl Files for Named {
    fn open(&self, reference: &Reference<'_>) -> Result<Edge> {
        Ok(match reference.role {
            Role::DataFile => self.data.edge(),
            _ => PowerCut::new(self.below.clone().unwrap(), false).edge(),
        })
    }

    fn open_to_write(&self, reference: &Reference<'_>) -> Result<Edge> {
        self.open(reference)
    }

    fn create(&self, name: &str) -> Result<Edge> {
        assert_eq!(name, "data");
        Ok(self.data.edge())
    }

    fn name(&self) -> Option<String> {
        None
    }
}

/// What an image is, and what it holds.
#[derive(Clone)]
struct Holding {
    bytes: Vec<u8>,
    /// By name.
    snapshots: Vec<(String, Vec<u8>)>,
    bitmaps: Vec<String>,
}

#[derive(Clone)]
struct Image {
    what: String,
    disk: PowerCut,
    files: Named,
    params: Params,
    holds: Holding,
}

#[derive(Clone, Debug)]
enum Verb {
    Snapshot(char, String),
    Bitmap(&'static str, bool),
    Resize(u64, NewRoom),
    Amend(&'static str),
}

fn qcow2() -> &'static Format {
    formats::format("qcow2").unwrap()
}

fn all(edge: &Edge) -> Vec<u8> {
    let mut bytes = vec![0xaa; to_usize(edge.info().size)];
    edge.read(&mut bytes, 0).unwrap();
    bytes
}

impl Image {
    fn new(place: &Place, (set, over): (&[&str], bool), dice: &mut TestDice) -> Self {
        let key = place.write("key", b"open");
        let size = SECTOR * (20 + dice.below(300));
        let below = over.then(|| {
            let len = to_usize(SECTOR * (1 + dice.below(400)));
            (0..len).map(|at| u8::try_from(at / 3 % 255).unwrap() | 1).collect()
        });
        let data = PowerCut::new(vec![0; to_usize(size)], true);
        let files = Named { data, below };
        let (mut params, mut options) = (Params::default(), Params::default());
        let mut words = set.to_vec();
        let key_file = format!("encrypt.key-file={key}");
        if set.contains(&ENCRYPTED) {
            params.set("key-file", &key).unwrap();
            words.extend(["encrypt.iter-time=1", &key_file]);
        }
        if over {
            words.extend(["backing_file=below", "backing_fmt=raw"]);
        }
        for (key, value) in words.iter().map(|word| word.split_once('=').unwrap()) {
            options.set(key, value).unwrap();
        }
        let disk = made(&files, &options, size);
        let mut bytes = files.below.clone().unwrap_or_default();
        bytes.resize(to_usize(size), 0);
        let holds = Holding { bytes, snapshots: Vec::new(), bitmaps: Vec::new() };
        let what = format!("{set:?} of {size} bytes");
        Self { what, disk, files, params, holds }
    }

    /// The same with what a disk holds now, and nothing to forget.
    fn settled(&self) -> Self {
        let files = Named { data: self.files.data.again(true), ..self.files.clone() };
        Self { disk: self.disk.again(true), files, ..self.clone() }
    }

    /// What is left when the power is cut after so many changes of the container. Of a data file
    /// all is over by then.
    fn cut(&self, steps: usize, dice: &mut TestDice) -> Self {
        let data = self.files.data.cut(self.files.data.steps(), dice);
        let files = Named { data: PowerCut::new(data, true), ..self.files.clone() };
        let disk = self.disk.after_cut(steps, dice);
        Self { disk, files, ..self.clone() }
    }

    fn opened(&self, snapshot: Option<&str>, write: bool) -> (Edge, Context) {
        let (context, mut params) = (Context::new(WorkPool::new(1)), self.params.clone());
        if let Some(name) = snapshot {
            params.set("snapshot", &format!("snapshot.name={name}")).unwrap();
        }
        let opening = Opening { params: &params, files: &self.files, context: &context };
        let open = if write { qcow2().write.unwrap() } else { qcow2().open };
        let edge = Edge::new(open(self.disk.edge(), &opening).unwrap(), context.pool.clone());
        (edge, context)
    }

    fn run(&self, verb: &Verb) -> Result<()> {
        let context = Context::new(WorkPool::new(1));
        let opening = Opening { params: &self.params, files: &self.files, context: &context };
        let (disk, upkeep) = (self.disk.edge(), &qcow2().upkeep);
        match verb {
            Verb::Snapshot(action, name) => {
                let change = match action {
                    'c' => SnapshotChange::Create(name),
                    'a' => SnapshotChange::Apply(name),
                    _ => SnapshotChange::Delete(name),
                };
                (upkeep.snapshot.unwrap())(disk, &opening, change)
            }
            Verb::Bitmap(name, adds) => {
                let change =
                    if *adds { BitmapChange::Add(Some(512)) } else { BitmapChange::Remove };
                (upkeep.bitmap.unwrap())(disk, &opening, name, &[change])
            }
            Verb::Resize(size, room) => {
                (upkeep.resize.unwrap())(disk, &opening, &|_| Ok(*size), *room)
            }
            Verb::Amend(option) => {
                let options = Params::parse([*option]).unwrap();
                (upkeep.amend.unwrap())(disk, &opening, &options)
            }
        }
    }

    fn any_verb(&self, dice: &mut TestDice) -> Verb {
        let Holding { bytes, snapshots, bitmaps } = &self.holds;
        let named = |n: u64| snapshots.get(to_usize(n)).map(|(name, _)| name.clone());
        match dice.below(9) {
            0 | 1 if snapshots.len() < 3 => Verb::Snapshot('c', format!("s{}", dice.below(1000))),
            2 if !snapshots.is_empty() => {
                Verb::Snapshot('a', named(dice.below(snapshots.len() as u64)).unwrap())
            }
            3 if !snapshots.is_empty() => {
                Verb::Snapshot('d', named(dice.below(snapshots.len() as u64)).unwrap())
            }
            4 | 5 => {
                let name = ["x", "y"][to_usize(dice.below(2))];
                Verb::Bitmap(name, !bitmaps.iter().any(|known| known == name))
            }
            6 | 7 => {
                let most = (bytes.len() as u64 * 2 / SECTOR).min(2000);
                let room = [NewRoom::None, NewRoom::None, NewRoom::Tables, NewRoom::Written];
                Verb::Resize((1 + dice.below(most)) * SECTOR, room[to_usize(dice.below(4))])
            }
            _ => Verb::Amend(
                ["compat=1.1", "compat=0.10", "lazy_refcounts=on"][to_usize(dice.below(3))],
            ),
        }
    }

    /// What it holds after a verb.
    fn after(&self, verb: &Verb) -> Holding {
        let mut after = self.holds.clone();
        let named = |name: &str| self.holds.snapshots.iter().position(|(known, _)| known == name);
        match verb {
            Verb::Snapshot('c', name) => after.snapshots.push((name.clone(), after.bytes.clone())),
            Verb::Snapshot('a', name) => {
                after.bytes.clone_from(&self.holds.snapshots[named(name).unwrap()].1);
            }
            Verb::Snapshot(_, name) => drop(after.snapshots.remove(named(name).unwrap())),
            Verb::Bitmap(name, true) => after.bitmaps.push((*name).to_owned()),
            Verb::Bitmap(name, false) => after.bitmaps.retain(|known| known != name),
            Verb::Resize(size, _) => after.bytes.resize(to_usize(*size), 0),
            Verb::Amend(_) => {}
        }
        after
    }

    /// What is wrong, but for flags that say that others refer to what has one reference, or that
    /// none does where it was counted once too often: whoever is stopped leaves those.
    fn corruptions(&self) -> (Vec<String>, u64) {
        let context = Context::new(WorkPool::new(1));
        let container = self.disk.again(true).edge();
        let found = (qcow2().check.unwrap())(&container, &context).unwrap();
        let is_flag = |line: &String| {
            line.contains("other entries refer") || line.contains("no other entry refers")
        };
        (found.corruptions.into_iter().filter(|line| !is_flag(line)).collect(), found.leaks)
    }

    fn holds(&self, wanted: &Holding) -> bool {
        let context = Context::new(WorkPool::new(1));
        let container = self.disk.again(true).edge();
        let told = (qcow2().describe)(&container, &context).unwrap();
        let names: Vec<_> = told.snapshots.iter().map(|known| known.name.clone()).collect();
        if !names.iter().eq(wanted.snapshots.iter().map(|(name, _)| name))
            || told.virtual_size != wanted.bytes.len() as u64
        {
            return false;
        }
        let of = |snapshot| all(&self.opened(snapshot, false).0);
        of(None) == wanted.bytes
            && wanted.snapshots.iter().all(|(name, bytes)| of(Some(name)) == *bytes)
    }

    fn check_closed(&self, what: &str) {
        assert_eq!(self.corruptions(), (Vec::new(), 0), "{what}");
        assert!(self.holds(&self.holds), "{what}: other bytes");
        self.check_bitmaps(what);
    }

    /// None of them is lost.
    fn check_bitmaps(&self, what: &str) {
        let (edge, _context) = self.opened(None, false);
        for name in &self.holds.bitmaps {
            let context = format!("qemu:dirty-bitmap:{name}");
            let is_offered = edge.info().contexts.iter().any(|known| **known == context);
            assert!(is_offered, "{what}: the bitmap {name} is lost");
        }
    }

    /// Writes; what is left of that at any moment holds what was flushed.
    fn write(&mut self, dice: &mut TestDice, what: &str) {
        let (edge, context) = self.opened(None, true);
        let sectors = edge.info().size / SECTOR;
        let versions = |bytes: &[u8]| -> Vec<Vec<Arc<[u8]>>> {
            bytes.chunks(512).map(|sector| vec![sector.into()]).collect()
        };
        let mut history = vec![(0, versions(&self.holds.bytes))];
        for _ in 0..6 {
            let (at, step) = (dice.below(sectors), self.disk.steps());
            let most = [2, 40, sectors][to_usize(dice.below(3))];
            let len = 1 + dice.below(most.min(sectors - at));
            let (from, len) = (at * SECTOR, len * SECTOR);
            let byte = u8::try_from(1 + dice.below(255)).unwrap();
            let zero = ZeroFlags { may_unmap: true, ..ZeroFlags::default() };
            let range = to_usize(from)..to_usize(from + len);
            let is_flush = match dice.below(6) {
                0 => {
                    edge.flush().unwrap();
                    true
                }
                1 | 2 => {
                    edge.zero(from, len, zero).unwrap();
                    self.holds.bytes[range].fill(0);
                    false
                }
                _ => {
                    edge.write(&vec![byte; to_usize(len)], from, false).unwrap();
                    self.holds.bytes[range].fill(byte);
                    false
                }
            };
            let mut during = history.last().unwrap().1.clone();
            for (allowed, new) in during.iter_mut().zip(self.holds.bytes.chunks(512)) {
                if allowed.iter().all(|one| **one != *new) {
                    allowed.push(new.into());
                }
            }
            history.push((step, during));
            if is_flush {
                history.push((self.disk.steps(), versions(&self.holds.bytes)));
            }
        }
        assert!(all(&edge) == self.holds.bytes, "{what}: not what was written");
        drop(edge);
        context.control.end();
        assert!(context.control.take_complaints().is_empty(), "{what}");
        let has_data = self.files.data.steps() > 0;
        let from = if has_data { self.disk.steps() } else { 0 };
        for step in from..=self.disk.steps() {
            let left = self.cut(step, dice);
            let what = format!("{what}, written, after step {step} of {}", self.disk.steps());
            assert_eq!(left.corruptions().0, [""; 0], "{what}");
            let allowed = &history.iter().rev().find(|(since, _)| *since <= step).unwrap().1;
            let now = all(&left.opened(None, false).0);
            for (n, (sector, allowed)) in now.chunks(512).zip(allowed).enumerate() {
                assert!(allowed.iter().any(|one| **one == *sector), "{what}: sector {n}");
            }
        }
        *self = self.settled();
        self.check_closed(what);
    }
}

/// A new image, as long as it is.
fn made(files: &Named, options: &Params, size: u64) -> PowerCut {
    let disk = PowerCut::new(vec![0; 8 << 20], true);
    let context = Context::new(WorkPool::new(1));
    let making = formats::Making {
        size,
        options,
        compress: false,
        zeroed: true,
        durable: true,
        files,
        context: &context,
    };
    let create = qcow2().create.as_ref().unwrap().open;
    let new = create(disk.edge(), &making, &mut std::iter::empty()).unwrap();
    new.finish().unwrap();
    context.control.end();
    let mut bytes = disk.bytes();
    let found = (qcow2().check.unwrap())(&disk.edge(), &Context::default()).unwrap();
    bytes.truncate(to_usize(found.image_end));
    PowerCut::new(bytes, true)
}

/// Runs a script of one option set: so many verbs, and writes between, each stopped everywhere.
fn script(set: (&[&str], bool), seed: u64, verbs: usize) -> (usize, usize) {
    let (place, mut dice) = (Place::new(), TestDice(seed));
    let mut image = Image::new(&place, set, &mut dice);
    let (mut done, mut stops) = (0, 0);
    for n in 0..verbs {
        image = image.settled();
        let what = format!("seed {seed}, {} ({n})", image.what);
        image.write(&mut dice, &what);
        let (verb, was) = (image.any_verb(&mut dice), image.settled());
        let what = format!("{what}, {verb:?}");
        let ended = image.run(&verb);
        if let Err(e) = &ended {
            // It cannot be with such an image.
            let is_known = [
                ErrorKind::InvalidInput,
                ErrorKind::Limit,
                ErrorKind::ReadOnly,
                ErrorKind::Unsupported,
            ];
            assert!(is_known.contains(&e.kind()), "{what}: {e}");
            assert!(image.settled().holds(&was.holds), "{what}: {e}");
            continue;
        }
        done += 1;
        let after = image.after(&verb);
        let has_data = set.0.contains(&"data_file=data");
        for step in if has_data { image.disk.steps() } else { 0 }..=image.disk.steps() {
            stops += 1;
            let left = image.cut(step, &mut dice);
            let what = format!("{what}, after step {step} of {}", image.disk.steps());
            assert_eq!(left.corruptions().0, [""; 0], "{what}");
            assert!(left.holds(&was.holds) || left.holds(&after), "{what}: neither");
            if matches!(verb, Verb::Resize(..)) {
                left.check_bitmaps(&what);
            }
        }
        for fails in 0..image.disk.steps() {
            stops += 1;
            let left = was.settled();
            let kind = if fails % 2 == 0 { ErrorKind::Io } else { ErrorKind::NoSpace };
            left.disk.fail(fails, if fails % 3 == 0 { usize::MAX } else { 1 }, kind);
            let ended = left.run(&verb);
            left.disk.fail(0, 0, kind);
            let what = format!("{what}, fails {fails}: {ended:?}");
            for left in [left.settled(), left.cut(left.disk.steps(), &mut dice)] {
                assert_eq!(left.corruptions().0, [""; 0], "{what}");
                let is_done = left.holds(&after);
                assert!(is_done || left.holds(&was.holds), "{what}: neither");
                assert!(is_done || ended.is_err(), "{what}: not done");
                if matches!(verb, Verb::Resize(..)) {
                    left.check_bitmaps(&what);
                }
            }
        }
        image = image.settled();
        image.holds = after;
        image.check_closed(&what);
    }
    (done, stops)
}

#[test]
fn whatever_stops_a_script_of_writes_and_verbs_the_image_is_as_before_or_after_each() {
    let (seeds, verbs) = trial::scripts().map_or((0..1, 2), |seeds| (seeds, 6));
    let (mut done, mut stops) = (0, 0);
    for (n, set) in (0..).zip(SETS) {
        for seed in seeds.clone() {
            let counts = script(*set, 100_000 * n + seed, verbs);
            (done, stops) = (done + counts.0, stops + counts.1);
        }
    }
    println!("{done} verbs of {} option sets, stopped {stops} times", SETS.len());
    assert!(done > SETS.len() / 2);
}
