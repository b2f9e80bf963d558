//! System calls refused by seccomp: those that work on disks never needs, but that an attacker would need who has taken over the
//! program.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter_all_threads,
};

use crate::ConfinementError;

/// Calls that start programs, or reach other processes, the kernel or the whole system. io_uring would run other calls
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
    libc::SYS_fsconfig,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_setns,
    libc::SYS_unshare,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_fanotify_init,
    libc::SYS_process_madvise,
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
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_acct,
    libc::SYS_syslog,
    libc::SYS_quotactl,
    libc::SYS_open_by_handle_at,
    libc::SYS_io_uring_setup,
];

/// Access to the I/O ports of the machine.
#[cfg(target_arch = "x86_64")]
const PORTS: &[libc::c_long] = &[libc::SYS_iopl, libc::SYS_ioperm];
#[cfg(not(target_arch = "x86_64"))]
const PORTS: &[libc::c_long] = &[];

/// Pushing input into the terminal that the program was started from: it is open already, and its shell
/// would run it.
const TYPING: [u64; 2] = [0x5412 /* TIOCSTI */, 0x541c /* TIOCLINUX */];

/// Calls that connect or listen.
const NETWORK: &[libc::c_long] =
    &[libc::SYS_socket, libc::SYS_connect, libc::SYS_bind, libc::SYS_listen, libc::SYS_accept4];

/// The bit of x32 system calls, which filters would otherwise take for other calls.
#[cfg(target_arch = "x86_64")]
const X32: i64 = 0x4000_0000;

/// x32 calls with other numbers. Older kernels accept these without the bit, too.
#[cfg(target_arch = "x86_64")]
const OTHERWISE: [(libc::c_long, i64); 7] = [
    (libc::SYS_ioctl, 514),
    (libc::SYS_execve, 520),
    (libc::SYS_ptrace, 521),
    (libc::SYS_kexec_load, 528),
    (libc::SYS_process_vm_readv, 539),
    (libc::SYS_process_vm_writev, 540),
    (libc::SYS_execveat, 545),
];

/// All numbers of a call.
#[cfg(target_arch = "x86_64")]
fn numbers(call: libc::c_long) -> impl Iterator<Item = i64> {
    let otherwise = OTHERWISE.into_iter().filter(move |(usual, _)| *usual == call);
    let otherwise = otherwise.flat_map(|(_, number)| [number, number | X32]);
    [call, call | X32].into_iter().chain(otherwise)
}

/// All numbers of a call.
#[cfg(not(target_arch = "x86_64"))]
fn numbers(call: libc::c_long) -> impl Iterator<Item = i64> {
    std::iter::once(call)
}

/// Refuses, from now on and in all threads, calls that work on open disks does not need: they fail with EPERM.
///
/// # Errors
/// The kernel has no filters, or refuses this one.
pub fn confine(network: bool) -> Result<(), ConfinementError> {
    let filter = filter(network)?;
    apply_filter_all_threads(&filter).map_err(|e| ConfinementError::new("confine calls", e))
}

fn filter(network: bool) -> Result<BpfProgram, ConfinementError> {
    let failed = |e: seccompiler::BackendError| ConfinementError::new("confine calls", e);
    let more = if network { &[][..] } else { NETWORK };
    let refused = NEVER.iter().chain(PORTS).chain(more);
    let mut rules = BTreeMap::new();
    for number in refused.flat_map(|call| numbers(*call)) {
        rules.insert(number, Vec::new());
    }
    for number in numbers(libc::SYS_ioctl) {
        rules.insert(number, typing().map_err(failed)?);
    }
    let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(failed)?;
    let refuse = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, arch).map_err(failed)?;
    filter.try_into().map_err(failed)
}

/// A rule for each request of ioctl that is refused. The kernel looks at the lower half of the number.
fn typing() -> Result<Vec<SeccompRule>, seccompiler::BackendError> {
    let rule = |request: u64| {
        let is = SeccompCondition::new(1, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, request)?;
        SeccompRule::new(vec![is])
    };
    TYPING.into_iter().map(rule).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the filter on a call as the kernel would.
    fn verdict(program: &BpfProgram, number: i64, argument: u64) -> u32 {
        let arch: u32 = if cfg!(target_arch = "x86_64") { 0xc000_003e } else { 0xc000_00b7 };
        let mut call = [0; 64];
        call[..4].copy_from_slice(&u32::try_from(number).unwrap().to_ne_bytes());
        call[4..8].copy_from_slice(&arch.to_ne_bytes());
        call[24..32].copy_from_slice(&argument.to_ne_bytes());
        let (mut at, mut value) = (0, 0);
        loop {
            let step = &program[at];
            at += 1;
            let holds = match step.code {
                // Load a word, AND with a constant, and jump.
                0x20 => {
                    let from = usize::try_from(step.k).unwrap();
                    value = u32::from_ne_bytes(call[from..from + 4].try_into().unwrap());
                    continue;
                }
                0x54 => {
                    value &= step.k;
                    continue;
                }
                0x05 => {
                    at += usize::try_from(step.k).unwrap();
                    continue;
                }
                0x06 => return step.k,
                0x15 => value == step.k,
                0x25 => value > step.k,
                0x35 => value >= step.k,
                code => panic!("{code:#x}"),
            };
            at += usize::from(if holds { step.jt } else { step.jf });
        }
    }

    const ALLOWED: u32 = 0x7fff_0000;
    const REFUSED: u32 = 0x0005_0001;

    #[test]
    fn calls_are_refused_by_all_of_their_numbers_and_others_are_not() {
        for network in [false, true] {
            let program = filter(network).unwrap();
            for call in [libc::SYS_read, libc::SYS_openat, libc::SYS_clone, libc::SYS_futex] {
                assert_eq!(verdict(&program, call, 0), ALLOWED, "{call}");
            }
            for number in NEVER.iter().chain(PORTS).flat_map(|call| numbers(*call)) {
                assert_eq!(verdict(&program, number, 0), REFUSED, "{number}");
            }
            let of_network = if network { ALLOWED } else { REFUSED };
            assert_eq!(verdict(&program, libc::SYS_connect, 0), of_network);
        }
        #[cfg(target_arch = "x86_64")]
        for number in [520, 545, 520 | X32, 545 | X32] {
            assert_eq!(verdict(&filter(true).unwrap(), number, 0), REFUSED, "{number}");
        }
    }

    #[test]
    fn nothing_is_typed_into_the_terminal_that_we_were_started_from() {
        let program = filter(true).unwrap();
        for number in numbers(libc::SYS_ioctl) {
            assert_eq!(verdict(&program, number, 0x5401), ALLOWED, "TCGETS");
            // The kernel ignores the upper half of the number.
            for request in [0x5412, 0x541c, 0xff00_0000_0000_5412] {
                assert_eq!(verdict(&program, number, request), REFUSED, "{request:#x}");
            }
        }
    }
}
