//! Peers against our server: nbdinfo, nbdcopy and qemu-img, on Unix sockets and TCP, in each mode.

use std::fs;
use std::path::Path;
use std::process::Command;

use blackbox::launch::Serve;
use blackbox::peers::{diskferry, peer, version};
use blackbox::run::{Outcome, ours, run};
use blackbox::temp::pattern;

use super::certificates::Credentials;

const SIZE: usize = 3 << 20;

/// Serves a file with these options beside a shell command; what that did. Paths of the credentials
/// are written `%D`.
pub(crate) fn beside(credentials: &Credentials, options: &[&str], command: &str) -> Outcome {
    let disk = credentials.temp().join("disk");
    if !disk.exists() {
        fs::write(&disk, pattern(0, SIZE)).unwrap();
    }
    let place = |text: &str| text.replace("%D", &credentials.directory().display().to_string());
    let mut serve = ours(["serve", "--log=null"]);
    serve.args(options.iter().map(|option| place(option)));
    serve.arg("file").arg(&disk).arg("--run").arg(place(command));
    serve.env("SHELL_COPY", credentials.temp().join("copy"));
    run(&mut serve)
}

const KEYS: &[&str] = &["--tls-psk=%D/keys.psk"];
const CERTIFICATES: &[&str] = &["--tls-certificates=%D"];
const BOTH_SHOW: &[&str] = &["--tls-certificates=%D", "--tls-verify-peer"];
const UNIX: &[&str] = &["-U", "-"];
const TCP: &[&str] = &["-i", "127.0.0.1", "-p", "0"];

/// The URI of `alice`, for programs that take the user from it.
pub(crate) const AS_ALICE: &str = "uri=$(echo \"$uri\" | sed 's,://,://alice@,')\n";

fn disk_is_equal(copy: &Path) -> bool {
    fs::read(copy).unwrap() == pattern(0, SIZE)
}

/// nbdinfo and nbdcopy, there and back.
fn libnbd(options: &[&str], user: &str) {
    let Some(credentials) = Credentials::make() else { return };
    let (Some(_), Some(_)) = (peer("nbdinfo"), peer("nbdcopy")) else { return };
    let copy = credentials.temp().join("copy");
    for transport in [UNIX, TCP] {
        let _ = fs::remove_file(&copy);
        let command = format!(
            "set -e\n{user}nbdinfo \"$uri\"; nbdcopy \"$uri\" {0}; nbdcopy --flush {0} \"$uri\"",
            copy.display()
        );
        let outcome = beside(&credentials, &[transport, options].concat(), &command);
        let told = outcome.succeeded();
        assert!(told.contains("protocol: newstyle-fixed with TLS"), "{outcome:?}");
        assert!(disk_is_equal(&copy));
        assert!(disk_is_equal(&credentials.temp().join("disk")));
    }
}

#[test]
fn libnbd_with_a_key_and_with_certificates() {
    for (options, user) in [(KEYS, AS_ALICE), (CERTIFICATES, ""), (BOTH_SHOW, "")] {
        libnbd(options, user);
    }
}

/// qemu-img, there and back, with these credentials of its own.
fn qemu(options: &[&str], object: &str) {
    let Some(credentials) = Credentials::make() else { return };
    let Some(qemu_img) = peer("qemu-img") else { return };
    // Before 7.0 it has no name for a server on a Unix socket.
    let newer = version(&qemu_img) >= (7, 0);
    let copy = credentials.temp().join("copy");
    for transport in [UNIX, TCP] {
        let place = if transport == TCP {
            "driver=nbd,host=127.0.0.1,port=$port"
        } else if object.contains("x509") && newer {
            "driver=nbd,path=$unixsocket,tls-hostname=localhost"
        } else if object.contains("x509") {
            continue;
        } else {
            "driver=nbd,path=$unixsocket"
        };
        let command = format!(
            "qemu-img convert --object {object},id=tls0,endpoint=client,dir=%D \
             --image-opts {place},tls-creds=tls0 -O raw {}",
            copy.display()
        );
        let outcome = beside(&credentials, &[transport, options].concat(), &command);
        outcome.succeeded();
        assert!(disk_is_equal(&copy));
    }
}

#[test]
fn qemu_img_with_a_key_and_with_certificates() {
    let (key, certificate) = ("tls-creds-psk,username=bob", "tls-creds-x509");
    for (options, object) in [(KEYS, key), (CERTIFICATES, certificate), (BOTH_SHOW, certificate)] {
        qemu(options, object);
    }
}

#[test]
fn a_client_without_the_required_credentials_is_refused() {
    let Some(credentials) = Credentials::make() else { return };
    let Some(_) = peer("nbdinfo") else { return };
    let wrong = credentials.wrong_keys("alice").display().to_string();
    let (strangers, anonymous) = (credentials.strangers(), credentials.without_client());
    for (options, user, from, to) in [
        // A wrong key, a user that is not known.
        (KEYS, "alice@", "tls-psk-file=[^&]*", format!("tls-psk-file={wrong}")),
        (KEYS, "eve@", "x", "x".to_owned()),
        // A client without a certificate, and with one of an untrusted authority.
        (
            BOTH_SHOW,
            "",
            "tls-certificates=[^&]*",
            format!("tls-certificates={}", anonymous.display()),
        ),
        // A server that is not believed.
        (
            CERTIFICATES,
            "",
            "tls-certificates=[^&]*",
            format!("tls-certificates={}", strangers.display()),
        ),
    ] {
        for transport in [UNIX, TCP] {
            if transport == UNIX && to.contains("strangers") {
                // libnbd 1.14 believes any server there.
                continue;
            }
            let command = format!(
                "uri=$(echo \"$uri\" | sed 's,://,://{user},; s,{from},{to},'); nbdinfo --size \"$uri\""
            );
            let outcome = beside(&credentials, &[transport, options].concat(), &command);
            assert!(!outcome.status.success(), "{user} {to}: {outcome:?}");
        }
    }
}

#[test]
fn clear_text_is_for_those_modes_that_allow_it() {
    let Some(credentials) = Credentials::make() else { return };
    let Some(_) = peer("nbdinfo") else { return };
    let plain = "nbdinfo --size \"nbd+unix:///?socket=$unixsocket\"";
    let secure = format!("{AS_ALICE}nbdinfo --size \"$uri\"");
    for (mode, plain_is, secure_is) in
        [("--tls=on", true, true), ("--tls=require", false, true), ("", false, true)]
    {
        let options: Vec<_> = [mode].into_iter().filter(|m| !m.is_empty()).collect();
        let options = [UNIX, KEYS, &options].concat();
        for (command, is) in [(plain, plain_is), (&secure, secure_is)] {
            let outcome = beside(&credentials, &options, command);
            assert_eq!(outcome.status.success(), is, "{mode} {command}: {outcome:?}");
        }
    }
    let off = "nbdinfo --size \"nbds+unix://alice@/?socket=$unixsocket&tls-psk-file=%D/keys.psk\"";
    assert!(!beside(&credentials, UNIX, off).status.success());
    beside(&credentials, UNIX, plain).succeeded();
}

#[test]
fn keys_that_are_none_and_lists_of_revoked_certificates_are_refused() {
    let Some(credentials) = Credentials::make() else { return };
    fs::write(credentials.directory().join("ca-crl.pem"), "").unwrap();
    for (options, why) in
        [(&["--tls-psk=%D/ca-cert.pem"][..], "line 1"), (CERTIFICATES, "revocation")]
    {
        let outcome = beside(&credentials, options, "true");
        assert!(outcome.stderr.contains(why) && !outcome.status.success(), "{outcome:?}");
    }
}

#[test]
fn every_client_gets_tls_1_3_with_aes_128() {
    let Some(credentials) = Credentials::make() else { return };
    let Some(_) = peer("nbdinfo") else { return };
    let dir = credentials.directory().display().to_string();
    for (option, user) in [("--tls-psk=%D/keys.psk", AS_ALICE), ("--tls-certificates=%D", "")] {
        let mut serve = ours(["serve", "-v", &option.replace("%D", &dir), "memory", "1M"]);
        serve.args(["--run", &format!("{user}nbdinfo --size \"$uri\"")]);
        let outcome = run(&mut serve);
        outcome.succeeded();
        let told = outcome.stderr.contains("TLS13 TLS_AES_128_GCM_SHA256");
        assert!(told, "GnuTLS by itself takes ChaCha20 with a key: {outcome:?}");
    }
}

#[test]
fn nothing_leaves_a_file_from_its_place_under_tls() {
    let Some(credentials) = Credentials::make() else { return };
    if peer("strace").is_none() {
        return;
    }
    let disk = credentials.temp().file("disk", &pattern(0, SIZE));
    let copy = credentials.temp().join("copy");
    for (keys, is_sent) in [(None, true), (Some(credentials.keys()), false)] {
        let _ = fs::remove_file(&copy);
        let log = credentials.temp().join("calls");
        let mut serve = Serve::file(&disk).traced_for(&log, "sendfile,splice");
        if let Some(keys) = &keys {
            serve = serve.option(format!("--tls-psk={}", keys.display()));
        }
        let server = serve.start();
        let uri = match &keys {
            None => server.uri(""),
            Some(keys) => {
                let socket = server.socket().display();
                format!("nbds+unix://bob@/?socket={socket}&tls-psk-file={}", keys.display())
            }
        };
        run(ours(["copy", &uri]).arg(&copy)).succeeded();
        assert!(disk_is_equal(&copy));
        server.stop();
        let calls = fs::read_to_string(&log).unwrap();
        assert_eq!(calls.contains("sendfile("), is_sent, "{calls}");
    }
}

#[test]
fn what_is_written_into_memory_under_tls_is_there() {
    let Some(credentials) = Credentials::make() else { return };
    let keys = format!("--tls-psk={}", credentials.keys().display());
    let server = Serve::memory("3M").option(keys).option("--sandbox=require").start();
    let socket = server.socket().display();
    let uri =
        format!("nbds+unix://bob@/?socket={socket}&tls-psk-file={}", credentials.keys().display());
    let disk = credentials.temp().file("disk", &pattern(0, SIZE));
    // Twice: memory that is there is received into where there is no TLS.
    for _ in 0..2 {
        run(ours(["copy"]).arg(&disk).arg(&uri)).succeeded();
        run(ours(["compare"]).arg(&disk).arg(&uri)).succeeded();
    }
    run(ours(["copy", "--sandbox=require", &uri]).arg(credentials.temp().join("copy"))).succeeded();
    assert!(disk_is_equal(&credentials.temp().join("copy")));
}

/// A signature takes a millisecond, in which a reactor would serve no other client.
#[test]
fn no_reactor_computes_a_handshake() {
    let Some(credentials) = Credentials::make() else { return };
    let (Some(strace), Some(_)) = (peer("strace"), peer("nbdinfo")) else { return };
    let log = credentials.temp().join("calls");
    let dir = credentials.directory().display().to_string();
    for option in ["--tls-certificates=%D", "--tls-psk=%D/keys.psk"] {
        let mut serve = blackbox::run::program(
            &strace,
            ["-f", "-e", "trace=epoll_pwait,sendto,recvfrom", "-o"],
        );
        serve.arg(&log).arg(diskferry()).args([
            "serve",
            &option.replace("%D", &dir),
            "memory",
            "1M",
        ]);
        let user = if option.contains("psk") { AS_ALICE } else { "" };
        run(serve.args(["--run", &format!("{user}nbdinfo --size \"$uri\"")])).succeeded();
        let text = fs::read_to_string(&log).unwrap();
        let of = |call: &str, holding: &str| -> Vec<String> {
            let lines = text.lines().filter(|line| line.contains(call) && line.contains(holding));
            lines.map(|line| line.split_whitespace().next().unwrap().to_owned()).collect()
        };
        let (reactors, secured) = (of("epoll_pwait(", ""), of("sendto(", "\\26\\3\\3"));
        assert!(!reactors.is_empty() && !secured.is_empty(), "{text}");
        assert!(secured.iter().all(|thread| !reactors.contains(thread)), "{text}");
    }
}

#[test]
fn keys_may_come_by_a_descriptor() {
    let Some(credentials) = Credentials::make() else { return };
    let (binary, keys) =
        (diskferry().display().to_string(), credentials.keys().display().to_string());
    let inner =
        format!("{binary} info \"nbds+unix://bob@/?socket=$unixsocket&tls-psk-file={keys}\"");
    let line = format!("{binary} serve --tls-psk=/dev/fd/7 memory 1M --run '{inner}' 7<{keys}");
    run(Command::new("sh").args(["-c", &line])).succeeded();
}
