//! LUKS1 inside of an image of another format, which keeps the header and encrypts its clusters:
//! that of qcow2. Sectors have the numbers of where they lie in their file.

use device::{Edge, Error, ErrorKind, Fault, Param, Params, Result, param};
use runtime::Context;
use serde_json::{Map, Value};

use super::create::{NewKey, Plan};
use super::disk::Decrypted;
use super::volume::Segment;
use super::{MAGIC, create, derive, describe, header1, keyslots, secret};
use crate::Opening;
use crate::kit::fields::{array, corrupt, foreign, load};
use crate::kit::{Layered, clear_now};

/// The parameters that name the key, for the table entry of the other format.
pub(crate) const PARAMS: [Param; 5] = secret::PARAMS;

/// Whether parameters name a key, which may be a wrong one.
pub(crate) fn is_key_named(params: &Params) -> bool {
    secret::check_named(params).is_ok()
}

/// All of `file` decrypted, with the key in the header in the `len` bytes at `start` of
/// `container`. It reads as noise where nothing was written.
///
/// # Errors
/// That is no header of LUKS1, or the parameters name no key that opens it.
pub(crate) fn decrypted(
    file: Edge,
    container: &Edge,
    (start, len): (u64, u64),
    opening: &Opening<'_>,
) -> Result<Edge> {
    let mut volume = header(container, start)?.volume()?;
    for slot in volume.slots.iter_mut().flatten() {
        let end = slot.offset.checked_add(slot.area_len() as u64);
        let place = end.filter(|end| *end <= len).and(slot.offset.checked_add(start));
        slot.offset = place
            .ok_or_else(|| corrupt("a keyslot lies outside the keyslot area").at(slot.offset))?;
    }
    let segment = Segment { offset: 0, len: None, ..volume.segment };
    let size = segment.size_in(file.info().size)?;
    let key = volume.key(container, &secret::of(opening.params)?, derive::MEMORY)?;
    let disk = Layered::device(Decrypted::new(file, segment, size, &key)?);
    Ok(Edge::new(disk, opening.context.pool.clone()))
}

/// The options that change keyslots, for the table entry of the other format.
pub(crate) const AMENDED: [Param; 13] = {
    let [state, keyslot, a, b, c, d, e, f, g, h, i, j] = keyslots::OPTIONS;
    [
        Param { key: "encrypt.state", ..state },
        Param { key: "encrypt.keyslot", ..keyslot },
        Param { key: "encrypt.new-passphrase", ..a },
        Param { key: "encrypt.new-key-file", ..b },
        Param { key: "encrypt.new-key-serial", ..c },
        Param { key: "encrypt.new-key-format", ..d },
        Param { key: "encrypt.new-secret", ..e },
        Param { key: "encrypt.old-passphrase", ..f },
        Param { key: "encrypt.old-key-file", ..g },
        Param { key: "encrypt.old-key-serial", ..h },
        Param { key: "encrypt.old-key-format", ..i },
        Param { key: "encrypt.old-secret", ..j },
        Param { key: "encrypt.iter-time", ..keyslots::TIME },
    ]
};

/// Fills or empties keyslots of the header in the `room` bytes at `start`; `options` have no
/// prefix.
///
/// # Errors
/// They make no sense, or nothing would open the disk any more: nothing was changed. Or what the
/// disk says.
pub(crate) fn amend(
    container: &Edge,
    (start, room): (u64, u64),
    params: &Params,
    options: &Params,
) -> Result<()> {
    let header = header(container, start)?;
    let keyslots = keyslots::Keyslots { container: container.clone(), start, room, header };
    keyslots.change(params, options)
}

/// The options of a new image, for the table entry of the other format: as QEMU has them.
pub(crate) const OPTIONS: [Param; 12] = {
    let [passphrase, key_file, key_serial, key_format, key_secret] = secret::PARAMS;
    [
        param("encrypt.format", "luks", "encrypts the disk with LUKS1"),
        Param { key: "encrypt.passphrase", ..passphrase },
        Param { key: "encrypt.key-file", ..key_file },
        Param { key: "encrypt.key-serial", ..key_serial },
        Param { key: "encrypt.key-format", ..key_format },
        Param { key: "encrypt.key-secret", ..key_secret },
        param("encrypt.cipher-alg", "aes-128|aes-192|aes-256", create::CIPHER),
        param("encrypt.cipher-mode", "xts|cbc", create::MODE),
        param("encrypt.ivgen-alg", "plain64|plain|essiv", create::VECTORS),
        param("encrypt.ivgen-hash-alg", create::HASHES, create::VECTORS_HASH),
        param("encrypt.hash-alg", create::HASHES, create::HASH),
        param("encrypt.iter-time", "MS", create::TIME),
    ]
};

/// How a new image is to be encrypted.
#[derive(Clone, Debug)]
pub(crate) struct NewEncryption {
    /// Without the prefix.
    options: Params,
    /// Bytes of the header with all keyslots.
    pub(crate) len: u64,
}

impl NewEncryption {
    /// What `options` ask for; `None`: no encryption. No secret is read yet.
    ///
    /// # Errors
    /// They make no sense, or name no secret.
    pub(crate) fn read(options: &Params) -> Result<Option<Self>> {
        let mut own = Params::default();
        for (key, value) in options.iter() {
            if let Some(key) = key.strip_prefix("encrypt.") {
                own.add(key, value);
            }
        }
        match own.take("format").as_deref() {
            Some("luks") => {}
            Some(_) => {
                return Err(Error::unsupported(
                    "create an image with other encryption than encrypt.format=luks",
                ));
            }
            None if own.iter().next().is_some() => {
                return Err(Error::invalid("encrypt.format=luks is missing"));
            }
            None => return Ok(None),
        }
        if secret::check_named(&own).is_err() {
            let why = "encrypt.format=luks needs encrypt.passphrase=+FILE or encrypt.key-file=FILE";
            return Err(Error::new(ErrorKind::NeedsKey, Fault::User, why));
        }
        let len = Plan::new(&own, 0)?.payload;
        Ok(Some(Self { options: own, len }))
    }

    /// A new key. Reads the secret, and computes for as long as the options say.
    ///
    /// # Errors
    /// The secret cannot be read.
    pub(crate) fn key(&self) -> Result<NewImageKey> {
        let plan = Plan::new(&self.options, 0)?;
        let new = create::new_key(&plan, &self.options, &secret::of(&self.options)?)?;
        Ok(NewImageKey { plan, new })
    }
}

/// The key of a new image.
pub(crate) struct NewImageKey {
    plan: Plan,
    new: NewKey,
}

impl NewImageKey {
    /// Writes the header and its keyslots to `start` of a container.
    ///
    /// # Errors
    /// What the disk says.
    pub(crate) fn write(&self, container: &Edge, start: u64) -> Result<()> {
        clear_now(container, start, self.plan.payload)?;
        self.new.write_slot(container, start)?;
        container.write(&self.new.header, start, false)
    }

    /// What is written through it is encrypted in `file`, and decrypted when it is read.
    ///
    /// # Errors
    /// None that the options did not have.
    pub(crate) fn decrypted(&self, file: Edge, context: &Context) -> Result<Edge> {
        let segment = Segment { offset: 0, ..self.plan.segment() };
        let size = segment.size_in(file.info().size)?;
        let disk = Decrypted::new(file, segment, size, &self.new.key)?;
        Ok(Edge::new(Layered::device(disk), context.pool.clone()))
    }
}

/// What `qemu-img info` tells of the header at `start`, for which no key is needed.
///
/// # Errors
/// There is none.
pub(crate) fn described(container: &Edge, start: u64) -> Result<Map<String, Value>> {
    header(container, start).map(|header| describe::first(&header, Some("luks")))
}

fn header(container: &Edge, start: u64) -> Result<header1::Header> {
    let first = load(container, "header of the encryption", start, 8)?;
    if !first.starts_with(MAGIC) || array(&first, 6) != [0, 1] {
        return Err(foreign("the header of its encryption is not one of LUKS1").at(start));
    }
    header1::Header::read(container, start)
}
