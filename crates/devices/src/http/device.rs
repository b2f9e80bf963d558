//! The device: an object that can be read, opened by asking for its first bytes.
//!
//! The size is that of a range's answer; HEAD is the last try, because a URL signed for GET often
//! forbids it. That range is a long one, whose bytes are kept: they come while the device is in use
//! already, and a reader of the beginning waits for one round trip only.

use std::sync::Arc;
use std::time::Duration;

use device::{
    Abilities, BlockSizes, Device, Done, Error, ErrorKind, Extent, ExtentKind, Fault, Info, Now,
    Operation, Outcome, Result,
};

use super::answer::protocol;
use super::asking::{Answer, Asker};
use super::calling::Trouble;
use super::connection::disconnected;
use super::dial::Dialer;
use super::fetching::{Begun, Filling};
use super::origin::Origin;
use super::params::HttpParams;
use super::pass;
use super::shared::Shared;
use super::window::{CHUNK, ObjectWindow, WINDOW};
use crate::OpenOptions;
use runtime::Bell;

/// Bytes that are requested first: as many as a distant server has in flight at once. Closing the
/// device, or reading elsewhere, does not wait for them.
pub(super) const FIRST: u64 = 8 << 20;

/// An object at a server.
pub(crate) struct HttpDevice {
    info: Info,
    shared: Arc<Shared>,
}

/// The result of the first request.
struct Found {
    size: u64,
    asker: Asker,
    first: First,
    /// The rest comes without ranges, if there is a rest.
    whole: bool,
}

/// The first bytes.
enum First {
    /// They have come.
    Here(Vec<u8>),
    /// This many are announced, and come now.
    Coming(u64),
}

impl HttpDevice {
    /// Opens what is `wanted` by asking for its first `first` bytes, a multiple of a chunk.
    pub(crate) fn open(wanted: HttpParams, options: &OpenOptions, first: u64) -> Result<Self> {
        let name = wanted.name.unwrap_or_else(|| wanted.url.to_string());
        if options.write && !options.or_read_only {
            let action = "open for writing: HTTP is read-only here";
            return Err(Error::new(ErrorKind::ReadOnly, Fault::User, action).on(name));
        }
        let bell = Arc::new(Bell::new().map_err(|e| Error::os("open", e))?);
        let dialer = Arc::new(Dialer::new(wanted.ways, bell.clone()));
        dialer.prepare(&wanted.url)?;
        let origin = Arc::new(Origin::new(wanted.url, wanted.credentials, wanted.manners));
        let asker = Asker::new(origin.clone(), dialer.clone());
        let found = find(asker, first, wanted.retries).map_err(|e| e.on(&name))?;
        origin.pin(found.size, found.asker.validators().clone());
        let parts = (origin, dialer, bell);
        let shared =
            Shared::new(ObjectWindow::new(found.size), wanted.connections, wanted.retries, parts);
        let info = Info {
            abilities: Abilities { flush: true, prefetch: !found.whole, ..Abilities::READ },
            blocks: BlockSizes { preferred: 64 << 10, ..BlockSizes::ANY },
            version: found.asker.validators().version().map(Into::into),
            ..Info::new(name, found.size)
        };
        let device = Self { info, shared };
        device.begin(found, first);
        Ok(device)
    }

    /// Takes what has come, and starts to fetch the rest.
    fn begin(&self, found: Found, first: u64) {
        let (shared, end) = (&self.shared, self.info.size.div_ceil(CHUNK));
        let begun = match found.first {
            First::Here(bytes) if found.whole => return pass::run(shared, found.asker, &bytes),
            First::Coming(_) if found.whole => return pass::run(shared, found.asker, &[]),
            First::Coming(len) => Some(Begun { run: 0..end.min(first / CHUNK), len }),
            First::Here(bytes) => {
                // A partial chunk is requested again.
                let all = bytes.len() as u64 == self.info.size;
                let whole = if all { end } else { bytes.len() as u64 / CHUNK };
                Filling::new(shared, &(0..whole)).take(&bytes);
                None
            }
        };
        shared.begin(found.asker, begun);
    }
}

impl Drop for HttpDevice {
    fn drop(&mut self) {
        self.shared.close();
    }
}

impl Device for HttpDevice {
    fn info(&self) -> &Info {
        &self.info
    }

    fn submit(&self, operation: Operation, done: Done) {
        match operation {
            Operation::Read { offset, buffer } => self.shared.read(offset, buffer, done),
            Operation::Prefetch { offset, len } => {
                self.shared.prefetch(offset, len);
                done(Ok(Outcome::Done));
            }
            Operation::Flush => done(Ok(Outcome::Done)),
            Operation::Resolve { offset, len, .. } => {
                done(Ok(Outcome::Extents(vec![Extent::new(offset, len, ExtentKind::Data)])));
            }
            Operation::Take { .. } => done(Ok(Outcome::Taken(0))),
            Operation::Status { .. } => done(Err(Error::unsupported("status").on(&self.info.name))),
            Operation::Trim { .. } | Operation::Write { .. } | Operation::Zero { .. } => {
                let action = "write: HTTP is read-only here";
                let error = Error::new(ErrorKind::ReadOnly, Fault::User, action);
                done(Err(error.on(&self.info.name)));
            }
        }
    }

    fn now(&self, now: Now<'_>) -> Result<bool> {
        match now {
            Now::Read { offset, buffer } => Ok(self.shared.read_now(offset, buffer)),
            Now::Resolve { offset, len, out, .. } => {
                out.push(Extent::new(offset, len, ExtentKind::Data));
                Ok(true)
            }
            Now::Write { .. } => Ok(false),
        }
    }
}

/// Asks for the object for the first time.
fn find(mut asker: Asker, len: u64, retries: u32) -> Result<Found> {
    let mut failures = 0;
    let mut whole = false;
    loop {
        match find_once(&mut asker, len, &mut whole) {
            Ok(Some((size, first))) => return Ok(Found { size, asker, first, whole }),
            Ok(None) => {}
            Err(trouble) => {
                failures += 1;
                // No server there, or no such host, is reported at once.
                let asked = asker.has_been_answered();
                if !trouble.may_pass || !asked || failures > retries {
                    return Err(trouble.error);
                }
                let doubled = Duration::from_millis(200) * (1 << failures.min(6));
                std::thread::sleep(trouble.wait.unwrap_or(doubled));
            }
        }
    }
}

/// One try: the size, and what came. `None`: the whole object has to be requested.
fn find_once(
    asker: &mut Asker,
    first: u64,
    whole: &mut bool,
) -> std::result::Result<Option<(u64, First)>, Trouble> {
    let lost = |action: &str| Trouble::lasting(protocol(action));
    match asker.ask(0, first, *whole)? {
        Answer::Part(len, Some(size)) if asker.has_length() => Ok(Some((size, First::Coming(len)))),
        Answer::Part(len, size) => {
            let bytes = asker.body(len)?;
            if bytes.len() as u64 != len {
                asker.hang_up();
                let action = "receive the body: its length differs from the announced length";
                return Err(Trouble::passing(disconnected(action)));
            }
            let told = match size {
                Some(size) => Some(size),
                None => asker.size()?,
            };
            let size = told.ok_or_else(|| lost("open: the server does not report the size"))?;
            Ok(Some((size, First::Here(bytes))))
        }
        Answer::Whole(Some(0)) | Answer::Beyond(Some(0)) => {
            asker.hang_up();
            *whole = false;
            Ok(Some((0, First::Here(Vec::new()))))
        }
        Answer::Whole(Some(size)) if i64::try_from(size).is_ok() => {
            *whole = true;
            Ok(Some((size, First::Here(Vec::new()))))
        }
        Answer::Whole(Some(_)) => {
            asker.hang_up();
            Err(lost("open: the server announces more bytes than a disk can have"))
        }
        Answer::Whole(None) => {
            // Only the end shows the size; until then everything must be kept.
            let bytes = asker.body(WINDOW)?;
            if bytes.len() as u64 > WINDOW {
                asker.hang_up();
                let action = "open: the server does not report the size, has no ranges, and sends \
                              more than 40 MiB";
                return Err(lost(action));
            }
            *whole = true;
            Ok(Some((bytes.len() as u64, First::Here(bytes))))
        }
        Answer::Beyond(_) if !*whole => {
            *whole = true;
            Ok(None)
        }
        Answer::Beyond(_) => Err(lost("open: the server has no byte of it")),
    }
}
