//! One line on standard error, which may be gone without anybody being harmed.

use std::fmt;
use std::io::Write;

/// Says what cannot be said to a client.
pub(crate) fn complain(what: fmt::Arguments<'_>) {
    // A reader that has gone away must not end a server.
    let _ = writeln!(std::io::stderr(), "diskferry: {what}");
}
