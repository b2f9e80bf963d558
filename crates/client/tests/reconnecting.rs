//! Connections that are lost and reconnected without being asked for: the table in
//! docs/architecture/client.md ("Reconnecting"), a test a cell, against a scripted server that
//! loses, forgets and dawdles.

use crate::script;

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};
use trial::BlockingCalls;

use blackbox::wait_for;
use device::{Device, ErrorClass, ErrorKind, Operation, ZeroFlags};
use script::{Client, Server, chunk, data, error, offer, several, simple, start, structured};
use wire::{Command, CommandFlags, ExportOffer, Request};

const SIZE: u64 = 1 << 20;
const MINUTE: Duration = Duration::from_secs(60);

/// What a server does with a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Act {
    Honest,
    /// Hangs up without having done it.
    HangUp,
    /// Does it, and hangs up without an answer.
    DoAndHangUp,
    /// Says nothing, and hangs up when the client has ended its side.
    SaysNothing,
    /// Says nothing for ever.
    Stalls,
}

/// A disk that may forget what was not flushed, and what its server was asked for.
#[derive(Default)]
struct Disk {
    bytes: Mutex<Vec<u8>>,
    durable: Mutex<Vec<u8>>,
    /// The client's number, the command and the offset of each request.
    asked: Mutex<Vec<(usize, Command, u64)>>,
    /// Clients that the server is through with.
    gone: AtomicUsize,
}

impl Disk {
    fn new() -> Arc<Self> {
        let disk = Arc::new(Self::default());
        *disk.bytes.lock().unwrap() = vec![0; usize::try_from(SIZE).unwrap()];
        disk.durable.lock().unwrap().clone_from(&disk.bytes.lock().unwrap());
        disk
    }

    /// As after a loss of power.
    fn forget(&self) {
        self.bytes.lock().unwrap().clone_from(&self.durable.lock().unwrap());
    }

    /// How often a command was asked for.
    fn count(&self, command: Command) -> usize {
        self.asked.lock().unwrap().iter().filter(|(_, c, _)| *c == command).count()
    }

    fn clients_of(&self, command: Command) -> Vec<usize> {
        let asked = self.asked.lock().unwrap();
        asked.iter().filter(|(_, c, _)| *c == command).map(|(n, _, _)| *n).collect()
    }

    fn range(request: &Request) -> std::ops::Range<usize> {
        let start = usize::try_from(request.offset).unwrap();
        start..start + usize::try_from(request.length).unwrap()
    }

    fn change(&self, request: &Request, payload: &[u8]) {
        let mut bytes = self.bytes.lock().unwrap();
        match request.kind() {
            Some(Command::Write) => bytes[Self::range(request)].copy_from_slice(payload),
            Some(Command::WriteZeroes | Command::Trim) => bytes[Self::range(request)].fill(0),
            Some(Command::Flush) => self.durable.lock().unwrap().clone_from(&bytes),
            _ => {}
        }
        if request.flags.contains(CommandFlags::FUA) {
            let mut durable = self.durable.lock().unwrap();
            durable[Self::range(request)].copy_from_slice(&bytes[Self::range(request)]);
        }
    }

    fn serve(&self, client: Client, act: impl Fn(usize, &Request) -> Act) {
        self.play(client, act);
        self.gone.fetch_add(1, SeqCst);
    }

    fn play(&self, mut client: Client, act: impl Fn(usize, &Request) -> Act) {
        while let Some((request, payload)) = client.request() {
            let kind = request.kind().unwrap();
            self.asked.lock().unwrap().push((client.number, kind, request.offset));
            match act(client.number, &request) {
                Act::Honest => {}
                Act::HangUp => return,
                Act::DoAndHangUp => return self.change(&request, &payload),
                Act::SaysNothing => return client.drain(),
                Act::Stalls => {
                    client.drain();
                    loop {
                        std::thread::park();
                    }
                }
            }
            self.change(&request, &payload);
            let cookie = request.cookie;
            let answer = match kind {
                Command::Disconnect => return,
                Command::Read => {
                    let bytes = self.bytes.lock().unwrap()[Self::range(&request)].to_vec();
                    data(cookie, true, request.offset, &bytes)
                }
                Command::BlockStatus => {
                    let mut payload = 1u32.to_be_bytes().to_vec();
                    payload.extend(u32::try_from(request.length).unwrap().to_be_bytes());
                    payload.extend(0u32.to_be_bytes());
                    chunk(cookie, true, 5, &payload)
                }
                _ => simple(cookie, 0),
            };
            client.send(&answer);
        }
    }
}

/// A server of `disk` whose actions depend on the client and the request.
fn server(
    disk: &Arc<Disk>,
    export: ExportOffer,
    act: impl Fn(usize, &Request) -> Act + Send + Sync + 'static,
) -> Server {
    let disk = disk.clone();
    Server::start(export, structured(), move |client| disk.serve(client, &act))
}

/// Does this at the first request of a kind, and is honest otherwise.
fn at_first(kind: Command, act: Act) -> impl Fn(usize, &Request) -> Act + Send + Sync {
    let seen = AtomicUsize::new(0);
    move |_, request| {
        let is_first = request.kind() == Some(kind) && seen.fetch_add(1, SeqCst) == 0;
        if is_first { act } else { Act::Honest }
    }
}

/// An operation of each kind that changes something, and its command.
fn changes() -> Vec<(Command, fn() -> Operation)> {
    vec![
        (Command::Write, || {
            let mut bytes = device::Buffer::zeroed(4096);
            bytes.fill(7);
            Operation::Write { offset: 4096, data: bytes.into(), fua: false }
        }),
        (Command::WriteZeroes, || Operation::Zero {
            offset: 4096,
            len: 4096,
            flags: ZeroFlags::default(),
        }),
        (Command::Trim, || Operation::Trim { offset: 4096, len: 4096, fua: false }),
    ]
}

/// And one of each kind that does not.
fn questions() -> Vec<(Command, fn() -> Operation)> {
    vec![
        (Command::Read, || Operation::Read { offset: 0, buffer: device::Buffer::zeroed(4096) }),
        (Command::BlockStatus, || Operation::Resolve { offset: 0, len: 4096, max: 9 }),
        (Command::Cache, || Operation::Prefetch { offset: 0, len: 4096 }),
    ]
}

fn patient(server: &Server) -> Arc<dyn Device> {
    server.try_open_with(&["reconnect-delay=60"]).unwrap()
}

#[test]
fn what_changes_nothing_is_repeated_when_the_peer_has_closed() {
    for (command, operation) in questions() {
        let disk = Disk::new();
        let server = server(&disk, offer(SIZE), at_first(command, Act::HangUp));
        let device = patient(&server);
        device.run(operation()).unwrap();
        assert_eq!(disk.clients_of(command)[..2], [0, 1], "{command:?}");
    }
}

#[test]
fn what_changes_nothing_is_repeated_at_once_when_we_gave_up() {
    for (command, operation) in questions() {
        let disk = Disk::new();
        let server = server(&disk, offer(SIZE), at_first(command, Act::Stalls));
        let words = ["reconnect-delay=60", "request-timeout=100ms"];
        let device = server.try_open_with(&words).unwrap();
        device.run(operation()).unwrap();
        assert_eq!(disk.gone.load(SeqCst), 0, "no request waited for the peer to close");
        assert_eq!(disk.clients_of(command)[..2], [0, 1], "{command:?}");
    }
}

#[test]
fn a_change_is_repeated_when_the_peer_has_closed() {
    for act in [Act::HangUp, Act::DoAndHangUp] {
        for (command, operation) in changes() {
            let disk = Disk::new();
            disk.bytes.lock().unwrap()[4096..8192].fill(9);
            disk.durable.lock().unwrap()[4096..8192].fill(9);
            let server = server(&disk, offer(SIZE), at_first(command, act));
            let device = patient(&server);
            device.run(operation()).unwrap();
            assert_eq!(disk.clients_of(command), [0, 1]);
            let is = if command == Command::Write { 7 } else { 0 };
            assert!(disk.bytes.lock().unwrap()[4096..8192].iter().all(|b| *b == is));
            // Nothing that was acknowledged was lost.
            device.flush().unwrap();
        }
    }
}

#[test]
fn a_change_that_we_gave_up_is_repeated_only_when_the_peer_has_closed() {
    for (command, operation) in changes() {
        let disk = Disk::new();
        let (go, wait) = mpsc::channel::<()>();
        let wait = Mutex::new(wait);
        let (ours, first) = (disk.clone(), AtomicUsize::new(0));
        let server = Server::start(offer(SIZE), structured(), move |mut client| {
            if first.fetch_add(1, SeqCst) > 0 {
                return ours.serve(client, |_, _| Act::Honest);
            }
            let (request, payload) = client.request().unwrap();
            ours.asked.lock().unwrap().push((0, request.kind().unwrap(), request.offset));
            // It has seen that the client has given up, and still does the request.
            client.drain();
            wait.lock().unwrap().recv().unwrap();
            ours.change(&request, &payload);
            ours.gone.fetch_add(1, SeqCst);
        });
        let words = ["reconnect-delay=60", "request-timeout=100ms"];
        let device = server.try_open_with(&words).unwrap();
        let answer = start(&*device, operation());
        // Others go on meanwhile.
        device.read_at(&mut [0; 512], 0).unwrap();
        assert_eq!(disk.clients_of(command), [0], "it may still be done");
        assert!(answer.try_recv().is_err());
        go.send(()).unwrap();
        answer.recv_timeout(MINUTE).unwrap().unwrap();
        assert_eq!((disk.gone.load(SeqCst), disk.clients_of(command)), (1, vec![0, 1]));
    }
}

#[test]
fn a_change_that_we_gave_up_fails_if_the_peer_never_closes() {
    for (command, operation) in changes() {
        let disk = Disk::new();
        let server = server(&disk, offer(SIZE), at_first(command, Act::Stalls));
        let words = ["reconnect-delay=300ms", "request-timeout=100ms"];
        let device = server.try_open_with(&words).unwrap();
        let error = device.run(operation()).unwrap_err();
        assert_eq!((error.kind(), error.class()), (ErrorKind::TimedOut, ErrorClass::Transient));
        assert_eq!(disk.clients_of(command), [0]);
        device.read_at(&mut [0; 512], 0).unwrap();
    }
}

#[test]
fn of_a_change_that_was_answered_the_first_flush_fails_once_for_each_client() {
    let lost = [Act::HangUp, Act::SaysNothing].into_iter();
    for (act, (command, operation)) in
        lost.flat_map(|act| changes().into_iter().map(move |c| (act, c)))
    {
        let disk = Disk::new();
        let server = server(&disk, offer(SIZE), at_first(Command::Read, act));
        // Only a server that says nothing is given up for it.
        let timeout = if act == Act::HangUp { "60" } else { "500ms" };
        let words = ["reconnect-delay=60", &format!("request-timeout={timeout}")];
        let device = server.try_open_with(&words).unwrap();
        let greeted = || script::greet(&*device).unwrap().unwrap();
        let clients = [greeted(), greeted()];
        clients[0].run(operation()).unwrap();
        clients[1].read_at(&mut [0; 512], 0).unwrap();
        assert_eq!(device.epoch(), 1, "{command:?}");
        for client in &clients {
            let error = client.flush().unwrap_err();
            assert!(error.to_string().contains("may be lost"), "{error}");
            client.flush().unwrap();
        }
        greeted().flush().unwrap();
    }
}

#[test]
fn what_was_flushed_or_durable_by_itself_is_no_loss() {
    let disk = Disk::new();
    let server = server(&disk, offer(SIZE), |_, request| {
        if request.offset == 8192 && request.length == 1 { Act::HangUp } else { Act::Honest }
    });
    let device = patient(&server);
    device.write_at(&[1; 4096], 0, false).unwrap();
    device.flush().unwrap();
    device.write_at(&[2; 4096], 4096, true).unwrap();
    let fast = ZeroFlags { fast_only: true, ..ZeroFlags::default() };
    device.zero(8192, 1, fast).unwrap_err();
    wait_for("a new connection", || device.epoch() == 1);
    device.flush().unwrap();
}

#[test]
fn a_fast_zero_is_never_repeated() {
    for act in [Act::HangUp, Act::DoAndHangUp, Act::SaysNothing] {
        let disk = Disk::new();
        let server = server(&disk, several(SIZE), at_first(Command::WriteZeroes, act));
        let words = ["reconnect-delay=60", "request-timeout=100ms", "connections=2"];
        let device = server.try_open_with(&words).unwrap();
        let fast = ZeroFlags { fast_only: true, may_unmap: true, ..ZeroFlags::default() };
        let error = device.zero(0, SIZE, fast).unwrap_err();
        assert_eq!(error.class(), ErrorClass::Transient, "{error}");
        device.read_at(&mut [0; 512], 0).unwrap();
        assert_eq!(disk.count(Command::WriteZeroes), 1, "{act:?}");
    }
}

#[test]
fn a_flush_is_repeated_and_covers_only_its_own_epoch() {
    for (writes, forgets) in [(false, false), (true, true)] {
        let disk = Disk::new();
        let server = server(&disk, offer(SIZE), at_first(Command::Flush, Act::HangUp));
        let device = patient(&server);
        if writes {
            device.write_at(&[1; 512], 0, false).unwrap();
        }
        // Answered before the connection was lost, and not durable: no later flush can say so.
        assert_eq!(device.flush().is_err(), forgets);
        assert_eq!(disk.clients_of(Command::Flush), [0, 1]);
        device.flush().unwrap();
    }
}

#[test]
fn requests_of_one_of_several_go_to_the_others_at_once_and_nothing_is_lost() {
    for words in [&["connections=3"][..], &["connections=3", "reconnect-delay=60"]] {
        let disk = Disk::new();
        let hit = AtomicUsize::new(0);
        let server = server(&disk, several(SIZE), move |number, request| {
            let wanted = request.kind() == Some(Command::Write) && number == 1;
            if wanted && hit.fetch_add(1, SeqCst) == 2 { Act::HangUp } else { Act::Honest }
        });
        let device = server.try_open_with(words).unwrap();
        let mut lanes: Vec<_> = (0..3).map(|_| device.lane().unwrap().unwrap()).collect();
        for round in 0..32u64 {
            for (at, lane) in lanes.iter_mut().enumerate() {
                let offset = (round * 3 + at as u64) * 4096;
                let mut bytes = device::Buffer::zeroed(4096);
                bytes.fill(3);
                lane.start(round, Operation::Write { offset, data: bytes.into(), fua: false });
            }
        }
        for lane in &mut lanes {
            let ended = script::finish(&mut **lane);
            assert_eq!(ended.len(), 32);
            assert!(ended.iter().all(|(_, outcome)| outcome.is_ok()), "{ended:?}");
        }
        assert_eq!(device.epoch(), 0, "another one lives");
        device.flush().unwrap();
        assert!(disk.durable.lock().unwrap()[..96 * 4096].iter().all(|b| *b == 3));
    }
}

#[test]
fn when_all_are_lost_requests_wait_and_then_fail_clearly() {
    let disk = Disk::new();
    let server = server(&disk, offer(SIZE), |number, request| {
        let is_first = number == 0 && request.kind() != Some(Command::Flush);
        if is_first { Act::Honest } else { Act::HangUp }
    });
    let device = server.try_open_with(&["reconnect-delay=500ms"]).unwrap();
    device.read_at(&mut [0; 512], 0).unwrap();
    let begun = Instant::now();
    // The server comes back, and hangs up at each read of a canary.
    let error = device.flush().unwrap_err();
    assert!(begun.elapsed() >= Duration::from_millis(500));
    assert_eq!((error.kind(), error.class()), (ErrorKind::Disconnected, ErrorClass::Transient));
    assert!(error.to_string().contains("did not return within 0.5 seconds"), "{error}");
    // A later caller does not wait once more.
    let error = device.read_at(&mut [0; 512], 0).unwrap_err();
    assert!(error.to_string().contains("did not return"), "{error}");
}

#[test]
fn a_request_that_costs_the_server_its_life_each_time_fails_in_the_end() {
    let disk = Disk::new();
    let server =
        server(
            &disk,
            offer(SIZE),
            |_, request| {
                if request.offset == 4096 { Act::HangUp } else { Act::Honest }
            },
        );
    let device = patient(&server);
    let error = device.read_at(&mut [0; 512], 4096).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Disconnected);
    device.read_at(&mut [0; 512], 0).unwrap();
}

#[test]
fn another_export_is_a_permanent_error() {
    // In what else they differ is told apart by the same code as in `proxy.rs`.
    let before = ExportOffer { name: "disk".into(), ..several(SIZE) };
    for now in [
        ExportOffer { size: SIZE * 2, ..before.clone() },
        ExportOffer { description: "another".into(), ..before.clone() },
    ] {
        let offers = Mutex::new(vec![now, before.clone()]);
        let next = move || offers.lock().unwrap().pop().unwrap();
        let disk = Disk::new();
        let ours = disk.clone();
        let act = at_first(Command::Write, Act::HangUp);
        let server = Server::start_with(next, structured(), move |c| ours.serve(c, &act));
        let device = server.try_open_with(&["reconnect-delay=60"]).unwrap();
        let error = device.write_at(&[1; 512], 0, false).unwrap_err();
        assert!(error.to_string().contains("the export has changed"), "{error}");
        assert_ne!(error.class(), ErrorClass::Transient);
        assert_eq!(disk.count(Command::Write), 1, "nothing is written to another disk");
        let again = device.read_at(&mut [0; 512], 0).unwrap_err();
        assert_eq!(again.kind(), error.kind());
    }
}

#[test]
fn a_disk_with_other_bytes_is_another_disk() {
    for written in [false, true] {
        let disk = Disk::new();
        let server = server(&disk, offer(SIZE), at_first(Command::Trim, Act::HangUp));
        let device = patient(&server);
        if written {
            device.write_at(&[1; 4096], 65536, false).unwrap();
            device.flush().unwrap();
        } else {
            device.read_at(&mut [0; 8192], 65536).unwrap();
        }
        disk.bytes.lock().unwrap()[65536 + 100] = 99;
        let error = device.trim(0, 4096, false).unwrap_err();
        assert_eq!((error.kind(), error.class()), (ErrorKind::Changed, ErrorClass::Permanent));
        assert_eq!(disk.count(Command::Trim), 1, "nothing is asked of it");
        assert_eq!(device.read_at(&mut [0; 512], 0).unwrap_err().kind(), ErrorKind::Changed);
    }
}

#[test]
fn what_was_not_flushed_and_is_missing_is_a_loss_and_no_other_disk() {
    let disk = Disk::new();
    let (ours, trims) = (disk.clone(), AtomicUsize::new(0));
    let server = server(&disk, offer(SIZE), move |_, request| {
        if request.kind() != Some(Command::Trim) || trims.fetch_add(1, SeqCst) > 0 {
            return Act::Honest;
        }
        ours.forget();
        Act::HangUp
    });
    let device = patient(&server);
    device.read_at(&mut [0; 4096], 0).unwrap();
    device.write_at(&[1; 4096], 65536, false).unwrap();
    device.trim(4096, 4096, false).unwrap();
    let mut bytes = [7; 4096];
    device.read_at(&mut bytes, 65536).unwrap();
    assert_eq!(bytes, [0; 4096], "the server has forgotten it");
    device.flush().unwrap_err();
    device.flush().unwrap();
}

#[test]
fn a_server_that_shuts_down_is_asked_again_when_it_is_back() {
    let disk = Disk::new();
    let (ours, first) = (disk.clone(), AtomicUsize::new(0));
    let server = Server::start(offer(SIZE), structured(), move |mut client| {
        if first.fetch_add(1, SeqCst) > 0 {
            return ours.serve(client, |_, _| Act::Honest);
        }
        let request = client.expect(Command::Write);
        client.send(&error(request.cookie, 108, "going"));
        client.drain();
    });
    let device = patient(&server);
    device.write_at(&[5; 512], 0, false).unwrap();
    assert_eq!(disk.bytes.lock().unwrap()[..512], [5; 512]);
}

#[test]
fn the_first_connection_is_tried_for_as_long_as_the_user_allows() {
    let disk = Disk::new();
    let ours = disk.clone();
    let serve = move |client| ours.serve(client, |_, _| Act::Honest);
    let server = Server::start_after(3, || offer(SIZE), structured(), serve);
    assert!(server.try_open_with(&[]).is_err());
    let device = server.try_open_with(&["open-timeout=60"]).unwrap();
    device.read_at(&mut [0; 512], 0).unwrap();
    let gone = Server { socket: "@diskferry-no-server".into(), uri: String::new() };
    let begun = Instant::now();
    let error = gone.try_open_with(&["open-timeout=300ms"]).err().unwrap();
    assert_eq!(error.class(), ErrorClass::Transient);
    assert!(begun.elapsed() >= Duration::from_millis(300));
}

#[test]
fn it_opens_with_the_first_connection_and_works_with_what_there_is() {
    let disk = Disk::new();
    let (ours, clients) = (disk.clone(), AtomicUsize::new(0));
    // The others are neither accepted nor refused.
    let offers = move || {
        while clients.load(SeqCst) > 0 {
            std::thread::park();
        }
        clients.fetch_add(1, SeqCst);
        several(SIZE)
    };
    let serve = move |client| ours.serve(client, |_, _| Act::Honest);
    let server = Server::start_with(offers, structured(), serve);
    let device = server.try_open_with(&["connections=4", "reconnect-delay=60"]).unwrap();
    let mut lanes: Vec<_> = (0..2).map(|_| device.lane().unwrap().unwrap()).collect();
    for lane in &mut lanes {
        lane.start(1, Operation::Read { offset: 0, buffer: device::Buffer::zeroed(512) });
        assert!(script::finish(&mut **lane).remove(0).1.is_ok());
    }
}

#[test]
fn a_connection_that_no_longer_answers_when_another_is_made_is_given_up() {
    let disk = Disk::new();
    let ours = disk.clone();
    // The second client's connection is up, but its server is gone and silent.
    let server = Server::start(several(SIZE), structured(), move |client| match client.number {
        0 => ours.serve(client, |_, r| {
            if r.kind() == Some(Command::Trim) { Act::HangUp } else { Act::Honest }
        }),
        1 => ours.serve(client, |_, r| {
            // Once, to prove that it is alive when it is made.
            if r.kind() == Some(Command::Read) { Act::Stalls } else { Act::Honest }
        }),
        _ => ours.serve(client, |_, _| Act::Honest),
    });
    let device = server.try_open_with(&["connections=2", "reconnect-delay=60"]).unwrap();
    let lanes: Vec<_> = (0..2).map(|_| device.lane().unwrap().unwrap()).collect();
    assert_eq!(device.epoch(), 0);
    drop(lanes);
    device.write_at(&[1; 512], 0, false).unwrap();
    device.write_at(&[1; 512], 4096, false).unwrap();
    let mut first = device.lane().unwrap().unwrap();
    first.start(1, Operation::Trim { offset: 0, len: 4096, fua: false });
    let ended = script::finish(&mut *first);
    assert!(ended.iter().all(|(_, outcome)| outcome.is_ok()), "{ended:?}");
    wait_for("the epoch grows", || device.epoch() == 1);
    device.flush().unwrap_err();
    device.flush().unwrap();
}

#[test]
fn a_lane_that_waits_for_its_server_takes_another_connection() {
    let disk = Disk::new();
    let (ours, clients) = (disk.clone(), Arc::new(AtomicUsize::new(0)));
    let count = clients.clone();
    let server = Server::start(several(SIZE), structured(), move |client| {
        count.fetch_add(1, SeqCst);
        ours.serve(client, |_, _| {
            std::thread::sleep(Duration::from_millis(5));
            Act::Honest
        });
    });
    let device = server.try_open(8).unwrap();
    let mut lane = device.lane().unwrap().unwrap();
    let (mut ticket, begun) = (0, Instant::now());
    let mut asked = Vec::new();
    while clients.load(SeqCst) < 2 || ticket < 100 {
        assert!(begun.elapsed() < MINUTE, "it waits, and asks for no more");
        while lane.in_flight() < 8 {
            ticket += 1;
            asked.push(ticket);
            let buffer = device::Buffer::zeroed(512);
            lane.start(ticket, Operation::Read { offset: 0, buffer });
        }
        for (ticket, outcome) in script::turn_or_wait(&mut *lane) {
            assert!(outcome.is_ok(), "{outcome:?}");
            asked.retain(|one| *one != ticket);
        }
    }
    for (ticket, outcome) in script::finish(&mut *lane) {
        assert!(outcome.is_ok(), "{outcome:?}");
        asked.retain(|one| *one != ticket);
    }
    assert!(asked.is_empty(), "each is answered once: {asked:?}");
}

#[test]
fn what_a_server_that_shuts_down_still_owes_is_awaited() {
    let disk = Disk::new();
    let (ours, first) = (disk.clone(), AtomicUsize::new(0));
    let server = Server::start(offer(SIZE), structured(), move |mut client| {
        if first.fetch_add(1, SeqCst) > 0 {
            return ours.serve(client, |_, _| Act::Honest);
        }
        let read = client.expect(Command::Read);
        let write = client.expect(Command::Write);
        client.send(&error(write.cookie, 108, "going"));
        // The others are with its successor by then.
        wait_for("the write is repeated", || ours.count(Command::Write) > 0);
        client.send(&data(read.cookie, true, 0, &[9; 512]));
        client.drain();
    });
    let device = patient(&server);
    let read = start(&*device, Operation::Read { offset: 0, buffer: device::Buffer::zeroed(512) });
    device.write_at(&[5; 512], 4096, false).unwrap();
    let device::Outcome::Read(bytes) = read.recv_timeout(MINUTE).unwrap().unwrap() else {
        panic!("a read is answered otherwise")
    };
    assert_eq!(*bytes, [9; 512]);
}
