//! Fast zero along a chain of three servers: the innermost delays every write and has no zeroes
//! but written ones, so a plain zero takes as long as a write, and a fast one must be refused
//! before that, with nothing changed. Our server stands at each of the places.

use std::path::Path;

use blackbox::launch::{Serve, Server};
use blackbox::peers::peer;
use blackbox::run::{program, run};

/// The program at a place.
#[derive(Clone, Copy, Debug)]
enum Program {
    Nbdkit,
    Ours,
    /// In front of another one.
    Qemu,
}
use Program::{Nbdkit, Ours, Qemu};

fn serve(place: Program, words: &[&str]) -> Option<Server> {
    Some(match place {
        Nbdkit => Server::nbdkit(&peer("nbdkit")?, words),
        Ours => Serve::device(words.iter().copied()).start(),
        Qemu => {
            let uri = words[1].strip_prefix("uri=").unwrap();
            Server::qemu_nbd(&peer("qemu-nbd")?, "raw", Path::new(uri))
        }
    })
}

/// Runs a script of nbdsh at the end of a chain whose innermost server has these words, where no
/// program is missing.
fn at_the_end(chain: [Program; 3], words: &[&str], script: &str) {
    let in_front_of = |place, inner: &Server| {
        let uri = format!("uri={}", inner.uri(""));
        serve(place, &["nbd", &uri])
    };
    let Some(python) = peer("nbdsh") else { return };
    let Some(first) = serve(chain[0], words) else { return };
    let Some(second) = in_front_of(chain[1], &first) else { return };
    let Some(third) = in_front_of(chain[2], &second) else { return };
    let script = format!("import errno, nbd, time\nh.connect_uri('{}')\n{script}", third.uri(""));
    let outcome = run(&mut program(&python, ["-m", "nbd", "-c", &script]));
    assert!(outcome.status.success(), "{chain:?}: {outcome:#?}");
}

fn a_plain_zero_is_slow_and_a_fast_one_is_refused_at_once(chain: [Program; 3]) {
    let late = |seconds, device: &[&str], script| {
        let (filters, seconds) =
            (["--filter=nozero", "--filter=delay"], format!("delay-write={seconds}"));
        let words = [&filters[..], device, &[&seconds, "zeromode=emulate"]].concat();
        at_the_end(chain, &words, script);
    };
    let plain = r"
h.pwrite(b'1' * 1024, 0)
begun = time.monotonic()
h.zero(512, 0)
assert time.monotonic() - begun >= 1, time.monotonic() - begun
assert h.pread(1024, 0) == bytes(512) + b'1' * 512
";
    late(1, &["memory", "1m"], plain);
    let fast = r"
assert h.can_fast_zero()
for length, offset in (512, 0), (1 << 20, 0), (4096, 65536):
    try: h.zero(length, offset, nbd.CMD_FLAG_FAST_ZERO)
    except nbd.Error as e: assert e.errnum == errno.ENOTSUP, e
    else: raise AssertionError('a slow zero was called fast')
assert h.pread(1 << 20, 0) == b'\x55' * (1 << 20)
";
    // A write takes ten minutes: the guard of a minute ends what waits for one.
    late(600, &["data", "0x55*1048576"], fast);
}

/// Where nothing is in the way, a fast zero is fast, and zeroes.
#[test]
fn a_fast_zero_that_is_fast_passes_every_server() {
    let script = r"
h.pwrite(b'1' * 8192, 0)
h.zero(4096, 0, nbd.CMD_FLAG_FAST_ZERO)
assert h.pread(8192, 0) == bytes(4096) + b'1' * 4096
";
    for chain in [[Ours, Nbdkit, Ours], [Nbdkit, Ours, Nbdkit], [Ours, Ours, Qemu]] {
        at_the_end(chain, &["memory", "1m"], script);
    }
}

/// A test for each chain, so that their delays pass at the same time.
macro_rules! chains {
    ($($name:ident: $first:ident $second:ident $third:ident;)*) => {$(
        #[test]
        fn $name() {
            a_plain_zero_is_slow_and_a_fast_one_is_refused_at_once([$first, $second, $third]);
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
