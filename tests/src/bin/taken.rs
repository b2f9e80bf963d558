//! Takes over a program once it has shut its sandbox, and makes system calls in its place: what an
//! attacker could who has broken into it.
//!
//!     taken CALLS PROGRAM ARGUMENTS
//!
//! CALLS is a file of lines, each with words between tabs: a name, the number of a call, and its
//! arguments: a number, `s:TEXT` (the address of a string), `b:HEX` (of these bytes), or `r` (the
//! result of the line before). Each is printed: name, tab, result. The program is killed at the
//! end. Exits with 77 where the program never shuts a sandbox, or where the kernel knows less of
//! landlock than the table that it is for (its sixth version, Linux 6.12).
//!
//! `unsafe` is used for ptrace, which no crate here wraps.
#![allow(unsafe_code, reason = "see above")]
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

#[cfg(target_arch = "x86_64")]
mod tracer {
    use std::ffi::c_long;
    use std::os::unix::process::CommandExt;
    use std::process::{Command, exit};
    use std::ptr::null_mut;

    use libc::{c_int, pid_t, user_regs_struct};

    /// Where strings lie in the memory of the program.
    struct Page {
        at: u64,
        used: u64,
    }

    fn check(result: c_long) -> c_long {
        assert!(result != -1, "ptrace: {}", std::io::Error::last_os_error());
        result
    }

    fn registers(pid: pid_t) -> user_regs_struct {
        let mut found = std::mem::MaybeUninit::uninit();
        // SAFETY: the kernel fills in the registers of a stopped child.
        unsafe {
            check(libc::ptrace(libc::PTRACE_GETREGS, pid, null_mut::<u8>(), found.as_mut_ptr()));
            found.assume_init()
        }
    }

    fn set_registers(pid: pid_t, to: &user_regs_struct) {
        // SAFETY: the kernel reads them.
        check(unsafe { libc::ptrace(libc::PTRACE_SETREGS, pid, null_mut::<u8>(), to) });
    }

    /// Lets it go on, as far as `how` says, and waits until it stops.
    fn go_on(pid: pid_t, how: u32, signal: c_int) -> c_int {
        let mut status = 0;
        // SAFETY: it is a stopped child of ours.
        unsafe {
            check(libc::ptrace(how, pid, null_mut::<u8>(), c_long::from(signal)));
            assert_eq!(libc::waitpid(pid, &raw mut status, 0), pid);
        }
        status
    }

    /// Until it has called seccomp(2) with success.
    fn until_shut(pid: pid_t) {
        let (mut enters, mut signal) = (true, 0);
        loop {
            let status = go_on(pid, libc::PTRACE_SYSCALL, signal);
            if libc::WIFEXITED(status) || libc::WIFSIGNALED(status) {
                exit(77);
            }
            signal = libc::WSTOPSIG(status);
            if signal != libc::SIGTRAP | 0x80 {
                continue;
            }
            signal = 0;
            let now = registers(pid);
            let is_seccomp = now.orig_rax == u64::try_from(libc::SYS_seccomp).unwrap();
            // SECCOMP_SET_MODE_FILTER; others ask what the kernel knows.
            if !enters && is_seccomp && now.rdi == 1 && now.rax == 0 {
                return;
            }
            enters = !enters;
        }
    }

    /// Makes a call where it has stopped, at the end of one.
    fn call(pid: pid_t, number: u64, arguments: [u64; 6]) -> i64 {
        let before = registers(pid);
        let [rdi, rsi, rdx, r10, r8, r9] = arguments;
        let rip = before.rip - 2;
        let then = user_regs_struct {
            rip,
            rax: number,
            orig_rax: u64::MAX,
            rdi,
            rsi,
            rdx,
            r10,
            r8,
            r9,
            ..before
        };
        set_registers(pid, &then);
        let status = go_on(pid, libc::PTRACE_SINGLESTEP, 0);
        assert!(libc::WIFSTOPPED(status), "it ended by a call: {number}");
        let result = registers(pid).rax.cast_signed();
        set_registers(pid, &before);
        result
    }

    impl Page {
        fn put(&mut self, pid: pid_t, bytes: &[u8]) -> u64 {
            let at = self.at + self.used;
            for (place, word) in (at..).step_by(8).zip(bytes.chunks(8)) {
                let mut whole = [0; 8];
                whole[..word.len()].copy_from_slice(word);
                let word = c_long::from_ne_bytes(whole);
                // SAFETY: it writes into the program's memory.
                check(unsafe { libc::ptrace(libc::PTRACE_POKEDATA, pid, place, word) });
            }
            self.used += u64::try_from(bytes.len()).unwrap().next_multiple_of(8);
            at
        }
    }

    fn argument(pid: pid_t, page: &mut Page, word: &str, last: i64) -> u64 {
        if let Some(text) = word.strip_prefix("s:") {
            return page.put(pid, &[text.as_bytes(), &[0]].concat());
        }
        if let Some(digits) = word.strip_prefix("b:") {
            let pairs = digits.as_bytes().chunks(2);
            let bytes =
                pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16));
            return page.put(pid, &bytes.map(Result::unwrap).collect::<Vec<_>>());
        }
        if word == "r" {
            last.cast_unsigned()
        } else {
            word.parse::<i64>().unwrap().cast_unsigned()
        }
    }

    /// The version of landlock; negative where there is none.
    fn landlock() -> c_long {
        // SAFETY: with this flag, LANDLOCK_CREATE_RULESET_VERSION, it looks at nothing else.
        unsafe {
            libc::syscall(libc::SYS_landlock_create_ruleset, null_mut::<u8>(), 0_usize, 1_u32)
        }
    }

    pub(crate) fn main() {
        if landlock() < 6 {
            exit(77);
        }
        let words: Vec<_> = std::env::args_os().skip(1).collect();
        let calls = std::fs::read_to_string(&words[0]).unwrap();
        let mut command = Command::new(&words[1]);
        command.args(&words[2..]).stdin(std::process::Stdio::null());
        command.stdout(std::process::Stdio::null());
        // SAFETY: one call, which touches no memory.
        unsafe {
            command.pre_exec(|| {
                libc::ptrace(libc::PTRACE_TRACEME);
                Ok(())
            });
        }
        let mut child = command.spawn().unwrap();
        let pid = pid_t::try_from(child.id()).unwrap();
        let mut status = 0;
        // SAFETY: a child of ours, which stops at exec.
        unsafe {
            assert_eq!(libc::waitpid(pid, &raw mut status, 0), pid);
            let options = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_EXITKILL;
            check(libc::ptrace(
                libc::PTRACE_SETOPTIONS,
                pid,
                null_mut::<u8>(),
                c_long::from(options),
            ));
        }
        until_shut(pid);
        let map = u64::try_from(libc::SYS_mmap).unwrap();
        let flags = u64::try_from(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS).unwrap();
        let at = call(pid, map, [0, 1 << 16, 3, flags, u64::MAX, 0]);
        let mut page = Page { at: at.cast_unsigned(), used: 0 };
        let mut last = 0;
        for line in calls.lines() {
            let mut words = line.split('\t');
            let name = words.next().unwrap();
            let number = words.next().unwrap().parse().unwrap();
            let mut arguments = [0; 6];
            page.used = 0;
            for (place, word) in arguments.iter_mut().zip(words) {
                *place = argument(pid, &mut page, word, last);
            }
            last = call(pid, number, arguments);
            println!("{name}\t{last}");
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

fn main() {
    #[cfg(target_arch = "x86_64")]
    tracer::main();
    #[cfg(not(target_arch = "x86_64"))]
    std::process::exit(77);
}
