//! What a connection has to prove when another one is made beside it.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod script;

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use device::{Buffer, Operation};
use script::{Server, data, offer, simple, structured};
use trial::Direct;
use wire::{Command, ExportOffer, TransmissionFlags};

const SIZE: u64 = 1 << 20;

#[test]
fn a_connection_that_has_much_to_answer_is_not_given_up_while_it_does() {
    // The second client is let in when the test says so.
    let (let_in, waits) = mpsc::channel::<()>();
    let (number, served) = (AtomicUsize::new(0), Arc::new(Mutex::new(Vec::new())));
    let flags = script::EVERYTHING.with(TransmissionFlags::CAN_MULTI_CONN);
    let seen = served.clone();
    let offers = move || {
        if number.fetch_add(1, SeqCst) == 1 {
            waits.recv().unwrap();
        }
        ExportOffer { flags, ..offer(SIZE) }
    };
    let server = Server::start_with(offers, structured(), move |mut client| {
        while let Some((request, _)) = client.request() {
            let answer = match request.kind().unwrap() {
                Command::Disconnect => return,
                Command::Read => {
                    if client.number == 0 && request.offset > 0 {
                        // A slow disk, or a long way: all of them take longer than a proof may.
                        std::thread::sleep(Duration::from_millis(700));
                    }
                    let bytes = vec![7; usize::try_from(request.length).unwrap()];
                    data(request.cookie, true, request.offset, &bytes)
                }
                _ => simple(request.cookie, 0),
            };
            seen.lock().unwrap().push((client.number, request.kind()));
            client.send(&answer);
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
