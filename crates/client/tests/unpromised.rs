//! A server that does not advertise multi-conn: it is read over several connections where that
//! helps, and whatever it does with the second one costs nothing.

use crate::script;

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use device::{Buffer, Device, Lane, Operation, Outcome};
use script::{Client, Server, data, offer, structured};
use trial::BlockingCalls;
use wire::Command;

const SIZE: u64 = 8 << 20;
const MINUTE: Duration = Duration::from_secs(60);

/// Which connection was asked to read where.
type Asked = Arc<Mutex<Vec<(usize, u64)>>>;

/// Answers reads with `fill`, after `pause` each.
fn serve(mut client: Client, asked: &Asked, fill: u8, pause: Duration) {
    while let Some((request, _)) = client.request() {
        if request.kind() == Some(Command::Read) {
            asked.lock().unwrap().push((client.number, request.offset));
        }
        std::thread::sleep(pause);
        client.answer(&request, fill);
    }
}

/// Reads 64 KiB after 64 KiB over a lane until `enough`; each must be full of `fill`. How many
/// there were.
fn read_until(lane: &mut dyn Lane, fill: u8, enough: impl Fn(u64) -> bool) -> u64 {
    const LEN: usize = 64 << 10;
    let (mut started, mut ended, begun) = (0u64, 0u64, Instant::now());
    loop {
        while !enough(ended) && lane.in_flight() < 8 {
            assert!(begun.elapsed() < MINUTE, "after {ended} reads it is not enough");
            let offset = started * (LEN as u64) % SIZE;
            lane.start(started, Operation::Read { offset, buffer: Buffer::zeroed(LEN) });
            started += 1;
        }
        if lane.in_flight() == 0 {
            return ended;
        }
        for (_, outcome) in script::turn_or_wait(lane) {
            let Ok(Outcome::Read(bytes)) = outcome else { panic!("{outcome:?}") };
            assert!(bytes.iter().all(|byte| *byte == fill));
            ended += 1;
        }
    }
}

fn lane(device: &Arc<dyn Device>) -> Box<dyn Lane> {
    assert_eq!(
        device.info().lanes.map(usize::from),
        Some(1),
        "no lane is to wait for another connection"
    );
    device.lane().unwrap().unwrap()
}

#[test]
fn it_is_read_over_several_connections_by_one_lane_where_they_help() {
    let asked = Asked::default();
    let theirs = asked.clone();
    let server = Server::start(offer(SIZE), structured(), move |client| {
        serve(client, &theirs, 7, Duration::from_millis(5));
    });
    let device = server.open_to_read(4);
    // What is compared first are fewer.
    let read_by_another = || {
        let asked = asked.lock().unwrap();
        asked.iter().filter(|(number, _)| *number > 0).count() > 80
    };
    read_until(&mut *lane(&device), 7, |_| read_by_another());
}

#[test]
fn what_is_written_has_one_connection() {
    let (asked, clients) = (Asked::default(), Arc::new(AtomicUsize::new(0)));
    let (theirs, count) = (asked.clone(), clients.clone());
    let server = Server::start(offer(SIZE), structured(), move |client| {
        count.fetch_add(1, SeqCst);
        serve(client, &theirs, 7, Duration::from_millis(5));
    });
    let device = server.try_open_with(&["connections=4"]).unwrap();
    read_until(&mut *lane(&device), 7, |ended| ended > 200);
    assert_eq!(clients.load(SeqCst), 1);
}

/// What a server does with every client but the first.
#[derive(Clone, Copy, Debug)]
enum Second {
    /// It hangs up.
    Refused,
    /// It never sends a byte.
    Ignored,
    /// It has another disk.
    Another,
    /// It hangs up at the first request.
    Lost,
    /// It never answers one.
    Mute,
}

#[test]
fn a_second_connection_that_comes_to_nothing_is_tried_once_and_costs_nothing() {
    for second in [Second::Refused, Second::Ignored, Second::Another, Second::Lost, Second::Mute] {
        let asked = Asked::default();
        let theirs = asked.clone();
        let tries = Arc::new(AtomicUsize::new(0));
        let count = tries.clone();
        let offers = move || {
            let number = count.fetch_add(1, SeqCst);
            match second {
                Second::Ignored if number > 0 => loop {
                    std::thread::park();
                },
                // The listener's thread ends, and the socket with it.
                Second::Refused if number > 0 => std::panic::resume_unwind(Box::new(())),
                _ => offer(SIZE),
            }
        };
        let server = Server::start_with(offers, structured(), move |mut client| {
            match (client.number, second) {
                (0, _) => serve(client, &theirs, 7, Duration::from_millis(5)),
                (_, Second::Another) => serve(client, &theirs, 8, Duration::ZERO),
                (_, Second::Lost) => drop(client.request()),
                _ => client.drain(),
            }
        });
        let device = server.open_to_read(4);
        let mut lane = lane(&device);
        // It is asked for, and for some time after that all goes on as it was.
        read_until(&mut *lane, 7, |_| tries.load(SeqCst) > 1);
        read_until(&mut *lane, 7, |ended| ended > 100);
        assert_eq!(tries.load(SeqCst), 2, "{second:?}: it is asked for again and again");
        // Nothing waits for it in the end either.
        drop((lane, device));
    }
}

#[test]
fn of_several_lost_connections_one_reconnects_and_the_others_as_they_help() {
    let (asked, gone) = (Asked::default(), Arc::new(AtomicUsize::new(usize::MAX)));
    let (theirs, over) = (asked.clone(), gone.clone());
    let server = Server::start(offer(SIZE), structured(), move |mut client| {
        while let Some((request, _)) = client.request() {
            let before = over.load(SeqCst);
            if request.kind() == Some(Command::Disconnect)
                || before != usize::MAX && client.number <= before
            {
                return;
            }
            theirs.lock().unwrap().push((client.number, request.offset));
            std::thread::sleep(Duration::from_millis(5));
            let bytes = vec![7; usize::try_from(request.length).unwrap()];
            client.send(&data(request.cookie, true, request.offset, &bytes));
        }
    });
    let device = server.open_to_read(4);
    let latest = || asked.lock().unwrap().iter().map(|(number, _)| *number).max().unwrap_or(0);
    let before = {
        let mut lane = lane(&device);
        read_until(&mut *lane, 7, |_| latest() > 0);
        let before = latest();
        gone.store(before, SeqCst);
        lane.start(0, Operation::Read { offset: 0, buffer: Buffer::zeroed(512) });
        assert!(script::finish(&mut *lane).remove(0).1.is_err());
        before
    };
    device.session().unwrap().reopen().unwrap();
    device.read_at(&mut [0; 512], 0).unwrap();
    assert_eq!(latest(), before + 1, "one for all of them");
}
