//! A disk that was named: which kind of device leads to it, and with which parameters. Nothing is
//! opened or looked up until it is asked for.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use device::{Device, Error, Name, Params, Reach, Result, Use};

use runtime::Context;

use crate::creation::{Created, Creation};
use crate::inspection::{Facts, Inspection, Scope};
use crate::kind::Beside;
use crate::preallocation::{Preallocated, Preallocation, PreallocationWatch};
use crate::records::Records;
use crate::resizing::{Resized, Resizing};
use crate::storage::Storage;
use crate::stream::ByteStream;
use crate::{About, DeviceKind, OpenOptions, kind_of};

/// A disk by name. Its parameters are ones that its kind knows.
#[derive(Clone, Debug)]
pub struct Named {
    kind: &'static DeviceKind,
    params: Params,
    is_path: bool,
}

impl Named {
    /// Resolves `name`.
    ///
    /// # Errors
    /// It names no device.
    pub fn of(name: &Name) -> Result<Self> {
        let kind = kind_of(name)?;
        let (arg, params) = match name {
            Name::Path(text) => (text.clone(), Params::default()),
            Name::Uri { text, .. } => ((kind.names.of_uri)(text)?, Params::default()),
            Name::Device { arg, params, .. } => (arg.clone(), params.clone()),
        };
        let params = if arg.is_empty() { params } else { kind.with_argument(&arg, params)? };
        let named = Self::new(kind, params)?;
        Ok(Self { is_path: matches!(name, Name::Path(_)), ..named })
    }

    /// Parses and resolves a name.
    ///
    /// # Errors
    /// It is not a name, or names no device.
    pub fn parse(text: &str) -> Result<Self> {
        Self::of(&Name::parse(text)?)
    }

    /// A disk of `kind` that `params` name: nbdkit's form.
    ///
    /// # Errors
    /// The first parameter that the kind does not have, or that is given too often.
    pub fn new(kind: &'static DeviceKind, params: Params) -> Result<Self> {
        let checked = if kind.names.foreign.is_some() {
            params.check_own(kind.params)
        } else {
            params.check_declared(kind.params, kind.any_param)
        };
        checked.map_err(|e| e.on(kind.word))?;
        Ok(Self { kind, params, is_path: false })
    }

    /// A disk like the one that help shows.
    ///
    /// # Errors
    /// The example cannot be resolved; a defect.
    pub fn example(kind: &DeviceKind) -> Result<Self> {
        Self::parse(kind.example)
    }

    /// The kind of device that leads to it.
    #[must_use]
    pub fn kind(&self) -> &'static DeviceKind {
        self.kind
    }

    /// Its parameters.
    #[must_use]
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// The path, if it was named only by that.
    #[must_use]
    pub fn path(&self) -> Option<&str> {
        self.argument().filter(|_| self.is_path)
    }

    /// The value of the parameter whose key may be left out.
    fn argument(&self) -> Option<&str> {
        self.kind.magic.and_then(|magic| self.params.get(magic))
    }

    /// Where its bytes are. Nothing of the disk is opened.
    #[must_use]
    pub fn storage(&self) -> Storage {
        (self.kind.unopened.storage)(&self.params)
    }

    /// Its description by its kind, if the kind has one. It is not opened.
    ///
    /// # Errors
    /// The program to be asked is not there.
    #[must_use]
    pub fn about(&self) -> Option<Result<About>> {
        Some((self.kind.names.foreign?.about)(&self.params).map_err(|e| e.on(self.kind.word)))
    }

    /// What it needs of the system for this use.
    #[must_use]
    pub fn reaches(&self, how: Use) -> Reach {
        (self.kind.unopened.reaches)(&self.params, how)
    }

    /// What the system uses it for, so that it is not to be written; words for people. Nothing of
    /// the disk is opened.
    #[must_use]
    pub fn users(&self) -> Vec<String> {
        (self.kind.unopened.users)(&self.params)
    }

    /// Facts of the underlying device (a block device's queue), beside those of the disk itself.
    /// The disk is not opened.
    #[must_use]
    pub fn facts(&self) -> Facts {
        (self.kind.unopened.facts)(&self.params)
    }

    /// The records below this name. `within`: an operation that has not succeeded after about that
    /// time, or after one try, fails; without it, it is tried again as the name says.
    ///
    /// # Errors
    /// This kind keeps none; or the parameters make no sense.
    pub fn records(&self, within: Option<Duration>) -> Result<Arc<dyn Records>> {
        let open = self.kind.records.ok_or_else(|| {
            Error::unsupported("keep records there: name a directory, or s3://BUCKET/PREFIX")
                .on(self.to_string())
        })?;
        open(&self.params, within).map_err(|e| e.on(self.kind.word))
    }

    /// Opens it.
    ///
    /// # Errors
    /// The parameters make no sense, or what they name cannot be opened.
    pub fn open(&self, options: &OpenOptions, context: &Context) -> Result<Arc<dyn Device>> {
        (self.kind.open)(&self.params, options, context).map_err(|e| e.on(self.kind.word))
    }

    /// Opens it as a stream, if it is one: then it has no size, and can be read once. Any other
    /// disk is not opened.
    ///
    /// # Errors
    /// The parameters make no sense, or what they name cannot be opened.
    pub fn stream(&self) -> Result<Option<ByteStream>> {
        let Some(stream) = self.kind.stream else { return Ok(None) };
        stream(&self.params).map_err(|e| e.on(self.kind.word))
    }

    /// Whether opening it as a target may create something, which has to be removed after a
    /// failure.
    #[must_use]
    pub fn may_be_made(&self) -> bool {
        self.kind.target.is_some() && !matches!(self.storage(), Storage::Own)
    }

    /// Opens it as the target of a copy; creates it, if it does not exist and can be created.
    /// Nothing that exists is changed.
    ///
    /// # Errors
    /// As [`Named::open`]; or it is too small.
    pub fn create(&self, creation: &Creation, context: &Context) -> Result<Created> {
        let Some(target) = self.kind.target else {
            let device = self.open(&creation.options, context)?;
            return Ok(Created::as_it_is(device, context));
        };
        (target.create)(&self.params, creation, context).map_err(|e| e.on(self.kind.word))
    }

    /// Preallocates it; creates it, if it does not exist and can be created. What it reads as is
    /// not changed. Blocks until it is done, or `watch` stops it.
    ///
    /// # Errors
    /// The disk is full, or it cannot be preallocated; `Cancelled`.
    pub fn preallocate(
        &self,
        wish: &Preallocation,
        options: &OpenOptions,
        watch: &PreallocationWatch,
    ) -> Result<Preallocated> {
        let Some(preallocate) = self.kind.target.and_then(|target| target.preallocate) else {
            let action = "preallocate: only files and block devices can be; `zero --written` writes zeroes to any disk";
            return Err(Error::unsupported(action).on(self.to_string()));
        };
        preallocate(&self.params, wish, options, watch).map_err(|e| e.on(self.kind.word))
    }

    /// Gives it another length, and keeps what it holds. It is durable when this ends.
    ///
    /// # Errors
    /// It has a fixed length, bytes would be lost that must not be, or the disk is full.
    pub fn resize(&self, wish: &Resizing, options: &OpenOptions) -> Result<Resized> {
        let Some(resize) = self.kind.target.and_then(|target| target.resize) else {
            let action = "resize: only files can be resized";
            return Err(Error::unsupported(action).on(self.to_string()));
        };
        resize(&self.params, wish, options).map_err(|e| e.on(self.kind.word))
    }

    /// Opens, for reading, what an image on this disk names, beneath `within` if that is given;
    /// also returns its name.
    ///
    /// # Errors
    /// It cannot be opened, is elsewhere, or disks of this kind have no neighbours.
    pub fn open_beside(
        &self,
        name: &str,
        within: Option<&Path>,
        options: &OpenOptions,
        context: &Context,
    ) -> Result<(Self, Arc<dyn Device>)> {
        let beside = self.beside()?;
        let (params, device) = (beside.open)(&self.params, name, within, options, context)?;
        Ok((Self { kind: self.kind, params, is_path: true }, device))
    }

    /// What an image on this disk names, without opening it.
    ///
    /// # Errors
    /// It is not a name, or disks of this kind have no neighbours.
    pub fn named_beside(&self, name: &str) -> Result<Self> {
        let params = (self.beside()?.named)(&self.params, name)?;
        Ok(Self { kind: self.kind, params, is_path: true })
    }

    /// The whole name of what an image on this disk names, where programs differ: QEMU looks for a
    /// `data_file` in the working directory, others beside the image. `None`: beside the image.
    ///
    /// # Errors
    /// There are two such files.
    pub fn from_here(&self, name: &str) -> Result<Option<String>> {
        self.kind.beside.map_or(Ok(None), |beside| (beside.from_here)(&self.params, name))
    }

    /// Makes a file beside this disk, for an image that is being made on it.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn create_beside(
        &self,
        name: &str,
        creation: &Creation,
        context: &Context,
    ) -> Result<Created> {
        (self.beside()?.create)(&self.params, name, creation, context)
    }

    /// Its name among its neighbours.
    #[must_use]
    pub fn own_name(&self) -> Option<String> {
        self.kind.beside.and_then(|beside| (beside.own_name)(&self.params))
    }

    fn beside(&self) -> Result<Beside> {
        let none = || Error::unsupported("find the file beside it").on(self.kind.word);
        self.kind.beside.ok_or_else(none)
    }

    /// The facts that its kind can tell without opening it as a disk, if any.
    ///
    /// # Errors
    /// The parameters make no sense, or what they name does not answer.
    pub fn inspect(&self, scope: Scope, context: &Context) -> Result<Option<Inspection>> {
        let Some(inspect) = self.kind.unopened.inspect else { return Ok(None) };
        inspect(&self.params, scope, context).map(Some).map_err(|e| e.on(self.kind.word))
    }
}

/// As a user can type it: without parameters that are not part of the name.
impl std::fmt::Display for Named {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let argument = (self.kind.names.shown)(self.argument().unwrap_or_default());
        if self.is_path || argument.contains("://") {
            return f.write_str(&argument);
        }
        write!(f, "{}:{argument}", self.kind.word)
    }
}

impl DeviceKind {
    /// The parameters with the one whose key was left out.
    ///
    /// # Errors
    /// This kind takes no argument, or it is given twice.
    pub fn with_argument(&self, arg: &str, mut params: Params) -> Result<Params> {
        let none = || Error::invalid("takes no argument").on(self.word);
        if self.names.foreign.is_some() && self.magic.is_some_and(|magic| params.contains(magic)) {
            params.add("", arg);
            return Ok(params);
        }
        params.set(self.magic.ok_or_else(none)?, arg).map_err(|e| e.on(self.word))?;
        Ok(params)
    }
}
