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

macro_rules! settings {
    ($($field:ident: $type:ty = $default:expr,)*) => {
        #[derive(Debug)]
        pub(crate) struct Settings {
            $(pub(crate) $field: $type,)*
        }

        impl Default for Settings {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }
    };
}

settings! {
    name: String = String::new(),
    debug: bool = std::env::var_os("LIBNBD_DEBUG").is_some_and(|value| value == "1"),
    private_data: u64 = 0,
    export: String = String::new(),
    request_block_size: bool = true,
    full_info: bool = false,
    tls: i32 = tls::DISABLE,
    tls_certificates: Option<PathBuf> = None,
    tls_verify_peer: bool = true,
    tls_username: Option<String> = None,
    tls_hostname: Option<String> = None,
    tls_psk_file: Option<PathBuf> = None,
    tls_priority: Option<String> = None,
    request_extended: bool = true,
    request_structured: bool = true,
    request_meta: bool = true,
    handshake_flags: u32 = HANDSHAKE_MASK,
    pread_initialize: bool = true,
    strict: u32 = strict::MASK,
    opt_mode: bool = false,
    contexts: Vec<String> = Vec::new(),
    uri_transports: u32 = transport::MASK,
    uri_tls: i32 = 1,
    uri_tls_priority: bool = true,
    uri_local_file: bool = false,
    activation_name: String = String::new(),
}

impl Settings {
    /// Whether all of these checks are made before a command is sent.
    pub(crate) const fn is_strict(&self, bits: u32) -> bool {
        self.strict & bits == bits
    }
}
