//! Lays out an image cluster by cluster, as no program would, and knows its bytes.

use device::{Abilities, Edge, ErrorKind, Info, Operation, Simple};
use runtime::WorkPool;
use trial::{Fate, TestDevice};

use super::super::entry::{COPIED, Geometry, SUBCLUSTERS, ZERO};
use super::super::header::{MAGIC, incompatible};

/// The kind of a cluster.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Kind {
    Absent,
    Zero,
    ZeroAt,
    Plain,
    Packed,
    /// With extended entries: the bits of allocated subclusters, and of those that are zero.
    Parts(u32, u32),
}

/// How an image is laid out.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    pub(super) version: u32,
    pub(super) cluster_bits: u32,
    pub(super) extended: bool,
    pub(super) zstd: bool,
    pub(super) refcount_order: u32,
    pub(super) size: u64,
    pub(super) clusters: Vec<Kind>,
    /// The seed of the order in which clusters get their places; 0: one after the other.
    pub(super) mix: u64,
    /// Bytes of a backing image.
    pub(super) backing: Option<Vec<u8>>,
}

/// An image, and the bytes of its disk.
pub(super) struct Laid {
    pub(super) container: Vec<u8>,
    pub(super) bytes: Vec<u8>,
}

struct Writer {
    container: Vec<u8>,
    counts: Vec<u64>,
    cluster: usize,
}

impl Writer {
    /// Room for `n` clusters.
    fn room(&mut self, n: usize) -> usize {
        let at = self.container.len().next_multiple_of(self.cluster);
        self.container.resize(at + n * self.cluster, 0);
        self.count(at, n * self.cluster);
        at
    }

    fn count(&mut self, at: usize, len: usize) {
        let last = (at + len - 1) / self.cluster;
        self.counts.resize(self.counts.len().max(last + 1), 0);
        self.counts[at / self.cluster..=last].iter_mut().for_each(|count| *count += 1);
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        let end = self.container.len().max(at + bytes.len());
        self.container.resize(end, 0);
        self.container[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

/// Bytes that show their place, and that compress.
pub(super) fn content(at: u64) -> u8 {
    u8::try_from(((at / 7 * 31) ^ (at >> 9)) % 251).unwrap() | 1
}

fn pack(bytes: &[u8], zstd: bool) -> Vec<u8> {
    if zstd {
        let (a, b) = bytes.split_at(bytes.len() / 3);
        return [a, b].iter().flat_map(|part| zstd::bulk::compress(part, 1).unwrap()).collect();
    }
    let mut codec = libdeflater::Compressor::new(libdeflater::CompressionLvl::default());
    let mut packed = vec![0; codec.deflate_compress_bound(bytes.len())];
    let len = codec.deflate_compress(bytes, &mut packed).unwrap();
    packed.truncate(len);
    packed
}

impl Layout {
    pub(super) fn geometry(&self) -> Geometry {
        Geometry {
            cluster_bits: self.cluster_bits,
            extended: self.extended,
            zeroes: self.version >= 3,
            data_file: false,
        }
    }

    /// Lays it out.
    pub(super) fn lay(&self) -> Laid {
        let geometry = self.geometry();
        let cluster = usize::try_from(geometry.cluster()).unwrap();
        let size = usize::try_from(self.size).unwrap();
        let mut bytes = vec![0; size];
        if let Some(backing) = &self.backing {
            let there = backing.len().min(size);
            bytes[..there].copy_from_slice(&backing[..there]);
        }
        let mut out = Writer { container: Vec::new(), counts: Vec::new(), cluster };
        out.room(1);
        let tables = usize::try_from(geometry.l1_entries(self.size)).unwrap();
        let l1 = out.room((tables * 8).div_ceil(cluster).max(1));
        let mut l2 = vec![0; tables];
        let (mut packed_at, mut order) = (0, (0..self.clusters.len()).collect::<Vec<_>>());
        order.sort_by_key(|i| (*i as u64).wrapping_mul(self.mix | 1).wrapping_mul(self.mix) >> 7);
        for i in order {
            let (start, kind) = (i * cluster, self.clusters[i]);
            if start >= size || kind == Kind::Absent {
                continue;
            }
            let (entry, parts) = self.lay_cluster(&mut out, &mut packed_at, start, kind);
            if entry == 0 && parts == 0 {
                continue;
            }
            let per_table = usize::try_from(geometry.l2_entries()).unwrap();
            let (table, within) = (i / per_table, i % per_table);
            if l2[table] == 0 {
                l2[table] = out.room(1);
            }
            let at = l2[table] + within * usize::try_from(geometry.entry_len()).unwrap();
            out.put(at, &entry.to_be_bytes());
            if self.extended {
                out.put(at + 8, &parts.to_be_bytes());
            }
            self.fill(&mut bytes, start, kind);
        }
        for (i, table) in l2.iter().enumerate().filter(|(_, table)| **table != 0) {
            out.put(l1 + i * 8, &(*table as u64 | COPIED).to_be_bytes());
        }
        let (refcounts, clusters) = self.lay_refcounts(&mut out);
        self.lay_header(&mut out, (l1, tables), (refcounts, clusters));
        Laid { container: out.container, bytes }
    }

    /// The entry of a cluster that begins at `start` of the disk, with its second half.
    fn lay_cluster(
        &self,
        out: &mut Writer,
        packed_at: &mut usize,
        start: usize,
        kind: Kind,
    ) -> (u64, u64) {
        let cluster = out.cluster;
        let whole: Vec<u8> = (start..start + cluster).map(|at| content(at as u64)).collect();
        let all = u64::from(u32::MAX);
        match kind {
            Kind::Absent => (0, 0),
            Kind::Zero if self.extended => (0, all << 32),
            Kind::Zero => (ZERO, 0),
            Kind::ZeroAt => {
                let at = out.room(1);
                out.put(at, &whole);
                if self.extended {
                    (at as u64 | COPIED, all << 32)
                } else {
                    (at as u64 | COPIED | ZERO, 0)
                }
            }
            Kind::Plain => {
                let at = out.room(1);
                out.put(at, &whole);
                (at as u64 | COPIED, if self.extended { all } else { 0 })
            }
            Kind::Packed => {
                let packed = pack(&whole, self.zstd);
                // After the last compressed cluster, at any byte, if nothing was put there since.
                let fits = *packed_at != 0 && *packed_at == out.container.len();
                let at =
                    if fits { *packed_at } else { out.container.len().next_multiple_of(cluster) };
                let entry = self.geometry().packed(at as u64, packed.len() as u64);
                let Some(entry) = entry else {
                    return self.lay_cluster(out, packed_at, start, Kind::Plain);
                };
                out.put(at, &packed);
                let end = (at + packed.len()).next_multiple_of(512);
                out.count(at, end - at);
                *packed_at = out.container.len();
                (entry, 0)
            }
            Kind::Parts(here, zero) => {
                let at = if here == 0 { 0 } else { out.room(1) };
                if here != 0 {
                    out.put(at, &whole);
                }
                let copied = if here == 0 { 0 } else { COPIED };
                (at as u64 | copied, u64::from(zero) << 32 | u64::from(here))
            }
        }
    }

    /// The effect of a cluster on the bytes of the disk.
    fn fill(&self, bytes: &mut [u8], start: usize, kind: Kind) {
        let cluster = usize::try_from(self.geometry().cluster()).unwrap();
        let end = (start + cluster).min(bytes.len());
        for (at, byte) in (start..end).zip(&mut bytes[start..end]) {
            let part = (at - start) / (cluster / SUBCLUSTERS as usize).max(1);
            *byte = match kind {
                Kind::Absent => *byte,
                Kind::Zero | Kind::ZeroAt => 0,
                Kind::Plain | Kind::Packed => content(at as u64),
                Kind::Parts(here, _) if here >> part & 1 != 0 => content(at as u64),
                Kind::Parts(_, zero) if zero >> part & 1 != 0 => 0,
                Kind::Parts(..) => *byte,
            };
        }
    }

    /// Refcount table and blocks: the place of the table, and its clusters.
    fn lay_refcounts(&self, out: &mut Writer) -> (usize, usize) {
        let order = self.refcount_order;
        let in_block = (out.cluster * 8) >> order;
        // The blocks count themselves.
        let mut blocks = 1;
        while (out.container.len().div_ceil(out.cluster) + 1 + blocks).div_ceil(in_block) > blocks {
            blocks += 1;
        }
        let clusters = (blocks * 8).div_ceil(out.cluster);
        let table = out.room(clusters);
        let first = out.room(blocks);
        for block in 0..blocks {
            let at = (first + block * out.cluster) as u64;
            out.put(table + block * 8, &at.to_be_bytes());
        }
        for (i, count) in out.counts.clone().into_iter().enumerate() {
            let bit = i << order;
            let at = first + bit / 8;
            match order {
                0..=2 => out.container[at] |= u8::try_from(count << (bit % 8)).unwrap(),
                3 => out.container[at] = u8::try_from(count).unwrap(),
                _ => {
                    let len = 1 << (order - 3);
                    out.put(at, &count.to_be_bytes()[8 - len..]);
                }
            }
        }
        (table, clusters)
    }

    fn lay_header(&self, out: &mut Writer, l1: (usize, usize), refcounts: (usize, usize)) {
        let mut header = Vec::new();
        let number = |n: usize| u32::try_from(n).unwrap().to_be_bytes();
        let (name_at, name_len) = if self.backing.is_some() { (400u64, 7u32) } else { (0, 0) };
        header.extend(MAGIC.to_be_bytes());
        header.extend(self.version.to_be_bytes());
        header.extend(name_at.to_be_bytes());
        header.extend(name_len.to_be_bytes());
        header.extend(self.cluster_bits.to_be_bytes());
        header.extend(self.size.to_be_bytes());
        header.extend([0; 4]);
        header.extend(number(l1.1));
        header.extend((l1.0 as u64).to_be_bytes());
        header.extend((refcounts.0 as u64).to_be_bytes());
        header.extend(number(refcounts.1));
        header.extend([0; 12]);
        if self.version >= 3 {
            let zstd = if self.zstd { incompatible::COMPRESSION } else { 0 };
            let extended = if self.extended { incompatible::EXTENDED_L2 } else { 0 };
            header.extend((zstd | extended).to_be_bytes());
            header.extend([0; 16]);
            header.extend(self.refcount_order.to_be_bytes());
            header.extend(112u32.to_be_bytes());
            header.extend([u8::from(self.zstd), 0, 0, 0, 0, 0, 0, 0]);
        }
        out.put(0, &header);
        if self.backing.is_some() {
            out.put(400, b"backing");
        }
    }
}

/// An edge to bytes that are available at once, or only later.
pub(super) fn edge(bytes: Vec<u8>, waits: bool, pool: &WorkPool) -> Edge {
    Simple::edge(disk(bytes, waits), pool)
}

/// Bytes as a disk.
pub(super) fn disk(bytes: Vec<u8>, waits: bool) -> TestDevice {
    let abilities = Abilities { extents: true, ..Abilities::READ };
    let info = Info { abilities, ..Info::new("bytes", bytes.len() as u64) };
    let disk = TestDevice::blank(info).hooked(move |operation| match operation {
        Operation::Read { offset, mut buffer } => {
            let at = usize::try_from(offset).unwrap();
            let end = at + buffer.len();
            buffer.copy_from_slice(&bytes[at..end]);
            Fate::done(Operation::Read { offset, buffer })
        }
        Operation::Write { .. } => Fate::fail(ErrorKind::Unsupported),
        other => Fate::Pass(other),
    });
    if waits { disk.waiting() } else { disk }
}
