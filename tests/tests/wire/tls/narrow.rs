//! Sockets and links that take little at a time, in a network namespace of the test's own: what is
//! encrypted together leaves in parts, and is answered in parts.

use blackbox::peers::{diskferry, peer, skip_environment};
use blackbox::run::{program, run};
use blackbox::temp::pattern;

use super::certificates::Credentials;
use super::serving::AS_ALICE;

const SIZE: usize = 4 << 20;

/// Buffers that hold less than is encrypted at once, as small machines have, and vsock.
const SMALL: &str = "echo 4096 16384 65536 > /proc/sys/net/ipv4/tcp_wmem && \
                     echo 4096 8192 16384 > /proc/sys/net/ipv4/tcp_rmem";
/// Eight megabytes a second, and a queue that drops what is more than 20 ms.
const SLOW: &str = "tc qdisc add dev lo root tbf rate 64mbit burst 4k latency 20ms";

/// There and back, with requests of several lengths over one and several connections; other bytes
/// each time.
const COPIES: &str = r#"set -e
for size in 16k 64k 256k 4M; do
    for connections in 1 4; do
        "$B" copy --connections=$connections --requests=64 --request-size=$size from-$connections "$uri"
        cmp from-$connections disk
        "$B" copy --connections=$connections --requests=64 --request-size=$size "$uri" back
        cmp from-$connections back
        rm back
        echo "$size over $connections"
    done
done"#;

/// Copies in a namespace whose loopback interface has Ethernet's packets, and is changed so.
fn copies_over(link: &str) {
    let Some(credentials) = Credentials::make() else { return };
    let Some(unshare) = peer("unshare") else { return };
    let new = if rustix::process::geteuid().is_root() { "-n" } else { "-rn" };
    let in_it = |script: &str| {
        let script = format!("ip link set lo mtu 1500 up && {link} && {script}");
        let mut command = program(&unshare, [new, "sh", "-c", &script]);
        command.current_dir(credentials.directory());
        command
    };
    if !run(&mut in_it("true")).status.success() {
        return skip_environment("no network namespace with such a link (ip, tc) is to be had");
    }
    for (name, seed) in [("disk", 0), ("from-1", 1 << 30), ("from-4", 2 << 30)] {
        credentials.temp().file(name, &pattern(seed, SIZE));
    }
    let serve = r#"exec "$B" serve --log=null --tls-psk=keys.psk -i 127.0.0.1 -p 0 file disk --run "$COPIES""#;
    let mut command = in_it(serve);
    command.env("B", diskferry()).env("COPIES", format!("{AS_ALICE}{COPIES}"));
    let outcome = run(&mut command);
    assert!(outcome.succeeded().contains("4M over 4"), "{outcome:?}");
}

#[test]
fn a_request_may_be_answered_while_what_was_encrypted_with_it_waits_for_the_socket() {
    copies_over(SMALL);
}

#[test]
fn a_slow_link_carries_requests_of_all_lengths() {
    copies_over(&format!("{SMALL} && {SLOW}"));
}
