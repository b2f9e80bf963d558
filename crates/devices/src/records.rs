//! Small records in a place that many processes share, where none can be locked: each is read and
//! written as a whole, and a write says what it expects to be there.
//!
//! A kind of device that keeps such records says so in its table entry. What is said to be written
//! is durable, and all who read from then on see it.

use std::fmt::Debug;
use std::time::Duration;

use device::{Error, Result};

/// Bytes of a record, at most.
pub(crate) const LONGEST_RECORD: usize = 1 << 20;

/// See the module. Names of records are letters, digits, `.` and `-`. No two writes have the same
/// bytes, unless it does not matter whose they are: an answer can be lost when the store has done
/// what it was asked, and then the bytes tell whose write it was.
pub trait Records: Debug + Send + Sync {
    /// A record's name for people; without one, that of all of them.
    fn shown(&self, name: &str) -> String;

    /// A record, if it is there.
    ///
    /// # Errors
    /// The store cannot be asked, or refuses; or the record is too long.
    fn read(&self, name: &str) -> Result<Option<FoundRecord>>;

    /// All records whose names begin like that, in order.
    ///
    /// # Errors
    /// The store cannot be asked, or refuses; or there are more than `most`.
    fn list(&self, prefix: &str, most: usize) -> Result<Vec<ListedRecord>>;

    /// Makes a record. `None`: one is there, or is just being made.
    ///
    /// # Errors
    /// The store cannot be asked, or refuses: it may be there, or not.
    fn create(&self, name: &str, bytes: &[u8]) -> Result<Option<RecordTag>>;

    /// Makes another record of the one that has this tag. `None`: it has another by now, or is
    /// gone.
    ///
    /// # Errors
    /// The store cannot be asked, or refuses: it may have been replaced, or not.
    fn replace(&self, name: &str, bytes: &[u8], tag: &RecordTag) -> Result<Option<RecordTag>>;

    /// Removes a record, whatever it is by now, if it is there.
    ///
    /// # Errors
    /// The store cannot be asked, or refuses: it may be there, or not.
    fn remove(&self, name: &str) -> Result<()>;
}

/// What tells a record from those that had its name before and will have it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RecordTag(pub String);

/// A record that was read.
#[derive(Clone, Debug)]
pub struct FoundRecord {
    /// What it says.
    pub bytes: Vec<u8>,
    /// By which it is replaced.
    pub tag: RecordTag,
    /// How long ago it was written, by the store's own clock alone; `None`: the store tells no
    /// time.
    pub age: Option<Duration>,
}

/// A record in a list.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ListedRecord {
    /// Its name.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// As of [`FoundRecord::age`].
    pub age: Option<Duration>,
}

/// A word that nobody else has.
///
/// # Errors
/// The system has no random bytes.
pub fn new_mark() -> Result<String> {
    let mut random = [0; 16];
    device::random_bytes(&mut random).map_err(|e| Error::os("make a mark", e))?;
    Ok(format!("{:032x}", u128::from_be_bytes(random)))
}
