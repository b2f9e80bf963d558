//! Recognises a tar archive where a disk is expected: an OVA is one, and its bytes are no disk.
//!
//! It reads the headers of the first members, each of which is checked by its sum, and nothing
//! else.

use device::{Edge, Result as Answered};

/// Bytes of a header, and of what the members are padded to.
const BLOCK: usize = 512;
/// Members that are looked at.
const MEMBERS: usize = 32;
/// How the names of disks end, and the format of each.
const DISKS: &[(&str, &str)] =
    &[("vmdk", "vmdk"), ("vhd", "vpc"), ("vhdx", "vhdx"), ("vdi", "vdi"), ("qcow2", "qcow2")];

/// A tar archive.
#[derive(Debug)]
pub(crate) struct Archive {
    /// It has a description of a virtual machine.
    has_machine: bool,
    /// The first member that is a disk, and its format.
    disk: Option<(String, &'static str)>,
}

impl Archive {
    /// Whether it is an OVA.
    pub(crate) fn is_appliance(&self) -> bool {
        self.has_machine
    }

    /// What it is, in words.
    pub(crate) fn words(&self) -> &'static str {
        if self.has_machine { "an OVA (a tar archive)" } else { "a tar archive" }
    }

    /// How the disk in the archive at `path` is read.
    pub(crate) fn cure(&self, path: &str) -> String {
        // The name comes from the archive: one that a shell could take for something else is not
        // shown.
        match &self.disk {
            Some((name, format)) => format!(
                "`tar -xf {path} {name}` unpacks the disk in it, and `diskferry convert -f {format} \
                 '{path}?entry={name}' TARGET` reads it where it is"
            ),
            None => format!("`tar -xf {path}` unpacks it"),
        }
    }
}

/// The archive that `disk` is, if it is one.
pub(crate) fn look(disk: &Edge) -> Answered<Option<Archive>> {
    let size = disk.info().size;
    let mut found = Archive { has_machine: false, disk: None };
    let (mut at, mut head) = (0_u64, [0_u8; BLOCK]);
    for member in 0..MEMBERS {
        let mut next = None;
        if size.saturating_sub(at) >= BLOCK as u64 {
            disk.read(&mut head, at)?;
            next = disk::tar_member(&head);
        }
        let Some((name, length)) = next else {
            if member == 0 {
                return Ok(None);
            }
            break;
        };
        let name = String::from_utf8_lossy(&name).into_owned();
        let end = name.rsplit_once('.').map(|(_, end)| end.to_ascii_lowercase());
        let end = end.unwrap_or_default();
        found.has_machine |= end == "ovf";
        let format = DISKS.iter().find(|(known, _)| *known == end).map(|(_, format)| *format);
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-+/".contains(c);
        if let (None, Some(format)) = (&found.disk, format)
            && name.chars().all(is_plain)
            && !name.starts_with('-')
        {
            found.disk = Some((name, format));
        }
        let Some(next) = length.checked_next_multiple_of(BLOCK as u64) else { break };
        let Some(next) = at.checked_add(BLOCK as u64).and_then(|at| at.checked_add(next)) else {
            break;
        };
        at = next;
    }
    Ok(Some(found))
}

#[cfg(test)]
mod tests {
    use runtime::Context;

    use super::*;

    fn member(name: &str, length: usize) -> Vec<u8> {
        let mut head = vec![0; BLOCK];
        head[..name.len()].copy_from_slice(name.as_bytes());
        head[124..135].copy_from_slice(format!("{length:011o}").as_bytes());
        head[257..262].copy_from_slice(b"ustar");
        head[148..156].fill(b' ');
        let sum: u64 = head.iter().map(|b| u64::from(*b)).sum();
        head[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        head.resize(BLOCK + length.next_multiple_of(BLOCK), 7);
        head
    }

    fn found(bytes: &[u8]) -> Option<Archive> {
        let disk = disk::Named::parse(&format!("memory:{}", bytes.len())).unwrap();
        let options = disk::OpenOptions::read_write();
        let opened =
            disk::open(&disk, &disk::Stack::default(), &options, &Context::default()).unwrap();
        opened.edge.write(bytes, 0, false).unwrap();
        look(&opened.edge).unwrap()
    }

    #[test]
    fn an_ova_is_known_by_its_members_and_the_disk_in_it_is_named() {
        let ova = [member("vm.ovf", 700), member("vm-disk1.vmdk", 1), member("b.vmdk", 0)].concat();
        let ova = found(&ova).unwrap();
        assert!(ova.is_appliance());
        assert!(ova.cure("a.ova").contains("tar -xf a.ova vm-disk1.vmdk"), "{}", ova.cure("a.ova"));
        let tar = found(&member("notes.txt", 3)).unwrap();
        assert!(!tar.is_appliance() && tar.disk.is_none());
        // A name that a shell would not take as it is.
        assert!(found(&member("$(reboot).vmdk", 0)).unwrap().disk.is_none());
    }

    #[test]
    fn what_only_looks_like_an_archive_is_none() {
        let mut broken = member("vm.ovf", 0);
        broken[0] ^= 1;
        assert!(found(&broken).is_none());
        assert!(found(&[0; 1024]).is_none() && found(b"ustar").is_none());
        // Lengths at the end of numbers, and members that are cut off.
        let mut long = member("vm.ovf", 0);
        long[124..136].copy_from_slice(b"777777777777");
        assert!(found(&long).is_none(), "its sum is wrong now");
        assert!(found(&member("vm.ovf", 4096)[..600]).unwrap().is_appliance());
    }
}
