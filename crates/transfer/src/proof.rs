//! What is said of the contents that were copied: their digest, and a manifest. Both come from what
//! the copy reads anyway.

use std::fs::File;
use std::io::BufWriter;
use std::sync::Arc;

use copy::{Cancel, Watched};
use device::{Error, Result};
use runtime::Mutex;

use crate::digest::{ContentDigest, Digester};
use crate::job::JobDigest;
use crate::manifest::{ManifestWriter, stretch_for};

/// The digest that is being computed, and the manifest that is being written.
pub struct ContentProof {
    digester: Arc<Digester>,
    manifest: Option<SharedWriter>,
    /// The manifest cannot be written any more.
    failed: Cancel,
}

runtime::debug_as!(ContentProof);

type SharedWriter = Arc<Mutex<Option<ManifestWriter<BufWriter<File>>>>>;

impl ContentProof {
    /// Begins, for a disk of this many bytes, if that is known.
    ///
    /// # Errors
    /// The manifest's file cannot be used.
    pub fn begin(digest: &JobDigest, size: Option<u64>) -> Result<Self> {
        Self::begin_as(digest, size, size)
    }

    /// The same of a disk that is digested as one of so many bytes.
    ///
    /// # Errors
    /// The manifest's file cannot be used.
    pub fn begin_as(
        JobDigest { kind, manifest }: &JobDigest,
        size: Option<u64>,
        digested: Option<u64>,
    ) -> Result<Self> {
        let digester = Digester::new(*kind);
        let failed = Cancel::default();
        let Some(file) = manifest else {
            return Ok(Self { digester: Arc::new(digester), manifest: None, failed });
        };
        let is_live = !file.metadata().is_ok_and(|about| about.is_file());
        let file = file.try_clone().map_err(|e| Error::os("use the file of the manifest", e))?;
        let stretch = stretch_for(digested.unwrap_or(0)).max(kind.block);
        let writer = ManifestWriter::new(BufWriter::new(file), *kind, stretch, (size, is_live));
        let writer = Arc::new(Mutex::new(Some(writer)));
        let (each, fails) = (writer.clone(), failed.clone());
        let digester = digester.with_stretches(stretch, move |range| {
            if let Some(writer) = &mut *each.lock() {
                writer.add(&range);
                if writer.has_failed() {
                    fails.cancel();
                }
            }
        });
        Ok(Self { digester: Arc::new(digester), manifest: Some(writer), failed })
    }

    /// Is cancelled when the manifest cannot be written any more: what only computes it may stop.
    #[must_use]
    pub fn failed(&self) -> &Cancel {
        &self.failed
    }

    /// What computes it.
    #[must_use]
    pub fn digester(&self) -> &Arc<Digester> {
        &self.digester
    }

    /// What sees all that is copied.
    #[must_use]
    pub fn watched(&self) -> Watched {
        Watched(self.digester.clone())
    }

    /// Why it cannot.
    #[must_use]
    pub fn why_failed(&self) -> Option<Error> {
        let failed = self.manifest.as_ref()?.lock().as_mut()?.take_failure()?;
        Some(Error::os("write the manifest", failed))
    }

    /// All was seen, `size` bytes: completes the manifest.
    ///
    /// # Errors
    /// Something was not seen, or the manifest cannot be written.
    pub fn finish(&self, size: u64) -> Result<ContentDigest> {
        let digest = self.digester.finish(size)?;
        self.end(size, &digest)?;
        Ok(digest)
    }

    /// Completes the manifest, with a digest that was computed.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn end(&self, size: u64, digest: &ContentDigest) -> Result<()> {
        let writer = self.manifest.as_ref().and_then(|writer| writer.lock().take());
        let Some(writer) = writer else { return Ok(()) };
        let finish = || {
            let file = writer.finish(size, digest)?.into_inner()?;
            // What cannot be synced (a pipe) keeps nothing.
            match file.metadata()?.is_file() {
                true => file.sync_data(),
                false => Ok(()),
            }
        };
        finish().map_err(|e: std::io::Error| Error::os("write the manifest", e))
    }
}
