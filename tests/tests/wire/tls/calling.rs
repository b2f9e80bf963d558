//! Our client against peers, and against our own server: each verb that takes a disk takes one
//! under TLS, and the client believes no server that it must not believe.

use std::ffi::OsString;
use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use blackbox::launch::{Serve, Server};
use blackbox::peers::peer;
use blackbox::run::{Job, Outcome, ferry, ours, run};
use blackbox::temp::{TempDir, pattern};
use blackbox::wait_for;
use rustix::process::Signal;

use super::certificates::Credentials;
use super::serving::beside;

const SIZE: usize = 3 << 20;

/// A peer that serves the file `disk` of these credentials, writable.
fn nbdkit(credentials: &Credentials, options: &[&str]) -> Option<Server> {
    let nbdkit = peer("nbdkit")?;
    let disk = credentials.temp().file("disk", &pattern(0, SIZE));
    let dir = credentials.directory().display().to_string();
    Some(Server::peer(&nbdkit, |socket| {
        let mut all: Vec<OsString> = vec!["-f".into(), "-U".into(), socket.into()];
        all.extend(options.iter().map(|option| option.replace("%D", &dir).into()));
        all.extend(["file".into(), disk.into()]);
        all
    }))
}

fn qemu_nbd(credentials: &Credentials, object: &str) -> Option<Server> {
    let qemu_nbd = peer("qemu-nbd")?;
    let disk = credentials.temp().file("disk", &pattern(0, SIZE));
    let object = format!("{object},id=t,endpoint=server,dir={}", credentials.directory().display());
    Some(Server::peer(&qemu_nbd, |socket| {
        let all = ["-t", "-f", "raw", "--object", &object, "--tls-creds", "t", "-k"];
        let mut all: Vec<OsString> = all.map(Into::into).into();
        all.extend([socket.into(), disk.into()]);
        all
    }))
}

/// A URI under TLS, with these parameters.
fn uri(server: &Server, user: &str, params: &str) -> String {
    format!("nbds+unix://{user}/?socket={}&{params}", server.socket().display())
}

/// There and back, and the output of `info`.
fn there_and_back(credentials: &Credentials, uri: &str) {
    let copy = credentials.temp().join("copy");
    let _ = fs::remove_file(&copy);
    let told = run(&mut ours(["info", uri]));
    assert!(told.succeeded().contains("with TLS"), "{told:?}");
    run(ours(["copy", uri]).arg(&copy)).succeeded();
    assert!(fs::read(&copy).unwrap() == pattern(0, SIZE));
    run(ours(["copy"]).arg(&copy).arg(uri)).succeeded();
    assert!(fs::read(credentials.temp().join("disk")).unwrap() == pattern(0, SIZE));
}

fn keys(credentials: &Credentials) -> String {
    format!("tls-psk-file={}", credentials.keys().display())
}

fn certificates(credentials: &Credentials) -> String {
    format!("tls-certificates={}&tls-hostname=localhost", credentials.directory().display())
}

#[test]
fn peers_with_a_key() {
    let Some(credentials) = Credentials::make() else { return };
    let options = ["--tls=require", "--tls-psk=%D/keys.psk"];
    let servers = [nbdkit(&credentials, &options), qemu_nbd(&credentials, "tls-creds-psk")];
    for (server, user) in servers.into_iter().flatten().zip(["bob@", "alice@"]) {
        there_and_back(&credentials, &uri(&server, user, &keys(&credentials)));
    }
}

#[test]
fn peers_with_their_certificate_and_with_ours() {
    for verify in [false, true] {
        let Some(credentials) = Credentials::make() else { return };
        let more = if verify { &["--tls-verify-peer"][..] } else { &[] };
        let options = [&["--tls=require", "--tls-certificates=%D"], more].concat();
        let object = format!("tls-creds-x509,verify-peer={}", if verify { "yes" } else { "no" });
        let servers = [nbdkit(&credentials, &options), qemu_nbd(&credentials, &object)];
        for server in servers.into_iter().flatten() {
            there_and_back(&credentials, &uri(&server, "", &certificates(&credentials)));
        }
    }
}

#[test]
fn our_own_server_in_every_way() {
    let Some(credentials) = Credentials::make() else { return };
    let binary = blackbox::peers::diskferry().display().to_string();
    for (options, params) in [
        (&["--tls-psk=%D/keys.psk"][..], ""),
        (&["--tls-certificates=%D"], "&tls-hostname=localhost"),
        (&["--tls-certificates=%D", "--tls-verify-peer"], "&tls-hostname=localhost"),
    ] {
        for transport in [&["-U", "-"][..], &["-i", "127.0.0.1", "-p", "0"]] {
            let copy = credentials.temp().join("copy");
            let _ = fs::remove_file(&copy);
            let command = format!(
                "set -e\nuri=$(echo \"$uri\" | sed 's,://,://alice@,;s,$,{},')\n\
                 for verb in info list map 'inspect --safe'; do {binary} $verb \"$uri\"; done\n\
                 {binary} copy \"$uri\" {copy}\n\
                 {binary} compare \"$uri\" {copy}\n\
                 {binary} serve nbd \"uri=$uri\" --run '{binary} compare \"$uri\" {copy}'",
                params.replace('&', "\\&"),
                copy = copy.display(),
            );
            let outcome = beside(&credentials, &[transport, options].concat(), &command);
            assert!(outcome.succeeded().contains("with TLS"), "{outcome:?}");
        }
    }
}

/// The output of `info` for a server.
fn info(uri: &str) -> Outcome {
    run(&mut ours(["info", uri]))
}

#[test]
fn client_check_18_a_server_that_requires_tls_gets_it_or_a_clear_refusal() {
    let Some(credentials) = Credentials::make() else { return };
    let key = format!("--tls-psk={}", credentials.keys().display());
    let server = Serve::memory("1M").option("--tls=require").option(key).start();
    for verb in ["info", "list", "map"] {
        assert!(ferry([verb, &server.uri("")]).failed().contains("TLS"));
    }
    let told = info(&uri(&server, "bob@", &keys(&credentials)));
    assert!(told.succeeded().contains("with TLS"), "{told:?}");
}

#[test]
fn client_check_19_an_untrusted_server_is_not_believed() {
    let Some(credentials) = Credentials::make() else { return };
    let options = ["--tls=require", "--tls-certificates=%D"];
    let Some(server) = nbdkit(&credentials, &options) else { return };
    let strangers = credentials.strangers();
    let dir = credentials.directory().display().to_string();
    for (params, why) in [
        (format!("tls-certificates={dir}&tls-hostname=other.example"), "TLS"),
        (format!("tls-certificates={}&tls-hostname=localhost", strangers.display()), "TLS"),
        (format!("tls-certificates={dir}"), "tls-hostname="),
        (format!("tls-certificates={dir}&tls-verify-peer=1"), "tls-hostname="),
        // A certificate is no answer to a key.
        (keys(&credentials), "TLS"),
    ] {
        let outcome = info(&uri(&server, "alice@", &params));
        assert!(outcome.failed().contains(why), "{params}: {outcome:?}");
    }
    // Unless that is what is asked for.
    info(&uri(&server, "", &format!("tls-certificates={dir}&tls-verify-peer=0"))).succeeded();
}

#[test]
fn a_wrong_key_an_unknown_user_and_a_missing_certificate_are_told_apart_from_a_disk() {
    let Some(credentials) = Credentials::make() else { return };
    let Some(server) = nbdkit(&credentials, &["--tls=require", "--tls-psk=%D/keys.psk"]) else {
        return;
    };
    let wrong = format!("tls-psk-file={}", credentials.wrong_keys("alice").display());
    assert!(info(&uri(&server, "alice@", &wrong)).failed().contains("TLS"));
    let eve = format!("tls-psk-file={}", credentials.wrong_keys("eve").display());
    assert!(info(&uri(&server, "eve@", &eve)).failed().contains("TLS"));
    let outcome = info(&uri(&server, "mallory@", &keys(&credentials)));
    assert!(outcome.failed().contains("mallory"), "{outcome:?}");
    let verify = ["--tls=require", "--tls-certificates=%D", "--tls-verify-peer"];
    let Some(server) = nbdkit(&credentials, &verify) else { return };
    let anonymous = credentials.without_client();
    let params = format!("tls-certificates={}&tls-hostname=localhost", anonymous.display());
    assert!(info(&uri(&server, "", &params)).failed().contains("encrypted"));
}

#[test]
fn client_check_19_a_server_without_tls_is_never_spoken_to_in_clear_text() {
    let Some(credentials) = Credentials::make() else { return };
    let Some(server) = nbdkit(&credentials, &["--tls=off"]) else { return };
    let outcome = info(&uri(&server, "alice@", &keys(&credentials)));
    assert!(outcome.failed().contains("TLS"), "{outcome:?}");
    let outcome = info(&uri(&server, "", &certificates(&credentials)));
    assert!(outcome.failed().contains("TLS"), "{outcome:?}");
}

/// A server of openssl's that speaks TLS 1.2 alone would need STARTTLS, so ours is asked by one of
/// GnuTLS that does not speak 1.3.
#[test]
fn tls_1_2_will_do_for_certificates_and_not_for_keys() {
    let Some(credentials) = Credentials::make() else { return };
    let Some(qemu_img) = peer("qemu-img") else { return };
    let temp = TempDir::new();
    let convert = |object: &str, options: &[&str]| {
        let copy: PathBuf = temp.join("copy");
        let object =
            format!("{object},id=t,endpoint=client,dir=%D,priority=NORMAL:-VERS-ALL:+VERS-TLS1.2");
        let command = format!(
            "{} convert --object {object} --image-opts driver=nbd,host=127.0.0.1,port=$port,tls-creds=t \
             -O raw {}",
            qemu_img.display(),
            copy.display()
        );
        beside(&credentials, &[&["-i", "127.0.0.1", "-p", "0"], options].concat(), &command)
    };
    convert("tls-creds-x509", &["--tls-certificates=%D"]).succeeded();
    convert("tls-creds-x509", &["--tls-certificates=%D", "--tls-verify-peer"]).succeeded();
    let refused = convert("tls-creds-psk,username=alice", &["--tls-psk=%D/keys.psk"]);
    assert!(!refused.status.success(), "{refused:?}");
}

#[test]
fn a_lost_connection_reconnects_under_tls() {
    let Some(credentials) = Credentials::make() else { return };
    let temp = credentials.temp();
    let (socket, copy) = (temp.join("again"), temp.join("copy"));
    let disk = temp.file("disk", &pattern(0, SIZE));
    let keys = credentials.keys().display().to_string();
    let start = |log: &Path, filters: &[&str]| {
        let mut command = ours(["serve", "-v", &format!("--tls-psk={keys}"), "-U"]);
        command.arg(&socket).arg("--log").arg(log).args(filters).arg("file").arg(&disk);
        let server = Job::start(&mut command);
        wait_for("the socket", || UnixStream::connect(&socket).is_ok());
        server
    };
    let has_opened = |log: &Path| fs::read_to_string(log).unwrap_or_default().contains("opened");
    // The first one never answers a read, and is killed while it owes them.
    let log = temp.join("log");
    let server = start(&log, &["--filter=delay?rdelay=3600"]);
    let uri = format!("nbds+unix://alice@/?socket={}&tls-psk-file={keys}", socket.display());
    let copying = Job::start(ours(["copy", "--reconnect-delay=60", &uri]).arg(&copy));
    wait_for("the copy's connection", || has_opened(&log));
    server.signal(Signal::KILL);
    server.wait();
    fs::remove_file(&socket).unwrap();
    let again = temp.join("log-again");
    let server = start(&again, &[]);
    copying.wait().succeeded();
    assert!(fs::read(&copy).unwrap() == pattern(0, SIZE));
    assert!(has_opened(&again));
    server.stop();
}
