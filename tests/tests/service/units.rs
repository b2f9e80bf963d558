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
fn units(temp: &TempDir, config: &Path) -> [PathBuf; 2] {
    let binary = diskferry().canonicalize().unwrap().display().to_string();
    ["diskferry.service", "diskferry.socket"].map(|name| {
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

#[test]
fn the_service_starts_reloads_and_stops_under_systemd() {
    if !Path::new("/run/systemd/system").exists() {
        return skip_environment("this machine was not booted with systemd");
    }
    let (Some(systemctl), true) =
        (peer("systemctl"), fs::metadata("/proc/self").is_ok_and(is_root))
    else {
        return skip_environment("only root starts services");
    };
    let temp = TempDir::new();
    // What ProtectHome and PrivateTmp hide cannot be its configuration or its program.
    let name = format!("diskferry-test-{}", std::process::id());
    let (binary, config) = (format!("/var/lib/{name}"), format!("/var/lib/{name}.toml"));
    let unit = format!("/run/systemd/system/{name}.service");
    fs::copy(diskferry(), &binary).unwrap();
    fs::write(&config, format!("unix = '/run/{name}.d/s'\n[[export]]\ndisk = 'memory:1M'\n"))
        .unwrap();
    let text = fs::read_to_string(&units(&temp, Path::new(&config))[0]).unwrap();
    let text = text.replace(&diskferry().canonicalize().unwrap().display().to_string(), &binary);
    let text = text.replace("RuntimeDirectory=diskferry", &format!("RuntimeDirectory={name}.d"));
    fs::write(&unit, text).unwrap();
    let control =
        |words: &[&str]| run(Command::new(&systemctl).args(words).arg(&name)).status.success();
    let done = [
        run(Command::new(&systemctl).arg("daemon-reload")).status.success(),
        control(&["start"]),
        control(&["is-active"]),
        run(&mut ours(["info", &format!("nbd+unix:///?socket=/run/{name}.d/s")])).status.success(),
        control(&["reload"]),
        control(&["is-active"]),
        control(&["stop"]),
        !control(&["is-failed"]),
    ];
    for path in [&binary, &config, &unit] {
        let _ = fs::remove_file(path);
    }
    run(Command::new(&systemctl).arg("daemon-reload"));
    assert_eq!(done, [true; 8]);
}

fn is_root(meta: fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    meta.uid() == 0
}
