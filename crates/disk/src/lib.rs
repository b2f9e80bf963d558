//! Opening disks by name, for every verb and every program: a name leads to a kind of device, the
//! device is opened, the disk in it if it is an image, and filters are put over it.
//!
//! This is the only place where they are put together. It knows no kind in particular: what is
//! special to one is in its table entry. It prints nothing, and decides nothing that is up to the
//! user.

mod commit;
mod concat;
mod contents;
mod describe;
mod examine;
mod gate;
mod image;
mod kinds;
mod naming;
mod nodes;
mod open;
mod qemu;
mod reach;
mod rebase;
mod salvage;
mod stack;
mod upkeep;

pub use commit::{CopyExtents, commit};
pub use concat::{ConcatPart, concat};
pub use contents::Contents;
pub use describe::{Described, describe, describe_chain};
pub use devices::{
    About, Allocation, ByteStream, Created, Creation, Fact, Facts, FoundRecord, Holds, Inspection,
    Length, ListedRecord, Made, Named, OpenOptions, Preallocated, Preallocation,
    PreallocationWatch, RecordTag, Records, Relation, Resized, Resizing, Scope, Storage,
    ZeroMethod, abandon, begin, debug_processes, new_mark, of_command, plugin_directory,
};
pub use devices::{DeviceKind, kind as device, kind_of as leads_to, meant};
pub use examine::{Checked, Measured, Remade, check, looks_like, measure, measure_bitmaps, remake};
pub use filters::{FilterKind, HOLDS_BACK, kind as filter};
pub use formats::{
    BitmapChange, Description, Findings, Format, Measure, NewRoom, PackingKind, Repair, Repaired,
    Snapshot, SnapshotChange, Upkeep, format, formats, tar_member,
};
pub use gate::{External, check_apart, open_backing, relate, relate_all};
pub use image::{Content, Image};
pub use kinds::{ShownKind, StackRole, kinds, kinds_of};
pub use naming::named;
pub use nodes::{NamedNode, node};
pub use open::{Opened, create, create_for, open};
pub use qemu::NodeObjects;
pub use reach::{files_beside, reach};
pub use rebase::{NewBacking, rebase};
pub use salvage::{OnGap, salvage};
pub use stack::Stack;
pub use upkeep::{KeptImage, keep};
