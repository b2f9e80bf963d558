//! What a client learns from refusals and errors: no name of the host, and not which names are
//! hidden from it.

use crate::client;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use client::disk;
use device::access::Rules;
use device::{
    Abilities, Client, Connected, Edge, Error, ErrorKind, Fault, Info, Listed, Operation, Session,
};
use runtime::WorkPool;
use server::{ListenAddress, Listener, Options, Server};
use serving::{Allowed, Export, Exports};
use trial::{Fate, TestDevice};

const LIST: u32 = 3;
const GO: u32 = 7;
const STRUCTURED_REPLY: u32 = 8;
const ACK: u32 = 1;
const ERR_POLICY: u32 = 0x8000_0002;
const ERR_PLATFORM: u32 = 0x8000_0004;
const ERR_UNKNOWN: u32 = 0x8000_0006;

/// The name of a disk that no client is to learn.
const SECRET: &str = "/customers/acme.raw";

fn export(name: &str, edge: Edge, rules: Option<&str>) -> Export {
    let rules = rules.map(|text| {
        let mut rules = Rules::default();
        rules.add(text).unwrap();
        rules
    });
    let (name, allow) = (name.to_owned(), Allowed::new(rules));
    Export { name, description: String::new(), edge, read_only: false, allow }
}

fn serve(exports: Vec<Export>) -> (Server, PathBuf) {
    let all = Exports::new();
    exports.into_iter().for_each(|export| assert!(all.add(export)));
    let listener = Listener::private().unwrap();
    let ListenAddress::Unix(path) = listener.place().clone() else { panic!("not a Unix socket") };
    (Server::start(all, vec![listener], &Options::default()).unwrap(), path)
}

fn greeted(path: &Path) -> UnixStream {
    let mut socket = UnixStream::connect(path).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    socket.read_exact(&mut [0; 18]).unwrap();
    socket.write_all(&[0, 0, 0, 3]).unwrap();
    socket
}

/// Sends an option; the type and the text of its last reply.
fn option(socket: &mut UnixStream, option: u32, data: &[u8]) -> (u32, String) {
    let mut sent = b"IHAVEOPT".to_vec();
    sent.extend(option.to_be_bytes());
    sent.extend(u32::try_from(data.len()).unwrap().to_be_bytes());
    sent.extend(data);
    socket.write_all(&sent).unwrap();
    loop {
        let mut header = [0; 20];
        socket.read_exact(&mut header).unwrap();
        let word = |at: usize| u32::from_be_bytes(header[at..at + 4].try_into().unwrap());
        let mut text = vec![0; usize::try_from(word(16)).unwrap()];
        socket.read_exact(&mut text).unwrap();
        if word(12) == ACK || word(12) >= 0x8000_0000 {
            return (word(12), String::from_utf8(text).unwrap());
        }
    }
}

fn go(socket: &mut UnixStream, name: &str) -> (u32, String) {
    let mut data = u32::try_from(name.len()).unwrap().to_be_bytes().to_vec();
    data.extend(name.as_bytes());
    data.extend([0, 0]);
    option(socket, GO, &data)
}

#[test]
fn in_clear_text_a_name_that_is_hidden_is_answered_as_one_that_does_not_exist() {
    let [open, secret, of_another, also_open] = [(); 4].map(|()| disk("memory:1M"));
    let (server, path) = serve(vec![
        export("open", open, None),
        export("secret", secret, Some("psk-user:alice")),
        export("of another", of_another, Some("uid:4294967294")),
    ]);
    assert_eq!(go(&mut greeted(&path), "open").0, ACK);
    let answer = go(&mut greeted(&path), "secret");
    for name in ["of another", "nothing", ""] {
        assert_eq!(go(&mut greeted(&path), name), answer, "{name:?}");
    }
    assert_ne!(answer.0, ERR_UNKNOWN, "there are two answers");
    drop(server);
    // Where nothing needs TLS there is nothing to find out.
    let (server, path) = serve(vec![export("open", also_open, None)]);
    assert_eq!(go(&mut greeted(&path), "nothing").0, ERR_UNKNOWN);
    drop(server);
}

#[test]
fn an_error_of_a_request_names_no_file_of_this_host() {
    let info = Info { abilities: Abilities::READ, ..Info::new(SECRET, 1 << 20) };
    let device = TestDevice::blank(info).hooked(|operation| match operation {
        Operation::Read { offset, .. } => {
            let cause = Error::os("open", rustix::io::Errno::IO);
            let error = Error::new(ErrorKind::Io, Fault::File, "read 512 bytes");
            Fate::Answer(Err(error.with_source(cause.on(SECRET)).on(SECRET).at(offset)))
        }
        other => Fate::done(other),
    });
    let (server, path) = serve(vec![export("disk", device.shared().edge(&WorkPool::new(1)), None)]);
    let mut socket = greeted(&path);
    assert_eq!(option(&mut socket, STRUCTURED_REPLY, &[]).0, ACK);
    assert_eq!(go(&mut socket, "disk").0, ACK);
    for len in [512, 1 << 18] {
        client::ask(&mut socket, 4096, len);
        let mut header = [0; 20];
        socket.read_exact(&mut header).unwrap();
        let mut text =
            vec![0; usize::try_from(u32::from_be_bytes(header[16..].try_into().unwrap())).unwrap()];
        socket.read_exact(&mut text).unwrap();
        let text = String::from_utf8_lossy(&text);
        assert!(text.contains("read 512 bytes at offset 4096: open: "), "{text}");
        assert!(!text.contains("acme"), "{text}");
    }
    drop(server);
}

/// Refuses its clients, and to say which names there are.
struct Refusing;

impl Refusing {
    fn refusal(kind: ErrorKind) -> Error {
        Error::new(kind, Fault::Peer, "the server closed the connection")
            .on("nbd+unix:///?socket=/up")
    }
}

impl Session for Refusing {
    fn connect(&self, client: &Client, done: Connected) {
        let is_known = client.export == "known";
        let kind = if is_known { ErrorKind::Disconnected } else { ErrorKind::NotFound };
        done(Err(Self::refusal(kind)));
    }

    fn is_chosen_by_name(&self) -> bool {
        true
    }

    fn list(&self, _: &Client, done: Listed) {
        done(Err(Self::refusal(ErrorKind::Io)));
    }
}

#[test]
fn a_refusal_of_a_disk_names_nothing_and_a_list_that_fails_is_an_error() {
    let device = TestDevice::blank(Info::new(SECRET, 1 << 20)).session_of(Arc::new(Refusing));
    let edge = device.shared().edge(&WorkPool::new(1));
    let (server, path) = serve(vec![export("disk", edge, None)]);
    let said = "the server closed the connection";
    let mut socket = greeted(&path);
    assert_eq!(go(&mut socket, "known"), (ERR_POLICY, said.to_owned()));
    assert_eq!(go(&mut socket, "other"), (ERR_UNKNOWN, said.to_owned()));
    assert_eq!(option(&mut socket, LIST, &[]), (ERR_PLATFORM, said.to_owned()));
    drop(server);
}
