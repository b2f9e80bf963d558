//! System calls refused by seccomp: those that work on disks never needs, but that an attacker
//! would need who has taken over the program.

use std::collections::BTreeMap;

use device::Endpoint;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompRule,
    TargetArch, apply_filter_all_threads,
};

use crate::{ConfinementError, Sockets, parts};

/// Calls that start programs, or reach other processes, the kernel, the whole system or what
/// landlock leaves free of files. io_uring would run other calls where no filter sees them.
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
    OPEN_TREE_ATTR,
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
    KEXEC_FILE_LOAD,
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
    // What landlock does not know: who owns a file and may use it, and what else is noted with it.
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    FCHMODAT2,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    SETXATTRAT,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_fremovexattr,
    REMOVEXATTRAT,
    FILE_SETATTR,
    libc::SYS_utimensat,
    libc::SYS_mknodat,
    // What is shared with other processes without a file.
    libc::SYS_shmget,
    libc::SYS_shmat,
    libc::SYS_shmctl,
    libc::SYS_msgget,
    libc::SYS_msgsnd,
    libc::SYS_msgrcv,
    libc::SYS_msgctl,
    libc::SYS_semget,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_semctl,
    libc::SYS_mq_open,
    libc::SYS_mq_unlink,
    // Signals, which the helper sends, and how others are scheduled.
    libc::SYS_tkill,
    libc::SYS_pidfd_send_signal,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_rt_tgsigqueueinfo,
    libc::SYS_setpriority,
    libc::SYS_ioprio_set,
    libc::SYS_inotify_init1,
];

/// libc does not name it for musl on aarch64.
#[cfg(target_arch = "aarch64")]
const KEXEC_FILE_LOAD: libc::c_long = 294;
#[cfg(not(target_arch = "aarch64"))]
const KEXEC_FILE_LOAD: libc::c_long = libc::SYS_kexec_file_load;

/// Numbers of newer calls, on all machines.
const FCHMODAT2: libc::c_long = 452;
const SETXATTRAT: libc::c_long = 463;
const REMOVEXATTRAT: libc::c_long = 466;
const OPEN_TREE_ATTR: libc::c_long = 467;
const FILE_SETATTR: libc::c_long = 469;

/// The same in words that newer machines do not have.
#[cfg(target_arch = "x86_64")]
const OLDER: &[libc::c_long] = &[
    libc::SYS_chmod,
    libc::SYS_chown,
    libc::SYS_lchown,
    libc::SYS_utime,
    libc::SYS_utimes,
    libc::SYS_futimesat,
    libc::SYS_mknod,
    libc::SYS_inotify_init,
];
#[cfg(not(target_arch = "x86_64"))]
const OLDER: &[libc::c_long] = &[];

/// Calls that are only for this process: their first argument is it, or 0.
const OWN: &[libc::c_long] = &[
    libc::SYS_kill,
    libc::SYS_tgkill,
    libc::SYS_prlimit64,
    libc::SYS_sched_setscheduler,
    libc::SYS_sched_setparam,
    libc::SYS_sched_setattr,
    libc::SYS_sched_setaffinity,
];

/// Those of them for which 0 is others, too.
const GROUPS: &[libc::c_long] = &[libc::SYS_kill, libc::SYS_tgkill];

/// Requests of fcntl that have signals sent to another process.
const OWNERS: [u64; 3] = [8 /* F_SETOWN */, 10 /* F_SETSIG */, 15 /* F_SETOWN_EX */];

/// The same of ioctl.
const OWNERS_OF_SOCKETS: [u64; 2] = [0x8901 /* FIOSETOWN */, 0x8902 /* SIOCSPGRP */];

/// Flags and projects of files, which landlock does not know, and halting a file system.
const ATTRIBUTES: [u64; 4] = [
    0x4008_6602, // FS_IOC_SETFLAGS
    0x4004_6602, // FS_IOC32_SETFLAGS
    0x401c_5820, // FS_IOC_FSSETXATTR
    0xc004_5877, // FIFREEZE
];

/// Access to the I/O ports of the machine.
#[cfg(target_arch = "x86_64")]
const PORTS: &[libc::c_long] = &[libc::SYS_iopl, libc::SYS_ioperm];
#[cfg(not(target_arch = "x86_64"))]
const PORTS: &[libc::c_long] = &[];

/// Pushing input into the terminal that the program was started from: it is open already, and its
/// shell would run it.
const TYPING: [u64; 2] = [0x5412 /* TIOCSTI */, 0x541c /* TIOCLINUX */];

/// SOCK_PACKET, an older word for raw sockets.
const PACKETS: u64 = 10;

/// musl's resolver binds its sockets.
const RESOLVER_BINDS: bool = cfg!(target_env = "musl");

impl Sockets {
    /// The families of sockets that are made.
    fn families(&self) -> Vec<libc::c_int> {
        let of = |endpoint: &Endpoint| match endpoint {
            Endpoint::Unix | Endpoint::Abstract => &[libc::AF_UNIX][..],
            Endpoint::Vsock => &[libc::AF_VSOCK],
            // Looking up a name asks a service on a Unix socket, and the kernel for its addresses.
            Endpoint::Tcp(_) | Endpoint::Anywhere => {
                &[libc::AF_INET, libc::AF_INET6, libc::AF_UNIX, libc::AF_NETLINK]
            }
        };
        let mut all: Vec<_> = self.connects.iter().flat_map(of).copied().collect();
        all.extend(self.listens.then_some(libc::AF_UNIX));
        all.sort_unstable();
        all.dedup();
        all
    }

    fn looks_up(&self) -> bool {
        self.connects.iter().any(|one| matches!(one, Endpoint::Tcp(_) | Endpoint::Anywhere))
    }

    /// Calls that are not made at all.
    fn refused(&self) -> Vec<libc::c_long> {
        let is_none = self.families().is_empty();
        let binds = self.listens || RESOLVER_BINDS && self.looks_up();
        let mut refused = Vec::new();
        refused.extend(is_none.then_some([libc::SYS_socket, libc::SYS_connect]).iter().flatten());
        refused.extend(
            (!self.accepts).then_some([libc::SYS_accept, libc::SYS_accept4]).iter().flatten(),
        );
        refused.extend((!binds).then_some(libc::SYS_bind));
        refused.extend((!self.listens).then_some(libc::SYS_listen));
        refused
    }
}

/// Numbers from here on are refused. On x86_64 they are the x32 calls, which are other words for
/// the same; elsewhere there are none.
const X32: i64 = 0x4000_0000;

/// x32 calls with other numbers. Older kernels accept these without the bit, too.
#[cfg(target_arch = "x86_64")]
const OTHERWISE: [(libc::c_long, i64); 9] = [
    (libc::SYS_ioctl, 514),
    (libc::SYS_execve, 520),
    (libc::SYS_ptrace, 521),
    (libc::SYS_rt_sigqueueinfo, 524),
    (libc::SYS_kexec_load, 528),
    (libc::SYS_rt_tgsigqueueinfo, 536),
    (libc::SYS_process_vm_readv, 539),
    (libc::SYS_process_vm_writev, 540),
    (libc::SYS_execveat, 545),
];

/// All numbers of a call.
#[cfg(target_arch = "x86_64")]
fn numbers(call: libc::c_long) -> impl Iterator<Item = i64> {
    let otherwise = OTHERWISE.into_iter().filter(move |(usual, _)| *usual == call);
    std::iter::once(call).chain(otherwise.map(|(_, number)| number))
}

/// All numbers of a call.
#[cfg(not(target_arch = "x86_64"))]
fn numbers(call: libc::c_long) -> impl Iterator<Item = i64> {
    std::iter::once(call)
}

/// Refuses, from now on and in all threads, calls that work on open disks does not need: they fail
/// with EPERM.
///
/// # Errors
/// The kernel has no filters, or refuses this one.
pub fn confine(sockets: &Sockets) -> Result<(), ConfinementError> {
    let filter = filter(sockets, std::process::id())?;
    apply_filter_all_threads(&filter).map_err(|e| ConfinementError::new("confine calls", e))
}

type FilterRules = Result<Vec<SeccompRule>, seccompiler::BackendError>;

/// The filter of the process `own`.
fn filter(sockets: &Sockets, own: u32) -> Result<BpfProgram, ConfinementError> {
    let failed = |e: seccompiler::BackendError| ConfinementError::new("confine calls", e);
    let more = sockets.refused();
    let refused = NEVER.iter().chain(PORTS).chain(OLDER).chain(&more);
    let mut rules = BTreeMap::new();
    for number in refused.flat_map(|call| numbers(*call)) {
        rules.insert(number, Vec::new());
    }
    let mut some = vec![
        (libc::SYS_ioctl, requests(TYPING.into_iter().chain(OWNERS_OF_SOCKETS).chain(ATTRIBUTES))),
        (libc::SYS_fcntl, requests(OWNERS)),
        (libc::SYS_socketpair, pairs()),
    ];
    some.extend(OWN.iter().map(|call| (*call, of_others(own, !GROUPS.contains(call)))));
    if !sockets.families().is_empty() {
        some.push((libc::SYS_socket, families(&sockets.families())));
    }
    for (call, those) in some {
        let those = those.map_err(failed)?;
        numbers(call).for_each(|number| drop(rules.insert(number, those.clone())));
    }
    let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(failed)?;
    let refuse = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    parts::program(rules, X32, &refuse, arch).map_err(failed)
}

/// A condition on the lower half of an argument, which is all that the kernel looks at.
fn when(
    argument: u8,
    how: SeccompCmpOp,
    value: u64,
) -> Result<SeccompCondition, seccompiler::BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, how, value)
}

/// A rule for each second argument that is refused.
fn requests(requests: impl IntoIterator<Item = u64>) -> FilterRules {
    let rule = |request| SeccompRule::new(vec![when(1, SeccompCmpOp::Eq, request)?]);
    requests.into_iter().map(rule).collect()
}

/// A rule for a first argument that is another process.
fn of_others(own: u32, may_be_zero: bool) -> FilterRules {
    let mut is_other = vec![when(0, SeccompCmpOp::Ne, own.into())?];
    if may_be_zero {
        is_other.push(when(0, SeccompCmpOp::Ne, 0)?);
    }
    Ok(vec![SeccompRule::new(is_other)?])
}

/// FilterRules for sockets of other families than these, for raw ones, and for questions to the
/// kernel that are not on addresses.
fn families(allowed: &[libc::c_int]) -> FilterRules {
    let number = |value: libc::c_int| u64::from(value.unsigned_abs());
    let is_other: Result<Vec<_>, _> =
        allowed.iter().map(|family| when(0, SeccompCmpOp::Ne, number(*family))).collect();
    let netlink = number(libc::AF_NETLINK);
    // The upper bits of the type are flags.
    let is_raw = SeccompCmpOp::MaskedEq(0xf);
    Ok(vec![
        SeccompRule::new(is_other?)?,
        SeccompRule::new(vec![
            when(0, SeccompCmpOp::Ne, netlink)?,
            when(1, is_raw.clone(), number(libc::SOCK_RAW))?,
        ])?,
        SeccompRule::new(vec![when(1, is_raw, PACKETS)?])?,
        SeccompRule::new(vec![
            when(0, SeccompCmpOp::Eq, netlink)?,
            when(2, SeccompCmpOp::Ne, number(libc::NETLINK_ROUTE))?,
        ])?,
    ])
}

/// Rules for pairs of sockets: those of this process are connected for good. A datagram socket
/// could go on to send to any other program's.
fn pairs() -> FilterRules {
    let number = |value: libc::c_int| u64::from(value.unsigned_abs());
    // The kernel makes a datagram socket of a raw one.
    let kinds = [libc::SOCK_DGRAM, libc::SOCK_RAW].map(number);
    let is_kind = |kind| SeccompRule::new(vec![when(1, SeccompCmpOp::MaskedEq(0xf), kind)?]);
    let is_other = when(0, SeccompCmpOp::Ne, number(libc::AF_UNIX))?;
    let other = std::iter::once(SeccompRule::new(vec![is_other]));
    other.chain(kinds.into_iter().map(is_kind)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the filter on a call as the kernel would.
    fn verdict(program: &BpfProgram, number: i64, arguments: &[u64]) -> u32 {
        steps(program, number, arguments).0
    }

    /// The verdict, and how many steps it took.
    fn steps(program: &BpfProgram, number: i64, arguments: &[u64]) -> (u32, usize) {
        let arch = if cfg!(target_arch = "x86_64") { 0xc000_003e } else { 0xc000_00b7 };
        steps_of(program, arch, number, arguments)
    }

    /// The same for a call of a machine that may be another one.
    fn steps_of(program: &BpfProgram, arch: u32, number: i64, arguments: &[u64]) -> (u32, usize) {
        let mut call = [0; 64];
        call[..4].copy_from_slice(&u32::try_from(number).unwrap().to_ne_bytes());
        call[4..8].copy_from_slice(&arch.to_ne_bytes());
        for (place, argument) in call[16..].chunks_exact_mut(8).zip(arguments) {
            place.copy_from_slice(&argument.to_ne_bytes());
        }
        let (mut at, mut value, mut count) = (0, 0, 0);
        loop {
            let step = &program[at];
            at += 1;
            count += 1;
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
                0x06 => return (step.k, count),
                0x15 => value == step.k,
                0x25 => value > step.k,
                0x35 => value >= step.k,
                code => panic!("{code:#x}"),
            };
            at += usize::from(if holds { step.jt } else { step.jf });
        }
    }

    const OWN_PID: u32 = 77;
    const ALLOWED: u32 = 0x7fff_0000;
    const REFUSED: u32 = 0x0005_0001;
    const KILLED: u32 = 0x8000_0000;

    fn with(connects: &[Endpoint]) -> BpfProgram {
        let sockets = Sockets { connects: connects.to_vec(), ..Sockets::default() };
        filter(&sockets, OWN_PID).unwrap()
    }

    #[test]
    fn calls_are_refused_by_all_of_their_numbers_and_others_are_not() {
        for connects in [&[][..], &[Endpoint::Unix], &[Endpoint::Anywhere]] {
            let program = with(connects);
            for call in [libc::SYS_read, libc::SYS_openat, libc::SYS_clone, libc::SYS_futex] {
                assert_eq!(verdict(&program, call, &[]), ALLOWED, "{call}");
            }
            let never = NEVER.iter().chain(PORTS).chain(OLDER);
            for number in never.flat_map(|call| numbers(*call)) {
                assert_eq!(verdict(&program, number, &[]), REFUSED, "{number}");
            }
            let of_network = if connects.is_empty() { REFUSED } else { ALLOWED };
            assert_eq!(verdict(&program, libc::SYS_connect, &[]), of_network);
        }
        #[cfg(target_arch = "x86_64")]
        for number in [520, 524, 536, 545, 520 | X32, 545 | X32, libc::SYS_read | X32] {
            assert_eq!(verdict(&with(&[Endpoint::Unix]), number, &[]), REFUSED, "{number}");
        }
    }

    #[test]
    fn a_call_of_another_machine_ends_the_program_whatever_its_number() {
        for connects in [&[][..], &[Endpoint::Anywhere]] {
            let program = with(connects);
            // A 32-bit program of x86, for which the numbers mean other calls.
            let of_i386 = |number| steps_of(&program, 0x4000_0003, number, &[0; 6]).0;
            assert!((0..600).map(of_i386).all(|verdict| verdict == KILLED));
        }
    }

    #[test]
    fn a_call_that_is_allowed_is_compared_with_few_numbers() {
        for connects in [&[][..], &[Endpoint::Anywhere]] {
            let program = with(connects);
            let all = (0..500).map(|number| steps(&program, number, &[0; 6]));
            let most = all.map(|(_, count)| count).max().unwrap();
            assert!(most < 80, "{most} steps of {}", program.len());
        }
    }

    #[test]
    fn a_socket_is_of_a_family_that_a_disk_needs() {
        let number = |value: libc::c_int| u64::from(value.unsigned_abs());
        let all = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_VSOCK, libc::AF_NETLINK];
        let made = |connects: &[Endpoint], kind: libc::c_int| -> Vec<libc::c_int> {
            let program = with(connects);
            let is_made = |family: &libc::c_int| {
                verdict(&program, libc::SYS_socket, &[number(*family), number(kind), 0]) == ALLOWED
            };
            all.into_iter().filter(is_made).collect()
        };
        let stream = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
        assert_eq!(made(&[], stream), []);
        assert_eq!(made(&[Endpoint::Unix], stream), [libc::AF_UNIX]);
        assert_eq!(made(&[Endpoint::Vsock], stream), [libc::AF_VSOCK]);
        let tcp = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];
        assert_eq!(made(&[Endpoint::Tcp(10809)], stream), tcp);
        assert_eq!(made(&[Endpoint::Anywhere], libc::SOCK_RAW), [libc::AF_NETLINK]);
        let program = with(&[Endpoint::Anywhere]);
        let audit = [number(libc::AF_NETLINK), number(libc::SOCK_RAW), 9];
        assert_eq!(verdict(&program, libc::SYS_socket, &audit), REFUSED);
        assert_eq!(verdict(&program, libc::SYS_socket, &[number(libc::AF_PACKET)]), REFUSED);
    }

    #[test]
    fn a_pair_of_sockets_reaches_no_other_program() {
        for connects in [&[][..], &[Endpoint::Anywhere]] {
            let program = with(connects);
            let pair = |family: libc::c_int, kind: libc::c_int| {
                let arguments = [family, kind, 0].map(|value| u64::from(value.unsigned_abs()));
                verdict(&program, libc::SYS_socketpair, &arguments) == ALLOWED
            };
            for flags in [0, libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK] {
                assert!(pair(libc::AF_UNIX, libc::SOCK_STREAM | flags));
                assert!(pair(libc::AF_UNIX, libc::SOCK_SEQPACKET | flags));
                assert!(!pair(libc::AF_UNIX, libc::SOCK_DGRAM | flags));
                assert!(!pair(libc::AF_UNIX, libc::SOCK_RAW | flags));
                assert!(!pair(libc::AF_TIPC, libc::SOCK_STREAM | flags));
            }
        }
    }

    #[test]
    fn what_listens_is_open_already_and_clients_are_still_accepted() {
        for (accepts, listens) in [(false, false), (true, false), (true, true)] {
            let sockets = Sockets { accepts, listens, ..Sockets::default() };
            let program = filter(&sockets, OWN_PID).unwrap();
            let may = |call| verdict(&program, call, &[1, 1]) == ALLOWED;
            assert_eq!((may(libc::SYS_accept), may(libc::SYS_accept4)), (accepts, accepts));
            assert_eq!((may(libc::SYS_bind), may(libc::SYS_listen)), (listens, listens));
            assert_eq!(may(libc::SYS_socket), listens);
        }
    }

    #[test]
    fn signals_and_limits_are_for_this_process() {
        let program = with(&[]);
        let other = u64::from(u32::MAX);
        for call in OWN {
            let verdict = |argument: u64| verdict(&program, *call, &[argument, 9]);
            assert_eq!(verdict(OWN_PID.into()), ALLOWED, "{call}");
            assert_eq!((verdict(1), verdict(other)), (REFUSED, REFUSED), "{call}");
            let of_group = if GROUPS.contains(call) { REFUSED } else { ALLOWED };
            assert_eq!(verdict(0), of_group, "{call}");
        }
        for request in OWNERS {
            assert_eq!(verdict(&program, libc::SYS_fcntl, &[3, request]), REFUSED, "{request}");
        }
        assert_eq!(verdict(&program, libc::SYS_fcntl, &[3, 3]), ALLOWED, "F_GETFL");
    }

    #[test]
    fn nothing_is_typed_into_the_terminal_that_we_were_started_from() {
        let program = with(&[Endpoint::Anywhere]);
        for number in numbers(libc::SYS_ioctl) {
            assert_eq!(verdict(&program, number, &[0, 0x5401]), ALLOWED, "TCGETS");
            // The kernel ignores the upper half of the number.
            for request in [0x5412, 0x541c, 0xff00_0000_0000_5412] {
                assert_eq!(verdict(&program, number, &[0, request]), REFUSED, "{request:#x}");
            }
        }
    }

    #[test]
    fn no_file_gets_other_flags_and_no_file_system_is_halted() {
        let program = with(&[Endpoint::Anywhere]);
        for number in numbers(libc::SYS_ioctl) {
            for request in ATTRIBUTES {
                assert_eq!(verdict(&program, number, &[3, request]), REFUSED, "{request:#x}");
            }
            assert_eq!(verdict(&program, number, &[3, 0x8008_6601]), ALLOWED, "FS_IOC_GETFLAGS");
        }
    }
}
