//! Where the blocks of a file lie: trees of extents (ext4), or blocks of pointers (ext2, ext3).

use device::{Error, ErrorKind, Fault, Result};
use formats::crc32c;

use super::broken;
use super::volume::{Inode, Volume, le16, le32, wide};

/// The file has a tree of extents.
const EXTENTS: u32 = 0x8_0000;
/// It is compressed, encrypted, or in its inode.
const STRANGE: [(u32, &str); 3] =
    [(0x4, "compressed"), (0x800, "encrypted"), (0x1000_0000, "in its inode, not in blocks")];
const TREE_MAGIC: u16 = 0xf30a;
const DEPTH_MAX: u16 = 5;
/// The most runs of one file, and the most blocks that are read to find them.
const RUNS_MAX: usize = 1 << 20;
const NODES_MAX: usize = 1 << 17;

/// Bytes of a file that lie together.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Run {
    /// Their offset in the file.
    pub(super) start: u64,
    pub(super) len: u64,
    /// Their offset on the disk.
    pub(super) place: u64,
}

impl Run {
    pub(super) fn end(&self) -> u64 {
        self.start + self.len
    }
}

/// The runs of a file, in order; what lies in none reads as zeroes.
pub(super) fn of(volume: &Volume<'_>, file: &Inode) -> Result<Vec<Run>> {
    for (flag, how) in STRANGE {
        if file.flags() & flag != 0 {
            return Err(Error::unfit(format!("the file is {how}")));
        }
    }
    let size = file.size();
    if i64::try_from(size).is_err() {
        return Err(broken("has a file of an impossible size"));
    }
    let mut found = Found { volume, file, size, runs: Vec::new(), nodes: 0 };
    if file.flags() & EXTENTS != 0 {
        found.tree(file.root(), None)?;
    } else {
        found.pointers()?;
    }
    Ok(found.runs)
}

struct Found<'a> {
    volume: &'a Volume<'a>,
    file: &'a Inode,
    size: u64,
    runs: Vec<Run>,
    /// Blocks that were read.
    nodes: usize,
}

impl Found<'_> {
    fn load(&mut self, number: u64) -> Result<Vec<u8>> {
        self.nodes += 1;
        if self.nodes > NODES_MAX {
            return Err(too_many());
        }
        self.volume.load(number)
    }

    /// Adds blocks, whose numbers in the file grow from one to the next.
    fn add(&mut self, first: u64, count: u64, number: u64) -> Result<()> {
        let block = self.volume.block;
        let place = self.volume.place(number, count)?;
        // Both are below 2^32 blocks of 2^16 bytes at most.
        let (start, len) = (first * block, count * block);
        if start >= self.size {
            return Ok(());
        }
        let len = len.min(self.size - start);
        match self.runs.last_mut() {
            Some(last) if last.end() > start => {
                return Err(broken("has a file with blocks in two places"));
            }
            Some(last) if last.end() == start && last.place + last.len == place => last.len += len,
            _ => self.runs.push(Run { start, len, place }),
        }
        if self.runs.len() > RUNS_MAX { Err(too_many()) } else { Ok(()) }
    }

    /// A node of the tree, and all below it; `depth`: how deep it must be.
    fn tree(&mut self, node: &[u8], depth: Option<u16>) -> Result<()> {
        let wrong = || broken("has a file whose tree of extents is broken");
        let (count, own) = (usize::from(le16(node, 2)), le16(node, 6));
        let is_right = le16(node, 0) == TREE_MAGIC
            && own <= DEPTH_MAX
            && depth.is_none_or(|depth| own == depth)
            && count <= node.len().saturating_sub(12) / 12;
        if !is_right {
            return Err(wrong());
        }
        let entries = node.get(12..).unwrap_or_default().chunks_exact(12).take(count);
        for entry in entries {
            let first = u64::from(le32(entry, 0));
            if own == 0 {
                let len = le16(entry, 4);
                let number = wide(le32(entry, 8), u32::from(le16(entry, 6)));
                // What was allocated and never written reads as zeroes.
                match len {
                    0 => return Err(wrong()),
                    1..=0x8000 => self.add(first, u64::from(len), number)?,
                    _ => {}
                }
                continue;
            }
            let number = wide(le32(entry, 4), u32::from(le16(entry, 8)));
            let below = self.load(number)?;
            self.check(&below)?;
            self.tree(&below, Some(own - 1))?;
        }
        Ok(())
    }

    /// The checksum behind the entries of a node.
    fn check(&self, node: &[u8]) -> Result<()> {
        let Some(seed) = self.volume.seed else { return Ok(()) };
        let at = 12 + 12 * usize::from(le16(node, 4));
        let sum = crc32c(self.file.seed(seed), node.get(..at).unwrap_or_default());
        let is_right = at + 4 <= node.len() && sum == le32(node, at);
        is_right
            .then_some(())
            .ok_or_else(|| broken("has a wrong checksum in the tree of extents of the file"))
    }

    /// Twelve blocks, and one that leads to blocks, and one to those, and one to those.
    fn pointers(&mut self) -> Result<()> {
        let root = self.file.root().to_vec();
        let mut first = 0;
        for (i, pointer) in root.chunks_exact(4).enumerate() {
            let depth = u32::try_from(i.saturating_sub(11)).unwrap_or(0);
            let pointer = le32(pointer, 0);
            self.pointed(pointer, first, depth)?;
            first += self.span(depth);
        }
        Ok(())
    }

    /// Blocks of a file that a pointer of this depth leads to.
    fn span(&self, depth: u32) -> u64 {
        (self.volume.block / 4).pow(depth)
    }

    fn pointed(&mut self, pointer: u32, first: u64, depth: u32) -> Result<()> {
        // A pointer to nothing is a hole. What lies behind the end is not read.
        if pointer == 0 || first >= self.size.div_ceil(self.volume.block) {
            return Ok(());
        }
        if depth == 0 {
            return self.add(first, 1, u64::from(pointer));
        }
        let below = self.load(u64::from(pointer))?;
        let span = self.span(depth - 1);
        for (n, pointer) in (0..).zip(below.chunks_exact(4)) {
            self.pointed(le32(pointer, 0), first + n * span, depth - 1)?;
        }
        Ok(())
    }
}

fn too_many() -> Error {
    let action =
        format!("the file lies in more than {RUNS_MAX} pieces, or {NODES_MAX} blocks say where");
    Error::new(ErrorKind::Limit, Fault::File, action)
}
