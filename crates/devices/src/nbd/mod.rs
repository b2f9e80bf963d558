//! An NBD server as a device. Not written yet.

use std::sync::Arc;

use device::{Device, Error, Params, Result};

use crate::OpenOptions;

/// Opens the export that `params` (`uri=`) name.
///
/// # Errors
/// Always `Unsupported`, until the client is here.
pub fn open(params: &Params, options: &OpenOptions) -> Result<Arc<dyn Device>> {
    let _ = options;
    Err(Error::unsupported("connect: NBD devices are not built yet")
        .on(params.get("uri").unwrap_or("nbd")))
}
