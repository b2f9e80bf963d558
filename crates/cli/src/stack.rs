//! Filters as a command line names them: `NAME` or `NAME?key=value&key=value`, the first nearest to
//! whoever reads and writes.
//!
//! Names and keys are checked when they are read; values when the filters are opened.

use clap::{Arg, ArgAction, ArgMatches};
use device::{Edge, Params};
use filters::{Context, Kind};

use crate::failure::Failure;
use crate::words::Words;

/// Filters to be put over a device.
#[derive(Debug, Default)]
pub(crate) struct Stack(Vec<Layer>);

#[derive(Debug)]
struct Layer {
    kind: &'static Kind,
    params: Params,
}

impl Layer {
    fn parse(text: &str) -> Result<Self, Failure> {
        let (word, query) = text.split_once('?').unwrap_or((text, ""));
        let kind = filters::kind(word).map_err(Failure::usage)?;
        let say = |e| Failure::usage(format!("{word}: {e}"));
        let params = Params::parse_query(query).map_err(say)?;
        params.check_declared(kind.params, false).map_err(say)?;
        Ok(Self { kind, params })
    }
}

impl Stack {
    /// Reads the values of the argument `id`.
    pub(crate) fn resolve(matches: &ArgMatches, id: &str) -> Result<Self, Failure> {
        let words = matches.get_many::<String>(id).unwrap_or_default();
        words.map(|word| Layer::parse(word)).collect::<Result<_, _>>().map(Self)
    }

    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The kinds, the first nearest to the client.
    pub(crate) fn kinds(&self) -> impl Iterator<Item = &'static Kind> {
        self.0.iter().map(|layer| layer.kind)
    }

    /// Whether nothing that is written comes through to the device.
    pub(crate) fn reads_only(&self) -> bool {
        self.kinds().any(|kind| kind.reads_only)
    }

    /// All keys that the filters know.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &'static str> {
        self.kinds().flat_map(keys)
    }

    /// Gives a parameter to the first filter that knows its key; whether there is one.
    pub(crate) fn take(&mut self, key: &str, value: &str) -> Result<bool, Failure> {
        let layer = self.0.iter_mut().find(|layer| keys(layer.kind).any(|known| known == key));
        let Some(Layer { kind, params }) = layer else { return Ok(false) };
        params.add(key, value);
        let checked = params.check_declared(kind.params, false);
        checked.map_err(|e| Failure::usage(format!("{}: {e}", kind.word)))?;
        Ok(true)
    }

    /// Puts the filters over a device.
    pub(crate) fn over(&self, device: Edge, context: &Context) -> Result<Edge, Failure> {
        self.0.iter().rev().try_fold(device, |below, Layer { kind, params }| {
            Ok(filters::open(kind.word, params, below, context)?)
        })
    }
}

fn keys(kind: &'static Kind) -> impl Iterator<Item = &'static str> {
    kind.params.iter().map(|param| param.key)
}

/// A filter that knows `key`, whether it was named or not.
pub(crate) fn owner(key: &str) -> Option<&'static str> {
    filters::kinds().iter().find(|kind| keys(kind).any(|known| known == key)).map(|kind| kind.word)
}

/// An option that names filters; shells complete them.
pub(crate) fn filter_argument(id: &'static str) -> Arg {
    Arg::new(id)
        .long(id)
        .value_name("NAME[?key=value]")
        .action(ArgAction::Append)
        .value_parser(Words::Filter)
        .hide_possible_values(true)
}
