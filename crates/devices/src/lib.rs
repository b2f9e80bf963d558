//! One file a device, and the table that names them.
//!
//! A [`Name`](device::Name) is resolved into a [`Named`], which can be opened, created, inspected,
//! and compared with another. Each device is one file or folder here and one entry in [`table`]; no
//! other code knows of it.

mod creation;
mod data;
pub mod file;
mod foreign;
mod full;
mod http;
mod inspection;
mod kind;
mod memory;
mod named;
mod nbd;
mod null;
mod options;
mod oracle;
pub mod parsers;
mod pattern;
mod plugin;
mod preallocation;
mod random;
mod records;
mod resizing;
mod sparse_random;
mod storage;
mod stream;
pub mod table;
mod upwards;
mod words;

pub use creation::{Created, Creation, Holds, Made};
pub use device::Param;
pub use inspection::{Fact, Facts, Inspection, Scope};
pub use kind::DeviceKind;
pub use named::Named;
pub use options::OpenOptions;
pub use plugins::{About, directory as plugin_directory};
pub use preallocation::{Allocation, Preallocated, Preallocation, PreallocationWatch, ZeroMethod};
pub use records::{FoundRecord, ListedRecord, RecordTag, Records, new_mark};
pub use resizing::{Length, Resized, Resizing};
pub use storage::{Relation, Storage, StoredExport, StoredRange};
pub use stream::ByteStream;
pub use table::{kind, kind_of, kinds, meant, of_command};

/// For a program that starts: to be called before it opens anything.
pub fn begin() {
    plugins::keep_low_descriptors();
}

/// For a program that starts: debug output (`verbose`) and flags, written `NAME.FLAG=N`, of the
/// processes in which plugins will run. The first call counts.
pub fn debug_processes(verbose: bool, flags: &[String]) {
    plugin::isolated::debug(verbose, flags);
}

/// For a program that ends at once: ends the processes of devices that are still open.
pub fn abandon() {
    plugins::end();
    client::abandon();
}
