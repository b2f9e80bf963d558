//! Which clients may use which export, by what they show under TLS.

use blackbox::launch::Server;
use blackbox::peers::{diskferry, peer, skip_environment};
use blackbox::run::{Outcome, ours, program, run};
use blackbox::temp::TempDir;

use super::certificates::Credentials;
use super::serving::beside;

/// Serves the exports `open` and `secret` with these options beside a command, in which `%D` is the
/// directory of credentials, `%B` our program, and `SECURE USER EXPORT`, `PLAIN EXPORT` are URIs.
fn two_exports(credentials: &Credentials, options: &[&str], command: &str) -> Outcome {
    let dir = credentials.directory().display().to_string();
    let place =
        |text: &str| text.replace("%D", &dir).replace("%B", &diskferry().display().to_string());
    let mut serve =
        ours(["serve", "--log=null", "--export=open=memory:1M", "--export=secret=memory:2M"]);
    serve.args(options.iter().map(|option| place(option)));
    let functions = "secure() { echo \"nbds+unix://$1@/$2?socket=$unixsocket&tls-psk-file=%D/keys.psk\"; }\n\
                     shown() { echo \"nbds+unix:///$1?socket=$unixsocket&tls-certificates=%D&tls-hostname=localhost\"; }\n\
                     plain() { echo \"nbd+unix:///$1?socket=$unixsocket\"; }\n";
    run(serve.arg("--run").arg(place(&format!("{functions}{command}"))))
}

const SOME_TLS: [&str; 2] = ["--tls=on", "--tls-psk=%D/keys.psk"];

#[test]
fn an_export_that_is_only_there_under_tls_is_not_in_the_list_without_it() {
    let Some(credentials) = Credentials::make() else { return };
    let options = [&SOME_TLS[..], &["--allow=secret=tls"]].concat();
    let listed = two_exports(&credentials, &options, "%B list \"$(plain open)\"");
    let told = listed.succeeded();
    assert!(told.contains("\"open\"") && !told.contains("secret"), "{told}");
    let listed = two_exports(&credentials, &options, "%B list \"$(secure alice open)\"");
    assert!(listed.succeeded().contains("\"secret\""), "{listed:?}");
    for command in ["nbdinfo --list \"$(plain)\"", "%B info \"$(plain secret)\""] {
        let outcome = two_exports(&credentials, &options, command);
        assert!(!outcome.stdout.contains("secret"), "{outcome:?}");
    }
    let refused = two_exports(&credentials, &options, "%B info \"$(plain secret)\"");
    assert!(refused.stderr.contains("TLS"), "it may be told that TLS would help: {refused:?}");
    let refusal = |name: &str| {
        let command = format!("%B info \"$(plain {name})\"");
        let outcome = two_exports(&credentials, &options, &command);
        assert!(!outcome.status.success(), "{outcome:?}");
        let (_, why) = outcome.stderr.rsplit_once("/socket: ").unwrap();
        why.lines().next().unwrap().replace(name, "NAME")
    };
    assert_eq!(refusal("secret"), refusal("nothing"), "nobody finds out which names there are");
    two_exports(&credentials, &options, "%B info \"$(secure alice secret)\"").succeeded();
    two_exports(&credentials, &options, "%B info \"$(plain open)\"").succeeded();
}

#[test]
fn an_export_of_one_user_is_not_there_for_another() {
    let Some(credentials) = Credentials::make() else { return };
    let options = [&SOME_TLS[..], &["--allow=secret=psk-user:bob"]].concat();
    two_exports(&credentials, &options, "%B info \"$(secure bob secret)\"").succeeded();
    for command in ["%B info \"$(secure alice secret)\"", "%B info \"$(plain secret)\""] {
        assert!(!two_exports(&credentials, &options, command).status.success());
    }
    let listed = two_exports(&credentials, &options, "%B list \"$(secure alice open)\"");
    assert!(!listed.succeeded().contains("secret"), "{listed:?}");
}

#[test]
fn users_of_this_machine_and_addresses_are_told_apart() {
    let Some(credentials) = Credentials::make() else { return };
    let other = ["--allow=secret=uid:4294967294,gid:4294967294"];
    let outcome = two_exports(&credentials, &other, "%B info \"$(plain secret)\"");
    assert!(!outcome.status.success() && outcome.stderr.contains("no such export"), "{outcome:?}");
    let me = format!("--allow=secret=uid:{}", rustix::process::getuid().as_raw());
    two_exports(&credentials, &[&me], "%B info \"$(plain secret)\"").succeeded();
}

/// A server in a container does not see the process of a client outside: its number is 0, and its
/// user known.
#[test]
fn a_client_of_another_namespace_of_processes_is_the_user_that_it_is() {
    let Some(unshare) = peer("unshare") else { return };
    let apart = ["--pid", "--fork", "--kill-child"];
    if !run(program(&unshare, apart).arg("true")).status.success() {
        return skip_environment("there are no namespaces to be had");
    }
    let me = rustix::process::geteuid().as_raw();
    for (rule, is) in [(format!("deny=uid:{me}"), false), (format!("allow=uid:{me}"), true)] {
        let temp = TempDir::new();
        let socket = temp.join("s");
        let mut command = program(&unshare, apart);
        command.arg(diskferry()).args(["serve", "--filter=ip", "-U"]).arg(&socket);
        command.args(["memory", "1M", &rule]);
        if is {
            command.arg("deny=all");
        }
        let mut server = Server::start(command, temp, socket);
        server.may_end();
        let outcome = run(&mut ours(["info", &server.uri("")]));
        assert_eq!(outcome.status.success(), is, "{rule}: {outcome:?}");
    }
}

#[test]
fn the_filter_knows_names_of_certificates_and_users_as_nbdkit_does() {
    let Some(credentials) = Credentials::make() else { return };
    let shown = ["--tls-certificates=%D", "--tls-verify-peer"];
    let command = format!("{} info \"$uri&tls-hostname=localhost\"", diskferry().display());
    for (rule, is) in [
        ("allow=dn:CN=alice,O=BigCo,C=GB", true),
        ("allow=dn:*O=BigCo*", true),
        ("allow=dn:CN=bob*", false),
        ("allow=issuer-dn:CN=Test authority", true),
        ("allow=issuer-dn:CN=Another authority", false),
    ] {
        let options = [&shown[..], &["--filter=ip", "-U", "-"]].concat();
        let mut serve = ours(["serve", "--log=null"]);
        let dir = credentials.directory().display().to_string();
        serve.args(options.iter().map(|option| option.replace("%D", &dir)));
        serve.args(["memory", "1M", rule, "deny=all", "--run", &command]);
        let outcome = run(&mut serve);
        assert_eq!(outcome.status.success(), is, "{rule}: {outcome:?}");
    }
}

#[test]
fn a_rule_may_be_for_the_export_without_a_name() {
    let Some(credentials) = Credentials::make() else { return };
    beside(&credentials, &["--allow==any"], "true").succeeded();
}
