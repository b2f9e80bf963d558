//! Other options for an image that exists: its version, lazy refcounts, its data file, its size.
//!
//! Each is a change of the header in its first sector, which is written at once: what is elsewhere
//! is durable before, and nothing refers to it until then.

use std::sync::Arc;

use device::{Edge, Error, Param, Params, Result, param, values};
use runtime::{spawn, wait_for};

use super::super::bitmap::{self, Bitmap};
use super::super::header::{
    AUTOCLEAR_AT, Encryption, Header, REFCOUNT_ORDER_V2, autoclear, compatible,
};
use super::super::map::Map;
use super::super::open;
use super::anew::HeaderChange;
use super::directory::ResizedBitmaps;
use super::link::Becomes;
use super::resize::{Change, check as check_size};
use super::{Writer, WrittenImage};
use crate::kit::confused;
use crate::luks::inside;
use crate::{NewRoom, Opening};

/// The options that an image takes when it exists.
pub(in super::super) const OPTIONS: &[Param] = &{
    let [a, b, c, d, e, f, g, h, i, j, k, l, m] = inside::AMENDED;
    [
        param("compat", "1.1|0.10", "version 3 or 2"),
        param("lazy_refcounts", "on|off", "whether QEMU may put off writing refcounts"),
        param("data_file", "FILE", "another name for the data file"),
        param("data_file_raw", "off", "the data file need not stay a raw disk"),
        param("size", "BYTES", "bytes of the disk: as many, or more"),
        param("refcount_bits", "N", "as it is; it is not changed"),
        a,
        b,
        c,
        d,
        e,
        f,
        g,
        h,
        i,
        j,
        k,
        l,
        m,
    ]
};

const COMPATIBLE_AT: u64 = 80;

/// What an image is to be.
struct Wish {
    version: u32,
    lazy: Option<bool>,
    data_file: Option<String>,
    is_raw: bool,
    size: u64,
}

/// Changes options of an image.
pub(in super::super) fn amend(
    container: Edge,
    opening: &Opening<'_>,
    options: &Params,
) -> Result<()> {
    let (encrypt, options) = &split(options);
    if encrypt.iter().next().is_some() {
        if options.iter().next().is_some() {
            let why = "encrypt.… and other options: give them in separate commands";
            return Err(Error::invalid(why));
        }
        let header = open::header(&container)?;
        let (Encryption::Luks, Some(place)) = (header.encryption, header.encryption_header) else {
            return Err(Error::invalid("encrypt.…: the image is not encrypted with LUKS"));
        };
        let place = (place.offset, place.len);
        return inside::amend(&container, place, opening.params, encrypt);
    }
    let wish = read(options, &open::header(&container)?)?;
    let (header, container) = open::to_change(&container, opening)?;
    let bitmaps = bitmap::read(&container, &header)?;
    check(&container, &header, &wish, &bitmaps)?;
    let most = header.size.max(wish.size);
    let image = Arc::new(open::written(&container, &header, opening, (most, Vec::new()))?);
    let bitmaps = ResizedBitmaps::of(&container, &header, &bitmaps, wish.size)?;
    let amended = wait_for(|promise| {
        spawn(async move { promise.keep(image.amend(header, wish, bitmaps).await) });
    });
    amended.unwrap_or_else(|| Err(Error::unanswered()))
}

/// The options of the encryption, without their prefix, and the others.
fn split(options: &Params) -> (Params, Params) {
    let (mut encrypt, mut others) = (Params::default(), Params::default());
    for (key, value) in options.iter() {
        match key.strip_prefix("encrypt.") {
            Some(key) => encrypt.add(key, value),
            None => others.add(key, value),
        }
    }
    (encrypt, others)
}

fn read(options: &Params, header: &Header) -> Result<Wish> {
    let version = match values::choice(options, "compat", &["1.1", "v3", "0.10", "v2"])? {
        None => header.version,
        Some(0 | 1) => 3,
        Some(_) => 2,
    };
    let bits = values::number(options, "refcount_bits")?;
    if bits.is_some_and(|bits| bits != 1 << header.refcount_order) {
        let action = "change refcount_bits of an image; `qemu-img amend` does it";
        return Err(Error::unsupported(action));
    }
    Ok(Wish {
        version,
        lazy: values::on_off(options, "lazy_refcounts")?,
        data_file: options.get("data_file").map(str::to_owned),
        is_raw: values::on_off(options, "data_file_raw")?.unwrap_or(header.is_data_file_raw()),
        size: values::size(options, "size")?.unwrap_or(header.size),
    })
}

/// Refuses what cannot be, before anything is changed.
fn check(container: &Edge, header: &Header, wish: &Wish, bitmaps: &[Bitmap]) -> Result<()> {
    let (is_up, is_down) = (wish.version > header.version, wish.version < header.version);
    let has_data_file = header.data_file.is_some();
    let refusals = [
        (wish.size < header.size, "size: `diskferry resize --shrink` makes a disk smaller"),
        (wish.lazy == Some(true) && wish.version < 3, "lazy_refcounts need version 3 (compat=1.1)"),
        (
            wish.data_file.is_some() && !has_data_file,
            "data_file: only the name of an existing data file can be changed",
        ),
        (
            wish.data_file.as_ref().is_some_and(String::is_empty),
            "data_file: the name of the data file is empty",
        ),
        (
            wish.is_raw && !header.is_data_file_raw(),
            "data_file_raw: a data file is a raw disk from the beginning, or never",
        ),
        (
            is_down && header.refcount_order != REFCOUNT_ORDER_V2,
            "compat=0.10 needs refcount_bits=16",
        ),
        (
            is_down && header.incompatible != 0,
            "compat=0.10: the image has a data file, subclusters or another compression",
        ),
        (is_down && !bitmaps.is_empty(), "compat=0.10: the image has bitmaps, which would be lost"),
        (
            is_down && header.encryption != Encryption::None,
            "compat=0.10: the image is encrypted with LUKS, which needs version 3",
        ),
        (
            (is_up || is_down) && header.snapshot_count > 0,
            "compat: the image has snapshots; `qemu-img amend` changes those, too",
        ),
        (
            is_down && wish.size != header.size,
            "compat=0.10 and size: give them in separate commands",
        ),
        (
            wish.data_file.is_some() && wish.size != header.size && !bitmaps.is_empty(),
            "data_file and size of an image with bitmaps: give them in separate commands",
        ),
    ];
    if let Some((_, why)) = refusals.into_iter().find(|(is_so, _)| *is_so) {
        return Err(Error::invalid(why));
    }
    if is_down {
        check_end(container, header)?;
    }
    if wish.size == header.size { Ok(()) } else { check_size(header, wish.size, bitmaps) }
}

/// Refuses an image with tables behind the end of its disk, which may hold what version 2 has not.
fn check_end(container: &Edge, header: &Header) -> Result<()> {
    let used = header.geometry().l1_entries(header.size) * 8;
    let rest = (u64::from(header.l1_entries) * 8).saturating_sub(used);
    let mut bytes = vec![0; usize::try_from(rest).unwrap_or(0)];
    container.read(&mut bytes, header.l1_offset + used)?;
    if bytes.iter().all(|byte| *byte == 0) {
        return Ok(());
    }
    Err(Error::invalid("compat=0.10: the image has tables beyond the end of its disk"))
}

impl WrittenImage {
    async fn amend(
        self: Arc<Self>,
        mut header: Header,
        wish: Wish,
        bitmaps: Option<ResizedBitmaps>,
    ) -> Result<()> {
        let writer = &self.writer;
        let is_up = wish.version > header.version;
        if is_up || wish.data_file.is_some() {
            let version = wish.version.max(header.version);
            let data_file = wish.data_file.as_deref();
            let change = HeaderChange { data_file, ..HeaderChange::default() };
            writer.rewrite(&header, version, change).await?;
        }
        if wish.version == 3
            && let Some(is_lazy) = wish.lazy
        {
            let known = header.compatible & !compatible::LAZY_REFCOUNTS;
            let bits = known | if is_lazy { compatible::LAZY_REFCOUNTS } else { 0 };
            writer.set_header(COMPATIBLE_AT, &bits.to_be_bytes()).await?;
        }
        if header.is_data_file_raw() && !wish.is_raw {
            let kept = header.usable_bitmaps().map_or(0, |_| autoclear::BITMAPS);
            writer.set_header(AUTOCLEAR_AT, &kept.to_be_bytes()).await?;
            header.autoclear = kept;
        }
        if wish.size != header.size {
            let room = if wish.is_raw { NewRoom::Tables } else { NewRoom::None };
            let (from, entries) = (header.size, header.l1_entries);
            let change = Change { from, to: wish.size, entries, room };
            self.clone().resize(&header, change, bitmaps).await?;
        }
        if wish.version < header.version {
            self.expand_zeroes(header.size).await?;
            writer.flush().await?;
            writer.rewrite(&header, 2, HeaderChange::default()).await?;
        }
        writer.close().await
    }

    /// Replaces clusters of zeroes, which version 2 has not: by nothing, or by zeroes where
    /// something is below.
    async fn expand_zeroes(self: &Arc<Self>, size: u64) -> Result<()> {
        let (writer, map) = (&self.writer, &self.map);
        let (cluster, mut at) = (writer.geometry.cluster(), 0);
        // Entries behind the end are in the last table.
        let end = size.next_multiple_of(writer.geometry.l2_covers());
        while at < end {
            if let Some(next) = writer.end_without_table(map, at) {
                at = next;
                continue;
            }
            if writer.is_zero_cluster(map, at).await? {
                if self.disk.backing.is_none() || at >= size {
                    writer.link(map, at, 1, |_| Becomes::Absent).await?;
                } else {
                    let len = usize::try_from(cluster.min(size - at)).map_err(|_| confused())?;
                    self.clone().write(at, device::Buffer::zeroed(len).into()).await?;
                }
                writer.save_much().await?;
            }
            at += cluster;
        }
        Ok(())
    }
}

impl Writer {
    async fn is_zero_cluster(&self, map: &Map, at: u64) -> Result<bool> {
        self.attempt(|_| self.reads_zero(map, at)).await
    }
}
