//! Disks that the control socket, or a reload, adds to a server that runs.
//!
//! They are opened as those of the start, but as a part of their own, which ends when the export
//! goes. A file comes open from the client of the socket: the sandbox opens nothing by name that it
//! did not know at the start, and need not.

use std::os::fd::{AsRawFd, OwnedFd};

use device::access::Rules;
use device::{Error, Result};
use disk::{Image, Named, Stack};
use runtime::Context;
use serving::control::{ControlledExport, DiskOpener, HotExport, WantedExport};
use serving::{Allowed, Export, LiveBitmaps};
use wire::ServerTls;

use super::disks::Disk;
use super::exports::{end_of, open_disk};
use super::settings::Settings;
use crate::sandbox::Wish;

/// What the system says where the sandbox is in the way, or its own rights.
const REFUSED: [&str; 2] = ["Permission denied", "Operation not permitted"];
const HINT: &str = "; the server's sandbox allows only what was named at its start, and files \
                    that `ctl` sends (--sandbox=off: all)";

/// Opens them.
#[derive(Clone, Debug)]
pub(super) struct HotDisks {
    context: Context,
    read_only: bool,
    /// Of disks without one.
    description: String,
    has_tls: bool,
    has_control: bool,
    sandbox: Wish,
}

impl HotDisks {
    pub(super) fn new(settings: &Settings, context: &Context) -> Self {
        Self {
            context: context.clone(),
            read_only: settings.read_only,
            description: settings.description.clone(),
            sandbox: settings.sandbox,
            has_control: settings.control.is_some(),
            has_tls: settings.options.policy.tls != ServerTls::Off,
        }
    }

    fn rules(&self, wanted: &WantedExport) -> Result<Option<Rules>> {
        let Some(text) = &wanted.allow else { return Ok(None) };
        let wrong = |why: String| Error::invalid(format!("allow: {why}"));
        let mut rules = Rules::default();
        rules.add(text).map_err(wrong)?;
        if rules.look_at_tls() && !self.has_tls {
            return Err(wrong("the rule needs TLS, and the server has none".to_owned()));
        }
        Ok(Some(rules))
    }
}

impl DiskOpener for HotDisks {
    fn open(&self, wanted: &WantedExport, file: Option<OwnedFd>) -> Result<HotExport> {
        let rules = self.rules(wanted)?;
        let image = wanted.format.as_deref().map(Image::of).transpose()?.unwrap_or_default();
        let filters = Stack::parse(wanted.filters.iter().map(String::as_str))?;
        let (named, image) = match &file {
            Some(file) => (Named::parse(&format!("file:?fd={}", file.as_raw_fd()))?, image),
            None => disk::named(&wanted.disk, image)?,
        };
        image.check()?;
        let stack = filters.over_image(image);
        let opened = self.opened((&named, &stack, wanted.read_only), wanted, rules)?;
        let controlled = ControlledExport { is_typed: true, ..opened.controlled };
        Ok(HotExport { controlled, ..opened })
    }
}

impl HotDisks {
    /// A disk of a configuration.
    pub(super) fn open_disk(&self, disk: &Disk, rules: Option<Rules>) -> Result<HotExport> {
        let wanted = WantedExport {
            name: disk.export.clone(),
            disk: disk.disk.to_string(),
            description: disk.description.clone(),
            ..WantedExport::default()
        };
        self.opened((&disk.disk, &disk.filters, disk.read_only), &wanted, rules)
    }

    fn opened(
        &self,
        (named, stack, read_only): (&Named, &Stack, bool),
        wanted: &WantedExport,
        rules: Option<Rules>,
    ) -> Result<HotExport> {
        let (part, read_only) = (self.context.part(), self.read_only || read_only);
        let end = end_of(part.clone(), &self.context);
        let opened = open_disk(named, stack, &wanted.name, !read_only, &part);
        let edge = opened.map_err(|e| {
            end.run();
            let (line, off) = (e.line(), self.sandbox == Wish::Off);
            let is_refused = REFUSED.iter().any(|words| line.contains(words));
            let hint = if is_refused && !off { HINT } else { "" };
            Error::invalid(format!("{}: {line}{hint}", wanted.disk))
        })?;
        let layered = self.has_control.then(|| LiveBitmaps::over(&edge));
        let (edge, bitmaps) = match layered {
            Some((edge, bitmaps)) => (edge, Some(bitmaps)),
            None => (edge, None),
        };
        let allow = Allowed::new(rules);
        let export = Export {
            name: wanted.name.clone(),
            description: wanted.description.as_ref().unwrap_or(&self.description).clone(),
            edge,
            read_only,
            allow: allow.clone(),
        };
        let controlled = ControlledExport {
            name: wanted.name.clone(),
            disk: wanted.disk.clone(),
            size: export.edge.info().size,
            is_read_only: export.is_read_only(),
            is_default: false,
            is_attached: false,
            allow,
            is_typed: false,
            bitmaps,
            end,
        };
        Ok(HotExport { export, controlled })
    }
}
