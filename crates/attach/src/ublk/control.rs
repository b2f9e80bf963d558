//! /dev/ublk-control: commands by which devices come, go and are asked about. They are sent through
//! a ring that can do nothing else, since a sandbox cannot see what is sent there; each is waited
//! for.
//!
//! Uses `unsafe` because the kernel reads and writes the buffer of a command. It is the ring's own,
//! and no command returns before the kernel is done with it.
#![expect(unsafe_code, reason = "see above")]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;

use device::{Error, ErrorKind, Fault, Result};
use io_uring::register::Restriction;
use io_uring::squeue::{Entry128, Flags};
use io_uring::{IoUring, cqueue, opcode, types::Fixed};

use super::abi::{
    self, ControlCommand, LIVE, SECTOR, UPDATE_SIZE, USER_COPY, UblkInfo, UblkParameters,
};

const PATH: &str = "/dev/ublk-control";
/// Bytes of the longest buffer of a command.
const LONGEST: usize = 64;

/// The kernel's ublk, and the rights of the user who opened it, also when the process has given
/// them up.
pub(super) struct UblkControl {
    ring: IoUring<Entry128, cqueue::Entry>,
    buffer: Box<[u8; LONGEST]>,
    rights: u16,
    /// What the kernel can do, once that was [checked](Self::check).
    features: u64,
    file: File,
}

runtime::debug_as!(UblkControl, |_it| "UblkControl");

fn no_ublk(e: io::Error) -> Error {
    match e.raw_os_error() {
        Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => {
            let cure = "the kernel has no ublk; `modprobe ublk_drv` loads it (Linux 6.5)";
            Error::os(cure, e)
        }
        Some(libc::EACCES | libc::EPERM) => Error::os("use ublk: only root may", e),
        _ => Error::os("use ublk", e).on(PATH),
    }
}

fn no_ring(e: io::Error) -> Error {
    Error::os("use ublk by io_uring; `sysctl kernel.io_uring_disabled=0` allows that", e)
}

impl UblkControl {
    /// # Errors
    /// The kernel has no ublk, or it or io_uring is not for this user.
    pub(super) fn open() -> Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(PATH).map_err(no_ublk)?;
        let mut builder = IoUring::builder();
        let ring = builder.dontfork().setup_r_disabled().build(4).map_err(no_ring)?;
        let prepare = || {
            let submitter = ring.submitter();
            submitter.register_files(&[file.as_raw_fd()])?;
            let rights = submitter.register_personality()?;
            submitter.register_restrictions(&mut [
                Restriction::sqe_op(opcode::UringCmd80::CODE),
                Restriction::sqe_flags_required(Flags::FIXED_FILE.bits()),
            ])?;
            submitter.register_enable_rings()?;
            Ok(rights)
        };
        let rights = prepare().map_err(no_ring)?;
        Ok(Self { ring, buffer: Box::new([0; LONGEST]), rights, features: 0, file })
    }

    /// Sends a command with the buffer and waits for its end.
    fn run(&mut self, command: ControlCommand, device: u32, data: u64) -> io::Result<()> {
        let len = match command {
            ControlCommand::Info | ControlCommand::Add => UblkInfo::LEN,
            ControlCommand::SetParameters | ControlCommand::Parameters => UblkParameters::LEN,
            ControlCommand::Features => 8,
            _ => 0,
        };
        let address = if len > 0 { self.buffer.as_mut_ptr().expose_provenance() as u64 } else { 0 };
        let words = abi::control(device, address, u16::try_from(len).unwrap_or(0), data);
        let entry = opcode::UringCmd80::new(Fixed(0), command as u32).cmd(words).build();
        let entry = entry.personality(self.rights);
        // SAFETY: the buffer is as long as the command says, nothing else uses it until the
        // command has ended below, and it lives for longer than the ring.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.map_err(io::Error::other)?;
        loop {
            match self.ring.submit_and_wait(1) {
                Err(e) if e.raw_os_error() == Some(libc::EINTR) => {}
                other => break other.map(drop)?,
            }
        }
        let ended = self.ring.completion().next();
        match ended.map(|ended| ended.result()) {
            Some(n) if n < 0 => Err(io::Error::from_raw_os_error(n.saturating_neg())),
            Some(_) => Ok(()),
            None => Err(io::Error::other("the kernel did not complete a command")),
        }
    }

    /// Whether the kernel can do what is asked of it here.
    ///
    /// # Errors
    /// It cannot.
    pub(super) fn check(&mut self) -> Result<()> {
        let old = || {
            let what = "the kernel's ublk has no user copy; Linux 6.5 has";
            Error::new(ErrorKind::Unsupported, Fault::User, what)
        };
        if let Err(e) = self.run(ControlCommand::Features, u32::MAX, 0) {
            let is_refused = matches!(e.raw_os_error(), Some(libc::EACCES | libc::EPERM));
            return Err(if is_refused { no_ublk(e) } else { old() });
        }
        self.features = self.buffer.first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
        if self.features & USER_COPY == 0 { Err(old()) } else { Ok(()) }
    }

    /// Whether a device may get another size.
    pub(super) fn can_resize(&self) -> bool {
        self.features & UPDATE_SIZE != 0
    }

    /// A device has another size, in bytes. One that is about to stop is not asked.
    ///
    /// Linux from 6.16 on, until the fix of 7.0 (commit 25966fc09769, "ublk: fix NULL pointer
    /// dereference in ublk_ctrl_set_size()"), breaks on a size for a device that has been stopped.
    /// Its state is no help there: `ublk_stop_dev` keeps it live, under the lock that this command
    /// waits for, until the last request has ended. So `detach`, which stops devices of others,
    /// [keeps sizes](Self::keep_sizes) meanwhile; against another program that does there is only
    /// the state.
    ///
    /// # Errors
    /// It is not there any more, a device is being stopped, or the kernel refuses.
    pub(super) fn resize(&mut self, device: u32, size: u64) -> Result<()> {
        self.file.try_lock().map_err(|e| Error::os("lock the kernel's ublk", e))?;
        let told = match self.info(device) {
            Ok(Some(info)) if info.state == LIVE => {
                self.tell(ControlCommand::UpdateSize, device, size / SECTOR)
            }
            other => other.and_then(|_| Err(Error::unanswered())),
        };
        // It cannot fail: the lock is this one's.
        let _ = self.file.unlock();
        told
    }

    /// No process of this program gives a device another size until this is dropped: one is about
    /// to be stopped.
    pub(super) fn keep_sizes(&self) {
        // Where there are no locks, a device is stopped all the same.
        let _ = self.file.lock_shared();
    }

    /// What the kernel knows of a device, if there is one.
    ///
    /// # Errors
    /// It does not say.
    pub(super) fn info(&mut self, device: u32) -> Result<Option<UblkInfo>> {
        match self.run(ControlCommand::Info, device, 0) {
            Ok(()) => Ok(UblkInfo::decode(&*self.buffer)),
            Err(e) if matches!(e.raw_os_error(), Some(libc::ENODEV | libc::ENOENT)) => Ok(None),
            Err(e) => Err(no_ublk(e)),
        }
    }

    /// Makes a device; what the kernel has made of what was asked for.
    ///
    /// # Errors
    /// There is one of that number, or no room.
    pub(super) fn add(&mut self, wanted: &UblkInfo) -> Result<UblkInfo> {
        self.fill(&wanted.encode());
        self.run(ControlCommand::Add, wanted.device, 0).map_err(|e| Error::os("attach", e))?;
        UblkInfo::decode(&*self.buffer).ok_or_else(Error::unanswered)
    }

    /// Tells the kernel what disk a device is. Only once, before it starts.
    ///
    /// # Errors
    /// It does not take these.
    pub(super) fn set_parameters(&mut self, device: u32, to: &UblkParameters) -> Result<()> {
        self.fill(&to.encode());
        let set = self.run(ControlCommand::SetParameters, device, 0);
        set.map_err(|e| Error::os("attach: describe the disk", e))
    }

    /// What it was told.
    ///
    /// # Errors
    /// There is no such device.
    pub(super) fn parameters(&mut self, device: u32) -> Result<UblkParameters> {
        let len = u32::try_from(UblkParameters::LEN).unwrap_or(0);
        self.fill(&len.to_ne_bytes());
        let got = self.run(ControlCommand::Parameters, device, 0);
        got.map_err(|e| Error::os("attach: read the parameters of the disk", e))?;
        UblkParameters::decode(&*self.buffer).ok_or_else(Error::unanswered)
    }

    /// Sends a command that has no buffer, `data` with it.
    ///
    /// # Errors
    /// The kernel refuses.
    pub(super) fn tell(&mut self, command: ControlCommand, device: u32, data: u64) -> Result<()> {
        self.run(command, device, data).map_err(|e| Error::os("attach", e))
    }

    fn fill(&mut self, bytes: &[u8]) {
        self.buffer.fill(0);
        self.buffer.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    }
}
