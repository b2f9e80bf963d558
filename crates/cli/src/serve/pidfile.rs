//! The file with the process id: written whole or not at all, never through a symbolic link, and
//! removed at the end if it is still ours.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use programs::names;

use crate::failure::Failure;

/// A pid file that was written.
#[derive(Debug)]
pub(super) struct PidFile {
    path: PathBuf,
    text: String,
    /// It, if it was made here.
    file: Option<File>,
}

/// The name of the new file that replaces the one at `path`.
pub(super) fn new_name(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}", std::process::id()));
    path.with_file_name(name)
}

impl PidFile {
    /// Writes it.
    pub(super) fn write(path: &Path) -> Result<Self, Failure> {
        let say =
            |e: io::Error| Failure::new(format!("{}: write the pid file: {e}", path.display()));
        let path = std::path::absolute(path).map_err(say)?;
        let mut file = Self { path, text: format!("{}\n", std::process::id()), file: None };
        file.put().map_err(say)?;
        Ok(file)
    }

    fn put(&mut self) -> io::Result<()> {
        match fs::symlink_metadata(&self.path) {
            Ok(meta) if meta.is_symlink() => {
                Err(io::Error::other("it is a symbolic link, which is not followed"))
            }
            // A pipe or a device is written to, and not replaced.
            Ok(meta) if !meta.is_file() => self.put_in_place(),
            there => self.replace().or_else(|e| self.without_a_new_one(there.ok(), e)),
        }
    }

    /// Makes another file and gives it the name: a reader finds a whole one.
    fn replace(&mut self) -> io::Result<()> {
        let new = new_name(&self.path);
        let mut file = File::from(names::make(&new, 0o666)?);
        let put = file.write_all(self.text.as_bytes());
        let put = put.and_then(|()| names::replace(&self.path, &new));
        if put.is_err() {
            // The error to tell is the first one.
            let _ = names::numbers(&file).and_then(|numbers| names::remove(&new, numbers));
        }
        self.file = Some(file);
        put
    }

    /// In a directory that we may not write to, the file may have been made for us.
    fn without_a_new_one(&self, there: Option<Metadata>, e: io::Error) -> io::Result<()> {
        let refused =
            matches!(e.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem);
        if there.is_some() && refused { self.put_in_place() } else { Err(e) }
    }

    fn put_in_place(&self) -> io::Result<()> {
        let mut options = OpenOptions::new();
        options.write(true).truncate(true).custom_flags(libc::O_NOFOLLOW);
        options.open(&self.path)?.write_all(self.text.as_bytes())
    }

    /// Removes it, if it still is ours and holds our process id.
    pub(super) fn remove(&self) {
        let Some(file) = &self.file else { return };
        if self.read(file).is_ok_and(|text| text == self.text) {
            // Another program may have removed or replaced it; nothing is lost then.
            let _ = names::numbers(file).and_then(|numbers| names::remove(&self.path, numbers));
        }
    }

    fn read(&self, file: &File) -> io::Result<String> {
        // One byte more than it should have.
        let mut text = vec![0; self.text.len() + 1];
        let n = file.read_at(&mut text, 0)?;
        text.truncate(n);
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("diskferry-pid-{}-{name}", std::process::id()))
    }

    #[test]
    fn a_pid_file_of_another_program_stays() {
        let path = scratch("other");
        fs::write(&path, "an old one, which is longer\n").unwrap();
        let file = PidFile::write(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), file.text);
        fs::write(&path, "1\n").unwrap();
        file.remove();
        assert_eq!(fs::read_to_string(&path).unwrap(), "1\n");
        let file = PidFile::write(&path).unwrap();
        file.remove();
        file.remove();
        assert!(!path.exists());
    }

    #[test]
    fn a_link_is_not_followed_and_a_device_is_not_replaced() {
        let (link, victim) = (scratch("link"), scratch("victim"));
        fs::write(&victim, "precious").unwrap();
        std::os::unix::fs::symlink(&victim, &link).unwrap();
        assert!(PidFile::write(&link).is_err());
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
        fs::remove_file(link).unwrap();
        fs::remove_file(victim).unwrap();
        PidFile::write(Path::new("/dev/null")).unwrap().remove();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }
}
