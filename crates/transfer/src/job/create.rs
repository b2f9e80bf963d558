//! A new disk that holds nothing but zeroes, or what is below it: `create`, and the target of a
//! copy that can go on.

use device::{Edge, Error, ErrorKind, Result, ZeroFlags};
use disk::{
    Allocation, Contents, Created, Creation, Holds, Image, Made, Named, OpenOptions, Stack, Storage,
};
use runtime::Context;

/// A disk that is to be created.
#[derive(Debug)]
pub struct NewDisk<'a> {
    /// Its name.
    pub target: &'a Named,
    /// Its format, with its options.
    pub image: &'a Image,
    /// In bytes.
    pub size: u64,
    /// How a raw disk is allocated; an image has options for that.
    pub fills: Option<Allocation>,
    /// Nothing of these is written over.
    pub spared: &'a [Storage],
    /// How an existing file is opened, which becomes the disk.
    pub options: &'a OpenOptions,
}

impl NewDisk<'_> {
    /// Creates it. It is durable, and has its name.
    ///
    /// # Errors
    /// What was created is removed.
    pub fn create(&self, context: &Context) -> Result<()> {
        let (_, made) = self.create_unkept(context)?;
        if let Some(made) = made {
            made.keep();
        }
        Ok(())
    }

    /// The same; the caller keeps or removes what was created. Returns what it is known to hold.
    pub(super) fn create_unkept(
        &self,
        context: &Context,
    ) -> Result<(Holds, Option<Box<dyn Made>>)> {
        // Nothing is read from its backing image, which may itself name files.
        let image = Image { ignore_backing: true, ..self.image.clone() };
        let is_image = image.format().is_some();
        let creation = Creation {
            appears: true,
            write_back: true,
            ..Creation::of(self.size, self.options.clone())
        };
        let (stack, target) = (Stack::default().over_image(image), self.target);
        let Created { edge, holds, made } =
            disk::create_for(&Contents::Nothing, self.spared, target, &stack, &creation, context)?;
        let fills = self.fills.filter(|_| !is_image);
        let done = fill(&edge, self.size, holds, fills)
            .and_then(|()| edge.device().finish())
            .and_then(|()| edge.flush());
        let named = match &made {
            Some(made) => done.and_then(|()| name(&**made).map_err(|e| e.on(target))),
            None => done,
        };
        if let (Err(_), Some(made)) = (&named, &made) {
            made.remove();
        }
        named.map(|()| (holds, made))
    }
}

fn name(made: &dyn Made) -> Result<()> {
    let named = made.appear().and_then(|()| made.sync_name());
    named.map_err(|e| Error::os("it could not get its name", e))
}

/// Makes the raw disk: nothing but zeroes, allocated or not.
fn fill(disk: &Edge, size: u64, holds: Holds, fills: Option<Allocation>) -> Result<()> {
    match fills {
        Some(Allocation::Written) => {
            if holds != Holds::Unknown {
                // Allocates everything first, if that is cheap: it fails early if the file system
                // is full.
                let keep = ZeroFlags { fast_only: true, ..ZeroFlags::default() };
                match disk.zero(0, size, keep) {
                    Err(e) if e.kind() != ErrorKind::NotFast => return Err(e),
                    _ => {}
                }
            }
            disk.zero(0, size, ZeroFlags { written: true, ..ZeroFlags::default() })
        }
        Some(Allocation::Unwritten) => disk.zero(0, size, ZeroFlags::default()),
        None | Some(Allocation::Sparse) if holds == Holds::Old => {
            disk.zero(0, size, ZeroFlags { may_unmap: true, ..ZeroFlags::default() })
        }
        None | Some(Allocation::Sparse) => Ok(()),
    }
}
