//! A connection has to prove that it is alive when another one is made beside it.

use crate::script;

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use blackbox::wait_for;
use device::{Buffer, Device, Lane, Operation, Outcome, Result};
use script::{Server, several, structured};
use trial::BlockingCalls;
use wire::Command;

const SIZE: u64 = 1 << 20;

#[test]
fn a_connection_that_has_much_to_answer_is_not_given_up_while_it_does() {
    // The second client is let in when the test says so.
    let (let_in, waits) = mpsc::channel::<()>();
    let (number, served) = (AtomicUsize::new(0), Arc::new(Mutex::new(Vec::new())));
    let seen = served.clone();
    let offers = move || {
        if number.fetch_add(1, SeqCst) == 1 {
            waits.recv().unwrap();
        }
        several(SIZE)
    };
    let server = Server::start_with(offers, structured(), move |mut client| {
        while let Some((request, _)) = client.request() {
            if request.kind() == Some(Command::Disconnect) {
                return;
            }
            if request.kind() == Some(Command::Read) && client.number == 0 && request.offset > 0 {
                // A slow disk, or a distant one: all of them take longer than a proof may.
                std::thread::sleep(Duration::from_millis(700));
            }
            seen.lock().unwrap().push((client.number, request.kind()));
            client.answer(&request, 7);
        }
    });
    let device = server.try_open_with(&["connections=2", "reconnect-delay=60"]).unwrap();
    device.write_at(&[7; 512], 0, false).unwrap();
    let (tell, told) = mpsc::channel();
    for block in 1..12 {
        let tell = tell.clone();
        let read = Operation::Read { offset: block * 4096, buffer: Buffer::zeroed(512) };
        device.submit(read, Box::new(move |outcome| tell.send(outcome).unwrap()));
    }
    let_in.send(()).unwrap();
    for _ in 1..12 {
        assert!(told.recv().unwrap().is_ok());
    }
    let lived = |number| served.lock().unwrap().iter().filter(|(one, _)| *one == number).count();
    while lived(1) == 0 {
        std::thread::yield_now();
    }
    // Before a flush fails, or a copy is made again, something must have been lost.
    device.flush().unwrap();
    assert_eq!(device.epoch(), 0);
    assert!(lived(0) >= 12, "the first connection answered all that it was asked");
}

/// Two clients of one disk, of which the first waits at [`HELD`] for the test, and then goes on or
/// is gone.
struct Busy {
    device: Arc<dyn Device>,
    served: Arc<Mutex<Vec<(usize, Command)>>>,
    let_in: mpsc::Sender<()>,
    go_on: mpsc::Sender<bool>,
}

/// Where the first client's server waits.
const HELD: u64 = 4096;

impl Busy {
    fn new() -> Self {
        let (let_in, waits) = mpsc::channel::<()>();
        let (go_on, goes_on) = mpsc::channel::<bool>();
        let (number, goes_on) = (AtomicUsize::new(0), Mutex::new(goes_on));
        let offers = move || {
            if number.fetch_add(1, SeqCst) == 1 {
                waits.recv().unwrap();
            }
            several(SIZE)
        };
        let served = Arc::new(Mutex::new(Vec::new()));
        let seen = served.clone();
        let server = Server::start_with(offers, structured(), move |mut client| {
            while let Some((request, _)) = client.request() {
                let kind = request.kind().unwrap();
                if kind == Command::Disconnect {
                    return;
                }
                let held = client.number == 0 && kind == Command::Read && request.offset == HELD;
                if held && !goes_on.lock().unwrap().recv().unwrap_or(false) {
                    return;
                }
                seen.lock().unwrap().push((client.number, kind));
                client.answer(&request, 7);
            }
        });
        let device = server.try_open_with(&["connections=2", "reconnect-delay=60"]).unwrap();
        Self { device, served, let_in, go_on }
    }

    fn start(&self, operation: Operation) -> mpsc::Receiver<Result<Outcome>> {
        script::start(&*self.device, operation)
    }

    fn hold(&self) -> mpsc::Receiver<Result<Outcome>> {
        self.start(read(HELD))
    }

    /// Accepts the other one, and waits until it is used.
    fn wait_for_the_other(&self) {
        self.let_in.send(()).unwrap();
        let mut asked = Vec::new();
        wait_for("the other connection is used", || {
            asked.push(self.start(read(8192)));
            asked.iter().any(|told| told.try_recv().is_ok())
        });
    }

    fn flushed(&self, number: usize) -> usize {
        let served = self.served.lock().unwrap();
        served.iter().filter(|one| **one == (number, Command::Flush)).count()
    }
}

fn read(offset: u64) -> Operation {
    Operation::Read { offset, buffer: Buffer::zeroed(512) }
}

#[test]
fn a_further_connection_waits_for_no_answer_of_the_others_but_no_flush_goes_over_it_before() {
    let busy = Busy::new();
    busy.device.write_at(&[7; 512], 0, false).unwrap();
    let held = busy.hold();
    busy.wait_for_the_other();
    assert!(held.try_recv().is_err(), "the first has not answered yet");
    busy.device.write_at(&[7; 512], 512, false).unwrap();
    let flush = busy.start(Operation::Flush);
    busy.device.read_at(&mut [0; 512], 8192).unwrap();
    assert!(flush.try_recv().is_err() && busy.flushed(1) == 0, "it waits for the first");
    busy.go_on.send(true).unwrap();
    assert!(held.recv().unwrap().is_ok() && flush.recv().unwrap().is_ok());
    assert_eq!((busy.flushed(0), busy.flushed(1), busy.device.epoch()), (1, 0, 0));
    // By now it has replied to everything since, so both are alike: a flush goes where there is
    // less to do.
    wait_for("a flush over the other connection", || {
        let (held, flush) = (busy.hold(), busy.start(Operation::Flush));
        busy.go_on.send(true).unwrap();
        assert!(held.recv().unwrap().is_ok() && flush.recv().unwrap().is_ok());
        busy.flushed(1) > 0
    });
    assert_eq!(busy.device.epoch(), 0);
}

#[test]
fn a_flush_over_a_connection_whose_server_may_be_another_fails_once_if_something_is_at_stake() {
    for flushed in [true, false] {
        let busy = Busy::new();
        busy.device.write_at(&[7; 512], 0, false).unwrap();
        if flushed {
            busy.device.flush().unwrap();
        }
        let held = busy.hold();
        busy.wait_for_the_other();
        let flush = busy.start(Operation::Flush);
        // It is silent from now on, and the other one's server may never have got what it was sent.
        busy.go_on.send(false).unwrap();
        assert!(held.recv().unwrap().is_ok(), "the other one reads it");
        assert_eq!(flush.recv().unwrap().is_ok(), flushed);
        assert_eq!(busy.device.epoch(), 1);
        busy.device.flush().unwrap();
    }
}

#[test]
fn a_lane_flushes_over_no_connection_that_is_in_doubt_either() {
    let busy = Busy::new();
    let turn = |lane: &mut dyn Lane, operation| {
        lane.start(1, operation);
        let _ = lane.turn(&mut Vec::new());
    };
    let mut first = busy.device.lane().unwrap().unwrap();
    turn(&mut *first, read(HELD));
    busy.wait_for_the_other();
    let mut second = busy.device.lane().unwrap().unwrap();
    second.start(1, read(8192));
    assert!(script::finish(&mut *second).remove(0).1.is_ok());
    turn(&mut *second, Operation::Flush);
    busy.device.read_at(&mut [0; 512], 8192).unwrap();
    assert_eq!((busy.flushed(0), busy.flushed(1)), (0, 0));
    busy.go_on.send(true).unwrap();
    assert!(script::finish(&mut *first).remove(0).1.is_ok());
    assert!(script::finish(&mut *second).remove(0).1.is_ok());
    assert_eq!((busy.flushed(0), busy.flushed(1), busy.device.epoch()), (1, 0, 0));
}
