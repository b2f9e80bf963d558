//! Runs a program whose system calls fail, or do less than they were asked, by rules.
//!
//!     faulty SEED RULE... -- PROGRAM ARGUMENTS
//!
//! A rule is `CALL=WHAT@WHEN` or `CALL=WHAT@WHEN:PATH`. WHAT is an error (`EIO`), or `short`: the
//! call is made, with a smaller count. WHEN is `N` (the Nth call), `N+` (that one and
//! all later ones) or `P%` (each with this probability). With PATH only calls count
//! that have a descriptor of a file with PATH in its name.
//!
//! The program keeps its process id: what traces it is a process beside it, which ends with it.
//! Nothing but the named calls is slowed down (a seccomp filter picks them).
//!
//! `unsafe` is used for fork, ptrace and prctl, which no crate here wraps.
#![allow(unsafe_code, reason = "see above")]
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

#[cfg(target_arch = "x86_64")]
mod tracer {
    use std::collections::HashMap;
    use std::ffi::c_long;
    use std::io;
    use std::os::unix::process::CommandExt;
    use std::process::{Command, exit};
    use std::ptr::null_mut;

    use blackbox::dice::Dice;
    use libc::{c_int, pid_t, user_regs_struct};

    /// A call: its name, its number, which argument is its count (if it has one that can be
    /// made smaller), and which arguments are descriptors.
    struct Call(&'static str, c_long, Option<usize>, &'static [usize]);

    const CALLS: &[Call] = &[
        Call("read", libc::SYS_read, Some(2), &[0]),
        Call("write", libc::SYS_write, Some(2), &[0]),
        Call("readv", libc::SYS_readv, Some(2), &[0]),
        Call("writev", libc::SYS_writev, Some(2), &[0]),
        Call("pread64", libc::SYS_pread64, Some(2), &[0]),
        Call("pwrite64", libc::SYS_pwrite64, Some(2), &[0]),
        Call("preadv", libc::SYS_preadv, Some(2), &[0]),
        Call("preadv2", libc::SYS_preadv2, Some(2), &[0]),
        Call("pwritev", libc::SYS_pwritev, Some(2), &[0]),
        Call("pwritev2", libc::SYS_pwritev2, Some(2), &[0]),
        Call("recvfrom", libc::SYS_recvfrom, Some(2), &[0]),
        Call("sendto", libc::SYS_sendto, Some(2), &[0]),
        Call("sendfile", libc::SYS_sendfile, Some(3), &[0, 1]),
        Call("copy_file_range", libc::SYS_copy_file_range, Some(4), &[0, 2]),
        Call("fallocate", libc::SYS_fallocate, None, &[0]),
        Call("ftruncate", libc::SYS_ftruncate, None, &[0]),
        Call("fsync", libc::SYS_fsync, None, &[0]),
        Call("fdatasync", libc::SYS_fdatasync, None, &[0]),
        Call("sync_file_range", libc::SYS_sync_file_range, None, &[0]),
        Call("lseek", libc::SYS_lseek, None, &[0]),
        Call("close", libc::SYS_close, None, &[0]),
        Call("ioctl", libc::SYS_ioctl, None, &[0]),
    ];

    const ERRORS: &[(&str, c_int)] = &[
        ("EIO", libc::EIO),
        ("EINTR", libc::EINTR),
        ("EAGAIN", libc::EAGAIN),
        ("ENOSPC", libc::ENOSPC),
        ("EFBIG", libc::EFBIG),
        ("EINVAL", libc::EINVAL),
        ("EXDEV", libc::EXDEV),
        ("EOPNOTSUPP", libc::EOPNOTSUPP),
        ("ETIMEDOUT", libc::ETIMEDOUT),
    ];

    enum What {
        Error(c_int),
        Short,
    }

    enum When {
        Once(u64),
        From(u64),
        Percent(usize),
    }

    struct Rule {
        call: &'static Call,
        what: What,
        when: When,
        path: Option<String>,
        seen: u64,
    }

    impl Rule {
        fn parse(text: &str) -> Self {
            let bad = || -> ! { panic!("no rule: {text}") };
            let (call, rest) = text.split_once('=').unwrap_or_else(|| bad());
            let (what, rest) = rest.split_once('@').unwrap_or_else(|| bad());
            let (when, path) = match rest.split_once(':') {
                Some((when, path)) => (when, Some(path.to_owned())),
                None => (rest, None),
            };
            let error = || ERRORS.iter().find(|e| e.0 == what).unwrap_or_else(|| bad()).1;
            let when = match (when.strip_suffix('+'), when.strip_suffix('%')) {
                (Some(n), _) => When::From(n.parse().unwrap()),
                (_, Some(p)) => When::Percent(p.parse().unwrap()),
                _ => When::Once(when.parse().unwrap()),
            };
            Self {
                call: CALLS.iter().find(|c| c.0 == call).unwrap_or_else(|| bad()),
                what: if what == "short" { What::Short } else { What::Error(error()) },
                when,
                path,
                seen: 0,
            }
        }

        fn is_meant(&self, thread: pid_t, arguments: &[u64; 6]) -> bool {
            let Some(path) = &self.path else { return true };
            self.call.3.iter().any(|place| {
                let link = format!("/proc/{thread}/fd/{}", arguments[*place]);
                std::fs::read_link(link).is_ok_and(|at| at.to_string_lossy().contains(path))
            })
        }

        fn is_due(&mut self, dice: &mut Dice) -> bool {
            self.seen += 1;
            match self.when {
                When::Once(n) => self.seen == n,
                When::From(n) => self.seen >= n,
                When::Percent(p) => dice.percent(p),
            }
        }
    }

    pub(crate) fn main() {
        let mut words = std::env::args().skip(1);
        let seed: u64 = words.next().expect("a seed").parse().unwrap();
        let rules: Vec<Rule> =
            words.by_ref().take_while(|word| word != "--").map(|word| Rule::parse(&word)).collect();
        let program = words.next().expect("a program");

        let parent = pid();
        let mut ready = [0; 2];
        // SAFETY: two descriptors are written to.
        checked(unsafe { libc::pipe2(ready.as_mut_ptr(), libc::O_CLOEXEC) });
        // SAFETY: we have one thread.
        let between = checked(unsafe { libc::fork() });
        if between == 0 {
            // SAFETY: as above.
            if checked(unsafe { libc::fork() }) == 0 {
                trace(parent, ready[1], rules, &mut Dice::new(seed));
            }
            exit(0);
        }
        let mut byte = 0_u8;
        // SAFETY: no pointers, or valid ones. Any process may trace us: this is a test.
        unsafe {
            libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY);
            libc::waitpid(between, null_mut(), 0);
            libc::close(ready[1]);
            assert_eq!(libc::read(ready[0], (&raw mut byte).cast(), 1), 1, "no tracer");
        }
        filter(&rules);
        panic!("{}", Command::new(program).args(words).exec());
    }

    fn pid() -> pid_t {
        // SAFETY: no arguments.
        unsafe { libc::getpid() }
    }

    #[track_caller]
    fn checked<T: PartialOrd + From<i8>>(answer: T) -> T {
        assert!(answer >= T::from(0), "{}", io::Error::last_os_error());
        answer
    }

    /// From now on the kernel asks our tracer at each of the calls that the rules name.
    fn filter(rules: &[Rule]) {
        let statement = |code: u32, k: u32, jf: u8| libc::sock_filter {
            code: u16::try_from(code).unwrap(),
            jt: 0,
            jf,
            k,
        };
        let ret = libc::BPF_RET | libc::BPF_K;
        let mut program = vec![statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0)];
        for rule in rules {
            let number = u32::try_from(rule.call.1).unwrap();
            program.push(statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, number, 1));
            program.push(statement(ret, libc::SECCOMP_RET_TRACE, 0));
        }
        program.push(statement(ret, libc::SECCOMP_RET_ALLOW, 0));
        let all = libc::sock_fprog {
            len: u16::try_from(program.len()).unwrap(),
            filter: program.as_mut_ptr(),
        };
        // SAFETY: the program outlives the call, which copies it.
        unsafe {
            checked(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
            checked(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const all));
        }
    }

    fn ptrace(request: libc::c_uint, thread: pid_t, address: usize, data: usize) -> c_long {
        // SAFETY: the callers pass what the request wants.
        unsafe { libc::ptrace(request, thread, address, data) }
    }

    /// Traces `program` until it ends.
    fn trace(program: pid_t, ready: c_int, mut rules: Vec<Rule>, dice: &mut Dice) -> ! {
        let options = libc::PTRACE_O_TRACESECCOMP
            | libc::PTRACE_O_TRACECLONE
            | libc::PTRACE_O_EXITKILL
            | libc::PTRACE_O_TRACESYSGOOD;
        checked(ptrace(libc::PTRACE_SEIZE, program, 0, usize::try_from(options).unwrap()));
        // SAFETY: one byte is read from a constant.
        checked(unsafe { libc::write(ready, c"".as_ptr().cast(), 1) });
        // Threads in a call with a smaller count, and their registers before.
        let mut shortened: HashMap<pid_t, user_regs_struct> = HashMap::new();
        loop {
            let mut status = 0;
            // SAFETY: the status is written to.
            let thread = unsafe { libc::waitpid(-1, &raw mut status, libc::__WALL) };
            if thread < 0 {
                exit(0);
            }
            if !libc::WIFSTOPPED(status) {
                continue;
            }
            let signal = libc::WSTOPSIG(status);
            let (next, signal) = match status >> 16 {
                libc::PTRACE_EVENT_SECCOMP => match disturb(thread, &mut rules, dice) {
                    Some(before) => {
                        shortened.insert(thread, before);
                        (libc::PTRACE_SYSCALL, 0)
                    }
                    None => (libc::PTRACE_CONT, 0),
                },
                libc::PTRACE_EVENT_STOP if signal != libc::SIGTRAP => (libc::PTRACE_LISTEN, 0),
                0 if signal == libc::SIGTRAP | 0x80 => {
                    if let Some(before) = shortened.remove(&thread) {
                        restore(thread, &before);
                    }
                    (libc::PTRACE_CONT, 0)
                }
                0 => (libc::PTRACE_CONT, signal),
                _ => (libc::PTRACE_CONT, 0),
            };
            ptrace(next, thread, 0, usize::try_from(signal).unwrap());
        }
    }

    fn registers_of(thread: pid_t) -> Option<user_regs_struct> {
        // SAFETY: a struct of integers, for which zeroes are values.
        let mut registers: user_regs_struct = unsafe { std::mem::zeroed() };
        let answer = ptrace(libc::PTRACE_GETREGS, thread, 0, (&raw mut registers).addr());
        (answer >= 0).then_some(registers)
    }

    /// A program may count on its arguments: the kernel leaves them alone.
    fn restore(thread: pid_t, before: &user_regs_struct) {
        let Some(mut registers) = registers_of(thread) else { return };
        (registers.rdx, registers.r10, registers.r8) = (before.rdx, before.r10, before.r8);
        ptrace(libc::PTRACE_SETREGS, thread, 0, (&raw const registers).addr());
    }

    /// A thread is about to make a call that a rule names. Returns its registers if they must
    /// be put back after the call.
    fn disturb(thread: pid_t, rules: &mut [Rule], dice: &mut Dice) -> Option<user_regs_struct> {
        let before = registers_of(thread)?;
        let mut registers = before;
        let r = &registers;
        let arguments = [r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9];
        let number = i64::from_ne_bytes(r.orig_rax.to_ne_bytes());
        for rule in rules {
            let is_it = rule.call.1 == number && rule.is_meant(thread, &arguments);
            if !is_it || !rule.is_due(dice) {
                continue;
            }
            let mut after = None;
            match (&rule.what, rule.call.2) {
                (What::Error(error), _) => {
                    registers.orig_rax = u64::MAX;
                    registers.rax = i64::from(-error).cast_unsigned();
                }
                (What::Short, Some(place)) => {
                    let count = usize::try_from(arguments[place]).unwrap_or(0);
                    if count < 2 {
                        continue;
                    }
                    let less = u64::try_from(dice.between(1, count - 1)).unwrap();
                    match place {
                        2 => registers.rdx = less,
                        3 => registers.r10 = less,
                        _ => registers.r8 = less,
                    }
                    after = Some(before);
                }
                (What::Short, None) => continue,
            }
            ptrace(libc::PTRACE_SETREGS, thread, 0, (&raw const registers).addr());
            return after;
        }
        None
    }
}

fn main() {
    #[cfg(target_arch = "x86_64")]
    tracer::main();
    #[cfg(not(target_arch = "x86_64"))]
    panic!("faulty knows the registers of x86_64 only");
}
