//! The servers, and what they serve.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use blackbox::launch::tcp_address;
use blackbox::run::{Job, ours, run};
use blackbox::socket::Socket;
use blackbox::storage::Mounted;
use blackbox::temp::{TempDir, pattern};
use blackbox::{MIB, index, wait_for};
use rustix::process::Pid;

use super::held::Held;

/// Bytes of each disk.
pub(crate) const SIZE: u64 = 32 * MIB;

/// What is in a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Content {
    /// A pattern that no client can change.
    Fixed,
    /// What clients write.
    Written {
        /// Any request may fail; what it was about then is as it was or as it should be.
        may_fail: bool,
    },
}

/// A kind of server.
#[derive(Debug)]
pub(crate) struct Ground {
    pub(crate) name: &'static str,
    pub(crate) content: Content,
    /// There are clients under TLS, too.
    pub(crate) is_secure: bool,
    /// `None`, after saying so, where it is not to be had.
    pub(crate) prepare: fn() -> Option<Place>,
}

const WRITTEN: Content = Content::Written { may_fail: false };
const FAILING: Content = Content::Written { may_fail: true };

pub(crate) static GROUNDS: &[Ground] = &[
    Ground { name: "memory", content: WRITTEN, is_secure: false, prepare: || Some(memory(&[])) },
    Ground { name: "a file", content: WRITTEN, is_secure: false, prepare: file },
    Ground { name: "a file over TCP", content: WRITTEN, is_secure: false, prepare: tcp },
    Ground {
        name: "a file system that fills up",
        content: FAILING,
        is_secure: false,
        prepare: full,
    },
    Ground { name: "an image", content: Content::Fixed, is_secure: false, prepare: image },
    Ground {
        name: "an image that is written",
        content: WRITTEN,
        is_secure: false,
        prepare: written_image,
    },
    Ground { name: "filters", content: WRITTEN, is_secure: false, prepare: filters },
    Ground { name: "a disk that fails", content: FAILING, is_secure: false, prepare: failing },
    Ground { name: "TLS", content: Content::Fixed, is_secure: true, prepare: secure },
    Ground {
        name: "few descriptors",
        content: WRITTEN,
        is_secure: false,
        prepare: few_descriptors,
    },
    Ground {
        name: "little memory",
        content: WRITTEN,
        is_secure: false,
        prepare: || Some(Place { limit: 32 * MIB, ..memory(&[]) }),
    },
];

/// A disk, and how it is served.
#[derive(Debug)]
pub(crate) struct Place {
    temp: TempDir,
    _mounted: Option<Mounted>,
    words: Vec<String>,
    limit: u64,
    descriptors: Option<u32>,
    is_tcp: bool,
    /// It is the same disk after a restart.
    lasts: bool,
}

/// A key that both sides know.
pub(crate) fn keys(temp: &Path) -> PathBuf {
    temp.join("keys.psk")
}

fn place(words: &[&str]) -> Place {
    Place {
        temp: TempDir::new(),
        _mounted: None,
        words: words.iter().map(|word| (*word).to_owned()).collect(),
        limit: 128 * MIB,
        descriptors: None,
        is_tcp: false,
        lasts: false,
    }
}

fn memory(options: &[&str]) -> Place {
    place(&[options, &["memory", "32M"]].concat())
}

/// The same with a file of this size as its disk.
fn with_file(mut place: Place, at: &Path) -> Place {
    std::fs::File::create(at).unwrap().set_len(SIZE).unwrap();
    place.words.extend(["file".into(), at.to_str().unwrap().into()]);
    place.lasts = true;
    place
}

fn file() -> Option<Place> {
    let place = place(&[]);
    let at = place.temp.join("disk");
    Some(with_file(place, &at))
}

fn tcp() -> Option<Place> {
    Some(Place { is_tcp: true, ..file()? })
}

fn full() -> Option<Place> {
    let mounted = Mounted::new("tmpfs", 12 * MIB)?;
    let place = with_file(place(&[]), &mounted.join("disk"));
    Some(Place { _mounted: Some(mounted), ..place })
}

fn fixed(place: &Place) -> PathBuf {
    place.temp.file("raw", &pattern(0, index(SIZE)))
}

fn image() -> Option<Place> {
    let mut place = place(&["-r", "--format", "qcow2"]);
    let (raw, image) = (fixed(&place), place.temp.join("image"));
    run(ours(["convert", "-f", "raw", "-O", "qcow2"]).arg(raw).arg(&image)).succeeded();
    place.words.extend(["file".into(), image.to_str().unwrap().into()]);
    Some(place)
}

fn written_image() -> Option<Place> {
    let place = place(&["--format", "qcow2"]);
    let image = place.temp.join("image");
    let size = SIZE.to_string();
    run(ours(["create", "-q", "-f", "qcow2"]).arg(&image).arg(size)).succeeded();
    // A server that is killed keeps what was flushed.
    let mut place = Place { lasts: false, ..place };
    place.words.extend(["file".into(), image.to_str().unwrap().into()]);
    Some(place)
}

fn filters() -> Option<Place> {
    let place =
        place(&["--filter=log?logfile=/dev/null", "--filter=cache", "--filter=delay?rdelay=1ms"]);
    let at = place.temp.join("disk");
    // What is in the cache goes with a killed server.
    Some(Place { lasts: false, ..with_file(place, &at) })
}

fn failing() -> Option<Place> {
    Some(memory(&["--filter=error?error-rate=5%"]))
}

fn secure() -> Option<Place> {
    let mut place = place(&["--tls=on", "-r"]);
    let raw = fixed(&place);
    let keys = keys(place.temp.path());
    std::fs::write(&keys, format!("alice:{}\n", "5a".repeat(32))).unwrap();
    place.words.push(format!("--tls-psk={}", keys.display()));
    place.words.extend(["file".into(), raw.to_str().unwrap().into()]);
    Some(place)
}

fn few_descriptors() -> Option<Place> {
    Some(Place { descriptors: Some(64), ..file()? })
}

impl Place {
    pub(crate) fn lasts(&self) -> bool {
        self.lasts
    }

    /// Starts the server, and waits until it can be reached.
    pub(crate) fn start(&self) -> Running {
        let socket = self.temp.join("s");
        let job = Job::start(&mut self.command(&socket));
        let at =
            if self.is_tcp { At::Tcp(tcp_address(&job.first_line())) } else { At::Unix(socket) };
        wait_for("the server is ready", || at.connect().is_some());
        Running { at, job, limit: self.limit, temp: self.temp.path().to_owned() }
    }

    fn command(&self, socket: &Path) -> Command {
        // A handshake must end in time also where the machine has others to run.
        let mut serve =
            ours(["serve", "--log=null", "--handshake-timeout=5", "--max-connections=1500"]);
        serve.arg(format!("--memory-limit={}", self.limit));
        if self.is_tcp {
            serve.args(["--ipaddr=127.0.0.1", "--port=0", "--print-uri"]);
        } else {
            serve.arg("-U").arg(socket);
        }
        serve.args(&self.words);
        let Some(descriptors) = self.descriptors else { return serve };
        let mut limited = Command::new("sh");
        limited.args(["-c", &format!("ulimit -n {descriptors}; exec \"$0\" \"$@\"")]);
        limited.arg(serve.get_program()).args(serve.get_args());
        limited
    }
}

/// Where a server is.
#[derive(Debug, Clone)]
pub(crate) enum At {
    Unix(PathBuf),
    Tcp(SocketAddr),
}

impl At {
    /// A connection, if one is to be had.
    pub(crate) fn connect(&self) -> Option<Socket> {
        match self {
            Self::Unix(path) => Socket::unix(path).ok(),
            Self::Tcp(address) => Socket::tcp(*address).ok(),
        }
    }

    pub(crate) fn uri(&self) -> String {
        match self {
            Self::Unix(path) => format!("nbd+unix:///?socket={}", path.display()),
            Self::Tcp(address) => format!("nbd://{address}/"),
        }
    }
}

/// A server that runs.
#[derive(Debug)]
pub(crate) struct Running {
    at: At,
    job: Job,
    limit: u64,
    temp: PathBuf,
}

impl Running {
    pub(crate) fn pid(&self) -> Pid {
        self.job.pid()
    }

    pub(crate) fn held(&self) -> Held {
        Held::of(self.pid().as_raw_nonzero().get())
    }

    /// What its descriptors lead to.
    pub(crate) fn descriptors(&self) -> Vec<String> {
        Held::names(self.pid().as_raw_nonzero().get())
    }

    pub(crate) fn memory_limit(&self) -> u64 {
        self.limit
    }

    /// The raw disk of a fixed content, and a URI under TLS.
    pub(crate) fn secure(&self) -> (PathBuf, String) {
        let At::Unix(socket) = &self.at else { panic!("on a Unix socket") };
        let (socket, keys) = (socket.display(), keys(&self.temp));
        let uri = format!("nbds+unix://alice@/?socket={socket}&tls-psk-file={}", keys.display());
        (self.temp.join("raw"), uri)
    }

    pub(crate) fn into_parts(self) -> (At, Job) {
        (self.at, self.job)
    }
}

impl std::ops::Deref for Running {
    type Target = At;

    fn deref(&self) -> &At {
        &self.at
    }
}
