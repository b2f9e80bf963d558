//! What a user may set before and between the steps of a connection, with libnbd's defaults.

use std::path::PathBuf;

/// Bits of `set_strict_mode`; a cleared bit lets invalid commands through to the server.
pub(crate) mod strict {
    pub(crate) const COMMANDS: u32 = 0x01;
    pub(crate) const FLAGS: u32 = 0x02;
    pub(crate) const BOUNDS: u32 = 0x04;
    pub(crate) const ZERO_SIZE: u32 = 0x08;
    pub(crate) const ALIGN: u32 = 0x10;
    pub(crate) const PAYLOAD: u32 = 0x20;
    pub(crate) const AUTO_FLAG: u32 = 0x40;
    pub(crate) const MASK: u32 = 0x7f;
}

/// Values of `set_tls`.
pub(crate) mod tls {
    pub(crate) const DISABLE: i32 = 0;
    pub(crate) const REQUIRE: i32 = 2;
}

/// Bits of `set_uri_allow_transports`.
pub(crate) mod transport {
    pub(crate) const TCP: u32 = 1;
    pub(crate) const UNIX: u32 = 2;
    pub(crate) const VSOCK: u32 = 4;
    pub(crate) const MASK: u32 = 0xf;
}

/// Handshake flags that are known.
pub(crate) const HANDSHAKE_MASK: u32 = 3;

#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent switches, as libnbd has them")]
pub(crate) struct Settings {
    pub(crate) debug: bool,
    pub(crate) name: String,
    pub(crate) private_data: u64,
    pub(crate) export: String,
    pub(crate) request_block_size: bool,
    pub(crate) full_info: bool,
    pub(crate) tls: i32,
    pub(crate) tls_certificates: Option<PathBuf>,
    pub(crate) tls_verify_peer: bool,
    pub(crate) tls_username: Option<String>,
    pub(crate) tls_hostname: Option<String>,
    pub(crate) tls_psk_file: Option<PathBuf>,
    pub(crate) tls_priority: Option<String>,
    pub(crate) request_extended: bool,
    pub(crate) request_structured: bool,
    pub(crate) request_meta: bool,
    pub(crate) handshake_flags: u32,
    pub(crate) pread_initialize: bool,
    pub(crate) strict: u32,
    pub(crate) opt_mode: bool,
    pub(crate) contexts: Vec<String>,
    pub(crate) uri_transports: u32,
    pub(crate) uri_tls: i32,
    pub(crate) uri_tls_priority: bool,
    pub(crate) uri_local_file: bool,
    pub(crate) activation_name: String,
}

impl Settings {
    pub(crate) fn new(name: String) -> Self {
        Self {
            debug: std::env::var_os("LIBNBD_DEBUG").is_some_and(|value| value == "1"),
            name,
            private_data: 0,
            export: String::new(),
            request_block_size: true,
            full_info: false,
            tls: tls::DISABLE,
            tls_certificates: None,
            tls_verify_peer: true,
            tls_username: None,
            tls_hostname: None,
            tls_psk_file: None,
            tls_priority: None,
            request_extended: true,
            request_structured: true,
            request_meta: true,
            handshake_flags: HANDSHAKE_MASK,
            pread_initialize: true,
            strict: strict::MASK,
            opt_mode: false,
            contexts: Vec::new(),
            uri_transports: transport::MASK,
            uri_tls: 1,
            uri_tls_priority: true,
            uri_local_file: false,
            activation_name: String::new(),
        }
    }

    /// Whether all of these checks are made before a command is sent.
    pub(crate) const fn is_strict(&self, bits: u32) -> bool {
        self.strict & bits == bits
    }
}
