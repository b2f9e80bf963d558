//! Functions about the client that a plugin is called for, and waiting on its behalf.
#![expect(unsafe_code, reason = "the interface is C's")]

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem::size_of;
use std::net::SocketAddr;
use std::ptr::null_mut;
use std::time::Duration;

use device::{Client, Credentials, Identity, Peer};

use crate::abi::set_errno;
use crate::call;
use crate::system;

super::functions!(
    nbdkit_export_name,
    nbdkit_is_tls,
    nbdkit_peer_name,
    nbdkit_peer_pid,
    nbdkit_peer_uid,
    nbdkit_peer_gid,
    nbdkit_peer_security_context,
    nbdkit_peer_tls_dn,
    nbdkit_peer_tls_issuer_dn,
    nbdkit_nanosleep,
);

#[unsafe(no_mangle)]
extern "C" fn nbdkit_export_name() -> *const c_char {
    match call::caller() {
        // It lives as long as the handle for which the plugin is called.
        Some(caller) => caller.export.as_ptr(),
        None => {
            call::say("no connection in this thread");
            null_mut()
        }
    }
}

#[unsafe(no_mangle)]
extern "C" fn nbdkit_is_tls() -> c_int {
    c_int::from(call::client().is_some_and(|client| client.tls.is_some()))
}

/// The client's data, or a message that there is none.
fn known<T>(of: impl FnOnce(&Client) -> Option<T>) -> Option<T> {
    let found = call::client().as_ref().and_then(of);
    if found.is_none() {
        call::say("that is not known of this client");
    }
    found
}

fn family(number: c_int) -> Option<libc::sa_family_t> {
    number.try_into().ok()
}

/// The client's address in the system's format.
fn address(peer: &Peer) -> Option<Vec<u8>> {
    match peer {
        Peer::Ip(SocketAddr::V4(of)) => {
            // SAFETY: all its fields are numbers.
            let mut name: libc::sockaddr_in = unsafe { std::mem::zeroed() };
            name.sin_family = family(libc::AF_INET)?;
            name.sin_port = of.port().to_be();
            name.sin_addr.s_addr = u32::from(*of.ip()).to_be();
            Some(bytes(&name))
        }
        Peer::Ip(SocketAddr::V6(of)) => {
            // SAFETY: all its fields are numbers.
            let mut name: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
            name.sin6_family = family(libc::AF_INET6)?;
            name.sin6_port = of.port().to_be();
            name.sin6_addr.s6_addr = of.ip().octets();
            name.sin6_scope_id = of.scope_id();
            Some(bytes(&name))
        }
        // A client has no name of its own there.
        Peer::Unix { .. } => Some(system::unnamed_socket()),
        Peer::Vsock { cid, port } => {
            // SAFETY: all its fields are numbers.
            let mut name: libc::sockaddr_vm = unsafe { std::mem::zeroed() };
            name.svm_family = family(libc::AF_VSOCK)?;
            (name.svm_cid, name.svm_port) = (*cid, *port);
            Some(bytes(&name))
        }
        Peer::Other => None,
    }
}

/// The bytes of a C struct whose padding is zeroed.
fn bytes<T: Copy>(value: &T) -> Vec<u8> {
    let at = std::ptr::from_ref(value).cast::<u8>();
    // SAFETY: so many bytes are there, and the callers zeroed all of them first.
    unsafe { std::slice::from_raw_parts(at, size_of::<T>()) }.to_vec()
}

#[unsafe(no_mangle)]
extern "C" fn nbdkit_peer_name(to: *mut c_void, len: *mut libc::socklen_t) -> c_int {
    let Some(name) = known(|client| address(&client.peer)) else { return -1 };
    if to.is_null() || len.is_null() {
        return -1;
    }
    // SAFETY: by the plugin's promise there is a length.
    let room = usize::try_from(unsafe { len.read() }).unwrap_or(0);
    let count = room.min(name.len());
    // SAFETY: by the plugin's promise there is so much room, and the two do not overlap.
    unsafe { std::ptr::copy_nonoverlapping(name.as_ptr(), to.cast::<u8>(), count) };
    // SAFETY: as above. The whole length, as getpeername(2) says it.
    unsafe { len.write(libc::socklen_t::try_from(name.len()).unwrap_or(0)) };
    0
}

fn credentials(which: fn(&Credentials) -> u32) -> i64 {
    let found = known(|client| match &client.peer {
        Peer::Unix { credentials: Some(found) } => Some(which(found)),
        _ => None,
    });
    found.map_or(-1, i64::from)
}

#[unsafe(no_mangle)]
extern "C" fn nbdkit_peer_pid() -> i64 {
    credentials(|found| found.pid)
}

#[unsafe(no_mangle)]
extern "C" fn nbdkit_peer_uid() -> i64 {
    credentials(|found| found.uid)
}

#[unsafe(no_mangle)]
extern "C" fn nbdkit_peer_gid() -> i64 {
    credentials(|found| found.gid)
}

#[unsafe(no_mangle)]
extern "C" fn nbdkit_peer_security_context() -> *mut c_char {
    call::say("nbdkit_peer_security_context is not supported");
    null_mut()
}

/// A name of the client's certificate, which the plugin frees; empty if it has shown none.
fn certified(which: fn(&Identity) -> Option<&String>) -> *mut c_char {
    let identity = call::client().and_then(|client| client.tls);
    let name = identity.as_deref().and_then(which).cloned().unwrap_or_default();
    let name = call::c_text(&name);
    // SAFETY: a text that lives until it was copied.
    unsafe { libc::strdup(name.as_ptr()) }
}

#[unsafe(no_mangle)]
extern "C" fn nbdkit_peer_tls_dn() -> *mut c_char {
    certified(|identity| identity.subject.as_ref())
}

#[unsafe(no_mangle)]
extern "C" fn nbdkit_peer_tls_issuer_dn() -> *mut c_char {
    certified(|identity| identity.issuer.as_ref())
}

/// Waits, but not after the client has left.
#[unsafe(no_mangle)]
extern "C" fn nbdkit_nanosleep(seconds: c_uint, nanoseconds: c_uint) -> c_int {
    let time = Duration::from_secs(seconds.into()) + Duration::from_nanos(nanoseconds.into());
    let Some(caller) = call::caller() else {
        std::thread::sleep(time);
        return 0;
    };
    if caller.wait(time) {
        return 0;
    }
    call::say("aborting sleep because of connection close or error");
    set_errno(libc::ESHUTDOWN);
    -1
}
