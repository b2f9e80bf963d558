//! `diskferry detach`: takes disks away from where `attach` put them.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::{ArgMatches, Command};
use rustix::fs::{Mode, OFlags, fsync, open};
use rustix::io::Errno;

use crate::arguments::flag;
use crate::attached::{at, points};
use crate::failure::{ExitResult, Failure, USAGE};
use crate::verb::Verb;

pub(crate) const VERB: Verb = Verb {
    name: "detach",
    summary: "Detach attached disks",
    about: "Written data is flushed first. Detaching a disk that a program has open is an error, \
            unless --force takes it away from the program.",
    example: "  diskferry attach memory:1G disk.img --run 'diskferry detach disk.img'",
    status: "",
    usage: USAGE,
    arguments,
    run,
};

fn arguments(command: Command) -> Command {
    command
        .arg(points("Where a disk is attached"))
        .arg(flag("--force", "Detach even from programs that have it open"))
        .arg(flag("--when-closed", "Wait for the end of standard input").hide(true))
        .arg(flag("--remove", "Remove the empty file that is left").hide(true))
}

fn run(matches: &ArgMatches) -> ExitResult {
    let points: Vec<&PathBuf> = matches.get_many("point").unwrap_or_default().collect();
    if matches.get_flag("when-closed") {
        return keep(&points, matches.get_flag("remove"));
    }
    for point in points {
        detach(point, matches.get_flag("force"))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn detach(point: &Path, is_forced: bool) -> Result<(), Failure> {
    let found = at(point)?;
    let path = found.path.as_path();
    if found.is_waiting && !is_forced {
        let cure = "attach the disk there again, or discard unwritten data with --force";
        return Err(Failure::new(format!("{}: its process has gone; {cure}", path.display())));
    }
    // One that waits would wait for ever.
    match if found.is_waiting { Ok(()) } else { flush(path) } {
        Ok(()) => {}
        // The process is gone, and with it what it had not written.
        Err(Errno::NOTCONN | Errno::CONNABORTED) => {}
        Err(e) if is_forced => crate::failure::say(&format!("{}: flush: {e}", path.display())),
        Err(e) => {
            let what = format!("{}: flush: {e}; it stays attached", path.display());
            return Err(Failure::new(what));
        }
    }
    match attach::detach(path, is_forced) {
        Err(e) if !is_forced && is_busy(&e) => {
            let cure = "a program has it open; --force detaches it anyway";
            Err(Failure::because(&e, format!("{}: {cure}", path.display())))
        }
        other => Ok(other?),
    }
}

fn is_busy(e: &device::Error) -> bool {
    e.kind() == device::ErrorKind::Locked || e.raw_os_error() == Some(libc::EBUSY)
}

/// Makes durable what was written through the point.
fn flush(path: &Path) -> Result<(), Errno> {
    let file = open(path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty())?;
    fsync(file)
}

/// What `attach` starts beside itself: when it has ended, its points are unmounted, whoever still
/// has them open. Signals that end a whole group end the other process first.
fn keep(points: &[&PathBuf], removes: bool) -> ExitResult {
    let ignored = Arc::new(AtomicBool::new(false));
    for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGTERM] {
        // Where it cannot be caught, it ends this.
        let _ = signal_hook::flag::register(signal, ignored.clone());
    }
    let mut rest = Vec::new();
    // The other end is closed, at the latest by the system; only who ends as asked writes there.
    let _ = std::io::stdin().read_to_end(&mut rest);
    for point in points {
        if let Some(found) = attach::attached()?.into_iter().find(|disk| disk.is_at(point)) {
            if !found.outlives() {
                attach::detach(point, true)?;
            } else if !rest.is_empty() {
                let flushed = flush(point);
                attach::detach(point, true)?;
                flushed.map_err(|e| Failure::new(format!("{}: flush: {e}", point.display())))?;
            }
        }
        let is_empty = std::fs::symlink_metadata(point).is_ok_and(|f| f.is_file() && f.len() == 0);
        if removes && is_empty {
            // It may have been removed meanwhile.
            let _ = std::fs::remove_file(point);
        }
    }
    Ok(ExitCode::SUCCESS)
}
