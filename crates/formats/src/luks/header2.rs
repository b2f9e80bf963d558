//! LUKS2: a header in two copies, each a binary block of 4096 bytes and JSON, under one checksum.
//!
//! The copy with the higher number counts, if its checksum is right. What the JSON says is bounded
//! in bytes, depth (by the parser) and entries before anything follows it.

use argon2::Algorithm;
use base64ct::{Base64, Encoding as _};
use device::{Edge, Result};
use serde_json::{Map, Value};

use super::cipher::{Encryption, LARGEST, SECTOR};
use super::derive::{Argon2Cost, Derivation};
use super::hash::Hash;
use super::header1::text;
use super::volume::{Digest, Segment, Slot, Volume};
use crate::description::unknown_features;
use crate::kit::fields::{array, be16, be64, corrupt, foreign, load, put};

/// Bytes of the binary block.
pub(super) const BINARY: usize = 4096;
/// Bytes of a copy with its JSON, as they may be.
const SIZES: [u64; 9] =
    [16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20];
/// The second copy begins with this.
const SECOND: &[u8; 6] = b"SKUL\xba\xbe";
/// Where the checksum is, and its room.
const SUM_AT: usize = 448;
const SUM: usize = 64;
/// The longest JSON text that is read, and the most entries of each kind.
const LONGEST: usize = 1 << 20;
const ENTRIES: usize = 32;
/// The longest salt or digest.
const BYTES: usize = 4096;
/// The shortest digest, that of LUKS1: a wrong key must not have it by chance.
const LEAST_DIGEST: usize = super::header1::DIGEST;

/// The header as it is written.
#[derive(Clone, Debug)]
pub(super) struct Header {
    /// Bytes of each copy.
    pub(super) size: u64,
    /// Grows with each change.
    pub(super) number: u64,
    pub(super) label: String,
    pub(super) subsystem: String,
    pub(super) uuid: String,
    pub(super) json: Value,
}

impl Header {
    /// Reads the copy that counts.
    ///
    /// # Errors
    /// Neither is whole.
    pub(super) fn read(container: &Edge) -> Result<Self> {
        let first = Self::copy(container, 0, super::MAGIC);
        let known = first.as_ref().ok().map(|header| header.size);
        let places = SIZES.iter().filter(|size| known.is_none_or(|known| **size == known));
        let mut seconds = places.filter_map(|at| Self::copy(container, *at, SECOND).ok());
        match (first, seconds.next()) {
            (Ok(first), Some(second)) if second.number > first.number => Ok(second),
            (Ok(first), _) => Ok(first),
            (Err(_), Some(second)) => Ok(second),
            (Err(e), None) => Err(e),
        }
    }

    fn copy(container: &Edge, at: u64, magic: &[u8]) -> Result<Self> {
        let binary = load(container, "header", at, BINARY)?;
        let size = be64(&binary, 8);
        let is_one = binary.starts_with(magic) && be16(&binary, 6) == 2;
        if !is_one || be64(&binary, 256) != at || !SIZES.contains(&size) {
            return Err(corrupt("its header is damaged, and so is the copy").at(at));
        }
        let len = usize::try_from(size).unwrap_or(0);
        let mut all = load(container, "header", at, len)?;
        let found: [u8; SUM] = array(&all, SUM_AT);
        put(&mut all, SUM_AT, &[0; SUM]);
        let hash = Hash::parse(&text(&all, 72, 32))?;
        if Some(hash.digest(&[&all]).as_slice()) != found.get(..hash.len()) {
            return Err(corrupt("its header does not have the checksum that it gives").at(at));
        }
        let json = all.get(BINARY..).unwrap_or_default();
        let end = json.iter().position(|byte| *byte == 0).unwrap_or(json.len());
        let json = json.get(..end.min(LONGEST + 1)).unwrap_or_default();
        if json.len() > LONGEST {
            return Err(corrupt("its metadata are longer than 1 MiB").at(at));
        }
        let json = serde_json::from_slice(json);
        let json = json.map_err(|e| corrupt("its metadata are not JSON").with_source(e).at(at))?;
        Ok(Self {
            size,
            number: be64(&all, 16),
            label: text(&all, 24, 48),
            uuid: text(&all, 168, 40),
            subsystem: text(&all, 208, 48),
            json,
        })
    }

    /// Both copies, one after the other. `salts` make the copies differ.
    ///
    /// # Errors
    /// The JSON has no room.
    pub(super) fn encode(&self, salts: [[u8; 64]; 2]) -> Result<Vec<u8>> {
        let json = self.json.to_string();
        let len = usize::try_from(self.size).unwrap_or(0);
        if json.len() >= len.saturating_sub(BINARY) {
            return Err(corrupt("its metadata do not fit into the header"));
        }
        let mut both = Vec::new();
        for (magic, salt) in [super::MAGIC, SECOND].into_iter().zip(salts) {
            let mut bytes = vec![0; len];
            put(&mut bytes, 0, magic);
            put(&mut bytes, 6, &2_u16.to_be_bytes());
            put(&mut bytes, 8, &self.size.to_be_bytes());
            put(&mut bytes, 16, &self.number.to_be_bytes());
            put(&mut bytes, 24, self.label.as_bytes());
            put(&mut bytes, 72, b"sha256");
            put(&mut bytes, 104, &salt);
            put(&mut bytes, 168, self.uuid.as_bytes());
            put(&mut bytes, 208, self.subsystem.as_bytes());
            put(&mut bytes, 256, &(both.len() as u64).to_be_bytes());
            put(&mut bytes, BINARY, json.as_bytes());
            let sum = Hash::Sha256.digest(&[&bytes]);
            put(&mut bytes, SUM_AT, &sum);
            both.append(&mut bytes);
        }
        Ok(both)
    }

    /// What it means.
    ///
    /// # Errors
    /// It has features or a cipher that are not read here, or makes no sense.
    pub(super) fn volume(&self) -> Result<Volume> {
        let requirements = self.requirements();
        if !requirements.is_empty() {
            return Err(unknown_features(&requirements));
        }
        let segments = entries(&self.json, "segments")?;
        let Some((name, segment)) = segments.iter().next().filter(|_| segments.len() == 1) else {
            let count = segments.len();
            return Err(foreign(format!("its disk consists of {count} segments; one is read")));
        };
        let (segment, digest) = (segment_of(segment)?, self.digest_of(name)?);
        let keyslots = entries(&self.json, "keyslots")?;
        let mut found: Vec<_> = names(digest, "keyslots")
            .filter_map(|name| {
                let slot = keyslots.get(name)?;
                let priority = slot.get("priority").and_then(Value::as_u64).unwrap_or(1);
                // 0: not to be tried unless it is asked for.
                (priority > 0).then_some((2_u64.saturating_sub(priority), name, slot))
            })
            .collect();
        found.sort_by_key(|(rank, name, _)| (*rank, name.parse::<u32>().unwrap_or(u32::MAX)));
        let digest = check_of(digest)?;
        let slots = found.into_iter().take(ENTRIES);
        let slots = slots.map(|(_, _, slot)| slot_of(slot, &digest)?.check()).collect();
        Volume { segment, slots }.check(2 * self.size)
    }

    /// The features that one must know to change or read it.
    pub(super) fn requirements(&self) -> Vec<String> {
        let found = self.json.get("config").and_then(|config| config.get("requirements"));
        let all = match found {
            Some(Value::Object(found)) => found.get("mandatory"),
            other => other,
        };
        // What is no list is a feature that is not known.
        let all = match all {
            Some(Value::Array(all)) => all,
            other => other.map_or(&[][..], std::slice::from_ref),
        };
        let shown = |one: &Value| device::text::shown(one.as_str().unwrap_or("?")).into_owned();
        all.iter().take(ENTRIES).map(shown).collect()
    }

    /// The digest of the key of this segment.
    fn digest_of(&self, segment: &str) -> Result<&Value> {
        let mut digests = entries(&self.json, "digests")?.values();
        let found = digests.find(|digest| names(digest, "segments").any(|name| name == segment));
        found.ok_or_else(|| corrupt("its disk has no digest of its key"))
    }
}

fn segment_of(json: &Value) -> Result<Segment> {
    match word(json, "type")? {
        "crypt" => {}
        other => {
            let other = device::text::shown(other);
            return Err(foreign(format!(
                "its disk is a segment of the type `{other}`; `crypt` is read"
            )));
        }
    }
    if json.get("integrity").is_some() {
        return Err(foreign("its sectors have tags of integrity, which are not read"));
    }
    let sector = usize::try_from(number(json, "sector_size")?).unwrap_or(0);
    if !(SECTOR..=LARGEST).contains(&sector) || !sector.is_power_of_two() {
        return Err(corrupt(format!("its sectors have {sector} bytes, not 512 to 4096")));
    }
    let offset = decimal(json, "offset")?;
    let len = match word(json, "size")? {
        "dynamic" => None,
        _ => Some(decimal(json, "size")?),
    };
    if offset == 0 || offset % SECTOR as u64 != 0 || len.is_some_and(|len| len % sector as u64 != 0)
    {
        return Err(corrupt("its disk does not consist of whole sectors behind the header"));
    }
    let encryption = encryption(json)?;
    Ok(Segment { offset, len, first: decimal(json, "iv_tweak")?, encryption, sector })
}

fn check_of(json: &Value) -> Result<Digest> {
    if word(json, "type")? != "pbkdf2" {
        return Err(foreign("the digest of its key is not of PBKDF2"));
    }
    let value = bytes(json, "digest")?;
    if value.len() < LEAST_DIGEST {
        return Err(wrong("digest"));
    }
    Ok(Digest {
        hash: Hash::parse(word(json, "hash")?)?,
        iterations: narrow(json, "iterations")?,
        salt: bytes(json, "salt")?,
        value,
    })
}

fn slot_of(json: &Value, digest: &Digest) -> Result<Slot> {
    match word(json, "type")? {
        "luks2" => {}
        other => {
            let other = device::text::shown(other);
            return Err(foreign(format!("a keyslot is of the type `{other}`; `luks2` is read")));
        }
    }
    let (af, area, kdf) = (part(json, "af")?, part(json, "area")?, part(json, "kdf")?);
    let salt = bytes(kdf, "salt")?;
    let argon2 = |algorithm, salt| -> Result<Derivation> {
        let cost = Argon2Cost {
            algorithm,
            passes: narrow(kdf, "time")?,
            memory: narrow(kdf, "memory")?,
            lanes: narrow(kdf, "cpus")?,
        };
        Ok(Derivation::Argon2(cost, salt))
    };
    let derivation = match word(kdf, "type")? {
        "pbkdf2" => {
            let hash = Hash::parse(word(kdf, "hash")?)?;
            Derivation::Pbkdf2 { hash, iterations: narrow(kdf, "iterations")?, salt }
        }
        "argon2i" => argon2(Algorithm::Argon2i, salt)?,
        "argon2id" => argon2(Algorithm::Argon2id, salt)?,
        other => {
            let other = device::text::shown(other);
            return Err(foreign(format!(
                "a keyslot's key is derived by `{other}`, which is unknown"
            )));
        }
    };
    Ok(Slot {
        derivation,
        key_len: usize::try_from(number(json, "key_size")?).unwrap_or(usize::MAX),
        stripes: narrow(af, "stripes")?,
        hash: Hash::parse(word(af, "hash")?)?,
        offset: decimal(area, "offset")?,
        encryption: encryption(area)?,
        area_key_len: usize::try_from(number(area, "key_size")?).unwrap_or(usize::MAX),
        digest: digest.clone(),
    })
}

fn encryption(json: &Value) -> Result<Encryption> {
    let all = word(json, "encryption")?;
    let (cipher, mode) = all.split_once('-').unwrap_or((all, ""));
    Encryption::parse(cipher, mode)
}

/// The entries of one kind.
pub(super) fn entries<'a>(json: &'a Value, key: &str) -> Result<&'a Map<String, Value>> {
    let found = json.get(key).and_then(Value::as_object);
    let found = found.ok_or_else(|| corrupt(format!("its metadata have no `{key}`")))?;
    if found.len() > ENTRIES {
        let count = found.len();
        return Err(corrupt(format!("its metadata have {count} `{key}`; {ENTRIES} are read")));
    }
    Ok(found)
}

/// A list of the names of entries.
fn names<'a>(json: &'a Value, key: &str) -> impl Iterator<Item = &'a str> + use<'a> {
    let all = json.get(key).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    all.iter().take(ENTRIES).filter_map(Value::as_str)
}

fn part<'a>(json: &'a Value, key: &str) -> Result<&'a Value> {
    json.get(key).ok_or_else(|| corrupt(format!("its metadata have an entry without `{key}`")))
}

fn wrong(key: &str) -> device::Error {
    corrupt(format!("its metadata have an entry with a wrong `{key}`"))
}

fn word<'a>(json: &'a Value, key: &str) -> Result<&'a str> {
    part(json, key)?.as_str().ok_or_else(|| wrong(key))
}

fn number(json: &Value, key: &str) -> Result<u64> {
    part(json, key)?.as_u64().ok_or_else(|| wrong(key))
}

fn narrow(json: &Value, key: &str) -> Result<u32> {
    u32::try_from(number(json, key)?).map_err(|_| wrong(key))
}

/// A number of 64 bits, which is text in JSON.
fn decimal(json: &Value, key: &str) -> Result<u64> {
    word(json, key)?.parse().map_err(|_| wrong(key))
}

/// Base64, at most [`BYTES`] of it.
fn bytes(json: &Value, key: &str) -> Result<Vec<u8>> {
    let text = word(json, key)?;
    let found = Base64::decode_vec(text).ok();
    found.filter(|found| found.len() <= BYTES).ok_or_else(|| wrong(key))
}
