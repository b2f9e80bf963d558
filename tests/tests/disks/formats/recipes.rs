//! Every image that is made here by qemu-img: formats by their options and sizes.

use blackbox::MIB;

use super::ground::{Ground, text};

/// An image to be made.
#[derive(Clone, Debug)]
pub(crate) struct Recipe {
    pub(crate) format: &'static str,
    /// As after `-o`; may be empty. `DIR` is the directory of the image.
    pub(crate) options: String,
    /// `-c`.
    pub(crate) compress: bool,
    /// The size of the disk that goes in, in bytes.
    pub(crate) size: u64,
}

/// The size that most images have: odd to all clusters, grains and blocks.
pub(crate) const SIZE: u64 = 2 * MIB + 640 * 1024 + 1536;
/// Others: nothing, a sector, less, and the edges of clusters and blocks.
pub(crate) const SIZES: &[u64] = &[0, 1, 512, 1000, 65_536, 65_537, MIB - 512, MIB, 3 * MIB + 511];
/// Mostly holes: more than a table of each kind holds.
pub(crate) const LARGE: &[u64] = &[(2 << 30) + 70_000, (5 << 30) + 512, (1 << 38) + 512];

impl Recipe {
    fn new(format: &'static str, options: impl Into<String>) -> Self {
        Self { format, options: options.into(), compress: false, size: SIZE }
    }

    fn sized(&self, size: u64) -> Self {
        Self { size, ..self.clone() }
    }

    fn compressed(&self) -> Self {
        Self { compress: true, ..self.clone() }
    }

    /// For messages.
    pub(crate) fn name(&self) -> String {
        let compress = if self.compress { " -c" } else { "" };
        format!("{} -o '{}'{compress} of {} bytes", self.format, self.options, self.size)
    }

    /// The words that make it, between the verb and the names.
    pub(crate) fn words(&self, ground: &Ground) -> Vec<String> {
        let mut words = vec!["-O".to_owned(), self.format.to_owned()];
        if !self.options.is_empty() {
            words.extend(["-o".to_owned(), self.options.replace("DIR", text(ground.temp.path()))]);
        }
        if self.compress {
            words.push("-c".to_owned());
        }
        words
    }

    /// Makes it of the disk with qemu-img; its path. `None` where qemu-img cannot, which may be
    /// only because of the size.
    #[track_caller]
    pub(crate) fn make(&self, ground: &Ground) -> Option<String> {
        let image = ground.path("image");
        let mut words = vec!["convert".to_owned(), "-f".to_owned(), "raw".to_owned()];
        words.extend(self.words(ground));
        words.extend([text(&ground.raw(self.size)).to_owned(), image.clone()]);
        let made = ground.try_img(&words);
        assert!(made.status.success() || self.size != SIZE, "{}: {made:#?}", self.name());
        made.status.success().then_some(image)
    }
}

/// Images of a format with each of these options, and with the first ones in all sizes.
fn in_sizes(format: &'static str, base: &[&str], more: &[&str], sizes: &[u64]) -> Vec<Recipe> {
    let recipe = |options: &&str| Recipe::new(format, *options);
    let mut all: Vec<Recipe> = base.iter().chain(more).map(recipe).collect();
    for base in base.iter().map(recipe) {
        all.extend(sizes.iter().map(|size| base.sized(*size)));
    }
    all
}

pub(crate) fn qcow2() -> Vec<Recipe> {
    let new = |options: String| Recipe::new("qcow2", options);
    let mut all = Vec::new();
    for cluster in ["512", "4k", "64k", "2M"] {
        for compat in ["0.10", "1.1"] {
            let plain = new(format!("compat={compat},cluster_size={cluster}"));
            all.push(plain.compressed());
            all.push(new(format!("{},preallocation=metadata", plain.options)));
            all.push(plain);
        }
        all.push(new(format!("cluster_size={cluster},compression_type=zstd")).compressed());
    }
    for bits in ["1", "2", "4", "8", "32", "64"] {
        all.push(new(format!("refcount_bits={bits}")));
    }
    for options in [
        "lazy_refcounts=on",
        "preallocation=falloc",
        "preallocation=full",
        "cluster_size=512,preallocation=full",
        "compression_type=zstd",
    ] {
        all.push(new(options.to_owned()));
    }
    for cluster in ["16k", "64k", "2M"] {
        let extended = new(format!("extended_l2=on,cluster_size={cluster}"));
        all.push(new(format!("{},compression_type=zstd", extended.options)).compressed());
        all.push(new(format!("{},preallocation=metadata", extended.options)));
        all.push(extended.compressed());
        all.push(extended);
    }
    for options in ["", ",cluster_size=512", ",extended_l2=on", ",data_file_raw=on"] {
        all.push(new(format!("data_file=DIR/data{options}")));
    }
    // All other clusters there are.
    for bits in [10, 11, 13, 14, 15, 17, 18, 19, 20] {
        let cluster = new(format!("cluster_size={}", 1_u64 << bits));
        all.push(new(format!("{},compression_type=zstd", cluster.options)).compressed());
        all.push(cluster.compressed());
        all.push(cluster);
    }
    for (number, size) in SIZES.iter().chain(LARGE).enumerate() {
        all.push(new(String::new()).sized(*size));
        let others = ["compat=0.10,cluster_size=1k", "extended_l2=on", "cluster_size=2M"];
        all.push(new(others[number % others.len()].to_owned()).sized(*size).compressed());
    }
    all
}

pub(crate) fn vmdk() -> Vec<Recipe> {
    let base = [
        "subformat=monolithicSparse",
        "subformat=streamOptimized",
        "subformat=monolithicFlat",
        "subformat=twoGbMaxExtentSparse",
        "subformat=twoGbMaxExtentFlat",
    ];
    let more = [
        "",
        "adapter_type=ide",
        "adapter_type=buslogic",
        "adapter_type=lsilogic",
        "adapter_type=legacyESX",
        "compat6=on",
        "hwversion=13,toolsversion=2147483647",
        "zeroed_grain=on",
        "zeroed_grain=on,subformat=streamOptimized",
        "zeroed_grain=on,subformat=twoGbMaxExtentSparse",
        "preallocation=full,subformat=monolithicFlat",
        "preallocation=falloc,subformat=twoGbMaxExtentFlat",
    ];
    let mut all = in_sizes("vmdk", &base, &more, SIZES);
    // The last would be hundreds of files.
    all.extend(in_sizes("vmdk", &base, &[], &LARGE[..2]).into_iter().filter(|r| r.size != SIZE));
    all.push(Recipe::new("vmdk", base[0]).sized(LARGE[2]));
    all.push(Recipe::new("vmdk", base[1]).compressed());
    all
}

pub(crate) fn vdi() -> Vec<Recipe> {
    in_sizes("vdi", &["", "static=on"], &[], SIZES)
        .into_iter()
        .chain(LARGE.iter().map(|size| Recipe::new("vdi", "").sized(*size)))
        .collect()
}

pub(crate) fn vpc() -> Vec<Recipe> {
    let base = ["", "subformat=fixed", "force_size=on", "subformat=fixed,force_size=on"];
    in_sizes("vpc", &base, &[], SIZES)
        .into_iter()
        .chain(LARGE.iter().map(|size| Recipe::new("vpc", "force_size=on").sized(*size)))
        .chain(LARGE[..2].iter().map(|size| Recipe::new("vpc", "").sized(*size)))
        .collect()
}

pub(crate) fn vhdx() -> Vec<Recipe> {
    let more = [
        "block_size=1M",
        "block_size=2M",
        "block_size=256M",
        "log_size=1M",
        "log_size=16M",
        "block_state_zero=off",
        "subformat=fixed,block_size=1M",
    ];
    in_sizes("vhdx", &["", "subformat=fixed"], &more, SIZES)
        .into_iter()
        .chain(LARGE.iter().map(|size| Recipe::new("vhdx", "").sized(*size)))
        .chain([Recipe::new("vhdx", "block_size=1M").sized(LARGE[1])])
        .collect()
}

pub(crate) fn qed() -> Vec<Recipe> {
    let more = [
        "cluster_size=4k",
        "cluster_size=4k,table_size=16",
        "cluster_size=16k,table_size=2",
        "cluster_size=1M",
    ];
    in_sizes("qed", &[""], &more, SIZES)
        .into_iter()
        .chain(LARGE.iter().map(|size| Recipe::new("qed", "").sized(*size)))
        .collect()
}

pub(crate) fn parallels() -> Vec<Recipe> {
    let more = ["cluster_size=512", "cluster_size=4k", "cluster_size=63k", "cluster_size=16M"];
    in_sizes("parallels", &[""], &more, SIZES)
        .into_iter()
        .chain(LARGE.iter().map(|size| Recipe::new("parallels", "").sized(*size)))
        .collect()
}

/// Compressed ones are refused with the name of the tool that reads them.
pub(crate) fn qcow() -> Vec<Recipe> {
    in_sizes("qcow", &[""], &[], SIZES)
        .into_iter()
        .chain(LARGE.iter().map(|size| Recipe::new("qcow", "").sized(*size)))
        .collect()
}

pub(crate) fn raw() -> Vec<Recipe> {
    in_sizes("raw", &[""], &["preallocation=falloc", "preallocation=full"], SIZES)
        .into_iter()
        .chain(LARGE.iter().map(|size| Recipe::new("raw", "").sized(*size)))
        .collect()
}
