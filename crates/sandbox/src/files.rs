//! Which files can be opened, enforced by landlock (Linux 5.13; the network since 6.7, signals
//! since 6.12).

use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};

use device::{Endpoint, Reach};
use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, NetPort, PathBeneath,
    PathFd, Ruleset, RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetStatus, Scope,
};
use rustix::fs::{FileType, fstat};

use crate::mounts::Mounts;
use crate::{ConfinementError, FileConfinement};

/// The newest rules known here. Older kernels enforce those that they know.
const RULES: ABI = ABI::V6;

/// Files that are read without being named: the kernel's information on this process, the
/// processors and disks.
const ALWAYS: [&str; 2] = ["/proc", "/sys"];

/// The port of name servers.
const DOMAIN: u16 = 53;

/// Devices that are not disks.
const DEVICES: [&str; 4] = ["/dev/null", "/dev/zero", "/dev/random", "/dev/urandom"];

/// Files for name lookup, and for the trusted certificates.
const NETWORK: &[&str] = &[
    "/etc",
    "/lib",
    "/lib64",
    "/usr/lib",
    "/usr/lib64",
    "/run",
    "/usr/share/ca-certificates",
    "/usr/local/share",
    "/nix/store",
    // The targets of links among them.
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/nsswitch.conf",
    "/etc/ssl/certs",
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/ssl/cert.pem",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
];

/// Restricts this thread, and threads that it starts from now on, to `reach`.
///
/// # Errors
/// There are other threads already, which would not be confined; or the rules cannot be created.
pub fn confine(reach: &Reach) -> Result<FileConfinement, ConfinementError> {
    only_thread()?;
    let failed = |e: landlock::RulesetError| ConfinementError::new("confine files", e);
    let rules = Ruleset::default().set_compatibility(CompatLevel::BestEffort);
    let mut rules = rules.handle_access(AccessFs::from_all(RULES)).map_err(failed)?;
    let ports = ports(reach);
    if ports.is_some() {
        rules = rules.handle_access(AccessNet::ConnectTcp).map_err(failed)?;
    }
    if !reach.network.contains(&Endpoint::Abstract) {
        rules = rules.scope(Scope::AbstractUnixSocket).map_err(failed)?;
    }
    // The helper that started our programs signals them.
    rules = rules.scope(Scope::Signal).map_err(failed)?;
    let mut rules = rules.create().map_err(failed)?;
    for port in ports.into_iter().flatten() {
        rules = rules.add_rule(NetPort::new(port, AccessNet::ConnectTcp)).map_err(failed)?;
    }
    let (mounts, mut is_wide) = (Mounts::default(), false);
    for (path, rights) in rights(reach) {
        let mount = mounts.only_rule(&path);
        is_wide |= mount.is_some();
        rules = allow(rules, &mount.unwrap_or(path), rights)?;
    }
    let found = rules.restrict_self().map_err(failed)?;
    Ok(match found.ruleset {
        RulesetStatus::FullyEnforced if !is_wide => FileConfinement::Confined,
        RulesetStatus::FullyEnforced => FileConfinement::Partly,
        RulesetStatus::PartiallyEnforced => FileConfinement::Partly,
        RulesetStatus::NotEnforced => FileConfinement::Free,
    })
}

fn only_thread() -> Result<(), ConfinementError> {
    let threads = std::fs::read_dir("/proc/self/task").map(Iterator::count);
    match threads {
        Ok(1) => Ok(()),
        Ok(n) => Err(ConfinementError::new(
            "confine files",
            format!("{n} threads run already; a defect"),
        )),
        Err(e) => Err(ConfinementError::new("count the threads in /proc/self/task", e)),
    }
}

fn reading() -> BitFlags<AccessFs> {
    AccessFs::ReadFile | AccessFs::ReadDir | AccessFs::IoctlDev
}

fn writing() -> BitFlags<AccessFs> {
    reading() | AccessFs::WriteFile | AccessFs::Truncate
}

/// The TCP ports that connections are made to; `None`: any.
fn ports(reach: &Reach) -> Option<Vec<u16>> {
    let mut ports = Vec::new();
    for endpoint in &reach.network {
        match endpoint {
            Endpoint::Anywhere => return None,
            // A long answer to the question for a name comes over TCP.
            Endpoint::Tcp(port) => ports.extend([*port, DOMAIN]),
            Endpoint::Unix | Endpoint::Abstract | Endpoint::Vsock => {}
        }
    }
    Some(ports)
}

/// Whether names are looked up.
fn looks_up(reach: &Reach) -> bool {
    reach.network.iter().any(|one| matches!(one, Endpoint::Tcp(_) | Endpoint::Anywhere))
}

/// The directory of a file.
fn folder(path: &Path) -> PathBuf {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    parent.unwrap_or(Path::new(".")).to_owned()
}

/// Each path with its allowed access.
fn rights(reach: &Reach) -> Vec<(PathBuf, BitFlags<AccessFs>)> {
    let with = |paths: &[&str], rights| {
        paths.iter().map(|path| (PathBuf::from(path), rights)).collect::<Vec<_>>()
    };
    let mut found = with(&ALWAYS, reading());
    found.extend(with(&DEVICES, writing()));
    if looks_up(reach) {
        found.extend(with(NETWORK, reading()));
    }
    found.extend(reach.reads.iter().map(|path| (path.clone(), reading())));
    found.extend(reach.writes.iter().map(|path| (path.clone(), writing())));
    // A directory gets no right to what is in it: the helper makes, replaces and removes files.
    found.extend(reach.makes.iter().map(|path| (path.clone(), writing())));
    let sockets = reach.sockets.iter().map(|path| folder(path));
    let sockets = sockets.chain(reach.privates.iter().cloned());
    found.extend(sockets.map(|folder| (folder, AccessFs::MakeSock.into())));
    found
}

/// Whether a file is in a directory. An inherited pipe, socket or memory file is not: it can have
/// no rule, and needs none.
fn has_path(there: &PathFd, kind: FileType, is_linked: bool) -> bool {
    match kind {
        FileType::Directory | FileType::CharacterDevice | FileType::BlockDevice => return true,
        FileType::RegularFile if is_linked => return true,
        _ => {}
    }
    let link = format!("/proc/self/fd/{}", there.as_fd().as_raw_fd());
    let path = std::fs::read_link(link).unwrap_or_default();
    path.is_absolute() && !path.to_string_lossy().starts_with("/memfd:")
}

/// Adds a rule. A missing file needs none: opening it fails anyway, with its own error.
fn allow(
    rules: RulesetCreated,
    path: &Path,
    rights: BitFlags<AccessFs>,
) -> Result<RulesetCreated, ConfinementError> {
    let Ok(there) = PathFd::new(path) else { return Ok(rules) };
    let Ok(found) = fstat(&there) else { return Ok(rules) };
    let kind = FileType::from_raw_mode(found.st_mode);
    if !has_path(&there, kind, found.st_nlink > 0) {
        return Ok(rules);
    }
    let is_folder = kind == FileType::Directory;
    let rights = if is_folder { rights } else { rights & AccessFs::from_file(RULES) };
    let rule = PathBeneath::new(there, rights);
    rules
        .add_rule(rule)
        .map_err(|e| ConfinementError::new("confine files", format!("{}: {e}", path.display())))
}
