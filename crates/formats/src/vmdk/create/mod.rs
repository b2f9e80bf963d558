//! Making images: the options, and their creators.

mod extents;
mod front;
mod sparse;
mod stream;
mod text;

use std::sync::Arc;

use device::{Device, Edge, Error, Param, Params, Result, param, values};

use super::header::GRAIN_TABLE_ENTRIES;
use crate::kit::blocks_with_data;
use crate::{Creator, DiskMap, Making, Measure};

/// Bytes of a grain.
pub(super) const GRAIN: u64 = 64 << 10;
/// Bytes of the disk that one grain table covers.
pub(super) const SPAN: u64 = GRAIN * GRAIN_TABLE_ENTRIES;
/// The largest disk whose sectors can be counted in 32 bits.
const LARGEST: u64 = 2 << 40;

pub(super) const CREATOR: Creator = Creator {
    beside: Some(beside),
    options: OPTIONS,
    open,
    over: |making| making.backing(Some("vmdk")),
    piped,
    remake: None,
    reads_zero: true,
    measure,
    measure_bitmaps: crate::format::no_bitmaps,
};

const OPTIONS: &[Param] = &[
    param(
        "subformat",
        "KIND",
        "monolithicSparse: grains in one file (the default); monolithicFlat: all bytes in a file beside it; twoGbMaxExtentSparse and twoGbMaxExtentFlat: either in files of 2 GiB beside it; streamOptimized: a stream of compressed grains",
    ),
    param(
        "adapter_type",
        "ide|buslogic|lsilogic|legacyESX",
        "what the disk is to be attached to; ide without it",
    ),
    param("hwversion", "NUMBER", "the version of the virtual hardware; 4 without it"),
    param("compat6", "on|off", "the same as hwversion=6"),
    param("toolsversion", "NUMBER", "the version of the guest's tools"),
    param("zeroed_grain", "on|off", "zeroes over a parent take no room; off without it"),
    param("backing_file", "FILE", "the parent: what is not written is read from there"),
    param("backing_fmt", "vmdk", "the format of the parent"),
    param("compression_level", "1..12", "how hard a stream is compressed; 6 without it"),
];

/// The options.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Settings {
    pub(super) kind: Subformat,
    pub(super) adapter: &'static str,
    pub(super) hardware: String,
    pub(super) tools: String,
    pub(super) zeroed_grain: bool,
    pub(super) backing: Option<String>,
    pub(super) level: i32,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Subformat {
    Sparse,
    Flat,
    Stream,
    SplitSparse,
    SplitFlat,
}

impl Subformat {
    const ALL: [Self; 5] =
        [Self::Sparse, Self::Flat, Self::Stream, Self::SplitSparse, Self::SplitFlat];
    const WORDS: [&'static str; 5] = [
        "monolithicSparse",
        "monolithicFlat",
        "streamOptimized",
        "twoGbMaxExtentSparse",
        "twoGbMaxExtentFlat",
    ];

    /// As descriptors have it.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Sparse => "monolithicSparse",
            Self::Flat => "monolithicFlat",
            Self::Stream => "streamOptimized",
            Self::SplitSparse => "twoGbMaxExtentSparse",
            Self::SplitFlat => "twoGbMaxExtentFlat",
        }
    }

    fn of(options: &Params) -> Result<Self> {
        let choice = values::choice(options, "subformat", &Self::WORDS)?.unwrap_or(0);
        Ok(Self::ALL.get(choice).copied().unwrap_or(Self::Sparse))
    }

    fn is_flat(self) -> bool {
        matches!(self, Self::Flat | Self::SplitFlat)
    }

    /// Bytes of the largest disk.
    fn largest(self) -> u64 {
        match self {
            Self::Sparse | Self::Stream => LARGEST,
            Self::SplitSparse | Self::SplitFlat => extents::LARGEST_SPLIT,
            Self::Flat => u64::MAX,
        }
    }
}

impl Settings {
    fn of(making: &Making<'_>) -> Result<Self> {
        let options = making.options;
        let kind = Subformat::of(options)?;
        let adapters = ["ide", "buslogic", "lsilogic", "legacyESX"];
        let adapter = values::choice(options, "adapter_type", &adapters)?.unwrap_or(0);
        let zeroed_grain = values::on_off(options, "zeroed_grain")?.unwrap_or(false);
        let level = values::number(options, "compression_level")?;
        let settings = Self {
            kind,
            adapter: adapters.get(adapter).copied().unwrap_or("ide"),
            hardware: hardware(options)?,
            tools: digits(options, "toolsversion", "2147483647")?,
            zeroed_grain,
            backing: options.get("backing_file").filter(|name| !name.is_empty()).map(str::to_owned),
            level: i32::try_from(level.unwrap_or(6)).unwrap_or(0),
        };
        settings.check(making)?;
        Ok(settings)
    }

    /// Refuses options that conflict.
    fn check(&self, making: &Making<'_>) -> Result<()> {
        let refuse = |text: String| Err(Error::invalid(text));
        let word = self.kind.word();
        if making.options.get("backing_fmt").is_some_and(|format| format != "vmdk") {
            return refuse("backing_fmt: a parent has the format vmdk too".to_owned());
        }
        if self.backing.is_some() && self.kind != Subformat::Sparse {
            return refuse(format!("subformat={word} has no parent: backing_file"));
        }
        if self.zeroed_grain && self.kind.is_flat() {
            return refuse(format!("subformat={word} has no grains: zeroed_grain"));
        }
        if making.compress && self.kind != Subformat::Stream {
            return refuse(format!(
                "-c: subformat={word} has no compressed grains; subformat=streamOptimized has"
            ));
        }
        if !(1..=12).contains(&self.level) {
            return refuse("compression_level: from 1 to 12".to_owned());
        }
        if making.size == 0 {
            return refuse("an image of this format has at least one sector".to_owned());
        }
        if making.size > self.kind.largest() {
            return refuse(format!(
                "subformat={word} has at most 2 TiB, and {} are asked for",
                making.size
            ));
        }
        Ok(())
    }
}

fn hardware(options: &Params) -> Result<String> {
    let compat6 = values::on_off(options, "compat6")?.unwrap_or(false);
    if compat6 && options.get("hwversion").is_some() {
        return Err(Error::invalid("compat6 says which hwversion: give one of them"));
    }
    digits(options, "hwversion", if compat6 { "6" } else { "4" })
}

/// A number that goes into the descriptor as given.
fn digits(options: &Params, key: &str, default: &str) -> Result<String> {
    let text = options.get(key).unwrap_or(default);
    let good = (1..=20).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
    if good { Ok(text.to_owned()) } else { Err(values::not_a(key, text, "a number")) }
}

fn open(container: Edge, making: &Making<'_>, _: DiskMap<'_>) -> Result<Arc<dyn Device>> {
    let settings = Settings::of(making)?;
    match settings.kind {
        Subformat::Sparse => sparse::open(container, making, &settings),
        Subformat::Flat | Subformat::SplitFlat | Subformat::SplitSparse => {
            extents::open(container, making, &settings)
        }
        Subformat::Stream => stream::open(container, making, &settings),
    }
}

/// The names of the extents that are files of their own.
fn beside(own: &str, options: &Params) -> Vec<String> {
    Subformat::of(options).map(|kind| extents::names(own, kind)).unwrap_or_default()
}

fn piped(making: &Making<'_>) -> Result<bool> {
    Ok(Settings::of(making)?.kind == Subformat::Stream)
}

/// Grains of a disk.
pub(super) fn grains(size: u64) -> u64 {
    size.div_ceil(GRAIN)
}

fn measure(making: &Making<'_>, map: DiskMap<'_>) -> Result<Measure> {
    let settings = Settings::of(making)?;
    let size = |grains: u64| match settings.kind {
        Subformat::Sparse | Subformat::SplitSparse => {
            sparse::overhead(making.size) + grains * GRAIN
        }
        Subformat::Flat | Subformat::SplitFlat => making.size.next_multiple_of(512),
        Subformat::Stream => stream::at_most(making.size, grains),
    };
    Ok(Measure {
        required: size(blocks_with_data(map, GRAIN)?),
        fully_allocated: size(grains(making.size)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Closed;
    use runtime::Context;

    fn settings(words: &[&str], size: u64, compress: bool) -> Result<Settings> {
        let (options, context) =
            (Params::parse(words.iter().copied()).unwrap(), Context::default());
        Settings::of(&Making {
            size,
            options: &options,
            compress,
            zeroed: true,
            durable: false,
            files: &Closed,
            context: &context,
        })
    }

    #[test]
    fn options_are_those_of_qemu_img_and_what_does_not_go_together_is_refused() {
        let all =
            ["subformat=monolithicSparse", "adapter_type=lsilogic", "compat6=on", "toolsversion=9"];
        let read = settings(&all, 1 << 30, false).unwrap();
        assert_eq!((read.adapter, &*read.hardware, &*read.tools), ("lsilogic", "6", "9"));
        assert_eq!(
            settings(&["subformat=streamOptimized"], 5, true).unwrap().kind,
            Subformat::Stream
        );
        for bad in [
            &["subformat=x"][..],
            &["subformat=twoGbMaxExtentFlat", "zeroed_grain=on"],
            &["subformat=twoGbMaxExtentSparse", "backing_file=x"],
            &["adapter_type=scsi"],
            &["compat6=on", "hwversion=7"],
            &["hwversion=4\"\n"],
            &["subformat=monolithicFlat", "zeroed_grain=on"],
            &["subformat=monolithicFlat", "backing_file=x"],
            &["subformat=streamOptimized", "backing_file=x"],
            &["backing_file=x", "backing_fmt=raw"],
            &["compression_level=0"],
            &["compression_level=99999999999"],
        ] {
            assert!(settings(bad, 1 << 20, false).is_err(), "{bad:?}");
        }
        assert!(
            settings(&[], LARGEST + 1, false).is_err() && settings(&[], LARGEST, false).is_ok()
        );
        assert!(settings(&[], 1, true).is_err());
    }
}
