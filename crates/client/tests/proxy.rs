//! The `nbd` device as a proxy needs it: tries again at first, reconnects when asked,
//! connections for each client, and servers that are named in other ways than by an address.

use crate::script;

use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::time::{Duration, Instant};
use trial::BlockingCalls;

use device::{Device, Error, ErrorKind, Fault, Operation, Params};
use devices::OpenOptions;
use script::{Client, Server, greet, offer, several, structured};
use wire::{Command, ExportOffer, TransmissionFlags};

const SIZE: u64 = 1 << 20;

/// Answers reads with the client's number, and everything else well, until the stream ends or
/// a read at `LAST`: then it hangs up.
const LAST: u64 = 4096;

fn numbered(mut client: Client) {
    while let Some((request, _)) = client.request() {
        match request.kind() {
            Some(Command::Read | Command::WriteZeroes) if request.offset == LAST => return,
            _ => {
                let number = u8::try_from(client.number).unwrap();
                client.answer(&request, number);
            }
        }
    }
}

/// The number of the client that a read of `device` comes from.
fn number(device: &dyn Device) -> device::Result<u8> {
    let mut bytes = [0xee; 8];
    device.read_at(&mut bytes, 0).map(|()| bytes[0])
}

/// Makes the server hang up on one of the device's connections.
fn lose(device: &dyn Device) -> Error {
    device.read_at(&mut [0; 8], LAST).unwrap_err()
}

/// A server that describes its export to its clients one after the other.
fn changing(offers: Vec<ExportOffer>) -> Server {
    let offers = Mutex::new(offers.into_iter());
    Server::start_with(move || offers.lock().unwrap().next().unwrap(), structured(), numbered)
}

#[test]
fn the_first_connection_is_tried_again_a_second_apart() {
    let server = Server::start_after(2, || offer(SIZE), structured(), numbered);
    let begun = Instant::now();
    let device = server.try_open_with(&["retry=2"]).unwrap();
    assert!(begun.elapsed() >= Duration::from_secs(2));
    assert_eq!(number(&*device).unwrap(), 0);
}

#[test]
fn no_more_attempts_are_made_than_asked_for() {
    let server = Server::start_after(2, || offer(SIZE), structured(), numbered);
    assert_eq!(server.try_open_with(&["retry=1"]).err().unwrap().kind(), ErrorKind::Disconnected);
    // Both were refused; the third is accepted.
    server.try_open_with(&[]).unwrap();
}

#[test]
fn a_lost_connection_stays_lost_until_it_is_asked_for_again() {
    let server = Server::start(offer(SIZE), structured(), numbered);
    let device = server.open();
    assert_eq!(number(&*device).unwrap(), 0);
    assert_eq!(lose(&*device).kind(), ErrorKind::Disconnected);
    for _ in 0..3 {
        assert_eq!(number(&*device).unwrap_err().kind(), ErrorKind::Disconnected);
    }
    assert_eq!(device.epoch(), 0);
    device.reopen().unwrap();
    assert_eq!((number(&*device).unwrap(), device.epoch()), (1, 1));
    // Nothing is left to do.
    device.reopen().unwrap();
    assert_eq!((number(&*device).unwrap(), device.epoch()), (1, 1));
}

/// Hangs up on the first client when it is told to, and then says so; serves the others as
/// `numbered`.
fn killed(told: mpsc::Receiver<mpsc::Sender<()>>) -> impl Fn(Client) + Send + Sync {
    let told = Mutex::new(told);
    move |client| {
        if client.number == 0 {
            let done = told.lock().unwrap().recv().unwrap();
            drop(client);
            return done.send(()).unwrap();
        }
        numbered(client);
    }
}

#[test]
fn a_further_connection_counts_one_whose_loss_was_not_noticed() {
    let (kill, told) = mpsc::channel();
    let server = Server::start(several(SIZE), structured(), killed(told));
    let device = server.try_open(3).unwrap();
    // It has a lane, whose thread has nothing to do.
    let _idle = device.lane().unwrap().unwrap();
    let (done, ended) = mpsc::channel();
    kill.send(done).unwrap();
    ended.recv().unwrap();
    let mut further = device.lane().unwrap().unwrap();
    assert_eq!(device.epoch(), 1, "before anything goes over it");
    further.start(7, Operation::Flush);
    assert!(script::finish(&mut *further).remove(0).1.is_ok());
    assert_eq!(device.epoch(), 1);
}

#[test]
fn a_lane_on_a_lost_connection_is_broken_until_it_reconnects() {
    let server = Server::start(offer(SIZE), structured(), numbered);
    let device = server.open();
    let mut lane = device.lane().unwrap().unwrap();
    let mut works = |reads: u64| {
        lane.start(reads, Operation::Read { offset: 0, buffer: device::Buffer::zeroed(8) });
        let (ticket, outcome) = script::finish(&mut *lane).remove(0);
        assert_eq!(ticket, reads);
        outcome.is_ok()
    };
    assert!(works(1));
    lose(&*device);
    assert!(!works(2));
    device.reopen().unwrap();
    assert!(works(3));
    drop(lane);
    assert!(device.lane().unwrap().is_some());
}

#[test]
fn only_the_lost_ones_of_several_connections_are_reconnected() {
    let server = Server::start(several(SIZE), structured(), numbered);
    let device = server.try_open_with(&["connections=3"]).unwrap();
    // All are there when each has had a lane.
    drop((0..3).map(|_| device.lane().unwrap().unwrap()).collect::<Vec<_>>());
    // A request that is never repeated costs one of them.
    let fast = device::ZeroFlags { fast_only: true, ..device::ZeroFlags::default() };
    let error = device.zero(LAST, 4096, fast).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Disconnected);
    device.reopen().unwrap();
    // The three that are there can have a lane each; one of them is the fourth client.
    let mut lanes: Vec<_> = (0..3).map(|_| device.lane().unwrap().unwrap()).collect();
    let mut numbers: Vec<u8> = Vec::new();
    for lane in &mut lanes {
        lane.start(0, Operation::Read { offset: 0, buffer: device::Buffer::zeroed(8) });
        let (_, outcome) = script::finish(&mut **lane).remove(0);
        let Ok(device::Outcome::Read(buffer)) = outcome else { panic!("{outcome:?}") };
        numbers.push(buffer[0]);
    }
    assert_eq!(numbers.iter().filter(|n| **n == 3).count(), 1, "{numbers:?}");
    assert_eq!(numbers.iter().filter(|n| **n < 3).count(), 2, "{numbers:?}");
}

#[test]
fn another_disk_is_not_taken_for_the_one_that_was_lost() {
    use TransmissionFlags as F;
    let blocks =
        |minimum, maximum| Some(wire::BlockConstraints { minimum, preferred: 4096, maximum });
    let with = |flags| ExportOffer { flags, ..offer(SIZE) };
    let before = ExportOffer { blocks: blocks(512, 1 << 20), ..several(SIZE) };
    for (now, said) in [
        (ExportOffer { size: SIZE + 512, ..before.clone() }, "size was 1048576 and is 1049088"),
        (ExportOffer { size: SIZE / 2, ..before.clone() }, "size was 1048576 and is 524288"),
        (with(before.flags.with(F::READ_ONLY)), "can no longer be written"),
        (ExportOffer { blocks: blocks(4096, 1 << 20), ..before.clone() }, "smallest block was 512"),
        (ExportOffer { blocks: blocks(512, 1 << 19), ..before.clone() }, "longest request was"),
        (ExportOffer { flags: before.flags.without(F::SEND_FLUSH), ..before.clone() }, "flush"),
        (ExportOffer { flags: before.flags.without(F::SEND_FUA), ..before.clone() }, "FUA"),
        (
            ExportOffer { flags: before.flags.without(F::CAN_MULTI_CONN), ..before.clone() },
            "several connections",
        ),
    ] {
        let server = changing(vec![before.clone(), now, before.clone()]);
        let device = server.open();
        device.read_at(&mut [0; 512], LAST).unwrap_err();
        let error = device.reopen().unwrap_err();
        assert_eq!((error.kind(), error.fault()), (ErrorKind::Protocol, Fault::Peer), "{error}");
        assert!(error.to_string().contains(said), "{error}");
        device.read_at(&mut [0; 512], 0).unwrap_err();
        // The connection comes back when the disk does.
        device.reopen().unwrap();
        device.read_at(&mut [0; 512], 0).unwrap();
    }
}

#[test]
fn abilities_with_a_fallback_may_come_and_go() {
    use TransmissionFlags as F;
    let less = F::HAS_FLAGS.with(F::SEND_FLUSH).with(F::SEND_FUA);
    let server = changing(vec![
        offer(SIZE),
        ExportOffer { flags: less, contexts: Vec::new(), ..offer(SIZE) },
    ]);
    let device = server.open();
    lose(&*device);
    device.reopen().unwrap();
    let fast = device::ZeroFlags { fast_only: true, ..device::ZeroFlags::default() };
    assert_eq!(device.zero(0, 4096, fast).unwrap_err().kind(), ErrorKind::NotFast);
    device.trim(0, 4096, true).unwrap();
    let edge = device::Edge::new(device, runtime::WorkPool::new(1));
    edge.zero(0, 4096, device::ZeroFlags::default()).unwrap();
    let mut extents = Vec::new();
    edge.resolve(0, SIZE, 9, &mut extents).unwrap();
    assert_eq!((extents.len(), extents[0].kind), (1, device::ExtentKind::Data));
}

#[test]
fn many_requests_at_once_share_one_new_connection() {
    const MANY: usize = 8;
    let clients = Arc::new(AtomicUsize::new(0));
    let asking = Arc::new(Barrier::new(MANY + 1));
    let (count, barrier) = (clients.clone(), asking.clone());
    let offers = move || {
        // The second client is accepted when all are asking for it.
        if count.fetch_add(1, Ordering::SeqCst) == 1 {
            barrier.wait();
        }
        offer(SIZE)
    };
    let server = Server::start_with(offers, structured(), numbered);
    let device = server.open();
    lose(&*device);
    std::thread::scope(|scope| {
        for _ in 0..MANY {
            scope.spawn(|| {
                asking.wait();
                device.reopen().unwrap();
                assert_eq!(number(&*device).unwrap(), 1);
            });
        }
        // One dials before all have come to the barrier, or the server would wait for it.
        scope.spawn(|| device.reopen().unwrap());
    });
    assert_eq!(clients.load(Ordering::SeqCst), 2);
}

#[test]
fn a_request_of_a_batch_does_not_lie_while_its_submitter_waits_for_another() {
    let server = Server::start(offer(SIZE), structured(), numbered);
    let device = server.open();
    let submit = || {
        let buffer = device::Buffer::zeroed(8);
        script::start(&*device, Operation::Read { offset: 0, buffer })
    };
    let answer = |told: mpsc::Receiver<device::Result<_>>| {
        told.recv_timeout(Duration::from_secs(60)).expect("a request lies")
    };
    let last = runtime::batch(|| {
        let first = submit();
        assert_eq!(number(&*device).unwrap(), 0);
        answer(first).unwrap();
        submit()
    });
    answer(last).unwrap();
    // Nor when the connection was lost meanwhile.
    let (before, after) = runtime::batch(|| {
        let before = submit();
        lose(&*device);
        (before, submit())
    });
    answer(before).unwrap();
    answer(after).unwrap_err();
}

#[test]
fn shared_all_clients_use_one_connection_and_may_be_several() {
    for (export, words) in [
        (offer(SIZE), &[][..]),
        (offer(SIZE), &["shared=true"]),
        (several(SIZE), &["connections=2"]),
    ] {
        let server = Server::start(export, structured(), numbered);
        let device = server.try_open_with(words).unwrap();
        assert!(greet(&*device).unwrap().is_none());
        assert!(device.info().abilities.multi_conn, "{words:?}");
    }
}

#[test]
fn apart_each_client_has_its_own_connection_and_may_be_several_if_the_server_says_so() {
    for (export, said) in [(offer(SIZE), false), (several(SIZE), true)] {
        let gone = Arc::new(AtomicUsize::new(0));
        let leaving = gone.clone();
        let server = Server::start(export, structured(), move |client| {
            numbered(client);
            leaving.fetch_add(1, Ordering::SeqCst);
        });
        let device = server.try_open_with(&["shared=false"]).unwrap();
        assert_eq!(device.info().abilities.multi_conn, said);
        let clients: Vec<_> = (0..3).map(|_| greet(&*device).unwrap().unwrap()).collect();
        for (i, client) in clients.iter().enumerate() {
            assert_eq!(client.info().abilities.multi_conn, said);
            assert_eq!(usize::from(number(&**client).unwrap()), i + 1);
        }
        // A lost one does not affect the others, nor those that come later.
        lose(&*clients[1]);
        number(&*clients[1]).unwrap_err();
        assert_eq!(number(&*clients[0]).unwrap(), 1);
        assert_eq!(number(&*clients[2]).unwrap(), 3);
        assert_eq!(number(&*device).unwrap(), 0);
        clients[1].reopen().unwrap();
        assert_eq!(number(&*clients[1]).unwrap(), 4);
        // A client that goes takes its connection along.
        drop(clients);
        let begun = Instant::now();
        while gone.load(Ordering::SeqCst) < 4 {
            assert!(begun.elapsed() < Duration::from_secs(60), "connections outlive their clients");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(number(&*device).unwrap(), 0);
    }
}

#[test]
fn apart_each_client_gets_what_the_server_advertises_now_or_the_reason_why_not() {
    let server = changing(vec![offer(SIZE), offer(2 * SIZE)]);
    let device = server.try_open_with(&["shared=false"]).unwrap();
    assert_eq!(greet(&*device).unwrap().unwrap().info().size, 2 * SIZE);
    assert_eq!(device.info().size, SIZE);
    // This server has no third offer: its thread is gone, and its socket with it.
    assert_eq!(greet(&*device).err().unwrap().kind(), ErrorKind::Disconnected);
}

#[test]
fn a_connection_that_was_given_is_the_only_one() {
    let server = Server::start(several(SIZE), structured(), numbered);
    let name = server.socket.trim_start_matches('@');
    let address = SocketAddr::from_abstract_name(name).unwrap();
    let socket = UnixStream::connect_addr(&address).unwrap();
    let open = |words: &[String]| {
        let params = Params::parse(words.iter().map(String::as_str)).unwrap();
        devices::kind("nbd").and_then(|nbd| {
            devices::Named::new(nbd, params)?
                .open(&OpenOptions::read_write(), &runtime::Context::default())
        })
    };
    let device = open(&[format!("socket-fd={}", socket.as_raw_fd())]).unwrap();
    drop(socket);
    assert_eq!(number(&*device).unwrap(), 0);
    assert_eq!(device.info().lanes.map_or(0, std::num::NonZeroUsize::get), 1);
    device.reopen().unwrap();
    lose(&*device);
    assert!(device.reopen().unwrap_err().to_string().contains("inherited"));
    // What is not a connection is refused.
    let file = std::fs::File::open("/dev/null").unwrap();
    let error = open(&[format!("socket-fd={}", file.as_raw_fd())]).err().unwrap();
    assert!(error.to_string().contains("take the connection"), "{error}");
}

#[test]
fn a_command_that_is_no_server_is_an_error_that_says_how_it_ended() {
    for (words, said) in [
        (["command=true", "export="], "`true` has ended (exit status: 0)"),
        (["command=/nonexistent/server", "arg=-f"], "`/nonexistent/server` has ended"),
    ] {
        let params = Params::parse(words).unwrap();
        let error = devices::kind("nbd").and_then(|nbd| {
            devices::Named::new(nbd, params)?
                .open(&OpenOptions::default(), &runtime::Context::default())
        });
        let error = error.err().unwrap();
        assert!(error.to_string().contains(said), "{error}");
        assert_eq!(error.fault(), Fault::User);
    }
}
