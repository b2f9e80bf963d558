//! NBD on the wire, both sides, without any I/O.
//!
//! This crate turns bytes into protocol events and back: [`constants`], requests and replies of the
//! transmission phase ([`parse_request`], [`ReplyWriter`], [`PendingReply`]), the handshakes
//! ([`ServerHandshake`], [`ClientHandshake`]) and URIs ([`Uri`]). The caller owns sockets, clocks
//! and threads.
//!
//! It promises that no input makes it panic, that every quantity a peer controls has a limit
//! before memory is spent on it, and that a range is checked without ever forming a sum that could
//! overflow. It never performs a request.
//!
//! # Example
//!
//! A client and a server that agree on a session, with memory in place of a socket:
//!
//! ```
//! use wire::{
//!     ClientHandshake, ClientPolicy, ClientStep, ExportOffer, ExportCatalog, OptionRefusal, ServerPolicy,
//!     ServerHandshake,
//! };
//!
//! struct OneDisk;
//!
//! impl ExportCatalog for OneDisk {
//!     fn list(&self) -> Result<Vec<(String, String)>, OptionRefusal> {
//!         Ok(vec![("disk".into(), "the only one".into())])
//!     }
//!
//!     fn open(&self, name: &str) -> Result<ExportOffer, OptionRefusal> {
//!         if name != "disk" {
//!             return Err(OptionRefusal::unknown());
//!         }
//!         Ok(ExportOffer { name: name.into(), size: 1 << 30, ..ExportOffer::default() })
//!     }
//! }
//!
//! let mut server = ServerHandshake::new(ServerPolicy::default());
//! let mut client =
//!     ClientHandshake::new(ClientPolicy { export: "disk".into(), ..ClientPolicy::default() });
//! let mut to_client = server.greeting();
//! let session = loop {
//!     let mut to_server = Vec::new();
//!     let (_, step) = client.advance(&to_client, &mut to_server);
//!     to_client.clear();
//!     match step {
//!         ClientStep::NeedMore => server.advance(&to_server, &OneDisk, &mut to_client),
//!         ClientStep::Ready(session) => break session,
//!         other => panic!("{other:?}"),
//!     };
//! };
//! assert_eq!(session.size, 1 << 30);
//! ```

#![forbid(unsafe_code)]
#![deny(clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

mod codec;
pub mod constants;
mod coverage;
mod error;
mod handshake;
mod inflight;
mod pending;
mod percent;
mod receive;
mod reply;
mod request;
mod session;
mod status;
mod uri;

pub use constants::{Command, CommandFlags, ErrorCode, Framing, TransmissionFlags};
pub use coverage::ReadCoverage;
pub use error::{Fatal, HandshakeError, PeerIncompatible, PeerMisbehaved};
pub use handshake::client::{ClientHandshake, ClientPolicy, ClientStep, ListedExport, put_option};
pub use handshake::server::{
    CloseReason, ExportCatalog, ExportOffer, OptionRefusal, ServerHandshake, ServerPolicy,
    ServerStep, ServerTls,
};
pub use inflight::InFlight;
pub use pending::{Body, ContextStatus, PayloadEffect, PayloadSpan, PendingReply, ReplyError};
pub use percent::{percent_decode, percent_encode};
pub use receive::{
    ChunkPayload, RemoteError, ReplyHeader, ReplyKind, parse_chunk_payload, parse_reply_header,
};
pub use reply::ReplyWriter;
pub use request::{Request, encode_request, parse_request, request_header_len};
pub use session::{After, BlockConstraints, Negotiated, Protocol, Refusal, StatusQuery};
pub use status::StatusExtent;
pub use uri::{DEFAULT_PORT, Transport, Uri, UriError, VSOCK_HOST};
