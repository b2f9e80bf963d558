//! `data`: a small disk written out on the command line.

use std::sync::Arc;

use device::{Device, Error, Params, Result};

use crate::OpenOptions;

pub(crate) fn open(params: &Params, options: &OpenOptions) -> Result<Arc<dyn Device>> {
    let _ = (params, options);
    Err(Error::unsupported("open: not built yet"))
}
