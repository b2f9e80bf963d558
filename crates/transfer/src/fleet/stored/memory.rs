//! A store in memory, for tests: with a clock of its own, which tests set, and faults.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use device::{Error, ErrorKind, Fault, Result};
use disk::{FoundRecord, ListedRecord, RecordTag, Records};
use runtime::Mutex;

use super::super::place::{OpenRecords, StoredState};

/// What becomes of writes.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) enum Trouble {
    #[default]
    None,
    /// They are not done.
    Failed,
    /// They are done, and it is not known.
    Lost,
    /// They are done, whatever their condition.
    Unconditional,
}

#[derive(Debug, Default)]
struct MemoryContents {
    objects: BTreeMap<String, (Vec<u8>, u64, Duration)>,
    count: u64,
    now: Duration,
    trouble: Trouble,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(in super::super) struct MemoryStore(Arc<Mutex<MemoryContents>>);

impl MemoryStore {
    pub(in super::super) fn state(&self) -> StoredState {
        let state = StoredState::new("s3://b/p");
        *state.opened.lock() = Some(self.open());
        state
    }

    pub(super) fn open(&self) -> OpenRecords {
        let records: Arc<dyn Records> = Arc::new(self.clone());
        OpenRecords { patient: records.clone(), hasty: records }
    }

    /// Time passes at the store.
    pub(super) fn pass(&self, seconds: u64) {
        self.0.lock().now += Duration::from_secs(seconds);
    }

    pub(super) fn trouble(&self, trouble: Trouble) {
        self.0.lock().trouble = trouble;
    }

    /// How often something was written.
    pub(super) fn writes(&self) -> u64 {
        self.0.lock().count
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.0.lock().objects.keys().cloned().collect()
    }

    pub(super) fn bytes(&self, name: &str) -> Vec<u8> {
        self.0.lock().objects[name].0.clone()
    }

    /// Puts something there, whatever there is.
    pub(super) fn put(&self, name: &str, bytes: &[u8]) {
        let mut contents = self.0.lock();
        contents.count += 1;
        let kept = (bytes.to_vec(), contents.count, contents.now);
        contents.objects.insert(name.to_owned(), kept);
    }

    fn write(
        &self,
        name: &str,
        bytes: &[u8],
        tag: Option<&RecordTag>,
    ) -> Result<Option<RecordTag>> {
        let lost = || Error::new(ErrorKind::TimedOut, Fault::Peer, "write the record");
        let (trouble, there) = {
            let contents = self.0.lock();
            (contents.trouble, contents.objects.get(name).cloned())
        };
        if trouble == Trouble::Failed {
            return Err(lost());
        }
        let tag_of = |number: u64| RecordTag(number.to_string());
        let there = there.map(|(bytes, number, _)| (bytes, tag_of(number)));
        let expected = there.as_ref().map(|(_, tag)| tag);
        match &there {
            // As a place promises: it was this write, the answer to which was lost.
            Some((kept, tag)) if kept == bytes => return Ok(Some(tag.clone())),
            _ if expected == tag || trouble == Trouble::Unconditional => self.put(name, bytes),
            _ => return Ok(None),
        }
        if trouble == Trouble::Lost { Err(lost()) } else { Ok(Some(tag_of(self.writes()))) }
    }
}

impl Records for MemoryStore {
    fn shown(&self, name: &str) -> String {
        format!("memory/{name}")
    }

    fn read(&self, name: &str) -> Result<Option<FoundRecord>> {
        let contents = self.0.lock();
        Ok(contents.objects.get(name).map(|(bytes, number, written)| FoundRecord {
            bytes: bytes.clone(),
            tag: RecordTag(number.to_string()),
            age: Some(contents.now - *written),
        }))
    }

    fn list(&self, prefix: &str, most: usize) -> Result<Vec<ListedRecord>> {
        let contents = self.0.lock();
        let all = contents.objects.iter().filter(|(name, _)| name.starts_with(prefix));
        let all: Vec<_> = all
            .map(|(name, (bytes, _, written))| ListedRecord {
                name: name.clone(),
                bytes: bytes.len() as u64,
                age: Some(contents.now - *written),
            })
            .collect();
        assert!(all.len() <= most);
        Ok(all)
    }

    fn create(&self, name: &str, bytes: &[u8]) -> Result<Option<RecordTag>> {
        self.write(name, bytes, None)
    }

    fn replace(&self, name: &str, bytes: &[u8], tag: &RecordTag) -> Result<Option<RecordTag>> {
        self.write(name, bytes, Some(tag))
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.0.lock().objects.remove(name);
        Ok(())
    }
}
