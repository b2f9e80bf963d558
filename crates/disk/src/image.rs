//! How named bytes are interpreted: as the disk itself, or as a container with a disk in it.

use std::path::PathBuf;

use device::{Edge, Error, Params, Result, text};
use formats::{Format, Head, PackingKind};
use runtime::Context;

use crate::gate::{External, ImageGate};
use devices::Named;

/// How the named bytes are interpreted.
#[derive(Clone, Debug, Default)]
pub struct Image {
    /// The kind of content.
    pub content: Content,
    /// Whether the user named it.
    pub is_told: bool,
    /// The format's parameters, for opening.
    pub params: Params,
    /// `-o`, for creating.
    pub options: Params,
    /// `-c`, for creating; of an image that is written where it lies: whole clusters become
    /// compressed ones.
    pub compress: bool,
    /// Which files it may name.
    pub external: External,
    /// Guess the format of a backing image where it is not named; such an image must not name files
    /// itself. For reading only; otherwise one that looks like an image is refused.
    pub guess_backing: bool,
    /// The backing image that its options name is not opened when the image is created.
    pub ignore_backing: bool,
}

/// What the bytes are.
#[derive(Clone, Copy, Debug, Default)]
pub enum Content {
    /// The disk.
    #[default]
    Raw,
    /// What they look like: for reading only, since a raw disk may be made to look like an image.
    Guess,
    /// An image of this format.
    Format(&'static Format),
}

impl Image {
    /// An image of the format `word`.
    ///
    /// # Errors
    /// There is none of that name.
    pub fn of(word: &str) -> Result<Self> {
        let format = formats::format(word)?;
        let content = if format.is_plain { Content::Raw } else { Content::Format(format) };
        Ok(Self { content, is_told: true, ..Self::default() })
    }

    /// What it looks like.
    #[must_use]
    pub fn guessed() -> Self {
        Self { content: Content::Guess, ..Self::default() }
    }

    /// The format, where it is named; `None` for raw bytes and for a guess.
    #[must_use]
    pub fn format(&self) -> Option<&'static Format> {
        match self.content {
            Content::Format(format) => Some(format),
            Content::Raw | Content::Guess => None,
        }
    }

    /// Which files the image in this disk may name.
    pub(crate) fn external_of(&self, disk: &Named) -> External {
        match &self.external {
            External::Beside => match self.beside(disk) {
                Some(directory) => External::Beneath(directory),
                // Its refusals say what is missing.
                None if matches!(self.content, Content::Guess) => External::Beside,
                None => External::Nothing,
            },
            other => other.clone(),
        }
    }

    /// The directory of the image, if its format was named.
    pub(crate) fn beside(&self, disk: &Named) -> Option<PathBuf> {
        let path = self.format().and_then(|_| disk.path()).map(text::path)?;
        let parent = path.parent()?;
        Some(if parent.as_os_str().is_empty() { ".".into() } else { parent.to_owned() })
    }

    /// Whether the named bytes are the disk, without looking at them.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        matches!(self.content, Content::Raw) && self.params.iter().next().is_none()
    }

    /// The keys that the format knows when it is opened.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &'static str> + use<> {
        self.format().map_or(&[][..], |format| format.params).iter().map(|param| param.key)
    }

    /// Refuses parameters and options that the format does not have.
    ///
    /// # Errors
    /// The first of them.
    pub fn check(&self) -> Result<()> {
        let plain = || formats::formats().iter().find(|format| format.is_plain);
        let format = match self.content {
            Content::Format(format) => Some(format),
            Content::Raw => plain(),
            Content::Guess => None,
        };
        let (params, options) = format.map_or((&[][..], &[][..]), |format| {
            (format.params, format.create.map_or(&[][..], |create| create.options))
        });
        let check = |given: &Params, declared| given.check_declared(declared, false);
        let checked = check(&self.params, params).and_then(|()| check(&self.options, options));
        checked.map_err(|e| match self.format() {
            Some(format) => e.on(format.word),
            None => e,
        })
    }

    /// The format that the bytes in `container` have, for reading.
    ///
    /// # Errors
    /// They cannot be read, where the format is guessed.
    pub fn format_of(&self, container: &Edge) -> Result<Option<&'static Format>> {
        match self.content {
            Content::Raw => Ok(None),
            // An archive may be in a stream.
            Content::Format(format) if format.packing.is_some_and(PackingKind::has_files) => {
                let found = formats::recognise(&Head::of(container)?);
                let stream = found.filter(|it| it.packing == Some(PackingKind::Stream));
                Ok(Some(stream.unwrap_or(format)))
            }
            Content::Format(format) => Ok(Some(format)),
            Content::Guess => Ok(formats::recognise(&Head::of(container)?)),
        }
    }

    /// The format of what a packed stream holds, for reading: the one that was named, or, where it
    /// is guessed, what it looks like. Only one packing is taken off.
    ///
    /// # Errors
    /// There is no such format; or what looks like an image cannot be read.
    pub(crate) fn inside(
        &self,
        packing: &Format,
        unpacked: &Edge,
    ) -> Result<Option<&'static Format>> {
        let Some(outer) = packing.packing else { return Ok(None) };
        let fits = |found: &Format| match found.packing {
            Some(inner) => outer == PackingKind::Stream && inner.has_files(),
            None => true,
        };
        let guess = || {
            let found = formats::recognise(&Head::beginning(unpacked)?);
            Ok::<_, Error>(found.filter(|found| fits(found)))
        };
        let found = match (self.content, self.params.get("inside")) {
            (Content::Guess, _) => guess()?,
            // The stream that the archive is in.
            (Content::Format(told), _)
                if outer == PackingKind::Stream
                    && told.packing.is_some_and(PackingKind::has_files) =>
            {
                Some(told)
            }
            (Content::Format(_), None) if !self.is_told => guess()?,
            (Content::Format(told), Some(word)) if told.word == packing.word => {
                Some(formats::format(word)?)
            }
            _ => None,
        };
        if found.is_some_and(|found| !fits(found)) {
            return Err(Error::invalid("inside: only one packing is removed"));
        }
        Ok(found.filter(|found| !found.is_plain))
    }

    /// What is in an archive.
    pub(crate) fn open_archive(
        &self,
        format: &Format,
        archive: Edge,
        gate: &ImageGate,
        context: &Context,
    ) -> Result<Edge> {
        let name = archive.info().name.clone();
        let opening = formats::Opening { params: &self.params, files: gate, context };
        let disk = (format.open)(archive, &opening).map_err(|e| e.on(&name))?;
        Ok(Edge::new(disk, context.pool.clone()))
    }

    /// The disk in an image that was packed.
    pub(crate) fn open_inside(
        &self,
        format: &Format,
        unpacked: Edge,
        gate: &ImageGate,
        context: &Context,
    ) -> Result<Edge> {
        // Of an archive in a stream they are the archive's.
        let is_archive = format.packing.is_some_and(PackingKind::has_files);
        let params = if is_archive { self.params.clone() } else { Params::default() };
        let image = Self { params, ..self.clone() };
        image.open(format, unpacked, gate, context)
    }

    /// The disk in `container`, with its `gate`; to be written, if the container and the format
    /// can be.
    pub(crate) fn open(
        &self,
        format: &Format,
        container: Edge,
        gate: &ImageGate,
        context: &Context,
    ) -> Result<Edge> {
        let name = container.info().name.clone();
        let opening = formats::Opening { params: &self.params, files: gate, context };
        let packing = format.upkeep.rebase.filter(|_| self.compress).map(|rebase| rebase.pack);
        let write = packing.or(format.write).filter(|_| container.info().abilities.write);
        let disk = write.unwrap_or(format.open)(container, &opening).map_err(|e| e.on(&name))?;
        Ok(Edge::new(disk, context.pool.clone()))
    }
}
