//! The client's side of the handshake, byte by byte, for testing servers.
//!
//! It panics on anything that the protocol forbids a server to send. Errors that a server may
//! answer with are returned, so that each check says which ones it accepts.

use crate::nbd::{
    BASE_ALLOCATION, Cursor, FIXED_NEWSTYLE, IHAVEOPT, Message, NBDMAGIC, NO_ZEROES, OPTION_REPLY,
    context_data, go_data, info, opt, rep, tflag,
};
use crate::session::{Mode, Session};
use crate::socket::Socket;

/// One reply to an option.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OptionReply {
    /// ACK, SERVER, INFO, META_CONTEXT or an error.
    pub kind: u32,
    /// What follows the header.
    pub data: Vec<u8>,
}

impl OptionReply {
    /// Whether it is an error reply.
    pub fn is_error(&self) -> bool {
        self.kind & rep::ERROR != 0
    }
}

/// The reply of INFO or GO about an export.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Export {
    /// Size in bytes.
    pub size: u64,
    /// Transmission flags.
    pub flags: u16,
    /// Minimum, preferred and maximum block size in bytes, if advertised.
    pub block_sizes: Option<(u32, u32, u32)>,
    /// Canonical name, if sent.
    pub name: Option<String>,
    /// Description, if sent.
    pub description: Option<String>,
}

/// A connection in the option phase.
#[derive(Debug)]
pub struct Haggler {
    /// The connection.
    pub socket: Socket,
    /// What the server's greeting offered.
    pub offered: u16,
    pub(crate) mode: Mode,
    pub(crate) contexts: Vec<(u32, String)>,
}

impl Haggler {
    /// Reads the greeting and sends the given client flags.
    pub fn with_flags(mut socket: Socket, flags: u32) -> Self {
        let greeting = socket.receive(18, "the greeting");
        let mut cursor = Cursor(&greeting);
        assert_eq!(cursor.u64(), NBDMAGIC, "greeting {greeting:02x?}");
        assert_eq!(cursor.u64(), IHAVEOPT, "greeting {greeting:02x?}");
        let offered = cursor.u16();
        assert_eq!(offered & !(FIXED_NEWSTYLE | NO_ZEROES), 0, "unknown handshake flags");
        socket.send(&flags.to_be_bytes());
        Self { socket, offered, mode: Mode::Simple, contexts: Vec::new() }
    }

    /// Reads the greeting and answers with fixed newstyle and no zeroes.
    pub fn new(socket: Socket) -> Self {
        Self::with_flags(socket, u32::from(FIXED_NEWSTYLE | NO_ZEROES))
    }

    /// Sends an option and does not wait.
    pub fn send(&mut self, option: u32, data: &[u8]) {
        self.socket.send(&option_bytes(option, data));
    }

    /// Reads one reply, which must belong to `option`.
    pub fn reply(&mut self, option: u32) -> OptionReply {
        let head = self.socket.receive(20, "an option reply");
        let mut cursor = Cursor(&head);
        assert_eq!(cursor.u64(), OPTION_REPLY, "option reply {head:02x?}");
        assert_eq!(cursor.u32(), option, "the reply names another option: {head:02x?}");
        let (kind, size) = (cursor.u32(), cursor.u32());
        assert!(size <= 1 << 20, "an option reply of {size} bytes");
        let data = self.socket.receive(size.try_into().unwrap(), "an option reply's data");
        let reply = OptionReply { kind, data };
        match kind {
            rep::ACK => assert!(reply.data.is_empty(), "ACK with data: {reply:02x?}"),
            rep::SERVER | rep::INFO | rep::META_CONTEXT => {}
            _ => assert!(
                (rep::UNSUP..=rep::EXT_HEADER_REQD).contains(&kind),
                "unknown reply type: {reply:02x?}"
            ),
        }
        if reply.is_error() {
            assert!(reply.data.len() <= 4096, "an error message of {} bytes", reply.data.len());
            assert!(std::str::from_utf8(&reply.data).is_ok(), "message not UTF-8: {reply:02x?}");
        }
        reply
    }

    /// Sends an option and reads its replies up to the final one, which comes last.
    pub fn ask(&mut self, option: u32, data: &[u8]) -> Vec<OptionReply> {
        self.send(option, data);
        self.replies(option)
    }

    /// Reads replies up to the final one.
    pub fn replies(&mut self, option: u32) -> Vec<OptionReply> {
        let mut replies = vec![self.reply(option)];
        while !replies.last().is_some_and(|r| r.kind == rep::ACK || r.is_error()) {
            assert!(replies.len() < 100_000, "endless replies");
            replies.push(self.reply(option));
        }
        replies
    }

    /// Sends an option and returns the type of its final reply.
    pub fn outcome(&mut self, option: u32, data: &[u8]) -> u32 {
        self.ask(option, data).last().unwrap().kind
    }

    /// Panics unless an ordinary option still works: the server is alive and in step.
    pub fn assert_alive(&mut self) {
        let replies = self.ask(opt::LIST, &[]);
        let (last, servers) = replies.split_last().unwrap();
        // A server may refuse to list; what counts is that it understood.
        assert!(last.kind == rep::ACK || last.is_error(), "LIST: {replies:02x?}");
        assert!(servers.iter().all(|r| r.kind == rep::SERVER), "LIST: {replies:02x?}");
    }

    /// The names and descriptions that LIST returns.
    pub fn list(&mut self) -> Vec<(String, String)> {
        let replies = self.ask(opt::LIST, &[]);
        let (last, servers) = replies.split_last().unwrap();
        assert_eq!(last.kind, rep::ACK, "LIST: {replies:02x?}");
        servers
            .iter()
            .map(|reply| {
                assert_eq!(reply.kind, rep::SERVER, "LIST: {replies:02x?}");
                let mut cursor = Cursor(&reply.data);
                let size = cursor.u32();
                (text(cursor.bytes(size.try_into().unwrap())), text(cursor.0))
            })
            .collect()
    }

    /// Asks for structured replies; false when the server refuses.
    pub fn structured(&mut self) -> bool {
        let agreed = self.outcome(opt::STRUCTURED_REPLY, &[]) == rep::ACK;
        if agreed {
            self.mode = Mode::Structured;
        }
        agreed
    }

    /// Asks for extended headers; false when the server refuses.
    pub fn extended(&mut self) -> bool {
        let agreed = self.outcome(opt::EXTENDED_HEADERS, &[]) == rep::ACK;
        if agreed {
            self.mode = Mode::Extended;
        }
        agreed
    }

    /// LIST_META_CONTEXT or SET_META_CONTEXT: the contexts returned, or the error.
    pub fn contexts(
        &mut self,
        option: u32,
        export: &str,
        queries: &[&str],
    ) -> Result<Vec<(u32, String)>, u32> {
        let replies = self.ask(option, &context_data(export, queries));
        let (last, found) = replies.split_last().unwrap();
        if last.kind != rep::ACK {
            return Err(last.kind);
        }
        let list = found
            .iter()
            .map(|reply| {
                assert_eq!(reply.kind, rep::META_CONTEXT, "{replies:02x?}");
                let mut cursor = Cursor(&reply.data);
                (cursor.u32(), text(cursor.0))
            })
            .collect();
        Ok(list)
    }

    /// Selects contexts, for the session that follows.
    pub fn set_contexts(&mut self, export: &str, queries: &[&str]) -> Vec<(u32, String)> {
        let set = self.contexts(opt::SET_META_CONTEXT, export, queries).unwrap();
        self.contexts.clone_from(&set);
        set
    }

    /// INFO or GO: what is known of the export, or the error.
    pub fn export(&mut self, option: u32, name: &str, ids: &[u16]) -> Result<Export, u32> {
        let replies = self.ask(option, &go_data(name.as_bytes(), ids));
        let (last, infos) = replies.split_last().unwrap();
        if last.kind != rep::ACK {
            return Err(last.kind);
        }
        Ok(parse_export(infos))
    }

    /// A session in this form, with base:allocation where it has contexts, on an export that must
    /// exist.
    pub fn session(mut self, mode: Mode, export: &str) -> Session {
        let is_agreed = match mode {
            Mode::Simple => true,
            Mode::Structured => self.structured(),
            Mode::Extended => self.extended(),
        };
        assert!(is_agreed, "{mode:?} is refused");
        if mode != Mode::Simple {
            self.set_contexts(export, &[BASE_ALLOCATION]);
        }
        self.go(export)
    }

    /// Enters transmission on an export that must exist.
    pub fn go(mut self, name: &str) -> Session {
        let export = self
            .export(opt::GO, name, &[info::BLOCK_SIZE])
            .unwrap_or_else(|e| panic!("GO {name:?}: {e:#x}"));
        self.into_session(export)
    }

    /// The session that begins after a successful GO or EXPORT_NAME.
    pub fn into_session(self, export: Export) -> Session {
        let extended = self.mode == Mode::Extended;
        let chunked = self.mode != Mode::Simple;
        assert_ne!(export.flags & tflag::HAS_FLAGS, 0, "HAS_FLAGS must be set: {export:?}");
        let df = export.flags & tflag::SEND_DF != 0;
        assert!(chunked || !df, "SEND_DF without structured replies: {export:?}");
        let payload = export.flags & tflag::BLOCK_STATUS_PAYLOAD != 0;
        assert!(extended || !payload, "BLOCK_STATUS_PAYLOAD without extended headers: {export:?}");
        let zeroes = export.flags & tflag::SEND_WRITE_ZEROES != 0;
        let fast = export.flags & tflag::SEND_FAST_ZERO != 0;
        assert!(zeroes || !fast, "SEND_FAST_ZERO without SEND_WRITE_ZEROES: {export:?}");
        Session::new(self.socket, self.mode, export, self.contexts)
    }
}

/// Reads the INFO replies of an export; each must be well-formed and come at most once.
pub(crate) fn parse_export(infos: &[OptionReply]) -> Export {
    let mut export = Export::default();
    let mut seen = Vec::new();
    for reply in infos {
        assert_eq!(reply.kind, rep::INFO, "{infos:02x?}");
        let mut cursor = Cursor(&reply.data);
        let id = cursor.u16();
        assert!(!seen.contains(&id), "information {id} came twice: {infos:02x?}");
        seen.push(id);
        match id {
            info::EXPORT => {
                assert_eq!(reply.data.len(), 12, "INFO_EXPORT: {reply:02x?}");
                export.size = cursor.u64();
                export.flags = cursor.u16();
            }
            info::NAME => export.name = Some(text(cursor.0)),
            info::DESCRIPTION => export.description = Some(text(cursor.0)),
            info::BLOCK_SIZE => {
                assert_eq!(reply.data.len(), 14, "INFO_BLOCK_SIZE: {reply:02x?}");
                export.block_sizes = Some((cursor.u32(), cursor.u32(), cursor.u32()));
            }
            _ => {}
        }
    }
    assert!(seen.contains(&info::EXPORT), "no INFO_EXPORT: {infos:02x?}");
    export
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("names and descriptions are UTF-8")
}

/// An option as it stands on the wire.
pub fn option_bytes(option: u32, data: &[u8]) -> Vec<u8> {
    Message::new().u64(IHAVEOPT).u32(option).counted(data).0
}
