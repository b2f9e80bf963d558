//! What all who use one export of one server have in common: the way there, and the thread that
//! drives connections for those who do not drive them themselves.

use runtime::{Context, Timers, WorkPool};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use device::{Error, ErrorKind, Fault, Result};

use super::connect::{self, Connected};
use super::dial::Until;
use super::reactor::Reactor;
use super::route::Route;
use super::target::Target;

/// How long after a failure the first connection is tried again.
const PAUSE: Duration = Duration::from_secs(1);

/// An export of a server.
#[derive(Debug)]
pub(crate) struct Upstream {
    /// The name that errors bear.
    pub(crate) name: Arc<str>,
    pub(crate) target: Target,
    /// Whether it will be written.
    pub(crate) write: bool,
    /// Where a server's silence is noticed, if it has a limit.
    pub(crate) timers: Timers,
    /// Where connections are made that nobody may wait for.
    pub(crate) dialling: WorkPool,
    reactor: OnceLock<Reactor>,
    /// Held while the reactor is being started.
    starting: Mutex<()>,
    /// Last: the server may be ours, and ends with it.
    route: Route,
}

impl Upstream {
    /// Makes the first connection, trying again as often as the target says.
    pub(crate) fn open(
        target: Target,
        write: bool,
        context: &Context,
    ) -> Result<(Self, Connected)> {
        let mut left = target.retries;
        let (route, first) = loop {
            match Self::try_to_open(&target) {
                Ok(opened) => break opened,
                Err(e) if left > 0 && is_worth_another(&e) => {
                    left -= 1;
                    std::thread::sleep(PAUSE);
                }
                Err(e) => return Err(e),
            }
        };
        let upstream = Self {
            name: route.to_string().into(),
            target,
            write,
            timers: context.timers.clone(),
            // It takes turns with disks, as one of them.
            dialling: context.pool.for_disk(),
            reactor: OnceLock::new(),
            starting: Mutex::default(),
            route,
        };
        Ok((upstream, first))
    }

    fn try_to_open(target: &Target) -> Result<(Route, Connected)> {
        let route = Route::open(&target.server)?;
        let first = connect(&route, target)?;
        Ok((route, first))
    }

    /// Makes a further connection.
    pub(crate) fn connect(&self) -> Result<Connected> {
        connect(&self.route, &self.target)
    }

    /// The thread, which is started when it is first asked for.
    pub(crate) fn reactor(&self) -> Result<&Reactor> {
        if let Some(reactor) = self.reactor.get() {
            return Ok(reactor);
        }
        let _one = self.starting.lock().unwrap_or_else(PoisonError::into_inner);
        if self.reactor.get().is_none() {
            // Nobody else sets it: we hold `starting`.
            let _ = self.reactor.set(Reactor::start()?);
        }
        self.reactor.get().ok_or_else(|| {
            let action = "start the thread of the client: it is not there; a defect";
            Error::new(ErrorKind::Io, Fault::Us, action)
        })
    }
}

fn connect(route: &Route, target: &Target) -> Result<Connected> {
    connect::connect(route, &target.export, target.map, Until::within(target.timeout))
}

/// Whether the next attempt may end in another way: what we were asked for does not change.
fn is_worth_another(e: &Error) -> bool {
    !matches!(
        (e.kind(), e.fault()),
        (ErrorKind::InvalidInput | ErrorKind::Unsupported, Fault::User)
    )
}
