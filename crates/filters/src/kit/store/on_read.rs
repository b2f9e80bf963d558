//! Whether to keep data that is read: never, always, or as long as a file exists.

use std::path::PathBuf;

use device::{Params, Result, values};

/// When to keep data that is read.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) enum OnRead {
    /// Never.
    #[default]
    Never,
    /// Always.
    Always,
    /// While this file exists; it may come and go.
    While(PathBuf),
}

impl OnRead {
    /// The value of `key`.
    ///
    /// # Errors
    /// It is neither true, nor false, nor a path that begins with a slash.
    pub(crate) fn read(params: &Params, key: &str) -> Result<Self> {
        if let Some(path) = params.get(key).filter(|text| text.starts_with('/')) {
            return Ok(Self::While(path.into()));
        }
        match values::flag(params, key) {
            Ok(Some(true)) => Ok(Self::Always),
            Ok(_) => Ok(Self::Never),
            Err(_) => {
                let text = params.get(key).unwrap_or_default();
                Err(values::not_a(key, text, "`true`, `false` or a path that begins with /"))
            }
        }
    }

    /// Whether data that is read may ever be kept. Then every read has to come here, also one of a
    /// hole: nothing may answer it from the map.
    pub(crate) fn is_ever_on(&self) -> bool {
        *self != Self::Never
    }

    /// Whether to keep data that is read now.
    pub(crate) fn is_on(&self) -> bool {
        match self {
            Self::Never => false,
            Self::Always => true,
            Self::While(path) => path.exists(),
        }
    }
}
