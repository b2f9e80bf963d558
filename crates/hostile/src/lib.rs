//! For tests and fuzzers: every parser of untrusted input, as a target that takes bytes.
//!
//! A target promises nothing about what comes out. It fails, by a panic, where a promise of ours is
//! broken: an error of several lines, a range outside of what was asked for, more work than there
//! are bytes for. `tests/corpora.rs` runs what lies in `fuzz/corpus`, and thousands of variants of
//! it; `fuzz/run` looks for more. Nothing here opens a file or a connection.

#![allow(
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    reason = "a failure is what is looked for"
)]

mod client;
mod ext2;
mod image;
mod mended;
mod oci;
mod partition;
mod pieces;
mod server;
mod tar;
mod words;

/// A parser, and how it is tried.
#[derive(Clone, Copy, Debug)]
pub struct FuzzTarget {
    /// The folder of its corpus in `fuzz/corpus`.
    pub name: &'static str,
    /// The longest input that is worth trying, in bytes.
    pub longest: usize,
    /// Tries one input.
    pub run: fn(&[u8]),
}

const KIB: usize = 1 << 10;

/// All of them. Images are named by their format.
pub static TARGETS: &[FuzzTarget] = &[
    FuzzTarget { name: "wire-server", longest: 4 * KIB, run: server::run },
    FuzzTarget { name: "wire-client", longest: 4 * KIB, run: client::run },
    FuzzTarget { name: "uri", longest: 512, run: words::uri },
    FuzzTarget { name: "names", longest: 512, run: words::names },
    FuzzTarget { name: "sizes", longest: 64, run: words::sizes },
    FuzzTarget { name: "data", longest: KIB, run: words::data },
    FuzzTarget { name: "http", longest: 4 * KIB, run: words::http },
    FuzzTarget { name: "netrc", longest: KIB, run: words::netrc },
    FuzzTarget { name: "fuse", longest: KIB, run: |bytes| aloud(attach::play_fuse, bytes) },
    FuzzTarget { name: "ublk", longest: KIB, run: |bytes| aloud(attach::play_ublk, bytes) },
    FuzzTarget { name: "vhost", longest: KIB, run: |bytes| aloud(attach::play_vhost, bytes) },
    FuzzTarget { name: "partition", longest: 24 * KIB, run: partition::run },
    FuzzTarget { name: "tar", longest: 24 * KIB, run: tar::run },
    FuzzTarget { name: "oci", longest: 24 * KIB, run: oci::run },
    FuzzTarget { name: "ext2", longest: 64 * KIB, run: ext2::run },
    FuzzTarget { name: "recognise", longest: 70 * KIB, run: image::recognise },
    FuzzTarget { name: "qcow2", longest: 128 * KIB, run: |bytes| image::run("qcow2", bytes) },
    FuzzTarget { name: "vmdk", longest: 64 * KIB, run: |bytes| image::run("vmdk", bytes) },
    FuzzTarget { name: "vdi", longest: 32 * KIB, run: |bytes| image::run("vdi", bytes) },
    FuzzTarget { name: "vpc", longest: 32 * KIB, run: |bytes| image::run("vpc", bytes) },
    FuzzTarget {
        name: "vhdx",
        longest: 64 * KIB,
        run: |bytes| image::run("vhdx", &pieces::whole(bytes)),
    },
    FuzzTarget {
        name: "parallels",
        longest: 32 * KIB,
        run: |bytes| image::run("parallels", bytes),
    },
    FuzzTarget { name: "qed", longest: 64 * KIB, run: |bytes| image::run("qed", bytes) },
    FuzzTarget { name: "qcow", longest: 32 * KIB, run: |bytes| image::run("qcow", bytes) },
    FuzzTarget { name: "luks", longest: 40 * KIB, run: |bytes| image::run("luks", bytes) },
    FuzzTarget { name: "dmg", longest: 32 * KIB, run: |bytes| image::run("dmg", bytes) },
    FuzzTarget { name: "gz", longest: 8 * KIB, run: |bytes| image::run("gz", bytes) },
    FuzzTarget { name: "xz", longest: 8 * KIB, run: |bytes| image::run("xz", bytes) },
    FuzzTarget { name: "lz", longest: 8 * KIB, run: |bytes| image::run("lz", bytes) },
    FuzzTarget { name: "zstd", longest: 8 * KIB, run: |bytes| image::run("zstd", bytes) },
    FuzzTarget { name: "bz2", longest: 8 * KIB, run: |bytes| image::run("bz2", bytes) },
];

/// The target of that name.
#[must_use]
pub fn target(name: &str) -> Option<&'static FuzzTarget> {
    TARGETS.iter().find(|target| target.name == name)
}

/// Where a panic costs one request its answer, so that others go on, there is none.
fn aloud(run: fn(&[u8]), bytes: &[u8]) {
    let before = runtime::panics();
    run(bytes);
    assert_eq!(runtime::panics(), before, "a panic was contained");
}

/// An error is one line, says what was attempted, and is no internal error.
fn said<T>(result: device::Result<T>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(e) => {
            line(&e.to_string());
            assert_ne!(e.fault(), device::Fault::Us, "{e}");
            None
        }
    }
}

/// A message for people is one short line.
fn line(text: &str) {
    assert!(!text.is_empty() && text.len() < 8 << 10, "{} bytes: {text}", text.len());
    assert!(!text.chars().any(char::is_control), "{text:?}");
}
