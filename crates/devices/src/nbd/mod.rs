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
