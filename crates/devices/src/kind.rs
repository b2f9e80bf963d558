//! What a kind of device declares in its table entry: an entry names only what the kind has.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use device::{Device, Param, Params, Reach, Result, Use};
use runtime::Context;

use crate::creation::{Created, Creation};
use crate::inspection::{Facts, Inspection, Scope};
use crate::preallocation::{Preallocated, Preallocation, PreallocationWatch};
use crate::records::Records;
use crate::resizing::{Resized, Resizing};
use crate::storage::Storage;
use crate::stream::ByteStream;
use crate::{About, OpenOptions};

type Create = fn(&Params, &Creation, &Context) -> Result<Created>;
type OpenBeside =
    fn(&Params, &str, Option<&Path>, &OpenOptions, &Context) -> Result<(Params, Arc<dyn Device>)>;
type CreateBeside = fn(&Params, &str, &Creation, &Context) -> Result<Created>;
type Preallocate =
    fn(&Params, &Preallocation, &OpenOptions, &PreallocationWatch) -> Result<Preallocated>;
type AsStream = fn(&Params) -> Result<Option<ByteStream>>;
type Resize = fn(&Params, &Resizing, &OpenOptions) -> Result<Resized>;
type OpenRecords = fn(&Params, Option<Duration>) -> Result<Arc<dyn Records>>;
type Inspect = fn(&Params, Scope, &Context) -> Result<Inspection>;

/// A kind of device.
#[derive(Clone, Copy, Debug)]
pub struct DeviceKind {
    /// The word that names it: `memory` in `memory:1G`.
    pub word: &'static str,
    /// One line on what it is.
    pub summary: &'static str,
    /// The parameter whose key may be left out (`size` in `memory:1G`), if there is one.
    pub magic: Option<&'static str>,
    /// All parameters.
    pub params: &'static [Param],
    /// Whether it takes parameters beyond those, with names of the user's choice.
    pub any_param: bool,
    /// A name that can be opened as it is, or nearly.
    pub example: &'static str,
    /// How its disks are named, beside that.
    pub names: KindNames,
    /// Opens it. The argument is already among the parameters, and their keys are known ones.
    pub open: fn(&Params, &OpenOptions, &Context) -> Result<Arc<dyn Device>>,
    /// What is known of it without opening it.
    pub unopened: Unopened,
    /// Opens it as a stream, if it is one now: bytes that can be read once, in order. Without this
    /// it never is.
    pub stream: Option<AsStream>,
    /// What is special to it as a target. Without this it is opened as it is, nothing is created,
    /// its length is fixed, and it cannot be preallocated.
    pub target: Option<KindTarget>,
    /// How to open files that an image on it names. Without this they cannot be opened.
    pub beside: Option<Beside>,
    /// Opens the place for small records that the parameters name: see [`Named::records`]. Without
    /// this there are none.
    ///
    /// [`Named::records`]: crate::Named::records
    pub records: Option<OpenRecords>,
}

/// How disks of a kind are named, beside its word.
#[derive(Clone, Copy, Debug)]
pub struct KindNames {
    /// The schemes of the URIs that lead to it.
    pub schemes: &'static [&'static str],
    /// The argument that a URI of these schemes stands for.
    pub of_uri: fn(&str) -> Result<String>,
    /// The argument for people, without what may be secret.
    pub shown: fn(&str) -> String,
    /// The parameters for a server to run, and for each of its arguments, if this kind can start
    /// one.
    pub runs: Option<(&'static str, &'static str)>,
    /// For a kind of which another program declares the parameters: then they may occur more than
    /// once, and values may have no key (they get an empty one).
    pub foreign: Option<Foreign>,
}

impl KindNames {
    /// By its word only.
    pub(crate) const WORD: Self = Self {
        schemes: &[],
        of_uri: |uri| Ok(uri.to_owned()),
        shown: |argument| argument.to_owned(),
        runs: None,
        foreign: None,
    };
}

/// A kind of which a third party (a plugin) says what its disks are.
#[derive(Clone, Copy, Debug)]
pub struct Foreign {
    /// Whether a first word in nbdkit's form that is not in the table means a disk of this kind; it
    /// is then the argument.
    pub means: fn(&str) -> bool,
    /// The description of the disk by that party, without opening it.
    pub about: fn(&Params) -> Result<About>,
}

/// What is known of a disk by its parameters. Nothing of the disk is opened.
#[derive(Clone, Copy, Debug)]
pub struct Unopened {
    /// Where the bytes are that the parameters name.
    pub storage: fn(&Params) -> Storage,
    /// What it needs of the system, with these parameters and this use.
    pub reaches: fn(&Params, Use) -> Reach,
    /// What the system uses it for, so that it is not to be written; words for people.
    pub users: fn(&Params) -> Vec<String>,
    /// Facts of the underlying device, beside those of the disk itself.
    pub facts: fn(&Params) -> Facts,
    /// Facts that are known without opening it as a disk. Without this it is opened and asked.
    pub inspect: Option<Inspect>,
}

impl Unopened {
    /// A disk that is made or computed when it is opened, so no other program can name it.
    pub(crate) const OWN: Self = Self {
        storage: |_| Storage::Own,
        reaches: |params, _| Reach::nothing(params),
        users: |_| Vec::new(),
        facts: |_| Facts::new(),
        inspect: None,
    };
}

/// What a kind does as a target.
#[derive(Clone, Copy, Debug)]
pub struct KindTarget {
    /// Opens it as the target of a copy.
    pub create: Create,
    /// Gives it another length, and keeps its bytes. Without this its length is fixed.
    pub resize: Option<Resize>,
    /// Preallocates it; creates it, if it does not exist and can be created. Without this it cannot
    /// be preallocated.
    pub preallocate: Option<Preallocate>,
}

/// How to open files beside a disk of some kind that an image names.
#[derive(Clone, Copy, Debug)]
pub struct Beside {
    /// Opens the file of that name for reading, beneath a directory if one is given; also returns
    /// the parameters of the same kind that lead to it.
    pub open: OpenBeside,
    /// Creates a file of that name. The name is ours or the user's.
    pub create: CreateBeside,
    /// The parameters that lead to the file of that name. Nothing is opened.
    pub named: fn(&Params, &str) -> Result<Params>,
    /// The name of that file where a name that has no directory of its own is one in the working
    /// directory: see [`Named::from_here`](crate::Named::from_here).
    pub from_here: fn(&Params, &str) -> Result<Option<String>>,
    /// The name of the disk itself there.
    pub own_name: fn(&Params) -> Option<String>,
}
