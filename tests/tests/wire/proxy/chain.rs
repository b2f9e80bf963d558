//! Fast zero along a chain of three servers: the innermost delays every write and has no zeroes
//! but written ones, so a plain zero takes as long as a write, and a fast one must be refused
//! before that, with nothing changed. Our server stands at each of the places.

use std::fmt;
use std::path::Path;

use blackbox::launch::{Serve, Server};
use blackbox::peers::{peer, skip_environment};
use blackbox::run::{ours, program, run};

/// The program at a place.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Program {
    Nbdkit,
    Ours,
    Qemu,
}

/// A chain; the first is the innermost.
struct Chain([Program; 3]);

impl fmt::Display for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

/// `DEVICE` behind the filters, with a delay of this many seconds for each write.
fn innermost(program: Program, device: &[&str], seconds: u32) -> Option<Server> {
    let delay = format!("delay-write={seconds}");
    let filters = ["--filter=nozero", "--filter=delay"];
    let words = [&filters[..], device, &[&delay, "zeromode=emulate"]].concat();
    match program {
        Program::Nbdkit => Some(Server::nbdkit(&peer("nbdkit")?, &words)),
        Program::Ours if ours_has_filters() => Some(Serve::device(words).start()),
        Program::Ours => {
            skip_environment("needs `serve --filter`");
            None
        }
        Program::Qemu => panic!("qemu-nbd has no delay"),
    }
}

fn ours_has_filters() -> bool {
    run(&mut ours(["serve", "--help"])).stdout.contains("--filter")
}

/// `program` in front of a server.
fn further(program: Program, uri: &str) -> Option<Server> {
    Some(match program {
        Program::Nbdkit => Server::nbdkit(&peer("nbdkit")?, &["nbd", &format!("uri={uri}")]),
        Program::Ours => Serve::device(["nbd", &format!("uri={uri}")]).start(),
        Program::Qemu => Server::qemu_nbd(&peer("qemu-nbd")?, "raw", Path::new(uri)),
    })
}

/// Runs a script of nbdsh at the end of a chain over `device`, where no program is missing.
fn at_the_end(chain: &Chain, device: &[&str], seconds: u32, script: &str) {
    let [first, second, third] = chain.0;
    let Some(python) = peer("nbdsh") else { return };
    let Some(first) = innermost(first, device, seconds) else { return };
    let Some(second) = further(second, &first.uri("")) else { return };
    let Some(third) = further(third, &second.uri("")) else { return };
    let connect = format!("h.connect_uri('{}')\n", third.uri(""));
    let outcome = run(&mut program(&python, ["-m", "nbd", "-c", &format!("{connect}{script}")]));
    assert!(outcome.status.success(), "{chain}: {outcome:#?}");
}

const FILLED: &[&str] = &["data", "0x55*1048576"];

/// A plain zero takes as long as the write that it comes to, and zeroes.
fn plain_zero_is_slow(chain: [Program; 3]) {
    let chain = Chain(chain);
    let script = r"
import time
h.pwrite(b'1' * 1024, 0)
begun = time.monotonic()
h.zero(512, 0)
assert time.monotonic() - begun >= 1, time.monotonic() - begun
assert h.pread(1024, 0) == bytes(512) + b'1' * 512
";
    at_the_end(&chain, &["memory", "1m"], 1, script);
}

/// A fast zero is refused long before a write would be done, and changes nothing.
fn fast_zero_is_refused(chain: [Program; 3]) {
    let chain = Chain(chain);
    let script = r"
import errno, nbd
assert h.can_fast_zero()
for length, offset in (512, 0), (1 << 20, 0), (4096, 65536):
    try: h.zero(length, offset, nbd.CMD_FLAG_FAST_ZERO)
    except nbd.Error as e: assert e.errnum == errno.ENOTSUP, e
    else: raise AssertionError('a slow zero was called fast')
assert h.pread(1 << 20, 0) == b'\x55' * (1 << 20)
";
    // A write takes ten minutes: the guard of a minute ends what waits for one.
    at_the_end(&chain, FILLED, 600, script);
}

/// Where nothing is in the way, a fast zero is fast, and zeroes.
#[test]
fn a_fast_zero_that_is_fast_passes_every_server() {
    use Program::{Nbdkit, Ours, Qemu};
    for places in [[Ours, Nbdkit, Ours], [Nbdkit, Ours, Nbdkit], [Ours, Ours, Qemu]] {
        let Some(python) = peer("nbdsh") else { return };
        let first = match places[0] {
            Nbdkit => peer("nbdkit").map(|nbdkit| Server::nbdkit(&nbdkit, &["memory", "1m"])),
            _ => Some(Serve::memory("1M").start()),
        };
        let Some(first) = first else { return };
        let Some(second) = further(places[1], &first.uri("")) else { return };
        let Some(third) = further(places[2], &second.uri("")) else { return };
        let script = format!(
            r"
import nbd
h.connect_uri('{}')
h.pwrite(b'1' * 8192, 0)
h.zero(4096, 0, nbd.CMD_FLAG_FAST_ZERO)
assert h.pread(8192, 0) == bytes(4096) + b'1' * 4096
",
            third.uri("")
        );
        run(&mut program(&python, ["-m", "nbd", "-c", &script])).succeeded();
    }
}

/// A test for each chain, so that their delays pass at the same time.
macro_rules! chains {
    ($($name:ident: $first:ident $second:ident $third:ident;)*) => {$(
        mod $name {
            use super::Program;

            #[test]
            fn a_plain_zero_is_slow_and_succeeds() {
                super::plain_zero_is_slow([Program::$first, Program::$second, Program::$third]);
            }

            #[test]
            fn a_fast_zero_is_refused_at_once_and_changes_nothing() {
                super::fast_zero_is_refused([Program::$first, Program::$second, Program::$third]);
            }
        }
    )*};
}

chains! {
    nbdkit_qemu_ours: Nbdkit Qemu Ours;
    nbdkit_ours_nbdkit: Nbdkit Ours Nbdkit;
    nbdkit_ours_qemu: Nbdkit Ours Qemu;
    nbdkit_ours_ours: Nbdkit Ours Ours;
    ours_qemu_nbdkit: Ours Qemu Nbdkit;
    ours_qemu_ours: Ours Qemu Ours;
    ours_nbdkit_qemu: Ours Nbdkit Qemu;
    ours_ours_ours: Ours Ours Ours;
}
