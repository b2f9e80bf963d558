//! Which clients may use an export: `--allow NAME=RULE,...`.

use clap::ArgMatches;
use device::access::Rules;
use wire::ServerTls;

use super::config::Config;
use super::disks::Disk;
use crate::failure::Failure;

/// An error for rules that can never match.
const UNSHOWN: &str = "this rule needs TLS; add --tls=require and certificates or keys";

/// The rules for each export that has some.
#[derive(Debug)]
pub(super) struct Access(Vec<(String, Rules)>);

impl Access {
    pub(super) fn resolve(
        matches: &ArgMatches,
        config: Option<&Config>,
        disks: &[Disk],
        tls: ServerTls,
    ) -> Result<Self, Failure> {
        let unshown = |rules: &Rules| rules.look_at_tls() && tls == ServerTls::Off;
        let mut all: Vec<(String, Rules)> = Vec::new();
        for export in config.into_iter().flat_map(|config| &config.exports) {
            let Some(rules) = &export.allow else { continue };
            if unshown(rules) {
                return Err(Failure::usage(format!("{}allow: {UNSHOWN}", export.at)));
            }
            all.push((export.name.clone(), rules.clone()));
        }
        for text in matches.get_many::<String>("allow").unwrap_or_default() {
            let wrong = |why: String| Failure::usage(format!("--allow {text}: {why}"));
            let (name, rules) = text
                .split_once('=')
                .ok_or_else(|| wrong("write NAME=RULES, for example disk=10.0.0.0/8".into()))?;
            if !disks.iter().any(|disk| disk.export == name) {
                return Err(wrong(format!("no export is named `{name}`")));
            }
            let at = all.iter().position(|(other, _)| other == name).unwrap_or(all.len());
            if at == all.len() {
                all.push((name.to_owned(), Rules::default()));
            }
            if let Some((_, list)) = all.get_mut(at) {
                list.add(rules).map_err(wrong)?;
                if unshown(list) {
                    return Err(wrong(UNSHOWN.into()));
                }
            }
        }
        Ok(Self(all))
    }

    /// The clients that may use this export; `None`: all clients.
    pub(super) fn of(&self, export: &str) -> Option<Rules> {
        self.0.iter().find(|(name, _)| name == export).map(|(_, rules)| rules.clone())
    }
}
