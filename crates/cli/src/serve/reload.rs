//! Reloading on SIGHUP: the settings that can change while a server runs are read again.
//!
//! The log's file is reopened. The certificates and keys of TLS are read, and count for clients
//! that connect from then on. With `--config` the file is read: its limits count from then on, for
//! all clients, and its rules for clients that ask for an export from then on. All other changes in
//! it are named in the log, and wait for a restart. Rules that came with such a change were written
//! for what is served then, so until then they only narrow those of before. A mistake in the file
//! changes nothing.

use server::{Live, Options, Severity};

use super::config::Config;
use super::exports::OpenExport;
use super::settings::Settings;
use crate::failure::Failure;

/// Reads again what can change.
///
/// # Errors
/// The error in the configuration, which is left as it was.
pub(super) fn reload(
    settings: &Settings,
    live: &Live,
    served: &[OpenExport],
) -> Result<(), Failure> {
    let log = &settings.options.log;
    log.reopen();
    let options = match &settings.config {
        Some(config) => configured(settings, config, served)?,
        None => settings.options.clone(),
    };
    let tls = settings.encryption.acceptor().unwrap_or_else(|e| {
        // It may be readable only for the user that started this process.
        log.event(Severity::Error, None, None, format_args!("TLS stays as it was: {}", e.line()));
        None
    });
    live.change(&Options { tls, ..options });
    log.event(Severity::Info, None, None, format_args!("reloaded"));
    Ok(())
}

/// The options of the configuration as it is now. Its rules are put in force; what is not is
/// logged.
fn configured(
    settings: &Settings,
    config: &Config,
    served: &[OpenExport],
) -> Result<Options, Failure> {
    let log = &settings.options.log;
    let fresh = Settings::read(config.path())?;
    log.start(fresh.options.verbose)?;
    let late = fresh.config.as_ref().map(|fresh| config.awaits_restart(fresh));
    let concerns = |export: &str| late.as_ref().is_some_and(|late| late.concerns(export));
    let mut narrowed = Vec::new();
    for OpenExport { name, allow, .. } in served {
        if !fresh.disks.iter().any(|disk| disk.export == *name) {
            continue;
        }
        if !concerns(name) {
            allow.change(fresh.access.of(name));
        } else if allow.narrow(fresh.access.of(name)) {
            narrowed.push(format!("`{name}`"));
        }
    }
    if let Some(late) = late.map(|late| late.words()).filter(|late| !late.is_empty()) {
        log.say(format_args!("in force after a restart only: {late}"));
    }
    if !narrowed.is_empty() {
        let names = narrowed.join(", ");
        log.say(format_args!(
            "until then both the old and the new rules of {names} must allow a client"
        ));
    }
    Ok(fresh.options)
}
