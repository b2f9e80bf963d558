//! The units of systemd that are shipped.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use blackbox::examples::root;
use blackbox::peers::{diskferry, peer, skip_environment};
use blackbox::run::{ours, run};
use blackbox::temp::TempDir;

fn shipped(name: &str) -> PathBuf {
    root().join("packaging/systemd").join(name)
}

/// The units, with the binary under test in them and `config` as the configuration.
fn units(temp: &TempDir, config: &Path) -> [PathBuf; 3] {
    let binary = diskferry().canonicalize().unwrap().display().to_string();
    ["diskferry.service", "diskferry.socket", "diskferry-attach@.service"].map(|name| {
        let text = fs::read_to_string(shipped(name)).unwrap();
        let text = text.replace("/usr/bin/diskferry", &binary);
        let text = text.replace("/etc/diskferry/serve.toml", config.to_str().unwrap());
        temp.file(name, text.as_bytes())
    })
}

#[test]
fn systemd_finds_no_fault_with_the_units() {
    let Some(analyze) = peer("systemd-analyze") else { return };
    let temp = TempDir::new();
    let units = units(&temp, &shipped("serve.toml"));
    let mut verify = Command::new(analyze);
    verify.args(["verify", "--man=no"]).args(&units);
    let outcome = run(&mut verify);
    assert_eq!((outcome.succeeded(), outcome.stderr.as_str()), ("", ""));
}

#[test]
fn the_configuration_that_is_shipped_is_right_also_with_what_is_commented_out() {
    let config = shipped("serve.toml");
    run(ours(["serve", "--check", "--config"]).arg(&config)).succeeded();
    let text = fs::read_to_string(&config).unwrap();
    // Settings stand behind `# `, and prose has no ` = `.
    let is_setting = |line: &str| line.contains(" = ") || line.starts_with("[[");
    let all: Vec<&str> = text
        .lines()
        .map(|line| line.strip_prefix("# ").filter(|rest| is_setting(rest)).unwrap_or(line))
        .filter(|line| !line.starts_with("tls-psk") && !line.starts_with("socket-owner"))
        .collect();
    let temp = TempDir::new();
    let path = temp.file("serve.toml", all.join("\n").as_bytes());
    run(ours(["serve", "--check", "--config"]).arg(&path)).succeeded();
    assert!(all.join("\n").matches("\n[[export]]").count() == 3, "{all:?}");
}

/// Both units as they are shipped, under a systemd of their own.
const UNDER_SYSTEMD: &str = r#"
check() { "$@" >/tmp/out 2>&1 || { echo "failed: $*"; cat /tmp/out; systemctl status --no-pager diskferry.service; exit 1; }; }
served() { check nbdinfo --size "nbd+unix:///?socket=$1"; }
check systemctl start diskferry.service
served /run/diskferry/socket
systemctl show -P StatusText diskferry.service
check systemctl reload diskferry.service
served /run/diskferry/socket
check systemctl stop diskferry.service
systemctl show -P Result diskferry.service
# A client starts it, and after its end another one.
sed -i 's/^unix/#unix/' /etc/diskferry/serve.toml
check systemctl start diskferry.socket
served /run/diskferry.sock
check kill -KILL "$(systemctl show -P MainPID diskferry.service)"
served /run/diskferry.sock
check systemctl is-active diskferry.service
# A mistake in the configuration fails the reload, and the server goes on.
echo nonsense >>/etc/diskferry/serve.toml
systemctl reload diskferry.service 2>/dev/null && echo "reloaded nonsense"
served /run/diskferry.sock
"#;

#[test]
fn the_units_start_reload_and_stop_the_server_under_systemd() {
    if peer("systemctl").is_none() || peer("nbdinfo").is_none() {
        return;
    }
    let temp = TempDir::new();
    let script = temp.file("script", UNDER_SYSTEMD.as_bytes());
    let mut boot = Command::new(root().join("tests/lab/systemd"));
    let outcome = run(boot.arg(diskferry()).arg(script));
    if outcome.status.code() == Some(77) {
        return skip_environment(&outcome.stderr);
    }
    let said = "serving 1 export at nbd+unix:///?socket=/run/diskferry/socket\nsuccess\n";
    assert_eq!(outcome.succeeded(), said);
}
