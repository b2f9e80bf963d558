//! An NBD server's export as a device: its parameters, and the `client` under the contract.

mod device;
mod encryption;
pub(crate) mod facts;
mod params;
mod storage;

use std::sync::Arc;

use ::device::{Device, Params, Result};
use runtime::Context;

use crate::OpenOptions;
use device::NbdDevice;
pub(crate) use encryption::reaches;
use params::NbdParams;
pub(crate) use storage::storage;

/// A URI, or what should be one, without what may be a password.
pub(crate) fn shown(text: &str) -> String {
    let is_hidden = || {
        let (scheme, rest) = text.split_once("://")?;
        let (authority, _) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        let (user, _) = authority.rsplit_once('@')?;
        let (name, _) = user.split_once(':')?;
        Some(format!("{scheme}://{name}{}", rest.get(user.len()..)?))
    };
    is_hidden().unwrap_or_else(|| text.to_owned())
}

/// Opens the export that `params` name: see the table for what they may be.
///
/// # Errors
/// The parameters make no sense, the server cannot be reached, or it refuses.
pub(crate) fn open(
    params: &Params,
    options: &OpenOptions,
    context: &Context,
) -> Result<Arc<dyn Device>> {
    let wanted = NbdParams::parse(params, options, context.patience)?;
    Ok(Arc::new(NbdDevice::open(wanted, options, context)?))
}

/// Opens the export for a single user, as far as the target leaves that to the options.
///
/// # Errors
/// As [`open`].
pub(crate) fn open_target(
    target: client::ExportSpec,
    options: &OpenOptions,
    context: &Context,
) -> Result<Arc<dyn Device>> {
    let wanted = NbdParams { shared: false, ..NbdParams::of(target, options, context.patience) };
    Ok(Arc::new(NbdDevice::open(wanted, options, context)?))
}
