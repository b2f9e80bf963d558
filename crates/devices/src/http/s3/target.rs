//! An object as the target of a copy: written once, from its first byte to its last.

use std::io;
use std::sync::Arc;

use device::{Error, ErrorKind, Fault, Result, values};
use runtime::Context;

use super::params::S3Params;
use super::parts::PartSizes;
use super::store::ObjectStore;
use super::upload::{Upload, UploadManner};
use crate::upwards::{OrderedSink, upwards};
use crate::{Created, Creation, Holds, Made};

/// An upload that is given up when nothing can complete it any more.
#[derive(Debug)]
struct UnfinishedObject(Arc<Upload>);

impl Drop for UnfinishedObject {
    fn drop(&mut self) {
        self.0.give_up();
    }
}

/// What is written into.
struct ObjectSink(Arc<UnfinishedObject>);

impl OrderedSink for ObjectSink {
    fn name(&self) -> &str {
        self.0.0.name()
    }

    fn write(&self, bytes: &[u8]) -> Result<()> {
        self.0.0.write(bytes).map_err(|e| e.on(self.name()))
    }

    fn end(&self) -> Result<()> {
        self.0.0.finish()
    }
}

/// The object that is there when it is complete.
#[derive(Debug)]
struct MadeObject(Arc<UnfinishedObject>);

impl Made for MadeObject {
    fn appear(&self) -> io::Result<()> {
        self.0.0.complete().map_err(io::Error::other)
    }

    /// One that is not complete cannot be kept.
    fn keep(&self) {}

    fn remove(&self) -> bool {
        self.0.0.give_up()
    }

    /// It is as durable as the store makes it.
    fn sync_name(&self) -> io::Result<()> {
        Ok(())
    }
}

/// Begins to make the object that is `wanted`.
pub(super) fn create(wanted: S3Params, creation: &Creation, context: &Context) -> Result<Created> {
    let S3Params { name, http, key, replaces, is_exclusive } = wanted;
    if http.url.target.contains('?') {
        return Err(values::wrong("version", "a version is never overwritten"));
    }
    if creation.grows && !creation.upwards {
        let action = "create: such an image is not made in one go, and an object is written only once; make a \
                      file, and copy that, or take a form that is (-o subformat=streamOptimized of vmdk)";
        return Err(Error::new(ErrorKind::Unsupported, Fault::User, action).on(name));
    }
    let replaces = replaces && !creation.options.new;
    let sizes = PartSizes::of(creation.size, creation.grows);
    let manner = UploadManner { sizes, replaces, is_exclusive, most: http.connections };
    let (store, log) = (ObjectStore::new(http, key)?, context.log.clone());
    let upload = Upload::new(name.clone(), store, manner, log)?;
    upload.refuse_existing().map_err(|e| e.on(&name))?;
    let object = Arc::new(UnfinishedObject(upload));
    let device = upwards(Box::new(ObjectSink(object.clone())), creation, &context.pool);
    let holds = if creation.grows { Holds::Zeroes } else { Holds::Old };
    let made: Option<Box<dyn Made>> = Some(Box::new(MadeObject(object)));
    Ok(Created { made, ..Created::new(device, holds, context) })
}
