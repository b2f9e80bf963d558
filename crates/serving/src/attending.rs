//! Sockets beside those of disks (control, metrics): a thread accepts, and each client has one of
//! its own, so one that is too slow, or stands still, holds up no other.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use device::{Error, Result};
use net::{Listener, Stream};

/// How long to wait when clients cannot be accepted (no descriptors, say).
const TROUBLE: Duration = Duration::from_secs(1);

/// Serves clients that connect to `listener` until the program ends. `admits` is told how many
/// others there are; a panic of `serve` ends only its client.
///
/// # Errors
/// The system gives no thread.
pub(crate) fn attend(
    listener: Listener,
    what: &'static str,
    admits: impl Fn(&Stream, usize) -> bool + Send + 'static,
    serve: impl Fn(Stream) + Send + Sync + 'static,
) -> Result<()> {
    let (serve, clients) = (Arc::new(serve), Arc::new(AtomicUsize::new(0)));
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
            if !admits(&stream, others) {
                continue;
            }
            let serve = serve.clone();
            let client = move || {
                let _counted = counted;
                // Panics have been logged.
                let _ = runtime::contained(what, || serve(stream));
            };
            // Without a thread it is refused.
            let _ = std::thread::Builder::new().name(format!("{what}-client")).spawn(client);
        }
    };
    let thread = std::thread::Builder::new().name(what.into()).spawn(wait);
    thread.map(drop).map_err(|e| Error::os("start a thread", e))
}

/// A client that is counted, until dropped.
struct CountedClient(Arc<AtomicUsize>);

impl Drop for CountedClient {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
