//! The control socket: bitmaps of a running server are listed, started and stopped.
//!
//! A client sends lines, each a JSON object, and gets a line for each: `{"error": …}`, or what it
//! asked for. Only the user that the server runs as, and root, are answered (SO_PEERCRED; the
//! socket's file has mode 0600, too). A thread waits for clients, and each has a thread of its own;
//! their number, the length of a line and the time for each are limited. None of this runs on a
//! reactor, and no lock is held while a client is waited for, so a client that holds the socket up
//! holds up no disk.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use device::{Error, Peer, Result};
use net::{Listener, Received, SocketRights, Stream, Until};
use serde_json::{Value, json};

use crate::bitmaps::{BitmapAction, BitmapStatus, LiveBitmaps, USUAL_GRANULARITY};
use crate::{ServerLog, Severity};

/// Clients at a time.
const CLIENTS: usize = 8;
/// Bytes of a line, at most.
const LINE: usize = 64 << 10;
/// How long a client may take for its next line, and again to read the reply.
const WITHIN: Duration = Duration::from_secs(10);
/// How long to wait when clients cannot be accepted (no descriptors, say).
const TROUBLE: Duration = Duration::from_secs(1);

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
    /// Its bitmaps.
    pub bitmaps: LiveBitmaps,
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
pub fn start(listener: Listener, exports: Vec<ControlledExport>, log: ServerLog) -> Result<()> {
    let (exports, clients) = (Arc::<[_]>::from(exports), Arc::new(AtomicUsize::new(0)));
    let wait = move || {
        loop {
            let stream = match listener.accept() {
                Ok(Some(stream)) => stream,
                Ok(None) => continue,
                Err(_) => {
                    std::thread::sleep(TROUBLE);
                    continue;
                }
            };
            let counted = CountedClient(clients.clone());
            let others = clients.fetch_add(1, Ordering::Relaxed);
            if let Some(why) = refusal(&stream, others) {
                // It fits into an empty socket, or the client learns it by the end.
                let _ = stream.send(line(&json!({ "error": why })).as_bytes());
                continue;
            }
            let (exports, log) = (exports.clone(), log.clone());
            let client = move || {
                let _counted = counted;
                // Panics have been logged.
                let _ = runtime::contained("the control socket", || {
                    // A client that is too slow, or has gone, is left.
                    let _ = serve(&stream, &exports, &log);
                });
            };
            // Without a thread it is refused.
            let _ = std::thread::Builder::new().name("control-client".into()).spawn(client);
        }
    };
    let thread = std::thread::Builder::new().name("control".into()).spawn(wait);
    thread.map(drop).map_err(|e| Error::os("start a thread", e))
}

/// A client that is counted, until dropped.
struct CountedClient(Arc<AtomicUsize>);

impl Drop for CountedClient {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Why a client is not answered.
fn refusal(stream: &Stream, others: usize) -> Option<String> {
    let allowed = [rustix::process::geteuid(), rustix::process::Uid::ROOT];
    match stream.peer() {
        Peer::Unix { credentials: Some(theirs) }
            if allowed.iter().any(|uid| uid.as_raw() == theirs.uid) => {}
        _ => return Some("only the user that the server runs as is answered".to_owned()),
    }
    (others >= CLIENTS).then(|| format!("{others} clients are connected already; try again"))
}

fn line(value: &Value) -> String {
    format!("{value}\n")
}

/// Answers a client until it leaves, or takes too long.
fn serve(stream: &Stream, exports: &[ControlledExport], log: &ServerLog) -> Result<()> {
    let (mut until, mut held) = (Until::within(WITHIN), Vec::new());
    let mut piece = [0; 4096];
    loop {
        if let Some(end) = held.iter().position(|byte| *byte == b'\n') {
            let request: Vec<u8> = held.drain(..=end).collect();
            let reply = answer(&request, exports, log);
            send(stream, line(&reply).as_bytes())?;
            until = Until::within(WITHIN);
            continue;
        }
        if held.len() > LINE {
            let why = format!("a line has more than {LINE} bytes");
            return send(stream, line(&json!({ "error": why })).as_bytes());
        }
        match stream.receive(&mut piece).map_err(|e| stream.failure("receive", e))? {
            Received::Bytes(n) => held.extend_from_slice(piece.get(..n).unwrap_or_default()),
            Received::End => return Ok(()),
            Received::Nothing => until.readable(stream)?,
        }
        // Also of a client that sends a byte now and then.
        until.left()?;
    }
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
fn answer(request: &[u8], exports: &[ControlledExport], log: &ServerLog) -> Value {
    let done = serde_json::from_slice::<Value>(request)
        .map_err(|e| Error::invalid(format!("a request is a JSON object in a line: {e}")))
        .and_then(|request| run(&request, exports, log));
    done.unwrap_or_else(|e| json!({ "error": e.to_string() }))
}

fn run(request: &Value, exports: &[ControlledExport], log: &ServerLog) -> Result<Value> {
    match request.get("command").and_then(Value::as_str) {
        Some("list") => Ok(json!({ "exports": exports.iter().map(described).collect::<Vec<_>>() })),
        Some("bitmap") => bitmap(request, exports, log),
        Some(other) => Err(Error::invalid(format!("there is no command `{other}`"))),
        None => Err(Error::invalid("a request has a `command`: list or bitmap")),
    }
}

fn described(export: &ControlledExport) -> Value {
    let live = export.bitmaps.list().into_iter().map(|bitmap| {
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
    let own = export.bitmaps.of_the_disk().into_iter();
    let own = own.map(|name| {
        let context = format!("qemu:dirty-bitmap:{name}");
        json!({ "name": name, "context": context, "of-the-image": true })
    });
    json!({
        "name": export.name,
        "disk": export.disk,
        "size": export.size,
        "read-only": export.is_read_only,
        "clients": export.bitmaps.clients(),
        "bitmaps": own.chain(live).collect::<Vec<_>>(),
    })
}

fn bitmap(request: &Value, exports: &[ControlledExport], log: &ServerLog) -> Result<Value> {
    let text = |key: &str| match request.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.as_str())),
        Some(_) => Err(Error::invalid(format!("`{key}` is a string"))),
    };
    let flag = |key: &str| match request.get(key) {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(value)) => Ok(*value),
        Some(_) => Err(Error::invalid(format!("`{key}` is true or false"))),
    };
    let granularity = match request.get("granularity") {
        None | Some(Value::Null) => USUAL_GRANULARITY,
        Some(value) => {
            value.as_u64().ok_or_else(|| Error::invalid("`granularity` is a number of bytes"))?
        }
    };
    let action = match text("action")? {
        Some("add") => BitmapAction::Add { granularity, records: !flag("disabled")? },
        Some("clear") => BitmapAction::Clear,
        Some("disable") => BitmapAction::Disable,
        Some("enable") => BitmapAction::Enable,
        Some("remove") => BitmapAction::Remove,
        _ => {
            let action = "`action` is add, remove, enable, disable or clear";
            return Err(Error::invalid(action));
        }
    };
    if flag("persistent")? {
        let action = "a bitmap of a running server is in memory and ends with it; one that stays is \
                      added to the image before it is served (`diskferry bitmap --add`)";
        return Err(Error::unsupported(action));
    }
    let name = text("name")?.ok_or_else(|| Error::invalid("`name` is missing"))?;
    let wanted = text("export")?.unwrap_or_default();
    let by_name = exports.iter().find(|export| export.name == wanted);
    let default = || exports.iter().find(|export| wanted.is_empty() && export.is_default);
    let unknown = || Error::invalid(format!("no export is named `{wanted}`; `list` shows them"));
    let export = by_name.or_else(default).ok_or_else(unknown)?;
    if export.is_read_only && matches!(action, BitmapAction::Add { .. }) {
        let name = match &*export.name {
            "" => "the default export".to_owned(),
            name => format!("the export `{name}`"),
        };
        return Err(Error::invalid(format!("{name} is read-only: nothing is written")));
    }
    export.bitmaps.act(name, action)?;
    let what = format_args!("export `{}`: bitmap `{name}`: {action:?}", export.name);
    log.event(Severity::Info, None, None, what);
    Ok(json!({ "export": export.name, "name": name }))
}
