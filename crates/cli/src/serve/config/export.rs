//! `[[export]]`: a disk under a name, with its own settings.

use device::access::Rules;
use disk::{External, Image, Stack};
use toml::de::DeValue;

use super::super::disks::{Disk, LONGEST_NAME};
use super::unknown;
use super::value::{At, Lines, Wrong, entries, flag, text, texts};
use crate::failure::Failure;

/// Exports of a file, at most.
const MOST: usize = 10_000;

/// The keys of an export.
const KEYS: &[&str] =
    &["name", "disk", "filters", "format", "allow-external", "read-only", "description", "allow"];

/// An export in the file.
#[derive(Debug, Default)]
pub(in super::super) struct ExportTable {
    /// `FILE:LINE: `, for what is wrong with it.
    pub(in super::super) at: String,
    pub(in super::super) name: String,
    disk: Option<String>,
    filters: Vec<(usize, String)>,
    format: Option<String>,
    external: External,
    read_only: bool,
    description: Option<String>,
    pub(in super::super) allow: Option<Rules>,
}

/// All of them.
pub(super) fn read(at: At<'_, '_>, lines: &Lines<'_>) -> Result<Vec<ExportTable>, Failure> {
    let wrong = || lines.wrong(at.offset, "exports are tables: write [[export]]");
    let DeValue::Array(list) = at.value else { return Err(wrong()) };
    if list.len() > MOST {
        return Err(lines.wrong(at.offset, format!("more than {MOST} exports")));
    }
    let mut exports: Vec<ExportTable> = Vec::new();
    for one in list.iter() {
        let DeValue::Table(table) = one.get_ref() else { return Err(wrong()) };
        let at = one.span().start;
        let mut export = ExportTable { at: lines.prefix(at), ..ExportTable::default() };
        for (word, at) in entries(table) {
            export.take(word, at).map_err(|why| lines.wrong(at.offset, why))?;
        }
        if export.disk.is_none() {
            return Err(lines.wrong(at, "this export has no `disk`"));
        }
        for (at, filter) in &export.filters {
            // The others are checked again with it, and were right.
            Stack::parse([filter.as_str()]).map_err(|e| lines.wrong(*at, e))?;
        }
        exports.push(export);
    }
    Ok(exports)
}

impl ExportTable {
    fn take(&mut self, word: &str, at: At<'_, '_>) -> Result<(), Wrong> {
        match word {
            "name" => self.name = name(at)?,
            "disk" => self.disk = Some(text(word, at.value)?),
            "filters" => self.filters = texts(word, at)?,
            "format" => self.format = Some(text(word, at.value)?),
            "allow-external" => self.external = external(at)?,
            "read-only" => self.read_only = flag(word, at.value)?,
            "description" => self.description = Some(text(word, at.value)?),
            "allow" => self.allow = Some(rules(at)?),
            _ => return Err(unknown("key", word, KEYS)),
        }
        Ok(())
    }

    /// The disk to be served: behind the filters of the command line, which apply to every disk.
    pub(in super::super) fn disk(&self, before: &[&str]) -> Result<Disk, Failure> {
        self.resolve(before).map_err(|failure| failure.behind(&self.at))
    }

    fn resolve(&self, before: &[&str]) -> Result<Disk, Failure> {
        let image = match &self.format {
            Some(word) => Image::of(word)?,
            None => Image::default(),
        };
        let image = Image { external: self.external.clone(), ..image };
        let own = self.filters.iter().map(|(_, filter)| filter.as_str());
        let (disk, image) = disk::named(self.disk.as_deref().unwrap_or_default(), image)?;
        let filters = Stack::parse(before.iter().copied().chain(own))?.over_image(image);
        Ok(Disk {
            at: self.at.clone(),
            export: self.name.clone(),
            disk,
            filters: filters.into(),
            read_only: self.read_only,
            description: self.description.clone(),
        })
    }

    /// The settings that cannot be reloaded, as the export of this number.
    pub(super) fn fixed(&self, number: usize) -> String {
        let Self { at: _, name, disk, filters, format, external, read_only, description, allow: _ } =
            self;
        let filters: Vec<&String> = filters.iter().map(|(_, filter)| filter).collect();
        // The first one is the default.
        let is_first = number == 0;
        format!(
            "{name:?} {disk:?} {filters:?} {format:?} {external:?} {read_only} {description:?} {is_first}"
        )
    }
}

fn name(at: At<'_, '_>) -> Result<String, Wrong> {
    let name = text("name", at.value)?;
    if name.len() > LONGEST_NAME {
        return Err(format!("`name` has {} bytes; NBD takes {LONGEST_NAME}", name.len()));
    }
    Ok(name)
}

fn external(at: At<'_, '_>) -> Result<External, Wrong> {
    let word = text("allow-external", at.value)?;
    Ok(if word == "chain" { External::Chain } else { External::Beneath(word.into()) })
}

fn rules(at: At<'_, '_>) -> Result<Rules, Wrong> {
    let mut rules = Rules::default();
    for (_, text) in texts("allow", at)? {
        rules.add(&text)?;
    }
    Ok(rules)
}
