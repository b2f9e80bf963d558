//! Making a plan: every source is opened once, cut by its map, and described; every target is made
//! ready. What was begun and killed is begun again by the same command.

use std::fs::File;
use std::io::{ErrorKind as Io, Write};
use std::path::Path;

use device::{Edge, Error, ErrorKind, Fault, Params, Reach, Result, Use, text};
use disk::{Named, OpenOptions, Stack, Storage};
use programs::names;
use runtime::Context;

use super::check;
use super::cut::{CutRange, cut, data_in_cells};
use super::place::FleetState;
use super::plan::{FleetDisk, FleetJob, FleetPlan, FleetShard, WantedDisk};
use super::state::{lease_in, mark_of, mark_text, sync_directory};
use super::stored::Lease;
use crate::identity::{DiskIdentity, sample_of_part};
use crate::job::{JobError, NewDisk, placed, refuse_used};
use crate::manifest::stretch_for;

/// The file that is locked while a plan is made.
const LOCK: &str = "plan.lock";
/// What the names of files end with that only a plan which was run has.
const OLD: [&str; 2] = ["journal", "finished"];

/// A job whose words make sense, and whose state directory is there, if it has one.
#[derive(Debug)]
pub struct FleetPreparation {
    job: FleetJob,
    /// Of a state directory; in a store, a lease is taken later.
    _lock: Option<File>,
}

impl FleetPreparation {
    /// Checks a job, and makes its state directory, if it has one. It is the last step that asks
    /// the system about disks below, so a sandbox may shut behind it.
    ///
    /// # Errors
    /// The job makes no sense; there is a plan already; or the state directory cannot be made, or
    /// has the state of another plan.
    pub fn begin(job: FleetJob) -> std::result::Result<Self, JobError> {
        if job.disks.is_empty() {
            return Err(Error::invalid("the job names no disk").into());
        }
        if job.disks.len() > check::DISKS {
            let why = format!("a plan has at most {} disks", check::DISKS);
            return Err(Error::new(ErrorKind::Limit, Fault::User, why).into());
        }
        check::limits(job.limits)?;
        check::wanted(job.disks.iter())?;
        for disk in &job.disks {
            refuse_used(&disk.target()?.0, false)?;
        }
        check::state(&job.state)?;
        let lock = match &job.state {
            FleetState::Directory(state) => Some(lock_state(&job, state)?),
            // Asking a store takes threads, which a sandbox is to have been shut around.
            FleetState::Store(_) => refuse_planned(&job).map(|()| None)?,
        };
        Ok(Self { job, _lock: lock })
    }

    /// How many disks there are.
    #[must_use]
    pub fn disks(&self) -> usize {
        self.job.disks.len()
    }

    /// What making the plan needs of the system.
    #[must_use]
    pub fn reach(&self) -> Reach {
        let mut reach = Reach::path(&self.job.plan, Use::Make);
        if let FleetState::Store(stored) = &self.job.state {
            reach = reach.and(stored.reach());
        }
        for disk in &self.job.disks {
            if let (Ok((source, from)), Ok((target, to))) = (disk.source(), disk.target()) {
                reach = reach.and(disk::reach(&source, &from, Use::Read));
                reach = reach.and(disk::reach(&target, &to, Use::Make));
            }
            if let Some(mark) = mark_of(&disk.target) {
                reach = reach.and(Reach::path(mark, Use::Make));
            }
        }
        reach
    }

    /// Makes the targets ready, and writes the plan. `tell` is called with each disk.
    ///
    /// # Errors
    /// A source cannot be read, or a target cannot be made; a store cannot keep the state, or has
    /// that of another plan. There is no plan then.
    pub fn make(
        self,
        context: &Context,
        tell: &dyn Fn(&FleetDisk),
    ) -> std::result::Result<FleetPlan, JobError> {
        let FleetJob { disks, limits, digest, plan, state } = &self.job;
        let lease = match state {
            FleetState::Directory(_) => None,
            FleetState::Store(stored) => Some(stored.begin()?),
        };
        let is_ours = || lease.as_ref().map_or(Ok(()), Lease::check);
        let (mut planned, mut shards) = (Vec::new(), 0);
        for wanted in disks {
            is_ours()?;
            let disk = self.one(wanted, context).map_err(|e| e.on(wanted.shown()))?;
            shards += disk.shards.len();
            if shards > check::SHARDS {
                let why = format!(
                    "a plan has at most {} shards: choose a larger shard-size",
                    check::SHARDS
                );
                return Err(Error::new(ErrorKind::Limit, Fault::User, why).into());
            }
            tell(&disk);
            planned.push(disk);
        }
        let (state, disks) = (state.clone(), planned);
        let made = FleetPlan { id: String::new(), state, digest: *digest, limits: *limits, disks };
        let made = made.identified();
        check::plan(&made)?;
        is_ours()?;
        publish(plan, &made.text())?;
        Ok(made)
    }

    fn one(&self, wanted: &WantedDisk, context: &Context) -> Result<FleetDisk> {
        let (source, stack) = wanted.source()?;
        let options = OpenOptions { once: true, ..OpenOptions::read_only() };
        let opened = disk::open(&source, &stack, &options, context)?;
        let edge = &opened.edge;
        let size = edge.info().size;
        let version = opened.container.info().version.clone();
        let identity = DiskIdentity::anywhere(&source, size, version.as_deref());
        let stretch = stretch_for(size);
        let shard_size = match wanted.has_one_writer()? {
            true => u64::MAX,
            false => self.job.limits.shard,
        };
        let cells = data_in_cells(edge, stretch)?;
        let shard = |CutRange { range, data }: CutRange| {
            Ok(FleetShard { sample: sample_of_part(edge, range.clone())?, range, data })
        };
        let shards = cut(&cells, (stretch, size), shard_size).into_iter().map(shard);
        let shards = shards.collect::<Result<Vec<_>>>()?;
        let files = std::iter::once(source.storage()).chain(opened.reached).collect::<Vec<_>>();
        self.target(wanted, (edge, &files), context)?;
        let host = wanted.host.clone().unwrap_or_else(|| host_of(&source));
        let identity = identity.json().clone();
        Ok(FleetDisk { wanted: wanted.clone(), host, size, stretch, identity, shards })
    }

    /// Makes a target ready: it is there, has room, and is marked as not complete.
    fn target(
        &self,
        wanted: &WantedDisk,
        (source, files): (&Edge, &[Storage]),
        context: &Context,
    ) -> Result<()> {
        let (target, stack) = wanted.target()?;
        let size = source.info().size;
        let path = target.path().map(text::path);
        let is_file = path.as_deref().is_some_and(|path| path.is_file() || !path.exists());
        let mark = mark_of(&wanted.target).filter(|_| is_file);
        let said = mark_text(&wanted.target, &self.job.plan);
        let is_ours = mark.as_deref().is_some_and(|mark| says(mark, &said));
        let is_there = path.as_deref().is_some_and(Path::exists);
        if is_file && is_there && !is_ours && !wanted.exists {
            let action =
                "make the target: it exists; remove it, or set `exists = true` to overwrite it";
            return Err(Error::new(ErrorKind::InvalidInput, Fault::File, action));
        }
        if let Some(mark) = mark.filter(|_| !is_ours) {
            if mark.symlink_metadata().is_ok() {
                let action = "mark the target as incomplete: another copy has marked it";
                return Err(Error::new(ErrorKind::Locked, Fault::User, action).on(mark.display()));
            }
            placed::write(&mark, &said)?;
        }
        let options = OpenOptions::read_write();
        if is_file && !wanted.exists {
            let image = stack.image();
            let new = NewDisk {
                target: &target,
                image,
                size,
                fills: None,
                spared: files,
                options: &options,
            };
            return new.create(context);
        }
        fits(&target, &stack, (size, files), &options, context)
    }
}

/// Refuses a target that is there and cannot be written, or is too small.
fn fits(
    target: &Named,
    stack: &Stack,
    (size, files): (u64, &[Storage]),
    options: &OpenOptions,
    context: &Context,
) -> Result<()> {
    disk::check_apart(&target.storage(), files)?;
    let edge = disk::open(target, stack, options, context)?.edge;
    let info = edge.info();
    if !info.abilities.write {
        return Err(Error::new(
            ErrorKind::ReadOnly,
            Fault::User,
            "make the target: it is read-only",
        ));
    }
    if info.size < size {
        let action = format!("make the target: it has {} bytes, the source has {size}", info.size);
        return Err(Error::new(ErrorKind::NoSpace, Fault::User, action));
    }
    Ok(())
}

/// Whether a file says this.
fn says(path: &Path, text: &str) -> bool {
    std::fs::read(path).is_ok_and(|found| found == text.as_bytes())
}

/// Where a source is, by its name: the host of a server, or its socket; or one word for all files.
fn host_of(source: &Named) -> String {
    let shown = source.to_string();
    let Some((_, rest)) = shown.split_once("://") else { return "files".to_owned() };
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    if !host.is_empty() {
        return host.to_owned();
    }
    // All exports of a socket are of one server.
    let params = rest.split_once('?').and_then(|(_, query)| Params::parse_query(query).ok());
    params.and_then(|params| params.get("socket").map(str::to_owned)).unwrap_or(shown)
}

/// Makes the state directory, and locks it.
fn lock_state(job: &FleetJob, state: &Path) -> Result<File> {
    let name = state.display();
    let failed = |what, e| Error::os(what, e).on(name.to_string());
    std::fs::create_dir_all(state).map_err(|e| failed("make the state directory", e))?;
    let path = state.join(LOCK);
    let lock = File::options().read(true).write(true).create(true).truncate(false).open(&path);
    let lock = lock.map_err(|e| failed("lock the state directory", e))?;
    if lock.try_lock().is_err() {
        let action = "lock the state directory: a plan is being made there";
        return Err(Error::new(ErrorKind::Locked, Fault::User, action).on(name));
    }
    let entries = std::fs::read_dir(state).map_err(|e| failed("read the state directory", e))?;
    for entry in entries {
        let path = entry.map_err(|e| failed("read the state directory", e))?.path();
        if path.extension().is_some_and(|ending| OLD.iter().any(|old| ending == *old)) {
            let action = "use the state directory: it holds the state of another plan; remove it, or name another";
            return Err(Error::new(ErrorKind::InvalidInput, Fault::File, action).on(name));
        }
    }
    refuse_planned(job)?;
    make_leases(job, state)?;
    sync_directory(state)?;
    Ok(lock)
}

/// Refuses a job that has a plan.
fn refuse_planned(job: &FleetJob) -> Result<()> {
    if job.plan.symlink_metadata().is_err() {
        return Ok(());
    }
    let action = "write the plan: the file exists, and its targets may hold copied data; remove it to start again";
    Err(Error::new(ErrorKind::InvalidInput, Fault::File, action).on(job.plan.display()))
}

/// Makes the files by which readers of a source host are counted.
fn make_leases(job: &FleetJob, state: &Path) -> Result<()> {
    let Some(readers) = job.limits.readers() else { return Ok(()) };
    let host = |disk: &WantedDisk| match &disk.host {
        Some(host) => Ok(host.clone()),
        None => disk.source().map(|(source, _)| host_of(&source)),
    };
    let mut hosts = job.disks.iter().map(host).collect::<Result<Vec<_>>>()?;
    hosts.sort_unstable();
    hosts.dedup();
    for host in 0..hosts.len() {
        for reader in 0..readers {
            let path = lease_in(state, host, reader);
            let made = File::options().write(true).create(true).truncate(false).open(&path);
            made.map_err(|e| Error::os("make the lease of a reader", e).on(path.display()))?;
        }
    }
    Ok(())
}

/// Writes a file that has its name only when it is whole, where the file system can do that.
fn publish(path: &Path, text: &str) -> Result<()> {
    let write = || {
        match names::nameless_for(path, 0o666) {
            Ok(file) => {
                let mut file = File::from(file);
                file.write_all(text.as_bytes())?;
                file.sync_all()?;
                names::link(&file, path)?;
            }
            Err(_) => {
                let mut file = File::from(names::make(path, 0o666)?);
                file.write_all(text.as_bytes())?;
                file.sync_all()?;
            }
        }
        names::sync(path)
    };
    write().map_err(|e: std::io::Error| match e.kind() {
        Io::AlreadyExists => {
            Error::new(ErrorKind::InvalidInput, Fault::File, "write the plan: the file exists")
                .on(path.display())
        }
        _ => Error::os("write the plan", e).on(path.display()),
    })
}

impl FleetDisk {
    /// Its target, for people.
    #[must_use]
    pub fn shown(&self) -> String {
        self.wanted.shown()
    }
}

impl WantedDisk {
    /// For people.
    pub(super) fn shown(&self) -> String {
        Named::parse(&self.target).map_or_else(|_| "a disk".to_owned(), |named| named.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_exports_of_a_server_are_of_one_host() {
        for (name, host) in [
            ("nbd://old.example.com/vm1", "old.example.com"),
            ("nbds://me@old.example.com:10810/vm2", "old.example.com:10810"),
            ("nbd+unix:///vm1?socket=/run/a%20b", "/run/a%20b"),
            ("nbd+unix:///vm2?socket=/run/a%20b", "/run/a%20b"),
            ("nbds+unix:///?tls-verify-peer=true&socket=/run/c", "/run/c"),
            ("/disks/vm1.raw", "files"),
            ("disk?x.raw", "files"),
        ] {
            assert_eq!(host_of(&Named::parse(name).unwrap()), host, "{name}");
        }
    }
}
