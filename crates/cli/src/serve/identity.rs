//! Switching to another user and group once the sockets are open (-u, -g).
//!
//! It is done while this process has one thread: later threads inherit its identity, and none is
//! left behind with more rights. Names are looked up in /etc/passwd and /etc/group.

use std::path::Path;

use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_gid, set_thread_groups, set_thread_uid};

use crate::failure::Failure;

/// Where users are.
const PASSWD: &str = "/etc/passwd";
/// Where groups are.
const GROUP: &str = "/etc/group";

/// The user and group to switch to, if given.
#[derive(Debug, Default)]
pub(super) struct RunAs {
    user: Option<(String, u32)>,
    group: Option<(String, u32)>,
}

impl RunAs {
    /// Looks both up.
    pub(super) fn resolve(user: Option<&str>, group: Option<&str>) -> Result<Self, Failure> {
        let find = |option, name: &str, table| {
            look_up(name, Path::new(table)).map(|id| (name.to_owned(), id)).ok_or_else(|| {
                Failure::usage(format!(
                    "{option}: `{name}` is not in {table}; numbers are accepted too"
                ))
            })
        };
        let user = user.map(|name| find("--user", name, PASSWD)).transpose()?;
        let mut group = group.map(|name| find("--group", name, GROUP)).transpose()?;
        if let (Some((name, id)), None) = (&user, &group) {
            // A process that gives up its user must not keep its group.
            let own = group_of(*id, Path::new(PASSWD)).ok_or_else(|| {
                let hint = "its own group is not known; add --group";
                Failure::usage(format!("--user {name}: {hint}"))
            })?;
            group = Some((own.to_string(), own));
        }
        Ok(Self { user, group })
    }

    /// Whether there is a user or group to switch to.
    pub(super) fn is_given(&self) -> bool {
        self.user.is_some() || self.group.is_some()
    }

    /// The user to switch to, by number.
    pub(super) fn user(&self) -> Option<u32> {
        self.user.as_ref().map(|(_, id)| *id)
    }

    /// Gives a private directory and the socket in it to the new user, so that they can be used and
    /// removed later.
    pub(super) fn own(&self, socket: &Path) -> Result<(), Failure> {
        let (uid, gid) = (self.user.as_ref().map(|u| u.1), self.group.as_ref().map(|g| g.1));
        if !self.is_given() {
            return Ok(());
        }
        for path in [Some(socket), socket.parent()].into_iter().flatten() {
            std::os::unix::fs::chown(path, uid, gid).map_err(|e| {
                self.refused(&format!("change the owner of {}", path.display()), &e)
            })?;
        }
        Ok(())
    }

    /// Switches for good: groups first, because the new user may not change them. `captive`: a
    /// command will run beside the server.
    pub(super) fn assume(&self, captive: bool) -> Result<(), Failure> {
        if !self.is_given() {
            return Ok(());
        }
        alone()?;
        if !captive {
            // Programs that the server starts (a filter's script) get no more rights than it has.
            // The command of --run is the user's own.
            let kept = rustix::thread::set_no_new_privs(true);
            kept.map_err(|e| self.refused("set no_new_privs", &e.into()))?;
        }
        let groups: Vec<Gid> = self.group.iter().map(|(_, id)| Gid::from_raw(*id)).collect();
        let say = |action: &str, e: rustix::io::Errno| self.refused(action, &e.into());
        set_thread_groups(&groups).map_err(|e| say("drop other groups", e))?;
        if let Some((_, id)) = &self.group {
            set_thread_gid(Gid::from_raw(*id)).map_err(|e| say("change the group", e))?;
        }
        if let Some((_, id)) = &self.user {
            set_thread_uid(Uid::from_raw(*id)).map_err(|e| say("change the user", e))?;
        }
        Ok(())
    }

    fn refused(&self, action: &str, e: &std::io::Error) -> Failure {
        let user = self.user.iter().map(|(name, _)| format!("--user {name}"));
        let group = self.group.iter().map(|(name, _)| format!("--group {name}"));
        let options = user.chain(group).collect::<Vec<_>>().join(" ");
        Failure::new(format!("{options}: {action}: {e} (this takes root)"))
    }
}

/// The numbers of `USER`, `USER:GROUP` or `:GROUP`, for `--socket-owner`.
pub(super) fn owner(text: &str) -> Result<(Option<u32>, Option<u32>), Failure> {
    let wrong = |why: String| Failure::usage(format!("--socket-owner {text}: {why}"));
    let (user, group) = match text.split_once(':') {
        None => (text, None),
        Some((user, group)) => (user, Some(group)),
    };
    if user.is_empty() && group.is_none_or(str::is_empty) || group == Some("") {
        return Err(wrong("must be USER, USER:GROUP or :GROUP".to_owned()));
    }
    let find = |name: &str, table: &str| {
        let unknown = || wrong(format!("`{name}` is not in {table}; numbers are accepted too"));
        look_up(name, Path::new(table)).ok_or_else(unknown)
    };
    let user = Some(user).filter(|user| !user.is_empty());
    Ok((
        user.map(|name| find(name, PASSWD)).transpose()?,
        group.map(|name| find(name, GROUP)).transpose()?,
    ))
}

/// Linux changes the identity of a thread; only with a single thread is that the process.
fn alone() -> Result<(), Failure> {
    let threads = std::fs::read_dir("/proc/self/task").map(Iterator::count);
    match threads {
        Ok(1) => Ok(()),
        Ok(n) => Err(Failure::new(format!("--user, --group: too late, there are {n} threads"))),
        Err(e) => Err(Failure::new(format!("--user, --group: /proc/self/task: {e}"))),
    }
}

/// The group in the first line of a user.
fn group_of(user: u32, table: &Path) -> Option<u32> {
    let text = std::fs::read_to_string(table).ok()?;
    text.lines().find_map(|line| {
        let mut fields = line.split(':').skip(2);
        let is_theirs = fields.next()?.parse() == Ok(user);
        is_theirs.then(|| fields.next()?.parse().ok()).flatten()
    })
}

/// A number, or the third field of the line that begins with the name.
fn look_up(name: &str, table: &Path) -> Option<u32> {
    // The largest number means "leave it" to the system.
    let number = |text: &str| text.parse::<u32>().ok().filter(|id| *id != u32::MAX);
    if !name.is_empty() && name.bytes().all(|b| b.is_ascii_digit()) {
        return number(name);
    }
    let text = std::fs::read_to_string(table).ok()?;
    text.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(name)).then(|| number(fields.nth(1)?)).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_the_group_of_its_line() {
        let table = std::env::temp_dir().join(format!("diskferry-passwd-{}", std::process::id()));
        std::fs::write(&table, "a:x:1:10::/:\nbroken\nb:x:2:20::/:\nc:x:2:30::/:\n").unwrap();
        assert_eq!([1, 2, 3].map(|id| group_of(id, &table)), [Some(10), Some(20), None]);
        std::fs::remove_file(&table).unwrap();
    }

    #[test]
    fn an_owner_is_a_user_a_group_or_both() {
        assert_eq!(owner("root").unwrap(), (Some(0), None));
        assert_eq!(owner("7:root").unwrap(), (Some(7), Some(0)));
        assert_eq!(owner(":8").unwrap(), (None, Some(8)));
        for wrong in ["", ":", "root:", "no such user", "root:no such group", "0:0:0"] {
            assert!(owner(wrong).unwrap_err().line().contains("--socket-owner"), "{wrong}");
        }
    }

    #[test]
    fn users_and_groups_are_found_by_name_and_number() {
        let passwd = Path::new("/etc/passwd");
        assert_eq!(look_up("root", passwd), Some(0));
        assert_eq!(look_up("root", Path::new("/etc/group")), Some(0));
        assert_eq!(look_up("65534", passwd), Some(65534));
        for unknown in ["", "ro", "root:", "-1", "4294967295", "4294967296", "no such user"] {
            assert_eq!(look_up(unknown, passwd), None, "{unknown}");
        }
    }
}
