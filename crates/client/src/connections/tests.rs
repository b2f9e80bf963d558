//! Connections that come and go while operations use them.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use device::{Buffer, Error, ErrorKind, Fault, Operation, Outcome};
use runtime::Context;
use wire::{Command, ExportOffer, TransmissionFlags as Flags, Uri};

use super::{Connections, Upstream};
use crate::reach::ExportSpec;
use script::{Client, Server, data, offer, simple, structured};

#[path = "../../tests/script/mod.rs"]
mod script;

const SIZE: u64 = 1 << 20;
const LEN: u64 = 4096;

/// A disk behind a server that advertises multi-conn, and how many connections ended with DISC.
#[derive(Default)]
struct Disk {
    bytes: Mutex<Vec<u8>>,
    goodbyes: AtomicUsize,
    clients: AtomicUsize,
}

impl Disk {
    fn play(&self, mut client: Client) {
        self.clients.fetch_add(1, SeqCst);
        while let Some((request, payload)) = client.request() {
            let at = usize::try_from(request.offset).unwrap();
            let end = at + usize::try_from(request.length).unwrap();
            let answer = match request.kind().unwrap() {
                Command::Disconnect => {
                    self.goodbyes.fetch_add(1, SeqCst);
                    return;
                }
                Command::Read => {
                    let bytes = self.bytes.lock().unwrap()[at..end].to_vec();
                    data(request.cookie, true, request.offset, &bytes)
                }
                Command::Write => {
                    self.bytes.lock().unwrap()[at..end].copy_from_slice(&payload);
                    simple(request.cookie, 0)
                }
                _ => simple(request.cookie, 0),
            };
            client.send(&answer);
        }
    }
}

fn serve() -> (Arc<Disk>, Server) {
    let disk = Arc::new(Disk::default());
    *disk.bytes.lock().unwrap() = vec![0; usize::try_from(SIZE).unwrap()];
    let flags = script::EVERYTHING.with(Flags::CAN_MULTI_CONN);
    let same = disk.clone();
    let server = Server::start(ExportOffer { flags, ..offer(SIZE) }, structured(), move |client| {
        same.play(client);
    });
    (disk, server)
}

fn connect(server: &Server, reconnect: bool) -> Connections {
    connect_for(server, reconnect.then_some(Duration::from_secs(60)))
}

fn connect_for(server: &Server, reconnect: Option<Duration>) -> Connections {
    let uri: Uri = server.uri.parse().unwrap();
    let target = ExportSpec { connections: 8, reconnect, ..ExportSpec::from(uri) };
    let (upstream, first) = Upstream::open(target, &Context::default()).unwrap();
    Connections::new(upstream, first, false).unwrap()
}

fn run(connections: &Connections, operation: Operation) -> device::Result<Outcome> {
    let (tell, told) = std::sync::mpsc::channel();
    connections.submit(operation, Box::new(move |outcome| tell.send(outcome).unwrap()), None);
    told.recv().unwrap()
}

fn until(ready: impl Fn() -> bool) {
    let begun = Instant::now();
    while !ready() {
        assert!(begun.elapsed() < Duration::from_secs(60), "it does not come to that");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn whatever_is_asked_for_while_connections_are_left_and_made_is_done() {
    for reconnect in [false, true] {
        let (disk, server) = serve();
        let connections = connect(&server, reconnect);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for client in 0..4u8 {
                let (connections, stop) = (&connections, &stop);
                scope.spawn(move || {
                    let offset = u64::from(client) * LEN;
                    let mut fill = client;
                    while !stop.load(SeqCst) {
                        fill = fill.wrapping_add(7);
                        let bytes = vec![fill; usize::try_from(LEN).unwrap()];
                        let data = Buffer::copy_of(&bytes).into();
                        run(connections, Operation::Write { offset, data, fua: false }).unwrap();
                        run(connections, Operation::Flush).unwrap();
                        let buffer = Buffer::zeroed(bytes.len());
                        let read = run(connections, Operation::Read { offset, buffer }).unwrap();
                        let Outcome::Read(read) = read else { panic!("{read:?}") };
                        assert_eq!(*read, *bytes, "what was written is read, wherever");
                    }
                });
            }
            for _ in 0..20 {
                let shared = &connections.0;
                // It may come as soon as it is asked for.
                let mut before = shared.list().len();
                while before < 4 && shared.want_more() {
                    until(|| shared.list().len() > before);
                    before = shared.list().len();
                }
                shared.leave_all_but(1);
            }
            stop.store(true, SeqCst);
        });
        let clients = disk.clients.load(SeqCst);
        assert!(clients > 40, "{clients}");
        // All connections that were closed had sent DISC.
        connections.0.leave_all_but(1);
        until(|| disk.goodbyes.load(SeqCst) == disk.clients.load(SeqCst) - 1);
        assert_eq!(connections.epoch(), 0, "nothing can have been forgotten");
    }
}

#[test]
fn a_connection_that_still_owes_something_is_left_when_it_has_answered() {
    let (hold, held) = std::sync::mpsc::channel::<()>();
    let held = Mutex::new(Some(held));
    let flags = script::EVERYTHING.with(Flags::CAN_MULTI_CONN);
    let several = ExportOffer { flags, ..offer(SIZE) };
    let server = Server::start(several, structured(), move |mut client| {
        while let Some((request, _)) = client.request() {
            if request.kind() == Some(Command::Disconnect) {
                return;
            }
            // The first read waits for the test.
            let wait = held.lock().unwrap().take();
            if let Some(wait) = wait {
                let _ = wait.recv();
            }
            client.send(&data(request.cookie, true, request.offset, &[7; 512]));
        }
    });
    let connections = connect(&server, false);
    let shared = &connections.0;
    let (tell, told) = std::sync::mpsc::channel();
    let read = |offset| Operation::Read { offset, buffer: Buffer::zeroed(512) };
    connections.submit(read(0), Box::new(move |outcome| tell.send(outcome).unwrap()), None);
    assert!(shared.want_more());
    until(|| shared.list().len() == 2);
    // Only that one has something to do, and it is the one that stays.
    shared.list().reverse();
    shared.leave_all_but(1);
    assert!(run(&connections, read(512)).is_ok(), "the other one goes on");
    assert!(told.try_recv().is_err());
    hold.send(()).unwrap();
    assert!(told.recv().unwrap().is_ok());
}

#[test]
fn a_change_that_is_given_up_ends_though_the_timer_runs_its_task_at_once() {
    let server = Server::start(offer(SIZE), structured(), |mut client| client.drain());
    // With nothing to wait for a timer runs its task where it is set, as it does when it cannot start a thread.
    // Never closed: that would wait for the lock as well.
    let connections = std::mem::ManuallyDrop::new(connect_for(&server, Some(Duration::ZERO)));
    let shared = connections.0.clone();
    let (tell, told) = std::sync::mpsc::channel();
    let write = Operation::Write { offset: 0, data: Buffer::zeroed(512).into(), fua: false };
    connections.submit(write, Box::new(move |outcome| tell.send(outcome).unwrap()), None);
    let only = shared.list().first().cloned().unwrap();
    std::thread::spawn(move || {
        only.give_up(Error::new(ErrorKind::TimedOut, Fault::Peer, "test"));
    });
    assert!(told.recv_timeout(Duration::from_secs(60)).expect("the lock is taken twice").is_err());
}
