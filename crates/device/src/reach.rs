//! What a disk needs of the system beyond its own descriptors: files, the network, other programs.
//! Each kind of device and filter derives it from its parameters, before anything is opened, so
//! that a sandbox can allow that and nothing else.

use std::path::PathBuf;

use programs::{Grant, Program};

use crate::{Params, Serial, text};

/// What is reached, from the moment of opening until the end.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Reach {
    /// Files and directories that are read; of a directory all that is beneath it.
    pub reads: Vec<PathBuf>,
    /// Keys of the kernel's keyrings that are read.
    pub keys: Vec<Serial>,
    /// Files that are read again later, when another file may have the name.
    pub rereads: Vec<PathBuf>,
    /// The same as `reads` for what is read and written, but not created.
    pub writes: Vec<PathBuf>,
    /// Files that are made, opened if they are there, or removed again.
    pub makes: Vec<PathBuf>,
    /// Directories in which files without a name are made.
    pub nameless: Vec<PathBuf>,
    /// Sockets that are made, before clients are served, and removed again.
    pub sockets: Vec<PathBuf>,
    /// Directories in which a directory with a socket is made and removed again, now and later.
    pub privates: Vec<PathBuf>,
    /// Where connections are made to, now and later.
    pub network: Vec<Endpoint>,
    /// Other programs that are started, now and later.
    pub programs: Vec<Program>,
    /// Not known: third-party code runs here, which may need anything.
    pub anything: bool,
}

/// Where connections are made to, as far as the kernel can tell it from elsewhere.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Endpoint {
    /// A Unix socket with a name in the file system.
    Unix,
    /// One with an abstract name.
    Abstract,
    /// A port of a virtual machine or of its host.
    Vsock,
    /// A TCP port; names of hosts are looked up.
    Tcp(u16),
    /// Any host and port: one leads to others.
    Anywhere,
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

    /// The whole network.
    #[must_use]
    pub fn network() -> Self {
        Self::to(Endpoint::Anywhere)
    }

    /// Connections to there.
    #[must_use]
    pub fn to(endpoint: Endpoint) -> Self {
        Self { network: vec![endpoint], ..Self::default() }
    }

    /// Files without a name in this directory.
    #[must_use]
    pub fn nameless(directory: impl Into<PathBuf>) -> Self {
        Self { nameless: vec![directory.into()], ..Self::default() }
    }

    /// The names that a sandboxed process has changed for it.
    #[must_use]
    pub fn grants(&self) -> Vec<Grant> {
        let files = self.makes.iter().cloned().map(Grant::File);
        let rereads = self.rereads.iter().cloned().map(Grant::Reading);
        let nameless = self.nameless.iter().cloned().map(Grant::Nameless);
        let sockets = self.sockets.iter().cloned().map(Grant::Socket);
        let privates = self.privates.iter().cloned().map(Grant::Private);
        files.chain(rereads).chain(nameless).chain(sockets).chain(privates).collect()
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
        self.keys.append(&mut other.keys);
        self.rereads.append(&mut other.rereads);
        self.writes.append(&mut other.writes);
        self.makes.append(&mut other.makes);
        self.nameless.append(&mut other.nameless);
        self.sockets.append(&mut other.sockets);
        self.privates.append(&mut other.privates);
        self.network.append(&mut other.network);
        self.programs.append(&mut other.programs);
        self.anything |= other.anything;
        self
    }
}
