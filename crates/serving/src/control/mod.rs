//! The control socket: exports, clients and bitmaps of a running server are listed and changed.
//!
//! A client sends lines, each a JSON object, and gets a line for each: `{"error": …}`, or what it
//! asked for. With a request that adds a disk it may send the file, open (SCM_RIGHTS): then the
//! server, which may be confined, opens nothing by name. Only the user that the server runs as, and
//! root, are answered (SO_PEERCRED; the socket's file has mode 0600, too). A thread waits for
//! clients, and each has a thread of its own; their number, the length of a line and the time for
//! each are limited. None of this runs on a reactor, and no lock is held while a client is waited
//! for, so a client that holds the socket up holds up no disk.

mod bitmap;
mod flow;
mod hot;
mod received;

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use device::{Error, ErrorKind, Fault, Peer, Result};
use net::{Listener, SocketRights, Stream, Until};
use runtime::RwLock;
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, recvmsg};
use serde_json::{Value, json};

use crate::attending::attend;
use crate::bitmaps::{BitmapStatus, LiveBitmaps};
use crate::metrics::Live;
use crate::{Allowed, Export, Flow, ServerLog};
pub use hot::WantedExport;

/// Clients at a time.
const CLIENTS: usize = 8;
/// Bytes of a line, at most.
const LINE: usize = 64 << 10;
/// How long a client may take for its next line, and again to read the reply.
const WITHIN: Duration = Duration::from_secs(10);

/// An export, as the control socket knows it.
#[derive(Clone, Debug)]
pub struct ControlledExport {
    /// Its name.
    pub name: String,
    /// The name of the disk, for people.
    pub disk: String,
    /// In bytes.
    pub size: u64,
    /// Clients may not change it.
    pub is_read_only: bool,
    /// It is the one for clients that name none.
    pub is_default: bool,
    /// It is attached in this machine, and stays.
    pub is_attached: bool,
    /// Which clients may use it.
    pub allow: Allowed,
    /// It came at the control socket: a configuration does not know of it.
    pub is_typed: bool,
    /// Its bitmaps, where there is a control socket.
    pub bitmaps: Option<LiveBitmaps>,
    /// What is done when it has gone.
    pub end: ExportEnd,
}

/// Opens disks for exports that come while the server runs. Any thread may call it, several at
/// once.
pub trait DiskOpener: Send + Sync {
    /// The export, open; `file` came with the request, and is the disk or the image that it lies
    /// in.
    ///
    /// # Errors
    /// It cannot be opened, or not by this server.
    fn open(&self, wanted: &WantedExport, file: Option<OwnedFd>) -> Result<HotExport>;
}

/// An export that was opened while the server runs.
#[derive(Debug)]
pub struct HotExport {
    /// For clients.
    pub export: Export,
    /// For the control socket.
    pub controlled: ControlledExport,
}

type AtEnd = Arc<dyn Fn() + Send + Sync>;

/// What ends with an export: what was opened for it, below its device.
#[derive(Clone, Default)]
pub struct ExportEnd(Option<AtEnd>);

runtime::debug_as!(ExportEnd);

impl ExportEnd {
    /// `end` is called when no client has the export any more, before its device is closed. It may
    /// wait for a disk.
    #[must_use]
    pub fn new(end: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(end)))
    }

    /// Calls it.
    pub fn run(&self) {
        if let Some(end) = &self.0 {
            end();
        }
    }
}

/// What the control socket is about.
pub struct Controlled {
    /// The exports that there are.
    pub exports: Vec<ControlledExport>,
    /// The server.
    pub live: Live,
    /// Opens more disks.
    pub opener: Box<dyn DiskOpener>,
    /// What is changed is logged here.
    pub log: ServerLog,
}

runtime::debug_as!(Controlled, |it| "Controlled({:?})", it.exports);

/// The exports of a running server, as they come and go: at the control socket, and otherwise.
/// Cheap to clone; all clones are one.
#[derive(Clone)]
pub struct LiveExports(Arc<State>);

runtime::debug_as!(LiveExports, |it| "LiveExports({:?})", it.0.exports);

impl LiveExports {
    /// Those that there are.
    #[must_use]
    pub fn new(about: Controlled) -> Self {
        let Controlled { exports, live, opener, log } = about;
        let (exports, changing) = (RwLock::new(exports), runtime::Mutex::default());
        Self(Arc::new(State { exports, live, opener, log, changing }))
    }

    /// All of them.
    #[must_use]
    pub fn list(&self) -> Vec<ControlledExport> {
        self.0.exports.read().clone()
    }

    /// Serves one more, which `open` opens.
    ///
    /// # Errors
    /// The name is taken, there are too many, or it cannot be opened.
    pub fn add(&self, name: &str, open: impl FnOnce() -> Result<HotExport>) -> Result<()> {
        hot::add_opened(name, open, &self.0).map(drop)
    }

    /// Serves one no longer. Clients that have it keep it.
    ///
    /// # Errors
    /// There is none of that name, or it is attached.
    pub fn remove(&self, name: &str) -> Result<()> {
        hot::remove_named(name, false, &self.0).map(drop)
    }
}

/// What is behind them.
struct State {
    exports: RwLock<Vec<ControlledExport>>,
    live: Live,
    opener: Box<dyn DiskOpener>,
    log: ServerLog,
    /// Held while an export comes or goes.
    changing: runtime::Mutex<()>,
}

/// Opens the socket at `path`, for `user` (`None`: ours) alone.
///
/// # Errors
/// It cannot be made, or is taken.
pub fn listen(path: &Path, user: Option<u32>) -> Result<Listener> {
    Listener::unix_with(path, &SocketRights { mode: Some(0o600), user, group: None })
}

/// Answers clients that connect to `listener`, from a thread of its own until the program ends.
/// What they change is logged.
///
/// # Errors
/// The system gives no thread.
pub fn start(listener: Listener, exports: &LiveExports) -> Result<()> {
    let state = exports.0.clone();
    let admits = |stream: &Stream, others| match refusal(stream, others) {
        None => true,
        Some(why) => {
            // It fits into an empty socket, or the client learns it by the end.
            let _ = stream.send(line(&json!({ "error": why })).as_bytes());
            false
        }
    };
    attend(listener, "control", admits, move |stream| {
        // A client that is too slow, or has gone, is left.
        let _ = serve(&stream, &state);
    })
}

/// Why a client is not answered.
fn refusal(stream: &Stream, others: usize) -> Option<String> {
    let allowed = [rustix::process::geteuid(), rustix::process::Uid::ROOT];
    match stream.peer() {
        Peer::Unix { credentials: Some(theirs) }
            if allowed.iter().any(|uid| uid.as_raw() == theirs.uid) => {}
        _ => return Some("only the user that the server runs as may connect".to_owned()),
    }
    (others >= CLIENTS).then(|| format!("{others} clients are connected already; try again"))
}

fn line(value: &Value) -> String {
    format!("{value}\n")
}

/// Answers a client until it leaves, or takes too long.
fn serve(stream: &Stream, state: &State) -> Result<()> {
    let (mut until, mut held) = (Until::within(WITHIN), Vec::new());
    let (mut piece, mut file) = ([0; 4096], None);
    loop {
        if let Some(end) = held.iter().position(|byte| *byte == b'\n') {
            let request: Vec<u8> = held.drain(..=end).collect();
            let reply = answer(&request, file.take(), state);
            send(stream, line(&reply).as_bytes())?;
            until = Until::within(WITHIN);
            continue;
        }
        if held.len() > LINE {
            let why = format!("a line has more than {LINE} bytes");
            return send(stream, line(&json!({ "error": why })).as_bytes());
        }
        match receive(stream, &mut piece, &mut file) {
            Ok(0) => return Ok(()),
            Ok(n) => held.extend_from_slice(piece.get(..n).unwrap_or_default()),
            Err(Errno::AGAIN | Errno::INTR) => until.readable(stream)?,
            Err(e) => return Err(stream.failure("receive", e)),
        }
        // Also of a client that sends a byte now and then.
        until.left()?;
    }
}

/// Receives bytes, and the file that came with them, if one did. Of several the last one stays.
fn receive(
    stream: &Stream,
    piece: &mut [u8],
    file: &mut Option<OwnedFd>,
) -> rustix::io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = recvmsg(stream, &mut [IoSliceMut::new(piece)], &mut control, received::FLAGS)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(files) = message {
            *file = files.last().or(file.take());
        }
    }
    if let Some(file) = &*file {
        received::keep_to_us(file)?;
    }
    Ok(got.bytes)
}

fn send(stream: &Stream, mut bytes: &[u8]) -> Result<()> {
    let until = Until::within(WITHIN);
    while !bytes.is_empty() {
        match stream.send(bytes).map_err(|e| stream.failure("send", e))? {
            0 => until.writable(stream)?,
            n => bytes = bytes.get(n..).unwrap_or_default(),
        }
    }
    Ok(())
}

/// The reply to a line.
fn answer(request: &[u8], file: Option<OwnedFd>, state: &State) -> Value {
    let done = serde_json::from_slice::<Value>(request)
        .map_err(|e| Error::invalid(format!("a request is a JSON object in a line: {e}")))
        .and_then(|request| run(&request, file, state));
    done.unwrap_or_else(|e| json!({ "error": e.to_string() }))
}

fn run(request: &Value, file: Option<OwnedFd>, state: &State) -> Result<Value> {
    match request.get("command").and_then(Value::as_str) {
        Some("list") => Ok(list(state)),
        Some("bitmap") => bitmap::run(request, &state.exports.read(), &state.log),
        Some("add") => hot::add(request, file, state),
        Some("replace") => hot::replace(request, file, state),
        Some("remove") => hot::remove(request, state),
        Some("clients") => Ok(hot::clients(state)),
        Some("kick") => hot::kick(request, state),
        Some("pause") => flow::pause(request, true, state),
        Some("resume") => flow::pause(request, false, state),
        Some("rate") => flow::limit(request, state),
        Some("metrics") => Ok(json!({ "metrics": state.live.open_metrics(&[]) })),
        Some(other) => Err(Error::invalid(format!("there is no command `{other}`"))),
        None => Err(Error::invalid(
            "a request has a `command`: list, clients, metrics, add, replace, remove, kick, pause, resume, rate or bitmap",
        )),
    }
}

fn list(state: &State) -> Value {
    let exports = state.exports.read().clone();
    let all = exports.iter().map(|export| described(export, &state.live));
    json!({ "exports": all.collect::<Vec<_>>() })
}

/// A word of a request, if it is there.
fn text<'a>(request: &'a Value, key: &str) -> Result<Option<&'a str>> {
    match request.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.as_str())),
        Some(_) => Err(Error::invalid(format!("`{key}` is a string"))),
    }
}

fn unknown(name: &str) -> Error {
    let action = format!("no export is named `{name}`; `list` shows them");
    Error::new(ErrorKind::NotFound, Fault::User, action)
}

/// Something that is so if a request says it.
fn flag(request: &Value, key: &str) -> Result<bool> {
    match request.get(key) {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(value)) => Ok(*value),
        Some(_) => Err(Error::invalid(format!("`{key}` is true or false"))),
    }
}

fn described(export: &ControlledExport, live: &Live) -> Value {
    let held = live.export(&export.name);
    let flow = held.as_ref().map(|held| held.flow());
    let bitmaps = export.bitmaps.as_ref();
    let live = bitmaps.map(LiveBitmaps::list).unwrap_or_default().into_iter().map(|bitmap| {
        let BitmapStatus { name, context, granularity, records, dirty } = bitmap;
        json!({
            "name": name,
            "context": context,
            "granularity": granularity,
            "recording": records,
            "dirty-bytes": dirty,
            "of-the-image": false,
        })
    });
    let own = bitmaps.map(LiveBitmaps::of_the_disk).unwrap_or_default().into_iter();
    let own = own.map(|name| {
        let context = format!("qemu:dirty-bitmap:{name}");
        json!({ "name": name, "context": context, "of-the-image": true })
    });
    json!({
        "name": export.name,
        "disk": export.disk,
        "size": export.size,
        "read-only": export.is_read_only,
        "paused": flow.is_some_and(Flow::is_paused),
        "rate": flow.and_then(Flow::rate),
        "clients": bitmaps.map(LiveBitmaps::clients).unwrap_or_default(),
        "bitmaps": own.chain(live).collect::<Vec<_>>(),
    })
}
