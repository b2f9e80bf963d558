//! What makes a key of a passphrase, slowly on purpose, and how much of that a header may ask for.
//!
//! A header is not trusted: it could ask for more memory than there is, or for years. What one
//! opening may cost is bounded, over all keyslots together.

use argon2::{Algorithm, Argon2, Block, Params, Version};
use device::{Error, ErrorKind, Fault, Result, format_size};
use zeroize::Zeroizing;

use super::hash::Hash;
use crate::kit::fields::corrupt;

/// Iterations of a hash in one opening: a minute or two.
const ITERATIONS: u64 = 1 << 28;
/// Bytes that Argon2 fills in one opening, all passes together: about a minute.
const FILLED: u64 = 64 << 30;
/// Memory of Argon2, unless the user allows another: what cryptsetup takes at most by itself.
pub(super) const MEMORY: u64 = 1 << 30;

/// How a key follows from a passphrase.
#[derive(Clone, Debug)]
pub(super) enum Derivation {
    Pbkdf2 { hash: Hash, iterations: u32, salt: Vec<u8> },
    Argon2(Argon2Cost, Vec<u8>),
}

/// Which Argon2, and what it costs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Argon2Cost {
    pub(super) algorithm: Algorithm,
    pub(super) passes: u32,
    /// In KiB.
    pub(super) memory: u32,
    pub(super) lanes: u32,
}

/// What one opening may still cost.
#[derive(Debug)]
pub(super) struct Budget {
    iterations: u64,
    filled: u64,
    /// Bytes at a time.
    memory: u64,
}

impl Budget {
    pub(super) fn new(memory: u64) -> Self {
        Self { iterations: ITERATIONS, filled: FILLED, memory }
    }

    /// Takes the cost of deriving `len` bytes.
    ///
    /// # Errors
    /// `Limit`: nothing was taken.
    pub(super) fn take(&mut self, derivation: &Derivation, len: usize) -> Result<()> {
        let limit = |why: String| Err(Error::new(ErrorKind::Limit, Fault::File, why));
        match derivation {
            Derivation::Pbkdf2 { hash, iterations, .. } => {
                let blocks = len.div_ceil(hash.len()) as u64;
                let Some(rest) = self.iterations.checked_sub(u64::from(*iterations) * blocks)
                else {
                    return limit(format!(
                        "a keyslot asks for {iterations} iterations of PBKDF2; {ITERATIONS} blocks of a key are \
                         computed at most, for all keyslots"
                    ));
                };
                self.iterations = rest;
            }
            Derivation::Argon2(cost, _) => {
                let memory = u64::from(cost.memory) << 10;
                if memory > self.memory {
                    return limit(format!(
                        "a keyslot asks for {} of memory, and {} are allowed; kdf-memory={}M allows it",
                        format_size(memory),
                        format_size(self.memory),
                        memory.div_ceil(1 << 20)
                    ));
                }
                let filled = memory.saturating_mul(cost.passes.into());
                let Some(rest) = self.filled.checked_sub(filled) else {
                    let passes = cost.passes;
                    return limit(format!(
                        "a keyslot asks for {passes} passes over {} of memory; {} are filled at most, for all \
                         keyslots",
                        format_size(memory),
                        format_size(FILLED)
                    ));
                };
                self.filled = rest;
            }
        }
        Ok(())
    }
}

impl Derivation {
    /// `len` bytes; the caller has a [`Budget`] for that.
    ///
    /// # Errors
    /// The numbers make no sense, or there is not so much memory.
    pub(super) fn derive(&self, passphrase: &[u8], len: usize) -> Result<Zeroizing<Vec<u8>>> {
        let (cost, salt) = match self {
            Self::Pbkdf2 { hash, iterations, salt } => {
                return Ok(hash.pbkdf2(passphrase, salt, *iterations, len));
            }
            Self::Argon2(cost, salt) => (cost, salt),
        };
        let wrong =
            |e: argon2::Error| corrupt(format!("a keyslot's Argon2 has wrong numbers: {e}"));
        let params = Params::new(cost.memory, cost.passes, cost.lanes, Some(len)).map_err(wrong)?;
        let blocks = params.block_count();
        let mut memory = Zeroizing::new(Vec::new());
        memory.try_reserve_exact(blocks).map_err(|e| {
            let what =
                format!("take {} of memory for Argon2", format_size(u64::from(cost.memory) << 10));
            Error::new(ErrorKind::NoMemory, Fault::File, what).with_source(e)
        })?;
        memory.resize(blocks, Block::default());
        let argon2 = Argon2::new(cost.algorithm, Version::V0x13, params);
        let mut out = Zeroizing::new(vec![0; len]);
        let hashed =
            argon2.hash_password_into_with_memory(passphrase, salt, &mut out, &mut memory[..]);
        hashed.map_err(wrong).map(|()| out)
    }
}
