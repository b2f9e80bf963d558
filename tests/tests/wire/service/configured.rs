//! A server that takes its exports from a file.

use blackbox::nbd::err;
use blackbox::run::{ours, run};
use blackbox::session::Request;
use blackbox::temp::TempDir;

use super::{Service, write_config};

const ALL: &str = "
# Comments, and keys in any order.
unix = ['%D/s', '%D/t']
socket-mode = 0o600
ipaddr = '127.0.0.1'
port = 0
max-connections = 7
memory-limit = '64M'
handshake-timeout = 2.5
log-format = 'json'
read-only = false
sandbox = 'require'
default-export = 'small'

[[export]]
name = 'big'
disk = 'sparse-random:1T?seed=1'
description = 'with \"quotes\"'
read-only = true

[[export]]
name = 'small'
disk = 'memory:4M'
filters = ['truncate?truncate=1M', 'offset?offset=64K']

[[export]]
name = 'image'
disk = '%D/disk.qcow2'
format = 'qcow2'
allow-external = 'chain'
allow = ['anyunix', '10.0.0.0/8,192.0.2.1']
";

#[test]
fn every_word_of_a_configuration_counts() {
    let temp = TempDir::new();
    let image = temp.join("disk.qcow2");
    run(ours(["create", "-q", "-f", "qcow2"]).arg(&image).arg("3M")).succeeded();
    let config = ALL.replace("%D/disk.qcow2", image.to_str().unwrap());
    let service = Service::start(&config, &[]);
    let list = service.haggle().list();
    let list: Vec<_> = list.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
    assert_eq!(list[0], ("big", "with \"quotes\""));
    assert_eq!((list[1].0, list[2].0, list.len()), ("small", "image", 3));
    let mut big = service.haggle().go("big");
    assert_eq!(big.error_of(&Request::write(0, &[1; 512])), err::EPERM);
    // The default, as its filters make it: of the disk from 64 KiB on, the first MiB.
    let mut small = service.haggle().go("");
    small.write(0, &[7; 512]);
    assert_eq!(small.read(0, 512), Ok(vec![7; 512]));
    assert_eq!(small.export.size, 1 << 20);
    assert_eq!(service.haggle().go("image").export.size, 3 << 20);
    assert!(service.temp.join("t").exists());
    assert!(service.line("listening on").contains("nbd://127.0.0.1:"));
    service.stop();
}

#[test]
fn what_is_typed_counts_before_what_is_written() {
    let config = "unix = '%D/s'\nmax-connections = 1\nreadonly = true\n\
        [[export]]\nname = 'b'\ndisk = 'memory:1M'\n";
    let service =
        Service::start(config, &["--max-connections=9", "--export", "a=memory:2M", "--filter=cow"]);
    assert_eq!(service.names(), ["a", "b"]);
    service.job.signal(rustix::process::Signal::USR1);
    assert!(service.line("--max-connections: ").ends_with(": 9"));
    let mut b = service.haggle().go("b");
    assert_eq!(b.error_of(&Request::write(0, &[1; 512])), err::EPERM);
    service.stop();
}

#[test]
fn an_export_that_cannot_be_opened_is_reported_with_its_line() {
    let temp = TempDir::new();
    write_config(&temp, "unix = '%D/s'\n\n[[export]]\ndisk = '%D/none.raw'\n");
    let outcome = run(ours(["serve", "--config"]).arg(temp.join("config")));
    let line = outcome.failed();
    assert!(line.contains("/config:3: ") && line.contains("none.raw"), "{line}");
}
