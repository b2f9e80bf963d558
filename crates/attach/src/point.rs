//! Where a disk is to be attached, as users write it: `FILE`, `fuse:FILE?key=value`, `/dev/nbd0`,
//! `nbd:/dev/nbd0`, `/dev/ublkb0`, `ublk:/dev/ublkb0`, or `vhost-user:SOCKET?key=value`.

use std::path::{Path, PathBuf};

use device::{Error, Name, Result, values};

use crate::disk::{OF_DEVICES, OF_FILES, OF_UBLK};

/// Where a disk is to be attached.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Point {
    /// The file, device or socket that the disk appears as. Absolute.
    pub path: PathBuf,
    /// As what.
    pub kind: PointKind,
}

/// What a disk appears as.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum PointKind {
    /// A file.
    File(PointOptions),
    /// A block device of the kernel's NBD client.
    Device,
    /// A block device of its own driver, ublk.
    Ublk,
    /// A socket of vhost-user-blk, which virtual machines open.
    Socket(SocketOptions),
}

/// How a disk appears at a socket.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct SocketOptions {
    /// Memory of machines is taken, too, that its owner can shorten.
    pub is_unsealed: bool,
    /// The serial number that machines see, at most 20 bytes; empty: the name of the export.
    pub serial: String,
}

/// Bytes that a serial number may have (virtio 1.2, 5.2.6: `VIRTIO_BLK_T_GET_ID`).
pub(crate) const SERIAL: usize = 20;

/// How a disk appears as a file.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct PointOptions {
    /// Reads may come from the page cache of the mount, even if another client changed the disk.
    pub cached: bool,
    /// Other users may open it, as far as its mode and owner allow.
    pub allow_other: bool,
}

/// What the name of a socket begins with.
const OF_SOCKETS: &str = "vhost-user";

const KEYS: [&str; 2] = ["cache", "allow-other"];
const OF_SOCKET: [&str; 2] = ["unsealed", "serial"];

impl Point {
    /// Reads a point.
    ///
    /// # Errors
    /// It is empty, of another kind, or has unknown parameters.
    pub fn parse(text: &str) -> Result<Self> {
        let (path, options) = match Name::parse(text)? {
            Name::Path(path) => (path, None),
            Name::Device { kind, arg, params } if kind == OF_DEVICES => {
                params.check(&[])?;
                (arg, Some(PointKind::Device))
            }
            Name::Device { kind, arg, params } if kind == OF_UBLK => {
                params.check(&[])?;
                (arg, Some(PointKind::Ublk))
            }
            Name::Device { kind, arg, params } if kind == OF_FILES => {
                params.check(&KEYS)?;
                params.check_once(&[])?;
                let flag = |key| values::flag(&params, key).map(|flag| flag == Some(true));
                let options = PointOptions { cached: flag(KEYS[0])?, allow_other: flag(KEYS[1])? };
                (arg, Some(PointKind::File(options)))
            }
            Name::Device { kind, arg, params } if kind == OF_SOCKETS => {
                params.check(&OF_SOCKET)?;
                params.check_once(&[])?;
                let is_unsealed = values::flag(&params, OF_SOCKET[0])? == Some(true);
                let serial = params.get(OF_SOCKET[1]).unwrap_or_default().to_owned();
                if serial.len() > SERIAL || !serial.bytes().all(|byte| byte.is_ascii_graphic()) {
                    let what = format!("attach: serial: at most {SERIAL} letters and digits");
                    return Err(Error::invalid(what));
                }
                (arg, Some(PointKind::Socket(SocketOptions { is_unsealed, serial })))
            }
            Name::Device { kind, .. } => {
                let what = format!(
                    "attach: there is no `{kind}:`; write a file, fuse:FILE, /dev/nbd0, \
                     /dev/ublkb0 or vhost-user:SOCKET"
                );
                return Err(Error::invalid(what));
            }
            Name::Uri { .. } => {
                return Err(Error::invalid("attach: name a file, not a URI"));
            }
        };
        if path.is_empty() {
            return Err(Error::invalid("attach: the name of the file is empty"));
        }
        let absolute = std::path::absolute(Path::new(&path));
        let path = absolute.map_err(|e| Error::os("find the working directory", e))?;
        let by_path = if crate::kernel::index_of(&path).is_some() {
            Some(PointKind::Device)
        } else {
            crate::ublk::number_of(&path).map(|_| PointKind::Ublk)
        };
        let kind = match (options, by_path) {
            (Some(kind @ (PointKind::Device | PointKind::Ublk)), by_path) => {
                if by_path.as_ref() != Some(&kind) {
                    let what = match kind {
                        PointKind::Ublk => {
                            "attach: name a block device of ublk: /dev/ublkb0, /dev/ublkb1, …"
                        }
                        _ => "attach: name a block device: /dev/nbd0, /dev/nbd1, …",
                    };
                    return Err(Error::invalid(what).on(path.display()));
                }
                kind
            }
            (Some(kind @ PointKind::Socket(_)), _) | (None, Some(kind)) => kind,
            (given, _) => {
                let mut options = match given {
                    Some(PointKind::File(options)) => options,
                    _ => PointOptions::default(),
                };
                // Root may let others in; it is the mode of the file that keeps them out.
                options.allow_other |= rustix::process::geteuid().is_root();
                PointKind::File(options)
            }
        };
        Ok(Self { path, kind })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_is_a_file_with_options_and_nothing_else() {
        let point = Point::parse("fuse:/mnt/disk?cache=true").unwrap();
        assert_eq!(point.path, Path::new("/mnt/disk"));
        assert!(matches!(point.kind, PointKind::File(PointOptions { cached: true, .. })));
        assert!(Point::parse("disk.img").unwrap().path.is_absolute());
        for device in ["/dev/nbd7", "nbd:/dev/nbd0"] {
            assert_eq!(Point::parse(device).unwrap().kind, PointKind::Device);
        }
        for device in ["/dev/ublkb3", "ublk:/dev/ublkb0"] {
            assert_eq!(Point::parse(device).unwrap().kind, PointKind::Ublk);
        }
        let socket = Point::parse("vhost-user:vm.sock?unsealed=true&serial=disk-7").unwrap();
        let options = SocketOptions { is_unsealed: true, serial: "disk-7".into() };
        assert_eq!(socket.kind, PointKind::Socket(options));
        assert!(socket.path.is_absolute());
        for wrong in [
            "",
            "vhost-user:",
            "vhost-user:/x?sealed=1",
            "vhost-user:/x?serial=012345678901234567890",
            "vhost-user:/x?serial=a b",
            "fuse:",
            "ublk:0",
            "nbd://host",
            "fuse:/x?cashe=1",
            "fuse:/x?cache=2",
            "nbd:/tmp/x",
            "nbd:/dev/ublkb0",
            "ublk:/dev/nbd0",
            "ublk:/dev/ublkc0",
        ] {
            assert!(Point::parse(wrong).is_err(), "{wrong}");
        }
    }
}
