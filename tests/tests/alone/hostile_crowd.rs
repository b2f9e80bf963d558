//! A thousand hostile clients at once: the server stays within the memory that it was given, and
//! honest clients get their replies.

use std::io::{ErrorKind, Write};
use std::time::Duration;

use blackbox::haggle::Haggler;
use blackbox::launch::{Serve, Server};
use blackbox::nbd::{IHAVEOPT, Message, cmd, opt};
use blackbox::session::{Mode, Request, Session};
use blackbox::socket::Socket;
use rustix::process::{Resource, getrlimit, setrlimit};

const MIB: u64 = 1 << 20;

/// Bytes that `--memory-limit` is set to.
const LIMIT: u64 = 64 * MIB;

/// What the server may hold beyond its limit, whatever its clients do.
const CONSTANT: u64 = 96 * MIB;

/// Clients of each kind.
const EACH: usize = 200;

/// What a hostile client keeps: its connection.
#[derive(Debug)]
enum Hostile {
    /// In the midst of a long payload.
    Slow(Session),
    /// Has asked for much, and reads nothing.
    Deaf { _session: Session },
    /// In the midst of an option, of which a part was sent.
    Half(Haggler),
    /// Has asked for many maps, and reads nothing.
    Maps { _session: Session },
    /// Says nothing at all.
    Silent { _socket: Socket },
}

impl Hostile {
    /// Goes on being hostile: sends a little more. It may have been cut off.
    fn go_on(&mut self) {
        let (socket, bytes) = match self {
            Self::Slow(session) => (&mut session.socket, 1),
            Self::Half(haggler) => (&mut haggler.socket, 1000),
            Self::Deaf { .. } | Self::Maps { .. } | Self::Silent { .. } => return,
        };
        offer(socket, &vec![0; bytes]);
    }
}

/// Sends what is taken at once.
fn offer(socket: &mut Socket, bytes: &[u8]) {
    socket.set_timeout(Duration::from_millis(20));
    if let Err(e) = socket.write_all(bytes) {
        assert!(
            matches!(
                e.kind(),
                ErrorKind::WouldBlock
                    | ErrorKind::TimedOut
                    | ErrorKind::BrokenPipe
                    | ErrorKind::ConnectionReset
            ),
            "{e}"
        );
    }
}

/// Header after header, as much as is taken.
fn pipeline(session: &mut Session, request: &Request, count: usize) {
    let bytes: Vec<u8> = (0..count)
        .flat_map(|_| {
            let cookie = session.register(request);
            session.bytes(request, cookie)
        })
        .collect();
    offer(&mut session.socket, &bytes);
}

fn hostile(number: usize, server: &Server) -> Hostile {
    let export = ["mem", "file"][number / 5 % 2];
    match number % 5 {
        0 => {
            let mut session = server.session(Mode::Structured, export);
            let head = Request { length: 32 * MIB, ..Request::new(cmd::WRITE, 0, 0) };
            let cookie = session.register(&head);
            let bytes = session.bytes(&head, cookie);
            offer(&mut session.socket, &bytes);
            offer(&mut session.socket, &[1; 100_000]);
            Hostile::Slow(session)
        }
        1 => {
            let mut session = server.session(Mode::Simple, export);
            pipeline(&mut session, &Request::new(cmd::READ, 0, 8 * MIB), 100);
            pipeline(&mut session, &Request::new(cmd::READ, 0, 4096), 1000);
            Hostile::Deaf { _session: session }
        }
        2 => {
            let mut haggler = server.haggle();
            let head = Message::new().u64(IHAVEOPT).u32(opt::GO).u32(1 << 20).0;
            offer(&mut haggler.socket, &head);
            offer(&mut haggler.socket, &[0; 150_000]);
            Hostile::Half(haggler)
        }
        3 => {
            let mut session = server.session(Mode::Structured, export);
            pipeline(&mut session, &Request::new(cmd::BLOCK_STATUS, 0, 16 * MIB), 1000);
            Hostile::Maps { _session: session }
        }
        _ => Hostile::Silent { _socket: server.connect() },
    }
}

/// Panics unless an honest client gets all of its replies.
fn is_served(server: &Server, export: &str) {
    let mut honest = server.session(Mode::Structured, export);
    for turn in 0..5 {
        let at = 17 * MIB + turn * 70_000;
        let bytes = vec![u8::try_from(turn).unwrap() + 1; 60_000];
        honest.write(at, &bytes);
        assert_eq!(honest.read(at, 60_000), Ok(bytes));
        assert_eq!(honest.read(at, 512).map(|bytes| bytes.len()), Ok(512));
        honest.status(0, MIB, 0).unwrap();
    }
    honest.disconnect();
}

#[test]
fn a_thousand_hostile_clients_stay_within_the_memory_that_was_given() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
    let temp = blackbox::temp::TempDir::new();
    let disk = temp.sparse_file("disk", 32 * MIB);
    let server = Serve::exports(&[("mem", "memory:32M"), ("file", disk.to_str().unwrap())])
        .option(format!("--memory-limit={LIMIT}"))
        .option("--max-connections=1500")
        .start();
    // A map of many extents: every other page is data.
    let mut first = server.session(Mode::Structured, "mem");
    let mut second = server.session(Mode::Structured, "file");
    for at in (0..16 * MIB).step_by(8192) {
        first.write(at, &[1; 4096]);
        second.write(at, &[1; 4096]);
    }
    first.disconnect();
    second.disconnect();

    let mut crowd: Vec<Hostile> = Vec::new();
    for number in 0..5 * EACH {
        crowd.push(hostile(number, &server));
        if number % 250 == 249 {
            is_served(&server, "mem");
            is_served(&server, "file");
        }
    }
    for _ in 0..3 {
        crowd.iter_mut().for_each(Hostile::go_on);
        is_served(&server, "mem");
        is_served(&server, "file");
    }
    let peak = server.peak_memory();
    // The pages of the memory export count as the server's, where it maps them.
    assert!(peak <= LIMIT + CONSTANT, "{} MiB of memory at the peak", peak / MIB);
    drop(crowd);
    is_served(&server, "mem");
}
