//! Opening exports for a connection: from the name that a client asks for to the device that serves
//! it.
//!
//! A device may give each client a device of its own (with an upstream connection, or a number in a
//! log), may take time for that, and may refuse. The handshake asks here; the result is kept until
//! the client chooses the export, so that INFO followed by GO opens it once. Nothing here blocks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use device::{Client, Device, Edge, ErrorKind, Presence, Result};
use runtime::Mutex;
use serving::{ClientAccess, Dismiss, Export, HeldExport, Severity, Voice, quoted};
use wire::constants::BASE_ALLOCATION;
use wire::constants::reply::{ERR_POLICY, ERR_UNKNOWN};
use wire::{BlockConstraints, ExportOffer, OptionRefusal};

use super::Common;
use crate::leavers::PATIENCE;
use crate::link::Link;
use crate::offer::{contexts, enforced, offer};

/// A device's answer, once it is there.
type Awaited<T> = Arc<Mutex<Option<T>>>;
type Answer = Result<Option<Arc<dyn Device>>>;
type Names = Result<Vec<(String, String)>>;

/// Opens exports for one client.
#[derive(Debug)]
pub(super) struct ExportOpener {
    common: Arc<Common>,
    link: Arc<Link>,
    voice: Arc<Voice>,
    presence: Presence,
    chosen: Mutex<Option<Chosen>>,
    /// The list that a device was last asked for, and its answer.
    listed: Mutex<Option<Awaited<Names>>>,
    /// The export is there, but others have to leave first.
    waits_for_leavers: AtomicBool,
}

/// The export that was last asked for, and its device's answer.
struct Chosen {
    name: String,
    export: Arc<HeldExport>,
    since: Instant,
    answer: Awaited<Answer>,
}

impl std::fmt::Debug for Chosen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Chosen({})", self.name)
    }
}

impl ExportOpener {
    pub(super) fn new(common: Arc<Common>, link: Arc<Link>, voice: Arc<Voice>) -> Self {
        Self {
            common,
            link,
            voice,
            presence: Presence::default(),
            chosen: Mutex::default(),
            listed: Mutex::default(),
            waits_for_leavers: AtomicBool::new(false),
        }
    }

    /// The device for the client, and the sizes that bind it, once `open` has succeeded.
    pub(super) fn enter(&self, name: &str) -> Option<(Arc<HeldExport>, Edge, BlockConstraints)> {
        let export = self.granted(name)?;
        let edge = self.edge(name)?.ok()?;
        *self.chosen.lock() = None;
        let sizes = enforced(edge.info());
        Some((export, edge, sizes))
    }

    /// The client is served from now on.
    pub(super) fn entered(&self, export: &Arc<HeldExport>) {
        if !export.is_read_only() {
            self.common.leavers.enter(&export.name, &self.link);
        }
        self.common.hub.present.chose(self.link.client(), export);
        if export.is_closed() {
            // A connection is never refused that.
            let _ = self.link.dismiss();
        }
    }

    /// Forgets what was asked for before TLS: it may not have been this client that asked, and
    /// under TLS it may be allowed more.
    pub(super) fn forget(&self) {
        *self.chosen.lock() = None;
        *self.listed.lock() = None;
    }

    /// Whether this client may use an export, by the identity that it has shown.
    fn access(&self, export: &Export) -> ClientAccess {
        let stream = self.link.stream();
        export.allow.access(&stream.peer(), stream.identity().as_deref())
    }

    /// The export for a name: the one that was asked for last, even if another has its name by now.
    fn found(&self, name: &str) -> Option<Arc<HeldExport>> {
        let chosen = self.chosen.lock();
        let chosen = chosen.as_ref().filter(|chosen| chosen.name == name);
        let chosen = chosen.map(|chosen| chosen.export.clone());
        chosen.or_else(|| self.common.hub.exports.find(name))
    }

    /// The export for a name, if this client may use it.
    fn granted(&self, name: &str) -> Option<Arc<HeldExport>> {
        self.found(name).filter(|export| self.access(export) == ClientAccess::Granted)
    }

    /// The answer for a name that does not exist for this client. It is the one for names that may
    /// exist for it under TLS, as soon as there is one: otherwise clients in clear text could find
    /// out which do.
    fn unknown(&self) -> OptionRefusal {
        let list = self.common.hub.exports.list();
        if list.iter().any(|export| self.access(export) == ClientAccess::NeedsTls) {
            return OptionRefusal::tls_required();
        }
        OptionRefusal::unknown()
    }

    /// Whether the export is there, but others have to leave first.
    pub(super) fn waits_for_leavers(&self) -> bool {
        self.waits_for_leavers.load(Ordering::Relaxed)
    }

    fn must_wait(&self, export: &Export) -> bool {
        let patient = self.chosen.lock().as_ref().is_some_and(|c| c.since.elapsed() < PATIENCE);
        patient && !export.is_read_only() && self.common.leavers.is_anyone_leaving(&export.name)
    }

    /// The device's answer, if it is there.
    fn edge(&self, name: &str) -> Option<Result<Edge>> {
        let chosen = self.chosen.lock();
        let chosen = chosen.as_ref().filter(|c| c.name == name)?;
        let answer = chosen.answer.lock();
        Some(match answer.as_ref()? {
            Ok(Some(device)) => Ok(chosen.export.edge.beside(device.clone())),
            Ok(None) => Ok(chosen.export.edge.clone()),
            Err(e) => Err(e.duplicate()),
        })
    }

    /// The client, as devices see it.
    fn client(&self, name: &str) -> Client {
        Client {
            number: self.link.client(),
            peer: self.link.stream().peer(),
            export: name.to_owned(),
            tls: self.link.stream().identity(),
            presence: self.presence.clone(),
        }
    }

    /// Asks the device with exports of its own for their names.
    fn ask_for_names(&self, export: &Export) {
        let (answer, done) = self.awaited();
        *self.listed.lock() = Some(answer);
        export.edge.device().list(&self.client(""), Box::new(done));
    }

    /// The export whose device has names of its own, if this client may use it.
    fn chosen_by_name(&self) -> Option<Arc<HeldExport>> {
        let export = self.common.hub.exports.chosen_by_name()?;
        (self.access(&export) == ClientAccess::Granted).then_some(export)
    }

    /// Asks the device; its answer may come at once or wake the connection later.
    fn ask(&self, export: &Arc<HeldExport>, name: &str) {
        let (answer, done) = self.awaited();
        let (name, since) = (name.to_owned(), Instant::now());
        let client = self.client(&name);
        let chosen = Chosen { name, export: export.clone(), since, answer };
        *self.chosen.lock() = Some(chosen);
        export.edge.device().connect(&client, Box::new(done));
    }

    /// A place for a device's answer, and what puts it there and wakes the connection.
    fn awaited<T: Send + 'static>(&self) -> (Awaited<T>, impl FnOnce(T) + Send + 'static) {
        let (answer, link) = (Awaited::default(), self.link.clone());
        let place = answer.clone();
        link.begin(0);
        let done = move |told| {
            *place.lock() = Some(told);
            link.ended(0);
        };
        (answer, done)
    }
}

/// The connection is closed.
impl Drop for ExportOpener {
    fn drop(&mut self) {
        self.presence.leave();
    }
}

impl wire::ExportCatalog for ExportOpener {
    fn list(&self) -> std::result::Result<Vec<(String, String)>, OptionRefusal> {
        let list = self.common.hub.exports.list();
        let there = list.iter().filter(|export| self.access(export) == ClientAccess::Granted);
        let named = |e: &Arc<HeldExport>| (e.name.clone(), e.described(e.edge.info()));
        let answer = self.listed.lock().take();
        let names = answer.and_then(|answer| answer.lock().take());
        let (Some(chosen), Some(names)) = (self.chosen_by_name(), names) else {
            return Ok(there.map(named).collect());
        };
        let names = names.map_err(|e| {
            self.voice.event(Severity::Warning, format_args!("list exports: {e}"));
            OptionRefusal::platform(e.without_names())
        })?;
        let others = there.filter(|export| export.name != chosen.name).map(named);
        Ok(names.into_iter().chain(others).collect())
    }

    fn is_listed(&self) -> bool {
        let Some(export) = self.chosen_by_name() else { return true };
        let asked = self.listed.lock().is_some();
        if !asked {
            self.ask_for_names(&export);
        }
        self.listed.lock().as_ref().is_some_and(|answer| answer.lock().is_some())
    }

    fn is_ready(&self, name: &str) -> bool {
        // Each option is about what has the name now.
        let now = self.common.hub.exports.find(name);
        self.chosen
            .lock()
            .take_if(|chosen| now.as_ref().is_none_or(|now| !Arc::ptr_eq(now, &chosen.export)));
        let Some(export) = self.granted(name) else { return true };
        let asked = self.chosen.lock().as_ref().is_some_and(|c| c.name == name);
        if !asked {
            self.ask(&export, name);
        }
        let is_there = self.edge(name).is_some();
        let waits = is_there && self.must_wait(&export);
        self.waits_for_leavers.store(waits, Ordering::Relaxed);
        is_there && !waits
    }

    fn contexts(&self, name: &str) -> std::result::Result<Vec<String>, OptionRefusal> {
        let Some(export) = self.granted(name) else {
            return Ok(vec![BASE_ALLOCATION.to_owned()]);
        };
        // A client's own device, if it has one already; `open` notices if another is needed.
        let own = self.edge(name).and_then(Result::ok);
        if let Some(own) = own {
            return Ok(contexts(own.info()));
        }
        let further = export.edge.device().further_contexts();
        let further = further.into_iter().map(|name| name.as_ref().to_owned());
        Ok(contexts(export.edge.info()).into_iter().chain(further).collect())
    }

    fn open(&self, name: &str) -> std::result::Result<ExportOffer, OptionRefusal> {
        let found = self.found(name).map(|export| (self.access(&export), export));
        let export = match found {
            Some((ClientAccess::Granted, export)) => export,
            Some((ClientAccess::NeedsTls, _)) => return Err(OptionRefusal::tls_required()),
            // Clients that may not use it are not told that it exists.
            Some((ClientAccess::Hidden, _)) => {
                let what = format_args!("the export {} is not for this client", quoted(name));
                self.voice.event(Severity::Warning, what);
                return Err(self.unknown());
            }
            None => {
                let what = format_args!("there is no export {}", quoted(name));
                self.voice.event(Severity::Warning, what);
                return Err(self.unknown());
            }
        };
        match self.edge(name) {
            Some(Ok(edge)) => Ok(offer(&export, name, &edge)),
            Some(Err(e)) => {
                // The client may ask again, and the device may then accept it.
                *self.chosen.lock() = None;
                let what = format_args!("{}: refused: {e}", quoted(name));
                self.voice.event(Severity::Warning, what);
                // The client learns no names of this host.
                let is_unknown = e.kind() == ErrorKind::NotFound;
                let reply = if is_unknown { ERR_UNKNOWN } else { ERR_POLICY };
                Err(OptionRefusal::new(reply, e.without_names()))
            }
            None => Err(OptionRefusal::platform("the export is not ready")),
        }
    }
}
