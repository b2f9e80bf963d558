//! `xz`: the contents of an xz stream, read-only, with random access if it has several blocks.
//!
//! Its index says where blocks are. Nothing is decompressed before a read needs it, and no block is
//! held as a whole.

use device::{Params, Result, values};

use crate::FilterKind;
use crate::kit::unpacked;

pub(crate) const KIND: FilterKind = FilterKind {
    word: "xz",
    summary: "decompresses an xz stream; read-only",
    reads_only: true,
    params: &[
        device::param("xz-max-block", "SIZE", "accepted; blocks of any size are read, in pieces"),
        device::param("xz-max-depth", "N", "accepted; 32 MiB of what was unpacked are remembered"),
    ],
    example: "serve --filter=xz file disk.img.xz --run 'nbdinfo --size \"$uri\"'",
    open: |params, below, context| {
        check(params, "xz-max-block", "xz-max-depth")?;
        unpacked::open("xz", below, context)
    },
    ..FilterKind::PLAIN
};

/// What is accepted must make sense all the same.
pub(crate) fn check(params: &Params, block: &str, depth: &str) -> Result<()> {
    values::size(params, block)?;
    match values::number(params, depth)? {
        Some(0) => Err(values::wrong(depth, "it must be at least 1")),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};
    use std::sync::Arc;

    use device::Blocking as _;
    use device::model::Model;

    use crate::kit::tested::{blank, put, simple};

    /// The program's output for `bytes`; `None` if it is not installed.
    fn packed(program: &str, bytes: &[u8]) -> Option<Vec<u8>> {
        let mut child = Command::new(program)
            .args(["-c"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .ok()?;
        let mut input = child.stdin.take()?;
        let bytes = bytes.to_vec();
        let writer = std::thread::spawn(move || input.write_all(&bytes));
        let output = child.wait_with_output().ok()?;
        writer.join().unwrap().unwrap();
        Some(output.stdout)
    }

    #[test]
    fn what_was_packed_is_read_and_what_is_something_else_is_refused() {
        let bytes: Vec<u8> = (0..300_000u32).flat_map(|n| (n / 7).to_le_bytes()).collect();
        for (word, program) in [
            ("gzip", "gzip"),
            ("indexed-gzip", "gzip"),
            ("xz", "xz"),
            ("lzip", "lzip"),
            ("bzip2", "bzip2"),
        ] {
            let plain = blank(4096);
            assert!(put(word, plain, &[]).is_err(), "{word}");
            let Some(packed) = packed(program, &bytes) else { continue };
            let below = Arc::new(Model::new(packed.len()));
            below.write_at(&packed, 0, false).unwrap();
            let disk = put(word, simple(below), &[]).unwrap();
            assert_eq!(disk.info().size, bytes.len() as u64, "{word}");
            assert!(!disk.info().abilities.write);
            let mut back = vec![0; bytes.len() - 5];
            disk.read(&mut back, 5).unwrap();
            assert!(back == bytes[5..], "{word}");
            assert!(disk.write(&[1], 0, false).is_err());
        }
    }
}
