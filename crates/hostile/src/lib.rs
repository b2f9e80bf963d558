//! For tests and fuzzers: every parser of what strangers give, as a target that takes bytes.
//!
//! A target promises nothing about what comes out. It fails, by a panic, where a promise of ours is
//! broken: an error of several lines, a range outside of what was asked for, more work than there are
//! bytes for. `tests/corpora.rs` runs what lies in `fuzz/corpus`, and thousands of variants of it;
//! `fuzz/run` looks for more. Nothing here opens a file or a connection to anybody.

#![allow(
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    reason = "a failure is what is looked for"
)]

mod client;
mod image;
mod mended;
mod partition;
mod pieces;
mod server;
mod tar;
mod words;

/// A parser, and how it is tried.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The folder of its corpus in `fuzz/corpus`.
    pub name: &'static str,
    /// The longest input that is worth trying, in bytes.
    pub longest: usize,
    /// Tries one input.
    pub run: fn(&[u8]),
}

const KIB: usize = 1 << 10;

/// All of them. Images are named by their format.
pub static TARGETS: &[Target] = &[
    Target { name: "wire-server", longest: 4 * KIB, run: server::run },
    Target { name: "wire-client", longest: 4 * KIB, run: client::run },
    Target { name: "uri", longest: 512, run: words::uri },
    Target { name: "names", longest: 512, run: words::names },
    Target { name: "sizes", longest: 64, run: words::sizes },
    Target { name: "data", longest: KIB, run: words::data },
    Target { name: "http", longest: 4 * KIB, run: words::http },
    Target { name: "netrc", longest: KIB, run: words::netrc },
    Target { name: "partition", longest: 24 * KIB, run: partition::run },
    Target { name: "tar", longest: 24 * KIB, run: tar::run },
    Target { name: "recognise", longest: 70 * KIB, run: image::recognise },
    Target { name: "qcow2", longest: 128 * KIB, run: |bytes| image::run("qcow2", bytes) },
    Target { name: "vmdk", longest: 64 * KIB, run: |bytes| image::run("vmdk", bytes) },
    Target { name: "vdi", longest: 32 * KIB, run: |bytes| image::run("vdi", bytes) },
    Target { name: "vpc", longest: 32 * KIB, run: |bytes| image::run("vpc", bytes) },
    Target {
        name: "vhdx",
        longest: 64 * KIB,
        run: |bytes| image::run("vhdx", &pieces::whole(bytes)),
    },
    Target { name: "parallels", longest: 32 * KIB, run: |bytes| image::run("parallels", bytes) },
    Target { name: "qed", longest: 64 * KIB, run: |bytes| image::run("qed", bytes) },
    Target { name: "qcow", longest: 32 * KIB, run: |bytes| image::run("qcow", bytes) },
    Target { name: "dmg", longest: 32 * KIB, run: |bytes| image::run("dmg", bytes) },
    Target { name: "gz", longest: 8 * KIB, run: |bytes| image::run("gz", bytes) },
    Target { name: "xz", longest: 8 * KIB, run: |bytes| image::run("xz", bytes) },
    Target { name: "zstd", longest: 8 * KIB, run: |bytes| image::run("zstd", bytes) },
    Target { name: "bz2", longest: 8 * KIB, run: |bytes| image::run("bz2", bytes) },
];

/// The target of that name.
#[must_use]
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}

/// An error is one line, says what was attempted, and is none of ours.
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

/// What is told to people is a line, and not a long one.
fn line(text: &str) {
    assert!(!text.is_empty() && text.len() < 8 << 10, "{} bytes: {text}", text.len());
    assert!(!text.chars().any(char::is_control), "{text:?}");
}
