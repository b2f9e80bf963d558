//! Where the bytes of a disk are kept, as far as its name tells: to see that two names mean one
//! disk before anything is written.
//!
//! Disks that it calls the same are the same. Others may still be: two servers of one file, or a
//! file system that shows one file twice, cannot be recognised here.

use std::net::SocketAddr;

/// Where the bytes of a disk are kept.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Storage {
    /// Made or computed when the disk is opened: no other program can name it.
    Own,
    /// On files and block devices: all the places that the same bytes can be reached at.
    Spans(Vec<StoredRange>),
    /// At a server.
    Export(StoredExport),
    /// It is not known.
    Unknown,
}

/// A range of a file or block device, in bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct StoredRange {
    pub(crate) node: Node,
    pub(crate) start: u64,
    /// One after the last byte.
    pub(crate) end: u64,
    /// No other node leads to these bytes: a file of a local file system that has one inode for
    /// each, or local hardware.
    pub(crate) alone: bool,
}

/// A file or block device.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Node {
    /// By its device and inode number.
    File(u64, u64),
    /// By its device number.
    Disk(u64),
}

/// An export of a server.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct StoredExport {
    pub(crate) server: StoredServer,
    pub(crate) name: String,
}

/// A server, by its address.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum StoredServer {
    /// Any of these addresses.
    Tcp(Vec<SocketAddr>),
    /// A socket, by its device and inode number.
    Unix(u64, u64),
    /// An abstract Unix socket.
    Abstract(Vec<u8>),
    /// A virtual machine's socket: context id and port.
    Vsock(u32, u32),
}

/// The relation of two disks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Relation {
    /// They share no bytes, and that is proven.
    Apart,
    /// They are one disk, or one begins where the other does: the same bytes at the same offsets.
    Same,
    /// They share bytes, which lie at different offsets.
    Overlapping,
    /// It is not known.
    Unknown,
}

impl Relation {
    /// What is known of a disk of two parts, with this relation and that: the nearer of them.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Apart, one) => one,
            (Self::Unknown, one) if one != Self::Apart => one,
            (one, _) => one,
        }
    }
}

impl Storage {
    /// Its relation to another.
    #[must_use]
    pub fn relation(&self, other: &Self) -> Relation {
        match (self, other) {
            (Self::Own, _) | (_, Self::Own) => Relation::Apart,
            (Self::Spans(a), Self::Spans(b)) => {
                let shared = a.iter().find_map(|a| {
                    let b = b.iter().find(|b| a.meets(b))?;
                    Some(if a.start == b.start { Relation::Same } else { Relation::Overlapping })
                });
                let apart = || is_alone(a) && is_alone(b) && !(has_disk(a) && has_disk(b));
                shared.unwrap_or_else(|| if apart() { Relation::Apart } else { Relation::Unknown })
            }
            (Self::Export(a), Self::Export(b)) if a.is(b) => Relation::Same,
            _ => Relation::Unknown,
        }
    }
}

/// Whether all nodes are known that lead to the bytes.
fn is_alone(spans: &[StoredRange]) -> bool {
    !spans.is_empty() && spans.iter().all(|span| span.alone)
}

/// Whether any is a block device: two of those may be two paths to one disk.
fn has_disk(spans: &[StoredRange]) -> bool {
    spans.iter().any(|span| matches!(span.node, Node::Disk(_)))
}

impl StoredRange {
    fn meets(&self, other: &Self) -> bool {
        self.node == other.node && self.start < other.end && other.start < self.end
    }
}

impl StoredExport {
    fn is(&self, other: &Self) -> bool {
        let server = match (&self.server, &other.server) {
            (StoredServer::Tcp(a), StoredServer::Tcp(b)) => a.iter().any(|a| b.contains(a)),
            (a, b) => a == b,
        };
        server && self.name == other.name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(node: Node, start: u64, end: u64) -> StoredRange {
        StoredRange { node, start, end, alone: false }
    }

    #[test]
    fn bytes_are_the_same_where_they_meet_on_one_node() {
        let (file, disk) = (Node::File(1, 2), Node::Disk(7));
        let whole = Storage::Spans(vec![span(file, 0, u64::MAX)]);
        let loops = |start, end| {
            Storage::Spans(vec![span(disk, start, end), span(file, start + 100, end + 100)])
        };
        assert_eq!(whole.relation(&whole), Relation::Same);
        assert_eq!(whole.relation(&loops(0, 50)), Relation::Overlapping);
        assert_eq!(loops(0, 50).relation(&loops(0, 50)), Relation::Same);
        assert_eq!(loops(0, 50).relation(&loops(50, 90)), Relation::Unknown, "side by side");
        assert_eq!(loops(0, 50).relation(&loops(49, 90)), Relation::Overlapping);
        assert_eq!(whole.relation(&Storage::Own), Relation::Apart);
        assert_eq!(whole.relation(&Storage::Unknown), Relation::Unknown);
    }

    #[test]
    fn what_is_not_known_to_be_all_there_is_is_never_apart() {
        let of = |node, alone| {
            Storage::Spans(vec![StoredRange { node, start: 0, end: u64::MAX, alone }])
        };
        let (file, other, disk, twin) =
            (Node::File(1, 2), Node::File(1, 3), Node::Disk(7), Node::Disk(8));
        assert_eq!(of(file, true).relation(&of(other, true)), Relation::Apart);
        assert_eq!(of(file, true).relation(&of(other, false)), Relation::Unknown, "on FUSE, say");
        assert_eq!(of(file, false).relation(&of(other, true)), Relation::Unknown);
        assert_eq!(of(file, true).relation(&of(file, true)), Relation::Same);
        assert_eq!(of(file, true).relation(&of(disk, true)), Relation::Apart);
        assert_eq!(of(file, true).relation(&of(disk, false)), Relation::Unknown, "/dev/nbd0, say");
        assert_eq!(of(disk, true).relation(&of(twin, true)), Relation::Unknown, "two paths to it");
    }

    #[test]
    fn an_export_is_known_by_any_address_of_its_server() {
        let at = |addresses: &[&str], name: &str| {
            let addresses = addresses.iter().map(|a| a.parse().unwrap()).collect();
            Storage::Export(StoredExport {
                server: StoredServer::Tcp(addresses),
                name: name.into(),
            })
        };
        let a = at(&["127.0.0.1:10809", "[::1]:10809"], "x");
        assert_eq!(a.relation(&at(&["[::1]:10809"], "x")), Relation::Same);
        assert_eq!(a.relation(&at(&["[::1]:10809"], "y")), Relation::Unknown);
        assert_eq!(a.relation(&at(&["[::1]:10810"], "x")), Relation::Unknown);
    }
}
