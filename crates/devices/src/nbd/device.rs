//! The device: connections to one export, and how they are shared out.
//!
//! The first connection is made when the device is opened. Further ones, if the server allows them
//! (CAN_MULTI_CONN), are made for lanes as these are asked for, or all at once if that was asked
//! for. Each has at most one lane; operations that come otherwise go where least is under way. A
//! flush on one connection covers them all, or there is only one.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use device::{
    Abilities, BlockSizes, Device, Done, Error, ErrorKind, Extent, Fault, Info, Lane, Operation,
    Outcome, Result, Slice, Wait, ZeroFlags,
};
use wire::{Session, TransmissionFlags as Flags};

use super::connect::{self, Connected};
use super::connection::Connection;
use super::habits::Habits;
use super::lane::NbdLane;
use super::reactor::Reactor;
use super::target::Target;
use crate::OpenOptions;

/// Longest read or write that we send, in bytes: some servers advertise more than they take.
const LONGEST: u32 = 32 << 20;

/// An export of a server.
#[derive(Debug)]
pub(crate) struct NbdDevice {
    info: Info,
    target: Target,
    name: Arc<str>,
    session: Arc<Session>,
    /// Connections at most.
    most: usize,
    connections: Mutex<Vec<Arc<Connection>>>,
    reactor: OnceLock<Reactor>,
    /// Held while the reactor is being started.
    starting: Mutex<()>,
    /// Held while it is decided which connection a lane gets.
    allotting: Mutex<()>,
}

impl NbdDevice {
    pub(crate) fn open(target: Target, options: &OpenOptions) -> Result<Self> {
        let name: Arc<str> = target.uri.to_string().into();
        let first = connect::connect(&target.uri, target.map)?;
        let info = info(&first.session, &name, options);
        if options.write && !options.or_read_only && !info.abilities.write {
            let action = "open for writing: the export is read-only";
            return Err(Error::new(ErrorKind::ReadOnly, Fault::User, action).on(&name));
        }
        let most = if info.abilities.multi_conn { target.connections } else { 1 };
        let first = Arc::new(Connection::new(first, name.clone()));
        let device = Self {
            info,
            name,
            session: first.session().clone(),
            most,
            connections: Mutex::new(vec![first]),
            reactor: OnceLock::new(),
            starting: Mutex::new(()),
            allotting: Mutex::new(()),
            target,
        };
        if device.target.eager {
            for _ in 1..most {
                device.publish(device.connect()?)?;
            }
        }
        Ok(device)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Connection>>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a further connection, to what must be the same export.
    fn connect(&self) -> Result<Arc<Connection>> {
        let connected = connect::connect(&self.target.uri, self.target.map)?;
        check_same(&self.session, &connected).map_err(|e| e.on(&self.name))?;
        Ok(Arc::new(Connection::new(connected, self.name.clone())))
    }

    /// Lets everybody use a connection.
    fn publish(&self, connection: Arc<Connection>) -> Result<()> {
        let mut all = self.lock();
        // Under the lock, so that `reactor` sees it or has been seen.
        if let Some(reactor) = self.reactor.get() {
            reactor.add(&connection)?;
        }
        all.push(connection);
        Ok(())
    }

    /// Starts the reactor, unless it runs.
    fn reactor(&self) -> Result<()> {
        if self.reactor.get().is_some() {
            return Ok(());
        }
        let _one = self.starting.lock().unwrap_or_else(PoisonError::into_inner);
        let all = self.lock();
        if self.reactor.get().is_some() {
            return Ok(());
        }
        let reactor = Reactor::start()?;
        for connection in all.iter() {
            reactor.add(connection)?;
        }
        // Nobody else sets it: we hold `starting`.
        let _ = self.reactor.set(reactor);
        Ok(())
    }

    /// The connection with the least to do. One that is lost is used only if all are, for the
    /// error.
    fn choose(&self) -> Option<Arc<Connection>> {
        let all = self.lock();
        if let [only] = all.as_slice() {
            return Some(only.clone());
        }
        let best = all.iter().filter_map(|c| Some((c.load()?, c))).min_by_key(|(load, _)| *load);
        best.map(|(_, connection)| connection).or(all.first()).cloned()
    }

    fn wait(&self, operation: Operation) -> Result<Outcome> {
        let device: &dyn Device = self;
        device.submit_and_wait(operation)
    }
}

impl Device for NbdDevice {
    fn info(&self) -> &Info {
        &self.info
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let buffer = device::Buffer::zeroed(buf.len());
        match self.wait(Operation::Read { offset, buffer })? {
            Outcome::Read(buffer) if buffer.len() == buf.len() => {
                buf.copy_from_slice(&buffer);
                Ok(())
            }
            _ => Err(defect("read")),
        }
    }

    fn write_at(&self, data: &[u8], offset: u64, fua: bool) -> Result<()> {
        let data = Slice::from(device::Buffer::copy_of(data));
        self.wait(Operation::Write { offset, data, fua }).map(drop)
    }

    fn zero(&self, offset: u64, len: u64, flags: ZeroFlags) -> Result<()> {
        self.wait(Operation::Zero { offset, len, flags }).map(drop)
    }

    fn longest_effect(&self) -> u64 {
        Habits::of(&self.session).effect(&self.session)
    }

    fn trim(&self, offset: u64, len: u64, fua: bool) -> Result<()> {
        self.wait(Operation::Trim { offset, len, fua }).map(drop)
    }

    fn flush(&self) -> Result<()> {
        self.wait(Operation::Flush).map(drop)
    }

    fn prefetch(&self, offset: u64, len: u64) -> Result<()> {
        self.wait(Operation::Prefetch { offset, len }).map(drop)
    }

    fn resolve(&self, offset: u64, len: u64, max: usize, out: &mut Vec<Extent>) -> Result<()> {
        match self.wait(Operation::Resolve { offset, len, max })? {
            Outcome::Extents(mut extents) => {
                out.append(&mut extents);
                Ok(())
            }
            _ => Err(defect("resolve")),
        }
    }

    fn submit(&self, operation: Operation, done: Done) {
        if let Err(e) = self.reactor() {
            return done(Err(e.on(&self.name)));
        }
        match self.choose() {
            Some(connection) => connection.submit(operation, done),
            None => done(Err(defect("submit"))),
        }
    }

    fn lane(&self) -> Result<Option<Box<dyn Lane>>> {
        let _one = self.allotting.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.lock().clone();
        for connection in &now {
            if let Some(lane) = NbdLane::attach(connection)? {
                return Ok(Some(Box::new(lane)));
            }
        }
        if now.len() >= self.most {
            let action = format!("make a lane: all {} connections have one", self.most);
            return Err(Error::new(ErrorKind::Limit, Fault::Us, action).on(&self.name));
        }
        let connection = self.connect()?;
        let lane = NbdLane::attach(&connection)?;
        self.publish(connection)?;
        Ok(lane.map(|lane| Box::new(lane) as Box<dyn Lane>))
    }

    fn lanes(&self) -> usize {
        self.most
    }
}

impl Drop for NbdDevice {
    fn drop(&mut self) {
        for connection in self.lock().drain(..) {
            connection.close();
        }
    }
}

fn defect(what: &str) -> Error {
    Error::new(ErrorKind::Io, Fault::Us, format!("{what}: an answer of the wrong kind; a defect"))
}

fn info(session: &Session, name: &str, options: &OpenOptions) -> Info {
    let offers = |flag| session.flags.contains(flag);
    let write = options.write && !offers(Flags::READ_ONLY);
    let minimum = session.blocks.minimum.max(1);
    let maximum = session.blocks.maximum.min(LONGEST);
    Info {
        name: name.into(),
        description: session.description.clone().unwrap_or_default(),
        size: session.size,
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
            multi_conn: offers(Flags::CAN_MULTI_CONN),
            extents: !session.contexts.is_empty(),
            rotational: offers(Flags::ROTATIONAL),
            discards: false,
            ..Abilities::READ
        },
        wait: Wait::Outside,
        advertised: None,
    }
}

/// Two connections must see one export: otherwise a disk would be put together from two.
fn check_same(first: &Session, further: &Connected) -> Result<()> {
    let further = &further.session;
    let same = first.size == further.size
        && first.flags == further.flags
        && first.mode == further.mode
        && first.blocks == further.blocks
        && first.contexts == further.contexts;
    if same {
        return Ok(());
    }
    let action = "connect again: the server describes the export in another way than before";
    Err(Error::new(ErrorKind::Protocol, Fault::Peer, action))
}
