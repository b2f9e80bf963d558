//! The servers on trial: every device that keeps what is written, and every filter that changes the
//! way of the bytes.

use std::path::Path;

use blackbox::launch::{Serve, Server};
use blackbox::length;
use blackbox::peers::find;
use blackbox::storage::Loop;
use blackbox::temp::pattern;

/// What keeps the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Below {
    /// A file, which holds what was flushed.
    File,
    /// A file under something that keeps what is written elsewhere.
    Unchanged,
    /// A block device: a loop device over the file.
    Block,
    /// Another of our servers over the file.
    Ours,
    /// The same, each client with connections of its own.
    OursApart,
    /// Another of our servers over the file, under TLS.
    OursSecure,
    /// nbdkit over the file.
    Nbdkit,
    /// nbdkit over the file, under TLS.
    NbdkitSecure,
    /// qemu-nbd over the file.
    Qemu,
    /// Memory, empty at first.
    Memory,
}

/// A stack: filters (the first is nearest the client) over a device.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stack {
    pub(crate) filters: &'static [&'static str],
    pub(crate) below: Below,
}

const fn stack(filters: &'static [&'static str], below: Below) -> Stack {
    Stack { filters, below }
}

/// All stacks. A filter that only watches or refuses stands with one that does more.
pub(crate) const STACKS: &[Stack] = &[
    stack(&[], Below::File),
    stack(&["log?logfile=/dev/null", "stats?statsfile=/dev/null", "limit?limit=99"], Below::File),
    stack(&["noparallel?serialize=all-requests"], Below::File),
    stack(&["blocksize?minblock=1&maxdata=20000&maxlen=30000"], Below::File),
    stack(&["blocksize?minblock=4096&maxdata=64K&maxlen=128K"], Below::File),
    stack(&["cow"], Below::Unchanged),
    stack(&["cow?cow-block-size=4K&cow-on-read=true"], Below::Unchanged),
    stack(&["cache"], Below::File),
    stack(&["cache?cache-min-block-size=4K&cache-max-size=256K&cache-on-read=true"], Below::File),
    stack(&["cache?cache=writethrough&cache-min-block-size=4K"], Below::File),
    stack(&["readahead", "cache?cache-on-read=true"], Below::File),
    stack(&["readahead"], Below::File),
    stack(&["offset?offset=5001&range=RANGE"], Below::File),
    stack(&["truncate?truncate=RANGE"], Below::File),
    stack(&["multi-conn?multi-conn-mode=emulate", "fua?fuamode=emulate"], Below::File),
    stack(&["nozero?zeromode=emulate", "nocache?cachemode=emulate"], Below::File),
    stack(&["nozero", "noextents", "fua?fuamode=force"], Below::File),
    stack(&["delay?wdelay=200us&delay-zero=1ms&rdelay=100us"], Below::File),
    stack(&["error?error-rate=0", "evil?evil-probability=0", "rate?rate=100G"], Below::File),
    stack(&[], Below::Block),
    stack(&["cache", "noparallel"], Below::Block),
    stack(&[], Below::Ours),
    stack(&["retry", "cache?cache-min-block-size=4K"], Below::Ours),
    stack(&["blocksize?minblock=512&maxdata=32K&maxlen=1M", "offset?range=RANGE"], Below::Ours),
    stack(&["retry"], Below::OursApart),
    stack(&[], Below::OursSecure),
    stack(&["cache?cache-min-block-size=4K", "blocksize?maxdata=20000"], Below::OursSecure),
    stack(&[], Below::Nbdkit),
    stack(&[], Below::NbdkitSecure),
    stack(&[], Below::Qemu),
    stack(&["cow"], Below::Memory),
    stack(&[], Below::Memory),
];

impl Stack {
    /// For a person.
    pub(crate) fn name(&self) -> String {
        format!("{} over {:?}", self.filters.join(" over "), self.below)
    }

    /// The filters' words for it.
    fn says(&self, word: &str) -> bool {
        self.filters.iter().any(|filter| filter.contains(word))
    }

    /// Where the disk begins in its file, in bytes.
    pub(crate) fn lead(&self) -> usize {
        if self.says("offset=5001") { 5001 } else { 0 }
    }

    /// How many bytes of the file lie beyond the disk.
    pub(crate) fn tail(&self) -> usize {
        if self.says("RANGE") { 3001 } else { 0 }
    }

    /// The disk's size: no whole number of blocks, where that is possible.
    pub(crate) fn size(&self, base: usize) -> usize {
        let whole = matches!(self.below, Below::Block | Below::Qemu) || self.says("minblock=");
        if whole && !self.says("minblock=1&") { base } else { base + 2565 }
    }

    /// Whether the file holds the disk.
    pub(crate) fn keeps_in_file(&self) -> bool {
        !matches!(self.below, Below::Unchanged | Below::Memory)
    }

    /// Makes the file and starts the servers on it. `None` where something is missing here.
    pub(crate) fn start(&self, file: &Path, first: &[u8]) -> Option<Running> {
        make(file, self, first);
        let (block, upstream, serve) = self.device(file, length(first))?;
        let serve = self.filters.iter().fold(serve, |serve, filter| {
            let filter = filter.replace("RANGE", &first.len().to_string());
            serve.option(format!("--filter={filter}"))
        });
        // What cow and cache keep lies in the file system on trial, too.
        let serve = serve.environment("TMPDIR", file.parent().unwrap());
        Some(Running { server: serve.start(), upstream, _block: block })
    }

    fn device(&self, file: &Path, size: u64) -> Option<(Option<Loop>, Option<Server>, Serve)> {
        let words = |path: &Path| format!("file:{}", path.display());
        let export = |spec: &str| Serve::exports(&[("", spec)]);
        Some(match self.below {
            Below::File | Below::Unchanged => (None, None, export(&words(file))),
            Below::Block => {
                let block = Loop::over(file, &[])?;
                let serve = export(&words(block.path()));
                (Some(block), None, serve)
            }
            Below::Memory => (None, None, export(&format!("memory:{size}"))),
            Below::Ours | Below::OursApart => {
                let server = Serve::file(file).start();
                let apart = if self.below == Below::OursApart { "&shared=false" } else { "" };
                let serve = export(&format!("{}{apart}", device_over(&server)));
                (None, Some(server), serve)
            }
            Below::OursSecure => {
                let keys = keys_beside(file);
                let server = Serve::file(file).option(format!("--tls-psk={keys}")).start();
                let serve = export(&secure_device_over(&server, &keys));
                (None, Some(server), serve)
            }
            Below::NbdkitSecure => {
                let (keys, path) = (keys_beside(file), file.display().to_string());
                let tls = format!("--tls-psk={keys}");
                let words = ["--tls=require", &tls, "file", &path];
                let server = Server::nbdkit(&find("nbdkit")?, &words);
                let serve = export(&secure_device_over(&server, &keys));
                (None, Some(server), serve)
            }
            Below::Nbdkit => {
                let path = file.display().to_string();
                let server = Server::nbdkit(&find("nbdkit")?, &["file", &path]);
                let serve = export(&device_over(&server));
                (None, Some(server), serve)
            }
            Below::Qemu => {
                let server = Server::qemu_nbd(&find("qemu-nbd")?, "raw", file);
                let serve = export(&device_over(&server));
                (None, Some(server), serve)
            }
        })
    }
}

fn device_over(server: &Server) -> String {
    format!("nbd:?socket={}", server.socket().display())
}

fn secure_device_over(server: &Server, keys: &str) -> String {
    format!("{}&tls=require&tls-psk={keys}", device_over(server))
}

/// A file of keys for both ends.
fn keys_beside(file: &Path) -> String {
    let path = file.with_extension("psk");
    std::fs::write(&path, format!("somebody:{}\n", "5a".repeat(32))).unwrap();
    path.display().to_string()
}

/// The servers of a stack.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) server: Server,
    upstream: Option<Server>,
    _block: Option<Loop>,
}

impl Running {
    /// Stops all, the one in front first.
    pub(crate) fn stop(self) {
        assert!(self.server.stop().success(), "the server ended with a failure");
        drop(self.upstream);
    }
}

/// The file: what the disk holds at first, between bytes that must not be touched.
fn make(file: &Path, stack: &Stack, first: &[u8]) {
    use std::os::unix::fs::FileExt;
    let whole = stack.lead() + first.len() + stack.tail();
    let made = std::fs::File::create(file).unwrap();
    made.set_len(u64::try_from(whole).unwrap()).unwrap();
    made.write_all_at(&pattern(0, stack.lead()), 0).unwrap();
    let after = u64::try_from(stack.lead() + first.len()).unwrap();
    made.write_all_at(&pattern(0, stack.tail()), after).unwrap();
    // Long runs of zeroes are holes. The rest is written by long writes, so that the kernel keeps
    // it in large pages.
    let mut written = 0;
    while written < first.len() {
        let rest = &first[written..];
        let zeroes = rest.iter().take_while(|byte| **byte == 0).count();
        written += if zeroes > 20_000 { zeroes } else { 0 };
        let len = first.len().min(written + 200_000) - written;
        let at = u64::try_from(stack.lead() + written).unwrap();
        made.write_all_at(&first[written..written + len], at).unwrap();
        written += len;
    }
    // A disk that has been there for a while: nothing of it waits to be written.
    made.sync_all().unwrap();
}

/// Panics unless the bytes around the disk are as they were made.
pub(crate) fn check_surroundings(file: &[u8], stack: &Stack) {
    let end = file.len() - stack.tail();
    assert!(file[..stack.lead()] == pattern(0, stack.lead()), "bytes before the disk changed");
    assert!(file[end..] == pattern(0, stack.tail()), "bytes after the disk changed");
}
