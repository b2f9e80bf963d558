//! What a disk needs of the system beyond its own descriptors: files, the network, other programs. Each kind
//! of device and filter derives it from its parameters, before anything is opened, so that a sandbox can
//! allow that and nothing else.

use std::path::PathBuf;

use programs::Program;

use crate::{Params, text};

/// What is reached, from the moment of opening until the end.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Reach {
    /// Files and directories that are read; of a directory all that is beneath it.
    pub reads: Vec<PathBuf>,
    /// The same for those that are read and written, but not created.
    pub writes: Vec<PathBuf>,
    /// Files that are made, opened if they are there, or removed again; a directory stands for any file in it.
    pub makes: Vec<PathBuf>,
    /// Directories in which sockets are made and removed again, or a directory for one.
    pub sockets: Vec<PathBuf>,
    /// Whether connections are made and names looked up, now and later.
    pub network: bool,
    /// Other programs that are started, now and later.
    pub programs: Vec<Program>,
    /// Not known: third-party code runs here, which may need anything.
    pub anything: bool,
}

/// What a disk is opened for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Use {
    /// Reading.
    Read,
    /// Reading and writing an existing file.
    Write,
    /// Creating it, if it does not exist.
    Make,
}

impl Reach {
    /// Nothing: for the table entry of a kind that lives in memory.
    #[must_use]
    pub fn nothing(_: &Params) -> Self {
        Self::default()
    }

    /// One path, used like that.
    #[must_use]
    pub fn path(path: impl Into<PathBuf>, how: Use) -> Self {
        let paths = vec![path.into()];
        match how {
            Use::Read => Self { reads: paths, ..Self::default() },
            Use::Write => Self { writes: paths, ..Self::default() },
            Use::Make => Self { makes: paths, ..Self::default() },
        }
    }

    /// The files that these parameters name, used like that.
    #[must_use]
    pub fn named(params: &Params, keys: &[&str], how: Use) -> Self {
        let named = keys.iter().filter_map(|key| params.get(key)).filter(|path| !path.is_empty());
        named.map(|path| Self::path(text::path(path), how)).fold(Self::default(), Self::and)
    }

    /// The network.
    #[must_use]
    pub fn network() -> Self {
        Self { network: true, ..Self::default() }
    }

    /// Everything.
    #[must_use]
    pub fn anything() -> Self {
        Self { anything: true, ..Self::network() }
    }

    /// Both.
    #[must_use]
    pub fn and(mut self, mut other: Self) -> Self {
        self.reads.append(&mut other.reads);
        self.writes.append(&mut other.writes);
        self.makes.append(&mut other.makes);
        self.sockets.append(&mut other.sockets);
        self.network |= other.network;
        self.programs.append(&mut other.programs);
        self.anything |= other.anything;
        self
    }
}
