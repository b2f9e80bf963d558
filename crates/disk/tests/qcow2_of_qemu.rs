//! Images that qemu-img and qemu-io make, with all options, chains, snapshots and bitmaps, read
//! back: the bytes are those that QEMU has, and the map says where they are.

use device::{Edge, Error, Params, Result, Stored};
use disk::{Named, OpenOptions, Stack};
use formats::{Files, Head, Opening, Reference, Role};
use runtime::{Context, to_usize};

use crate::support::{Dice, Place, check_bytes, check_map, has_qemu, when_unlocked, whole_map};

/// A place in which images are made, with noise to fill them.
#[derive(Debug)]
struct Dir {
    place: Place,
    context: Context,
}

impl Dir {
    /// `None` where there is no qemu.
    fn new() -> Option<Self> {
        if !has_qemu() {
            return None;
        }
        let place = Place::new();
        // It becomes half as long when it is compressed, and never the same twice.
        let mut dice = Dice::new(3);
        let noise: Vec<_> = (0..99_991).map(|_| u8::try_from(dice.below(16)).unwrap()).collect();
        place.write("noise", &noise);
        Some(Self { place, context: Context::default() })
    }

    fn qemu_img(&self, words: &str) -> String {
        self.place.qemu_img(words)
    }

    fn qemu_io(&self, file: &str, commands: &[String]) {
        self.place.qemu_io("qcow2", file, commands);
    }

    fn named(&self, name: &str) -> Named {
        Named::parse(&self.place.path(name)).unwrap()
    }

    fn file(&self, name: &str) -> Result<Edge> {
        let (stack, options) = (Stack::default(), OpenOptions::default());
        when_unlocked(|| disk::open(&self.named(name), &stack, &options, &self.context))
            .map(|opened| opened.edge)
    }

    fn open_with(&self, name: &str, format: &str, params: &Params) -> Result<Edge> {
        let format = formats::format(format)?;
        let opening = Opening { params, files: self, context: &self.context };
        let disk = (format.open)(self.file(name)?, &opening)?;
        Ok(Edge::new(disk, self.context.pool.clone()))
    }

    fn open(&self, name: &str) -> Edge {
        self.open_with(name, "qcow2", &Params::default()).unwrap()
    }

    fn open_snapshot(&self, name: &str, snapshot: &str) -> Result<Edge> {
        let mut params = Params::default();
        params.add("snapshot", snapshot);
        self.open_with(name, "qcow2", &params)
    }

    /// The bytes of the disk as QEMU has them; `how` are options of `qemu-img convert`.
    fn bytes(&self, name: &str, how: &str) -> Vec<u8> {
        self.qemu_img(&format!("convert -f qcow2 -O raw {how} {name} expected.raw"));
        self.place.read("expected.raw")
    }

    /// Reads the image in all ways, and its map; nothing of it stays open.
    fn compare(&self, name: &str) {
        self.compare_open(name);
        let path = self.place.0.join(name);
        let is_open = || {
            let open = std::fs::read_dir("/proc/self/fd").unwrap();
            open.filter_map(|fd| std::fs::read_link(fd.unwrap().path()).ok()).any(|to| to == path)
        };
        let begun = std::time::Instant::now();
        while is_open() {
            assert!(begun.elapsed().as_secs() < 60, "{name} is still open");
            std::thread::yield_now();
        }
    }

    fn compare_open(&self, name: &str) {
        let (expected, edge) = (self.bytes(name, ""), self.open(name));
        check_bytes(&edge, &expected, name);
        check_maps(&edge, &expected, name);
        check_homes(&edge, &expected, &self.place.read(name), name);
        check_map_of_qemu(&self.qemu_img(&format!("map --output=json {name}")), &edge, name);
        let format = formats::format("qcow2").unwrap();
        let container = self.file(name).unwrap();
        assert_eq!(formats::recognise(&Head::of(&container).unwrap()).unwrap().word, "qcow2");
        let described = (format.describe)(&container, &self.context).unwrap();
        assert_eq!(described.virtual_size, expected.len() as u64, "{name}");
        drop((container, edge));
        self.compare_checks(name);
    }

    /// Checks the image as `qemu-img check` does.
    fn compare_checks(&self, name: &str) {
        let out = self.place.output("qemu-img", &["check", "--output=json", name]);
        let json = String::from_utf8(out.stdout).unwrap();
        let number = |key: &str| {
            let line = json.lines().find(|line| line.contains(&format!("\"{key}\":")));
            let value = line.map(|line| line.rsplit(' ').next().unwrap().trim_matches(','));
            value.map_or(0, |value| value.parse::<u64>().unwrap())
        };
        let check = formats::format("qcow2").unwrap().check.unwrap();
        let found = check(&self.file(name).unwrap(), &self.context).unwrap();
        let all = [
            ("corruptions", found.corruption_count),
            ("leaks", found.leaks),
            ("check-errors", found.check_errors),
            ("image-end-offset", found.image_end),
            ("total-clusters", found.total_clusters),
            ("allocated-clusters", found.allocated_clusters),
            ("fragmented-clusters", found.fragmented_clusters),
            ("compressed-clusters", found.compressed_clusters),
        ];
        for (key, ours) in all {
            let lines = &found.corruptions;
            let errors = String::from_utf8_lossy(&out.stderr);
            assert_eq!(ours, number(key), "{name}: {key}\n{lines:?}\n{json}{errors}");
        }
        assert_eq!(found.corruptions.len() as u64, found.corruption_count.min(100));
    }
}

/// Opens whatever an image names beside it.
impl Files for Dir {
    fn open(&self, reference: &Reference<'_>) -> Result<Edge> {
        if reference.role != Role::Backing {
            return self.file(reference.name);
        }
        let format = reference.format.ok_or_else(|| Error::unfit("no format"))?;
        self.open_with(reference.name, format, &Params::default())
    }

    fn create(&self, name: &str) -> Result<Edge> {
        Err(Error::unsupported("make files").on(name))
    }

    fn name(&self) -> Option<String> {
        None
    }
}

/// Holes are zero, places have the bytes, and what lies as it is has a place.
fn check_maps(edge: &Edge, expected: &[u8], name: &str) {
    for max in [1, 1000] {
        let found = whole_map(edge, max);
        check_map(&found, expected);
        let is_plain = |extent: &device::Extent| {
            extent.depth == 0 && extent.home.is_some_and(|home| home.stored == Stored::Plain)
        };
        for extent in found.iter().filter(|extent| is_plain(extent) && extent.place.is_none()) {
            assert!(extent.kind.reads_zero(), "{name}: no place: {extent:?}");
        }
    }
}

/// What lies in the container as it is lies where the map says.
fn check_homes(edge: &Edge, expected: &[u8], container: &[u8], name: &str) {
    for extent in whole_map(edge, 64) {
        let Some(home) = extent.home.filter(|home| home.file == 0 && extent.depth == 0) else {
            continue;
        };
        if home.stored == Stored::Plain && !extent.kind.reads_zero() {
            let bytes = &expected[to_usize(extent.start)..to_usize(extent.end())];
            let there = &container[to_usize(home.offset)..][..bytes.len()];
            assert!(there == bytes, "{name}: at the home of {}", extent.start);
        }
    }
}

/// Data is where QEMU reports it, at the depth that it reports.
fn check_map_of_qemu(json: &str, edge: &Edge, name: &str) {
    let field = |line: &str, key: &str| {
        let rest = line.split_once(&format!("\"{key}\": "))?.1;
        let end = rest.find([',', '}'])?;
        Some(rest[..end].to_owned())
    };
    for line in json.lines().filter(|line| line.contains("\"data\": true")) {
        let number = |key| field(line, key).map(|text| text.parse::<u64>().unwrap());
        let (start, len) = (number("start").unwrap(), number("length").unwrap());
        let mut found = Vec::new();
        edge.resolve(start, len, 1 << 20, &mut found).unwrap();
        for extent in found {
            assert_eq!(Some(u64::from(extent.depth)), number("depth"), "{name}: {extent:?}");
            let Some(offset) = number("offset") else { continue };
            // A raw disk has no container.
            if let Some(home) = extent.home {
                let there = offset + (extent.start - start);
                assert_eq!(
                    (home.offset, home.stored),
                    (there, Stored::Plain),
                    "{name}: {extent:?}"
                );
            }
        }
    }
}

/// Commands for qemu-io that fill a disk of `size` bytes at random: what is compressed first, since
/// QEMU writes that only where nothing is, and then anything over it.
fn fill(size: u64, cluster: u64, options: &str, seed: u64) -> Vec<String> {
    let mut dice = Dice::new(seed);
    let zeroes = !options.contains("compat=0.10");
    let mut commands = Vec::new();
    for _ in 0..20 {
        let byte = 1 + dice.below_u64(250);
        let start = dice.below_u64(size) / 512 * 512;
        let len = (512 + dice.below_u64(200_000) / 512 * 512).min(size - start);
        let whole = start / cluster * cluster;
        commands.push(match dice.below(5) {
            0 | 1 => format!("write -P {byte} {start} {len}"),
            2 if zeroes => format!("write -z {start} {len}"),
            3 if zeroes => format!("write -z -u {start} {len}"),
            _ => format!("discard {whole} {}", cluster.min(size - whole)),
        });
    }
    commands
}

/// Commands that write compressed clusters into an image that is empty.
fn fill_packed(size: u64, cluster: u64, seed: u64) -> Vec<String> {
    let mut dice = Dice::new(seed);
    let mut clusters: Vec<_> = (0..12).map(|_| dice.below_u64(size) / cluster * cluster).collect();
    // Some that follow each other, over tables' ends too.
    clusters.extend(
        (0..8).map(|i| (1 << 20) / cluster * cluster + i * cluster).filter(|at| *at < size),
    );
    clusters.sort_unstable();
    clusters.dedup();
    let write = |at: u64| format!("write -c -s noise {at} {}", cluster.min(size - at));
    clusters.into_iter().map(write).collect()
}

fn make(dir: &Dir, name: &str, size: u64, cluster: u64, options: &str, seed: u64) {
    // A child that another test is just starting may still hold the one before, and with it its
    // lock.
    let _ = std::fs::remove_file(dir.place.path(name));
    let options_all =
        format!("cluster_size={cluster}{}{options}", if options.is_empty() { "" } else { "," });
    dir.qemu_img(&format!("create -q -f qcow2 -o {options_all} {name} {size}"));
    if !options.contains("data_file") && !options.contains("preallocation") {
        dir.qemu_io(name, &fill_packed(size, cluster, seed));
    }
    dir.qemu_io(name, &fill(size, cluster, options, seed));
}

const SIZE: u64 = (5 << 20) + 3 * 512;

#[test]
fn images_of_all_clusters_and_versions_are_read() {
    let Some(dir) = Dir::new() else { return };
    let mut seed = 0;
    for cluster in [512, 2048, 4096, 65_536, 1 << 20, 2 << 20] {
        seed += 1;
        let all = ["", "compat=0.10", "compression_type=zstd", "lazy_refcounts=on"];
        for options in all.into_iter().skip(to_usize(seed % 2)).step_by(2) {
            seed += 1;
            make(&dir, "a.qcow2", SIZE, cluster, options, seed);
            dir.compare("a.qcow2");
        }
    }
}

#[test]
fn images_with_subclusters_are_read() {
    let Some(dir) = Dir::new() else { return };
    for (seed, cluster) in [16_384, 65_536, 1 << 20, 2 << 20].into_iter().enumerate() {
        for options in ["extended_l2=on", "extended_l2=on,compression_type=zstd"] {
            make(&dir, "a.qcow2", SIZE, cluster, options, 100 + seed as u64);
            dir.compare("a.qcow2");
        }
    }
}

#[test]
fn images_with_room_made_beforehand_and_with_any_refcounts_are_read() {
    let Some(dir) = Dir::new() else { return };
    for how in ["metadata", "falloc", "full"] {
        make(&dir, "a.qcow2", SIZE, 65_536, &format!("preallocation={how}"), 200);
        dir.compare("a.qcow2");
        dir.qemu_img(&format!(
            "create -q -f qcow2 -o preallocation={how},extended_l2=on b.qcow2 9M"
        ));
        dir.compare("b.qcow2");
    }
    for bits in [1, 2, 4, 8, 32, 64] {
        make(&dir, "a.qcow2", SIZE, 65_536, &format!("refcount_bits={bits}"), 300 + bits);
        dir.compare("a.qcow2");
    }
}

#[test]
fn what_was_only_reserved_is_known_to_be_zero() {
    let Some(dir) = Dir::new() else { return };
    dir.qemu_img("create -q -f qcow2 -o preallocation=metadata a.qcow2 64M");
    dir.qemu_io("a.qcow2", &["write -P 5 20M 1M".to_owned()]);
    let map = whole_map(&dir.open("a.qcow2"), 1000);
    let data: u64 = map.iter().filter(|e| !e.kind.reads_zero()).map(|e| e.len).sum();
    assert!((1 << 20..4 << 20).contains(&data), "{map:?}");
}

#[test]
fn images_whose_bytes_are_in_a_file_of_their_own_are_read() {
    let Some(dir) = Dir::new() else { return };
    for (seed, options) in ["", ",data_file_raw=on", ",extended_l2=on"].into_iter().enumerate() {
        let options = format!("data_file=d.raw{options}");
        make(&dir, "a.qcow2", SIZE, 65_536, &options, 400 + seed as u64);
        dir.compare("a.qcow2");
        std::fs::remove_file(dir.place.path("d.raw")).unwrap();
    }
}

#[test]
fn chains_are_read_with_shorter_and_longer_backing_images_of_any_format() {
    let Some(dir) = Dir::new() else { return };
    let mut seed = 500;
    for (low, high) in [(SIZE, SIZE), (SIZE - 700_000, SIZE), (SIZE + 700_160, SIZE)] {
        for options in ["", "extended_l2=on", "compat=0.10", "cluster_size=2M", "cluster_size=512"]
        {
            seed += 1;
            let raw: Vec<u8> = (0..low).map(|i| u8::try_from(i / 999 % 256).unwrap()).collect();
            dir.place.write("raw", &raw[..to_usize(low / 2)]);
            dir.qemu_img(&format!("create -q -f qcow2 -b raw -F raw low.qcow2 {low}"));
            dir.qemu_io("low.qcow2", &fill(low, 65_536, "", seed));
            let option = if options.is_empty() { String::new() } else { format!("-o {options}") };
            dir.qemu_img(&format!(
                "create -q -f qcow2 -b low.qcow2 -F qcow2 {option} top.qcow2 {high}"
            ));
            let cluster = match options {
                "cluster_size=2M" => 2 << 20,
                "cluster_size=512" => 512,
                _ => 65_536,
            };
            dir.qemu_io("top.qcow2", &fill_packed(high, cluster, seed));
            dir.qemu_io("top.qcow2", &fill(high, cluster, options, seed + 50));
            dir.compare("top.qcow2");
            let edge = dir.open("top.qcow2");
            check_depths(&dir, &edge, "top.qcow2");
        }
    }
}

/// The runs of a context as nbdinfo has them of qemu-nbd: length and value.
fn runs_of_qemu(dir: &Dir, name: &str, context: &str, options: &[&str]) -> Vec<(u64, u64)> {
    let map = format!("--map={context}");
    let mut args = vec![map.as_str(), "--json", "--", "[", "qemu-nbd", "-r", "-f", "qcow2"];
    args.extend(options);
    args.extend([name, "]"]);
    let json = dir.place.run("nbdinfo", &args);
    let number = |line: &str, key: &str| {
        let rest = line.split_once(&format!("\"{key}\":"))?.1.trim_start();
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        rest[..end].parse::<u64>().ok()
    };
    let found: Vec<_> = json
        .split('{')
        .filter_map(|entry| Some((number(entry, "length")?, number(entry, "type")?)))
        .collect();
    merged(found)
}

fn merged(runs: impl IntoIterator<Item = (u64, u64)>) -> Vec<(u64, u64)> {
    let mut all: Vec<(u64, u64)> = Vec::new();
    for (len, value) in runs {
        match all.last_mut() {
            Some(last) if last.1 == value => last.0 += len,
            _ => all.push((len, value)),
        }
    }
    all
}

fn runs_of_ours(edge: &Edge, context: &str, max: usize) -> Vec<(u64, u64)> {
    let (mut all, mut at) = (Vec::new(), 0);
    while at < edge.info().size {
        let mut found = Vec::new();
        edge.status(context, at, edge.info().size - at, max, &mut found).unwrap();
        assert!(!found.is_empty() && found.len() <= max);
        at += found.iter().map(|run| run.len).sum::<u64>();
        all.extend(found.iter().map(|run| (run.len, run.value)));
    }
    merged(all)
}

fn check_depths(dir: &Dir, edge: &Edge, name: &str) {
    let context = "qemu:allocation-depth";
    let theirs = runs_of_qemu(dir, name, context, &["-A"]);
    for max in [1, 3, 1000] {
        assert_eq!(runs_of_ours(edge, context, max), theirs, "{name}");
    }
}

#[test]
fn snapshots_are_listed_and_read() {
    let Some(dir) = Dir::new() else { return };
    for options in ["", "compat=0.10", "extended_l2=on", "refcount_bits=64"] {
        make(&dir, "a.qcow2", SIZE, 65_536, options, 600);
        dir.qemu_img("snapshot -c first a.qcow2");
        let first = dir.bytes("a.qcow2", "");
        dir.qemu_io("a.qcow2", &fill(SIZE, 65_536, options, 601));
        dir.qemu_img("snapshot -c 1000 a.qcow2");
        let second = dir.bytes("a.qcow2", "");
        if !options.contains("compat=0.10") {
            dir.qemu_img("resize -q a.qcow2 +3M");
        }
        dir.qemu_io("a.qcow2", &fill(SIZE, 65_536, options, 602));
        dir.compare("a.qcow2");
        for (name, expected) in
            [("1", &first), ("first", &first), ("2", &second), ("1000", &second)]
        {
            let edge = dir.open_snapshot("a.qcow2", name).unwrap();
            check_bytes(&edge, expected, name);
            check_maps(&edge, expected, name);
        }
        let error = dir.open_snapshot("a.qcow2", "third").unwrap_err();
        assert!(error.to_string().contains("no snapshot `third`"), "{error}");
        let format = formats::format("qcow2").unwrap();
        let described = (format.describe)(&dir.file("a.qcow2").unwrap(), &dir.context).unwrap();
        let names: Vec<_> = described.snapshots.iter().map(|s| (&s.id[..], &s.name[..])).collect();
        assert_eq!(names, [("1", "first"), ("2", "1000")]);
        assert!(described.snapshots.iter().all(|s| s.virtual_size == SIZE && s.date.0 > 0));
    }
}

#[test]
fn bitmaps_are_listed_and_read() {
    let Some(dir) = Dir::new() else { return };
    for (cluster, granularity) in [(65_536, 65_536), (512, 512), (4096, 1 << 20), (65_536, 512)] {
        let size = 40 << 20;
        dir.qemu_img(&format!("create -q -f qcow2 -o cluster_size={cluster} a.qcow2 {size}"));
        dir.qemu_img(&format!("bitmap --add -g {granularity} a.qcow2 b0"));
        dir.qemu_io("a.qcow2", &fill(size, cluster, "", 700 + cluster));
        dir.qemu_img("bitmap --add --disable a.qcow2 none");
        dir.qemu_img(&format!("bitmap --add -g {granularity} a.qcow2 all"));
        dir.qemu_io("a.qcow2", &["write -z 0 40M".to_owned()]);
        let edge = dir.open("a.qcow2");
        let contexts: Vec<_> = edge.info().contexts.iter().map(|c| &**c).collect();
        let names = ["b0", "none", "all"].map(|name| format!("qemu:dirty-bitmap:{name}"));
        assert_eq!(contexts[1..], names);
        for (name, context) in ["b0", "none", "all"].iter().zip(&names) {
            let theirs = runs_of_qemu(&dir, "a.qcow2", context, &["-B", name]);
            for max in [1, 5, 100_000] {
                assert_eq!(runs_of_ours(&edge, context, max), theirs, "{name} {cluster}");
            }
        }
        assert_eq!(runs_of_ours(&edge, &names[2], 9), [(size, 1)]);
        let format = formats::format("qcow2").unwrap();
        let described = (format.describe)(&dir.file("a.qcow2").unwrap(), &dir.context).unwrap();
        assert_eq!(described.specific["bitmaps"].as_array().unwrap().len(), 3);
    }
}

#[test]
fn what_is_wrong_with_refcounts_is_found_as_qemu_finds_it() {
    let Some(dir) = Dir::new() else { return };
    let mut dice = Dice::new(800);
    for (bits, cluster) in [(1, 65_536), (4, 4096), (16, 65_536), (16, 512), (64, 4096)] {
        let options = format!("refcount_bits={bits}");
        make(&dir, "a.qcow2", SIZE, cluster, &options, 801 + bits);
        if bits > 1 {
            dir.qemu_img("snapshot -c one a.qcow2");
            dir.qemu_io("a.qcow2", &fill(SIZE, cluster, &options, 802));
        }
        dir.compare_checks("a.qcow2");
        let mut bytes = dir.place.read("a.qcow2");
        let table = to_usize(u64::from_be_bytes(bytes[48..56].try_into().unwrap()));
        let block = to_usize(u64::from_be_bytes(bytes[table..table + 8].try_into().unwrap()));
        // Those of the header and the tables stay right: without them QEMU stops.
        let first = to_usize(8 * bits / 8);
        for _ in 0..6 {
            let last = (bytes.len() / to_usize(cluster) * to_usize(bits) / 8).clamp(first + 1, 512);
            let at = block + first + dice.below(last - first);
            bytes[at] ^= 1u8 << dice.below(3);
            dir.place.write("a.qcow2", &bytes);
            dir.compare_checks("a.qcow2");
        }
    }
}
