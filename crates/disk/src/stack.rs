//! Filters as they are named: `NAME` or `NAME?key=value&key=value`, the first nearest to the code
//! that reads and writes.
//!
//! Names and keys are checked when they are read; values when the filters are opened.

use device::{Edge, Params, Reach, Result};
use filters::FilterKind;
use runtime::Context;

use crate::Image;

/// What is put over a device: the format of the image in it, if it is one, and filters.
#[derive(Clone, Debug, Default)]
pub struct Stack {
    layers: Vec<Layer>,
    image: Image,
    /// Filters below the image: it lies in what is seen through them.
    below: Vec<Layer>,
}

#[derive(Clone, Debug)]
struct Layer {
    kind: &'static FilterKind,
    params: Params,
}

impl Layer {
    fn parse(text: &str) -> Result<Self> {
        let (word, query) = text.split_once('?').unwrap_or((text, ""));
        let kind = filters::kind(word)?;
        let params = Params::parse_query(query).map_err(|e| e.on(word))?;
        let layer = Self { kind, params };
        layer.check().map(|()| layer)
    }

    fn check(&self) -> Result<()> {
        self.params.check_declared(self.kind.params, false).map_err(|e| e.on(self.kind.word))
    }
}

impl Stack {
    /// Reads filters, the first nearest to the reader and writer.
    ///
    /// # Errors
    /// There is no such filter, or it does not have a parameter.
    pub fn parse<'a>(words: impl IntoIterator<Item = &'a str>) -> Result<Self> {
        let layers = words.into_iter().map(Layer::parse).collect::<Result<_>>()?;
        Ok(Self { layers, ..Self::default() })
    }

    /// The same over an image. Its parameters are to be declared ones ([`Image::check`]).
    #[must_use]
    pub fn over_image(self, image: Image) -> Self {
        Self { image, ..self }
    }

    /// The same with one more filter, next to the reader and writer.
    pub(crate) fn through(mut self, word: &str, params: Params) -> Result<Self> {
        let layer = Layer { kind: filters::kind(word)?, params };
        layer.check()?;
        self.layers.insert(0, layer);
        Ok(self)
    }

    /// These filters over all of `other`. An image that these are over is forgotten.
    #[must_use]
    pub fn over_stack(self, other: Self) -> Self {
        let layers = self.layers.into_iter().chain(other.layers).collect();
        Self { layers, ..other }
    }

    /// An image in what is seen through these filters.
    pub(crate) fn with_image_over(self, image: Image) -> Self {
        Self { below: self.layers, image, layers: Vec::new() }
    }

    /// How the named bytes are interpreted.
    #[must_use]
    pub fn image(&self) -> &Image {
        &self.image
    }

    /// Whether there is no filter.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.layers.is_empty() && self.below.is_empty()
    }

    /// Whether a filter is below the image.
    pub(crate) fn is_below_empty(&self) -> bool {
        self.below.is_empty()
    }

    /// Whether the named bytes are the disk, without a format or filter.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.is_empty() && self.image.is_plain()
    }

    /// The kinds, the first nearest to the reader and writer.
    pub fn kinds(&self) -> impl Iterator<Item = &'static FilterKind> {
        self.layers.iter().chain(&self.below).map(|layer| layer.kind)
    }

    /// Whether no write reaches the device.
    #[must_use]
    pub fn reads_only(&self) -> bool {
        self.kinds().any(|kind| kind.reads_only)
    }

    /// Whether all clients have to get one disk: a filter keeps something of it, or an image is
    /// read.
    #[must_use]
    pub fn keeps_disk(&self) -> bool {
        !self.image.is_plain() || self.kinds().any(|kind| kind.keeps_disk)
    }

    /// What the filters need of the system.
    #[must_use]
    pub fn reaches(&self) -> Reach {
        let all = self
            .layers
            .iter()
            .chain(&self.below)
            .map(|Layer { kind, params }| (kind.reaches)(params));
        all.fold(Reach::default(), Reach::and)
    }

    /// All keys that the filters and the format know.
    pub fn keys(&self) -> impl Iterator<Item = &'static str> {
        self.layers.iter().flat_map(|layer| keys(layer.kind)).chain(self.image.keys())
    }

    /// Gives a parameter to the first filter that knows its key, or to the format; returns whether
    /// there is one.
    ///
    /// # Errors
    /// It has it already.
    pub fn take(&mut self, key: &str, value: &str) -> Result<bool> {
        let layer = self.layers.iter_mut().find(|layer| keys(layer.kind).any(|known| known == key));
        if let Some(layer) = layer {
            layer.params.add(key, value);
            return layer.check().map(|()| true);
        }
        if !self.image.keys().any(|known| known == key) {
            return Ok(false);
        }
        self.image.params.add(key, value);
        self.image.check().map(|()| true)
    }

    /// A filter that knows `key`, whether it is among these or not.
    #[must_use]
    pub fn owner(key: &str) -> Option<&'static FilterKind> {
        filters::kinds().iter().find(|kind| keys(kind).any(|known| known == key))
    }

    /// Puts the filters over a disk that is open.
    ///
    /// # Errors
    /// A filter refuses its parameters, or the disk.
    pub fn over(&self, device: Edge, context: &Context) -> Result<Edge> {
        over(&self.layers, device, context)
    }

    /// Puts the filters that are below the image over what it lies in.
    pub(crate) fn below_image(&self, container: Edge, context: &Context) -> Result<Edge> {
        over(&self.below, container, context)
    }
}

fn over(layers: &[Layer], device: Edge, context: &Context) -> Result<Edge> {
    layers.iter().rev().try_fold(device, |below, Layer { kind, params }| {
        filters::open(kind.word, params, below, context)
    })
}

fn keys(kind: &'static FilterKind) -> impl Iterator<Item = &'static str> {
    kind.params.iter().map(|param| param.key)
}
