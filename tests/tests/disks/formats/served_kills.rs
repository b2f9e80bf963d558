//! Images that are served and written while the server is killed: whatever the moment, the image
//! opens, is sound, and holds what was flushed.
//!
//! A script sends bursts of requests and does not wait for the last ones before SIGKILL comes. The
//! model knows for each sector what it may hold: what it held at the last flush, or what was sent
//! since. What the image then holds is where the script goes on.

use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

use blackbox::dice::{Case, Dice, long_form, seeds};
use blackbox::launch::{Serve, Server};
use blackbox::nbd::cmd;
use blackbox::session::{Mode, Request, Session};

use super::ground::{Ground, none_failed, told};

const SECTOR: usize = 512;
const SECTORS: usize = (12 << 20) / SECTOR;

/// A format, and the options that qemu-img makes the image with.
const IMAGES: &[(&str, &str)] = &[
    ("qcow2", "compat=1.1"),
    ("qcow2", "cluster_size=4k,lazy_refcounts=on"),
    ("qcow2", "extended_l2=on"),
    ("vdi", ""),
    ("vpc", "force_size=on"),
    ("vpc", "force_size=on,subformat=fixed"),
    ("vmdk", ""),
    ("vmdk", "subformat=twoGbMaxExtentSparse"),
    ("vhdx", "block_size=1M"),
];

#[test]
fn an_image_whose_server_is_killed_is_sound_and_holds_what_was_flushed() {
    let Some(ground) = Ground::new() else { return };
    for seed in seeds() {
        let _case = Case::new("served kills", seed);
        let mut failures = Vec::new();
        for (n, (format, options)) in IMAGES.iter().enumerate() {
            let mut dice = Dice::new(seed).with(n as u64);
            if let Err(e) = killed_again_and_again(&ground, format, options, &mut dice) {
                failures.push(format!("{format} {options}: {e}"));
            }
            ground.clear();
        }
        none_failed(&failures);
    }
}

/// What a sector may hold: numbers of writes, 0 for zeroes.
struct Model {
    /// What it holds if all was done.
    latest: Vec<BTreeSet<u32>>,
    /// The same, or what it held at the last flush, or since.
    possible: Vec<BTreeSet<u32>>,
    /// The number of the last write.
    last: u32,
}

impl Model {
    fn new() -> Self {
        let zeroes = vec![BTreeSet::from([0]); SECTORS];
        Self { latest: zeroes.clone(), possible: zeroes, last: 0 }
    }

    /// A random request, sent; `touched` are the sectors of those that may be done in any order
    /// with it. Returns its cookie.
    fn send(&mut self, dice: &mut Dice, session: &mut Session, touched: &mut [bool]) -> u64 {
        let most = if dice.percent(20) { 2048 } else { 64 };
        let len = dice.between(1, most);
        let at = dice.below(SECTORS - len + 1);
        let (offset, bytes) = ((at * SECTOR) as u64, (len * SECTOR) as u64);
        let kind = dice.below(10);
        let (request, number) = match kind {
            0 => (Request::new(cmd::TRIM, offset, bytes), 0),
            1 | 2 => (Request::new(cmd::WRITE_ZEROES, offset, bytes), 0),
            _ => {
                self.last += 1;
                let content = (at..at + len).flat_map(|at| sector(self.last, at));
                (Request::write(offset, &content.collect::<Vec<u8>>()), self.last)
            }
        };
        for (at, touched) in touched.iter_mut().enumerate().skip(at).take(len) {
            // A trim may leave what there was.
            if kind != 0 && !*touched {
                self.latest[at].clear();
            }
            *touched = true;
            self.latest[at].insert(number);
            self.possible[at].insert(number);
        }
        session.send(&request)
    }

    /// What the disk holds, which must be what it may hold, is where it goes on.
    fn take(&mut self, disk: &[u8]) -> Result<(), String> {
        for (at, found) in disk.chunks_exact(SECTOR).take(SECTORS).enumerate() {
            let number = u32::from_le_bytes(found[..4].try_into().unwrap());
            let wanted = if number == 0 { vec![0; SECTOR] } else { sector(number, at) };
            let may = &self.possible[at];
            if found != wanted || !may.contains(&number) {
                return Err(format!("sector {at} holds {number}, and may hold {may:?}"));
            }
            self.latest[at] = BTreeSet::from([number]);
        }
        self.possible = self.latest.clone();
        Ok(())
    }
}

/// The bytes that a write puts into a sector.
fn sector(number: u32, at: usize) -> Vec<u8> {
    let at = u32::try_from(at).unwrap();
    [number.to_le_bytes(), at.to_le_bytes()].concat().repeat(SECTOR / 8)
}

fn killed_again_and_again(
    ground: &Ground,
    format: &str,
    options: &str,
    dice: &mut Dice,
) -> Result<(), String> {
    let image = ground.path("image");
    let size = (SECTORS * SECTOR).to_string();
    let create = ["create", "-q", "-f", format, &image, &size];
    let options = if options.is_empty() { &[][..] } else { &["-o", options] };
    ground.img(&[&create[..], options].concat());
    let mut model = Model::new();
    for round in 0..if long_form() { 20 } else { 4 } {
        let server = serve(ground, format, &image);
        script(&mut model, dice, &server);
        thread::sleep(Duration::from_micros(dice.below(3000) as u64));
        server.kill();
        // On a copy, since QEMU repairs and replays what it opens; and then we do.
        witnessed(ground, format, &mut model).map_err(|e| format!("QEMU, kill {round}: {e}"))?;
        let server = serve(ground, format, &image);
        let mut session = server.session(Mode::Structured, "");
        let whole = session.read(0, (SECTORS * SECTOR) as u64).map_err(|e| format!("read: {e}"))?;
        model.take(&whole).map_err(|e| format!("kill {round}: {e}"))?;
        drop(session);
        if !server.stop().success() {
            return Err(format!("the server failed after kill {round}"));
        }
        is_sound(ground, format, "image").map_err(|e| format!("closed, kill {round}: {e}"))?;
    }
    Ok(())
}

fn serve(ground: &Ground, format: &str, image: &str) -> Server {
    let serve = Serve::file(image.as_ref()).option("--format").option(format);
    serve.option("--allow-external").option(ground.temp.path()).start()
}

/// Bursts of requests; what follows the last flush is not waited for.
fn script(model: &mut Model, dice: &mut Dice, server: &Server) {
    let mut session = server.session(Mode::Structured, "");
    for _ in 0..dice.between(1, 8) {
        let mut touched = vec![false; SECTORS];
        let requests = dice.between(1, 12);
        let sent = (0..requests).map(|_| model.send(dice, &mut session, &mut touched));
        let sent: Vec<u64> = sent.collect();
        for cookie in sent {
            assert_eq!(session.wait(cookie).error, 0);
        }
        if dice.percent(60) {
            session.flush();
            model.possible = model.latest.clone();
        }
    }
    let mut touched = vec![false; SECTORS];
    for _ in 0..dice.below(20) {
        model.send(dice, &mut session, &mut touched);
        if dice.percent(10) {
            // Nor is this.
            session.send(&Request::new(cmd::FLUSH, 0, 0));
        }
    }
}

/// QEMU opens a copy for writing, finds no corruption in it, and reads what it may hold.
fn witnessed(ground: &Ground, format: &str, model: &mut Model) -> Result<(), String> {
    // An image that consists of several files names them: they are copied where they are.
    let here = std::fs::read_dir(ground.temp.path()).unwrap().map(|entry| entry.unwrap().path());
    let files: Vec<_> = here.filter(|path| path.extension().is_none_or(|e| e != "disk")).collect();
    let kept: Vec<_> = files.iter().map(|path| std::fs::read(path).unwrap()).collect();
    ground.io(format, "image", &["read 0 512".to_owned()])?;
    is_sound(ground, format, "image")?;
    let found = std::fs::read(ground.truth(format, "image", "truth.disk")).unwrap();
    let (latest, possible) = (model.latest.clone(), model.possible.clone());
    model.take(&found)?;
    (model.latest, model.possible) = (latest, possible);
    for (path, bytes) in files.iter().zip(kept) {
        std::fs::write(path, bytes).unwrap();
    }
    Ok(())
}

/// No corruption; leaks at most.
fn is_sound(ground: &Ground, format: &str, image: &str) -> Result<(), String> {
    let check = ground.try_img(&["check", "-f", format, image]);
    // 63: the format has no check.
    if matches!(check.status.code(), Some(0 | 3 | 63)) {
        return Ok(());
    }
    Err(told(&check))
}
