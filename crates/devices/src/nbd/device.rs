//! The device: one export of a server, for one user of it or for all.
//!
//! Clients of a server of ours share the connections of the device, unless `shared=false` gives
//! each of them its own. Shared, multi-conn can always be advertised: either there is only one
//! connection, on which every client sees what the others did, or the server advertises it, or
//! nothing is changed. Apart, it depends on the server.

use std::num::NonZeroUsize;
use std::sync::Arc;

use client::{Connections, Upstream};
use device::losses::{LossAccount, SeenEpoch};
use device::{
    Abilities, BlockSizes, Client, Connected, Device, Done, Error, ErrorKind, Fault, Info, Lane,
    Operation, Result,
};
use runtime::Context;
use wire::constants::BASE_ALLOCATION;
use wire::{Negotiated, TransmissionFlags as Flags};

use super::params::NbdParams;
use crate::OpenOptions;

/// Longest read or write that we send, in bytes: some servers advertise more than they accept.
const LONGEST: u32 = 32 << 20;

/// An export of a server.
#[derive(Debug)]
pub(crate) struct NbdDevice {
    info: Info,
    upstream: Arc<Upstream>,
    connections: Arc<Connections>,
    /// The account of changes, if it reconnects by itself.
    account: Option<Arc<LossAccount>>,
    wishes: Wishes,
    /// Whether clients get a device like this one for themselves.
    apart: bool,
}

/// The options that the export was opened with.
#[derive(Clone, Copy, Debug)]
struct Wishes {
    write: bool,
    /// All clients use the same connections.
    shared: bool,
}

impl NbdDevice {
    pub(crate) fn open(
        wanted: NbdParams,
        options: &OpenOptions,
        context: &Context,
    ) -> Result<Self> {
        let wishes = Wishes { write: options.write, shared: wanted.shared };
        let (upstream, first) = Upstream::open(wanted.target, context)?;
        let device = Self::new(upstream, first, wishes, !wishes.shared)?;
        if options.write && !options.or_read_only && !device.info.abilities.write {
            let action = "open for writing: the export is read-only";
            return Err(Error::new(ErrorKind::ReadOnly, Fault::User, action).on(&device.info.name));
        }
        Ok(device)
    }

    fn new(
        upstream: Arc<Upstream>,
        first: client::ReadyConnection,
        wishes: Wishes,
        apart: bool,
    ) -> Result<Self> {
        let mut info = info(first.session(), upstream.name(), wishes);
        info.abilities.near = first.is_near();
        let reads = !info.abilities.write;
        let connections = Arc::new(Connections::new(upstream.clone(), first, reads)?);
        let longest_effect = connections.longest_effect();
        let lanes = NonZeroUsize::new(connections.lanes());
        let info = Info { longest_effect, lanes, ..info };
        let accounts = connections.reconnects() && info.abilities.write;
        let account =
            accounts.then(|| Arc::new(LossAccount::new(SeenEpoch::new(connections.epoch()))));
        Ok(Self { info, upstream, connections, account, wishes, apart })
    }

    /// The same for one client more, which is told of its own losses.
    fn beside(&self, account: &LossAccount) -> Self {
        let path = account.path();
        Self {
            info: self.info.clone(),
            upstream: self.upstream.clone(),
            connections: self.connections.clone(),
            account: Some(Arc::new(account.beside(path))),
            wishes: self.wishes,
            apart: false,
        }
    }
}

impl Device for NbdDevice {
    fn info(&self) -> &Info {
        &self.info
    }

    fn submit(&self, operation: Operation, done: Done) {
        self.connections.submit(operation, done, self.account.as_ref());
    }

    fn lane(&self) -> Result<Option<Box<dyn Lane>>> {
        Ok(Some(Box::new(self.connections.lane(self.account.clone())?)))
    }

    fn session(&self) -> Option<&dyn device::Session> {
        Some(self)
    }
}

impl device::Session for NbdDevice {
    fn connect(&self, _client: &Client, done: Connected) {
        if !self.apart {
            let own = self.account.as_ref().map(|account| self.beside(account));
            return done(Ok(own.map(|own| Arc::new(own) as Arc<dyn Device>)));
        }
        let wishes = self.wishes;
        self.upstream.connect_elsewhere(move |upstream, first| {
            // This client gets what the server advertises now.
            let device = first.and_then(|first| Self::new(upstream, first, wishes, false));
            done(device.map(|device| Some(Arc::new(device) as Arc<dyn Device>)));
        });
    }

    fn reopen(&self) -> Result<()> {
        self.connections.reopen()
    }

    fn reconnects(&self) -> bool {
        self.connections.reconnects()
    }

    fn epoch(&self) -> u64 {
        self.connections.epoch()
    }
}

fn info(session: &Negotiated, name: &str, wishes: Wishes) -> Info {
    let offers = |flag| session.flags.contains(flag);
    let write = wishes.write && !offers(Flags::READ_ONLY);
    let minimum = session.blocks.minimum.max(1);
    let maximum = session.blocks.maximum.min(LONGEST);
    let others = session.contexts.iter().filter(|(_, name)| name != BASE_ALLOCATION);
    Info {
        description: session.description.clone().unwrap_or_default(),
        export: session.canonical_name.as_deref().map(Arc::from),
        blocks: BlockSizes {
            minimum,
            preferred: session.blocks.preferred,
            maximum: (maximum - maximum % minimum).max(minimum),
        },
        abilities: Abilities {
            write,
            flush: offers(Flags::SEND_FLUSH) || offers(Flags::READ_ONLY),
            fua: offers(Flags::SEND_FUA),
            trim: write && offers(Flags::SEND_TRIM),
            zero: write && offers(Flags::SEND_WRITE_ZEROES),
            fast_zero: write && offers(Flags::SEND_FAST_ZERO),
            prefetch: offers(Flags::SEND_CACHE),
            multi_conn: wishes.shared || offers(Flags::CAN_MULTI_CONN),
            extents: session.context(BASE_ALLOCATION).is_some(),
            rotational: offers(Flags::ROTATIONAL),
            discards: false,
            ..Abilities::READ
        },
        contexts: others.map(|(_, name)| name.as_str().into()).collect(),
        ..Info::new(name, session.size)
    }
}
