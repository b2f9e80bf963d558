//! A bad network between a client and a server: a proxy that cuts, stalls, truncates, delays and
//! slows what passes, where the test says, and is down while the test says so.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use rustix::net::{Shutdown, shutdown};

use crate::index;
use crate::temp::TempDir;

/// What happens to a stream of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Both ways end.
    Cut,
    /// This way ends, as if the sender had ended it; the other goes on until its sender ends.
    Truncate,
    /// Nothing passes this way for so long.
    Stall(Duration),
    /// Nothing passes this way any more, and without a sign of it.
    StallForEver,
    /// From here on each piece is so late.
    Delay(Duration),
    /// From here on this many bytes pass in a millisecond.
    Cap(usize),
}

/// A fault, and where it happens.
#[derive(Debug, Clone, Copy)]
pub struct Mishap {
    /// On the way from the client to the server, or back.
    pub to_server: bool,
    /// After this many bytes have passed in that direction.
    pub after: u64,
    /// What happens.
    pub fault: Fault,
}

/// The two ends of a connection that passes.
struct Passing {
    client: OwnedFd,
    server: OwnedFd,
    gone: AtomicBool,
    /// How many of its two ways have ended by themselves.
    ended: AtomicUsize,
}

impl Passing {
    fn cut(&self) {
        self.gone.store(true, SeqCst);
        for end in [&self.client, &self.server] {
            let _ = shutdown(end, Shutdown::Both);
        }
    }
}

struct Shared {
    upstream: PathBuf,
    plan: Box<dyn Fn(usize) -> Vec<Mishap> + Send + Sync>,
    passing: Mutex<Vec<Arc<Passing>>>,
    numbers: AtomicUsize,
    count: AtomicUsize,
    down: AtomicBool,
    stop: AtomicBool,
}

/// The proxy. It ends when it is dropped, and all connections with it.
pub struct Meddler {
    shared: Arc<Shared>,
    socket: PathBuf,
    address: SocketAddr,
    _temp: TempDir,
}

impl std::fmt::Debug for Meddler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Meddler").field("socket", &self.socket).finish_non_exhaustive()
    }
}

impl Meddler {
    /// In front of the server on the Unix socket `upstream`. `plan` says what happens to each
    /// connection, by its number. Clients reach it by a Unix socket and by TCP.
    pub fn start(
        upstream: &Path,
        plan: impl Fn(usize) -> Vec<Mishap> + Send + Sync + 'static,
    ) -> Self {
        let temp = TempDir::new();
        let socket = temp.join("m");
        let unix = UnixListener::bind(&socket).unwrap();
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = tcp.local_addr().unwrap();
        let shared = Arc::new(Shared {
            upstream: upstream.to_owned(),
            plan: Box::new(plan),
            passing: Mutex::default(),
            numbers: AtomicUsize::new(0),
            count: AtomicUsize::new(0),
            down: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        });
        let (one, other) = (Arc::clone(&shared), Arc::clone(&shared));
        thread::spawn(move || {
            accept(&one, unix.incoming().map_while(Result::ok).map(OwnedFd::from))
        });
        thread::spawn(move || {
            accept(&other, tcp.incoming().map_while(Result::ok).map(OwnedFd::from))
        });
        Self { shared, socket, address, _temp: temp }
    }

    /// One that does nothing by itself.
    pub fn honest(upstream: &Path) -> Self {
        Self::start(upstream, |_| Vec::new())
    }

    /// The URI of an export, by the Unix socket.
    pub fn uri(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.socket.display())
    }

    /// The same by TCP.
    pub fn tcp_uri(&self, export: &str) -> String {
        format!("nbd://{}/{export}", self.address)
    }

    /// How many connections there were; each can be cut.
    pub fn count(&self) -> usize {
        self.shared.count.load(SeqCst)
    }

    /// How many there are now.
    pub fn now(&self) -> usize {
        let passing = self.shared.passing.lock().unwrap();
        passing.iter().filter(|one| !one.gone.load(SeqCst)).count()
    }

    /// Cuts the connection that came `number`-th of those that there are; whether there was one.
    pub fn cut(&self, number: usize) -> bool {
        let mut passing = self.shared.passing.lock().unwrap();
        passing.retain(|one| !one.gone.load(SeqCst));
        passing.get(number).is_some_and(|one| {
            one.cut();
            true
        })
    }

    /// Cuts all connections, and turns new ones away until `up`.
    pub fn down(&self) {
        self.shared.down.store(true, SeqCst);
        self.shared.passing.lock().unwrap().drain(..).for_each(|one| one.cut());
    }

    /// Lets connections pass again.
    pub fn up(&self) {
        self.shared.down.store(false, SeqCst);
    }
}

impl Drop for Meddler {
    fn drop(&mut self) {
        self.shared.stop.store(true, SeqCst);
        self.down();
        // Wakes the acceptors up.
        let _ = UnixStream::connect(&self.socket);
        let _ = std::net::TcpStream::connect(self.address);
    }
}

fn accept(shared: &Arc<Shared>, clients: impl Iterator<Item = OwnedFd>) {
    for client in clients {
        if shared.stop.load(SeqCst) {
            return;
        }
        if shared.down.load(SeqCst) {
            continue;
        }
        let Ok(server) = UnixStream::connect(&shared.upstream) else { continue };
        let plan = (shared.plan)(shared.numbers.fetch_add(1, SeqCst));
        let (gone, ended) = (AtomicBool::new(false), AtomicUsize::new(0));
        let passing = Arc::new(Passing { client, server: server.into(), gone, ended });
        shared.passing.lock().unwrap().push(Arc::clone(&passing));
        shared.count.fetch_add(1, SeqCst);
        for to_server in [true, false] {
            let mut mishaps: Vec<_> =
                plan.iter().copied().filter(|m| m.to_server == to_server).collect();
            mishaps.sort_by_key(|mishap| mishap.after);
            let passing = Arc::clone(&passing);
            thread::spawn(move || {
                pump(&passing, to_server, &mishaps);
                if passing.ended.fetch_add(1, SeqCst) > 0 {
                    passing.gone.store(true, SeqCst);
                }
            });
        }
    }
}

/// Carries one way until it ends.
fn pump(passing: &Passing, to_server: bool, mishaps: &[Mishap]) {
    let (from, to) = if to_server {
        (&passing.client, &passing.server)
    } else {
        (&passing.server, &passing.client)
    };
    let own = |end: &OwnedFd| File::from(end.as_fd().try_clone_to_owned().unwrap());
    let (mut reader, mut writer) = (own(from), own(to));
    let (mut passed, mut late, mut cap) = (0u64, Duration::ZERO, usize::MAX);
    let mut mishaps = mishaps.iter().peekable();
    let mut buffer = vec![0; 64 << 10];
    loop {
        while let Some(mishap) = mishaps.next_if(|mishap| mishap.after <= passed) {
            match mishap.fault {
                Fault::Cut => return passing.cut(),
                Fault::Truncate => {
                    let _ = shutdown(to, Shutdown::Write);
                    // What comes later is thrown away.
                    while reader.read(&mut buffer).is_ok_and(|n| n > 0) {}
                    return;
                }
                Fault::Stall(time) => thread::sleep(time),
                Fault::StallForEver => {
                    while !passing.gone.load(SeqCst) {
                        thread::sleep(Duration::from_millis(20));
                    }
                    return;
                }
                Fault::Delay(time) => late = time,
                Fault::Cap(bytes) => cap = bytes.max(1),
            }
        }
        let next = mishaps.peek().map_or(u64::MAX, |mishap| mishap.after - passed);
        let most = buffer.len().min(cap).min(usize::try_from(next).unwrap_or(usize::MAX));
        let n = match reader.read(&mut buffer[..most]) {
            Ok(n) if n > 0 => n,
            _ => {
                let _ = shutdown(to, Shutdown::Write);
                return;
            }
        };
        thread::sleep(late);
        if cap < usize::MAX {
            thread::sleep(Duration::from_millis(1));
        }
        if writer.write_all(&buffer[..n]).is_err() {
            let _ = shutdown(from, Shutdown::Both);
            return;
        }
        passed += u64::try_from(n).unwrap();
    }
}

/// A point in a transfer of this many bytes, as likely near its beginning as anywhere else.
pub fn somewhere(dice: &mut crate::dice::Dice, bytes: u64) -> u64 {
    let most = if dice.percent(30) { 2000 } else { index(bytes) };
    u64::try_from(dice.below(most.max(1))).unwrap()
}
