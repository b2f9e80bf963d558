//! The exports of a server: names, devices, and which clients may use them.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use device::access::Rules;
use device::{Edge, Identity, Info, Peer};
use runtime::{Mutex, RwLock};

use crate::flow::Flow;

/// One device under one name.
#[derive(Clone, Debug)]
pub struct Export {
    /// The name clients ask for; at most 4096 bytes.
    pub name: String,
    /// A sentence for LIST and INFO; empty: the device's own.
    pub description: String,
    /// The device.
    pub edge: Edge,
    /// Refuse writes even if the device takes them.
    pub read_only: bool,
    /// Which clients may use it; for all others it does not exist.
    pub allow: Allowed,
}

/// Which clients may use an export: those that match its rules, or, without rules, all. It may
/// change while the export is served, and then applies to new clients; all clones are one.
#[derive(Clone, Debug, Default)]
pub struct Allowed(Arc<RwLock<InForce>>);

#[derive(Debug, Default)]
struct InForce {
    rules: Option<Rules>,
    /// Those that must mean a client as well.
    also: Option<Rules>,
}

impl Allowed {
    /// These rules; `None`: all clients.
    #[must_use]
    pub fn new(rules: Option<Rules>) -> Self {
        Self(Arc::new(RwLock::new(InForce { rules, also: None })))
    }

    /// From now on these, and no others.
    pub fn change(&self, rules: Option<Rules>) {
        let mut now = self.0.write();
        *now = InForce { rules, also: None };
    }

    /// From now on these as well as those of the last [change](Self::change): for rules that belong
    /// to something else than what is served, which must neither admit further clients nor fail to
    /// refuse some. Returns whether the rules changed.
    pub fn narrow(&self, rules: Option<Rules>) -> bool {
        let mut now = self.0.write();
        now.also = rules;
        now.also != now.rules
    }

    /// What the export is to a client that comes from `peer`, and under TLS has shown to be
    /// `identity`.
    #[must_use]
    pub fn access(&self, peer: &Peer, identity: Option<&Identity>) -> ClientAccess {
        let now = self.0.read();
        let all = [&now.rules, &now.also].into_iter().flatten();
        let mut unmet = all.filter(|rules| !rules.mean(peer, identity)).peekable();
        if unmet.peek().is_none() {
            return ClientAccess::Granted;
        }
        let may_come = identity.is_none() && unmet.all(Rules::look_at_tls);
        if may_come { ClientAccess::NeedsTls } else { ClientAccess::Hidden }
    }
}

/// Whether a client may use an export.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ClientAccess {
    /// It may.
    Granted,
    /// It may be allowed under TLS.
    NeedsTls,
    /// It may not, and is not told that there is one.
    Hidden,
}

/// All exports of a server, which may come and go while it runs. All clones are one.
#[derive(Clone, Debug, Default)]
pub struct Exports(Arc<RwLock<ExportSet>>);

#[derive(Debug, Default)]
struct ExportSet {
    list: Vec<Arc<HeldExport>>,
    default: Option<String>,
}

type AtEnd = Box<dyn FnOnce() + Send>;

/// An export for as long as it is in the list, or a client has it.
pub struct HeldExport {
    export: Export,
    /// What is done when the last client has left, once it is not in the list any more.
    end: Mutex<Option<AtEnd>>,
    /// Those that have it are dismissed, and so is one that gets it just now.
    closed: AtomicBool,
    flow: Flow,
}

runtime::debug_as!(HeldExport, |it| "HeldExport({:?})", it.export);

impl Deref for HeldExport {
    type Target = Export;

    fn deref(&self) -> &Export {
        &self.export
    }
}

impl HeldExport {
    fn of(export: Export) -> Arc<Self> {
        Arc::new(Self {
            export,
            end: Mutex::default(),
            closed: AtomicBool::new(false),
            flow: Flow::default(),
        })
    }

    /// No client may have it any more.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }

    /// What holds up its requests.
    #[must_use]
    pub fn flow(&self) -> &Flow {
        &self.flow
    }

    /// Whether no client may have it any more.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// It has left the list. The device stays until `end` is done.
    fn withdrawn(&self, end: impl FnOnce() + Send + 'static) {
        let edge = self.export.edge.clone();
        *self.end.lock() = Some(Box::new(move || {
            end();
            drop(edge);
        }));
    }
}

impl Drop for HeldExport {
    fn drop(&mut self) {
        // Elsewhere: it may wait for a disk, and this may be a reactor.
        if let Some(end) = self.end.lock().take() {
            let thread = std::thread::Builder::new().name("export-end".into());
            // Without a thread the end of the program does it.
            let _ = thread.spawn(move || runtime::contained("the end of an export", end));
        }
    }
}

impl Exports {
    /// No exports yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an export, for clients that ask for it from then on. Returns false if the name is
    /// taken.
    pub fn add(&self, export: Export) -> bool {
        let mut set = self.0.write();
        if set.list.iter().any(|other| other.name == export.name) {
            return false;
        }
        set.list.push(HeldExport::of(export));
        true
    }

    /// Takes an export out of the list, or puts `instead` in its place, which has the same name.
    /// Clients that have it keep it, and `end` is called, in a thread of its own, when the last of
    /// them has left. Returns it; `None`: there is none of that name.
    pub(crate) fn withdraw(
        &self,
        name: &str,
        instead: Option<Export>,
        end: impl FnOnce() + Send + 'static,
    ) -> Option<Arc<HeldExport>> {
        let mut set = self.0.write();
        let at = set.list.iter().position(|export| export.name == name)?;
        let gone = match instead {
            Some(export) => std::mem::replace(set.list.get_mut(at)?, HeldExport::of(export)),
            None => set.list.remove(at),
        };
        gone.withdrawn(end);
        Some(gone)
    }

    /// Names the export for clients that ask for the empty name. Returns false if there is none of
    /// that name.
    pub fn set_default(&self, name: &str) -> bool {
        let mut set = self.0.write();
        let is_there = set.list.iter().any(|export| export.name == name);
        if is_there {
            set.default = Some(name.to_owned());
        }
        is_there
    }

    /// All of them, in order.
    #[must_use]
    pub fn list(&self) -> Vec<Arc<HeldExport>> {
        self.0.read().list.clone()
    }

    /// The export for a name; the default one for the empty name; for any other name, the one whose
    /// device has names of its own.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<Arc<HeldExport>> {
        let set = self.0.read();
        let found = set.named(name).or_else(|| set.default().filter(|_| name.is_empty()));
        found.or_else(|| set.chosen_by_name()).cloned()
    }

    /// The export under which clients may choose a disk by any name, if there is one.
    #[must_use]
    pub fn chosen_by_name(&self) -> Option<Arc<HeldExport>> {
        self.0.read().chosen_by_name().cloned()
    }
}

impl ExportSet {
    fn named(&self, name: &str) -> Option<&Arc<HeldExport>> {
        self.list.iter().find(|export| export.name == name)
    }

    fn default(&self) -> Option<&Arc<HeldExport>> {
        self.named(self.default.as_deref()?)
    }

    fn chosen_by_name(&self) -> Option<&Arc<HeldExport>> {
        let all = self.default().into_iter().chain(&self.list);
        all.into_iter().find(|export| export.edge.device().is_chosen_by_name())
    }
}

impl Export {
    /// The sentence for a device: the export's own, or the device's.
    #[must_use]
    pub fn described(&self, info: &Info) -> String {
        if self.description.is_empty() {
            info.description.clone()
        } else {
            self.description.clone()
        }
    }

    /// Whether clients may change it.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.read_only || !self.edge.info().abilities.write
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(text: &str) -> Option<Rules> {
        let mut rules = Rules::default();
        rules.add(text).unwrap();
        Some(rules)
    }

    #[test]
    fn rules_that_narrow_open_nothing_and_close_at_once() {
        let unix = Peer::Unix { credentials: None };
        let allowed = Allowed::new(rules("anyunix"));
        let of = |peer: &Peer, identity: Option<&Identity>| allowed.access(peer, identity);
        assert_eq!(
            (of(&unix, None), of(&Peer::Other, None)),
            (ClientAccess::Granted, ClientAccess::Hidden)
        );
        assert!(allowed.narrow(None));
        assert_eq!(
            (of(&unix, None), of(&Peer::Other, None)),
            (ClientAccess::Granted, ClientAccess::Hidden)
        );
        assert!(allowed.narrow(rules("any")));
        assert_eq!(
            (of(&unix, None), of(&Peer::Other, None)),
            (ClientAccess::Granted, ClientAccess::Hidden)
        );
        assert!(allowed.narrow(rules("10.0.0.0/8")));
        assert_eq!(of(&unix, None), ClientAccess::Hidden);
        assert!(allowed.narrow(rules("tls")));
        assert_eq!(
            (of(&unix, None), of(&Peer::Other, None)),
            (ClientAccess::NeedsTls, ClientAccess::Hidden)
        );
        assert_eq!(of(&unix, Some(&Identity::default())), ClientAccess::Granted);
        assert!(!allowed.narrow(rules("anyunix")));
        allowed.change(None);
        assert_eq!(of(&Peer::Other, None), ClientAccess::Granted);
    }
}
