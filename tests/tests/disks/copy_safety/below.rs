//! An overlay that is copied onto its own base: the base ends as the overlay showed it, and nothing
//! of it is lost before it was read.

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;

use blackbox::launch::{Serve, Server};
use blackbox::peers::peer;
use blackbox::run::{ours, program, run};
use blackbox::temp::{TempDir, pattern};

const SIZE: usize = 16 << 20;
const CLUSTER: usize = 64 << 10;

/// A base, two overlays over it with almost all clusters of their own, and what the upper one
/// shows.
struct Chain {
    temp: TempDir,
    want: Vec<u8>,
}

impl Chain {
    fn base(&self) -> PathBuf {
        self.temp.join("base")
    }

    fn top(&self) -> PathBuf {
        self.temp.join("top")
    }
}

fn chain(qemu_img: &PathBuf, qemu_io: &PathBuf) -> Chain {
    let temp = TempDir::new();
    temp.file("base", &pattern(11, SIZE));
    let image = |format: &str, below: &str, name: &str| {
        let words = ["create", "-q", "-f", "qcow2", "-b", below, "-F", format];
        run(program(qemu_img, words).arg(temp.join(name)).current_dir(temp.path())).succeeded();
    };
    image("raw", "base", "middle");
    image("qcow2", "middle", "top");
    let writes = |name: &str, from_below: fn(usize) -> bool, zeroes: usize| {
        let mut io = program(qemu_io, ["-f", "qcow2"]);
        for i in (0..SIZE / CLUSTER).filter(|i| !from_below(*i)) {
            let (byte, at) = (1 + i % 250, i * 64);
            let write = match i % 3 == zeroes {
                true => format!("write -q -z {at}k 64k"),
                false => format!("write -q -P {byte} {at}k 64k"),
            };
            io.args(["-c", &write]);
        }
        run(io.arg(temp.join(name))).succeeded();
    };
    writes("middle", |i| i % 5 == 2, 0);
    writes("top", |i| i % 4 == 1, 2);
    let want = temp.join("want");
    let words = ["convert", "-f", "qcow2", "-O", "raw"];
    run(program(qemu_img, words).arg(temp.join("top")).arg(&want)).succeeded();
    let want = fs::read(want).unwrap();
    Chain { temp, want }
}

#[test]
fn an_overlay_that_is_copied_onto_its_own_base_between_servers_loses_nothing() {
    let (Some(qemu_img), Some(qemu_io)) = (peer("qemu-img"), peer("qemu-io")) else { return };
    let (Some(qemu_nbd), Some(nbdkit)) = (peer("qemu-nbd"), peer("nbdkit")) else { return };
    for from in ["qemu-nbd", "nbdkit", "ours", "convert"] {
        for to in ["qemu-nbd", "nbdkit", "ours"] {
            let chain = chain(&qemu_img, &qemu_io);
            let (top, base) = (chain.top(), chain.base());
            let reads = || {
                Server::peer(&qemu_nbd, |socket| {
                    let words = ["-r", "-t", "-e", "8", "-f", "qcow2", "-k"];
                    let words = words.iter().map(Into::into);
                    words.chain([socket.into(), top.clone().into()]).collect()
                })
                .greeting()
            };
            let source: Vec<Server> = match from {
                "qemu-nbd" => vec![reads()],
                "nbdkit" => {
                    let behind = reads();
                    let uri = format!("uri={}", behind.uri(""));
                    vec![Server::nbdkit(&nbdkit, &["nbd", &uri]), behind]
                }
                "ours" => vec![
                    Serve::device::<OsString>([
                        "file".into(),
                        top.clone().into(),
                        "lock=off".into(),
                    ])
                    .option("--read-only")
                    .option("--format=qcow2")
                    .option("--allow-external=chain")
                    .start(),
                ],
                _ => Vec::new(),
            };
            let target = match to {
                "qemu-nbd" if from != "ours" => Server::qemu_nbd(&qemu_nbd, "raw", &base),
                "ours" => Serve::device::<OsString>([
                    "file".into(),
                    base.clone().into(),
                    "lock=off".into(),
                ])
                .start(),
                _ => Server::nbdkit(&nbdkit, &["file", base.to_str().unwrap()]),
            };
            let outcome = match source.first() {
                Some(source) => run(&mut ours(["copy", "-q", &source.uri(""), &target.uri("")])),
                None => {
                    let words =
                        ["convert", "-q", "-U", "-n", "--allow-external", "chain", "-f", "qcow2"];
                    run(ours(words).args(["-O", "raw"]).arg(&top).arg(target.uri("")))
                }
            };
            outcome.succeeded();
            drop(target);
            drop(source);
            let now = fs::read(&base).unwrap();
            let lost = now.iter().zip(&chain.want).filter(|(a, b)| a != b).count();
            assert_eq!(lost, 0, "from {from} to {to}");
        }
    }
}

#[test]
fn by_their_names_an_overlay_is_not_copied_onto_what_it_lies_over() {
    let (Some(qemu_img), Some(qemu_io)) = (peer("qemu-img"), peer("qemu-io")) else { return };
    let chain = chain(&qemu_img, &qemu_io);
    let before = fs::read(chain.base()).unwrap();
    let words = ["convert", "-q", "-n", "--allow-external", "chain", "-f", "qcow2", "-O", "raw"];
    let outcome = run(ours(words).arg(chain.top()).arg(chain.base()));
    let line = outcome.failed();
    assert!(line.contains("data of the image or of its backing chain"), "{line}");
    assert!(fs::read(chain.base()).unwrap() == before);
}
