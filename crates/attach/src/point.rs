//! Where a disk is to be attached, as users write it: `FILE`, or `fuse:FILE?key=value`.

use std::path::{Path, PathBuf};

use device::{Error, Name, Result, values};

/// Where a disk is to be attached.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Point {
    /// The file that the disk appears as. Absolute.
    pub path: PathBuf,
    /// How.
    pub options: PointOptions,
}

/// How a disk appears as a file.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct PointOptions {
    /// Reads may come from the page cache of the mount, even if another client changed the disk.
    pub cached: bool,
    /// Other users may open it, as far as its mode and owner allow.
    pub allow_other: bool,
}

const KEYS: [&str; 2] = ["cache", "allow-other"];

impl Point {
    /// Reads a point.
    ///
    /// # Errors
    /// It is empty, of another kind, or has unknown parameters.
    pub fn parse(text: &str) -> Result<Self> {
        let (path, mut options) = match Name::parse(text)? {
            Name::Path(path) => (path, PointOptions::default()),
            Name::Device { kind, arg, params } if kind == "fuse" => {
                params.check(&KEYS)?;
                params.check_once(&[])?;
                let flag = |key| values::flag(&params, key).map(|flag| flag == Some(true));
                let options = PointOptions { cached: flag(KEYS[0])?, allow_other: flag(KEYS[1])? };
                (arg, options)
            }
            Name::Device { kind, .. } => {
                let what = format!("attach: there is no `{kind}:`; write a file, or fuse:FILE");
                return Err(Error::invalid(what));
            }
            Name::Uri { .. } => {
                return Err(Error::invalid("attach: a disk is attached at a file, not at a URI"));
            }
        };
        // Root may let others in; it is the mode of the file that keeps them out.
        options.allow_other |= rustix::process::geteuid().is_root();
        if path.is_empty() {
            return Err(Error::invalid("attach: the name of the file is empty"));
        }
        let absolute = std::path::absolute(Path::new(&path));
        let path = absolute.map_err(|e| Error::os("find the working directory", e))?;
        Ok(Self { path, options })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_is_a_file_with_options_and_nothing_else() {
        let point = Point::parse("fuse:/mnt/disk?cache=true").unwrap();
        assert_eq!(point.path, Path::new("/mnt/disk"));
        assert!(point.options.cached);
        assert!(Point::parse("disk.img").unwrap().path.is_absolute());
        assert!(!Point::parse("/mnt/a=b").unwrap().options.cached);
        for wrong in ["", "fuse:", "ublk:0", "nbd://host", "fuse:/x?cashe=1", "fuse:/x?cache=2"] {
            assert!(Point::parse(wrong).is_err(), "{wrong}");
        }
    }
}
