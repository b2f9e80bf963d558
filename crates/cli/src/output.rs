//! Standard output of the verbs that print: buffered; a reader that goes away is no failure.

use std::io::{self, BufWriter, ErrorKind, Write};
use std::process::ExitCode;

use crate::failure::{ExitResult, Failure};

/// The version of our own JSON. Keys may be added under the same number; it grows when a key
/// changes its meaning or is removed.
pub(crate) const VERSION: u32 = 1;

/// The word for standard output, and for standard input.
pub(crate) const STREAM: &str = "-";

/// Whether a name is that of standard output: where the disk goes there, nothing else may be
/// printed.
pub(crate) fn is_named(name: &str) -> bool {
    matches!(name, STREAM | "/dev/stdout")
}

/// Prints a text.
pub(crate) fn text(text: &str) -> ExitResult {
    finish(|out| out.write_all(text.as_bytes()).map(|()| ExitCode::SUCCESS))
}

/// Prints with `print`. A reader that has gone away (`| head`) has had enough, which is success.
pub(crate) fn finish(print: impl FnOnce(&mut dyn Write) -> io::Result<ExitCode>) -> ExitResult {
    write(print).map(|code| code.unwrap_or(ExitCode::SUCCESS))
}

/// Prints what explains a verdict, and ends with its status, also where the reader has gone away:
/// `check FILE | head -1` must not end with 0 for a corrupt image.
pub(crate) fn verdict(
    status: u8,
    print: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> ExitResult {
    write(print).map(|_| ExitCode::from(status))
}

/// What `print` returned; `None`: the reader has gone away.
fn write<T>(print: impl FnOnce(&mut dyn Write) -> io::Result<T>) -> Result<Option<T>, Failure> {
    let mut out = BufWriter::with_capacity(64 << 10, io::stdout().lock());
    let printed = print(&mut out).and_then(|done| out.flush().map(|()| done));
    match printed {
        Ok(done) => Ok(Some(done)),
        Err(e) if e.kind() == ErrorKind::BrokenPipe => Ok(None),
        Err(e) => Err(Failure::new(format!("write to standard output: {e}"))),
    }
}
