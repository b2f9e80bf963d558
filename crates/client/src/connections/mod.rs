//! The connections of one user of an export, and how they are shared out.
//!
//! The first is there from the beginning. Further ones, if the server allows them
//! (CAN_MULTI_CONN), are made for lanes as these are asked for, or all at once if that was asked
//! for. Each has at most one lane; operations that come otherwise go where least is under way. A
//! flush on one connection covers them all, or there is only one.
//!
//! A connection that is lost stays lost until somebody asks for it to be made anew, which is never
//! done in silence: the server may be another one by then.

mod connection;
mod lane;
mod reactor;
mod silence;
mod upstream;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use device::{Done, Error, ErrorKind, Fault, Operation, Result};
use wire::{Session, TransmissionFlags as Flags};

use crate::channel::Habits;
use crate::reach::Connected;
use connection::Connection;
pub use lane::Lane;
pub use upstream::Upstream;

/// The connections. Dropping them says goodbye, and ends what is under way with an error.
#[derive(Debug)]
pub struct Connections {
    upstream: Arc<Upstream>,
    /// How the server described the export at first; this is what was promised to others.
    session: Arc<Session>,
    /// At most so many.
    most: usize,
    /// Never empty.
    list: Mutex<Vec<Arc<Connection>>>,
    /// Whether the reactor looks after those in the list; changed while the list is locked.
    watched: AtomicBool,
    /// Held while it is decided which connection a lane gets.
    allotting: Mutex<()>,
    /// Held while lost ones are made anew; what came of it last.
    reopening: Mutex<Option<Error>>,
    /// How often that was done.
    reopened: AtomicU64,
    /// How often a connection was made while another was lost.
    epoch: AtomicU64,
}

impl Connections {
    /// One to begin with, and all the others if the target says so.
    ///
    /// # Errors
    /// One of the others cannot be made.
    pub fn new(upstream: Arc<Upstream>, first: Connected) -> Result<Self> {
        let several = first.session.flags.contains(Flags::CAN_MULTI_CONN);
        let (target, name) = (&upstream.target, upstream.name.clone());
        let most = if several { target.connections } else { 1 };
        let eager = if target.eager { most } else { 1 };
        let timeout = target.timeout;
        let first = Connection::new(first, name, timeout, &upstream.timers);
        let connections = Self {
            session: first.session().clone(),
            most,
            list: Mutex::new(vec![first]),
            watched: AtomicBool::new(false),
            allotting: Mutex::default(),
            reopening: Mutex::default(),
            reopened: AtomicU64::new(0),
            epoch: AtomicU64::new(0),
            upstream,
        };
        for _ in 1..eager {
            connections.publish(connections.connect()?)?;
        }
        Ok(connections)
    }

    /// Connections at most, which is how many lanes there can be.
    #[must_use]
    pub fn most(&self) -> usize {
        self.most
    }

    /// Longest zero or trim in one request, in bytes, as far as is known from the beginning.
    #[must_use]
    pub fn longest_effect(&self) -> u64 {
        Habits::of(&self.session).effect(&self.session)
    }

    /// Grows whenever a connection was made while another was lost, before anything goes over it.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Connection>>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn called(&self, e: Error) -> Error {
        e.on(&self.upstream.name)
    }

    /// Makes a further connection, to what must be the same export.
    fn connect(&self) -> Result<Arc<Connection>> {
        let connected = self.upstream.connect()?;
        check_same(&self.session, &connected.session).map_err(|e| self.called(e))?;
        let Upstream { name, target, timers, .. } = &*self.upstream;
        Ok(Connection::new(connected, name.clone(), target.timeout, timers))
    }

    /// Sees which connections are lost by now: nobody may have looked at one for a while.
    fn look(&self) {
        let all = self.lock().clone();
        // What ends now calls back, so not under the lock.
        all.iter().for_each(|connection| connection.ready());
    }

    /// Lets everybody use a connection.
    fn publish(&self, connection: Arc<Connection>) -> Result<()> {
        // If the server is another one than it was, it is so by now.
        self.look();
        let mut all = self.lock();
        if self.watched.load(Ordering::Acquire) {
            self.upstream.reactor()?.add(&connection)?;
        }
        if all.iter().any(|c| c.is_over()) {
            self.epoch.fetch_add(1, Ordering::AcqRel);
        }
        all.push(connection);
        Ok(())
    }

    /// Lets the reactor look after all connections, from the first operation on that needs it.
    fn watch(&self) -> Result<()> {
        if self.watched.load(Ordering::Acquire) {
            return Ok(());
        }
        let all = self.lock();
        if !self.watched.load(Ordering::Acquire) {
            let reactor = self.upstream.reactor()?;
            for connection in all.iter() {
                reactor.add(connection)?;
            }
            self.watched.store(true, Ordering::Release);
        }
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

    /// Starts an operation; `done` is called exactly once, from any thread, possibly before this
    /// returns. Ranges must not be longer than the server said it takes.
    pub fn submit(&self, operation: Operation, done: Done) {
        if let Err(e) = self.watch() {
            return done(Err(self.called(e)));
        }
        match self.choose() {
            Some(connection) => connection.submit(operation, done),
            None => {
                let action = "submit: there is no connection; a defect";
                done(Err(self.called(Error::new(ErrorKind::Io, Fault::Us, action))));
            }
        }
    }

    /// A lane on a connection that has none; a new one is made, as long as there may be more.
    /// `None` if that is lost already.
    ///
    /// # Errors
    /// All have one, one is lost (`reopen` makes it anew), or a further one cannot be made.
    pub fn lane(&self) -> Result<Option<Lane>> {
        let _one = self.allotting.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.lock().clone();
        for connection in &now {
            if let Some(lane) = Lane::attach(connection)? {
                return Ok(Some(lane));
            }
        }
        if now.len() >= self.most {
            if now.iter().any(|connection| connection.is_over()) {
                let action = "make a lane: the connection was lost";
                return Err(self.called(Error::new(ErrorKind::Disconnected, Fault::Peer, action)));
            }
            let action = format!("make a lane: all {} connections have one", self.most);
            return Err(self.called(Error::new(ErrorKind::Limit, Fault::Us, action)));
        }
        let connection = self.connect()?;
        let lane = Lane::attach(&connection)?;
        self.publish(connection)?;
        Ok(lane)
    }

    /// Makes lost connections anew. Whoever comes while it is being done shares what comes of it.
    ///
    /// # Errors
    /// The server cannot be reached, or its export is not the one it was.
    pub fn reopen(&self) -> Result<()> {
        let before = self.reopened.load(Ordering::Acquire);
        let mut last = self.reopening.lock().unwrap_or_else(PoisonError::into_inner);
        if self.reopened.load(Ordering::Acquire) == before {
            *last = self.replace_lost().err();
            self.reopened.fetch_add(1, Ordering::Release);
        }
        last.as_ref().map_or(Ok(()), |e| Err(e.duplicate()))
    }

    fn replace_lost(&self) -> Result<()> {
        let lost: Vec<_> = self.lock().iter().filter(|c| c.is_over()).cloned().collect();
        for (i, old) in lost.iter().enumerate() {
            let new = self.connect()?;
            self.look();
            let mut all = self.lock();
            // One that was made anew just now may be lost again, and others have used it.
            if i == 0 || all.iter().any(|c| c.is_over() && !lost.iter().any(|o| Arc::ptr_eq(c, o)))
            {
                self.epoch.fetch_add(1, Ordering::AcqRel);
            }
            if self.watched.load(Ordering::Acquire) {
                self.upstream.reactor()?.add(&new)?;
            }
            match all.iter_mut().find(|c| Arc::ptr_eq(c, old)) {
                Some(place) => *place = new,
                None => all.push(new),
            }
            drop(all);
            // A server that is shutting down may owe answers that nobody would receive now.
            old.close();
        }
        Ok(())
    }
}

impl Drop for Connections {
    fn drop(&mut self) {
        // What this ends may call back, and whoever is called may ask for a connection.
        let all = std::mem::take(&mut *self.lock());
        for connection in all {
            connection.close();
        }
    }
}

/// All connections must see one export, or a disk would be put together from two; and whatever
/// was promised of it to others must stay true. What has a fallback (zeroes, trim, the map) may
/// come and go.
fn check_same(first: &Session, further: &Session) -> Result<()> {
    let promises = [
        (Flags::SEND_FLUSH, "flush"),
        (Flags::SEND_FUA, "FUA"),
        (Flags::CAN_MULTI_CONN, "several connections"),
    ];
    let lost = promises
        .into_iter()
        .find(|(flag, _)| first.flags.contains(*flag) && !further.flags.contains(*flag));
    let read_only = |session: &Session| session.flags.contains(Flags::READ_ONLY);
    // A server tells both or neither, and the same to each connection.
    let told = |text: &Option<String>| text.clone().unwrap_or_default();
    let said_otherwise = [
        ("name", told(&first.canonical_name), told(&further.canonical_name)),
        ("description", told(&first.description), told(&further.description)),
    ]
    .into_iter()
    .find(|(_, was, is)| was != is);
    let said = if first.size != further.size {
        format!("its size was {} and is {} bytes", first.size, further.size)
    } else if read_only(first) != read_only(further) {
        let now = if read_only(further) { "can no longer" } else { "can now" };
        format!("it {now} be written")
    } else if first.blocks.minimum != further.blocks.minimum {
        let (was, is) = (first.blocks.minimum, further.blocks.minimum);
        format!("its smallest block was {was} and is {is} bytes")
    } else if further.max_payload() < first.max_payload() {
        let (was, is) = (first.max_payload(), further.max_payload());
        format!("its longest request was {was} and is {is} bytes")
    } else if let Some((what, was, is)) = said_otherwise {
        format!("its {what} was {was:?} and is {is:?}")
    } else if let Some((_, what)) = lost {
        format!("it no longer has {what}")
    } else {
        return Ok(());
    };
    let action = format!("connect again: the export is not the one it was: {said}");
    Err(Error::new(ErrorKind::Protocol, Fault::Peer, action))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_further_connection_must_see_the_same_export() {
        let first = Session {
            size: 1 << 20,
            canonical_name: Some("disk".into()),
            description: Some("a disk".into()),
            ..Session::default()
        };
        assert!(check_same(&first, &first).is_ok());
        for (other, said) in [
            (Session { size: 1 << 21, ..first.clone() }, "its size was"),
            (Session { canonical_name: Some("disc".into()), ..first.clone() }, "its name was"),
            (Session { canonical_name: None, ..first.clone() }, "its name was"),
            (Session { description: Some("another".into()), ..first.clone() }, "its description"),
        ] {
            let error = check_same(&first, &other).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Protocol);
            assert!(error.to_string().contains(said), "{error}");
        }
    }
}
