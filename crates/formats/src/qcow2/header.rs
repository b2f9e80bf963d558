//! The header in the first cluster, and its checks.
//!
//! Every count, length and offset is checked here against a cap and against the size of the
//! container, before it is used to allocate or read. Numbers are big-endian.

use device::{Edge, Error, Result};

use super::corrupt;
use super::entry::Geometry;
use super::region::{Region, disjoint};
use crate::kit::fields::foreign;
use crate::kit::numbers::{be16, be32, be64, text};

/// `QFI` and 0xfb.
pub(super) const MAGIC: u32 = 0x5146_49fb;
/// Clusters are of 2^9 to 2^21 bytes, of at least 2^14 with extended L2 entries.
pub(super) const CLUSTER_BITS: std::ops::RangeInclusive<u32> = 9..=21;
pub(super) const EXTENDED_CLUSTER_BITS: u32 = 14;
/// Bytes of a header of version 2, and of the shortest of version 3.
pub(super) const LENGTH_V2: u32 = 72;
pub(super) const LENGTH_V3: u32 = 104;
/// The offset of the compression type, in headers that are longer than that.
pub(super) const COMPRESSION_AT: usize = 104;
/// Where the header has the bytes of the disk; the refcount table's offset and clusters; features;
/// its length.
pub(super) const SIZE_AT: u64 = 24;
pub(super) const REFCOUNT_TABLE_AT: u64 = 48;
pub(super) const INCOMPATIBLE_AT: u64 = 72;
pub(super) const AUTOCLEAR_AT: u64 = 88;
pub(super) const LENGTH_AT: u64 = 100;
/// 2^order bits are a refcount; without a field (version 2) it is 4.
pub(super) const REFCOUNT_ORDER_V2: u32 = 4;
pub(super) const REFCOUNT_ORDER_MAX: u32 = 6;

// QEMU's limits: QEMU opens nothing beyond them.
pub(super) const L1_MAX: u64 = 32 << 20;
pub(super) const REFCOUNT_TABLE_MAX: u64 = 8 << 20;
pub(super) const SNAPSHOTS_MAX: u32 = 65_536;
pub(super) const BITMAPS_MAX: u32 = 65_535;
pub(super) const BITMAP_DIRECTORY_MAX: u64 = 64 << 20;
/// The longest name of a backing image, in bytes.
pub(super) const BACKING_NAME_MAX: u32 = 1023;
/// The most feature names to keep.
const FEATURES_MAX: usize = 256;

/// Incompatible features: a reader must know them.
pub(super) mod incompatible {
    /// Refcounts may be wrong; reads are right.
    pub(in super::super) const DIRTY: u64 = 1 << 0;
    /// The image is corrupt and must not be written.
    pub(in super::super) const CORRUPT: u64 = 1 << 1;
    /// The data are in a file of their own.
    pub(in super::super) const DATA_FILE: u64 = 1 << 2;
    /// The compression type is not deflate.
    pub(in super::super) const COMPRESSION: u64 = 1 << 3;
    /// Entries of 16 bytes, with subclusters.
    pub(in super::super) const EXTENDED_L2: u64 = 1 << 4;
    /// The ones known here.
    pub(in super::super) const KNOWN: u64 = DIRTY | CORRUPT | DATA_FILE | COMPRESSION | EXTENDED_L2;
}

/// Compatible features: a reader need not know them.
pub(super) mod compatible {
    /// Refcounts are written lazily; see `DIRTY`.
    pub(in super::super) const LAZY_REFCOUNTS: u64 = 1 << 0;
}

/// Features that a program that does not know them clears when it writes.
pub(super) mod autoclear {
    /// The bitmaps are consistent with the data.
    pub(in super::super) const BITMAPS: u64 = 1 << 0;
    /// The data file is a valid raw disk.
    pub(in super::super) const DATA_FILE_RAW: u64 = 1 << 1;
}

/// Header extensions.
pub(super) mod extension {
    pub(in super::super) const END: u32 = 0;
    pub(in super::super) const BACKING_FORMAT: u32 = 0xe279_2aca;
    pub(in super::super) const FEATURE_NAMES: u32 = 0x6803_f857;
    pub(in super::super) const BITMAPS: u32 = 0x2385_2875;
    pub(in super::super) const ENCRYPTION: u32 = 0x0537_be77;
    pub(in super::super) const DATA_FILE: u32 = 0x4441_5441;
}

/// How clusters are compressed.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) enum Compression {
    /// Raw deflate; writers keep to a window of 4 KiB.
    #[default]
    Zlib,
    /// Zstandard, one or more frames.
    Zstd,
}

impl Compression {
    /// As `compression_type=` has it.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Zlib => "zlib",
            Self::Zstd => "zstd",
        }
    }

    /// As the header has it.
    pub(super) fn number(self) -> u8 {
        match self {
            Self::Zlib => 0,
            Self::Zstd => 1,
        }
    }
}

/// How the disk is encrypted.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) enum Encryption {
    #[default]
    None,
    /// The old one.
    Aes,
    Luks,
}

impl Encryption {
    /// As the header has it.
    pub(super) fn number(self) -> u32 {
        match self {
            Self::None => 0,
            Self::Aes => 1,
            Self::Luks => 2,
        }
    }
}

/// Where the directory of the bitmaps is.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct BitmapDirectory {
    pub(super) count: u32,
    /// Bytes.
    pub(super) len: u64,
    pub(super) offset: u64,
}

/// The header of an image, decoded and checked.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct Header {
    /// 2 or 3.
    pub(super) version: u32,
    pub(super) cluster_bits: u32,
    /// Bytes of the disk.
    pub(super) size: u64,
    pub(super) encryption: Encryption,
    pub(super) l1_offset: u64,
    /// Entries of the L1 table.
    pub(super) l1_entries: u32,
    pub(super) refcount_table_offset: u64,
    pub(super) refcount_table_clusters: u32,
    pub(super) refcount_order: u32,
    pub(super) snapshot_count: u32,
    pub(super) snapshots_offset: u64,
    pub(super) incompatible: u64,
    pub(super) compatible: u64,
    pub(super) autoclear: u64,
    /// Bytes of the header, without its extensions.
    pub(super) length: u32,
    pub(super) compression: Compression,
    pub(super) backing: Option<String>,
    pub(super) backing_format: Option<String>,
    pub(super) data_file: Option<String>,
    pub(super) bitmaps: Option<BitmapDirectory>,
    /// Where the header of the encryption is, and its length.
    pub(super) encryption_header: Option<Region>,
    /// Names of features: the kind (0: incompatible), the bit, the name.
    pub(super) features: Vec<(u8, u8, String)>,
}

impl Header {
    /// Reads and checks it.
    ///
    /// # Errors
    /// It cannot be read, is no header, or is invalid.
    pub(super) fn read(container: &Edge) -> Result<Self> {
        let size = container.info().size;
        let mut first = vec![0; bounded(size, 512)];
        container.read(&mut first, 0)?;
        let bits = be32(&first, 20).filter(|_| be32(&first, 0) == Some(MAGIC));
        let bits =
            bits.ok_or_else(|| corrupt("no qcow2 header; is it an image of another format?"))?;
        check_cluster_bits(bits)?;
        let mut cluster = vec![0; bounded(size, 1 << bits)];
        container.read(&mut cluster, 0)?;
        Self::decode(&cluster, size)
    }

    /// Decodes the first cluster of a container of `size` bytes.
    pub(super) fn decode(cluster: &[u8], size: u64) -> Result<Self> {
        let mut header = Self::decode_fixed(cluster).ok_or_else(short)??;
        check_cluster_bits(header.cluster_bits)?;
        let name = be64(cluster, 8).zip(be32(cluster, 16)).ok_or_else(short)?;
        header.decode_names(cluster, name)?;
        header.check(size)?;
        Ok(header)
    }

    fn decode_fixed(bytes: &[u8]) -> Option<Result<Self>> {
        let (version, bits) = (be32(bytes, 4)?, be32(bytes, 20)?);
        let encryption = match be32(bytes, 32)? {
            0 => Encryption::None,
            1 => Encryption::Aes,
            2 => Encryption::Luks,
            other => return Some(Err(corrupt(format!("there is no encryption {other}")))),
        };
        let mut header = Self {
            version,
            cluster_bits: bits,
            // QEMU counts whole sectors; what is behind the last one is no part of the disk.
            size: be64(bytes, 24)? & !511,
            encryption,
            l1_entries: be32(bytes, 36)?,
            l1_offset: be64(bytes, 40)?,
            refcount_table_offset: be64(bytes, 48)?,
            refcount_table_clusters: be32(bytes, 56)?,
            snapshot_count: be32(bytes, 60)?,
            snapshots_offset: be64(bytes, 64)?,
            refcount_order: REFCOUNT_ORDER_V2,
            length: LENGTH_V2,
            ..Self::default()
        };
        match version {
            2 => return Some(Ok(header)),
            3 => {}
            other => {
                return Some(Err(foreign(format!("qcow2 of version {other}"))));
            }
        }
        header.incompatible = be64(bytes, 72)?;
        header.compatible = be64(bytes, 80)?;
        header.autoclear = be64(bytes, 88)?;
        header.refcount_order = be32(bytes, 96)?;
        header.length = be32(bytes, 100)?;
        let at = COMPRESSION_AT;
        let compression = if header.length > LENGTH_V3 { *bytes.get(at)? } else { 0 };
        header.compression = match compression {
            0 => Compression::Zlib,
            1 => Compression::Zstd,
            other => {
                let action = format!("read clusters that are compressed in way {other}");
                return Some(Err(foreign(action)));
            }
        };
        Some(Ok(header))
    }

    /// Extensions, and the name of the backing image after them.
    fn decode_names(&mut self, cluster: &[u8], (offset, len): (u64, u32)) -> Result<()> {
        let length = usize::try_from(self.length).map_err(|_| short())?;
        let mut end = cluster.len();
        if offset != 0 {
            let start = usize::try_from(offset).ok().filter(|start| *start >= length);
            let name = start.and_then(|start| cluster.get(start..));
            let name = name.and_then(|rest| rest.get(..usize::try_from(len).ok()?));
            if len > BACKING_NAME_MAX || name.is_none() {
                return Err(corrupt("the name of the backing image is not in the first cluster"));
            }
            end = start.unwrap_or(end);
            self.backing = name.filter(|name| !name.is_empty()).map(text);
        }
        let mut rest = cluster.get(length..end).ok_or_else(short)?;
        while let (Some(kind), Some(len)) = (be32(rest, 0), be32(rest, 4)) {
            if kind == extension::END {
                break;
            }
            let len = usize::try_from(len).unwrap_or(usize::MAX);
            let data = rest.get(8..).and_then(|rest| rest.get(..len));
            let data = data.ok_or_else(|| corrupt("a header extension is too long"))?;
            self.decode_extension(kind, data)?;
            // Extensions are padded to 8 bytes, but the last one need not be.
            let whole = len.saturating_add(8).next_multiple_of(8);
            rest = rest.get(whole..).unwrap_or(&[]);
        }
        Ok(())
    }

    fn decode_extension(&mut self, kind: u32, data: &[u8]) -> Result<()> {
        match kind {
            extension::BACKING_FORMAT => self.backing_format = Some(text(data)),
            extension::DATA_FILE => self.data_file = Some(text(data)),
            extension::FEATURE_NAMES => {
                let names = data.chunks_exact(48).take(FEATURES_MAX).filter_map(|feature| {
                    let (head, name) = feature.split_first_chunk::<2>()?;
                    let len = name.iter().position(|b| *b == 0).unwrap_or(name.len());
                    Some((head[0], head[1], text(name.get(..len)?)))
                });
                self.features = names.collect();
            }
            extension::BITMAPS => {
                let read = || {
                    let (count, len, offset) = (be32(data, 0)?, be64(data, 8)?, be64(data, 16)?);
                    Some(BitmapDirectory { count, len, offset })
                };
                let directory = read().filter(|_| data.len() == 24);
                let directory =
                    directory.ok_or_else(|| corrupt("the extension of the bitmaps is broken"))?;
                self.bitmaps = Some(directory);
            }
            extension::ENCRYPTION => {
                let region = be64(data, 0).zip(be64(data, 8));
                self.encryption_header = region.map(|(offset, len)| Region { offset, len });
            }
            _ => {}
        }
        Ok(())
    }

    /// Refuses invalid values, whatever the image is opened for.
    fn check(&self, size: u64) -> Result<()> {
        let aligned = self.length.is_multiple_of(8);
        if self.length < LENGTH_V2 || self.version == 3 && (self.length < LENGTH_V3 || !aligned) {
            return Err(corrupt(format!("the header has {} bytes", self.length)));
        }
        if self.refcount_order > REFCOUNT_ORDER_MAX {
            return Err(corrupt(format!("refcounts of 2^{} bits", self.refcount_order)));
        }
        if self.has(incompatible::EXTENDED_L2) && self.cluster_bits < EXTENDED_CLUSTER_BITS {
            return Err(corrupt("extended L2 entries in clusters of less than 16 KiB"));
        }
        if self.has(incompatible::COMPRESSION) != (self.compression != Compression::Zlib) {
            return Err(corrupt("the kind of compression is not what its feature bit says"));
        }
        if self.size > i64::MAX.unsigned_abs() {
            return Err(corrupt(format!("a disk of {} bytes", self.size)));
        }
        let covered = u128::from(self.l1_entries) * u128::from(self.geometry().l2_covers());
        if covered < u128::from(self.size) {
            return Err(corrupt("the L1 table is too short for the disk"));
        }
        disjoint(&self.regions(size)?, self.geometry().cluster())
    }

    /// The parts that the header locates; each must be in the container and begin at a cluster.
    pub(super) fn regions(&self, size: u64) -> Result<Vec<(&'static str, Region)>> {
        let cluster = self.geometry().cluster();
        let mut regions = vec![("header", Region { offset: 0, len: cluster })];
        let mut add = |what, offset, len: u64, most: u64| -> Result<()> {
            if len > 0 {
                let region = Region { offset, len };
                region.check(what, size, cluster, most)?;
                regions.push((what, region));
            }
            Ok(())
        };
        add("L1 table", self.l1_offset, u64::from(self.l1_entries) * 8, L1_MAX)?;
        let refcounts = u64::from(self.refcount_table_clusters).saturating_mul(cluster);
        add("refcount table", self.refcount_table_offset, refcounts, REFCOUNT_TABLE_MAX)?;
        if self.snapshot_count > SNAPSHOTS_MAX {
            return Err(corrupt(format!("{} snapshots", self.snapshot_count)));
        }
        // Each has at least its fixed part; their ends are known only after reading.
        let least = u64::from(self.snapshot_count) * u64::from(super::snapshot::FIXED);
        add("snapshot table", self.snapshots_offset, least, u64::MAX)?;
        if let Some(bitmaps) = self.usable_bitmaps() {
            if bitmaps.count > BITMAPS_MAX {
                return Err(corrupt(format!("{} bitmaps", bitmaps.count)));
            }
            add("bitmap directory", bitmaps.offset, bitmaps.len, BITMAP_DIRECTORY_MAX)?;
        }
        Ok(regions)
    }

    /// Refuses an image with unknown incompatible features.
    ///
    /// # Errors
    /// With their names, as the image has them.
    pub(super) fn check_features(&self) -> Result<()> {
        let unknown = self.unknown_features();
        if unknown.is_empty() { Ok(()) } else { Err(crate::unknown_features(&unknown)) }
    }

    /// The unknown incompatible features, by the names that the image gives.
    pub(super) fn unknown_features(&self) -> Vec<String> {
        let unknown = self.incompatible & !incompatible::KNOWN;
        let bits = (0..64u8).filter(|bit| unknown >> bit & 1 != 0);
        let name = |bit: u8| {
            let mut named = self.features.iter().filter(|(kind, at, _)| *kind == 0 && *at == bit);
            let name = named.next().map(|(_, _, name)| device::text::shown(name).into_owned());
            name.unwrap_or_else(|| format!("incompatible feature {bit}"))
        };
        bits.map(name).collect()
    }

    /// Whether it has an incompatible feature.
    pub(super) fn has(&self, feature: u64) -> bool {
        self.incompatible & feature != 0
    }

    /// The directory of bitmaps, if they are reliable.
    pub(super) fn usable_bitmaps(&self) -> Option<BitmapDirectory> {
        self.bitmaps.filter(|b| self.autoclear & autoclear::BITMAPS != 0 && b.count > 0)
    }

    /// Whether the data file, if there is one, is a valid raw disk.
    pub(super) fn is_data_file_raw(&self) -> bool {
        self.has(incompatible::DATA_FILE) && self.autoclear & autoclear::DATA_FILE_RAW != 0
    }

    /// The layout of its tables.
    pub(super) fn geometry(&self) -> Geometry {
        Geometry {
            cluster_bits: self.cluster_bits,
            extended: self.has(incompatible::EXTENDED_L2),
            zeroes: self.version >= 3,
            data_file: self.has(incompatible::DATA_FILE),
        }
    }
}

fn check_cluster_bits(bits: u32) -> Result<()> {
    if CLUSTER_BITS.contains(&bits) {
        return Ok(());
    }
    Err(corrupt(format!("clusters of 2^{bits} bytes are not possible")))
}

/// At most `most` of `size` bytes.
fn bounded(size: u64, most: u64) -> usize {
    usize::try_from(size.min(most)).unwrap_or(0)
}

fn short() -> Error {
    corrupt("the header is cut off")
}

/// Whether these bytes begin like an image of version 2 or later.
pub(super) fn begins(bytes: &[u8]) -> bool {
    be32(bytes, 0) == Some(MAGIC) && be16(bytes, 4) == Some(0) && be16(bytes, 6) >= Some(2)
}
