//! Whether a peer that must move bytes does: by their number in a window of time, not by signs of
//! life.
//!
//! A byte now and then costs an attacker nothing and would hold what others wait for. So a
//! connection in the middle of a payload, or with replies that its peer has not read, must move a
//! least number of bytes in each window of time; while others wait for memory the window is short,
//! and the number follows what the connection holds.

use std::time::{Duration, Instant};

use net::Stream;

/// The window, and the bytes that must move in it, as long as no other waits for memory.
const PATIENT: (Duration, u64) = (Duration::from_secs(300), 4 << 10);
/// The window while another does.
const SHORT: Duration = Duration::from_secs(10);
/// A connection that holds no more bytes than this is not worth closing.
pub(super) const TRIFLE: u64 = 64 << 10;
/// No more than this many bytes must move in a short window, however much is held.
const ENOUGH: u64 = 1 << 20;

/// What has moved so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moved {
    /// Bytes that came, and bytes that the socket took.
    bytes: u64,
    /// What it took and, as far as the system knows, the peer has not received.
    on_the_way: u64,
}

impl Moved {
    /// What has moved over `stream`, if these bytes were received and sent.
    pub(super) fn over(stream: &Stream, received: u64, sent: u64) -> Self {
        // A record of TLS does not count as received or sent before it is whole.
        let bytes = if stream.is_secure() { stream.carried() } else { received + sent };
        Self { bytes, on_the_way: stream.on_the_way() }
    }

    /// How many bytes that are since `before`. A socket takes more only when much has left it, so
    /// what left it counts, too.
    fn since(self, before: Self) -> u64 {
        let left = before.on_the_way.saturating_sub(self.on_the_way);
        self.bytes.saturating_sub(before.bytes).saturating_add(left)
    }
}

/// The pace of one connection: its windows, while its peer must move.
#[derive(Debug, Default)]
pub(super) struct Pace(Option<[PaceWindow; 2]>);

#[derive(Clone, Copy, Debug)]
struct PaceWindow {
    since: Instant,
    moved: Moved,
}

impl Pace {
    /// Nothing is expected of the peer: the windows start over.
    pub(super) fn rest(&mut self) {
        self.0 = None;
    }

    /// Whether a peer that must move, and has moved so much since it came, is too slow. `held`:
    /// bytes of memory that wait for it; `short`: another connection waits for them.
    pub(super) fn is_too_slow(
        &mut self,
        now: Instant,
        moved: Moved,
        held: u64,
        short: bool,
    ) -> bool {
        let opened = PaceWindow { since: now, moved };
        let [short_window, window] = self.0.get_or_insert([opened; 2]);
        let mut slow = false;
        if now.duration_since(short_window.since) >= SHORT {
            let wanted = (held / 8).clamp(TRIFLE, ENOUGH);
            slow = short && held > TRIFLE && moved.since(short_window.moved) < wanted;
            *short_window = opened;
        }
        if now.duration_since(window.since) >= PATIENT.0 {
            slow |= moved.since(window.moved) < PATIENT.1;
            *window = opened;
        }
        slow
    }
}

/// How long nothing at all has moved: this counts while a server stops.
#[derive(Debug)]
pub(super) struct Standstill {
    since: Instant,
    /// Counters at that time: they change when something moves.
    seen: [u64; 3],
}

impl Standstill {
    pub(super) fn new(now: Instant) -> Self {
        Self { since: now, seen: [0; 3] }
    }

    /// For how long it has lasted. `rests`: nothing is expected of the peer now.
    pub(super) fn lasts(&mut self, now: Instant, seen: [u64; 3], rests: bool) -> Duration {
        if rests || seen != self.seen {
            *self = Self { since: now, seen };
        }
        now.duration_since(self.since)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn after(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    /// So many bytes over a socket that keeps none.
    fn moved(bytes: u64) -> Moved {
        Moved { bytes, on_the_way: 0 }
    }

    #[test]
    fn a_byte_now_and_then_is_no_progress_while_others_wait() {
        let start = Instant::now();
        let mut pace = Pace::default();
        assert!(!pace.is_too_slow(start, moved(0), 8 * MIB, true));
        assert!(!pace.is_too_slow(after(start, 9), moved(3), 8 * MIB, true));
        assert!(pace.is_too_slow(after(start, 10), moved(4), 8 * MIB, true));
    }

    #[test]
    fn a_connection_that_moves_or_holds_little_is_left_alone() {
        let start = Instant::now();
        let mut pace = Pace::default();
        assert!(!pace.is_too_slow(start, moved(0), 8 * MIB, true));
        assert!(!pace.is_too_slow(after(start, 10), moved(MIB), 8 * MIB, true));
        assert!(!pace.is_too_slow(after(start, 20), moved(MIB), 10, true));
        assert!(!pace.is_too_slow(after(start, 30), moved(MIB), 8 * MIB, false));
    }

    fn sockets() -> [(Stream, Stream); 2] {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let unix = [OwnedFd::from(ours), theirs.into()];
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let theirs = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let tcp = [OwnedFd::from(listener.accept().unwrap().0), theirs.into()];
        [unix, tcp].map(|pair| {
            let [ours, theirs] = pair.map(|socket| Stream::new(socket).unwrap());
            ours.tune(net::Tuning { send_buffer: true, receive_buffer: false, patience: None });
            (ours, theirs)
        })
    }

    /// The socket reports no room until much of what it has taken has left.
    #[test]
    fn a_peer_that_reads_moves_long_before_the_socket_has_room() {
        for (ours, theirs) in sockets() {
            let (start, mut sent) = (Instant::now(), 0);
            let mut fill = || {
                while let n @ 1.. = ours.send(&[7; 65_536]).unwrap() {
                    sent += n as u64;
                }
                sent
            };
            // Bytes that still go over a socket of TCP fill the other side.
            let limit = Instant::now() + Duration::from_secs(60);
            let mut full = Moved::over(&ours, 0, fill());
            while Instant::now() < limit {
                std::thread::yield_now();
                let again = Moved::over(&ours, 0, fill());
                if (again.bytes, again.on_the_way) == (full.bytes, full.on_the_way) {
                    break;
                }
                full = again;
            }
            let mut pace = Pace::default();
            let mut slow = |seconds, short| {
                let now = Moved::over(&ours, 0, full.bytes);
                pace.is_too_slow(after(start, seconds), now, 8 * MIB, short)
            };
            assert!(!slow(0, false) && slow(300, false), "it reads nothing");
            let (mut left, mut room) = (full.on_the_way / 2, vec![0; 65_536]);
            while left > 0 {
                match theirs.receive(&mut room).unwrap() {
                    net::Received::Bytes(n) => left = left.saturating_sub(n as u64),
                    _ => panic!("it was full"),
                }
            }
            while ours.on_the_way() + (64 << 10) > full.on_the_way {
                assert!(Instant::now() < limit, "nothing leaves");
            }
            assert!(!slow(600, false), "it reads");
            assert!(slow(900, false), "and reads no more");
        }
    }

    #[test]
    fn what_leaves_a_full_socket_counts_while_memory_is_short() {
        let start = Instant::now();
        let mut pace = Pace::default();
        let mut slow = |seconds, bytes, on_the_way| {
            let moved = Moved { bytes, on_the_way };
            pace.is_too_slow(after(start, seconds), moved, 8 * MIB, true)
        };
        assert!(!slow(0, 4 * MIB, 4 * MIB));
        assert!(!slow(10, 4 * MIB, 3 * MIB), "a mebibyte has left");
        assert!(!slow(20, 6 * MIB, 4 * MIB), "the socket was filled again");
        assert!(slow(30, 6 * MIB, 4 * MIB - 1000));
    }

    #[test]
    fn a_byte_ends_a_standstill_and_so_does_a_disk_that_is_waited_for() {
        let start = Instant::now();
        let mut standstill = Standstill::new(start);
        let mut lasts =
            |seconds, seen, rests| standstill.lasts(after(start, seconds), seen, rests).as_secs();
        assert_eq!([lasts(1, [5, 0, 0], false), lasts(3, [5, 0, 0], false)], [0, 2]);
        assert_eq!([lasts(4, [5, 0, 9], false), lasts(7, [5, 0, 9], false)], [0, 3]);
        assert_eq!([lasts(8, [5, 0, 9], true), lasts(9, [5, 0, 9], false)], [0, 1]);
    }

    #[test]
    fn a_peer_that_stands_still_is_given_up_in_the_end_and_one_that_rested_is_not() {
        let start = Instant::now();
        let mut pace = Pace::default();
        assert!(!pace.is_too_slow(start, moved(0), 10, false));
        pace.rest();
        assert!(!pace.is_too_slow(after(start, 300), moved(0), 10, false));
        assert!(!pace.is_too_slow(after(start, 599), moved(0), 10, false));
        assert!(pace.is_too_slow(after(start, 600), moved(1), 10, false));
    }
}
