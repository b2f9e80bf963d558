//! A file of an image that is written where it lies: its bytes, and the metadata in it.

use std::ops::Range;
use std::sync::Arc;

use device::{Edge, Error, ErrorKind, Fault, Result};
use runtime::{Context, Gate, Mutex};

use super::blocks::{Blocks, Moment};
use super::cache::Cache;
use super::container::Container;

/// Bytes of changed metadata that are saved before anything else is changed.
const UNSAVED_MAX: u64 = 8 << 20;

/// The file. What was written to it is durable before the metadata that refer to it.
pub(crate) struct WrittenFile {
    pub(crate) container: Container,
    /// An edge around it.
    pub(crate) edge: Edge,
    pub(crate) blocks: Blocks,
    /// From there on all is zero until it is written.
    untouched: u64,
    /// Held while what belongs together is changed, and never while anything is read or written.
    changing: Mutex<()>,
    saving: Arc<Gate>,
    saves: Mutex<Saves>,
}

/// Which flushes have been asked for, and which were answered, by number.
#[derive(Default)]
struct Saves {
    asked: u64,
    done: u64,
}

impl WrittenFile {
    /// The file in `below`, with metadata in blocks of `unit` bytes.
    ///
    /// # Errors
    /// `ReadOnly`: an image cannot be kept right there.
    pub(crate) fn open(below: Edge, unit: u64, context: &Context) -> Result<Self> {
        if below.device().may_return() || !below.info().abilities.flush {
            let action = "cannot be written: images are written in place only in a file, on a \
                          block device or in memory, never over a connection that may be replaced";
            return Err(Error::new(ErrorKind::ReadOnly, Fault::User, action));
        }
        let untouched = if below.device().grows() { below.info().size } else { u64::MAX };
        let (container, edge) = Container::open(below);
        let blocks = Blocks::new(edge.clone(), unit, Cache::of(context).shelf());
        Ok(Self {
            container,
            edge,
            blocks,
            untouched,
            changing: Mutex::default(),
            saving: Arc::default(),
            saves: Mutex::default(),
        })
    }

    /// Whether new room from `offset` on is zero. It is given out only once.
    pub(crate) fn is_new(&self, offset: u64) -> bool {
        offset >= self.untouched
    }

    /// Changes metadata at these places, with all of their blocks in memory, together.
    ///
    /// # Errors
    /// They cannot be read: nothing is changed.
    pub(crate) async fn change(
        &self,
        places: &[u64],
        change: impl FnOnce(&Blocks) -> Result<()>,
    ) -> Result<()> {
        let mut pins = Vec::with_capacity(places.len());
        for at in places {
            pins.push(self.blocks.pin(self.blocks.start(*at)).await?);
        }
        let _one = self.changing.lock();
        change(&self.blocks)
    }

    /// The starts of the blocks of metadata with these bytes.
    pub(crate) fn starts(&self, bytes: &Range<u64>) -> Vec<u64> {
        let unit = usize::try_from(self.blocks.unit()).unwrap_or(usize::MAX);
        (self.blocks.start(bytes.start)..bytes.end).step_by(unit).collect()
    }

    /// Makes everything durable that was written, and then the metadata that refer to it.
    ///
    /// # Errors
    /// Nothing can be assumed durable.
    pub(crate) async fn flush(&self) -> Result<()> {
        self.flush_by(|moment| async move { self.blocks.save(&moment).await }).await
    }

    /// The same, where the format saves the metadata.
    ///
    /// # Errors
    /// Nothing can be assumed durable.
    pub(crate) async fn flush_by<F: Future<Output = Result<()>> + Send>(
        &self,
        save: impl FnOnce(Moment) -> F + Send,
    ) -> Result<()> {
        let number = {
            let mut saves = self.saves.lock();
            saves.asked += 1;
            saves.asked
        };
        let _alone = self.saving.alone().await;
        let asked = {
            let saves = self.saves.lock();
            if saves.done >= number {
                return Ok(());
            }
            saves.asked
        };
        let moment = {
            let _one = self.changing.lock();
            self.blocks.snapshot()
        };
        save(moment).await?;
        self.saves.lock().done = asked;
        Ok(())
    }

    /// Whether so much has piled up that it is saved before anything else is changed.
    pub(crate) fn has_much(&self) -> bool {
        self.blocks.unsaved() > UNSAVED_MAX
    }

    /// Whether metadata are not saved.
    pub(crate) fn is_unsaved(&self) -> bool {
        self.blocks.unsaved() > 0
    }
}
