//! The header of a new image.

use device::{Error, Result};

use super::NewImage;
use super::layout::{Layout, Shape};
use super::options::CreateOptions;
use crate::qcow2::header::{
    BACKING_NAME_MAX, Compression, Encryption, Header, LENGTH_V2, LENGTH_V3, MAGIC, autoclear,
    compatible, extension, incompatible,
};
use crate::qcow2::region::Region;

/// The table of feature names, for programs that do not know them: kind (0: incompatible, 1:
/// compatible, 2: autoclear), bit, name.
const FEATURES: &[(u8, u8, &str)] = &[
    (0, 0, "dirty bit"),
    (0, 1, "corrupt bit"),
    (0, 2, "external data file"),
    (0, 3, "compression type"),
    (0, 4, "extended L2 entries"),
    (1, 0, "lazy refcounts"),
    (2, 0, "bitmaps"),
    (2, 1, "raw external data"),
];
/// Bytes of the entry of a feature name, with kind and bit.
const FEATURE: usize = 48;

/// Refuses names that do not fit in the first cluster.
pub(super) fn check(options: &CreateOptions, shape: Shape) -> Result<()> {
    let most = usize::try_from(BACKING_NAME_MAX).unwrap_or(0);
    let header = heading(options, shape, None);
    if header.backing.as_ref().is_some_and(|name| device::text::path(name).as_os_str().len() > most)
    {
        return Err(Error::invalid(format!("backing_file: longer than {most} bytes")));
    }
    if header.encode().len() as u64 > shape.geometry.cluster() {
        let action = "the names of backing image and data file exceed the first cluster";
        return Err(Error::invalid(format!("{action}; choose a greater cluster_size")));
    }
    Ok(())
}

pub(super) fn heading(options: &CreateOptions, shape: Shape, layout: Option<Layout>) -> Header {
    let bit = |on: bool, bit: u64| if on { bit } else { 0 };
    let at = |cluster: u64| cluster << shape.geometry.cluster_bits;
    let v3 = options.version >= 3;
    let names = v3 && shape.geometry.cluster() >= 4096;
    let features = FEATURES.iter().filter(|_| names);
    Header {
        version: options.version,
        cluster_bits: options.cluster_bits,
        size: shape.size,
        encryption: options.encryption.as_ref().map_or(Encryption::None, |_| Encryption::Luks),
        // Behind the header of the image, whatever else there is.
        encryption_header: options
            .encryption
            .as_ref()
            .map(|new| Region { offset: shape.geometry.cluster(), len: new.len }),
        l1_offset: layout.map_or(0, |l| at(l.l1)),
        l1_entries: u32::try_from(shape.l1_entries()).unwrap_or(u32::MAX),
        refcount_table_offset: layout.map_or(0, |l| at(l.table)),
        refcount_table_clusters: layout
            .map_or(0, |l| u32::try_from(l.refcounts.table).unwrap_or(u32::MAX)),
        refcount_order: options.refcount_order,
        incompatible: bit(options.data_file.is_some(), incompatible::DATA_FILE)
            | bit(options.compression != Compression::Zlib, incompatible::COMPRESSION)
            | bit(options.extended, incompatible::EXTENDED_L2),
        compatible: bit(options.lazy_refcounts, compatible::LAZY_REFCOUNTS),
        autoclear: bit(options.data_file_raw, autoclear::DATA_FILE_RAW),
        length: if v3 { LENGTH_V3 + 8 } else { LENGTH_V2 },
        compression: options.compression,
        backing: options.backing.clone(),
        backing_format: options.backing_format.clone(),
        data_file: options.data_file.clone(),
        features: features.map(|(kind, bit, name)| (*kind, *bit, (*name).to_owned())).collect(),
        ..Header::default()
    }
}

impl NewImage {
    pub(super) fn heading(&self, layout: Layout) -> Header {
        heading(&self.options, self.shape, Some(layout))
    }
}

impl Header {
    /// The header as stored at the start of an image, with its extensions and the name of the
    /// backing image.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut extensions = Vec::new();
        self.encode_extensions(&mut extensions);
        let name = self.backing.as_ref().map(|name| bytes_of(name)).unwrap_or_default();
        let behind = u64::from(self.length) + extensions.len() as u64;
        let name_len = u32::try_from(name.len()).unwrap_or(u32::MAX);
        bytes.extend(MAGIC.to_be_bytes());
        bytes.extend(self.version.to_be_bytes());
        bytes.extend(if name.is_empty() { 0 } else { behind }.to_be_bytes());
        bytes.extend(name_len.to_be_bytes());
        bytes.extend(self.cluster_bits.to_be_bytes());
        bytes.extend(self.size.to_be_bytes());
        bytes.extend(self.encryption.number().to_be_bytes());
        bytes.extend(self.l1_entries.to_be_bytes());
        bytes.extend(self.l1_offset.to_be_bytes());
        bytes.extend(self.refcount_table_offset.to_be_bytes());
        bytes.extend(self.refcount_table_clusters.to_be_bytes());
        bytes.extend(0u32.to_be_bytes());
        bytes.extend(0u64.to_be_bytes());
        if self.version >= 3 {
            bytes.extend(self.incompatible.to_be_bytes());
            bytes.extend(self.compatible.to_be_bytes());
            bytes.extend(self.autoclear.to_be_bytes());
            bytes.extend(self.refcount_order.to_be_bytes());
            bytes.extend(self.length.to_be_bytes());
            bytes.extend([self.compression.number(), 0, 0, 0, 0, 0, 0, 0]);
        }
        bytes.extend(extensions);
        bytes.extend(name);
        bytes
    }

    fn encode_extensions(&self, out: &mut Vec<u8>) {
        let mut add = |kind: u32, data: &[u8]| {
            out.extend(kind.to_be_bytes());
            out.extend(u32::try_from(data.len()).unwrap_or(u32::MAX).to_be_bytes());
            out.extend(data);
            out.resize(out.len().next_multiple_of(8), 0);
        };
        if let Some(format) = &self.backing_format {
            add(extension::BACKING_FORMAT, &bytes_of(format));
        }
        if let Some(Region { offset, len }) = self.encryption_header {
            add(extension::ENCRYPTION, &[offset.to_be_bytes(), len.to_be_bytes()].concat());
        }
        if let Some(name) = &self.data_file {
            add(extension::DATA_FILE, &bytes_of(name));
        }
        if !self.features.is_empty() {
            let mut names = Vec::new();
            for (kind, bit, name) in &self.features {
                let end = names.len() + FEATURE;
                names.extend([*kind, *bit]);
                names.extend(name.as_bytes());
                names.resize(end, 0);
            }
            add(extension::FEATURE_NAMES, &names);
        }
        add(extension::END, &[]);
    }
}

/// A name as on the file system: it may have bytes that are not UTF-8.
fn bytes_of(name: &str) -> Vec<u8> {
    std::os::unix::ffi::OsStringExt::into_vec(device::text::path(name).into_os_string())
}
