//! Settings: made before the connection, and between options.

use std::path::PathBuf;

use pyo3::prelude::*;
use rustix::io::Errno;

use super::NBD;
use crate::engine::{Engine, EngineError, HANDSHAKE_MASK, Settings, When, strict, transport};
use crate::nbd::shared::{CallError, KeptObjects};
use crate::nbd::telling::callback;

/// Longest name, in bytes.
const MAX_STRING: usize = 4096;

impl NBD {
    /// Changes a setting, in a state that allows it.
    fn set(
        &self,
        py: Python<'_>,
        call: &str,
        when: Option<When>,
        change: impl FnOnce(&mut Settings) -> Result<(), EngineError>,
    ) -> PyResult<()> {
        self.shared.with(py, call, |core| {
            let engine = core.engine()?;
            when.map_or(Ok(()), |when| when.check(engine.state()))?;
            Ok(change(&mut engine.settings)?)
        })
    }

    /// Reads a setting.
    fn get<T>(
        &self,
        py: Python<'_>,
        call: &str,
        look: impl FnOnce(&Engine<KeptObjects>) -> Result<T, EngineError>,
    ) -> PyResult<T> {
        self.shared.with(py, call, |core| look(core.engine()?).map_err(CallError::Engine))
    }
}

fn wrong(parameter: &str, value: i64) -> EngineError {
    EngineError::new(Errno::INVAL, format!("{parameter}: invalid value for parameter: {value}"))
}

fn wrong_flag(parameter: &str, value: u32) -> EngineError {
    EngineError::new(Errno::INVAL, format!("{parameter}: invalid value for flag: {value:#x}"))
}

fn check_name(name: &str, what: &str) -> Result<(), EngineError> {
    if name.len() <= MAX_STRING {
        return Ok(());
    }
    Err(EngineError::new(Errno::NAMETOOLONG, format!("{what} name too long for NBD protocol")))
}

#[pymethods]
impl NBD {
    /// Whether to report debug messages: to the callback, or on standard error.
    fn set_debug(&self, py: Python<'_>, debug: &Bound<'_, PyAny>) -> PyResult<()> {
        let wanted = debug.is_truthy()?;
        self.set(py, "set_debug", None, |settings| {
            settings.debug = wanted;
            Ok(())
        })
    }

    /// The value of `set_debug`.
    fn get_debug(&self, py: Python<'_>) -> PyResult<bool> {
        self.get(py, "get_debug", |engine| Ok(engine.settings.debug))
    }

    /// Calls `debug(context, message)` for each message, instead of printing it.
    fn set_debug_callback(&self, py: Python<'_>, debug: &Bound<'_, PyAny>) -> PyResult<()> {
        let debug = callback(Some(debug), "debug")?;
        let old = self.shared.with(py, "set_debug_callback", |core| {
            core.engine()?;
            Ok(std::mem::replace(&mut core.debug, debug))
        })?;
        drop(old);
        Ok(())
    }

    /// Prints messages again.
    fn clear_debug_callback(&self, py: Python<'_>) -> PyResult<()> {
        let old = self.shared.with(py, "clear_debug_callback", |core| {
            core.engine()?;
            Ok(core.debug.take())
        })?;
        drop(old);
        Ok(())
    }

    /// The name of this handle in messages.
    fn set_handle_name(&self, py: Python<'_>, handle_name: String) -> PyResult<()> {
        self.set(py, "set_handle_name", None, |settings| {
            settings.name = handle_name;
            Ok(())
        })
    }

    /// The name of this handle in messages.
    fn get_handle_name(&self, py: Python<'_>) -> PyResult<String> {
        self.get(py, "get_handle_name", |engine| Ok(engine.settings.name.clone()))
    }

    /// Stores a number for the program; returns the previous one.
    fn set_private_data(&self, py: Python<'_>, private_data: u64) -> PyResult<u64> {
        self.shared.with(py, "set_private_data", |core| {
            let settings = &mut core.engine()?.settings;
            Ok(std::mem::replace(&mut settings.private_data, private_data))
        })
    }

    /// The value of `set_private_data`.
    fn get_private_data(&self, py: Python<'_>) -> PyResult<u64> {
        self.get(py, "get_private_data", |engine| Ok(engine.settings.private_data))
    }

    /// Bytes of this handle itself.
    fn get_handle_size(&self, py: Python<'_>) -> PyResult<usize> {
        self.get(py, "get_handle_size", |_| Ok(size_of::<Engine<KeptObjects>>()))
    }

    /// The name of the export; the empty name is the server's default. At most 4096 bytes.
    fn set_export_name(&self, py: Python<'_>, export_name: String) -> PyResult<()> {
        self.set(py, "set_export_name", Some(When::CreatedOrNegotiating), |settings| {
            check_name(&export_name, "export")?;
            settings.export = export_name;
            Ok(())
        })
    }

    /// The name of the export.
    fn get_export_name(&self, py: Python<'_>) -> PyResult<String> {
        self.get(py, "get_export_name", |engine| Ok(engine.settings.export.clone()))
    }

    /// Whether to ask the server for its block size constraints, which promises to keep to them.
    /// Default: True.
    fn set_request_block_size(&self, py: Python<'_>, request: &Bound<'_, PyAny>) -> PyResult<()> {
        let wanted = request.is_truthy()?;
        self.set(py, "set_request_block_size", Some(When::CreatedOrNegotiating), |settings| {
            settings.request_block_size = wanted;
            Ok(())
        })
    }

    /// What `set_request_block_size` set.
    fn get_request_block_size(&self, py: Python<'_>) -> PyResult<bool> {
        self.get(py, "get_request_block_size", |engine| Ok(engine.settings.request_block_size))
    }

    /// Whether to ask the server for the name and the description of the export. Default: False.
    fn set_full_info(&self, py: Python<'_>, request: &Bound<'_, PyAny>) -> PyResult<()> {
        let wanted = request.is_truthy()?;
        self.set(py, "set_full_info", Some(When::CreatedOrNegotiating), |settings| {
            settings.full_info = wanted;
            Ok(())
        })
    }

    /// What `set_full_info` set.
    fn get_full_info(&self, py: Python<'_>) -> PyResult<bool> {
        self.get(py, "get_full_info", |engine| Ok(engine.settings.full_info))
    }

    /// TLS_DISABLE, TLS_ALLOW (clear text, if the server has no TLS) or TLS_REQUIRE.
    fn set_tls(&self, py: Python<'_>, tls: i32) -> PyResult<()> {
        self.set(py, "set_tls", Some(When::Created), |settings| {
            if !(0..=2).contains(&tls) {
                return Err(wrong("tls", tls.into()));
            }
            settings.tls = tls;
            Ok(())
        })
    }

    /// What `set_tls` set.
    fn get_tls(&self, py: Python<'_>) -> PyResult<i32> {
        self.get(py, "get_tls", |engine| Ok(engine.settings.tls))
    }

    /// The directory of `ca-cert.pem`, and of `client-cert.pem` and `client-key.pem` if the server
    /// asks for them.
    fn set_tls_certificates(&self, py: Python<'_>, dir: PathBuf) -> PyResult<()> {
        self.set(py, "set_tls_certificates", Some(When::Created), |settings| {
            settings.tls_certificates = Some(dir);
            Ok(())
        })
    }

    /// Whether to verify the server's certificate. Default: True.
    fn set_tls_verify_peer(&self, py: Python<'_>, verify: &Bound<'_, PyAny>) -> PyResult<()> {
        let wanted = verify.is_truthy()?;
        self.set(py, "set_tls_verify_peer", Some(When::Created), |settings| {
            settings.tls_verify_peer = wanted;
            Ok(())
        })
    }

    /// What `set_tls_verify_peer` set.
    fn get_tls_verify_peer(&self, py: Python<'_>) -> PyResult<bool> {
        self.get(py, "get_tls_verify_peer", |engine| Ok(engine.settings.tls_verify_peer))
    }

    /// The name whose key to use from the key file. Default: the name of the user.
    fn set_tls_username(&self, py: Python<'_>, username: String) -> PyResult<()> {
        self.set(py, "set_tls_username", Some(When::Created), |settings| {
            settings.tls_username = Some(username);
            Ok(())
        })
    }

    /// What `set_tls_username` set.
    fn get_tls_username(&self, py: Python<'_>) -> PyResult<String> {
        self.get(py, "get_tls_username", |engine| {
            Ok(engine.settings.tls_username.clone().unwrap_or_else(user))
        })
    }

    /// The host that the certificate must name. Default: the host of the connection.
    fn set_tls_hostname(&self, py: Python<'_>, hostname: String) -> PyResult<()> {
        self.set(py, "set_tls_hostname", Some(When::Created), |settings| {
            settings.tls_hostname = Some(hostname);
            Ok(())
        })
    }

    /// What `set_tls_hostname` set.
    fn get_tls_hostname(&self, py: Python<'_>) -> PyResult<String> {
        self.get(py, "get_tls_hostname", |engine| {
            Ok(engine.settings.tls_hostname.clone().unwrap_or_else(String::new))
        })
    }

    /// The file of pre-shared keys, in lines `user:hexadecimal`.
    fn set_tls_psk_file(&self, py: Python<'_>, filename: PathBuf) -> PyResult<()> {
        self.set(py, "set_tls_psk_file", Some(When::Created), |settings| {
            settings.tls_psk_file = Some(filename);
            Ok(())
        })
    }

    /// Stored, but not used: this library does not use GnuTLS's priorities.
    fn set_tls_priority(&self, py: Python<'_>, priority: String) -> PyResult<()> {
        self.set(py, "set_tls_priority", Some(When::Created), |settings| {
            settings.tls_priority = Some(priority);
            Ok(())
        })
    }

    /// What `set_tls_priority` set.
    fn get_tls_priority(&self, py: Python<'_>) -> PyResult<String> {
        self.get(py, "get_tls_priority", |engine| {
            Ok(engine.settings.tls_priority.clone().unwrap_or_else(|| "NORMAL".to_owned()))
        })
    }

    /// Whether to ask for extended headers (64-bit lengths). Default: True.
    fn set_request_extended_headers(
        &self,
        py: Python<'_>,
        request: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let wanted = request.is_truthy()?;
        self.set(py, "set_request_extended_headers", Some(When::Created), |settings| {
            settings.request_extended = wanted;
            Ok(())
        })
    }

    /// What `set_request_extended_headers` set.
    fn get_request_extended_headers(&self, py: Python<'_>) -> PyResult<bool> {
        self.get(py, "get_request_extended_headers", |engine| Ok(engine.settings.request_extended))
    }

    /// Whether to ask for structured replies. Default: True.
    fn set_request_structured_replies(
        &self,
        py: Python<'_>,
        request: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let wanted = request.is_truthy()?;
        self.set(py, "set_request_structured_replies", Some(When::Created), |settings| {
            settings.request_structured = wanted;
            Ok(())
        })
    }

    /// What `set_request_structured_replies` set.
    fn get_request_structured_replies(&self, py: Python<'_>) -> PyResult<bool> {
        self.get(py, "get_request_structured_replies", |engine| {
            Ok(engine.settings.request_structured)
        })
    }

    /// Whether `opt_go` and `opt_info` ask for the contexts of `add_meta_context`. Default: True.
    fn set_request_meta_context(&self, py: Python<'_>, request: &Bound<'_, PyAny>) -> PyResult<()> {
        let wanted = request.is_truthy()?;
        self.set(py, "set_request_meta_context", Some(When::CreatedOrNegotiating), |settings| {
            settings.request_meta = wanted;
            Ok(())
        })
    }

    /// What `set_request_meta_context` set.
    fn get_request_meta_context(&self, py: Python<'_>) -> PyResult<bool> {
        self.get(py, "get_request_meta_context", |engine| Ok(engine.settings.request_meta))
    }

    /// The handshake flags to accept from the server.
    fn set_handshake_flags(&self, py: Python<'_>, flags: u32) -> PyResult<()> {
        self.set(py, "set_handshake_flags", Some(When::Created), |settings| {
            if flags & !HANDSHAKE_MASK != 0 {
                return Err(wrong_flag("flags", flags));
            }
            settings.handshake_flags = flags;
            Ok(())
        })
    }

    /// What `set_handshake_flags` set.
    fn get_handshake_flags(&self, py: Python<'_>) -> PyResult<u32> {
        self.get(py, "get_handshake_flags", |engine| Ok(engine.settings.handshake_flags))
    }

    /// Stored, but not used: a successful read has always set every byte.
    fn set_pread_initialize(&self, py: Python<'_>, request: &Bound<'_, PyAny>) -> PyResult<()> {
        let wanted = request.is_truthy()?;
        self.set(py, "set_pread_initialize", None, |settings| {
            settings.pread_initialize = wanted;
            Ok(())
        })
    }

    /// What `set_pread_initialize` set.
    fn get_pread_initialize(&self, py: Python<'_>) -> PyResult<bool> {
        self.get(py, "get_pread_initialize", |engine| Ok(engine.settings.pread_initialize))
    }

    /// The checks before a command is sent, a sum of STRICT_ bits; 0 sends every command unchecked.
    fn set_strict_mode(&self, py: Python<'_>, flags: u32) -> PyResult<()> {
        self.set(py, "set_strict_mode", None, |settings| {
            if flags & !strict::MASK != 0 {
                return Err(wrong_flag("flags", flags));
            }
            settings.strict = flags;
            Ok(())
        })
    }

    /// What `set_strict_mode` set.
    fn get_strict_mode(&self, py: Python<'_>) -> PyResult<u32> {
        self.get(py, "get_strict_mode", |engine| Ok(engine.settings.strict))
    }

    /// Whether the handshake stops in option mode, for options one by one.
    fn set_opt_mode(&self, py: Python<'_>, enable: &Bound<'_, PyAny>) -> PyResult<()> {
        let wanted = enable.is_truthy()?;
        self.set(py, "set_opt_mode", Some(When::Created), |settings| {
            settings.opt_mode = wanted;
            Ok(())
        })
    }

    /// What `set_opt_mode` set.
    fn get_opt_mode(&self, py: Python<'_>) -> PyResult<bool> {
        self.get(py, "get_opt_mode", |engine| Ok(engine.settings.opt_mode))
    }

    /// Adds a context to select; base:allocation is the map.
    fn add_meta_context(&self, py: Python<'_>, name: String) -> PyResult<()> {
        self.set(py, "add_meta_context", Some(When::CreatedOrNegotiating), |settings| {
            check_name(&name, "meta context")?;
            settings.contexts.push(name);
            Ok(())
        })
    }

    /// The number of contexts to select.
    fn get_nr_meta_contexts(&self, py: Python<'_>) -> PyResult<usize> {
        self.get(py, "get_nr_meta_contexts", |engine| Ok(engine.settings.contexts.len()))
    }

    /// One of the contexts to select.
    fn get_meta_context(&self, py: Python<'_>, i: usize) -> PyResult<String> {
        self.get(py, "get_meta_context", |engine| {
            let none = || EngineError::new(Errno::INVAL, "meta context request out of range");
            engine.settings.contexts.get(i).cloned().ok_or_else(none)
        })
    }

    /// Clears the contexts to select.
    fn clear_meta_contexts(&self, py: Python<'_>) -> PyResult<()> {
        self.set(py, "clear_meta_contexts", Some(When::CreatedOrNegotiating), |settings| {
            settings.contexts.clear();
            Ok(())
        })
    }

    /// The transports that a URI may name, a sum of ALLOW_TRANSPORT_ bits.
    fn set_uri_allow_transports(&self, py: Python<'_>, mask: u32) -> PyResult<()> {
        self.set(py, "set_uri_allow_transports", None, |settings| {
            if mask & !transport::MASK != 0 {
                return Err(wrong_flag("mask", mask));
            }
            settings.uri_transports = mask;
            Ok(())
        })
    }

    /// Whether a URI may (TLS_ALLOW), must (TLS_REQUIRE) or must not (TLS_DISABLE) ask for TLS.
    fn set_uri_allow_tls(&self, py: Python<'_>, tls: i32) -> PyResult<()> {
        self.set(py, "set_uri_allow_tls", None, |settings| {
            if !(0..=2).contains(&tls) {
                return Err(wrong("tls", tls.into()));
            }
            settings.uri_tls = tls;
            Ok(())
        })
    }

    /// Whether a URI may set the priority of TLS. Default: True.
    fn set_uri_allow_tls_priority(&self, py: Python<'_>, allow: &Bound<'_, PyAny>) -> PyResult<()> {
        let allow = allow.is_truthy()?;
        self.set(py, "set_uri_allow_tls_priority", None, |settings| {
            settings.uri_tls_priority = allow;
            Ok(())
        })
    }

    /// Whether a URI may name files of this machine, for TLS. Default: False.
    fn set_uri_allow_local_file(&self, py: Python<'_>, allow: &Bound<'_, PyAny>) -> PyResult<()> {
        let allow = allow.is_truthy()?;
        self.set(py, "set_uri_allow_local_file", None, |settings| {
            settings.uri_local_file = allow;
            Ok(())
        })
    }

    /// The name of the socket for a server that is started by socket activation.
    fn set_socket_activation_name(&self, py: Python<'_>, socket_name: String) -> PyResult<()> {
        self.set(py, "set_socket_activation_name", Some(When::Created), |settings| {
            if socket_name.len() > 32 {
                let text = "socket activation name should be <= 32 characters";
                return Err(EngineError::new(Errno::NAMETOOLONG, text));
            }
            if !socket_name.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
                let text =
                    "socket activation name should contain only alphanumeric ASCII characters";
                return Err(EngineError::new(Errno::INVAL, text));
            }
            settings.activation_name = socket_name;
            Ok(())
        })
    }

    /// What `set_socket_activation_name` set.
    fn get_socket_activation_name(&self, py: Python<'_>) -> PyResult<String> {
        self.get(py, "get_socket_activation_name", |engine| {
            Ok(engine.settings.activation_name.clone())
        })
    }
}

fn user() -> String {
    std::env::var("USER").or_else(|_| std::env::var("LOGNAME")).unwrap_or_default()
}
