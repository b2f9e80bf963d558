//! Clients that do what no client should. Whatever the server answers, or whether it does, they go
//! on.

use std::io::{ErrorKind, Read, Write};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use blackbox::dice::Dice;
use blackbox::haggle::option_bytes;
use blackbox::nbd::{Message, REQUEST, cmd, go_data, opt, rep};
use blackbox::run::{Job, ours};
use blackbox::socket::Socket;
use blackbox::{MIB, index};

use super::grounds::{At, SIZE};
use super::verifying::OWNED;
use super::{CONNECTIONS, wide};

/// How long each of them waits for the server.
const PATIENCE: Duration = Duration::from_millis(200);
/// Connections that each of them keeps at most.
const KEPT: usize = 60;

/// An attack, and a connection to be kept if there is one.
type Deed = fn(&At, &mut Dice) -> Option<Socket>;

const DEEDS: &[Deed] = &[
    at_the_greeting,
    in_an_option,
    drips_an_option,
    after_the_handshake,
    in_a_request,
    in_a_payload,
    never_reads,
    is_reset,
    talks_nonsense,
    begins_tls,
    fills_the_disk,
    zeroes_and_trims,
    is_killed,
];

/// One attack after the other, until it is stopped.
pub(crate) fn go_on(at: &At, mut dice: Dice, stop: &AtomicBool) {
    let mut kept: Vec<Socket> = Vec::new();
    while !stop.load(Relaxed) {
        kept.extend(dice.pick(DEEDS)(at, &mut dice));
        if kept.len() > KEPT {
            let one = kept.swap_remove(dice.below(kept.len()));
            leave(one, &mut dice);
        }
    }
    kept.into_iter().for_each(|one| leave(one, &mut dice));
}

fn leave(socket: Socket, dice: &mut Dice) {
    if dice.percent(50) {
        socket.reset();
    }
}

/// A connection that gives up soon.
fn connect(at: &At) -> Option<Socket> {
    let socket = at.connect()?;
    socket.set_timeout(PATIENCE);
    CONNECTIONS.fetch_add(1, Relaxed);
    Some(socket)
}

/// Says as much as is listened to within a while.
fn say(socket: &mut Socket, mut bytes: &[u8]) -> Option<()> {
    let begun = Instant::now();
    while !bytes.is_empty() && begun.elapsed() < PATIENCE {
        match socket.write(bytes) {
            Ok(n) => bytes = &bytes[n..],
            Err(e) if e.kind() == ErrorKind::WouldBlock => break,
            Err(_) => return None,
        }
    }
    Some(())
}

/// Reads the greeting, and sends the client's flags.
fn greeted(at: &At) -> Option<Socket> {
    let mut socket = connect(at)?;
    socket.read_exact(&mut [0; 18]).ok()?;
    say(&mut socket, &[0, 0, 0, 3])?;
    Some(socket)
}

/// Enters transmission.
fn entered(at: &At, dice: &mut Dice) -> Option<Socket> {
    let mut socket = greeted(at)?;
    let mut asks = vec![option_bytes(opt::GO, &go_data(b"", &[]))];
    if dice.percent(50) {
        asks.insert(0, option_bytes(opt::STRUCTURED_REPLY, &[]));
    }
    for ask in asks {
        say(&mut socket, &ask)?;
        loop {
            let mut head = [0; 20];
            socket.read_exact(&mut head).ok()?;
            let number = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
            let mut data = vec![0; index(number(16).into())];
            socket.read_exact(&mut data).ok()?;
            match number(12) {
                rep::ACK => break,
                kind if kind & rep::ERROR != 0 => return None,
                _ => {}
            }
        }
    }
    Some(socket)
}

fn request(command: u16, offset: u64, length: u64) -> Vec<u8> {
    let length = u32::try_from(length).unwrap();
    Message::new().u32(REQUEST).u16(0).u16(command).u64(7).u64(offset).u32(length).0
}

fn at_the_greeting(at: &At, dice: &mut Dice) -> Option<Socket> {
    let mut socket = connect(at)?;
    if dice.percent(50) {
        say(&mut socket, &[0, 0])?;
    }
    Some(socket)
}

fn in_an_option(at: &At, dice: &mut Dice) -> Option<Socket> {
    let mut socket = greeted(at)?;
    let option = option_bytes(dice.pick(&[opt::GO, opt::LIST, 99]), &vec![7; 60_000]);
    let part = dice.below(option.len());
    say(&mut socket, &option[..part])?;
    Some(socket)
}

fn drips_an_option(at: &At, dice: &mut Dice) -> Option<Socket> {
    let mut socket = greeted(at)?;
    let option = option_bytes(opt::GO, &go_data(&[b'x'; 3000], &[]));
    for byte in &option[..dice.below(40)] {
        say(&mut socket, &[*byte])?;
        sleep(Duration::from_millis(2));
    }
    Some(socket)
}

fn after_the_handshake(at: &At, dice: &mut Dice) -> Option<Socket> {
    entered(at, dice)
}

fn in_a_request(at: &At, dice: &mut Dice) -> Option<Socket> {
    let mut socket = entered(at, dice)?;
    let head = request(cmd::READ, 0, 4096);
    say(&mut socket, &head[..dice.between(1, head.len() - 1)])?;
    Some(socket)
}

fn in_a_payload(at: &At, dice: &mut Dice) -> Option<Socket> {
    let mut socket = entered(at, dice)?;
    let length = dice.pick(&[8192, MIB, 16 * MIB]);
    say(&mut socket, &request(cmd::WRITE, OWNED, length))?;
    let part = dice.below(index(length.min(2 * MIB)));
    say(&mut socket, &vec![7; part])?;
    Some(socket)
}

fn never_reads(at: &At, dice: &mut Dice) -> Option<Socket> {
    let mut socket = entered(at, dice)?;
    let (length, times) = dice.pick(&[(4096, 2000), (256 << 10, 200), (8 * MIB, 30)]);
    let offset = wide(dice.below(index(SIZE - length)));
    let _ = say(&mut socket, &request(cmd::READ, offset, length).repeat(times));
    Some(socket)
}

fn is_reset(at: &At, dice: &mut Dice) -> Option<Socket> {
    for _ in 0..dice.between(1, 20) {
        reset_somewhere(at, dice);
    }
    None
}

/// A connection that is broken at some stage.
fn reset_somewhere(at: &At, dice: &mut Dice) {
    let stage = dice.below(4);
    let socket = match stage {
        0 => connect(at),
        1 => greeted(at),
        _ => entered(at, dice),
    };
    let Some(mut socket) = socket else { return };
    if stage == 3 {
        let _ = say(&mut socket, &request(cmd::READ, 0, MIB).repeat(8));
    }
    socket.reset();
}

fn talks_nonsense(at: &At, dice: &mut Dice) -> Option<Socket> {
    let mut socket = match dice.below(3) {
        0 => connect(at)?,
        1 => greeted(at)?,
        _ => entered(at, dice)?,
    };
    let bytes: Vec<u8> = (0..dice.below(5000)).map(|_| dice.number().to_le_bytes()[0]).collect();
    say(&mut socket, &bytes)?;
    let _ = socket.read(&mut [0; 4096]);
    Some(socket)
}

fn begins_tls(at: &At, dice: &mut Dice) -> Option<Socket> {
    let mut socket = greeted(at)?;
    let mut bytes = option_bytes(opt::STARTTLS, &[]);
    if dice.percent(20) {
        bytes.extend(option_bytes(opt::LIST, &[]));
    }
    say(&mut socket, &bytes)?;
    socket.read_exact(&mut [0; 20]).ok()?;
    // The beginning of a ClientHello, or none.
    let hello = [0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3];
    say(&mut socket, if dice.percent(50) { &hello[..] } else { &[0xff; 100][..] })?;
    Some(socket)
}

fn fills_the_disk(at: &At, dice: &mut Dice) -> Option<Socket> {
    let mut socket = entered(at, dice)?;
    for _ in 0..8 {
        let offset = OWNED + wide(dice.below(index(SIZE - OWNED - MIB)));
        let mut write = request(cmd::WRITE, offset, MIB);
        write.resize(write.len() + index(MIB), 7);
        say(&mut socket, &write)?;
    }
    Some(socket)
}

fn zeroes_and_trims(at: &At, dice: &mut Dice) -> Option<Socket> {
    let mut socket = entered(at, dice)?;
    let command = dice.pick(&[cmd::WRITE_ZEROES, cmd::TRIM]);
    say(&mut socket, &request(command, OWNED, SIZE - OWNED))?;
    let _ = socket.read(&mut [0; 4096]);
    None
}

fn is_killed(at: &At, dice: &mut Dice) -> Option<Socket> {
    let copy = Job::start(&mut ours(["copy", &at.uri(), "null:"]));
    sleep(Duration::from_millis(wide(dice.below(150))));
    // Its drop kills it.
    drop(copy);
    None
}

/// So many connections, each broken at some stage.
pub(crate) fn storm(at: &At, connections: usize) {
    scope(|scope| {
        for number in 0..4 {
            scope.spawn(move || {
                let mut dice = Dice::new(number);
                (0..connections / 4).for_each(|_| reset_somewhere(at, &mut dice));
            });
        }
    });
}

/// Does something while this many silent clients are connected.
pub(crate) fn with_idle_clients(at: &At, clients: usize, work: impl FnOnce()) {
    let mut dice = Dice::new(1);
    let all: Vec<_> = (0..clients).filter_map(|_| entered(at, &mut dice)).collect();
    assert_eq!(all.len(), clients, "all are let in");
    work();
}
