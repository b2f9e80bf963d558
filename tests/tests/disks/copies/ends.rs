//! What is copied from and to: each kind of end, created for each copy.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use blackbox::dice::Dice;
use blackbox::launch::{Serve, Server};
use blackbox::peers::{diskferry, find};
use blackbox::session::Mode;
use blackbox::storage::Loop;
use blackbox::temp::TempDir;

/// A kind of end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A file; as a target one that is not there.
    File,
    /// As a target: a file that is there, with other bytes.
    Old,
    Block,
    Ours,
    /// Ours, whose disk fails at times.
    OursFaulty,
    /// Ours, with errors of its own.
    OursError,
    Memory,
    Nbdkit,
    NbdkitError,
    Qemu,
    Pattern,
    Null,
}

pub(crate) const SOURCES: &[Kind] = &[
    Kind::File,
    Kind::File,
    Kind::Block,
    Kind::Ours,
    Kind::OursFaulty,
    Kind::OursError,
    Kind::Nbdkit,
    Kind::NbdkitError,
    Kind::Qemu,
    Kind::Pattern,
    Kind::Null,
];

pub(crate) const TARGETS: &[Kind] = &[
    Kind::File,
    Kind::File,
    Kind::Old,
    Kind::Old,
    Kind::Block,
    Kind::Ours,
    Kind::OursFaulty,
    Kind::OursError,
    Kind::Memory,
    Kind::Nbdkit,
    Kind::NbdkitError,
    Kind::Qemu,
];

impl Kind {
    /// Whether its size is a whole number of sectors.
    pub(crate) fn has_sectors(self) -> bool {
        matches!(self, Self::Block | Self::Qemu)
    }

    /// Whether it fails at times by itself.
    pub(crate) fn is_faulty(self) -> bool {
        matches!(self, Self::OursFaulty | Self::OursError | Self::NbdkitError)
    }
}

/// An end that is there.
#[derive(Debug)]
pub(crate) struct End {
    /// As the command line names it.
    pub(crate) word: String,
    /// The file below it.
    pub(crate) file: Option<PathBuf>,
    server: Option<Server>,
    _block: Option<Loop>,
}

impl End {
    /// Makes one in a directory, with this content if it is there before the copy. `None` where
    /// something is missing here.
    pub(crate) fn new(
        kind: Kind,
        directory: &Path,
        content: &[u8],
        dice: &mut Dice,
    ) -> Option<Self> {
        let path = directory.join("disk");
        let text = path.display().to_string();
        let mut end =
            Self { word: text.clone(), file: Some(path.clone()), server: None, _block: None };
        match kind {
            Kind::Pattern | Kind::Null => {
                end.file = None;
                let name = if kind == Kind::Null { "null" } else { "pattern" };
                end.word = format!("{name}:{}", content.len());
                return Some(end);
            }
            Kind::Memory => {
                end.file = None;
                let server = Serve::device(["memory", &content.len().to_string()]).start();
                if content.iter().any(|byte| *byte != 0) {
                    let mut session = server.session(Mode::Extended, "");
                    session.write(0, content);
                    session.disconnect();
                }
                end.server = Some(server);
            }
            _ => write(&path, content, dice),
        }
        match kind {
            Kind::Block => {
                let block = Loop::over(&path, &[])?;
                end.word = block.path().display().to_string();
                end._block = Some(block);
            }
            Kind::Ours => end.server = Some(Serve::file(&path).start()),
            Kind::OursError => {
                let what = dice.pick(&["pread", "pwrite", "zero", "extents", "trim"]);
                let error = dice.pick(&["EIO", "ENOSPC"]);
                let filter = format!("--filter=error?error-{what}-rate=8%&error={error}");
                end.server = Some(Serve::file(&path).option(filter).start());
            }
            Kind::OursFaulty => end.server = Some(faulty(&path, directory, dice)),
            Kind::Nbdkit => end.server = Some(Server::nbdkit(&find("nbdkit")?, &["file", &text])),
            Kind::NbdkitError => {
                let what = dice.pick(&["pread", "pwrite", "zero", "extents", "trim"]);
                let rate = format!("error-{what}-rate=8%");
                let words = ["--filter=error", "file", &text, &rate];
                end.server = Some(Server::nbdkit(&find("nbdkit")?, &words));
            }
            Kind::Qemu => end.server = Some(Server::qemu_nbd(&find("qemu-nbd")?, "raw", &path)),
            _ => {}
        }
        if let Some(server) = &end.server {
            end.word = server.uri("");
        }
        Some(end)
    }

    /// What it holds now; none if it is a file that is not there.
    pub(crate) fn content(&self) -> Option<Vec<u8>> {
        match (&self.file, &self.server) {
            (Some(file), _) => std::fs::read(file).ok(),
            (None, Some(server)) => {
                let mut session = server.session(Mode::Extended, "");
                let content = session.read(0, session.export.size).unwrap();
                session.disconnect();
                Some(content)
            }
            (None, None) => None,
        }
    }
}

/// The bytes of a `pattern` disk.
pub(crate) fn pattern(size: usize) -> Vec<u8> {
    let numbers = (0_u64..).step_by(8).flat_map(u64::to_be_bytes);
    numbers.take(size).collect()
}

/// Runs of random bytes, of zeroes and of holes to be.
pub(crate) fn random(size: usize, dice: &mut Dice) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(size);
    while bytes.len() < size {
        let len = dice.pick(&[1, 511, 512, 4096, 5000, 16 << 10, 65_536, 100_000, 700_000]);
        let len = len.min(size - bytes.len());
        if dice.percent(50) {
            bytes.extend(std::iter::repeat_n(0, len));
        } else {
            let mut number = dice.number() | 1;
            bytes.extend(
                std::iter::repeat_with(|| {
                    number = number.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                    number.to_be_bytes()[0]
                })
                .take(len),
            );
        }
    }
    bytes
}

/// Writes a file, with holes for some of its zeroes.
fn write(path: &Path, content: &[u8], dice: &mut Dice) {
    let file = File::create(path).unwrap();
    file.set_len(u64::try_from(content.len()).unwrap()).unwrap();
    for (i, block) in content.chunks(32 << 10).enumerate() {
        if block.iter().any(|byte| *byte != 0) || dice.percent(30) {
            file.write_all_at(block, u64::try_from(i << 15).unwrap()).unwrap();
        }
    }
    if dice.percent(50) {
        file.sync_all().unwrap();
    }
}

/// Our server, some of whose system calls on the disk fail.
fn faulty(path: &Path, directory: &Path, dice: &mut Dice) -> Server {
    let temp = TempDir::new();
    let socket = temp.join("s");
    let mut command = Command::new(env!("CARGO_BIN_EXE_faulty"));
    command.arg(dice.below(1 << 30).to_string());
    for (call, faults) in [
        ("pread64", &["EIO@8%", "EINTR@20%", "short@30%", "EIO@9+"][..]),
        ("preadv2", &["EIO@8%", "EAGAIN@30%", "EOPNOTSUPP@1+"]),
        ("pwrite64", &["EIO@8%", "ENOSPC@8+", "EINTR@20%", "short@30%", "ENOSPC@3"]),
        ("fallocate", &["EIO@8%", "ENOSPC@3+", "EINTR@20%", "EOPNOTSUPP@2+"]),
        ("fdatasync", &["EIO@1", "EIO@40%", "ENOSPC@1"]),
        ("sendfile", &["short@30%", "EIO@9%", "EAGAIN@30%"]),
        ("lseek", &["EIO@10%", "EINVAL@10%"]),
    ] {
        if dice.percent(35) {
            command.arg(format!("{call}={}:{}", dice.pick(faults), directory.display()));
        }
    }
    command.arg("--").arg(diskferry()).args(Serve::file(path).arguments(&socket));
    Server::start(command, temp, socket)
}
