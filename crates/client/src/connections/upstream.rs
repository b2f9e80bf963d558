//! What all users of one export of one server share: the route, and the thread that drives
//! connections for callers that do not drive them themselves.

use runtime::{Context, Mutex, Timers, WorkPool};
use std::sync::Arc;
use std::time::Duration;

use device::Result;
use wire::Framing;

use super::reactor::ClientReactor;
use crate::reach::{ExportSpec, ReadyConnection, Route, connect, persist};

/// An export of a server, and the route to it.
#[derive(Debug)]
pub struct Upstream {
    /// The name in errors.
    pub(crate) name: Arc<str>,
    pub(crate) target: ExportSpec,
    /// Whether the server agreed to extended headers at first.
    extended: bool,
    /// The timers that notice a server's silence, if it has a limit.
    pub(crate) timers: Timers,
    /// The pool in which connections are made that no operation waits for.
    dialling: WorkPool,
    /// The thread, once it was needed.
    reactor: Mutex<Option<Arc<ClientReactor>>>,
    /// Last: a server that we started ends with it.
    route: Route,
}

impl Upstream {
    /// Makes the first connection, trying again as often, or for as long, as the target says. A
    /// command is started.
    ///
    /// # Errors
    /// The server cannot be started or reached, or it refuses.
    pub fn open(target: ExportSpec, context: &Context) -> Result<(Arc<Self>, ReadyConnection)> {
        let (route, first) = persist(&target, || Self::try_to_open(&target))?;
        let upstream = Self {
            name: route.to_string().into(),
            target,
            extended: first.session().mode == Framing::Extended,
            timers: context.timers.clone(),
            // It takes turns with disks, as if it were one.
            dialling: context.pool.for_disk(),
            reactor: Mutex::default(),
            route,
        };
        Ok((Arc::new(upstream), first))
    }

    fn try_to_open(target: &ExportSpec) -> Result<(Route, ReadyConnection)> {
        let route = Route::open(target)?;
        let first = connect(&route, target, None, true)?;
        Ok((route, first))
    }

    /// The server's name, as a user can type it, for errors.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Makes a further connection.
    ///
    /// # Errors
    /// The server cannot be reached, or it refuses.
    pub fn connect(&self) -> Result<ReadyConnection> {
        connect(&self.route, &self.target, None, self.extended)
    }

    /// The same; it may not take longer than `limit` either.
    pub(crate) fn connect_within(&self, limit: Option<Duration>) -> Result<ReadyConnection> {
        connect(&self.route, &self.target, limit, self.extended)
    }

    /// The same on a thread of its own pool, for callers that must not wait.
    pub fn connect_elsewhere(
        self: &Arc<Self>,
        then: impl FnOnce(Arc<Self>, Result<ReadyConnection>) + Send + 'static,
    ) {
        let upstream = self.clone();
        self.elsewhere(move || {
            let connected = upstream.connect();
            then(upstream, connected);
        });
    }

    /// Runs work that may wait for the server.
    pub(crate) fn elsewhere(&self, work: impl FnOnce() + Send + 'static) {
        self.dialling.run(work);
    }

    /// The thread, which is started when it is first asked for.
    pub(crate) fn reactor(&self) -> Result<Arc<ClientReactor>> {
        let mut reactor = self.reactor.lock();
        if let Some(running) = &*reactor {
            return Ok(running.clone());
        }
        Ok(reactor.insert(Arc::new(ClientReactor::start()?)).clone())
    }
}
