//! NBD on the wire: codec, handshakes, transmission state machines, URIs; no I/O.
