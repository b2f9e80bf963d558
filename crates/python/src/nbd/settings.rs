//! Settings: made before the connection, and between options.

use std::path::PathBuf;

use pyo3::prelude::*;
use rustix::io::Errno;
use wire::constants::MAX_STRING;

use super::NBD;
use super::shared::KeptObjects;
use super::telling::callback;
use crate::engine::When::{Always, Created, CreatedOrNegotiating};
use crate::engine::{Engine, EngineError, HANDSHAKE_MASK, Settings, When, strict, transport};

/// Any object, as what Python takes it for in a condition.
struct Truth(bool);

impl FromPyObject<'_, '_> for Truth {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        object.is_truthy().map(Self)
    }
}

impl NBD {
    /// Changes a setting, in a state that allows it.
    fn set(
        &self,
        py: Python<'_>,
        call: &str,
        when: When,
        change: impl FnOnce(&mut Settings),
    ) -> PyResult<()> {
        self.try_set(py, call, when, |settings| {
            change(settings);
            Ok(())
        })
    }

    /// The same, if the value is a valid one.
    fn try_set(
        &self,
        py: Python<'_>,
        call: &str,
        when: When,
        change: impl FnOnce(&mut Settings) -> Result<(), EngineError>,
    ) -> PyResult<()> {
        self.know(py, call, when, |engine| change(&mut engine.settings))
    }

    /// Reads a setting.
    fn get<T>(&self, py: Python<'_>, call: &str, look: impl FnOnce(&Settings) -> T) -> PyResult<T> {
        self.know(py, call, Always, |engine| Ok(look(&engine.settings)))
    }

    fn set_callback(
        &self,
        py: Python<'_>,
        call: &str,
        debug: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let debug = callback(debug, "debug")?;
        let old = self.shared.with(py, call, |core| {
            core.engine()?;
            Ok(std::mem::replace(&mut core.debug, debug))
        })?;
        drop(old);
        Ok(())
    }
}

/// One of the three values of TLS_.
fn tls_mode(value: i32) -> Result<i32, EngineError> {
    let wrong = || format!("tls: invalid value for parameter: {value}");
    let known = (0..=2).contains(&value);
    if known { Ok(value) } else { Err(EngineError::invalid(wrong())) }
}

/// A sum of bits that are all in `mask`.
fn bits(parameter: &str, value: u32, mask: u32) -> Result<u32, EngineError> {
    let wrong = || format!("{parameter}: invalid value for flag: {value:#x}");
    if value & !mask == 0 { Ok(value) } else { Err(EngineError::invalid(wrong())) }
}

/// A name that fits into a message.
fn short(name: String, what: &str) -> Result<String, EngineError> {
    let wrong = || format!("{what} name too long for NBD protocol");
    if name.len() <= MAX_STRING {
        return Ok(name);
    }
    Err(EngineError::new(Errno::NAMETOOLONG, wrong()))
}

fn activation_name(name: String) -> Result<String, EngineError> {
    if name.len() > 32 {
        let text = "socket activation name should be <= 32 characters";
        return Err(EngineError::new(Errno::NAMETOOLONG, text));
    }
    if !name.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return Err(EngineError::invalid(
            "socket activation name should contain only alphanumeric ASCII characters",
        ));
    }
    Ok(name)
}

fn user() -> String {
    std::env::var("USER").or_else(|_| std::env::var("LOGNAME")).unwrap_or_default()
}

methods! {
    /// Whether to report debug messages: to the callback, or on standard error.
    set_debug(debug: Truth) -> () = set(Always, |s| s.debug = debug.0);

    /// The value of `set_debug`.
    get_debug() -> bool = get(|s| s.debug);

    /// Calls `debug(context, message)` for each message, instead of printing it.
    set_debug_callback(debug: &Bound<'_, PyAny>) -> () = set_callback(Some(debug));

    /// Prints messages again.
    clear_debug_callback() -> () = set_callback(None);

    /// The name of this handle in messages.
    set_handle_name(handle_name: String) -> () = set(Always, |s| s.name = handle_name);

    /// The name of this handle in messages.
    get_handle_name() -> String = get(|s| s.name.clone());

    /// Stores a number for the program; returns the previous one.
    set_private_data(private_data: u64) -> u64
        = know(Always, |e| Ok(std::mem::replace(&mut e.settings.private_data, private_data)));

    /// The value of `set_private_data`.
    get_private_data() -> u64 = get(|s| s.private_data);

    /// Bytes of this handle itself.
    get_handle_size() -> usize = get(|_| size_of::<Engine<KeptObjects>>());

    /// The name of the export; the empty name is the server's default. At most 4096 bytes.
    set_export_name(export_name: String) -> () = try_set(CreatedOrNegotiating, |s| {
        short(export_name, "export").map(|name| s.export = name)
    });

    /// The name of the export.
    get_export_name() -> String = get(|s| s.export.clone());

    /// Whether to ask the server for its block size constraints, which promises to keep to them.
    /// Default: True.
    set_request_block_size(request: Truth) -> ()
        = set(CreatedOrNegotiating, |s| s.request_block_size = request.0);

    /// What `set_request_block_size` set.
    get_request_block_size() -> bool = get(|s| s.request_block_size);

    /// Whether to ask the server for the name and the description of the export. Default: False.
    set_full_info(request: Truth) -> () = set(CreatedOrNegotiating, |s| s.full_info = request.0);

    /// What `set_full_info` set.
    get_full_info() -> bool = get(|s| s.full_info);

    /// TLS_DISABLE, TLS_ALLOW (clear text, if the server has no TLS) or TLS_REQUIRE.
    set_tls(tls: i32) -> () = try_set(Created, |s| tls_mode(tls).map(|tls| s.tls = tls));

    /// What `set_tls` set.
    get_tls() -> i32 = get(|s| s.tls);

    /// The directory of `ca-cert.pem`, and of `client-cert.pem` and `client-key.pem` if the server
    /// asks for them.
    set_tls_certificates(dir: PathBuf) -> () = set(Created, |s| s.tls_certificates = Some(dir));

    /// Whether to verify the server's certificate. Default: True.
    set_tls_verify_peer(verify: Truth) -> () = set(Created, |s| s.tls_verify_peer = verify.0);

    /// What `set_tls_verify_peer` set.
    get_tls_verify_peer() -> bool = get(|s| s.tls_verify_peer);

    /// The name whose key to use from the key file. Default: the name of the user.
    set_tls_username(username: String) -> () = set(Created, |s| s.tls_username = Some(username));

    /// What `set_tls_username` set.
    get_tls_username() -> String = get(|s| s.tls_username.clone().unwrap_or_else(user));

    /// The host that the certificate must name. Default: the host of the connection.
    set_tls_hostname(hostname: String) -> () = set(Created, |s| s.tls_hostname = Some(hostname));

    /// What `set_tls_hostname` set.
    get_tls_hostname() -> String = get(|s| s.tls_hostname.clone().unwrap_or_default());

    /// The file of pre-shared keys, in lines `user:hexadecimal`.
    set_tls_psk_file(filename: PathBuf) -> () = set(Created, |s| s.tls_psk_file = Some(filename));

    /// Stored, but not used: this library does not use GnuTLS's priorities.
    set_tls_priority(priority: String) -> () = set(Created, |s| s.tls_priority = Some(priority));

    /// What `set_tls_priority` set.
    get_tls_priority() -> String
        = get(|s| s.tls_priority.clone().unwrap_or_else(|| "NORMAL".to_owned()));

    /// Whether to ask for extended headers (64-bit lengths). Default: True.
    set_request_extended_headers(request: Truth) -> ()
        = set(Created, |s| s.request_extended = request.0);

    /// What `set_request_extended_headers` set.
    get_request_extended_headers() -> bool = get(|s| s.request_extended);

    /// Whether to ask for structured replies. Default: True.
    set_request_structured_replies(request: Truth) -> ()
        = set(Created, |s| s.request_structured = request.0);

    /// What `set_request_structured_replies` set.
    get_request_structured_replies() -> bool = get(|s| s.request_structured);

    /// Whether `opt_go` and `opt_info` ask for the contexts of `add_meta_context`. Default: True.
    set_request_meta_context(request: Truth) -> ()
        = set(CreatedOrNegotiating, |s| s.request_meta = request.0);

    /// What `set_request_meta_context` set.
    get_request_meta_context() -> bool = get(|s| s.request_meta);

    /// The handshake flags to accept from the server.
    set_handshake_flags(flags: u32) -> () = try_set(Created, |s| {
        bits("flags", flags, HANDSHAKE_MASK).map(|flags| s.handshake_flags = flags)
    });

    /// What `set_handshake_flags` set.
    get_handshake_flags() -> u32 = get(|s| s.handshake_flags);

    /// Stored, but not used: a successful read has always set every byte.
    set_pread_initialize(request: Truth) -> () = set(Always, |s| s.pread_initialize = request.0);

    /// What `set_pread_initialize` set.
    get_pread_initialize() -> bool = get(|s| s.pread_initialize);

    /// The checks before a command is sent, a sum of STRICT_ bits; 0 sends every command unchecked.
    set_strict_mode(flags: u32) -> ()
        = try_set(Always, |s| bits("flags", flags, strict::MASK).map(|flags| s.strict = flags));

    /// What `set_strict_mode` set.
    get_strict_mode() -> u32 = get(|s| s.strict);

    /// Whether the handshake stops in option mode, for options one by one.
    set_opt_mode(enable: Truth) -> () = set(Created, |s| s.opt_mode = enable.0);

    /// What `set_opt_mode` set.
    get_opt_mode() -> bool = get(|s| s.opt_mode);

    /// Adds a context to select; base:allocation is the map.
    add_meta_context(name: String) -> () = try_set(CreatedOrNegotiating, |s| {
        short(name, "meta context").map(|name| s.contexts.push(name))
    });

    /// The number of contexts to select.
    get_nr_meta_contexts() -> usize = get(|s| s.contexts.len());

    /// One of the contexts to select.
    get_meta_context(i: usize) -> String = know(Always, |engine| {
        let none = || EngineError::invalid("meta context request out of range");
        engine.settings.contexts.get(i).cloned().ok_or_else(none)
    });

    /// Clears the contexts to select.
    clear_meta_contexts() -> () = set(CreatedOrNegotiating, |s| s.contexts.clear());

    /// The transports that a URI may name, a sum of ALLOW_TRANSPORT_ bits.
    set_uri_allow_transports(mask: u32) -> () = try_set(Always, |s| {
        bits("mask", mask, transport::MASK).map(|mask| s.uri_transports = mask)
    });

    /// Whether a URI may (TLS_ALLOW), must (TLS_REQUIRE) or must not (TLS_DISABLE) ask for TLS.
    set_uri_allow_tls(tls: i32) -> ()
        = try_set(Always, |s| tls_mode(tls).map(|tls| s.uri_tls = tls));

    /// Whether a URI may set the priority of TLS. Default: True.
    set_uri_allow_tls_priority(allow: Truth) -> () = set(Always, |s| s.uri_tls_priority = allow.0);

    /// Whether a URI may name files of this machine, for TLS. Default: False.
    set_uri_allow_local_file(allow: Truth) -> () = set(Always, |s| s.uri_local_file = allow.0);

    /// The name of the socket for a server that is started by socket activation.
    set_socket_activation_name(socket_name: String) -> ()
        = try_set(Created, |s| activation_name(socket_name).map(|name| s.activation_name = name));

    /// What `set_socket_activation_name` set.
    get_socket_activation_name() -> String = get(|s| s.activation_name.clone());
}
