//! A disk as a block device of its own driver, ublk (drivers/block/ublk_drv.c): the kernel hands
//! each request to a thread here, through io_uring, and no socket is in between.
//!
//! If this process is killed, what uses the device waits, and goes on when another process attaches
//! the disk there: what was in flight is asked for again. An end by a signal detaches it.
//!
//! What needs rights, or files by name, is done before the sandbox: the device is added, opened and
//! mapped, and its rings are made. What is flushed at the end has a name only later, so the
//! [`Attendant`] flushes it.

mod abi;
mod control;
pub(crate) mod queue;
mod ring;

use std::fs::{File, OpenOptions};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use device::{Error, ErrorKind, Fault, Result};
use runtime::{Bell, Mutex};
use rustix::fs::{Mode, OFlags, open};
use rustix::process::{Pid, configure_io_flusher_behavior, test_kill_process};

use crate::attendant::Attendant;
use crate::client::AttachedClient;
use crate::disk::{AttachedDisk, OF_UBLK};
use crate::resized::SizeWatch;
use crate::{AttachedExport, new_bell, start_thread};
use abi::{ControlCommand, DEAD, QUIESCED, UblkInfo, UblkParameters};
use control::UblkControl;
use queue::{UblkDisk, UblkQueue};
use ring::UblkRing;

/// Queues of a device, at most, and requests that each has in flight.
const QUEUES: usize = 4;
const DEPTH: u16 = 64;
/// How often, and how long apart, is looked for what the kernel is about to do.
const TRIES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(50);
/// How our devices are told from others', beside the digest of a name.
const MARK: u64 = 0x6665_7272 << 32;

/// A device that no disk is attached at yet. Dropped, it is as it was before.
pub struct UblkDevice {
    control: UblkControl,
    path: PathBuf,
    info: UblkInfo,
    /// What the disk was that the device was before.
    before: Option<UblkParameters>,
    is_read_only: bool,
    opened: OpenedDevice,
    attendant: Attendant,
}

runtime::debug_as!(UblkDevice, |it| "UblkDevice({})", it.path.display());

/// The character device, through which the block device is served.
struct OpenedDevice {
    file: File,
    rings: Vec<(UblkRing, Bell)>,
}

/// A block device that is attached. Where it is not ended, it waits for another process.
#[derive(Debug)]
pub struct AttachedUblk {
    control: Arc<Mutex<UblkControl>>,
    device: u32,
    disk: Weak<UblkDisk>,
    client: Arc<AttachedClient>,
    threads: Vec<JoinHandle<()>>,
    attendant: Attendant,
    size: Option<SizeWatch>,
}

/// The number of a device by its path.
pub(crate) fn number_of(path: &Path) -> Option<u32> {
    path.strip_prefix("/dev").ok()?.to_str()?.strip_prefix("ublkb")?.parse().ok()
}

/// A name in short: whether it is the same disk that comes back.
fn note_of(disk: &str) -> u64 {
    let step = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    MARK | u64::from(disk.bytes().fold(0x811c_9dc5, step))
}

fn is_ours(info: &UblkInfo) -> bool {
    info.note >> 32 == MARK >> 32
}

/// Whether its process lives. One that waits, or has been stopped, has none.
fn is_served(info: &UblkInfo) -> bool {
    let process = Some(info.process).filter(|process| *process > 0).and_then(Pid::from_raw);
    info.state != QUIESCED && process.is_some_and(|process| test_kill_process(process).is_ok())
}

impl UblkDevice {
    /// The device at `path`, for a disk of this name: a new one, or one that waits for the disk
    /// since its process was killed. Needs root.
    ///
    /// # Errors
    /// It is in use, the kernel has no ublk, or the right to it is lacking.
    pub(crate) fn open(path: &Path, disk: &str, is_read_only: bool) -> Result<Self> {
        let say = |e: Error| e.on(path.display());
        let device = number_of(path).unwrap_or_default();
        // Memory is not to be made free by writing to our own disk. All threads inherit it.
        let _ = configure_io_flusher_behavior(true);
        let mut control = UblkControl::open().map_err(say)?;
        let prepared = apart(|| prepare(&mut control, device, note_of(disk)))?;
        let (info, before) = prepared.map_err(say)?;
        let opened = Attendant::start(path, false)
            .and_then(|attendant| Ok((attendant, OpenedDevice::open(&info)?)));
        match opened {
            Ok((attendant, opened)) => {
                let path = path.to_owned();
                Ok(Self { control, path, info, before, is_read_only, opened, attendant })
            }
            Err(e) => {
                if before.is_none() {
                    // It has its error already.
                    let _ = control.tell(ControlCommand::Delete, device, 0);
                }
                Err(say(e))
            }
        }
    }

    /// Attaches a disk. `detached` is called once when something else has detached it.
    ///
    /// # Errors
    /// It is not made of sectors, is another one than the device waits for, refuses this client, or
    /// the system gives no thread.
    pub(crate) fn attach(
        mut self,
        export: &AttachedExport<'_>,
        detached: impl FnOnce() + Send + 'static,
    ) -> Result<AttachedUblk> {
        match self.parameters(export) {
            Ok((client, begin)) => self.start(client, begin, Box::new(detached)),
            Err(e) => {
                self.undo();
                Err(e)
            }
        }
    }

    /// Tells the kernel what disk it is; a client of it, and by which command it begins.
    fn parameters(
        &mut self,
        export: &AttachedExport<'_>,
    ) -> Result<(Arc<AttachedClient>, ControlCommand)> {
        let client = export.client(self.is_read_only)?;
        client.in_sectors("a block device")?;
        let parameters = UblkParameters::of(client.edge.info(), client.is_read_only);
        match &self.before {
            None => {
                self.control.set_parameters(self.info.device, &parameters)?;
                Ok((client, ControlCommand::Start))
            }
            Some(before) if before.is_same_disk(&parameters) => {
                Ok((client, ControlCommand::EndRecovery))
            }
            Some(_) => {
                let what = "attach: the device waits for a disk of another size or kind";
                let e = Error::new(ErrorKind::Changed, Fault::User, what);
                Err(e.on(self.path.display()))
            }
        }
    }

    fn start(
        self,
        client: Arc<AttachedClient>,
        begin: ControlCommand,
        detached: Box<dyn FnOnce() + Send>,
    ) -> Result<AttachedUblk> {
        let Self { mut control, path, info, before, opened, attendant, .. } = self;
        let detached = Mutex::new(Some(detached));
        let OpenedDevice { file, rings } = opened;
        let disk = Arc::new(UblkDisk { client: client.clone(), file, detached });
        let threads: Result<Vec<_>> =
            (0..).zip(rings).map(|(n, one)| begin_queue(&disk, n, one, info.depth)).collect();
        let started = threads.and_then(|threads| {
            control.tell(begin, info.device, std::process::id().into()).map(|()| threads)
        });
        match started {
            Ok(threads) => {
                let (device, disk) = (info.device, Arc::downgrade(&disk));
                let block = UblkParameters::of(client.edge.info(), client.is_read_only).block();
                let can_resize = control.can_resize();
                let control = Arc::new(Mutex::new(control));
                let own = control.clone();
                let tell = move |size| own.lock().resize(device, size);
                let watch = || SizeWatch::begin(&client.edge, block, tell);
                let size = can_resize.then(watch).flatten();
                Ok(AttachedUblk { control, device, disk, client, threads, attendant, size })
            }
            Err(e) => {
                disk.detached.lock().take();
                drop(disk);
                if before.is_none() {
                    // Its threads end with it; it has its error already.
                    let _ = control.tell(ControlCommand::Delete, info.device, 0);
                }
                Err(e.on(path.display()))
            }
        }
    }

    /// Leaves it as it was before: no device, or one that waits.
    fn undo(self) {
        let Self { mut control, info, before, mut opened, .. } = self;
        if before.is_some() {
            // To the kernel a process was there, and has ended: another one may come.
            opened.rings.iter_mut().for_each(|(ring, _)| drop(ring.begin(info.depth)));
        }
        drop(opened);
        if before.is_none() {
            // What is left of it is removed by who attaches a disk there next.
            let _ = control.tell(ControlCommand::Delete, info.device, 0);
        }
    }
}

impl OpenedDevice {
    fn open(info: &UblkInfo) -> Result<Self> {
        let path = format!("/dev/ublkc{}", info.device);
        let mut tries = 0..TRIES;
        let file = loop {
            match OpenOptions::new().read(true).write(true).open(&path) {
                // The node is about to be made, or its last user about to close it.
                Err(e)
                    if matches!(e.raw_os_error(), Some(libc::ENOENT | libc::EBUSY))
                        && tries.next().is_some() =>
                {
                    std::thread::sleep(PAUSE);
                }
                other => break other.map_err(|e| Error::os("attach: open", e).on(path))?,
            }
        };
        let mut rings = Vec::new();
        for queue in 0..info.queues {
            let bell = new_bell()?;
            let ring = UblkRing::new(file.as_fd(), bell.as_fd(), queue, info.depth)?;
            rings.push((ring, bell));
        }
        Ok(Self { file, rings })
    }
}

/// Starts the thread of a queue, and waits until it has asked for its requests.
fn begin_queue(
    disk: &Arc<UblkDisk>,
    number: u16,
    (mut ring, bell): (UblkRing, Bell),
    depth: u16,
) -> Result<JoinHandle<()>> {
    let queue = UblkQueue::new(disk, number, bell);
    let client = disk.client.clone();
    let (begun, told) = channel();
    let work = move || {
        let run = || {
            // The receiver waits for it.
            let _ = begun.send(ring.begin(depth));
            queue.serve(&mut ring, depth)
        };
        let served = runtime::contained("a queue of a block device", run);
        drop((ring, queue));
        if let Ok(Err(e)) = served {
            client.complain(&Error::os("receive requests from the kernel", e));
        }
    };
    let thread = start_thread("ublk", work)?;
    match told.recv() {
        Ok(begun) => begun.map_err(|e| Error::os("attach: ask the kernel for requests", e))?,
        Err(_) => return Err(Error::unanswered()),
    }
    Ok(thread)
}

/// Makes the device, or takes over one that waits; what it was then.
fn prepare(
    control: &mut UblkControl,
    device: u32,
    note: u64,
) -> Result<(UblkInfo, Option<UblkParameters>)> {
    let locked = |what: &str| Error::new(ErrorKind::Locked, Fault::User, what);
    control.check()?;
    for _ in 0..TRIES {
        let Some(found) = control.info(device)? else {
            return Ok((control.add(&wanted(device, note))?, None));
        };
        if !is_ours(&found) || is_served(&found) {
            return Err(locked("attach: the device is already in use"));
        }
        match found.state {
            // Left by a process that was killed while it began or ended.
            DEAD => control.tell(ControlCommand::Delete, device, 0)?,
            QUIESCED if found.note != note => {
                let what = "attach: it waits for the disk that it was, under the same name; \
                            `detach --force` ends that";
                return Err(locked(what));
            }
            QUIESCED => match control.tell(ControlCommand::StartRecovery, device, 0) {
                Ok(()) => return Ok((found, Some(control.parameters(device)?))),
                Err(e) if e.raw_os_error() == Some(libc::EBUSY) => std::thread::sleep(PAUSE),
                Err(e) => return Err(e),
            },
            // Its process is just ending.
            _ => std::thread::sleep(PAUSE),
        }
    }
    Err(locked("attach: the device is already in use"))
}

fn wanted(device: u32, note: u64) -> UblkInfo {
    let queues = std::thread::available_parallelism().map_or(1, |n| n.get().min(QUEUES));
    UblkInfo {
        queues: u16::try_from(queues).unwrap_or(1),
        depth: DEPTH,
        state: DEAD,
        most: abi::MOST,
        device,
        process: i32::try_from(std::process::id()).unwrap_or(0),
        flags: abi::WANTED,
        note,
    }
}

/// Runs it on a thread, and returns when that and the kernel's own workers for it have gone: the
/// sandbox is begun with one thread.
fn apart<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T> {
    let threads = || {
        let all = std::fs::read_dir("/proc/self/task").map(Iterator::count);
        all.map_err(|e| Error::os("count the threads in /proc/self/task", e))
    };
    let before = threads()?;
    let done = std::thread::scope(|scope| scope.spawn(work).join());
    let mut tries = 0..TRIES;
    while threads()? > before && tries.next().is_some() {
        std::thread::sleep(PAUSE / 10);
    }
    done.map_err(|_| Error::unanswered())
}

impl AttachedUblk {
    /// Ends it: writes back what the page cache has of it, and removes the device.
    ///
    /// # Errors
    /// Writes may be lost.
    pub(crate) fn end(mut self) -> Result<()> {
        let mut flushed = Ok(());
        // The device is asked for nothing that it does not take when it stops.
        drop(self.size.take());
        if let Some(disk) = self.disk.upgrade() {
            disk.detached.lock().take();
            drop(disk);
            // What waits for its export is done now.
            self.client.stop();
            flushed = self.detach();
        }
        // A panic of one is counted.
        self.threads.into_iter().for_each(|thread| drop(thread.join()));
        flushed.and(self.client.finish())
    }

    /// Has the attendant flush and remove the device, while the threads do what it asks.
    fn detach(&mut self) -> Result<()> {
        if self.attendant.ask() {
            return Ok(());
        }
        if self.disk.strong_count() > 0 {
            self.control.lock().tell(ControlCommand::Stop, self.device, 0)?;
        }
        Err(Error::new(ErrorKind::Io, Fault::Us, "flush: what was written may be lost"))
    }
}

/// Removes the device at `path`; `is_forced`, also while it is mounted or otherwise in use. What
/// was written was flushed before.
///
/// # Errors
/// It is in use, or not ours to remove.
pub(crate) fn detach(path: &Path, is_forced: bool) -> Result<()> {
    let say = |e: Error| e.on(path.display());
    let mut control = UblkControl::open().map_err(say)?;
    let device = number_of(path).unwrap_or_default();
    if !control.info(device).map_err(say)?.is_some_and(|info| is_ours(&info)) {
        let what = "detach: no disk is attached there";
        return Err(say(Error::new(ErrorKind::NotFound, Fault::User, what)));
    }
    if !is_forced {
        // Refused for a device that is mounted, or part of another.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::EXCL;
        open(path, flags, Mode::empty()).map_err(|e| say(Error::os("detach", e)))?;
    }
    control.keep_sizes();
    control.tell(ControlCommand::Stop, device, 0).map_err(say)?;
    match control.tell(ControlCommand::Delete, device, 0) {
        // Its process has removed it.
        Err(e) if e.raw_os_error() == Some(libc::ENODEV) => Ok(()),
        other => other.map_err(say),
    }
}

/// Our devices, as far as this user may ask for them. They are named by their processes: the kernel
/// keeps no name of the disk.
pub(crate) fn devices() -> Vec<AttachedDisk> {
    let entries = std::fs::read_dir("/sys/class/ublk-char").into_iter().flatten().flatten();
    let numbers = entries
        .filter_map(|entry| entry.file_name().to_str()?.strip_prefix("ublkc")?.parse::<u32>().ok());
    let mut numbers: Vec<_> = numbers.collect();
    numbers.sort_unstable();
    if numbers.is_empty() {
        return Vec::new();
    }
    let Ok(mut control) = UblkControl::open() else { return Vec::new() };
    let found = numbers.into_iter().filter_map(|device| {
        let info = control.info(device).ok()??;
        let is_shown = is_ours(&info) && info.state != DEAD;
        let is_served = is_served(&info);
        let read_only = std::fs::read(format!("/sys/block/ublkb{device}/ro"));
        is_shown.then(|| AttachedDisk {
            path: PathBuf::from(format!("/dev/ublkb{device}")),
            kind: OF_UBLK,
            disk: match is_served {
                true => format!("a disk of process {}", info.process),
                false => "waits for a process".to_owned(),
            },
            is_read_only: read_only.is_ok_and(|ro| ro == b"1\n"),
            is_waiting: !is_served,
        })
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_known_by_its_path_and_a_disk_by_its_name() {
        assert_eq!(number_of(Path::new("/dev/ublkb12")), Some(12));
        assert_eq!(number_of(Path::new("/dev/ublkb1p2")), None);
        assert_eq!(number_of(Path::new("/dev/nbd0")), None);
        assert_ne!(note_of("a.raw"), note_of("b.raw"));
        let of =
            |state, process| UblkInfo { state, process, note: note_of("a"), ..UblkInfo::default() };
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(is_ours(&of(DEAD, 0)) && !is_ours(&UblkInfo::default()));
        assert!(is_served(&of(1, own)) && is_served(&of(DEAD, own)));
        assert!(!is_served(&of(QUIESCED, own)) && !is_served(&of(DEAD, -1)));
    }

    #[test]
    fn what_is_done_apart_leaves_no_thread() {
        assert_eq!(apart(|| 7).unwrap(), 7);
    }
}
