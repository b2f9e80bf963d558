//! `plugin`: a plugin of nbdkit as a device. The crate `plugins` loads and calls plugins; here are
//! the parameters that plugins do not get.

pub(crate) mod isolated;

use std::sync::Arc;

use ::device::{Device, Error, Params, Reach, Result, values};
use plugins::{ExportChoice, PluginSpec};
use runtime::Context;

use crate::OpenOptions;

/// The parameters that no plugin gets.
const PLUGIN: &str = "plugin";
const EXPORT: &str = "export-name";
const ISOLATE: &str = "isolate";
const RESTART: &str = "restart";

/// The plugin's own parameters, without ours.
fn own(params: &Params) -> Params {
    let mut rest = params.clone();
    for key in [PLUGIN, EXPORT, ISOLATE, RESTART] {
        let _ = rest.take(key);
    }
    rest
}

/// Opens a plugin.
///
/// # Errors
/// As [`plugins::open`].
pub(crate) fn open(
    params: &Params,
    options: &OpenOptions,
    context: &Context,
) -> Result<Arc<dyn Device>> {
    let name = name(params)?;
    let restart = values::flag(params, RESTART)?;
    if is_isolated(params)? {
        return isolated::open(params, restart.unwrap_or(false), options, context);
    }
    if restart == Some(true) {
        let action =
            "restart=true needs isolate=true: a plugin in this process cannot be started again";
        return Err(Error::invalid(action));
    }
    let wish = PluginSpec {
        plugin: name.to_owned(),
        params: own(params),
        export: choice(params, options),
        write: options.write,
        or_read_only: options.or_read_only,
        late: options.as_nbdkit,
    };
    plugins::open(wish, context)
}

/// Which export is opened.
fn choice(params: &Params, options: &OpenOptions) -> ExportChoice {
    match params.get(EXPORT) {
        Some(name) => ExportChoice::Fixed(name.to_owned()),
        None if options.by_name => ExportChoice::Client,
        None => ExportChoice::Only(options.export.clone()),
    }
}

fn name(params: &Params) -> Result<&str> {
    let name = params.get(PLUGIN).filter(|name| !name.is_empty());
    name.ok_or_else(|| values::wrong(PLUGIN, "which plugin? for example plugin:curl"))
}

/// A plugin's description of itself.
///
/// # Errors
/// There is no such plugin, it cannot be loaded, or it refuses a parameter.
pub(crate) fn about(params: &Params) -> Result<plugins::About> {
    plugins::about(name(params)?, &own(params))
}

/// Whether it is to have a process of its own.
fn is_isolated(params: &Params) -> Result<bool> {
    Ok(values::flag(params, ISOLATE)?.unwrap_or(false))
}

/// A plugin in this process may need anything; one in a process of its own needs that process.
pub(crate) fn reaches(params: &Params) -> Reach {
    match is_isolated(params) {
        Ok(true) => isolated::reaches(params),
        Ok(false) | Err(_) => Reach::anything(),
    }
}
