//! What is known of the connection and of the export.

use pyo3::prelude::*;
use rustix::io::Errno;
use wire::{Framing, TransmissionFlags as Flags, Uri};

use super::NBD;
use super::shared::{CallError, KeptObjects};
use crate::engine::When::{Always, Begun, Known};
use crate::engine::{Engine, EngineError, Process, Stats, When};

/// Values of `get_block_size`.
const MINIMUM: i64 = 0;
const PREFERRED: i64 = 1;
const MAXIMUM: i64 = 2;
const PAYLOAD: i64 = 3;

impl NBD {
    /// Looks at a connection, in a state that allows it.
    pub(super) fn know<T>(
        &self,
        py: Python<'_>,
        call: &str,
        when: When,
        look: impl FnOnce(&mut Engine<KeptObjects>) -> Result<T, EngineError>,
    ) -> PyResult<T> {
        self.shared.with(py, call, |core| {
            let engine = core.engine()?;
            when.check(engine.state())?;
            look(engine).map_err(CallError::Engine)
        })
    }

    fn can(&self, py: Python<'_>, call: &str, flag: Flags) -> PyResult<bool> {
        self.know(py, call, Known, |engine| Ok(known(engine)?.1.contains(flag)))
    }

    fn count(&self, py: Python<'_>, call: &str, look: impl FnOnce(&Stats) -> u64) -> PyResult<u64> {
        self.know(py, call, Always, |engine| Ok(look(&engine.stats)))
    }
}

fn known(engine: &Engine<KeptObjects>) -> Result<(u64, Flags), EngineError> {
    let text = "server has not returned export flags, you need to connect to the server first";
    engine.export.known.ok_or_else(|| EngineError::invalid(text))
}

fn size(engine: &Engine<KeptObjects>) -> Result<u64, EngineError> {
    let text = "server has not returned export size, you need to connect to the server first";
    let none = || EngineError::invalid(text);
    let (size, _) = engine.export.known.ok_or_else(none)?;
    let text = || format!("server claims size {size} which does not fit in signed result");
    let fits = i64::try_from(size).is_ok();
    if fits { Ok(size) } else { Err(EngineError::new(Errno::OVERFLOW, text())) }
}

fn block_size(engine: &Engine<KeptObjects>, size_type: i64) -> Result<u32, EngineError> {
    let [minimum, preferred, maximum] = engine.export.blocks.unwrap_or_default();
    let found = match size_type {
        MINIMUM => minimum,
        PREFERRED => preferred,
        MAXIMUM => maximum,
        PAYLOAD => engine.payload_maximum(),
        _ => {
            return Err(EngineError::invalid(format!(
                "size_type: invalid value for parameter: {size_type}"
            )));
        }
    };
    known(engine).map(|_| found)
}

/// A text that the server may have sent.
fn sent(
    engine: &Engine<KeptObjects>,
    text: &Option<String>,
    what: &str,
) -> Result<String, EngineError> {
    known(engine)?;
    let none = || EngineError::new(Errno::NOTSUP, format!("server did not advertise a {what}"));
    text.clone().ok_or_else(none)
}

fn process(engine: &Engine<KeptObjects>) -> Result<&Process, EngineError> {
    let none = || EngineError::new(Errno::SRCH, "no subprocess exists");
    engine.process.as_ref().ok_or_else(none)
}

/// The URI that leads to the same export.
fn uri(engine: &Engine<KeptObjects>) -> Result<String, EngineError> {
    let Some(transport) = engine.place.clone() else {
        return Err(EngineError::invalid("cannot construct a URI for this connection type"));
    };
    let settings = &engine.settings;
    Ok(Uri::to(transport, settings.tls == 2, settings.export.clone()).to_string())
}

methods! {
    /// Whether the export cannot be written.
    is_read_only() -> bool = can(Flags::READ_ONLY);

    /// Whether the server can flush.
    can_flush() -> bool = can(Flags::SEND_FLUSH);

    /// Whether the server supports FUA: writes that are durable before their reply.
    can_fua() -> bool = can(Flags::SEND_FUA);

    /// Whether the disk is rotational.
    is_rotational() -> bool = can(Flags::ROTATIONAL);

    /// Whether the server can trim.
    can_trim() -> bool = can(Flags::SEND_TRIM);

    /// Whether the server can zero.
    can_zero() -> bool = can(Flags::SEND_WRITE_ZEROES);

    /// Whether the server can refuse a zero that would be slow.
    can_fast_zero() -> bool = can(Flags::SEND_FAST_ZERO);

    /// Whether block status can be limited to some contexts.
    can_block_status_payload() -> bool = can(Flags::BLOCK_STATUS_PAYLOAD);

    /// Whether a read can ask for a reply in one piece.
    can_df() -> bool = can(Flags::SEND_DF);

    /// Whether a flush covers all connections.
    can_multi_conn() -> bool = can(Flags::CAN_MULTI_CONN);

    /// Whether the server can prefetch.
    can_cache() -> bool = can(Flags::SEND_CACHE);

    /// Whether a context was selected.
    can_meta_context(metacontext: &str) -> bool = know(Known, |engine| {
        if !engine.contexts_valid {
            return Err(EngineError::invalid("need a successful server meta context request first"));
        }
        Ok(engine.contexts.iter().any(|(_, name)| name == metacontext))
    });

    /// "oldstyle", "newstyle" or "newstyle-fixed".
    get_protocol() -> &'static str = know(Known, |engine| Ok(engine.protocol));

    /// The size of the export in bytes.
    get_size() -> u64 = know(Known, |engine| size(engine));

    /// A block size limit of the server in bytes: SIZE_MINIMUM, SIZE_PREFERRED, SIZE_MAXIMUM or
    /// SIZE_PAYLOAD; 0 if it gives none.
    get_block_size(size_type: i64) -> u32 = know(Known, |engine| block_size(engine, size_type));

    /// The server's name for the export.
    get_canonical_export_name() -> String
        = know(Known, |engine| sent(engine, &engine.export.canonical, "canonical name"));

    /// The server's description of the export.
    get_export_description() -> String
        = know(Known, |engine| sent(engine, &engine.export.description, "description"));

    /// Whether the connection is encrypted.
    get_tls_negotiated() -> bool = know(Known, |engine| Ok(engine.is_secure()));

    /// Whether extended headers were negotiated.
    get_extended_headers_negotiated() -> bool
        = know(Known, |engine| Ok(engine.mode() == Framing::Extended));

    /// Whether structured replies were negotiated.
    get_structured_replies_negotiated() -> bool
        = know(Known, |engine| Ok(engine.mode() != Framing::Simple));

    /// A URI that leads to the same export.
    get_uri() -> String = know(Begun, |engine| uri(engine));

    /// The process ID of the server, if this handle started it.
    get_subprocess_pid() -> i64 = know(Always, |engine| Ok(process(engine)?.pid()));

    /// Sends the server a signal, if this handle started it; 0 is SIGTERM.
    kill_subprocess(signum: i32) -> () = know(Always, |engine| process(engine)?.signal(signum));

    /// Bytes sent.
    stats_bytes_sent() -> u64 = count(|stats| stats.bytes_sent);

    /// Options and requests sent.
    stats_chunks_sent() -> u64 = count(|stats| stats.chunks_sent);

    /// Bytes received.
    stats_bytes_received() -> u64 = count(|stats| stats.bytes_received);

    /// Replies and chunks of replies received.
    stats_chunks_received() -> u64 = count(|stats| stats.chunks_received);
}

#[pymethods]
impl NBD {
    /// Whether a text looks like an NBD URI. Nothing is connected.
    fn is_uri(&self, uri: &str) -> bool {
        Uri::has_known_scheme(uri)
    }

    /// The name of this package.
    fn get_package_name(&self) -> &'static str {
        "diskferry"
    }

    /// The version of this package.
    fn get_version(&self) -> &'static str {
        env!("CARGO_PKG_VERSION")
    }

    /// The distribution's addition to the version: always empty.
    fn get_version_extra(&self) -> &'static str {
        ""
    }

    /// Whether TLS is built in.
    fn supports_tls(&self) -> bool {
        cfg!(feature = "tls")
    }

    /// Whether vsock is supported: yes.
    fn supports_vsock(&self) -> bool {
        true
    }

    /// Whether URIs are supported: yes.
    fn supports_uri(&self) -> bool {
        true
    }
}
