//! Connections that come and go while operations use them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use blackbox::wait_for;
use device::{Buffer, Error, ErrorKind, Fault, Operation, Outcome};
use runtime::{Context, Mutex};
use wire::{Command, Uri};

use super::{Connections, Upstream};
use crate::reach::ExportSpec;
use script::{Client, Server, data, offer, several, simple, structured};

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
                    let bytes = self.bytes.lock()[at..end].to_vec();
                    data(request.cookie, true, request.offset, &bytes)
                }
                Command::Write => {
                    self.bytes.lock()[at..end].copy_from_slice(&payload);
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
    *disk.bytes.lock() = vec![0; usize::try_from(SIZE).unwrap()];
    let same = disk.clone();
    let server = Server::start(several(SIZE), structured(), move |client| same.play(client));
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
                let mut before = shared.list.lock().len();
                while before < 4 && shared.want_more() {
                    wait_for("it comes to that", || shared.list.lock().len() > before);
                    before = shared.list.lock().len();
                }
                shared.leave_all_but(1);
            }
            stop.store(true, SeqCst);
        });
        let clients = disk.clients.load(SeqCst);
        assert!(clients > 40, "{clients}");
        // All connections that were closed had sent DISC.
        connections.0.leave_all_but(1);
        wait_for("it comes to that", || {
            disk.goodbyes.load(SeqCst) == disk.clients.load(SeqCst) - 1
        });
        assert_eq!(connections.epoch(), 0, "nothing can have been forgotten");
    }
}

#[test]
fn a_connection_that_still_owes_something_is_left_when_it_has_answered() {
    let (hold, held) = std::sync::mpsc::channel::<()>();
    let held = Mutex::new(Some(held));
    let server = Server::start(several(SIZE), structured(), move |mut client| {
        while let Some((request, _)) = client.request() {
            if request.kind() == Some(Command::Disconnect) {
                return;
            }
            // The first read waits for the test.
            let wait = held.lock().take();
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
    wait_for("it comes to that", || shared.list.lock().len() == 2);
    // Only that one has something to do, and it is the one that stays. A flush may go over either.
    shared.list.lock().reverse();
    shared.list.lock().iter().for_each(|one| one.trust(true));
    shared.leave_all_but(1);
    assert!(run(&connections, read(512)).is_ok(), "the other one goes on");
    assert!(told.try_recv().is_err());
    hold.send(()).unwrap();
    assert!(told.recv().unwrap().is_ok());
}

#[test]
fn a_change_that_is_given_up_ends_though_the_timer_runs_its_task_at_once() {
    let server = Server::start(offer(SIZE), structured(), |mut client| client.drain());
    // With nothing to wait for a timer runs its task where it is set, as it does when it cannot
    // start a thread. Never closed: that would wait for the lock as well.
    let connections = std::mem::ManuallyDrop::new(connect_for(&server, Some(Duration::ZERO)));
    let shared = connections.0.clone();
    let (tell, told) = std::sync::mpsc::channel();
    let write = Operation::Write { offset: 0, data: Buffer::zeroed(512).into(), fua: false };
    connections.submit(write, Box::new(move |outcome| tell.send(outcome).unwrap()), None);
    let only = shared.list.lock().first().cloned().unwrap();
    std::thread::spawn(move || {
        only.give_up(Error::new(ErrorKind::TimedOut, Fault::Peer, "test"));
    });
    assert!(told.recv_timeout(Duration::from_secs(60)).expect("the lock is taken twice").is_err());
}

/// What the server of the first connection does when it has acknowledged a write.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum First {
    /// It has gone before there is another connection, or silently before and seen to have gone
    /// only later.
    GoneBefore,
    SeenLate,
    /// It answers until there is another connection, and then hangs up.
    Answers,
}

/// Connections to a server of which the first has acknowledged a write and was lost, and another
/// was made.
fn one_lost_after_a_write(first: First) -> (Connections, Server) {
    let (hang_up, told) = std::sync::mpsc::channel::<()>();
    let told = Mutex::new(Some(told));
    let server = Server::start(several(SIZE), structured(), move |mut client| {
        let answers = client.number > 0 || first == First::Answers;
        let told = told.lock().take();
        let stream = client.stream.try_clone().unwrap();
        if let Some(told) = told {
            std::thread::spawn(move || {
                let _ = told.recv();
                stream.shutdown(std::net::Shutdown::Both)
            });
        }
        while let Some((request, _)) = client.request() {
            if answers || request.kind() == Some(Command::Write) {
                client.answer(&request, 0);
            }
        }
    });
    let connections = connect(&server, false);
    let shared = &connections.0;
    let write = Operation::Write { offset: 0, data: Buffer::zeroed(512).into(), fua: false };
    run(&connections, write).unwrap();
    let old = shared.list.lock().first().cloned().unwrap();
    let lose = || {
        hang_up.send(()).unwrap();
        wait_for("it comes to that", || old.is_over());
    };
    if first == First::GoneBefore {
        lose();
    }
    assert!(shared.want_more());
    wait_for("it comes to that", || shared.list.lock().len() == 2);
    let new = shared.list.lock().last().cloned().unwrap();
    if first == First::Answers {
        wait_for("it comes to that", || new.is_trusted());
    }
    if first != First::GoneBefore {
        lose();
    }
    (connections, server)
}

#[test]
fn a_flush_over_a_newer_connection_does_not_vouch_for_a_write_over_one_that_was_lost() {
    for first in [First::GoneBefore, First::SeenLate] {
        let (connections, _server) = one_lost_after_a_write(first);
        for _ in 0..2 {
            let flushed = run(&connections, Operation::Flush);
            assert!(flushed.is_err(), "{first:?}: it may be another server");
        }
        let read = Operation::Read { offset: 0, buffer: Buffer::zeroed(512) };
        run(&connections, read).unwrap();
        // Callers that reconnect know by the epoch what is to be done again.
        let before = connections.epoch();
        connections.reopen().unwrap();
        assert!(connections.epoch() > before);
        run(&connections, Operation::Flush).unwrap();
    }
}

#[test]
fn a_flush_over_a_newer_connection_vouches_for_all_where_the_server_is_known_to_be_the_same() {
    let (connections, _server) = one_lost_after_a_write(First::Answers);
    run(&connections, Operation::Flush).unwrap();
    assert_eq!(connections.epoch(), 0);
}

#[test]
fn the_only_connection_that_a_flush_may_go_over_is_not_left() {
    let (connections, _server) = one_lost_after_a_write(First::Answers);
    connections.reopen().unwrap();
    let shared = &connections.0;
    wait_for("it comes to that", || shared.list.lock().iter().all(|one| one.is_trusted()));
    let last = shared.list.lock().last().cloned().unwrap();
    for one in shared.list.lock().iter().filter(|one| !Arc::ptr_eq(one, &last)) {
        one.trust(false);
    }
    shared.leave_all_but(1);
    assert!(Arc::ptr_eq(&shared.all()[0], &last));
    run(&connections, Operation::Flush).unwrap();
}

#[test]
fn a_flush_that_has_nothing_to_vouch_for_goes_over_a_newer_connection() {
    let (connections, _server) = one_lost_after_a_write(First::Answers);
    run(&connections, Operation::Flush).unwrap();
    let shared = &connections.0;
    shared.list.lock().iter().for_each(|one| one.trust(one.is_over()));
    run(&connections, Operation::Flush).unwrap();
    assert_eq!(connections.epoch(), 1, "callers that count epochs know");
    let write = Operation::Write { offset: 0, data: Buffer::zeroed(512).into(), fua: true };
    run(&connections, write).unwrap();
    assert!(!shared.keep.owes_a_flush(), "it is durable");
}
