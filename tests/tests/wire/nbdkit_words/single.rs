//! One client on standard input and output.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use blackbox::haggle::{Haggler, option_bytes};
use blackbox::nbd::{Message, REQUEST, cmd, opt};
use blackbox::peers::diskferry;
use blackbox::run::{Job, ours};
use blackbox::socket::Socket;
use blackbox::{GUARD, MIB};
use rustix::process::Signal;

#[test]
fn one_client_on_two_pipes_is_served_to_the_last_byte() {
    // Two pipes cannot be one socket; a large read does not fit into them at once.
    let mut command = ours(["serve", "--single", "pattern", "8M"]);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the server");
    let (mut to, mut from) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let mut greeting = [0; 18];
    from.read_exact(&mut greeting).unwrap();
    assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
    let request = |command, length: u32| {
        Message::new().u32(REQUEST).u16(0).u16(command).u64(7).u64(0).u32(length).0
    };
    let flags = 3u32.to_be_bytes().to_vec();
    let name = option_bytes(opt::EXPORT_NAME, &[]);
    let ask = [flags, name, request(cmd::READ, 8 << 20), request(cmd::DISC, 0)].concat();
    to.write_all(&ask).unwrap();
    drop(to);
    let mut all = Vec::new();
    from.read_to_end(&mut all).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(all.len(), 10 + 16 + (8 << 20));
    assert_eq!(all[10..14], [0x67, 0x44, 0x66, 0x98]);
    assert_eq!(all[all.len() - 8..], (8u64 * MIB - 8).to_be_bytes());
}

/// A server on one end of a socket pair, as inetd would start it.
fn single(words: &[&str]) -> (Job, Socket) {
    let (here, there) = UnixStream::pair().unwrap();
    // The job collects standard output, so the shell moves the socket there.
    let mut shell = Command::new("sh");
    let quoted: Vec<String> = words.iter().map(|w| format!("'{w}'")).collect();
    let script = format!("exec {} serve -s {} 1>&0", diskferry().display(), quoted.join(" "));
    shell.args(["-c", &script]).stdin(Stdio::from(OwnedFd::from(there)));
    let socket = Socket::Unix(here);
    socket.set_timeout(GUARD);
    (Job::start(&mut shell), socket)
}

#[test]
fn one_client_on_one_socket_is_served_and_then_the_server_ends() {
    let (job, socket) = single(&["memory", "1M"]);
    let mut session = Haggler::new(socket).go("");
    session.assert_alive();
    session.disconnect();
    job.wait().succeeded();
}

#[test]
fn the_only_client_that_hangs_up_ends_the_server() {
    let (job, mut socket) = single(&["memory", "1M"]);
    socket.receive(18, "the greeting");
    drop(socket);
    job.wait().succeeded();
}

#[test]
fn a_signal_ends_a_server_of_one_client() {
    let (job, mut socket) = single(&["memory", "1M"]);
    socket.receive(18, "the greeting");
    job.signal(Signal::TERM);
    socket.drain();
    drop(socket);
    job.wait().succeeded();
}
