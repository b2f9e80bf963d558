//! Encrypted disks: what peers make is read and written, and peers read what is made; a header that
//! is hostile costs little.

use device::{Edge, ErrorKind, Params, Result};
use disk::{Created, Holds, Image, Named, OpenOptions, Stack};
use proptest::prelude::*;
use runtime::Context;
use trial::TestDice;

use crate::support::{
    Place, all, create, create_image, map, must, open_image, pattern, peer, put, when_unlocked,
};

/// Where root's programs are, which is not in everyone's PATH.
const CRYPTSETUP: &str = "/usr/sbin/cryptsetup";
const SIZE: usize = (1 << 20) + 512;
/// The first sector of a disk that QEMU makes with keys of 512 bits, in bytes.
const PAYLOAD: usize = 2_068_480;

/// The disk in an image, with these parameters.
fn open(path: &str, params: &[&str], write: bool) -> Result<Edge> {
    let params = Params::parse(params.iter().copied()).unwrap();
    let stack = Stack::default().over_image(Image { params, ..Image::of("luks").unwrap() });
    let options = if write { OpenOptions::read_write() } else { OpenOptions::read_only() };
    let named = Named::parse(path).unwrap();
    when_unlocked(|| disk::open(&named, &stack, &options, &Context::default()))
        .map(|opened| opened.edge)
}

/// A secret in a file, as a parameter and as QEMU's object.
fn key(place: &Place) -> (String, String) {
    let path = place.write("key", b"open sesame");
    (format!("key-file={path}"), format!("secret,id=s,file={path}"))
}

/// A new disk that holds `bytes`.
fn make(path: &str, options: &[&str], bytes: &[u8]) {
    let Created { edge, holds, made } = create(path, "luks", options, bytes.len() as u64).unwrap();
    assert_eq!(holds, Holds::Unknown, "it reads as noise");
    for (piece, at) in bytes.chunks(1 << 20).zip((0..).step_by(1 << 20)) {
        edge.write(piece, at, false).unwrap();
    }
    edge.device().finish().unwrap();
    made.unwrap().keep();
}

/// Whether the tool is there; says so where it is not.
fn has(tool: &str) -> bool {
    let found = peer(tool, &["--version"]).is_some();
    if !found {
        eprintln!("skipped: {tool} is not installed");
    }
    found
}

/// Runs qemu-img until it makes a key: it measures how long one takes, and gives up where others
/// use the processor. False where it never did.
fn made_by_qemu(arguments: &[&str]) -> bool {
    for _ in 0..20 {
        let output = peer("qemu-img", arguments).unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if !said.contains("Unable to get accurate CPU usage") {
            assert!(output.status.success(), "{arguments:?}: {said}");
            return true;
        }
    }
    eprintln!("skipped: QEMU made no key in 20 tries, the processors are busy");
    false
}

/// The ciphers that both know, in the options of `qemu-img create -f luks`.
const CIPHERS: [&[&str]; 5] = [
    &[],
    &["cipher-alg=aes-128", "hash-alg=sha1"],
    &["cipher-alg=aes-256", "cipher-mode=cbc", "ivgen-alg=essiv", "ivgen-hash-alg=sha256"],
    // QEMU 7.2 ends by an assertion where a keyslot is no whole number of sectors: with aes-192.
    &["cipher-alg=aes-256", "cipher-mode=cbc", "ivgen-alg=plain64", "hash-alg=sha512"],
    &["cipher-alg=aes-128", "cipher-mode=cbc", "ivgen-alg=plain"],
];

#[test]
fn qemu_reads_what_is_made_and_what_it_makes_is_read_and_written() {
    let place = Place::new();
    let (ours, object) = key(&place);
    if !has("qemu-img") {
        return;
    }
    let bytes = pattern(SIZE, 3);
    for (options, n) in CIPHERS.iter().zip(0..) {
        let (made, plain) = (place.path(&format!("made{n}")), place.path("plain"));
        make(&made, &[*options, &[&ours, "iter-time=1"]].concat(), &bytes);
        let source = format!("driver=luks,key-secret=s,file.filename={made}");
        let read = ["convert", "--object", &object, "--image-opts", &source, "-O", "raw", &plain];
        assert!(must("qemu-img", &read));
        assert!(std::fs::read(&plain).unwrap() == bytes, "{options:?}");

        let (theirs, mut expected) = (place.path(&format!("theirs{n}")), bytes.clone());
        let all_options = [*options, &["key-secret=s", "iter-time=10"]].concat().join(",");
        let target = ["-O", "luks", "-o", &all_options, &plain, &theirs];
        if !made_by_qemu(&[&["convert", "--object", &object, "-f", "raw"][..], &target].concat()) {
            continue;
        }
        let disk = open(&theirs, &[&ours], true).unwrap();
        assert!(all(&disk) == expected, "{options:?}");
        // Parts of sectors, zeroes that are written as such, and a discard that is none.
        for (at, len, byte) in [(5, 3, 9), (511, 2, 8), (4096, 100_000, 7), (SIZE - 700, 700, 6)] {
            expected[at..at + len].fill(byte);
            disk.write(&expected[at..at + len], at as u64, true).unwrap();
        }
        let unmap = device::ZeroFlags { may_unmap: true, ..device::ZeroFlags::default() };
        expected[600_000..900_000].fill(0);
        disk.zero(600_000, 300_000, unmap).unwrap();
        disk.trim(0, SIZE as u64, false).unwrap();
        disk.flush().unwrap();
        assert!(all(&disk) == expected, "{options:?}");
        drop(disk);
        let source = format!("driver=luks,key-secret=s,file.filename={theirs}");
        must(
            "qemu-img",
            &["convert", "--object", &object, "--image-opts", &source, "-O", "raw", &plain],
        );
        assert!(std::fs::read(&plain).unwrap() == expected, "{options:?}");
    }
}

/// The disk in an encrypted qcow2.
fn open_qcow2(path: &str, params: &[&str]) -> Result<Edge> {
    let params = Params::parse(params.iter().copied()).unwrap();
    let external = disk::External::Chain;
    open_image(path, Image { params, external, ..Image::of("qcow2").unwrap() })
}

#[test]
fn an_encrypted_qcow2_of_qemu_is_read_and_its_holes_are_known() {
    let place = Place::new();
    let (ours, object) = key(&place);
    if !has("qemu-img") {
        return;
    }
    let (bytes, plain) = (pattern(SIZE, 6), place.path("plain"));
    std::fs::write(&plain, &bytes).unwrap();
    let data_file = format!("data_file={}", place.path("data"));
    for (options, n) in [
        "cluster_size=64k",
        "cluster_size=512,encrypt.cipher-mode=cbc,encrypt.ivgen-alg=essiv,encrypt.ivgen-hash-alg=sha256",
        "cluster_size=64k,extended_l2=on,encrypt.cipher-alg=aes-128",
        &data_file,
    ]
    .iter()
    .zip(0..)
    {
        let path = place.path(&format!("qcow2-{n}"));
        let encrypted = "encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=10";
        let options = format!("{encrypted},{options}");
        let target = ["-f", "raw", "-O", "qcow2", "-o", &options, &plain, &path];
        if !made_by_qemu(&[&["convert", "--object", &object][..], &target].concat()) {
            continue;
        }
        let disk = open_qcow2(&path, &[&ours]).unwrap();
        assert!(all(&disk) == bytes, "{options}");
        let found = map(&disk, &bytes);
        assert!(found.iter().any(|extent| extent.kind.reads_zero()), "{options}");
        // What lies in the file is cipher text, so no extent may say that the bytes are there.
        assert!(found.iter().all(|extent| extent.place.is_none()), "{options}");
        let homes = found.iter().filter_map(|extent| extent.home);
        assert!(homes.map(|home| home.stored).all(|form| form == device::Stored::Encrypted));
        // Parts of sectors, as they come from a client.
        let mut part = [0; 700];
        disk.read(&mut part, 777).unwrap();
        assert!(part[..] == bytes[777..1477]);
        let wrong = format!("key-file={}", place.write("wrong", b"open"));
        for params in [&[&*wrong][..], &[]] {
            let error = open_qcow2(&path, params).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NeedsKey, "{error}");
        }
    }
}

/// Writes, gives up and resizes in turns with qemu-io.
fn turns(place: &Place, path: &str, key: &str, object: &str, mut expected: Vec<u8>) {
    let mut dice = TestDice(path.len() as u64);
    let source =
        format!("driver=qcow2,encrypt.format=luks,encrypt.key-secret=s,file.filename={path}");
    let named = Named::parse(path).unwrap();
    let params = Params::parse([key]).unwrap();
    let external = disk::External::Chain;
    let image = Image { params, external, ..Image::of("qcow2").unwrap() };
    for turn in 0..4u8 {
        let (stack, context) = (Stack::default().over_image(image.clone()), Context::default());
        let options = OpenOptions::read_write();
        let disk = when_unlocked(|| disk::open(&named, &stack, &options, &context)).unwrap().edge;
        let unmap = device::ZeroFlags { may_unmap: true, ..device::ZeroFlags::default() };
        let size = expected.len() as u64;
        let mut any = |most: u64| {
            let at = dice.below(size - most);
            (at, usize::try_from(1 + dice.below(most)).unwrap())
        };
        for byte in 1..8u8 {
            let (at, len) = any(200_000 / u64::from(byte));
            let from = usize::try_from(at).unwrap();
            let range = from..from + len;
            if byte % 3 == 0 {
                disk.zero(at, len as u64, unmap).unwrap();
                expected[range].fill(0);
            } else {
                expected[range].fill(byte + 10 * turn);
                disk.write(&vec![byte + 10 * turn; len], at, false).unwrap();
            }
            assert!(all(&disk) == expected, "{path}, turn {turn}: {byte}");
        }
        context.control.end();
        assert!(context.control.take_complaints().is_empty());
        drop(disk);
        let (at, len) = any(100_000);
        let command = format!("write -P 99 {at} {len}");
        must("qemu-io", &["--object", object, "--image-opts", &source, "-c", &command]);
        let from = usize::try_from(at).unwrap();
        expected[from..from + len].fill(99);
        must("qemu-img", &["check", "--object", object, "--image-opts", &source]);
        // What it is longer is zeroes, and no noise.
        let size = size + if turn == 2 { 100_352 } else { 0 } - 512;
        let options = OpenOptions::read_write();
        let context = Context::default();
        let kept = when_unlocked(|| disk::keep(&named, &image, &options, &context)).unwrap();
        let resize = kept.format.upkeep.resize;
        kept.change("resize", resize, |resize, container, opening| {
            resize(container, opening, &|_| Ok(size), disk::NewRoom::None)
        })
        .unwrap();
        drop(kept);
        expected.resize(usize::try_from(size).unwrap(), 0);
        let plain = place.path("turned");
        let read = ["convert", "--object", object, "--image-opts", &source, "-O", "raw", &plain];
        must("qemu-img", &read);
        assert!(std::fs::read(&plain).unwrap() == expected, "{path}, turn {turn}");
    }
}

#[test]
fn an_encrypted_qcow2_is_written_in_turns_with_qemu_and_none_of_it_reads_as_noise() {
    let place = Place::new();
    let (ours, object) = key(&place);
    if !has("qemu-img") {
        return;
    }
    let base = place.write("base", &pattern(SIZE, 8));
    let (data, over) = (
        format!("data_file={}", place.path("data")),
        format!("backing_file={base},backing_fmt=raw"),
    );
    for (options, n) in [
        "cluster_size=64k",
        "cluster_size=512,encrypt.cipher-mode=cbc,encrypt.ivgen-alg=essiv",
        "cluster_size=16k,extended_l2=on",
        &data,
        &over,
    ]
    .into_iter()
    .zip(0..)
    {
        let path = place.path(&format!("turns-{n}"));
        let encrypted = "encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=10";
        let (options, size) = (format!("{encrypted},{options}"), SIZE.to_string());
        let make = ["create", "--object", &object, "-f", "qcow2", "-o", &options, &path, &size];
        if made_by_qemu(&make) {
            let is_over = options.contains("backing");
            let bytes = if is_over { pattern(SIZE, 8) } else { vec![0; SIZE] };
            turns(&place, &path, &ours, &object, bytes);
        }
    }
}

#[test]
fn qemu_reads_an_encrypted_qcow2_that_is_made_and_so_do_we() {
    let place = Place::new();
    let (ours, object) = key(&place);
    if !has("qemu-img") {
        return;
    }
    let (bytes, plain) = (pattern(SIZE, 7), place.path("plain"));
    let base = place.write("base", &pattern(SIZE, 8));
    let (data, base) =
        (format!("data_file={}", place.path("data")), format!("backing_file={base}"));
    for (options, n) in [
        &[][..],
        &["cluster_size=512", "refcount_bits=1", "encrypt.cipher-alg=aes-128"],
        &["cluster_size=2M", "encrypt.cipher-mode=cbc", "encrypt.ivgen-alg=essiv"],
        &["cluster_size=16k", "extended_l2=on", "encrypt.hash-alg=sha512"],
        &[&data],
        &[&base, "backing_fmt=raw"],
    ]
    .iter()
    .zip(0..)
    {
        let made = place.path(&format!("made{n}.qcow2"));
        let own = [&*format!("encrypt.{ours}"), "encrypt.format=luks", "encrypt.iter-time=1"];
        let image = Image { external: disk::External::Chain, ..Image::of("qcow2").unwrap() };
        let options = [&own[..], options].concat();
        let created = create_image(&made, image, &options, SIZE as u64).unwrap();
        let has_base = options.contains(&&*base);
        assert_eq!(created.holds, if has_base { Holds::Unknown } else { Holds::Zeroes });
        // Twice, and backwards; nothing where there are zeroes.
        let step = if options.contains(&"cluster_size=2M") { 2 << 20 } else { 64 << 10 };
        for (index, piece) in bytes.chunks(step).enumerate().rev() {
            let at = (index * step) as u64;
            let wanted = has_base || piece.iter().any(|byte| *byte != 0);
            for piece in [&vec![9; piece.len()], piece].into_iter().filter(|_| wanted) {
                created.edge.write(piece, at, false).unwrap();
            }
        }
        created.edge.device().finish().unwrap();
        created.made.unwrap().keep();
        drop(created.edge);
        let disk = open_qcow2(&made, &[&ours]).unwrap();
        assert!(all(&disk) == bytes, "{options:?}");
        map(&disk, &bytes);
        drop(disk);
        let source =
            format!("driver=qcow2,encrypt.format=luks,encrypt.key-secret=s,file.filename={made}");
        must("qemu-img", &["check", "-q", "--object", &object, "--image-opts", &source]);
        let read = ["convert", "--object", &object, "--image-opts", &source, "-O", "raw", &plain];
        assert!(must("qemu-img", &read));
        assert!(std::fs::read(&plain).unwrap() == bytes, "{options:?}");
        for name in [&*made, &place.path("data")] {
            let file = std::fs::read(name).unwrap_or_default();
            assert!(!file.windows(64).any(|found| found == [9; 64]), "{options:?}: in clear text");
        }
    }
}

#[test]
fn cryptsetup_opens_what_is_made_and_what_it_makes_is_read() {
    let place = Place::new();
    let (ours, object) = key(&place);
    let path = place.path("key");
    if !has(CRYPTSETUP) {
        return;
    }
    for (options, n) in [
        &["version=1"][..],
        &["version=2", "pbkdf-memory=1M"],
        &["version=2", "pbkdf=argon2i", "pbkdf-memory=1M", "sector-size=4096", "label=a"],
        &["version=2", "pbkdf=pbkdf2", "cipher-alg=aes-128", "cipher-mode=cbc", "ivgen-alg=essiv"],
        &["cipher-alg=aes-192", "cipher-mode=cbc", "ivgen-alg=plain"],
    ]
    .iter()
    .zip(0..)
    {
        let made = place.path(&format!("made{n}"));
        make(&made, &[*options, &[&ours, "iter-time=1"]].concat(), &pattern(SIZE, 4));
        must(CRYPTSETUP, &["open", "--test-passphrase", "--key-file", &path, &made]);
        assert!(all(&open(&made, &[&ours], false).unwrap())[..SIZE] == pattern(SIZE, 4));
    }
    let forced = ["-q", "--key-file", &path, "--pbkdf-force-iterations"];
    for (options, n) in [
        "4 --type luks2 --pbkdf argon2id --pbkdf-memory 1024",
        "4 --type luks2 --pbkdf argon2i --pbkdf-memory 1024 --sector-size 4096",
        "1000 --type luks2 --pbkdf pbkdf2 --hash sha512 --luks2-metadata-size 64k",
        "1000 --type luks1 --cipher aes-cbc-essiv:sha256 --key-size 128",
        "1000 --type luks1 --cipher aes-cbc-plain64 --key-size 192 --hash sha1",
    ]
    .iter()
    .zip(0..)
    {
        let (theirs, options) = (place.path(&format!("theirs{n}")), options.split(' '));
        std::fs::File::create(&theirs).unwrap().set_len(20 << 20).unwrap();
        let options: Vec<_> = options.chain([&*theirs]).collect();
        must(CRYPTSETUP, &[&["luksFormat"], &forced[..], &options].concat());
        let disk = open(&theirs, &[&ours], true).unwrap();
        assert!(disk.info().size >= 3 << 20 && disk.info().size <= 20 << 20);
        disk.write(b"written", 1000, true).unwrap();
        drop(disk);
        must(CRYPTSETUP, &["open", "--test-passphrase", "--key-file", &path, &theirs]);
        let mut back = [0; 7];
        open(&theirs, &[&ours], false).unwrap().read(&mut back, 1000).unwrap();
        assert_eq!(&back, b"written");
    }
    // The sectors of LUKS2, by QEMU: the header is made one of LUKS1, the disk stays.
    let (both, plain) = (place.path("both"), place.path("plain"));
    let bytes = pattern(SIZE, 5);
    make(&both, &[&ours, "version=2", "pbkdf=pbkdf2", "iter-time=1"], &bytes);
    must(CRYPTSETUP, &["convert", "-q", "--type", "luks1", &both]);
    let source = format!("driver=luks,key-secret=s,file.filename={both}");
    if must(
        "qemu-img",
        &["convert", "--object", &object, "--image-opts", &source, "-O", "raw", &plain],
    ) {
        assert!(std::fs::read(&plain).unwrap() == bytes);
    }
    assert!(all(&open(&both, &[&ours], false).unwrap()) == bytes);
}

/// A small disk of LUKS1.
fn small(place: &Place, options: &[&str]) -> (String, String) {
    let ((ours, _), made) = (key(place), place.path("made"));
    make(&made, &[&[&ours, "iter-time=1"], options].concat(), &[7; 4096]);
    (made, ours)
}

#[test]
fn without_the_right_secret_nothing_is_opened() {
    let place = Place::new();
    let (made, ours) = small(&place, &[]);
    let wrong = format!("key-file={}", place.write("wrong", b"open sesame\n"));
    let line = format!("passphrase=+{}", place.path("wrong"));
    let encoded = format!("key-file={}", place.write("encoded", b"b3BlbiBz\nZXNhbWU=\n"));
    for right in [&[&*ours][..], &[&line], &[&encoded, "key-format=base64"]] {
        assert!(open(&made, right, false).is_ok(), "{right:?}");
    }
    for (params, kind) in [
        (&[&*wrong][..], ErrorKind::NeedsKey),
        (&[], ErrorKind::NeedsKey),
        (&["passphrase=open sesame"], ErrorKind::InvalidInput),
        (&[&ours, &line], ErrorKind::InvalidInput),
        (&[&ours, "key-format=base64"], ErrorKind::InvalidInput),
        (&["key-file=/nonexistent"], ErrorKind::NotFound),
        (&["key-file=/dev/null"], ErrorKind::InvalidInput),
    ] {
        let error = open(&made, params, false).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(!error.to_string().contains("sesame"), "{error}");
    }
}

#[test]
fn a_new_disk_is_none_until_it_is_finished() {
    let place = Place::new();
    let ((ours, _), path) = (key(&place), place.path("new"));
    let created = create(&path, "luks", &[&ours, "iter-time=1"], 4096).unwrap();
    created.edge.write(&[1; 4096], 0, false).unwrap();
    let head = std::fs::read(&path).unwrap();
    assert!(head[..592].iter().all(|byte| *byte == 0));
    created.edge.device().finish().unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().len(), PAYLOAD as u64 + 4096);
    created.made.unwrap().keep();
}

#[test]
fn what_lies_on_the_disk_shows_nothing_of_it() {
    let place = Place::new();
    let (made, _) = small(&place, &[]);
    let file = std::fs::read(&made).unwrap();
    let payload = &file[PAYLOAD..];
    assert!(payload.windows(16).all(|bytes| bytes != [7; 16]));
    // Sectors of the same bytes differ.
    assert!(payload[..512] != payload[512..1024]);
}

#[test]
fn options_that_make_no_sense_are_refused_before_anything_is_made() {
    let place = Place::new();
    let (ours, _) = key(&place);
    for wrong in [
        "cipher-alg=serpent-256",
        "cipher-mode=ecb",
        "ivgen-alg=essiv",
        "hash-alg=md5",
        "iter-time=0",
        "sector-size=4096",
        "pbkdf=argon2id",
        "label=a",
        "version=3",
    ] {
        let path = place.path("none");
        assert!(create(&path, "luks", &[&ours, wrong], 4096).is_err(), "{wrong}");
        assert!(!std::path::Path::new(&path).exists(), "{wrong}");
    }
    let path = place.path("none");
    assert!(create(&path, "luks", &["cipher-alg=aes-192", &ours], 4096).is_err());
    assert!(create(&path, "luks", &[], 4096).is_err(), "without a key");
    assert!(!std::path::Path::new(&path).exists());
}

/// An error for a header of LUKS1 with `change` in it, by the time it takes.
fn broken(place: &Place, made: &str, ours: &str, (at, change): (usize, &[u8])) -> String {
    let mut file = std::fs::read(made).unwrap();
    put(&mut file, at, change);
    let path = place.write("broken", &file);
    let start = std::time::Instant::now();
    let error = open(&path, &[ours], false).unwrap_err().to_string();
    assert!(start.elapsed().as_secs() < 60, "{error}");
    error
}

#[test]
fn a_hostile_header_of_luks1_is_refused_at_once() {
    let place = Place::new();
    let (made, ours) = small(&place, &[]);
    let most = &[0xff; 4][..];
    for (at, change, said) in [
        (6, &[0, 9][..], "version 9"),
        (8, b"serpent\0", "serpent-xts-plain64"),
        (40, b"lrw-benbi\0", "aes-lrw-benbi"),
        (72, b"whirlpool\0", "whirlpool"),
        (104, most, "lies outside"),
        (104, &[0; 4], "detached"),
        (108, most, "key"),
        (108, &[0, 0, 0, 0], "key"),
        (108, &[0, 0, 0, 48], "keys of 32 or 64"),
        (208, &[1, 2, 3, 4], "neither used nor free"),
        (208, &[0, 0, 0xde, 0xad], "no keyslot"),
        (212, most, "iterations"),
        (248, most, "lies outside"),
        (252, most, "stripes"),
        (252, &[0; 4], "stripes"),
        (164, most, "iterations"),
    ] {
        let error = broken(&place, &made, &ours, (at, change));
        assert!(error.contains(said), "{at}: {error}");
    }
}

/// The JSON of LUKS2 with one text replaced, under its checksum again, in both copies.
fn rewritten(file: &[u8], from: &str, to: &str) -> Vec<u8> {
    let mut file = file.to_vec();
    for at in [0, 16 << 10] {
        let json = String::from_utf8(file[at + 4096..at + (16 << 10)].to_vec()).unwrap();
        let json = json.trim_end_matches('\0');
        assert!(json.contains(from), "{json}");
        let mut json = json.replacen(from, to, 1).into_bytes();
        json.resize((16 << 10) - 4096, 0);
        put(&mut file, at + 4096, &json);
        put(&mut file, at + 448, &[0; 64]);
        let sum = sha256(&file[at..at + (16 << 10)]);
        put(&mut file, at + 448, &sum);
    }
    file
}

/// By coreutils, so that this crate needs no hash.
fn sha256(bytes: &[u8]) -> Vec<u8> {
    use std::io::Write;
    use std::process::{Command, Stdio};
    let mut child =
        Command::new("sha256sum").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(bytes).unwrap();
    let said = child.wait_with_output().unwrap().stdout;
    let digit =
        |n: usize| u8::from_str_radix(std::str::from_utf8(&said[n * 2..n * 2 + 2]).unwrap(), 16);
    (0..32).map(|n| digit(n).unwrap()).collect()
}

#[test]
fn a_hostile_header_of_luks2_is_refused_at_once() {
    let place = Place::new();
    let (made, ours) = small(&place, &["version=2", "pbkdf-memory=1M"]);
    let file = std::fs::read(&made).unwrap();
    let deep = "[".repeat(5000);
    for (from, to, said) in [
        (r#""memory":1024"#, r#""memory":4194304"#, "kdf-memory=4096M"),
        (r#""memory":1024"#, r#""memory":7"#, "Argon2"),
        (r#""time":4"#, r#""time":4294967295"#, "passes"),
        (r#""cpus":4"#, r#""cpus":4294967295"#, "Argon2"),
        (r#""type":"argon2id""#, r#""type":"scrypt""#, "scrypt"),
        (r#""iterations":"#, r#""iterations":4294967295,"was":"#, "iterations"),
        (r#""stripes":4000"#, r#""stripes":4000000000"#, "stripes"),
        (
            r#""area":{"type":"raw","offset":"32768""#,
            r#""area":{"offset":"9000000000000000000""#,
            "lies outside",
        ),
        (r#""sector_size":512"#, r#""sector_size":513"#, "513"),
        (r#""offset":"16777216""#, r#""offset":"18446744073709551104""#, "lies outside"),
        (r#""offset":"16777216""#, r#""offset":"-1""#, "wrong `offset`"),
        (r#""size":"dynamic""#, r#""size":"18446744073709551104""#, "lies outside"),
        (r#""type":"crypt""#, r#""type":"linear""#, "linear"),
        (r#""type":"crypt""#, r#""integrity":{},"type":"crypt""#, "integrity"),
        (
            r#""config":{"#,
            r#""config":{"requirements":{"mandatory":["online-reencrypt-v2"]},"#,
            "online-reencrypt-v2",
        ),
        (r#""segments":{"0""#, r#""segments":{"1":{},"0""#, "2 segments"),
        (r#""digests":{"0":"#, r#""digests":{"0":{},"1":"#, ""),
        (r#""tokens":{}"#, &format!(r#""tokens":{deep}"#), "not JSON"),
        (r#""key_size":64,"af""#, r#""key_size":4096,"af""#, "4096"),
    ] {
        let path = place.write("broken", &rewritten(&file, from, to));
        match open(&path, &[&ours], false) {
            Ok(_) => assert_eq!(said, "", "{to}"),
            Err(e) => assert!(e.to_string().contains(said), "{to}: {e}"),
        }
    }
    // What the user allows is allowed.
    let path = place.write("broken", &rewritten(&file, r#""memory":1024"#, r#""memory":2048"#));
    let error = open(&path, &[&ours, "kdf-memory=1M"], false).unwrap_err().to_string();
    assert!(error.contains("kdf-memory=2M"), "{error}");
}

#[test]
fn the_second_copy_of_luks2_is_read_where_the_first_is_broken_and_the_newer_one_counts() {
    let place = Place::new();
    let (made, ours) = small(&place, &["version=2", "pbkdf-memory=1M"]);
    let file = std::fs::read(&made).unwrap();
    for broken in [&[0][..], &[5000], &[16 << 10], &[(16 << 10) + 5000]] {
        let mut file = file.clone();
        broken.iter().for_each(|at| file[*at] ^= 1);
        let path = place.write("one", &file);
        assert!(all(&open(&path, &[&ours], false).unwrap()) == [7; 4096], "{broken:?}");
    }
    let mut both = file.clone();
    both[5000] ^= 1;
    both[(16 << 10) + 5000] ^= 1;
    let error = open(&place.write("none", &both), &[&ours], false).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    // A newer second copy, whose keyslot asks for something else.
    let changed = rewritten(&file, r#""type":"argon2id""#, r#""type":"newer""#);
    let mut newer = file.clone();
    put(&mut newer, 16 << 10, &changed[16 << 10..32 << 10]);
    assert!(open(&place.write("same", &newer), &[&ours], false).is_ok());
    put(&mut newer, (16 << 10) + 16, &2_u64.to_be_bytes());
    put(&mut newer, (16 << 10) + 448, &[0; 64]);
    let sum = sha256(&newer[16 << 10..32 << 10]);
    put(&mut newer, (16 << 10) + 448, &sum);
    let error = open(&place.write("newer", &newer), &[&ours], false).unwrap_err();
    assert!(error.to_string().contains("newer"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    /// Any operations, on sectors of all sizes.
    #[test]
    fn a_disk_is_the_model(
        ops in prop::collection::vec(trial::op(), 1..12),
        sector in 0..3_usize,
    ) {
        let place = Place::new();
        let (ours, _) = key(&place);
        let options = [
            &["cipher-mode=cbc", "ivgen-alg=essiv"][..],
            &["version=2", "pbkdf=pbkdf2", "sector-size=2048"],
            &["version=2", "pbkdf=pbkdf2", "sector-size=4096"],
        ][sector];
        let path = place.path("made");
        make(&path, &[&[&ours, "iter-time=1"], options].concat(), &[0; trial::SIZE]);
        trial::run_on(&open(&path, &[&ours], true)?, &ops, trial::Trims::AsHint)?;
    }
}
