//! What `serve` prints at a terminal: what is served, and where.

use std::io::{IsTerminal, Write};

use device::format_size;
use server::ListenAddress;

use super::exports::OpenExport;
use super::settings::Settings;
use crate::names;

/// Up to this many exports are named; of more, only the number.
const NAMED: usize = 20;

/// Prints it where a person can see it: if standard error is a terminal, the server is not a
/// daemon, and no command runs beside it. nbdkit prints nothing.
pub(super) fn tell(settings: &Settings, places: &[ListenAddress], served: &[OpenExport]) {
    let is_seen = std::io::stderr().is_terminal() && !names::is_nbdkit();
    if !is_seen || settings.daemon || settings.run.is_some() || settings.listening.is_single() {
        return;
    }
    let mut lines: Vec<String> = served
        .iter()
        .take(NAMED)
        .map(|export| {
            let mut uris = settings.uris_of(places, &export.name);
            if uris.is_empty() {
                uris = places.iter().map(ToString::to_string).collect();
            }
            let here = settings.points.iter().filter(|one| one.export == export.name);
            uris.extend(here.map(|one| one.point.path.display().to_string()));
            line(export, &uris)
        })
        .collect();
    if served.len() > NAMED {
        lines.push(format!("and {} more", served.len() - NAMED));
    }
    let text = lines.join("\n") + "; Ctrl-C ends\n";
    // A terminal that has gone away makes no difference.
    let _ = std::io::stderr().write_all(text.as_bytes());
}

fn line(export: &OpenExport, uris: &[String]) -> String {
    let disk = device::text::shown(&export.disk);
    let read_only = if export.is_read_only { ", read-only" } else { "" };
    format!("serving {disk} ({}{read_only}) at {}", format_size(export.size), uris.join(" and "))
}
