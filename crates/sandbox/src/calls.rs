//! Which calls of the kernel are refused, by seccomp: those that work on disks never needs, and that a program needs that was
//! taken over by what it read.

use std::collections::BTreeMap;

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch, apply_filter_all_threads};

use crate::Error;

/// Starting programs, and getting at other processes, at the kernel and at the whole of the system. Rings for I/O would do other calls
/// where no filter sees them.
const NEVER: &[libc::c_long] = &[
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsmount,
    libc::SYS_mount_setattr,
    libc::SYS_setns,
    libc::SYS_unshare,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_sethostname,
    libc::SYS_quotactl,
    libc::SYS_open_by_handle_at,
    libc::SYS_io_uring_setup,
];

/// Making connections, and being connected to.
const NETWORK: &[libc::c_long] =
    &[libc::SYS_socket, libc::SYS_connect, libc::SYS_bind, libc::SYS_listen, libc::SYS_accept4];

/// The bit of calls of the x32 interface, which filters would else take for other ones.
#[cfg(target_arch = "x86_64")]
const X32: i64 = 0x4000_0000;

/// Refuses, from now on and in all threads, what work on open disks does not need: such a call fails with EPERM.
///
/// # Errors
/// The kernel has no filters, or refuses this one.
pub fn confine(network: bool) -> Result<(), Error> {
    let filter = filter(network)?;
    apply_filter_all_threads(&filter).map_err(|e| Error::new("confine calls", e))
}

fn filter(network: bool) -> Result<BpfProgram, Error> {
    let failed = |e: seccompiler::BackendError| Error::new("confine calls", e);
    let more = if network { &[][..] } else { NETWORK };
    let refused = NEVER.iter().chain(more);
    let mut rules = BTreeMap::new();
    for call in refused {
        rules.insert(*call, Vec::new());
        #[cfg(target_arch = "x86_64")]
        rules.insert(*call | X32, Vec::new());
    }
    let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(failed)?;
    let refuse = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, arch).map_err(failed)?;
    filter.try_into().map_err(failed)
}
