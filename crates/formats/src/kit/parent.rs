//! The parent of a differencing image: a file that it names, and whose identifier it knows. A file
//! of that name with another identifier is another disk, or the same one after it was changed.

use device::{Edge, Error, Result, text};

use crate::{Files, Reference, Role};

/// What a differencing image says of its parent.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Parent {
    /// Names for it, the best first.
    pub(crate) names: Vec<String>,
    /// The identifiers of which it has one.
    pub(crate) ids: Vec<[u8; 16]>,
}

impl Parent {
    /// Opens the first file of these names that is an image of `format` and has one of the
    /// identifiers; `id_of` reads that from the container.
    ///
    /// # Errors
    /// There is none: the error is of the first name.
    pub(crate) fn open(
        &self,
        format: &'static str,
        files: &dyn Files,
        id_of: fn(&Edge) -> Result<[u8; 16]>,
    ) -> Result<Edge> {
        let mut refused = None;
        for name in &self.names {
            match self.open_by(name, format, files, id_of) {
                Ok(parent) => return Ok(parent),
                Err(e) => refused = refused.or(Some(e)),
            }
        }
        Err(refused.unwrap_or_else(|| Error::unfit("the image has a parent, and does not name it")))
    }

    fn open_by(
        &self,
        name: &str,
        format: &'static str,
        files: &dyn Files,
        id_of: fn(&Edge) -> Result<[u8; 16]>,
    ) -> Result<Edge> {
        let open = |role, format| files.open(&Reference { name, role, format });
        let parent = open(Role::Backing, Some(format))?;
        let container = open(Role::Part, None)?;
        let id = id_of(&container).map_err(|e| e.on(text::shown(name)))?;
        if self.ids.contains(&id) {
            return Ok(parent);
        }
        let wanted: Vec<_> = self.ids.iter().map(hex).collect();
        let wanted = if wanted.is_empty() { "none".to_owned() } else { wanted.join(" or ") };
        Err(Error::unfit(format!(
            "`{}` is not the parent of the image, or was changed since: its identifier is {}, and that of the parent {wanted}",
            text::shown(name),
            hex(&id)
        )))
    }
}

fn hex(id: &[u8; 16]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}
