//! LUKS: a disk that is encrypted, with its key in the header under passphrases.
//!
//! Reads, writes in place and makes both versions: LUKS1 as QEMU makes it, LUKS2 as cryptsetup
//! does. The ciphers are AES in XTS and CBC; others are refused by name. A header is not trusted:
//! what it may cost in memory and time is bounded ([`mod@derive`]). Keys and passphrases are zeroed
//! when they are dropped. It never changes the header of a disk that it opens, but for keyslots by
//! `amend`, and needs no key to describe it. Images of other formats that are encrypted in this way
//! have it in [`inside`].
//!
//! | file | what |
//! |---|---|
//! | `header1`, `header2` | the headers, read and encoded |
//! | `volume` | what both say: keyslots and the disk; the key of it |
//! | `derive`, `hash`, `split` | the key of a keyslot; its limits; the stripes |
//! | `cipher` | sectors |
//! | `disk` | the device |
//! | `secret` | the passphrase, as parameters name it |
//! | `create`, `describe` | making one, telling of one |
//! | `keyslots` | other passphrases for one |
//! | `inside` | LUKS1 as the encryption of another format's image |

mod cipher;
mod create;
mod derive;
mod describe;
mod disk;
mod hash;
mod header1;
mod header2;
pub(crate) mod inside;
mod keyslots;
mod secret;
mod split;
mod system;
#[cfg(test)]
mod tests;
mod volume;

use std::sync::Arc;

use device::{Device, Edge, Param, Result, param, values};

use crate::kit::Layered;
use crate::kit::fields::{be16, foreign, load};
use crate::{Creator, Format, Head, Opening, Upkeep};

use disk::Decrypted;
use volume::Volume;

pub(crate) const FORMAT: Format = Format {
    word: "luks",
    summary: "an encrypted disk, LUKS1 or LUKS2",
    is_plain: false,
    packing: None,
    params: PARAMS,
    recognises: |head: &Head| head.has(0, MAGIC),
    open,
    describe: describe::describe,
    write: Some(open),
    create: Some(Creator {
        beside: None,
        options: create::OPTIONS,
        open: create::open,
        over: crate::format::over_nothing,
        piped: |_| Ok(false),
        remake: None,
        reads_zero: false,
        measure: create::measure,
        measure_bitmaps: crate::format::no_bitmaps,
    }),
    check: None,
    upkeep: Upkeep { amend: Some(keyslots::amend), amended: keyslots::OWN, ..Upkeep::NONE },
};

/// The parameters that open one, which the filter of the same name has too.
pub const PARAMS: &[Param] = &{
    let [passphrase, key_file, key_serial, key_format, key_secret] = secret::PARAMS;
    let memory = param("kdf-memory", "SIZE", "the most memory that a keyslot may ask for (1G)");
    [passphrase, key_file, key_serial, key_format, key_secret, memory]
};

/// Both versions begin with this.
const MAGIC: &[u8; 6] = b"LUKS\xba\xbe";

/// The header of either version.
enum Header {
    V1(Box<header1::Header>),
    V2(header2::Header),
}

impl Header {
    fn read(container: &Edge) -> Result<Self> {
        let first = load(container, "header", 0, 8)?;
        match (first.starts_with(MAGIC), be16(&first, 6)) {
            (true, 1) => header1::Header::read(container, 0).map(Box::new).map(Self::V1),
            (true, 3..) => {
                let version = be16(&first, 6);
                Err(foreign(format!("it is a LUKS image of version {version}; 1 and 2 are read")))
            }
            // The second copy may be whole.
            _ => header2::Header::read(container).map(Self::V2),
        }
    }

    fn volume(&self) -> Result<Volume> {
        match self {
            Self::V1(header) => header.volume(),
            Self::V2(header) => header.volume(),
        }
    }
}

fn open(container: Edge, opening: &Opening<'_>) -> Result<Arc<dyn Device>> {
    let volume = Header::read(&container)?.volume()?;
    let size = volume.segment.size_in(container.info().size)?;
    let memory = values::size(opening.params, "kdf-memory")?.unwrap_or(derive::MEMORY);
    let key = volume.key(&container, &secret::of(opening.params)?, memory)?;
    let disk = Decrypted::new(container, volume.segment, size, &key)?;
    Ok(Layered::device(disk))
}
