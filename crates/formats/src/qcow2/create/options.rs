//! `-o`: qemu-img's names, values and rules, and our own.

use device::{Error, Param, Params, Result, param, values};

use super::encoder::CompressionLevel;
use crate::luks::inside::{self, NewEncryption};
use crate::qcow2::header::{
    CLUSTER_BITS, Compression, EXTENDED_CLUSTER_BITS, REFCOUNT_ORDER_MAX, REFCOUNT_ORDER_V2,
};

/// The options of `-o`.
pub(crate) const OPTIONS: &[Param] = &{
    let [a, b, c, d, e, f, g, h, i, j, k, y] = inside::OPTIONS;
    let [l, m, n, o, p, q, r, s, t, u, v, w, x] = PLAIN;
    [l, m, n, o, p, q, r, s, t, u, v, w, x, a, b, c, d, e, f, g, h, i, j, k, y]
};

const PLAIN: [Param; 13] = [
    param("compat", "0.10|1.1", "version of the format (default 1.1); also v2 and v3"),
    param(
        "cluster_size",
        "SIZE",
        "bytes of a cluster, a power of two from 512 to 2M (default 64K)",
    ),
    param(
        "preallocation",
        "off|metadata|falloc|full",
        "what is allocated from the beginning: nothing (default), all tables, room for all clusters, or \
         zeroes in all of them",
    ),
    param(
        "lazy_refcounts",
        "on|off",
        "refcounts are written late, and rebuilt after a crash (default off)",
    ),
    param("refcount_bits", "N", "bits of a refcount, a power of two from 1 to 64 (default 16)"),
    param("compression_type", "zlib|zstd", "how clusters are compressed (default zlib)"),
    param("compression_level", "fast|N", LEVELS),
    param("extended_l2", "on|off", "entries with subclusters (default off)"),
    param("data_file", "FILE", "a file of its own for the bytes of the disk"),
    param("data_file_raw", "on|off", "the data file is a raw image of the disk (default off)"),
    param("backing_file", "FILE", "what is read where nothing was written"),
    param("backing_fmt", "FORMAT", "the format of the backing image, which must be named"),
    // Declared, so that it is refused with a reason.
    param("encryption", "off", "not made: use encrypt.format"),
];

const LEVELS: &str = "how hard: zlib 1 to 9 (default 4), zstd 1 to 22 (default a little below 2), or fast; with -c. zlib's fast has a \
     window of 32K: QEMU and all that unpack a cluster at once read it, a stream decoder that \
     keeps 4K does not";
/// Preallocation.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) enum Qcow2Preallocation {
    #[default]
    Off,
    /// All tables: each cluster has a place.
    Metadata,
    /// Also space in the file system.
    Falloc,
    /// Also written.
    Full,
}

/// The values of `-o` and `-c`.
#[derive(Clone, Debug)]
pub(super) struct CreateOptions {
    /// 2 or 3.
    pub(super) version: u32,
    pub(super) cluster_bits: u32,
    pub(super) preallocation: Qcow2Preallocation,
    pub(super) lazy_refcounts: bool,
    pub(super) refcount_order: u32,
    pub(super) compression: Compression,
    /// The compression level, if clusters are compressed.
    pub(super) level: Option<CompressionLevel>,
    pub(super) extended: bool,
    pub(super) data_file: Option<String>,
    pub(super) data_file_raw: bool,
    pub(super) backing: Option<String>,
    pub(super) backing_format: Option<String>,
    pub(super) encryption: Option<NewEncryption>,
}

impl CreateOptions {
    /// # Errors
    /// A value is invalid, or two conflict.
    pub(super) fn read(params: &Params, compress: bool) -> Result<Self> {
        if values::on_off(params, "encryption")?.unwrap_or_default() {
            let action = "encryption: create an image with the old encryption; \
                          encrypt.format=luks is supported";
            return Err(Error::unsupported(action));
        }
        let version = match values::choice(params, "compat", &["1.1", "v3", "0.10", "v2"])? {
            None | Some(0 | 1) => 3,
            Some(_) => 2,
        };
        let words = ["off", "metadata", "falloc", "full"];
        let mut preallocation = match values::choice(params, "preallocation", &words)? {
            None | Some(0) => Qcow2Preallocation::Off,
            Some(1) => Qcow2Preallocation::Metadata,
            Some(2) => Qcow2Preallocation::Falloc,
            Some(_) => Qcow2Preallocation::Full,
        };
        let compression = match values::choice(params, "compression_type", &["zlib", "zstd"])? {
            None | Some(0) => Compression::Zlib,
            Some(_) => Compression::Zstd,
        };
        let flag = |key| values::on_off(params, key).map(Option::unwrap_or_default);
        let text = |key| params.get(key).filter(|s| !s.is_empty()).map(str::to_owned);
        let data_file_raw = flag("data_file_raw")?;
        if data_file_raw && preallocation == Qcow2Preallocation::Off {
            // Else a reader of the data file alone would not see these zeroes.
            preallocation = Qcow2Preallocation::Metadata;
        }
        let options = Self {
            version,
            cluster_bits: cluster_bits(params)?,
            preallocation,
            lazy_refcounts: flag("lazy_refcounts")?,
            refcount_order: refcount_order(params)?,
            compression,
            level: compress.then(|| CompressionLevel::read(params, compression)).transpose()?,
            extended: flag("extended_l2")?,
            data_file: text("data_file"),
            data_file_raw,
            backing: text("backing_file"),
            backing_format: text("backing_fmt"),
            encryption: NewEncryption::read(params)?,
        };
        options.check().map(|()| options)
    }

    /// Refuses options that conflict.
    fn check(&self) -> Result<()> {
        let preallocated = self.preallocation != Qcow2Preallocation::Off;
        let compressed = self.level.is_some();
        let encrypted = self.encryption.is_some();
        let rules = [
            (self.version < 3 && self.lazy_refcounts, "lazy_refcounts needs compat=1.1"),
            (
                self.version < 3 && self.refcount_order != REFCOUNT_ORDER_V2,
                "refcount_bits other than 16 needs compat=1.1",
            ),
            (
                self.version < 3 && self.compression != Compression::Zlib,
                "compression_type=zstd needs compat=1.1",
            ),
            (self.version < 3 && self.extended, "extended_l2 needs compat=1.1"),
            (self.version < 3 && self.data_file.is_some(), "data_file needs compat=1.1"),
            (
                self.extended && self.cluster_bits < EXTENDED_CLUSTER_BITS,
                "extended_l2 needs clusters of at least 16K",
            ),
            (self.data_file_raw && self.data_file.is_none(), "data_file_raw needs data_file"),
            (
                self.data_file_raw && self.backing.is_some(),
                "backing_file and data_file_raw cannot be combined",
            ),
            (
                preallocated && self.backing.is_some() && !self.extended,
                "backing_file and preallocation can be combined only with extended_l2",
            ),
            (
                self.backing_format.is_some() && self.backing.is_none(),
                "backing_fmt needs backing_file",
            ),
            (
                self.backing.is_some() && self.backing_format.is_none(),
                "backing_file needs backing_fmt: the format of a backing image is not guessed",
            ),
            (self.version < 3 && encrypted, "encrypt.format needs compat=1.1"),
            (encrypted && compressed, "encryption and compression cannot be combined"),
            // Room that is not written would read as noise.
            (
                encrypted && preallocated,
                "encryption cannot be combined with preallocation or data_file_raw",
            ),
            (compressed && preallocated, "compression and preallocation cannot be combined"),
            (
                compressed && self.data_file.is_some(),
                "compression and data_file cannot be combined",
            ),
        ];
        match rules.into_iter().find(|(broken, _)| *broken) {
            Some((_, rule)) => Err(Error::invalid(rule)),
            None => Ok(()),
        }
    }
}

fn cluster_bits(params: &Params) -> Result<u32> {
    let size = values::size(params, "cluster_size")?.unwrap_or(64 << 10);
    let bits = size.checked_ilog2().filter(|bits| 1 << bits == size && CLUSTER_BITS.contains(bits));
    bits.ok_or_else(|| values::wrong("cluster_size", "must be a power of two from 512 to 2M"))
}

fn refcount_order(params: &Params) -> Result<u32> {
    let bits = values::number(params, "refcount_bits")?.unwrap_or(1 << REFCOUNT_ORDER_V2);
    let order =
        bits.checked_ilog2().filter(|order| 1 << order == bits && *order <= REFCOUNT_ORDER_MAX);
    order.ok_or_else(|| values::wrong("refcount_bits", "must be a power of two from 1 to 64"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(words: &[&str], compress: bool) -> std::result::Result<CreateOptions, String> {
        let params = Params::parse(words.iter().copied()).map_err(|e| e.to_string())?;
        CreateOptions::read(&params, compress).map_err(|e| e.to_string())
    }

    #[test]
    fn the_defaults_are_those_of_qemu_img() {
        let options = read(&[], false).unwrap();
        assert_eq!((options.version, options.cluster_bits, options.refcount_order), (3, 16, 4));
        assert_eq!(options.preallocation, Qcow2Preallocation::Off);
        let raw = read(&["data_file=d", "data_file_raw=on"], false).unwrap();
        assert_eq!(raw.preallocation, Qcow2Preallocation::Metadata);
    }

    #[test]
    fn what_does_not_go_together_is_refused_with_its_rule() {
        for (words, compress, rule) in [
            (&["compat=0.10", "refcount_bits=8"][..], false, "refcount_bits"),
            (&["compat=v2", "compression_type=zstd"], false, "zstd"),
            (&["compat=v2", "lazy_refcounts=on"], false, "lazy_refcounts"),
            (&["extended_l2=on", "cluster_size=8K"], false, "16K"),
            (&["cluster_size=4M"], false, "cluster_size"),
            (&["cluster_size=65535"], false, "cluster_size"),
            (&["refcount_bits=3"], false, "refcount_bits"),
            (&["refcount_bits=128"], false, "refcount_bits"),
            (&["backing_file=b"], false, "backing_fmt"),
            (&["backing_file=b", "backing_fmt=raw", "preallocation=full"], false, "extended_l2"),
            (&["data_file_raw=on"], false, "data_file"),
            (&["preallocation=metadata"], true, "preallocation"),
            (&["data_file=d"], true, "data_file"),
            (&["encrypt.format=luks"], false, "encrypt.key-file"),
            (&["encrypt.key-file=k"], false, "encrypt.format"),
            (&["encrypt.format=aes", "encrypt.key-file=k"], false, "encrypt.format=luks"),
            (&["encrypt.format=luks", "encrypt.key-file=k"], true, "compression"),
            (
                &["encrypt.format=luks", "encrypt.key-file=k", "preallocation=falloc"],
                false,
                "preallocation",
            ),
            (
                &["encrypt.format=luks", "encrypt.key-file=k", "encrypt.iter-time=0"],
                false,
                "iter-time",
            ),
            (&["encryption=on"], false, "encrypt"),
            (&["compression_level=10"], true, "compression_level"),
            (&["compression_level=23", "compression_type=zstd"], true, "compression_level"),
        ] {
            let error = read(words, compress).unwrap_err();
            assert!(error.contains(rule), "{words:?}: {error}");
        }
    }
}
