//! Reloading on SIGHUP: the settings that can change while a server runs are read again.
//!
//! The log's file is reopened. The certificates and keys of TLS are read, and count for clients
//! that connect from then on. With `--config` the file is read: its limits count from then on, for
//! all clients, and its rules for clients that ask for an export from then on. Exports that are new
//! in it are served, and those that it has no longer are not, unless its options have changed, too;
//! nobody is disconnected. All other changes in
//! it are named in the log, and wait for a restart. Rules that came with such a change were written
//! for what is served then, so until then they only narrow those of before. A mistake in the file
//! changes nothing.

use server::{Options, ServerHandle};
use serving::Severity;
use serving::control::LiveExports;

use super::config::Config;
use super::hot::HotDisks;
use super::settings::Settings;
use crate::failure::Failure;

/// Reads again what can change.
///
/// # Errors
/// The error in the configuration, which is left as it was.
pub(super) fn reload(
    settings: &Settings,
    server: &ServerHandle,
    hot: &HotParts,
) -> Result<(), Failure> {
    let log = &settings.options.log;
    log.reopen();
    let options = match &settings.config {
        Some(config) => configured(settings, config, (server.live(), hot))?,
        None => settings.options.clone(),
    };
    let tls = settings.encryption.acceptor().unwrap_or_else(|e| {
        // It may be readable only for the user that started this process.
        log.event(Severity::Error, None, None, format_args!("TLS is unchanged: {}", e.line()));
        None
    });
    server.change(&Options { tls, ..options });
    log.event(Severity::Info, None, None, format_args!("reloaded"));
    Ok(())
}

/// What exports come and go by.
#[derive(Debug)]
pub(super) struct HotParts {
    pub(super) exports: LiveExports,
    pub(super) disks: HotDisks,
}

/// The options of the configuration as it is now. Its exports are served, its rules are put in
/// force; what is not is logged.
fn configured(
    settings: &Settings,
    config: &Config,
    (live, hot): (&serving::Live, &HotParts),
) -> Result<Options, Failure> {
    let log = &settings.options.log;
    let fresh = Settings::read(config.path())?;
    log.start(fresh.options.verbose)?;
    if let Some(new) = &fresh.config
        && !config.awaits_restart(new).is_of_options()
    {
        come_and_go(settings, (config, new), &fresh, hot);
        if fresh.default_name().is_some_and(|name| live.set_default(name)) {
            config.has_default_of(new);
        }
    }
    let late = fresh.config.as_ref().map(|fresh| config.awaits_restart(fresh));
    let concerns = |export: &str| late.as_ref().is_some_and(|late| late.concerns(export));
    let mut narrowed = Vec::new();
    for export in hot.exports.list().into_iter().filter(|export| !export.is_typed) {
        let name = &export.name;
        if !fresh.disks.iter().any(|disk| disk.export == *name) {
            continue;
        }
        if !concerns(name) {
            export.allow.change(fresh.access.of(name));
        } else if export.allow.narrow(fresh.access.of(name)) {
            narrowed.push(format!("`{name}`"));
        }
    }
    if let Some(late) = late.map(|late| late.words()).filter(|late| !late.is_empty()) {
        log.say(format_args!("takes effect only after a restart: {late}"));
    }
    if !narrowed.is_empty() {
        let names = narrowed.join(", ");
        log.say(format_args!(
            "until then both the old and the new rules of {names} must allow a client"
        ));
    }
    Ok(fresh.options)
}

/// Serves the exports that are new, and no longer those that are gone. What cannot be done is
/// logged, and waits for a restart.
fn come_and_go(
    settings: &Settings,
    (config, new): (&Config, &Config),
    fresh: &Settings,
    HotParts { exports, disks }: &HotParts,
) {
    let say = |name: &str, what: &str, e: &device::Error| {
        let line = format_args!("export `{name}`: {what}: {e}");
        settings.options.log.event(Severity::Error, None, None, line);
    };
    let served = exports.list();
    for gone in served.iter().filter(|export| !export.is_typed) {
        if fresh.disks.iter().any(|disk| disk.export == gone.name) {
            continue;
        }
        match exports.remove(&gone.name) {
            Ok(()) => config.serves(&gone.name, new),
            Err(e) => say(&gone.name, "not removed", &e),
        }
    }
    for disk in &fresh.disks {
        if served.iter().any(|export| export.name == disk.export) {
            continue;
        }
        let open = || disks.open_disk(disk, fresh.access.of(&disk.export));
        match exports.add(&disk.export, open) {
            Ok(()) => config.serves(&disk.export, new),
            Err(e) => say(&disk.export, "not added", &e),
        }
    }
}
