//! Images of containers with a disk in them (KubeVirt's containerDisk), in OCI's layout: a
//! directory with an index, and blobs that are named by their digests; or that directory as a tar,
//! as `docker save` and `skopeo copy … oci-archive:` write it.
//!
//! The index leads to a manifest, and that to layers. The disk is the only file in `/disk` of the
//! uppermost layer that has one. Whatever is used was hashed before: the index says what the
//! manifest is, the manifest what the layers are, and a blob with another digest or length is
//! refused. A layer is hashed as a whole when the disk is opened. Nothing is fetched.

mod documents;

use std::collections::HashSet;
use std::sync::Arc;

use device::{Device, Edge, Error, ErrorKind, Fault, Params, Result, param, part, text};
use runtime::to_usize;
use sha2::{Digest, Sha256};

use crate::format::{Format, PackingKind, Upkeep};
use crate::tar::{self, ContainedDisk, TarSearch, find_in_tar};
use crate::{Closed, Description, Files, Head, Opening, Reference, Role};
use documents::{Blob, ImageManifest, Index, Next};

/// The file by which such a directory is known.
const INDEX: &str = "index.json";
/// Bytes of an index or a manifest, at most.
const LONGEST: u64 = 4 << 20;
/// Indexes that lead to indexes, at most.
const DEEPEST: usize = 4;
/// Headers of the tar that a layout is in, or of a layer, at most.
const HEADERS: u64 = 1 << 20;
/// Bytes that are hashed at a time.
const PIECE: u64 = 1 << 20;

pub(crate) const FORMAT: Format = Format {
    word: "oci",
    summary: "an image of a container with a disk in /disk, in OCI's layout",
    is_plain: false,
    packing: Some(PackingKind::Directory(INDEX)),
    params: &[
        param("tag", "NAME", "which image of the layout (the only one in it)"),
        param("arch", "ARCH", "for which processor: amd64, arm64 … (this one's)"),
        param(
            "entry",
            "PATH",
            "which file, named as `tar tf` lists it in its layer (the one in /disk)",
        ),
        param("inside", "FORMAT", "what that file is: a format, or `raw` (raw)"),
    ],
    recognises,
    open,
    // What it holds is found by those who open it.
    describe: |container, _| {
        Ok(Description { virtual_size: container.info().size, ..Description::default() })
    },
    write: None,
    create: None,
    check: None,
    upkeep: Upkeep::NONE,
};

/// An index begins as JSON and says where its manifests are; a layout in a tar begins with one of
/// its own names.
fn recognises(head: &Head) -> bool {
    let first = head.first();
    if let Some((name, _)) = first.first_chunk().and_then(tar::member) {
        let name = name.strip_prefix(b"./").unwrap_or(&name);
        return name == INDEX.as_bytes() || name == b"oci-layout" || name.starts_with(b"blobs/");
    }
    let json = first.trim_ascii_start();
    let word = br#""manifests""#;
    json.starts_with(b"{") && json.windows(word.len()).any(|at| at == word)
}

fn open(container: Edge, opening: &Opening<'_>) -> Result<Arc<dyn Device>> {
    let layout = Layout::of(container, opening)?;
    let wanted = Next {
        tag: opening.params.get("tag"),
        arch: opening.params.get("arch").unwrap_or_else(|| documents::arch()),
    };
    let manifest = layout.manifest(&wanted)?;
    // It says nothing that is used here, but an image without it is not whole.
    layout.read(&manifest.config)?;
    layout.disk(&manifest, opening)
}

/// Where blobs are.
enum Layout<'a> {
    Directory { index: Edge, files: &'a dyn Files },
    Tar(Edge),
}

impl<'a> Layout<'a> {
    fn of(container: Edge, opening: &Opening<'a>) -> Result<Self> {
        let head = Head::of(&container)?;
        Ok(if head.first().first_chunk().is_some_and(|block| tar::member(block).is_some()) {
            Self::Tar(container)
        } else {
            Self::Directory { index: container, files: opening.files }
        })
    }

    /// The file of this name.
    fn file(&self, name: &str) -> Result<Edge> {
        match self {
            Self::Directory { index, .. } if name == INDEX => Ok(index.clone()),
            Self::Directory { files, .. } => {
                files.open(&Reference { name, role: Role::Data, format: Some("raw") })
            }
            Self::Tar(tar) => {
                let find = |name: &str| {
                    let search =
                        TarSearch { entry: Some(name), headers: HEADERS, ..TarSearch::default() };
                    find_in_tar(tar, &search)
                };
                let (start, len) =
                    find(name).or_else(|e| find(&format!("./{name}")).map_err(|_| e))?;
                Ok(Edge::new(part(tar.clone(), start, len)?, tar.pool().clone()))
            }
        }
    }

    /// A blob, of the length that is said.
    fn blob(&self, blob: &Blob) -> Result<Edge> {
        let name = format!("blobs/sha256/{}", blob.sha256);
        let file = self.file(&name)?;
        let size = file.info().size;
        if size != blob.size {
            let said = blob.size;
            return Err(broken(&format!("the blob {blob} has {size} bytes, and not {said}")));
        }
        Ok(file)
    }

    /// A blob that is a document: all of it, once it is known to be what was meant.
    fn read(&self, blob: &Blob) -> Result<Vec<u8>> {
        if blob.size > LONGEST {
            return Err(too_much(&format!("a document of {} bytes", blob.size)));
        }
        let bytes = all_of(&self.blob(blob)?)?;
        verified(blob, &Sha256::digest(&bytes))?;
        Ok(bytes)
    }

    fn manifest(&self, wanted: &Next<'_>) -> Result<ImageManifest> {
        let index = self.file(INDEX)?;
        if index.info().size > LONGEST {
            return Err(too_much("an index of more than 4 MiB"));
        }
        let mut index = Index::parse(&all_of(&index)?)?;
        let mut wanted = *wanted;
        for _ in 0..DEEPEST {
            let next = index.choose(&wanted)?;
            let bytes = self.read(&next)?;
            match Index::parse(&bytes) {
                Ok(deeper) => index = deeper,
                Err(_) => return ImageManifest::parse(&bytes),
            }
            // The tag is that of what the first index names.
            wanted.tag = None;
        }
        Err(too_much("indexes that lead to more than four others"))
    }

    /// The disk, in the uppermost layer that has one.
    fn disk(&self, manifest: &ImageManifest, opening: &Opening<'_>) -> Result<Arc<dyn Device>> {
        let entry = opening.params.get("entry").filter(|name| !name.is_empty());
        let mut gone = HashSet::new();
        for blob in manifest.layers.iter().rev() {
            let layer = self.blob(blob)?;
            verified(blob, &hashed(&layer)?)?;
            let layer = unpacked(layer, opening)?;
            match tar::contained(&layer, entry, HEADERS, &mut gone)? {
                ContainedDisk::At(start, len) => return part(layer, start, len),
                ContainedDisk::None => {}
                ContainedDisk::Ends => break,
            }
        }
        Err(Error::unfit(match entry {
            Some(name) => format!("no layer of the image has a file `{}`", text::shown(name)),
            None => "no layer of the image has a file in /disk: it is not a containerDisk".into(),
        }))
    }
}

/// A layer without its compression.
fn unpacked(layer: Edge, opening: &Opening<'_>) -> Result<Edge> {
    let found = crate::recognise(&Head::of(&layer)?);
    let Some(stream) = found.filter(|found| found.packing == Some(PackingKind::Stream)) else {
        return Ok(layer);
    };
    let pool = layer.pool().clone();
    let (params, context) = (&Params::default(), opening.context);
    let opening = Opening { params, files: &Closed, context };
    Ok(Edge::new((stream.open)(layer, &opening)?, pool))
}

fn all_of(file: &Edge) -> Result<Vec<u8>> {
    let mut bytes = vec![0; to_usize(file.info().size)];
    file.read(&mut bytes, 0)?;
    Ok(bytes)
}

/// The digest of all of it.
fn hashed(file: &Edge) -> Result<[u8; 32]> {
    let (mut at, size) = (0, file.info().size);
    let (mut sum, mut piece) = (Sha256::new(), vec![0; to_usize(PIECE.min(size))]);
    while at < size {
        let now = piece.get_mut(..to_usize((size - at).min(PIECE))).unwrap_or_default();
        file.read(now, at)?;
        sum.update(&*now);
        at += now.len() as u64;
    }
    Ok(sum.finalize().into())
}

/// Refuses a blob that is not what its digest says.
fn verified(blob: &Blob, sum: &[u8]) -> Result<()> {
    let hex: String = sum.iter().map(|byte| format!("{byte:02x}")).collect();
    if hex == blob.sha256 {
        return Ok(());
    }
    Err(broken(&format!("the blob {blob} is not what its digest says: it has {}…", short(&hex))))
}

/// The beginning of a digest, for people.
fn short(hex: &str) -> &str {
    hex.get(..12).unwrap_or(hex)
}

fn broken(what: &str) -> Error {
    Error::unfit(format!("the OCI image: {what}"))
}

fn too_much(what: &str) -> Error {
    Error::new(ErrorKind::Limit, Fault::File, format!("the OCI image has {what}"))
}
