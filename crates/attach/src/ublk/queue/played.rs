//! The kernel's side of a queue, played: for the fuzzer, which decides what requests say. Their
//! data lies in a file, at the places where the character device has it.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    dead_code,
    reason = "a failure is what is looked for; it is in no program"
)]

use std::os::fd::AsFd;

use device::Simple;
use device::model::Model;
use runtime::WorkPool;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::retry_on_intr;

use super::*;
use crate::ublk::abi::{MOST, SECTOR, UblkInfo, UblkParameters};

/// Bytes of the disk.
const SIZE: u64 = 196 * SECTOR;
/// Tags that are used, one after the other.
const TAGS: u16 = 4;

struct Kernel {
    model: Arc<Model>,
    file: File,
    queue: Arc<UblkQueue>,
}

impl Kernel {
    fn new(is_read_only: bool) -> Self {
        let model = Arc::new(Model::new(to_usize(SIZE)));
        let edge = Simple::shared_edge(model.clone(), &WorkPool::new(1));
        let client = AttachedClient::of(&edge, is_read_only);
        let file = memfd_create("character-device", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, abi::place(0, TAGS) + u64::from(MOST)).unwrap();
        let file = File::from(file);
        let (own, detached) = (file.try_clone().unwrap(), Mutex::default());
        let disk = Arc::new(UblkDisk { client, file: own, detached });
        let queue = UblkQueue::new(&disk, 0, Bell::new().unwrap());
        Self { model, file, queue }
    }

    /// Waits for a result.
    fn result(&self) -> (u16, i32) {
        loop {
            let mut done = self.queue.done.lock();
            if let Some(one) = done.all.pop() {
                assert!(done.all.is_empty(), "there is one request at a time");
                return one;
            }
            done.is_asleep = true;
            drop(done);
            let mut wanted = [PollFd::from_borrowed_fd(self.queue.bell.as_fd(), PollFlags::IN)];
            // The fuzzer has a timer.
            retry_on_intr(|| poll(&mut wanted, None)).unwrap();
            self.queue.bell.silence();
        }
    }

    /// Does one request with this data; what is written is in `copy`, too, and what is read is what
    /// that holds.
    fn ask(&self, tag: u16, request: Option<UblkRequest>, byte: u8, copy: &mut [u8]) {
        let len = request.map_or(0, |request| request.len);
        let has_data = matches!(
            request.map(|request| request.kind),
            Some(OperationKind::Read | OperationKind::Write)
        );
        let mut data: Vec<u8> = (0..).map(|n| byte.wrapping_add(n)).take(251).collect();
        data = data.into_iter().cycle().take(if has_data { to_usize(len) } else { 0 }).collect();
        self.file.write_all_at(&data, abi::place(0, tag)).unwrap();
        self.queue.begin(tag, request);
        let (of, result) = self.result();
        assert_eq!(of, tag);
        let Some(UblkRequest { kind, offset, len, .. }) = request else {
            return assert_eq!(result, UNKNOWN);
        };
        if offset > SIZE || len > SIZE - offset {
            return assert!(result < 0, "{request:?}: {result}");
        }
        if self.queue.disk.client.is_read_only
            && !matches!(kind, OperationKind::Read | OperationKind::Flush)
        {
            return assert_eq!(result, -libc::EROFS);
        }
        assert_eq!(u64::try_from(result), Ok(data.len() as u64), "{request:?}");
        let range = to_usize(offset)..to_usize(offset + len);
        match kind {
            OperationKind::Write => copy[range].copy_from_slice(&data),
            OperationKind::Zero => copy[range].fill(0),
            OperationKind::Trim => copy[range.clone()].copy_from_slice(&self.model.bytes()[range]),
            OperationKind::Read => {
                self.file.read_exact_at(&mut data, abi::place(0, tag)).unwrap();
                assert!(data == copy[range], "{request:?}");
            }
            _ => {}
        }
    }
}

/// The bytes are requests as the kernel shares them (`struct ublksrv_io_desc`), one after the
/// other. Each has one result, and does what the same does to memory. As what the kernel says of
/// devices, they mean what they meant when they are said again.
pub fn run(bytes: &[u8]) {
    if let Some(info) = UblkInfo::decode(bytes) {
        assert_eq!(UblkInfo::decode(&info.encode()), Some(info));
    }
    if let Some(parameters) = UblkParameters::decode(bytes) {
        let again = UblkParameters::decode(&parameters.encode()).unwrap();
        assert!(again.is_same_disk(&parameters), "{parameters:?}");
    }
    let Some((first, left)) = bytes.split_first() else { return };
    let kernel = Kernel::new(first & 1 != 0);
    let mut copy = vec![0; to_usize(SIZE)];
    for (n, bytes) in (0..).zip(left.chunks(UblkRequest::LEN)) {
        let mut bytes = bytes.to_vec();
        // The address, which is not used here, says what else is played.
        let (how, byte) = (bytes.get(16).copied().unwrap_or(0), bytes.get(17).copied());
        let sectors = u32::try_from(SIZE / SECTOR).unwrap();
        for (place, below) in [(4..8, sectors), (8..12, sectors + 2)] {
            // Mostly on the disk, or a little more.
            let Some(number) = bytes.get_mut(place).filter(|_| how & 1 == 0) else { continue };
            let near = u32::from_ne_bytes((&*number).try_into().unwrap()) % below;
            number.copy_from_slice(&near.to_ne_bytes());
        }
        if let Some(high) = bytes.get_mut(12..16).filter(|_| how & 1 == 0) {
            high.fill(0);
        }
        kernel.ask(n % TAGS, UblkRequest::decode(&bytes), byte.unwrap_or(0), &mut copy);
    }
    assert!(kernel.model.bytes() == copy);
}
