//! `tar`: shows one file in a tar archive as a disk.
//!
//! The format of that name finds it. Writes go into the archive, in place, and never outside the
//! file.

use device::{param, part, values};
use formats::{TarSearch, find_in_tar};

use crate::FilterKind;

pub(crate) const KIND: FilterKind = FilterKind {
    word: "tar",
    summary: "exposes one file in a tar archive as a disk",
    params: &[
        param(
            "tar-entry",
            "PATH",
            "which file, named as in the archive (`tar tf`); without it the only disk: by its ending, or in /disk",
        ),
        param(
            "tar-limit",
            "SIZE",
            "how far into the archive to look for it (default 0: to its end)",
        ),
        param("tar", "PROGRAM", "accepted, as nbdkit has it; no program is needed"),
    ],
    example: "serve --filter=tar file disks.tar tar-entry=disk.img --run 'nbdinfo \"$uri\"'",
    open: |params, below, _| {
        let search = TarSearch {
            entry: params.get("tar-entry").filter(|name| !name.is_empty()),
            key: "tar-entry",
            limit: values::size(params, "tar-limit")?.filter(|limit| *limit > 0),
            ..TarSearch::default()
        };
        let (start, len) = find_in_tar(&below, &search)?;
        part(below, start, len)
    },
    ..FilterKind::PLAIN
};

#[cfg(test)]
mod tests;
