//! What is said of the contents that were copied: their digest, and a manifest. Both come from what
//! the copy reads anyway.
//!
//! Files for them are opened before anything else, so that the sandbox may close behind them.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use transfer::job::JobDigest;
use transfer::{ContentDigest, DigestKind};

use crate::digest::line;
use crate::failure::Failure;
use crate::output;

/// A file that is there may be written over if it is no longer than this: it may be an old digest.
const DIGEST: usize = 256;

/// What is to be said.
#[derive(Clone, Debug)]
pub(crate) struct ProofWish {
    pub(crate) kind: DigestKind,
    /// A line with the target's name, for `digest --check`; otherwise the digest alone, as nbdcopy
    /// prints it.
    pub(crate) named: bool,
    /// Not on standard output, but here.
    pub(crate) to: Option<PathBuf>,
    pub(crate) manifest: Option<PathBuf>,
    /// Whether the digest is printed at all.
    pub(crate) prints: bool,
}

/// Its files, open.
#[derive(Debug)]
pub(crate) struct ProofFiles {
    wish: ProofWish,
    to: Option<File>,
    manifest: Option<File>,
}

impl ProofFiles {
    /// Opens the files; those that may hold something else are left alone.
    pub(crate) fn open(wish: &ProofWish) -> Result<Self, Failure> {
        let old_digest = |head: &[u8]| head.len() < DIGEST;
        let old_manifest = |head: &[u8]| head.is_empty() || head.starts_with(b"{\"manifest\":");
        let to =
            wish.to.as_deref().map(|path| open_empty(path, "digest", old_digest)).transpose()?;
        let open_manifest = |path: &Path| match path == Path::new(output::STREAM) {
            true => standard_output(),
            false => open_empty(path, "manifest", old_manifest),
        };
        let manifest = wish.manifest.as_deref().map(open_manifest).transpose()?;
        Ok(Self { wish: wish.clone(), to, manifest })
    }

    /// What a job needs of them.
    pub(crate) fn of_job(&self) -> Result<JobDigest, Failure> {
        let manifest = self.manifest.as_ref().map(File::try_clone).transpose();
        let manifest = manifest.map_err(|e| Failure::new(format!("--manifest: {e}")))?;
        Ok(JobDigest { kind: self.wish.kind, manifest: manifest.map(Arc::new) })
    }

    /// All was copied, and the target has its name: says what was.
    pub(super) fn say(
        self,
        digest: device::Result<ContentDigest>,
        name: &str,
    ) -> Result<(), Failure> {
        let failed = |e: &dyn std::fmt::Display| {
            Failure::new(format!("{name}: all bytes were copied, but there is no digest: {e}"))
        };
        let digest = digest.map_err(|e| failed(&e))?;
        let line = match self.wish.named {
            true => line(&digest, name),
            false => format!("{digest}\n").into(),
        };
        let prints = self.wish.prints;
        match self.to.as_ref().filter(|_| prints) {
            Some(mut file) => file.write_all(&line).map_err(|e| failed(&e))?,
            None if prints => {
                output::finish(|out| out.write_all(&line).map(|()| ExitCode::SUCCESS))?;
            }
            None => {}
        }
        Ok(())
    }
}

/// Opens a file to be written anew, if what it holds now is `old`, which is given the beginning of
/// it.
pub(super) fn open(path: &Path, what: &str, old: impl Fn(&[u8]) -> bool) -> Result<File, Failure> {
    let failed = |e| Failure::new(format!("{what} {}: {e}", path.display()));
    let mut options = File::options();
    let is_file = std::fs::metadata(path).map_or(true, |about| about.is_file());
    if !is_file {
        return options.write(true).open(path).map_err(failed);
    }
    let file =
        options.read(true).write(true).create(true).truncate(false).open(path).map_err(failed)?;
    let mut head = Vec::new();
    (&file).take(DIGEST as u64).read_to_end(&mut head).map_err(failed)?;
    if !old(&head) {
        let path = path.display();
        return Err(Failure::new(format!(
            "{path}: is not an old {what}; nothing was changed: name another file, or remove it"
        )));
    }
    Ok(file)
}

/// What standard output is, as a file.
fn standard_output() -> Result<File, Failure> {
    let output = std::io::stdout().as_fd().try_clone_to_owned();
    output.map(File::from).map_err(|e| Failure::new(format!("use standard output: {e}")))
}

/// The same, and empties it.
fn open_empty(path: &Path, what: &str, old: impl Fn(&[u8]) -> bool) -> Result<File, Failure> {
    let file = open(path, what, old)?;
    empty(&file).map_err(|e| Failure::new(format!("{what} {}: {e}", path.display())))?;
    Ok(file)
}

/// Empties a file, which is written from its beginning on. What is no file has nothing to be
/// emptied of.
pub(super) fn empty(mut file: &File) -> std::io::Result<()> {
    if file.metadata()?.is_file() {
        file.set_len(0)?;
        file.rewind()?;
    }
    Ok(())
}
