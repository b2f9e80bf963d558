//! How many connections there are under callers without a lane, as the clients of a proxy.

use crate::script;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use device::Device;
use script::{Client, Server, offer, structured};
use trial::BlockingCalls;
use wire::Command;

const SIZE: u64 = 8 << 20;

/// How many connections there are, and were at most.
#[derive(Clone, Default)]
struct Count(Arc<(AtomicUsize, AtomicUsize)>);

impl Count {
    fn now(&self) -> usize {
        self.0.0.load(SeqCst)
    }

    fn most(&self) -> usize {
        self.0.1.load(SeqCst)
    }

    /// Answers one read after the other, each 3 ms later: so another connection helps a caller with
    /// much to do.
    fn serve(&self, mut client: Client) {
        let now = self.0.0.fetch_add(1, SeqCst) + 1;
        self.0.1.fetch_max(now, SeqCst);
        while let Some((request, _)) = client.request() {
            if request.kind() == Some(Command::Read) {
                std::thread::sleep(Duration::from_millis(3));
            }
            client.answer(&request, 7);
        }
        self.0.0.fetch_sub(1, SeqCst);
    }
}

fn serve(several: bool) -> (Count, Server) {
    let count = Count::default();
    let same = count.clone();
    let export = if several { script::several(SIZE) } else { offer(SIZE) };
    let server = Server::start(export, structured(), move |client| same.serve(client));
    (count, server)
}

/// This many clients read, each one block after the other, until `enough`; whether that was reached
/// in `seconds`.
fn read_until(
    device: &Arc<dyn Device>,
    clients: u64,
    seconds: u64,
    enough: impl Fn() -> bool,
) -> bool {
    let (stop, until) = (AtomicBool::new(false), Instant::now() + Duration::from_secs(seconds));
    std::thread::scope(|scope| {
        for client in 0..clients {
            let stop = &stop;
            scope.spawn(move || {
                for block in (client..).step_by(usize::try_from(clients).unwrap()) {
                    if stop.load(SeqCst) {
                        return;
                    }
                    let mut bytes = [0; 4096];
                    device.read_at(&mut bytes, block * 4096 % SIZE).unwrap();
                    assert_eq!(bytes, [7; 4096]);
                }
            });
        }
        while !enough() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
        stop.store(true, SeqCst);
    });
    enough()
}

/// Much is asked for, then nothing, then much again.
fn grows_and_shrinks(count: &Count, device: &Arc<dyn Device>) {
    assert!(count.now() <= 1);
    // One that seems to be of no help, because the machine was busy, is tried again a minute later.
    assert!(read_until(device, 24, 200, || count.now() > 2), "{}", count.most());
    assert!(count.most() <= 8);
    let begun = Instant::now();
    while count.now() > 1 {
        assert!(begun.elapsed() < Duration::from_secs(60), "{}", count.now());
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(read_until(device, 24, 200, || count.now() > 1), "and again");
}

#[test]
fn many_clients_get_more_connections_as_they_help_and_the_server_is_left_with_one_afterwards() {
    let (count, server) = serve(true);
    grows_and_shrinks(&count, &server.try_open(8).unwrap());
}

#[test]
fn what_is_only_read_gets_more_connections_without_a_promise_too() {
    let (count, server) = serve(false);
    grows_and_shrinks(&count, &server.open_to_read(8));
}

#[test]
fn one_client_that_waits_for_each_answer_keeps_one_connection() {
    let (count, server) = serve(true);
    let device = server.try_open(8).unwrap();
    assert!(!read_until(&device, 1, 2, || count.most() > 1), "{}", count.most());
}

#[test]
fn what_is_written_keeps_one_connection_where_the_server_promises_nothing() {
    let (count, server) = serve(false);
    let device = server.try_open(8).unwrap();
    assert!(!read_until(&device, 16, 2, || count.most() > 1), "{}", count.most());
}
