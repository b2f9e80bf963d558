//! Where a test works: a directory in memory, the programs, and the ways in which an image is read.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use blackbox::MIB;
use blackbox::peers::{diskferry, peer};
use blackbox::run::{Outcome, measured, program, run};
pub(crate) use blackbox::run::{ferry, text};
use blackbox::temp::TempDir;

use super::disks::{differ, disk};

/// A place to work in.
#[derive(Debug)]
pub(crate) struct Ground {
    pub(crate) temp: TempDir,
    qemu_img: PathBuf,
    qemu_io: PathBuf,
    raws: Mutex<BTreeMap<u64, PathBuf>>,
}

impl Ground {
    /// A new one; `None`, after saying so, where a program is missing.
    pub(crate) fn new() -> Option<Self> {
        let (qemu_img, qemu_io) = (peer("qemu-img")?, peer("qemu-io")?);
        peer("nbdcopy")?;
        let memory = Path::new("/dev/shm");
        let temp = if memory.is_dir() { TempDir::below(memory) } else { TempDir::new() };
        Some(Self { temp, qemu_img, qemu_io, raws: Mutex::default() })
    }

    /// A path in it.
    pub(crate) fn path(&self, name: &str) -> String {
        text(&self.temp.join(name)).to_owned()
    }

    /// The disk of this size as a raw file.
    pub(crate) fn raw(&self, size: u64) -> PathBuf {
        let mut raws = self.raws.lock().unwrap();
        let made = raws.entry(size).or_insert_with(|| {
            let path = self.temp.join(&format!("{size}.disk"));
            disk(size).write(&path);
            path
        });
        made.clone()
    }

    /// Removes what was made for one image: all but the disks.
    pub(crate) fn clear(&self) {
        for entry in std::fs::read_dir(self.temp.path()).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_none_or(|extension| extension != "disk") {
                std::fs::remove_file(path).unwrap();
            }
        }
    }

    /// To run in the directory: from there qemu looks for a data file that has a bare name.
    fn here<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.current_dir(self.temp.path())
    }

    /// Runs qemu-img, which must succeed.
    #[track_caller]
    pub(crate) fn img<S: AsRef<str>>(&self, words: &[S]) -> String {
        let words = words.iter().map(AsRef::as_ref);
        run(self.here(&mut program(&self.qemu_img, words))).succeeded().to_owned()
    }

    /// Runs qemu-img, whatever its result, for no more than ten seconds.
    pub(crate) fn try_img<S: AsRef<str>>(&self, words: &[S]) -> Outcome {
        let timeout = peer("timeout").expect("coreutils");
        let words = words.iter().map(AsRef::as_ref);
        run(self.here(&mut program(&timeout, ["10", text(&self.qemu_img)])).args(words))
    }

    /// Runs these commands of qemu-io on an image; all must succeed.
    pub(crate) fn io(&self, format: &str, image: &str, commands: &[String]) -> Result<(), String> {
        let words = commands.iter().flat_map(|command| ["-c", command]);
        let mut io = program(&self.qemu_io, ["-f", format]);
        let outcome = run(self.here(&mut io).args(words).arg(image));
        // It ends with 0 whatever a read found.
        let text = format!("{}{}", outcome.stdout, outcome.stderr);
        let failed = ["failed", "error", "rror:", "can't", "invalid", "Invalid"];
        if outcome.status.success() && !failed.iter().any(|word| text.contains(word)) {
            Ok(())
        } else {
            Err(format!("qemu-io: {outcome:#?}"))
        }
    }

    /// The disk in an image, as qemu-img reads it, in a raw file of this name.
    #[track_caller]
    pub(crate) fn truth(&self, format: &str, image: &str, name: &str) -> PathBuf {
        let path = self.temp.join(name);
        self.img(&["convert", "-f", format, "-O", "raw", image, text(&path)]);
        path
    }

    /// The disk of this size as it must be in the image that qemu-img made of it: some formats
    /// round the size up. qemu-img itself is the witness, but where it would read terabytes.
    #[track_caller]
    pub(crate) fn truth_of(&self, format: &str, image: &str, size: u64) -> PathBuf {
        let raw = self.raw(size);
        if size < 32 * MIB {
            let truth = self.truth(format, image, "truth");
            assert_eq!(differ(&raw, &truth, true), Ok(()), "qemu-img itself is wrong");
            return truth;
        }
        let truth = self.temp.join("truth");
        disk(size).write(&truth);
        let file = std::fs::File::options().write(true).open(&truth).unwrap();
        file.set_len(self.virtual_size(format, image)).unwrap();
        truth
    }

    /// The size of the disk in an image, in bytes, as qemu-img reports it.
    #[track_caller]
    pub(crate) fn virtual_size(&self, format: &str, image: &str) -> u64 {
        let info = self.img(&["info", "--output=json", "-f", format, image]);
        let info: serde_json::Value = serde_json::from_str(&info).unwrap();
        info["virtual-size"].as_u64().unwrap()
    }

    /// Reads an image in all our ways; what is found must be as in the file `truth`.
    pub(crate) fn reads(
        &self,
        format: &str,
        image: &str,
        options: &[&str],
        truth: &Path,
    ) -> Result<(), String> {
        let out = self.path("ours");
        let words = ["convert", "-f", format, "-O", "raw"];
        let outcome = ferry(words.iter().chain(options).chain(&[image, &out]));
        whole("convert", &outcome, truth, &out)?;
        let copy = format!("nbdcopy \"$uri\" {out}");
        let words = ["serve", "--format", format];
        let outcome = ferry(words.iter().chain(options).chain(&[image, "--run", &copy]));
        whole("serve", &outcome, truth, &out)?;
        self.compares(format, image, options, truth)
    }

    /// Comparing an image with a raw disk that is the same, and with one of which a byte is not.
    fn compares(
        &self,
        format: &str,
        image: &str,
        options: &[&str],
        truth: &Path,
    ) -> Result<(), String> {
        let other = self.temp.join("other");
        let size = truth.metadata().unwrap().len();
        let mut disks = vec![(truth, 0)];
        // Terabytes are compared once.
        if (1..32 * MIB).contains(&size) {
            let mut bytes = std::fs::read(truth).unwrap();
            *bytes.last_mut().unwrap() ^= 0x10;
            std::fs::write(&other, bytes).unwrap();
            disks.push((&other, 1));
        }
        for (disk, status) in disks {
            let words = ["compare", "-f", "raw", "-F", format];
            let outcome = ferry(words.iter().chain(options).chain(&[text(disk), image]));
            sound(&outcome)?;
            if outcome.status.code() != Some(status) {
                return Err(format!("it should end with {status}: {}", told(&outcome)));
            }
        }
        let _ = std::fs::remove_file(other);
        Ok(())
    }
}

/// What was written to `out` must be as in `truth`; it is removed.
fn whole(what: &str, outcome: &Outcome, truth: &Path, out: &str) -> Result<(), String> {
    sound(outcome)?;
    let wrong = |e| format!("{what}: {e}");
    if !outcome.status.success() {
        return Err(wrong(told(outcome)));
    }
    let same = differ(truth, Path::new(out), false).map_err(wrong);
    std::fs::remove_file(out).unwrap();
    same
}

/// An outcome in few words.
pub(crate) fn told(outcome: &Outcome) -> String {
    format!("{}: {}: {}", outcome.status, outcome.stderr.trim(), outcome.command)
}

/// However it ended: neither by a panic nor by a signal.
pub(crate) fn sound(outcome: &Outcome) -> Result<(), String> {
    let code = outcome.status.code();
    if code.is_none_or(|code| code == 101 || code > 128) || outcome.stderr.contains("panicked") {
        return Err(format!("it did not end by itself: {outcome:#?}"));
    }
    Ok(())
}

/// Runs our binary in no more than this many bytes of address space.
pub(crate) fn ferry_in<S: AsRef<std::ffi::OsStr>>(
    limit: u64,
    words: impl IntoIterator<Item = S>,
) -> Outcome {
    let prlimit = peer("prlimit").expect("util-linux");
    measured(program(&prlimit, [format!("--as={limit}")]).arg(diskferry()).args(words))
}

/// Panics with everything that went wrong, by name.
#[track_caller]
pub(crate) fn none_failed(failures: &[String]) {
    assert!(failures.is_empty(), "{} failed:\n{}", failures.len(), failures.join("\n"));
}
