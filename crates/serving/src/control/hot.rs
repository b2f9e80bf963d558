//! Exports that come and go while the server runs, and clients that are sent away.
//!
//! A new disk is open, and locked, before a client can ask for it. One that is removed or replaced
//! is not found by new clients from then on; those that have it keep it, unless they are to be sent
//! away, and it is closed when the last of them has left. Nobody else is disconnected.

use std::os::fd::OwnedFd;

use device::{Error, ErrorKind, Fault, Result};
use serde_json::{Value, json};

use super::{ControlledExport, HotExport, State, flag, text, unknown};
use crate::Severity;
use crate::present::ClientStatus;

/// Exports at a time.
const EXPORTS: usize = 10_000;
/// Bytes of a name, as NBD has it.
const NAME: usize = 4096;

/// An export that is wanted.
#[derive(Clone, Debug, Default)]
pub struct WantedExport {
    /// Its name.
    pub name: String,
    /// The disk, as it was named.
    pub disk: String,
    /// Its format; its bytes are the disk without one.
    pub format: Option<String>,
    /// Filters over it.
    pub filters: Vec<String>,
    /// A sentence about it.
    pub description: Option<String>,
    /// Which clients may use it, as after `--allow NAME=`.
    pub allow: Option<String>,
    /// Clients may not change it.
    pub read_only: bool,
}

impl WantedExport {
    fn of(request: &Value) -> Result<Self> {
        let word = |key| text(request, key);
        let missing = |key| move || Error::invalid(format!("`{key}` is missing"));
        let filters = match request.get("filters") {
            None | Some(Value::Null) => Some(Vec::new()),
            Some(Value::Array(all)) => {
                all.iter().map(|one| one.as_str().map(str::to_owned)).collect()
            }
            Some(_) => None,
        };
        let name = word("name")?.ok_or_else(missing("name"))?;
        if name.len() > NAME {
            return Err(Error::invalid(format!("a name has at most {NAME} bytes")));
        }
        Ok(Self {
            name: name.to_owned(),
            disk: word("disk")?.ok_or_else(missing("disk"))?.to_owned(),
            format: word("format")?.map(str::to_owned),
            filters: filters.ok_or_else(|| Error::invalid("`filters` is a list of strings"))?,
            description: word("description")?.map(str::to_owned),
            allow: word("allow")?.map(str::to_owned),
            read_only: flag(request, "read-only")?,
        })
    }
}

/// Serves one more disk.
pub(super) fn add(request: &Value, file: Option<OwnedFd>, state: &State) -> Result<Value> {
    let wanted = WantedExport::of(request)?;
    let size = add_opened(&wanted.name, || state.opener.open(&wanted, file), state)?;
    Ok(json!({ "export": wanted.name, "size": size }))
}

/// Serves what `open` opens; its size, in bytes.
pub(super) fn add_opened(
    name: &str,
    open: impl FnOnce() -> Result<HotExport>,
    state: &State,
) -> Result<u64> {
    let _alone = state.changing.lock();
    let taken =
        || Error::invalid(format!("add `{name}`: there is an export of that name; replace it"));
    {
        let exports = state.exports.read();
        if exports.iter().any(|export| export.name == name) {
            return Err(taken());
        }
        if exports.len() >= EXPORTS {
            return Err(Error::invalid(format!("there are {EXPORTS} exports already")));
        }
    }
    let HotExport { export, controlled } = open()?;
    if !state.live.add(export) {
        controlled.end.run();
        return Err(taken());
    }
    log(state, name, format_args!("added: {}", controlled.disk));
    let size = controlled.size;
    state.exports.write().push(controlled);
    Ok(size)
}

/// Serves another disk under a name.
pub(super) fn replace(request: &Value, file: Option<OwnedFd>, state: &State) -> Result<Value> {
    let (wanted, now) = (WantedExport::of(request)?, flag(request, "now")?);
    let _alone = state.changing.lock();
    let old = found(&wanted.name, state)?;
    let HotExport { export, controlled } = state.opener.open(&wanted, file)?;
    let controlled = ControlledExport { is_default: old.is_default, ..controlled };
    let unused = controlled.end.clone();
    let clients = state.live.withdraw(&wanted.name, (Some(export), now), ended(&old, state));
    let Some(clients) = clients else {
        unused.run();
        return Err(unknown(&wanted.name));
    };
    log(state, &wanted.name, format_args!("replaced: {}, not {}", wanted.disk, old.disk));
    let reply = json!({ "export": wanted.name, "size": controlled.size, "clients": clients });
    let mut exports = state.exports.write();
    if let Some(place) = exports.iter_mut().find(|export| export.name == wanted.name) {
        *place = controlled;
    }
    Ok(reply)
}

/// Serves a disk no longer.
pub(super) fn remove(request: &Value, state: &State) -> Result<Value> {
    let name = text(request, "name")?.ok_or_else(|| Error::invalid("`name` is missing"))?;
    let clients = remove_named(name, flag(request, "now")?, state)?;
    Ok(json!({ "export": name, "clients": clients }))
}

/// The same by its name; how many clients have it.
pub(super) fn remove_named(name: &str, now: bool, state: &State) -> Result<usize> {
    let _alone = state.changing.lock();
    let old = found(name, state)?;
    let clients = state.live.withdraw(name, (None, now), ended(&old, state));
    let clients = clients.ok_or_else(|| unknown(name))?;
    log(state, name, format_args!("removed; {clients} clients use it"));
    state.exports.write().retain(|export| export.name != name);
    Ok(clients)
}

/// All clients.
pub(super) fn clients(state: &State) -> Value {
    let told = |client: ClientStatus| {
        let ClientStatus { number, address, export, age, requests, errors, read, written } = client;
        json!({
            "client": number,
            "address": address,
            "export": export,
            "seconds": age.as_secs(),
            "requests": requests,
            "errors": errors,
            "bytes-read": read,
            "bytes-written": written,
        })
    };
    json!({ "clients": state.live.clients().into_iter().map(told).collect::<Vec<_>>() })
}

/// Sends a client away.
pub(super) fn kick(request: &Value, state: &State) -> Result<Value> {
    let number = request.get("client").and_then(Value::as_u64);
    let number =
        number.ok_or_else(|| Error::invalid("`client` is a number; `clients` has them"))?;
    let unknown = || {
        let action = format!("no client has the number {number}; `clients` shows them");
        Error::new(ErrorKind::NotFound, Fault::User, action)
    };
    state.live.dismiss(number).ok_or_else(unknown)??;
    state.log.event(Severity::Info, None, None, format_args!("client {number} is disconnected"));
    Ok(json!({ "client": number }))
}

/// The export of this name, which may go.
fn found(name: &str, state: &State) -> Result<ControlledExport> {
    let exports = state.exports.read();
    let found = exports.iter().find(|export| export.name == name).ok_or_else(|| unknown(name))?;
    if found.is_attached {
        let action = format!("`{name}` is attached on this machine: detach it first");
        return Err(Error::new(ErrorKind::Locked, Fault::User, action));
    }
    Ok(found.clone())
}

/// What is done when an export has gone.
fn ended(old: &ControlledExport, state: &State) -> impl FnOnce() + Send + 'static {
    let (name, end, log) = (old.name.clone(), old.end.clone(), state.log.clone());
    move || {
        end.run();
        log.event(Severity::Info, None, None, format_args!("export `{name}`: closed"));
    }
}

fn log(state: &State, name: &str, what: std::fmt::Arguments<'_>) {
    state.log.event(Severity::Info, None, None, format_args!("export `{name}`: {what}"));
}
