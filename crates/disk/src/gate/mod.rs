//! The gate to what images name: which files are opened because an untrusted image names them, and
//! which are made because a new image has several.
//!
//! Nothing is opened unless the user has allowed it. A name in an image is the name of a file: it
//! never leads to a server, to options in JSON, or to anything but a regular file or block device.
//! A chain is finite: its depth is limited, and no file is in it twice.

use std::path::PathBuf;
use std::sync::Arc;

use device::{Device, Edge, Error, ErrorKind, Fault, Params, Result, text};
use devices::{Creation, Holds, Made, Named, OpenOptions, Relation, Storage};
use formats::{Closed, Files, Format, NewRoom, Reference, Role};
use runtime::{Context, Mutex};

use crate::Image;
use crate::qemu::{NamedBase, named_base};

/// Images over images, at most. QEMU has no limit, and crashes at some thousands.
const DEEPEST: usize = 200;

/// Which files an image may name.
#[derive(Clone, Debug, Default)]
pub enum External {
    /// None.
    #[default]
    Nothing,
    /// Those beneath this directory, at any depth; no link is followed on the way.
    Beneath(PathBuf),
    /// Those beneath the directory of the image itself, if its format was named: what looks like an
    /// image may be a disk that a guest has written.
    Beside,
    /// Any that its chain leads to, as with qemu-img: the images are trusted.
    Chain,
}

/// The gate between an image and the files that it names.
#[derive(Debug)]
pub(crate) struct ImageGate {
    /// The image.
    disk: Named,
    /// What it may name,
    external: External,
    /// and which files the images that it names may name.
    deeper: External,
    /// The user named the files that are opened: then one may be a disk on a server.
    is_of_user: bool,
    /// See [`Image::guess_backing`].
    guess_backing: bool,
    options: OpenOptions,
    context: Context,
    /// Where the bytes of this image are, and of those that are over it.
    above: Vec<Storage>,
    /// How further files are made, if any may be.
    creation: Option<Creation>,
    made: Mutex<Vec<Box<dyn Made>>>,
    /// Files that no further file may be made of.
    spared: Vec<Storage>,
    /// Below the image at this depth (the first is at 1) the chain ends: its backing image counts
    /// as an empty disk.
    last: Option<usize>,
    /// Where the bytes are of all files that were opened, also by the gates of images that this one
    /// names.
    reached: Arc<Mutex<Vec<Storage>>>,
}

impl ImageGate {
    /// For an image that is opened.
    pub(crate) fn of(
        disk: &Named,
        image: &Image,
        options: &OpenOptions,
        context: &Context,
    ) -> Self {
        Self {
            disk: disk.clone(),
            external: image.external_of(disk),
            deeper: image.external_of(disk),
            is_of_user: false,
            guess_backing: image.guess_backing,
            options: options.clone(),
            context: context.clone(),
            above: vec![disk.storage()],
            creation: None,
            made: Mutex::default(),
            spared: Vec::new(),
            last: image.ignore_backing.then_some(1),
            reached: Arc::default(),
        }
    }

    /// For an image that is being made: the user named the files. None is made of a file that is
    /// `spared`.
    pub(crate) fn making(self, creation: &Creation, spared: &[Storage]) -> Self {
        let spared = spared.to_vec();
        Self { creation: Some(creation.clone()), spared, ..self.of_user() }
    }

    /// The same for a file that the user names: only what that one names has to be allowed.
    pub(crate) fn of_user(self) -> Self {
        Self { external: External::Chain, is_of_user: true, ..self }
    }

    /// The same where the chain ends with its image at this depth.
    pub(crate) fn ending(self, last: usize) -> Self {
        Self { last: Some(last), ..self }
    }

    /// How deep its image is in the chain. The first one is at 1.
    pub(crate) fn depth(&self) -> usize {
        self.above.len()
    }

    /// Where the bytes are of all that was opened so far.
    pub(crate) fn reached(&self) -> Vec<Storage> {
        self.reached.lock().clone()
    }

    /// What was made so far.
    pub(crate) fn made(&self) -> Vec<Box<dyn Made>> {
        std::mem::take(&mut self.made.lock())
    }

    /// The gate for an image that this one names.
    pub(crate) fn beside(&self, disk: Named) -> Result<Self> {
        let storage = disk.storage();
        if self.above.iter().any(|above| above.relation(&storage) == Relation::Same) {
            let action = "names an image that it is part of: the chain never ends";
            return Err(Error::new(ErrorKind::Corrupt, Fault::File, action));
        }
        if self.above.len() >= DEEPEST {
            let action = format!("is an image over more than {DEEPEST} others");
            return Err(Error::new(ErrorKind::Limit, Fault::File, action));
        }
        let above = self.above.iter().cloned().chain([storage]).collect();
        let (external, guess_backing) = (self.deeper.clone(), self.guess_backing);
        let image = Image { external, guess_backing, ..Image::default() };
        let gate = Self::of(&disk, &image, &self.options, &self.context);
        Ok(Self { above, last: self.last, reached: self.reached.clone(), ..gate })
    }

    /// Opens a file that an image names, as it is, if that is allowed.
    pub(crate) fn reach(&self, reference: &Reference<'_>) -> Result<(Named, Edge)> {
        self.reach_as(reference, false)
    }

    fn reach_as(&self, reference: &Reference<'_>, write: bool) -> Result<(Named, Edge)> {
        let within = match &self.external {
            External::Nothing => return Err(formats::refusal(reference)),
            External::Beside => return Err(formats::refusal_of_guessed(reference)),
            External::Beneath(directory) => Some(directory.as_path()),
            External::Chain => None,
        };
        let (name, file) = (reference.name, self.file_of(reference)?);
        // What is to be written is never silently read-only: the format decides what that means.
        let options = OpenOptions { write, or_read_only: false, ..self.options.clone() };
        let name = match &file {
            None => name,
            Some(NamedBase::File(path, _)) => path,
            Some(NamedBase::Disk(disk)) if self.is_of_user => {
                let device = disk.open(&options, &self.context);
                let device = device.map_err(|e| e.on(text::shown(name)))?;
                self.reached.lock().push(disk.storage());
                return Ok(((**disk).clone(), self.edge(device)));
            }
            Some(NamedBase::Disk(_)) => return Err(elsewhere(name)),
        };
        let here = match reference.role {
            Role::DataFile => self.disk.from_here(name)?,
            Role::Backing | Role::Data | Role::Part => None,
        };
        let found = here.as_deref().unwrap_or(name);
        let opened = self.disk.open_beside(found, within, &options, &self.context);
        let (disk, device) = opened.map_err(|e| e.on(text::shown(name)))?;
        self.reached.lock().push(disk.storage());
        Ok((disk, self.edge(device)))
    }

    /// What a name means that is no path: only that of a backing image may be one.
    fn file_of(&self, reference: &Reference<'_>) -> Result<Option<NamedBase>> {
        let name = reference.name;
        match named_base(name).filter(|_| reference.role == Role::Backing) {
            None if leads_elsewhere(name) => Err(elsewhere(name)),
            None => Ok(None),
            Some(Err(e)) if self.is_of_user => Err(e.on(text::shown(name))),
            Some(Err(_)) => Err(elsewhere(name)),
            Some(Ok(NamedBase::File(_, Some(word))))
                if reference.format.is_some_and(|own| own != word) =>
            {
                let action = "the node in this name has another format than the backing format";
                Err(Error::new(ErrorKind::Denied, Fault::File, action).on(text::shown(name)))
            }
            Some(Ok(file)) => Ok(Some(file)),
        }
    }

    /// Opens the disk in a backing image to write into it, if that is allowed. Its format is named.
    /// One in an image that has fewer bytes than `size` is made longer before.
    pub(crate) fn open_base(&self, reference: &Reference<'_>, size: u64) -> Result<(Named, Edge)> {
        let named = |e: Error| e.on(text::shown(reference.name));
        let (mut disk, mut container) = self.reach_as(reference, true)?;
        if let Some(format) = Image::of(reference.format.unwrap_or_default())?.format()
            && self.grow(format, disk.clone(), &container, size).map_err(named)?
        {
            // An open container has the length with which it was opened.
            drop(container);
            (disk, container) = self.reach_as(reference, true)?;
        }
        let edge = self.backing(disk.clone(), container, reference.format).map_err(named)?;
        if !edge.info().abilities.write {
            return Err(named(Error::unsupported("write into a backing image of this format")));
        }
        Ok((disk, edge))
    }

    /// Says whether it had to.
    fn grow(&self, format: &Format, disk: Named, container: &Edge, size: u64) -> Result<bool> {
        let gate = self.beside(disk)?;
        if (format.describe)(container, &self.context)?.virtual_size >= size {
            return Ok(false);
        }
        let resize = format.upkeep.resize.ok_or_else(|| {
            Error::unsupported("make a backing image of this format longer").on(format.word)
        })?;
        let (params, context) = (&Params::default(), &self.context);
        let opening = formats::Opening { params, files: &gate, context };
        // Images have whole sectors.
        let size = |before: u64| Ok(size.next_multiple_of(512).max(before));
        resize(container.clone(), &opening, &size, NewRoom::None).map(|()| true)
    }

    /// Refuses a file of a new image, backing or its own, that is the container of that image.
    pub(crate) fn check_file(&self, name: &str) -> Result<()> {
        self.check_apart_from(name, &self.above)
    }

    /// Refuses an existing file that shares bytes with any of `others`.
    fn check_apart_from(&self, name: &str, others: &[Storage]) -> Result<()> {
        let options = OpenOptions { lock: false, ..OpenOptions::read_only() };
        match open_backing(&self.disk, name, &options, &self.context) {
            Ok((there, _)) => {
                check_apart(&there.storage(), others).map_err(|e| e.on(text::shown(name)))
            }
            // The code that uses it reports the error.
            Err(_) => Ok(()),
        }
    }

    /// Refuses a backing image that consists of this image's container, or lies over it, at any
    /// depth. Only the heads of images are read, none is locked, and what cannot be read has no
    /// further depth.
    fn check_chain(&self, first: &Reference<'_>) -> Result<()> {
        let options = OpenOptions { lock: false, ..OpenOptions::read_only() };
        let (mut disk, mut name) = (self.disk.clone(), first.name.to_owned());
        let mut format = first.format.map(str::to_owned);
        for _ in 0..DEEPEST {
            match named_base(&name) {
                None => {}
                Some(Ok(NamedBase::File(path, _))) => name = path,
                Some(_) => break,
            }
            let Ok(below) = disk.named_beside(&name) else { break };
            let apart = |disk: &Named| {
                let apart = check_apart(&disk.storage(), &self.above);
                apart.map_err(|e| e.on(text::shown(first.name)))
            };
            apart(&below)?;
            let image = format.as_deref().map_or_else(|| Ok(Image::guessed()), Image::of);
            let described = image.and_then(|image| {
                let (named, device) = disk.open_beside(&name, None, &options, &self.context)?;
                crate::describe::of_container(named, self.edge(device), &image, &self.context)
            });
            let Ok(crate::Described { description, .. }) = described else { break };
            for file in &description.data_files {
                let here = below.from_here(&file.name).ok().flatten();
                let file = here.as_deref().unwrap_or(&file.name);
                below.named_beside(file).map_or(Ok(()), |file| apart(&file))?;
            }
            let Some(backing) = description.backing else { break };
            (disk, name, format) = (below, backing.name, backing.format);
        }
        Ok(())
    }

    fn edge(&self, device: Arc<dyn Device>) -> Edge {
        Edge::new(device, self.context.pool.clone())
    }

    /// The disk in a backing image.
    fn backing(&self, disk: Named, container: Edge, format: Option<&str>) -> Result<Edge> {
        let image = match format {
            Some(word) => Image::of(word)?,
            None => Image::guessed(),
        };
        let gate = self.beside(disk)?;
        match image.format_of(&container)? {
            None => Ok(container),
            Some(found) if format.is_some() => image.open(found, container, &gate, &self.context),
            Some(found) if self.guess_backing => {
                let (name, word) = (&container.info().name, found.word);
                self.context.log.say(format_args!("{name}: no format named; detected {word}"));
                let nothing = External::Nothing;
                let gate = Self { external: nothing.clone(), deeper: nothing, ..gate };
                image.open(found, container, &gate, &self.context)
            }
            Some(found) => {
                // A virtual machine may have written something into a raw disk that looks like an
                // image.
                let action = format!(
                    "looks like a {} image, and the image over it does not say whether it is one; \
                     give it a backing format (`qemu-img rebase -u -F FORMAT`)",
                    found.word
                );
                Err(Error::new(ErrorKind::Denied, Fault::File, action))
            }
        }
    }
}

/// Refuses to write over any of `others`, where their names show it: files and block devices.
///
/// # Errors
/// The target shares bytes with one of them.
pub fn check_apart<'a>(
    target: &Storage,
    others: impl IntoIterator<Item = &'a Storage>,
) -> Result<()> {
    let meets = |other: &Storage| {
        matches!(other, Storage::Spans(_))
            && matches!(other.relation(target), Relation::Same | Relation::Overlapping)
    };
    if others.into_iter().any(meets) {
        let action = "contains data of the image or of its backing chain; it was not changed";
        return Err(Error::unfit(action));
    }
    Ok(())
}

/// What the names tell about the two ends of a copy: `Same`, also if only parts are, `Apart`, or
/// `Unknown`. On servers a disk may be copied onto itself, with care.
///
/// # Errors
/// Both are files or block devices, and the copy would write over what it reads.
pub fn relate(source: &Named, target: &Named) -> Result<Relation> {
    let kept = target.storage();
    let on_disk = matches!(kept, Storage::Spans(_));
    let relation = source.storage().relation(&kept);
    let action = match relation {
        Relation::Apart | Relation::Unknown => return Ok(relation),
        Relation::Same | Relation::Overlapping if !on_disk => return Ok(Relation::Same),
        Relation::Same => format!("is the source itself ({source}); nothing was changed"),
        Relation::Overlapping => {
            format!("holds bytes of the source ({source}), at other offsets; nothing was changed")
        }
    };
    Err(Error::unfit(action).on(target.to_string()))
}

/// What is known of the target and of all that the source is made of: the files that it names, too.
/// `Apart` only if that is proven for each.
#[must_use]
pub fn relate_all<'a>(source: impl IntoIterator<Item = &'a Storage>, target: &Storage) -> Relation {
    let relations = source.into_iter().map(|storage| storage.relation(target));
    relations.fold(Relation::Apart, Relation::and)
}

fn elsewhere(name: &str) -> Error {
    let action = "an image names a file only by its path; to use this, name it on the command line";
    Error::new(ErrorKind::Denied, Fault::File, action).on(text::shown(name))
}

/// Whether a name in an image names something other than a file, in qemu-img's form: `json:{…}`,
/// `nbd://…`.
fn leads_elsewhere(name: &str) -> bool {
    name.split(['/', ':']).next().is_some_and(|word| name[word.len()..].starts_with(':'))
}

/// Opens a backing image that the user names for an image on `disk`: a file beside it, or, in
/// QEMU's words, an export of a server.
///
/// # Errors
/// It cannot be opened.
pub fn open_backing(
    disk: &Named,
    name: &str,
    options: &OpenOptions,
    context: &Context,
) -> Result<(Named, Arc<dyn Device>)> {
    match named_base(name).transpose().map_err(|e| e.on(text::shown(name)))? {
        Some(NamedBase::Disk(found)) => {
            let device = found.open(options, context)?;
            Ok((*found, device))
        }
        Some(NamedBase::File(path, _)) => disk.open_beside(&path, None, options, context),
        None => disk.open_beside(name, None, options, context),
    }
}

impl Files for ImageGate {
    fn open(&self, reference: &Reference<'_>) -> Result<Edge> {
        if self.last == Some(self.depth()) && reference.role == Role::Backing {
            self.check_chain(reference)?;
            return crate::concat(Vec::new(), &self.context);
        }
        let (disk, container) = self.reach(reference)?;
        let named = |e: Error| e.on(text::shown(reference.name));
        match reference.role {
            Role::Data | Role::DataFile | Role::Part => {
                self.beside(disk).map_err(named)?;
                Ok(container)
            }
            Role::Backing => self.backing(disk, container, reference.format).map_err(named),
        }
    }

    fn open_to_write(&self, reference: &Reference<'_>) -> Result<Edge> {
        let (disk, container) = self.reach_as(reference, true)?;
        self.beside(disk).map_err(|e| e.on(text::shown(reference.name)))?;
        Ok(container)
    }

    fn create(&self, name: &str) -> Result<Edge> {
        let Some(creation) = &self.creation else { return Closed.create(name) };
        let creation = Creation { grows: true, whole: true, ..creation.clone() };
        self.check_file(name)?;
        self.check_apart_from(name, &self.spared)?;
        let created = self.disk.create_beside(name, &creation, &self.context)?;
        if created.holds != Holds::Zeroes {
            let action = "make it a part of an image: it is not a file, so it cannot be truncated";
            return Err(Error::unfit(action).on(text::shown(name)));
        }
        let mut made = self.made.lock();
        made.extend(created.made);
        Ok(created.edge)
    }

    fn name(&self) -> Option<String> {
        self.disk.own_name()
    }
}

#[cfg(test)]
mod tests;
