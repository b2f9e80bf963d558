//! Other passphrases for an encrypted disk: the keyslots of LUKS1 are filled and emptied, with
//! QEMU's options.
//!
//! A keyslot counts once its mark says so, which is written last, when its key is durable; and it
//! counts no more before its key is overwritten. So whenever this is stopped, each passphrase that
//! is not being changed opens the disk. It never empties the last keyslot.

use device::{Edge, Error, Params, Result, param, values};
use device::{ErrorKind, Fault, Param};

use super::create::{Pace, random};
use super::derive::{self, Budget};
use super::header1::{self, COUNT, HeaderSlot};
use super::volume::{STRIPES, Slot};
use super::{Header, secret};
use crate::Opening;
use crate::kit::fields::{array, corrupt, load};

/// What `amend -o` takes; inside of another format each has a prefix.
pub(crate) const OPTIONS: [Param; 12] = {
    let [new, new_file, new_serial, new_format, new_secret] = secret::PARAMS;
    let [old, old_file, old_serial, old_format, old_secret] = secret::PARAMS;
    [
        param("state", "active|inactive", "a keyslot is filled, or emptied"),
        param("keyslot", "0…7", "which (to fill: the first that is free)"),
        Param { key: "new-passphrase", doc: "what opens it from now on", ..new },
        Param { key: "new-key-file", ..new_file },
        Param { key: "new-key-serial", ..new_serial },
        Param { key: "new-key-format", ..new_format },
        Param { key: "new-secret", ..new_secret },
        Param { key: "old-passphrase", doc: "all keyslots that this opens are emptied", ..old },
        Param { key: "old-key-file", ..old_file },
        Param { key: "old-key-serial", ..old_serial },
        Param { key: "old-key-format", ..old_format },
        Param { key: "old-secret", ..old_secret },
    ]
};
/// How long the key of a new keyslot is computed.
pub(crate) const TIME: Param = param("iter-time", "MS", super::create::TIME);
/// Those of a disk that is LUKS itself.
pub(super) const OWN: &[Param] = &{
    let [a, b, c, d, e, f, g, h, i, j, k, l] = OPTIONS;
    [a, b, c, d, e, f, g, h, i, j, k, l, TIME]
};

/// Sectors of the header are written whole, in bytes.
const WRITTEN: usize = 1024;

/// Fills or empties keyslots of a disk that is LUKS itself.
pub(super) fn amend(container: Edge, opening: &Opening<'_>, options: &Params) -> Result<()> {
    let Header::V1(header) = Header::read(&container)? else {
        let action = "change keyslots of LUKS2: `cryptsetup luksAddKey` and `luksKillSlot` do it";
        return Err(Error::unsupported(action));
    };
    let room = header.volume()?.segment.offset;
    Keyslots { container, start: 0, room, header: *header }.change(opening.params, options)
}

/// Keyslots of LUKS1, and where they lie.
pub(super) struct Keyslots {
    pub(super) container: Edge,
    /// The first byte of the header.
    pub(super) start: u64,
    /// Bytes that the header and the keyslots have.
    pub(super) room: u64,
    pub(super) header: header1::Header,
}

impl Keyslots {
    /// Does what the options ask for; `params` name what opens the disk.
    ///
    /// # Errors
    /// They make no sense, or nothing would open the disk any more: nothing was changed. Or what
    /// the disk says.
    pub(super) fn change(self, params: &Params, options: &Params) -> Result<()> {
        let number = values::number(options, "keyslot")?;
        let number = number.map(usize::try_from).transpose().ok().flatten();
        if options.get("keyslot").is_some() && number.is_none_or(|number| number >= COUNT) {
            return Err(values::wrong("keyslot", "it is from 0 to 7"));
        }
        match values::choice(options, "state", &["active", "inactive"])? {
            Some(0) => self.fill(params, options, number),
            Some(_) => self.empty(options, number),
            None => Err(values::wrong("state", "it is missing: active or inactive")),
        }
    }

    fn fill(mut self, params: &Params, options: &Params, number: Option<usize>) -> Result<()> {
        refuse(options, "old-", "state=active fills a keyslot; it takes new-secret")?;
        let passphrase = named(options, "new-")?;
        let free = || self.header.slots.iter().position(|slot| !slot.is_used);
        let number = number.or_else(free).ok_or_else(|| {
            refused("all keyslots are used: empty one first (state=inactive)".to_owned())
        })?;
        let used = |slot: &HeaderSlot| slot.is_used;
        if self.header.slots.get(number).is_some_and(used) {
            let why = format!("keyslot {number} is used: empty it first (state=inactive)");
            return Err(refused(why));
        }
        let key = self.volume()?.key(&self.container, &secret::of(params)?, derive::MEMORY)?;
        let hash = self.header.hash()?;
        let iterations = Pace::read(options)?.iterations(hash, key.len());
        let salt: [u8; 32] = array(&random(32)?, 0);
        let offset = self.header.slots.get(number).map_or(0, |slot| slot.offset);
        let new = HeaderSlot { is_used: false, iterations, salt, offset, stripes: STRIPES };
        self.set(number, new);
        let slot = self.slot(number)?;
        let mut stripes = random(slot.area_len())?;
        slot.fill(&key, &passphrase, &mut stripes)?;
        self.container.write(&stripes, slot.offset, false)?;
        self.save()?;
        self.set(number, HeaderSlot { is_used: true, ..new });
        self.save()
    }

    fn empty(mut self, options: &Params, number: Option<usize>) -> Result<()> {
        refuse(options, "new-", "state=inactive empties a keyslot; it takes no new-secret")?;
        let is_used = |number: usize| self.header.slots.get(number).is_some_and(|s| s.is_used);
        let mut emptied: Vec<usize> = match (number, has(options, "old-")) {
            (None, false) => {
                return Err(Error::invalid(
                    "to empty a keyslot, name it (keyslot=), or what opens it (old-secret=)",
                ));
            }
            (Some(number), _) => vec![number],
            (None, true) => (0..COUNT).filter(|number| is_used(*number)).collect(),
        };
        if let Some(free) = number.filter(|number| !is_used(*number)) {
            return Err(refused(format!("keyslot {free} is empty")));
        }
        if has(options, "old-") {
            let passphrase = named(options, "old-")?;
            let mut budget = Budget::new(derive::MEMORY);
            let mut opened = Vec::new();
            for number in emptied {
                if self.slot(number)?.open(&self.container, &passphrase, &mut budget)?.is_some() {
                    opened.push(number);
                }
            }
            emptied = opened;
            if emptied.is_empty() {
                let why = "old-secret opens no keyslot that is to be emptied";
                return Err(Error::new(ErrorKind::NeedsKey, Fault::User, why));
            }
        }
        if (0..COUNT).filter(|number| is_used(*number)).count() == emptied.len() {
            let why = "no keyslot would be left, and nothing would open the disk any more";
            return Err(refused(why.to_owned()));
        }
        for number in emptied {
            let slot = self.slot(number)?;
            let old = self.header.slots.get(number).copied().unwrap_or_default();
            self.set(number, HeaderSlot { is_used: false, iterations: 0, salt: [0; 32], ..old });
            self.save()?;
            let noise = random(slot.area_len())?;
            self.container.write(&noise, slot.offset, false)?;
            self.container.flush()?;
        }
        Ok(())
    }

    fn set(&mut self, number: usize, slot: HeaderSlot) {
        if let Some(place) = self.header.slots.get_mut(number) {
            *place = slot;
        }
    }

    /// The keyslots that are used, where they lie in the container.
    fn volume(&self) -> Result<super::volume::Volume> {
        let mut volume = self.header.volume()?;
        for slot in volume.slots.iter_mut().flatten() {
            slot.offset = self.placed(slot)?;
        }
        Ok(volume)
    }

    /// One keyslot, used or not, where it lies in the container.
    fn slot(&self, number: usize) -> Result<Slot> {
        let mut slot = self.header.slot(number)?;
        let range = |slot: &Slot| slot.offset..slot.offset.saturating_add(slot.area_len() as u64);
        let own = range(&slot);
        for other in (0..COUNT).filter(|other| *other != number) {
            let is_used = self.header.slots.get(other).is_some_and(|slot| slot.is_used);
            let Some(other) = is_used.then(|| self.header.slot(other)).transpose()? else {
                continue;
            };
            let other = range(&other);
            if own.start < other.end && other.start < own.end {
                return Err(corrupt("two keyslots overlap").at(own.start));
            }
        }
        slot.offset = self.placed(&slot)?;
        Ok(slot)
    }

    /// Where a keyslot lies in the container.
    fn placed(&self, slot: &Slot) -> Result<u64> {
        let end = slot.offset.checked_add(slot.area_len() as u64);
        let is_inside = slot.offset >= WRITTEN as u64 && end.is_some_and(|end| end <= self.room);
        let place = slot.offset.checked_add(self.start).filter(|_| is_inside);
        place.ok_or_else(|| corrupt("a keyslot lies outside the keyslot area").at(slot.offset))
    }

    /// Writes the header, which is durable then, and so is all that was written before.
    fn save(&self) -> Result<()> {
        self.container.flush()?;
        let mut bytes = load(&self.container, "header", self.start, WRITTEN)?;
        let header = self.header.encode();
        if let Some(place) = bytes.get_mut(header1::SLOTS..header1::LEN) {
            place.copy_from_slice(header.get(header1::SLOTS..).unwrap_or_default());
        }
        self.container.write(&bytes, self.start, false)?;
        self.container.flush()
    }
}

fn refused(why: String) -> Error {
    Error::new(ErrorKind::Denied, Fault::User, why)
}

/// The options of this prefix, without it.
fn own(options: &Params, prefix: &str) -> Params {
    let mut own = Params::default();
    for (key, value) in options.iter() {
        match key.strip_prefix(prefix) {
            Some("secret") => own.add("key-secret", value),
            Some(key) => own.add(key, value),
            None => {}
        }
    }
    own
}

fn has(options: &Params, prefix: &str) -> bool {
    own(options, prefix).iter().next().is_some()
}

fn refuse(options: &Params, prefix: &str, why: &str) -> Result<()> {
    if has(options, prefix) { Err(Error::invalid(why)) } else { Ok(()) }
}

/// The passphrase that the options of this prefix name.
fn named(options: &Params, prefix: &str) -> Result<zeroize::Zeroizing<Vec<u8>>> {
    if !has(options, prefix) {
        let why = format!("{prefix}secret is missing");
        return Err(Error::new(ErrorKind::NeedsKey, Fault::User, why));
    }
    secret::of(&own(options, prefix))
}
