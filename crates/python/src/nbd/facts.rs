//! What is known of the connection and of the export.

use pyo3::prelude::*;
use rustix::io::Errno;
use wire::{Framing, Scheme, TransmissionFlags as Flags, Transport, Uri};

use super::NBD;
use crate::engine::{Engine, EngineError, PeerAddress, When};
use crate::nbd::shared::{CallError, KeptObjects};

/// Values of `get_block_size`.
const MINIMUM: i64 = 0;
const PREFERRED: i64 = 1;
const MAXIMUM: i64 = 2;
const PAYLOAD: i64 = 3;

impl NBD {
    fn know<T>(
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
        self.know(py, call, When::Known, |engine| Ok(known(engine)?.1.contains(flag)))
    }
}

fn known(engine: &Engine<KeptObjects>) -> Result<(u64, Flags), EngineError> {
    let text = "server has not returned export flags, you need to connect to the server first";
    engine.export.known.ok_or_else(|| EngineError::new(Errno::INVAL, text))
}

/// The URI that leads to the same export.
fn uri(engine: &Engine<KeptObjects>) -> Result<String, EngineError> {
    let PeerAddress::Known(transport) = engine.place.clone() else {
        let text = "cannot construct a URI for this connection type";
        return Err(EngineError::new(Errno::INVAL, text));
    };
    let tls = engine.settings.tls == 2;
    let scheme = match (&transport, tls) {
        (Transport::Tcp { .. }, false) => Scheme::Nbd,
        (Transport::Tcp { .. }, true) => Scheme::Nbds,
        (Transport::Unix { .. } | Transport::UnixAbstract { .. }, false) => Scheme::NbdUnix,
        (Transport::Unix { .. } | Transport::UnixAbstract { .. }, true) => Scheme::NbdsUnix,
        (Transport::Vsock { .. }, false) => Scheme::NbdVsock,
        (Transport::Vsock { .. }, true) => Scheme::NbdsVsock,
    };
    let export = engine.settings.export.clone();
    Ok(Uri { scheme, transport, tls, export, user: None, params: Vec::new() }.to_string())
}

#[pymethods]
impl NBD {
    /// Whether the export cannot be written.
    fn is_read_only(&self, py: Python<'_>) -> PyResult<bool> {
        self.can(py, "is_read_only", Flags::READ_ONLY)
    }

    /// Whether the server can flush.
    fn can_flush(&self, py: Python<'_>) -> PyResult<bool> {
        self.can(py, "can_flush", Flags::SEND_FLUSH)
    }

    /// Whether the server supports FUA: writes that are durable before their reply.
    fn can_fua(&self, py: Python<'_>) -> PyResult<bool> {
        self.can(py, "can_fua", Flags::SEND_FUA)
    }

    /// Whether the disk is rotational.
    fn is_rotational(&self, py: Python<'_>) -> PyResult<bool> {
        self.can(py, "is_rotational", Flags::ROTATIONAL)
    }

    /// Whether the server can trim.
    fn can_trim(&self, py: Python<'_>) -> PyResult<bool> {
        self.can(py, "can_trim", Flags::SEND_TRIM)
    }

    /// Whether the server can zero.
    fn can_zero(&self, py: Python<'_>) -> PyResult<bool> {
        self.can(py, "can_zero", Flags::SEND_WRITE_ZEROES)
    }

    /// Whether the server can refuse a zero that would be slow.
    fn can_fast_zero(&self, py: Python<'_>) -> PyResult<bool> {
        self.can(py, "can_fast_zero", Flags::SEND_FAST_ZERO)
    }

    /// Whether block status can be limited to some contexts.
    fn can_block_status_payload(&self, py: Python<'_>) -> PyResult<bool> {
        self.can(py, "can_block_status_payload", Flags::BLOCK_STATUS_PAYLOAD)
    }

    /// Whether a read can ask for a reply in one piece.
    fn can_df(&self, py: Python<'_>) -> PyResult<bool> {
        self.can(py, "can_df", Flags::SEND_DF)
    }

    /// Whether a flush covers all connections.
    fn can_multi_conn(&self, py: Python<'_>) -> PyResult<bool> {
        self.can(py, "can_multi_conn", Flags::CAN_MULTI_CONN)
    }

    /// Whether the server can prefetch.
    fn can_cache(&self, py: Python<'_>) -> PyResult<bool> {
        self.can(py, "can_cache", Flags::SEND_CACHE)
    }

    /// Whether a context was selected.
    fn can_meta_context(&self, py: Python<'_>, metacontext: &str) -> PyResult<bool> {
        self.know(py, "can_meta_context", When::Known, |engine| {
            if !engine.contexts_valid {
                let text = "need a successful server meta context request first";
                return Err(EngineError::new(Errno::INVAL, text));
            }
            Ok(engine.contexts.iter().any(|(_, name)| name == metacontext))
        })
    }

    /// "oldstyle", "newstyle" or "newstyle-fixed".
    fn get_protocol(&self, py: Python<'_>) -> PyResult<&'static str> {
        self.know(py, "get_protocol", When::Known, |engine| Ok(engine.protocol))
    }

    /// The size of the export in bytes.
    fn get_size(&self, py: Python<'_>) -> PyResult<u64> {
        self.know(py, "get_size", When::Known, |engine| {
            let text = "server has not returned export size, you need to connect to the server \
                        first";
            let known = engine.export.known.ok_or_else(|| EngineError::new(Errno::INVAL, text))?;
            if i64::try_from(known.0).is_err() {
                let text =
                    format!("server claims size {} which does not fit in signed result", known.0);
                return Err(EngineError::new(Errno::OVERFLOW, text));
            }
            Ok(known.0)
        })
    }

    /// A block size limit of the server in bytes: SIZE_MINIMUM, SIZE_PREFERRED, SIZE_MAXIMUM or
    /// SIZE_PAYLOAD; 0 if it gives none.
    fn get_block_size(&self, py: Python<'_>, size_type: i64) -> PyResult<u32> {
        self.know(py, "get_block_size", When::Known, |engine| {
            let [minimum, preferred, maximum] = engine.export.blocks.unwrap_or_default();
            match size_type {
                MINIMUM | PREFERRED | MAXIMUM | PAYLOAD => known(engine)?,
                _ => {
                    let text = format!("size_type: invalid value for parameter: {size_type}");
                    return Err(EngineError::new(Errno::INVAL, text));
                }
            };
            Ok(match size_type {
                MINIMUM => minimum,
                PREFERRED => preferred,
                MAXIMUM => maximum,
                _ => engine.payload_maximum(),
            })
        })
    }

    /// The server's name for the export.
    fn get_canonical_export_name(&self, py: Python<'_>) -> PyResult<String> {
        self.know(py, "get_canonical_export_name", When::Known, |engine| {
            known(engine)?;
            let text = "server did not advertise a canonical name";
            let none = || EngineError::new(Errno::NOTSUP, text);
            engine.export.canonical.clone().ok_or_else(none)
        })
    }

    /// The server's description of the export.
    fn get_export_description(&self, py: Python<'_>) -> PyResult<String> {
        self.know(py, "get_export_description", When::Known, |engine| {
            known(engine)?;
            let text = "server did not advertise a description";
            let none = || EngineError::new(Errno::NOTSUP, text);
            engine.export.description.clone().ok_or_else(none)
        })
    }

    /// Whether the connection is encrypted.
    fn get_tls_negotiated(&self, py: Python<'_>) -> PyResult<bool> {
        self.know(py, "get_tls_negotiated", When::Known, |engine| Ok(engine.is_secure()))
    }

    /// Whether extended headers were negotiated.
    fn get_extended_headers_negotiated(&self, py: Python<'_>) -> PyResult<bool> {
        let call = "get_extended_headers_negotiated";
        self.know(py, call, When::Known, |engine| Ok(engine.mode() == Framing::Extended))
    }

    /// Whether structured replies were negotiated.
    fn get_structured_replies_negotiated(&self, py: Python<'_>) -> PyResult<bool> {
        let call = "get_structured_replies_negotiated";
        self.know(py, call, When::Known, |engine| Ok(engine.mode() != Framing::Simple))
    }

    /// A URI that leads to the same export.
    fn get_uri(&self, py: Python<'_>) -> PyResult<String> {
        self.know(py, "get_uri", When::Begun, |engine| uri(engine))
    }

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

    /// The process ID of the server, if this handle started it.
    fn get_subprocess_pid(&self, py: Python<'_>) -> PyResult<i64> {
        self.shared.with(py, "get_subprocess_pid", |core| {
            let none = || EngineError::new(Errno::SRCH, "no subprocess exists");
            Ok(core.engine()?.process.as_ref().ok_or_else(none)?.pid())
        })
    }

    /// Sends the server a signal, if this handle started it; 0 is SIGTERM.
    fn kill_subprocess(&self, py: Python<'_>, signum: i32) -> PyResult<()> {
        self.shared.with(py, "kill_subprocess", |core| {
            let none = || EngineError::new(Errno::SRCH, "no subprocess exists");
            Ok(core.engine()?.process.as_ref().ok_or_else(none)?.signal(signum)?)
        })
    }

    /// Bytes sent.
    fn stats_bytes_sent(&self, py: Python<'_>) -> PyResult<u64> {
        self.shared.with(py, "stats_bytes_sent", |core| Ok(core.engine()?.stats.bytes_sent))
    }

    /// Options and requests sent.
    fn stats_chunks_sent(&self, py: Python<'_>) -> PyResult<u64> {
        self.shared.with(py, "stats_chunks_sent", |core| Ok(core.engine()?.stats.chunks_sent))
    }

    /// Bytes received.
    fn stats_bytes_received(&self, py: Python<'_>) -> PyResult<u64> {
        self.shared.with(py, "stats_bytes_received", |core| Ok(core.engine()?.stats.bytes_received))
    }

    /// Replies and chunks of replies received.
    fn stats_chunks_received(&self, py: Python<'_>) -> PyResult<u64> {
        self.shared
            .with(py, "stats_chunks_received", |core| Ok(core.engine()?.stats.chunks_received))
    }
}
