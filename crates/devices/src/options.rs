//! How a device is to be opened, whatever it is.

/// Options for opening a device. Devices ignore those that do not apply.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent wishes, named where they are set")]
pub struct OpenOptions {
    /// It will be written. Without this a device is read-only.
    pub write: bool,
    /// If the system refuses to open it for writing, open it for reading only. For servers; a
    /// copy wants the error.
    pub or_read_only: bool,
    /// Exclude other programs as QEMU's tools do, unless the device's own parameter says
    /// otherwise.
    pub lock: bool,
    /// A block device is opened for writing although the system uses it.
    pub force: bool,
    /// As a target it has to be created: an existing one is left alone, and is an error.
    pub new: bool,
    /// It is served to clients that may ask for any name. A device with names of its own need not
    /// have a default disk.
    pub by_name: bool,
    /// Otherwise, of those disks of a device with names of its own: this one; if it is empty, the
    /// default one.
    pub export: String,
    /// Its map will be asked for. A peer that is not asked may answer reads with holes.
    pub map: bool,
    /// So will its other status contexts.
    pub contexts: bool,
    /// It is read or written once, from end to end: pages need not stay in memory, unless the
    /// device's own parameter says otherwise.
    pub once: bool,
    /// What is read comes from the disk, and not from the page cache, as far as the system allows
    /// that.
    pub past_cache: bool,
    /// For users of nbdkit: where nbdkit's plugin of a device's name differs in what a client sees,
    /// it is as there.
    pub as_nbdkit: bool,
    /// How many connections to open to a peer that allows several. At least 1.
    pub connections: usize,
}

impl Default for OpenOptions {
    /// For reading, locked, one connection.
    fn default() -> Self {
        Self {
            write: false,
            or_read_only: false,
            lock: true,
            force: false,
            new: false,
            by_name: false,
            export: String::new(),
            map: true,
            contexts: false,
            once: false,
            past_cache: false,
            as_nbdkit: false,
            connections: 1,
        }
    }
}

impl OpenOptions {
    /// For reading only.
    #[must_use]
    pub fn read_only() -> Self {
        Self::default()
    }

    /// For reading and writing.
    #[must_use]
    pub fn read_write() -> Self {
        Self { write: true, ..Self::default() }
    }
}
