//! What every plan keeps, whoever wrote it: counts and lengths have limits, shards are in order and
//! cover their disks, no two disks share a target, and no name has a secret in it.

use std::collections::HashSet;

use device::{Error, ErrorKind, Fault, Name, Param, Params, Result, secret};
use disk::{Image, Named};

use super::place::FleetState;
use super::plan::{FleetDisk, FleetPlan, WantedDisk};
use crate::manifest::stretch_for;

/// Words in the keys of parameters that are secrets, or may have one in them.
const SECRETS: [&str; 6] = ["password", "secret", "token", "bearer", "cookie", "header"];
/// Disks, and shards, of a plan.
pub(super) const DISKS: usize = 100_000;
pub(super) const SHARDS: usize = 1_000_000;
/// Bytes in a name.
const NAME: usize = 64 << 10;
/// Readers of a source host.
const READERS: u16 = 1024;

/// Refuses a plan that breaks a rule.
pub(super) fn plan(plan: &FleetPlan) -> Result<()> {
    let shards: usize = plan.disks.iter().map(|disk| disk.shards.len()).sum();
    if plan.disks.len() > DISKS || shards > SHARDS {
        let action = format!("read the plan: it has more than {DISKS} disks, or {SHARDS} shards");
        return Err(Error::new(ErrorKind::Limit, Fault::User, action));
    }
    state(&plan.state)?;
    let readers = plan.limits.readers.is_some_and(|n| n == 0 || n > READERS);
    if readers || plan.limits.rate == Some(0) || plan.limits.shard == 0 {
        return Err(broken("its limits are invalid"));
    }
    wanted(plan.disks.iter().map(|disk| &disk.wanted))?;
    plan.disks
        .iter()
        .try_for_each(|planned| disk(planned).map_err(|e| e.on(planned.wanted.shown())))
}

/// Refuses a place for the state that is none, or whose name has a secret in it.
pub(super) fn state(state: &FleetState) -> Result<()> {
    let stored = match state {
        FleetState::Directory(path) if path.is_absolute() => return Ok(()),
        FleetState::Directory(_) => {
            return Err(broken("its state directory is not an absolute path"));
        }
        FleetState::Store(stored) => stored,
    };
    if stored.text().len() > NAME {
        return Err(broken("a name is too long"));
    }
    let named = Named::parse(stored.text())?;
    if named.kind().records.is_none() {
        let action = "keep the state there: name a directory, or s3://BUCKET/PREFIX";
        return Err(Error::unsupported(action).on(named));
    }
    // What follows the address says how the store is reached.
    let (address, query) = stored.text().split_once('?').unwrap_or((stored.text(), ""));
    let params = Params::parse_query(query)?;
    params.check_declared(named.kind().params, false).map_err(|e| e.on(&named))?;
    let is_login = |text: &str| text.contains("://") && has_password(text);
    if is_login(address) || params.iter().any(|(_, value)| is_login(value)) {
        return Err(refuse(&named, "an address contains a password"));
    }
    no_literal(&named, params.iter())
}

/// Refuses limits that no plan may have.
pub(super) fn limits(limits: super::FleetLimits) -> Result<()> {
    if limits.readers.is_some_and(|n| n == 0 || n > READERS) {
        return Err(Error::invalid(format!("readers: must be from 1 to {READERS}")));
    }
    if limits.rate == Some(0) || limits.shard == 0 {
        return Err(Error::invalid("shard-size, rate: must be more than 0"));
    }
    Ok(())
}

/// Refuses disks that cannot be in one plan.
pub(super) fn wanted<'a>(disks: impl Iterator<Item = &'a WantedDisk> + Clone) -> Result<()> {
    let sources: HashSet<&str> = disks.clone().map(|disk| &*disk.source).collect();
    let mut targets = HashSet::new();
    for disk in disks {
        if disk.source.len() > NAME || disk.target.len() > NAME {
            return Err(broken("a name is too long"));
        }
        let name = disk.shown();
        if !targets.insert(&*disk.target) {
            return Err(Error::invalid("two disks have this target").on(name));
        }
        if sources.contains(&*disk.target) {
            return Err(Error::invalid("this target is the source of a disk").on(name));
        }
        no_secret(&disk.source)?;
        no_secret(&disk.target)?;
        fits(disk).map_err(|e| e.on(name))?;
    }
    Ok(())
}

/// Refuses a target into which a copy cannot go on.
fn fits(disk: &WantedDisk) -> Result<()> {
    disk.source()?;
    let (target, stack) = disk.target()?;
    let image = stack.image();
    let Some(format) = image.format() else { return Ok(()) };
    if format.write.is_none() || !disk::files_beside(&target, image).is_empty() {
        let action = format!(
            "plan the copy: a {} image is written once, from its beginning to its end, so no copy into it can \
             go on: copy into a raw disk, or an image that can be written in any order",
            format.word
        );
        return Err(Error::invalid(action));
    }
    Ok(())
}

fn disk(disk: &FleetDisk) -> Result<()> {
    if i64::try_from(disk.size).is_err() || disk.stretch != stretch_for(disk.size) {
        return Err(broken("the size of a disk or of an extent is invalid"));
    }
    let mut at = 0;
    for shard in &disk.shards {
        let range = &shard.range;
        let on_grid = range.end.is_multiple_of(disk.stretch) || range.end == disk.size;
        let len = range.end.saturating_sub(range.start);
        if range.start != at || range.is_empty() || !on_grid || shard.data > len {
            return Err(broken("the shards of a disk are not in order"));
        }
        at = range.end;
    }
    if at != disk.size {
        return Err(broken("the shards of a disk do not cover it"));
    }
    if disk.shards.len() > 1 && disk.wanted.has_one_writer()? {
        return Err(broken("an image that takes one writer has several shards"));
    }
    Ok(())
}

fn broken(why: &str) -> Error {
    Error::new(ErrorKind::Corrupt, Fault::User, format!("read the plan: {why}"))
}

/// Refuses a name with a secret in it: plans are copied, kept and read by others.
fn no_secret(text: &str) -> Result<()> {
    let name = Name::parse(text)?;
    let (named, image) = disk::named(text, Image::default())?;
    let address = match &name {
        Name::Uri { text, .. } => Some(text),
        Name::Device { arg, .. } => Some(arg),
        Name::Path(_) => None,
    };
    let address = address.filter(|address| address.contains("://"));
    // Which file of an archive is no secret.
    let entry = image.params.get("entry").map(|entry| format!("?entry={entry}"));
    let bare = |address: &String| match &entry {
        Some(entry) => address.strip_suffix(&**entry).unwrap_or(address).to_owned(),
        None => address.clone(),
    };
    let address = address.map(bare);
    // What is not shown is not to be written, either.
    let is_plain = |address: &String| named.to_string() == *address && !has_password(address);
    if address.is_some_and(|address| !is_plain(&address)) {
        return Err(refuse(&named, "the address contains a password or a query"));
    }
    no_literal(&named, named.params().iter())
}

/// Refuses parameters that are a secret themselves, and do not name its place.
fn no_literal<'a>(
    named: &Named,
    mut params: impl Iterator<Item = (&'a str, &'a str)>,
) -> Result<()> {
    let found = params.find(|(key, value)| {
        let is_declared = |param: &Param| param.key == *key && param.value == secret::NAMED;
        let is_secret = SECRETS.iter().any(|word| key.contains(word)) && !key.ends_with("script");
        let is_literal = !value.starts_with(['+', '-']);
        is_literal && (is_secret || named.kind().params.iter().any(is_declared))
    });
    match found {
        Some((key, _)) => Err(refuse(named, &format!("{key}= is written in it"))),
        None => Ok(()),
    }
}

fn has_password(address: &str) -> bool {
    let (_, rest) = address.split_once("://").unwrap_or_default();
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    authority.rsplit_once('@').is_some_and(|(user, _)| user.contains(':'))
}

fn refuse(named: &Named, why: &str) -> Error {
    // The name as it is shown may have the password of a kind that has none.
    let action = format!(
        "plan the copy: a name ({}) has a secret in it: {why}; name a file or a variable of the \
         environment instead: password=+FILE, password=-env:NAME",
        named.kind().word
    );
    Error::invalid(action)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_secrets_are_refused_and_their_places_are_not() {
        for bad in [
            "https://user:hidden@host/disk",
            "https://host/disk?signature=hidden",
            "https://host/vm.ova?signature=hidden&entry=a.vmdk",
            "http:https://host/disk?user=me&password=hidden",
            "http:https://host/disk?bearer=hidden",
            "http:https://host/disk?header=Authorization: hidden",
            "nbd://user:hidden@host/disk",
        ] {
            let e = no_secret(bad).unwrap_err().to_string();
            assert!(!e.contains("hidden"), "{e}");
        }
        for good in [
            "/a/path:with@odd",
            "nbd://host/export",
            "nbd+unix:///e?socket=/a",
            "https://host/disk",
            "https://host/vm.ova?entry=a.vmdk",
            "oci:/a:tag",
            "http:https://host/disk?user=me&password=-env:NAME",
            "http:https://host/disk?user=me&password=+/a/file",
        ] {
            no_secret(good).unwrap();
        }
    }

    #[test]
    fn a_place_for_the_state_says_how_it_is_reached_and_has_no_secret() {
        let state = |name: &str| super::state(&FleetState::named(name, std::path::Path::new("")));
        for bad in [
            "s3://b/p?secret-key=hidden&access-key=a",
            "s3://b/p?session-token=hidden",
            "s3://b/p?proxy-password=hidden",
            "s3://b/p?endpoint=http://user:hidden@host",
            "s3://b/p?proxy=http://user:hidden@host",
            "s3://user:hidden@b/p",
            "s3://b/p?hidden=1",
            "https://host/hidden",
            "nbd://host/hidden",
            "relative",
        ] {
            state(bad).unwrap_err();
        }
        for bad in ["s3://b/p?secret-key=hidden&access-key=a", "s3://b/p?session-token=hidden"] {
            let e = state(bad).unwrap_err().to_string();
            assert!(!e.contains("hidden") && e.contains("has a secret in it"), "{e}");
        }
        for good in [
            "/a/path",
            "s3://b/p",
            "s3://b/p/q?endpoint=http://host:9000&region=eu-x-1&path-style=true",
            "s3://b/p?access-key=a&secret-key=-env:NAME",
        ] {
            state(good).unwrap();
        }
    }
}
