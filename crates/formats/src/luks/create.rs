//! Making encrypted disks: LUKS1 as QEMU makes it, with its options, and LUKS2 as cryptsetup does.
//!
//! The header is written last. What is not written of the disk reads as noise.

use std::sync::Arc;
use std::time::Duration;

use argon2::Algorithm;
use base64ct::{Base64, Encoding as _};
use device::{Device, Edge, Error, Info, Operation, Outcome, Param, Params, Result, param, values};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use zeroize::Zeroizing;

use super::cipher::{Encryption, LARGEST, Mode, SECTOR, Vectors};
use super::derive::{Argon2Cost, Derivation, MEMORY};
use super::disk::Decrypted;
use super::hash::Hash;
use super::volume::{Digest, STRIPES, Segment, Slot};
use super::{header1, header2, secret};
use crate::kit::{Layer, Layered, clear_now, settle};
use crate::{DiskMap, Making, Measure};

pub(super) const OPTIONS: &[Param] = &{
    let [passphrase, key_file, key_serial, key_format, key_secret] = secret::PARAMS;
    [
        passphrase,
        key_file,
        key_serial,
        key_format,
        key_secret,
        param("version", "1|2", "of LUKS: 1, which QEMU can open (default), or 2"),
        param("cipher-alg", "aes-128|aes-192|aes-256", CIPHER),
        param("cipher-mode", "xts|cbc", MODE),
        param("ivgen-alg", "plain64|plain|essiv", VECTORS),
        param("ivgen-hash-alg", HASHES, VECTORS_HASH),
        param("hash-alg", HASHES, HASH),
        param("iter-time", "MS", TIME),
        param("pbkdf", "argon2id|argon2i|pbkdf2", "how a key is derived in LUKS2 (argon2id)"),
        param("pbkdf-memory", "SIZE", "the most memory for that (1G, or half of what there is)"),
        param("sector-size", "512|1024|2048|4096", "bytes of an encrypted sector, in LUKS2 (512)"),
        param("label", "TEXT", "a name of the disk, in LUKS2"),
    ]
};
pub(super) const HASHES: &str = "sha1|sha224|sha256|sha384|sha512";
pub(super) const CIPHER: &str = "cipher (aes-256)";
pub(super) const MODE: &str = "mode of the cipher (xts)";
pub(super) const VECTORS: &str = "initialization vectors of sectors (plain64)";
pub(super) const VECTORS_HASH: &str = "hash of the key for essiv (sha256)";
pub(super) const HASH: &str = "hash of the passphrase and of the stripes (sha256)";
pub(super) const TIME: &str = "how long a try of a passphrase takes here, in milliseconds (2000)";

/// Where the first keyslot of LUKS1 lies, and to what keyslots are aligned, in bytes.
const ALIGN: u64 = 4096;
/// LUKS2, as cryptsetup lays it out: each copy of the header, and where the disk begins.
const COPY: u64 = 16 << 10;
const PAYLOAD: u64 = 16 << 20;
/// The fewest iterations, and the most.
const ITERATIONS: (u64, u64) = (1000, 50_000_000);
/// How long is measured, and over how many iterations at first.
const MEASURED: Duration = Duration::from_millis(40);
const FIRST: u32 = 1000;
/// The passes and lanes of Argon2, and the least memory, in KiB.
const PASSES: u32 = 4;
const LANES: u32 = 4;
const LEAST: u64 = 64 << 10;

/// What is asked for.
pub(super) struct Plan {
    is_second: bool,
    encryption: Encryption,
    /// Bytes of the key.
    key_len: usize,
    hash: Hash,
    time: Duration,
    sector: usize,
    /// Where the disk begins.
    pub(super) payload: u64,
    /// Bytes of the disk.
    size: u64,
}

impl Plan {
    fn of(making: &Making<'_>) -> Result<Self> {
        if making.compress {
            return Err(Error::invalid("an encrypted disk cannot be compressed"));
        }
        Self::new(making.options, making.size)
    }

    /// For a disk of `size` bytes.
    ///
    /// # Errors
    /// The options make no sense.
    pub(super) fn new(options: &Params, size: u64) -> Result<Self> {
        let is_second = values::choice(options, "version", &["1", "2"])? == Some(1);
        for key in ["pbkdf", "pbkdf-memory", "sector-size", "label"] {
            if !is_second && options.get(key).is_some() {
                return Err(values::wrong(key, "only LUKS2 has it: version=2"));
            }
        }
        let cipher = values::choice(options, "cipher-alg", &["aes-256", "aes-192", "aes-128"])?;
        let key_len = [32, 24, 16].get(cipher.unwrap_or(0)).copied().unwrap_or(32);
        let mode = match values::choice(options, "cipher-mode", &["xts", "cbc"])? {
            Some(1) => Mode::Cbc,
            _ => Mode::Xts,
        };
        let essiv = values::choice(options, "ivgen-alg", &["plain64", "plain", "essiv"])?;
        // Plain vectors have no hash. Callers give one all the same, and QEMU takes it.
        let vectors = match essiv {
            Some(2) => Vectors::Essiv(hash(options, "ivgen-hash-alg")?),
            Some(1) => Vectors::Plain,
            _ => Vectors::Plain64,
        };
        match (mode, vectors) {
            (Mode::Xts, _) if key_len == 24 => {
                return Err(values::wrong("cipher-alg", "XTS has no keys of 192 bits"));
            }
            (Mode::Xts, Vectors::Essiv(_)) => {
                return Err(values::wrong("ivgen-alg", "essiv is for cipher-mode=cbc"));
            }
            (_, Vectors::Essiv(hash)) if !matches!(hash.len(), 16 | 24 | 32) => {
                return Err(values::wrong(
                    "ivgen-hash-alg",
                    "AES has no keys of that length; sha256 fits",
                ));
            }
            _ => {}
        }
        let key_len = if mode == Mode::Xts { key_len * 2 } else { key_len };
        let sector = values::number(options, "sector-size")?.unwrap_or(SECTOR as u64);
        let sector = usize::try_from(sector).unwrap_or(0);
        if !(SECTOR..=LARGEST).contains(&sector) || !sector.is_power_of_two() {
            return Err(values::wrong("sector-size", "it is not 512, 1024, 2048 or 4096"));
        }
        let payload = if is_second { PAYLOAD } else { ALIGN + 8 * area(key_len) };
        let size = size.checked_next_multiple_of(sector as u64);
        let size = size.filter(|size| size.checked_add(payload).is_some_and(|end| end >> 63 == 0));
        let size = size.ok_or_else(|| Error::unfit("an encrypted disk cannot be so large"))?;
        let Pace(time) = Pace::read(options)?;
        Ok(Self {
            is_second,
            encryption: Encryption { mode, vectors },
            key_len,
            hash: hash(options, "hash-alg")?,
            time,
            sector,
            payload,
            size,
        })
    }

    fn end(&self) -> u64 {
        self.payload + self.size
    }

    pub(super) fn segment(&self) -> Segment {
        let Self { encryption, sector, payload, .. } = *self;
        Segment { offset: payload, len: None, first: 0, encryption, sector }
    }

    /// How many iterations take as long as that here.
    fn iterations(&self, hash: Hash, len: usize, time: Duration) -> u32 {
        Pace(time).iterations(hash, len)
    }

    /// A way to derive a key that takes as long as was asked for.
    fn derivation(&self, options: &Params) -> Result<Derivation> {
        let salt = random(32)?.to_vec();
        let kinds = ["argon2id", "argon2i", "pbkdf2"];
        let algorithm = match values::choice(options, "pbkdf", &kinds)? {
            _ if !self.is_second => None,
            Some(2) => None,
            Some(1) => Some(Algorithm::Argon2i),
            _ => Some(Algorithm::Argon2id),
        };
        let Some(algorithm) = algorithm else {
            let iterations = self.iterations(self.hash, self.key_len, self.time);
            return Ok(Derivation::Pbkdf2 { hash: self.hash, iterations, salt });
        };
        let half = super::system::memory() / 2;
        let most = values::size(options, "pbkdf-memory")?.unwrap_or(MEMORY.min(half)) >> 10;
        let least = LEAST.min(most);
        let cost = |memory: u64| Argon2Cost {
            algorithm,
            passes: PASSES,
            memory: u32::try_from(memory).unwrap_or(u32::MAX),
            lanes: LANES,
        };
        let start = computed();
        Derivation::Argon2(cost(least), salt.clone()).derive(b"measured", self.key_len)?;
        let taken = computed().saturating_sub(start).as_nanos().max(1);
        let wanted = u128::from(least) * self.time.as_nanos() / taken;
        let memory = u64::try_from(wanted).unwrap_or(u64::MAX).clamp(least, most.max(least));
        Ok(Derivation::Argon2(cost(memory), salt))
    }
}

/// How long a try of a passphrase is to take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace(Duration);

impl Pace {
    /// `iter-time`.
    ///
    /// # Errors
    /// It is 0, or more than a minute.
    pub(super) fn read(options: &Params) -> Result<Self> {
        let time = values::number(options, "iter-time")?.unwrap_or(2000);
        if time == 0 || time > 60_000 {
            return Err(values::wrong("iter-time", "it is from 1 to 60000 milliseconds"));
        }
        Ok(Self(Duration::from_millis(time)))
    }

    /// How many iterations take as long as that here, for a key of `len` bytes.
    pub(super) fn iterations(self, hash: Hash, len: usize) -> u32 {
        let Self(time) = self;
        let mut count = FIRST;
        let taken = loop {
            let start = computed();
            hash.pbkdf2(b"measured", b"with salt", count, len);
            let taken = computed().saturating_sub(start);
            if taken >= MEASURED || count > 1 << 28 {
                break taken;
            }
            count = count.saturating_mul(2);
        };
        let wanted = u128::from(count) * time.as_nanos() / taken.as_nanos().max(1);
        let wanted = u64::try_from(wanted).unwrap_or(u64::MAX).clamp(ITERATIONS.0, ITERATIONS.1);
        u32::try_from(wanted).unwrap_or(u32::MAX)
    }
}

/// For how long this thread has computed. A clock on the wall makes weak keys on a busy machine.
fn computed() -> Duration {
    clock_gettime(ClockId::ThreadCPUTime).try_into().unwrap_or_default()
}

fn hash(options: &Params, key: &str) -> Result<Hash> {
    let names: Vec<_> = Hash::ALL.iter().map(|(name, _)| *name).collect();
    let index = values::choice(options, key, &names)?;
    let found = index.and_then(|index| Hash::ALL.get(index)).map(|(_, hash)| *hash);
    Ok(found.unwrap_or(Hash::Sha256))
}

/// Bytes of a keyslot's stripes, with the room up to the next.
fn area(key_len: usize) -> u64 {
    (key_len as u64 * u64::from(STRIPES)).next_multiple_of(ALIGN)
}

/// Bytes from the system's source of them.
pub(super) fn random(len: usize) -> Result<Zeroizing<Vec<u8>>> {
    let mut bytes = Zeroizing::new(vec![0; len]);
    let mut at = 0;
    while let Some(rest) = bytes.get_mut(at..).filter(|rest| !rest.is_empty()) {
        match device::random_bytes(rest) {
            Ok(count) => at += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(Error::os("get random bytes", e)),
        }
    }
    Ok(bytes)
}

fn salt<const N: usize>() -> Result<[u8; N]> {
    let bytes = random(N)?;
    Ok(crate::kit::fields::array(&bytes, 0))
}

fn uuid() -> Result<String> {
    let mut bytes = salt::<16>()?;
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let cuts = [0..8, 8..12, 12..16, 16..20, 20..32];
    let parts = cuts.into_iter().filter_map(|cut| hex.get(cut));
    Ok(parts.collect::<Vec<_>>().join("-"))
}

pub(super) fn open(
    container: Edge,
    making: &Making<'_>,
    _: DiskMap<'_>,
) -> Result<Arc<dyn Device>> {
    let plan = Plan::of(making)?;
    let secret = secret::of(making.options)?;
    let end = plan.end();
    container.check("make an encrypted disk of", 0, end)?;
    let new = new_key(&plan, making.options, &secret)?;
    // An old header must not be taken for that of the new disk.
    clear_now(&container, 0, plan.payload)?;
    new.write_slot(&container, 0)?;
    let NewKey { key, header, .. } = new;
    let disk = Decrypted::new(container, plan.segment(), plan.size, &key)?;
    let disk = Arc::new(disk);
    Ok(Layered::device(New { disk, header, end, durable: making.durable }))
}

/// The key of a new disk, with its header and its first keyslot.
pub(super) struct NewKey {
    pub(super) key: Zeroizing<Vec<u8>>,
    pub(super) header: Vec<u8>,
    stripes: Zeroizing<Vec<u8>>,
    /// Where the keyslot lies.
    slot: u64,
}

impl NewKey {
    /// Writes the keyslot, of a header at `start`.
    ///
    /// # Errors
    /// What the disk says.
    pub(super) fn write_slot(&self, container: &Edge, start: u64) -> Result<()> {
        container.write(&self.stripes, start + self.slot, false)
    }
}

/// A new key under `secret`. Computes for as long as the options say.
///
/// # Errors
/// There are no random bytes, or not the memory that the options ask for.
pub(super) fn new_key(plan: &Plan, options: &Params, secret: &[u8]) -> Result<NewKey> {
    let key = loop {
        let key = random(plan.key_len)?;
        let (one, other) = key.split_at(plan.key_len / 2);
        // Halves that are the same would make XTS worthless.
        if one != other {
            break key;
        }
    };
    let derivation = plan.derivation(options)?;
    let time = plan.time / 8;
    let (first, hash) = (if plan.is_second { 2 * COPY } else { ALIGN }, plan.hash);
    let slot = |digest| Slot {
        derivation,
        key_len: plan.key_len,
        stripes: STRIPES,
        hash,
        offset: first,
        encryption: plan.encryption,
        area_key_len: plan.key_len,
        digest,
    };
    let (header, slot) = if plan.is_second {
        let iterations = plan.iterations(hash, hash.len(), time);
        let digest = Digest::of(&key, hash, iterations, salt::<32>()?.to_vec(), hash.len());
        let slot = slot(digest);
        let label = options.get("label").unwrap_or_default();
        if label.len() > 47 {
            return Err(values::wrong("label", "it has at most 47 bytes"));
        }
        let header = header2::Header {
            size: COPY,
            number: 1,
            label: label.to_owned(),
            subsystem: String::new(),
            uuid: uuid()?,
            json: metadata(plan, &slot),
        };
        (header.encode([salt()?, salt()?])?, slot)
    } else {
        let iterations = plan.iterations(hash, header1::DIGEST, time);
        let digest = Digest::of(&key, hash, iterations, salt::<32>()?.to_vec(), header1::DIGEST);
        let slot = slot(digest);
        (heading(plan, &slot)?.encode(), slot)
    };
    let mut stripes = random(slot.area_len())?;
    slot.fill(&key, secret, &mut stripes)?;
    Ok(NewKey { key, header, stripes, slot: slot.offset })
}

/// The header of LUKS1.
fn heading(plan: &Plan, slot: &Slot) -> Result<header1::Header> {
    let sectors = |bytes: u64| u32::try_from(bytes / SECTOR as u64).unwrap_or(u32::MAX);
    let mut slots = [header1::HeaderSlot::default(); header1::COUNT];
    for (slot, number) in slots.iter_mut().zip(0_u64..) {
        slot.offset = sectors(ALIGN + number * area(plan.key_len));
        slot.stripes = STRIPES;
    }
    let Derivation::Pbkdf2 { iterations, salt, .. } = &slot.derivation else {
        return Err(Error::unsupported("make LUKS1 with Argon2"));
    };
    slots[0] = header1::HeaderSlot {
        is_used: true,
        iterations: *iterations,
        salt: crate::kit::fields::array(salt, 0),
        ..slots[0]
    };
    Ok(header1::Header {
        cipher: "aes".to_owned(),
        mode: plan.encryption.mode_name(),
        hash: plan.hash.name().to_owned(),
        payload: sectors(plan.payload),
        key_len: u32::try_from(plan.key_len).unwrap_or(u32::MAX),
        digest: crate::kit::fields::array(&slot.digest.value, 0),
        salt: crate::kit::fields::array(&slot.digest.salt, 0),
        iterations: slot.digest.iterations,
        uuid: uuid()?,
        slots,
    })
}

/// The metadata of LUKS2.
fn metadata(plan: &Plan, slot: &Slot) -> Value {
    let encoded = Base64::encode_string;
    let encryption = format!("aes-{}", plan.encryption.mode_name());
    let kdf = match &slot.derivation {
        Derivation::Pbkdf2 { hash, iterations, salt } => json!({
            "type": "pbkdf2", "hash": hash.name(), "iterations": iterations, "salt": encoded(salt),
        }),
        Derivation::Argon2(cost, salt) => json!({
            "type": cost.algorithm.as_str(), "time": cost.passes, "memory": cost.memory,
            "cpus": cost.lanes, "salt": encoded(salt),
        }),
    };
    let keyslot = json!({
        "type": "luks2",
        "key_size": plan.key_len,
        "af": { "type": "luks1", "stripes": STRIPES, "hash": slot.hash.name() },
        "area": {
            "type": "raw", "offset": slot.offset.to_string(),
            "size": area(plan.key_len).to_string(), "encryption": encryption,
            "key_size": slot.area_key_len,
        },
        "kdf": kdf,
    });
    let segment = json!({
        "type": "crypt", "offset": plan.payload.to_string(), "size": "dynamic", "iv_tweak": "0",
        "encryption": encryption, "sector_size": plan.sector,
    });
    let Digest { hash, iterations, salt, value } = &slot.digest;
    let digest = json!({
        "type": "pbkdf2", "keyslots": ["0"], "segments": ["0"], "hash": hash.name(),
        "iterations": iterations, "salt": encoded(salt), "digest": encoded(value),
    });
    json!({
        "keyslots": { "0": keyslot },
        "tokens": {},
        "segments": { "0": segment },
        "digests": { "0": digest },
        "config": {
            "json_size": (COPY - header2::BINARY as u64).to_string(),
            "keyslots_size": (PAYLOAD - 2 * COPY).to_string(),
        },
    })
}

pub(super) fn measure(making: &Making<'_>, _: DiskMap<'_>) -> Result<Measure> {
    let end = Plan::of(making)?.end();
    // Before anything that exists is changed; it is not read twice, since it may come from a pipe.
    secret::check_named(making.options)?;
    Ok(Measure { required: end, fully_allocated: end })
}

/// A disk that is being made.
struct New {
    disk: Arc<Decrypted>,
    header: Vec<u8>,
    end: u64,
    durable: bool,
}

impl Layer for New {
    fn info(&self) -> &Info {
        self.disk.info()
    }

    fn below(&self) -> Vec<&Edge> {
        self.disk.below()
    }

    async fn run(self: Arc<Self>, operation: Operation) -> Result<Outcome> {
        self.disk.clone().run(operation).await
    }

    fn read_now(&self, offset: u64, buffer: &mut [u8]) -> Result<bool> {
        self.disk.read_now(offset, buffer)
    }

    async fn finish(self: Arc<Self>) -> Result<()> {
        let container = self.disk.container();
        settle(container, self.durable)?;
        container.write(&self.header, 0, false)?;
        container.device().resize(self.end)?;
        container.device().finish()
    }
}
