//! Images that are served and written where they lie: what is left when the server ends.

use std::ffi::OsString;
use std::path::Path;

use blackbox::launch::{Serve, Server};
use blackbox::nbd::{cmd, err, tflag};
use blackbox::peers::peer;
use blackbox::run::{ferry, json, program, run, text};
use blackbox::session::{Mode, Request};
use blackbox::storage::{Loop, Mounted};
use blackbox::temp::{TempDir, pattern};

/// The options of an image of which each is served.
const OPTIONS: &[&str] =
    &["compat=1.1", "extended_l2=on", "data_file=NAME", "data_file=NAME,data_file_raw=on"];
const SIZE: usize = 3 << 20;

fn qemu_img(words: &[&str]) {
    run(&mut program(&peer("qemu-img").unwrap(), words)).succeeded();
}

fn is_disk(image: &Path, raw: &Path) {
    qemu_img(&["check", "-q", "-f", "qcow2", text(image)]);
    qemu_img(&["compare", "-q", "-f", "raw", "-F", "qcow2", text(raw), text(image)]);
}

#[test]
fn all_that_was_written_is_in_the_image_when_the_server_stops_and_all_that_was_flushed_when_killed()
{
    if peer("qemu-img").is_none() {
        return;
    }
    let temp = TempDir::new();
    for (n, options) in OPTIONS.iter().enumerate() {
        let (image, raw) = (temp.join(&format!("image{n}")), temp.join(&format!("raw{n}")));
        let data = temp.join(&format!("data{n}"));
        let options = options.replace("NAME", text(&data));
        let create = ["create", "-q", "-f", "qcow2", "-o", &options, text(&image)];
        qemu_img(&[&create[..], &[&SIZE.to_string()]].concat());
        let serve = || {
            let serve = Serve::file(&image).option("--format").option("qcow2");
            serve.option("--allow-external").option(text(temp.path())).start()
        };
        let mut bytes = pattern(n as u64, SIZE);
        let server = serve();
        let mut session = server.session(Mode::Structured, "");
        assert!(!session.has(tflag::READ_ONLY), "{options}");
        for (n, piece) in bytes.chunks(300_000).enumerate() {
            session.write(n as u64 * 300_000, piece);
        }
        let zeroed = Request::new(cmd::WRITE_ZEROES, 65_536, 700_000);
        assert_eq!(session.error_of(&zeroed), 0, "{options}");
        bytes[65_536..765_536].fill(0);
        assert!(server.stop().success(), "{options}");
        std::fs::write(&raw, &bytes).unwrap();
        is_disk(&image, &raw);

        let server = serve();
        let mut session = server.session(Mode::Structured, "");
        session.write(1_000_000, &[9; 5000]);
        bytes[1_000_000..1_005_000].fill(9);
        session.flush();
        server.kill();
        std::fs::write(&raw, &bytes).unwrap();
        is_disk(&image, &raw);
    }
}

/// What a context says of the whole export, as `(len, value)`, to a client that comes now.
fn status(server: &Server, context: &str) -> Vec<(u64, u64)> {
    let map = ferry(["map", "--json", "--context", context, &server.uri("")]);
    let map = json(map.succeeded());
    let runs = map.as_array().unwrap().iter();
    runs.map(|run| (run["length"].as_u64().unwrap(), run["type"].as_u64().unwrap())).collect()
}

#[test]
fn bitmaps_and_depth_show_what_any_client_wrote_at_once_and_up_to_the_end_of_the_disk() {
    let (Some(_), Some(qemu_nbd)) = (peer("qemu-img"), peer("qemu-nbd")) else { return };
    let temp = TempDir::new();
    let (below, image) = (temp.join("below"), temp.join("image"));
    // Neither size nor writes end with a granule or a cluster.
    let size = (1 << 20) + 4608;
    qemu_img(&["create", "-q", "-f", "qcow2", text(&below), "70k"]);
    let over = ["create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", text(&below), text(&image)];
    qemu_img(&[&over[..], &[&size.to_string()]].concat());
    for (name, granule) in [("fine", "512"), ("coarse", "1M"), ("off", "64k")] {
        qemu_img(&["bitmap", "--add", "-g", granule, "-f", "qcow2", text(&image), name]);
    }
    qemu_img(&["bitmap", "--disable", "-f", "qcow2", text(&image), "off"]);
    let serve = Serve::file(&image).option("--format").option("qcow2");
    let server = serve.option("--allow-external").option(text(temp.path())).start();
    let bitmap = |name: &str| status(&server, &format!("qemu:dirty-bitmap:{name}"));
    let depth = || status(&server, "qemu:allocation-depth");
    assert_eq!(bitmap("fine"), [(size, 0)]);
    assert_eq!(depth(), [(71_680, 0), (size - 71_680, 2)]);

    // One client writes, a second one sees it before anything was flushed.
    let mut session = server.session(Mode::Structured, "");
    session.write(65_536 + 512, &[1; 600]);
    assert_eq!(bitmap("fine"), [(66_048, 0), (1024, 1), (size - 67_072, 0)]);
    assert_eq!(bitmap("coarse"), [(1 << 20, 1), (4608, 0)]);
    assert_eq!(bitmap("off"), [(size, 0)]);
    assert_eq!(depth(), [(65_536, 0), (65_536, 1), (size - 131_072, 2)]);
    let tail = Request::new(cmd::WRITE_ZEROES, size - 5, 5);
    assert_eq!(session.error_of(&tail), 0);
    assert_eq!(bitmap("coarse"), [(size, 1)]);
    let trimmed = Request::new(cmd::TRIM, 65_536, 65_536);
    assert_eq!(session.error_of(&trimmed), 0);
    session.flush();
    let fine = [(65_536, 0), (65_536, 1), (size - 131_072 - 512, 0), (512, 1)];
    assert_eq!(bitmap("fine"), fine);
    drop(session);
    assert!(server.stop().success());

    let theirs = Server::peer(&qemu_nbd, |socket| {
        let words = ["-t", "-e", "8", "-r", "-f", "qcow2", "-B", "fine", "-B", "off", "-k"];
        let words = words.iter().map(OsString::from);
        words.chain([socket.into(), (&image).into()]).collect()
    });
    let theirs = theirs.greeting();
    assert_eq!(status(&theirs, "qemu:dirty-bitmap:fine"), fine);
    assert_eq!(status(&theirs, "qemu:dirty-bitmap:off"), [(size, 0)]);
}

#[test]
fn a_full_disk_is_an_error_for_the_client_and_the_image_stays_sound_and_served() {
    if peer("qemu-img").is_none() {
        return;
    }
    let Some(fs) = Mounted::new("ext4", 16 << 20) else { return };
    is_filled(&fs.join("image"));
}

#[test]
fn an_image_on_a_block_device_grows_in_it_and_a_full_one_is_an_error_for_the_client() {
    if peer("qemu-img").is_none() {
        return;
    }
    let temp = TempDir::new();
    // What was there before is not in the disk.
    let old = temp.file("device", &pattern(1, 16 << 20));
    let Some(device) = Loop::over(&old, &[]) else { return };
    is_filled(device.path());
}

/// Writes into a new image of a larger disk than there is room for.
fn is_filled(image: &Path) {
    qemu_img(&["create", "-q", "-f", "qcow2", text(image), "64M"]);
    let server = Serve::file(image).option("--format").option("qcow2").start();
    let mut session = server.session(Mode::Structured, "");
    let (mut model, mut refused) = (vec![0; 64 << 20], Vec::new());
    for n in 0..128_u8 {
        let at = usize::from(n) * (512 << 10);
        let bytes = vec![n + 1; 200_000];
        let error = session.error_of(&Request::write(at as u64, &bytes));
        if error == 0 && session.error_of(&Request::new(cmd::FLUSH, 0, 0)) == 0 {
            model[at..][..bytes.len()].copy_from_slice(&bytes);
        } else {
            refused.push((at, error));
            // Some clusters of it may have found room, or not.
            let found = session.read(at as u64, 200_000).unwrap();
            assert!(found.iter().all(|byte| [0, n + 1].contains(byte)), "{at}");
            model[at..][..found.len()].copy_from_slice(&found);
        }
    }
    assert!(refused.iter().any(|(_, error)| *error == err::ENOSPC), "{refused:?}");
    assert!(refused.len() < 128, "nothing was written");
    // The service goes on: what is there can be read, and written where it lies.
    session.write(1000, &[200; 3000]);
    model[1000..4000].fill(200);
    assert_eq!(session.read(0, 200_000).unwrap(), model[..200_000]);
    drop(session);
    assert!(server.stop().success());
    let temp = TempDir::new();
    let raw = temp.file("raw", &model);
    is_disk(image, &raw);
}
