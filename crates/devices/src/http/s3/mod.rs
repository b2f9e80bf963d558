//! `s3`: an object in a store that speaks S3's protocol, as a disk.
//!
//! Reading is that of `http`: ranges over a few connections, of the one object that was opened.
//! Each request is signed anew, and no signature goes to another origin than that of the store; a
//! redirect is not followed.
//!
//! | file | what |
//! |---|---|
//! | `params`, `region` | the object, and how its store is reached |
//! | `profile`, `keys`, `roles` | where keys come from |
//! | `signature`, `signer` | what is signed of a request, and what refusals mean |
//! | `store`, `parts`, `upload`, `target` | an object that is written: requests, lengths of parts, the parts, the device |
//! | `stray` | uploads whose names did not arrive |
//! | `records` | objects below a key as small records that many processes share |

mod keys;
mod params;
mod parts;
mod profile;
mod records;
#[cfg(test)]
mod records_tests;
mod region;
mod roles;
mod signature;
mod signer;
#[cfg(test)]
mod stand_in;
#[cfg(test)]
mod stand_in_records;
#[cfg(test)]
mod stand_in_writes;
mod store;
mod stray;
mod target;
#[cfg(test)]
mod tests;
mod upload;
#[cfg(test)]
mod uploads;

use std::sync::Arc;

use ::device::{Device, Error, ErrorKind, Fault, Params, Result};
use hyper::{Method, Request};
use runtime::{Bell, Context};

use super::calling::Caller;
use super::device::{FIRST, HttpDevice};
use super::dial::Dialer;
use super::origin::Origin;
use super::params::HttpParams;
use super::payload::Payload;
use super::url::Url;
use crate::{Created, Creation, OpenOptions};
use params::S3Params;
pub(crate) use params::{S3, reaches, shown};
pub(crate) use records::open as records;

/// Opens the object that `params` name for reading: see the table for the parameters.
///
/// # Errors
/// The parameters make no sense, there are no keys, the store cannot be reached, or it refuses.
pub(crate) fn open(params: &Params, options: &OpenOptions) -> Result<Arc<dyn Device>> {
    open_with(params, options, FIRST)
}

/// The same, with a first range of so many bytes.
fn open_with(params: &Params, options: &OpenOptions, first: u64) -> Result<Arc<dyn Device>> {
    let wanted = wanted(params)?;
    if options.write && !options.or_read_only {
        let action = "open for writing: objects are only written whole, by copy and convert";
        return Err(Error::new(ErrorKind::ReadOnly, Fault::User, action).on(wanted.name));
    }
    Ok(Arc::new(HttpDevice::open(wanted.http, options, first)?))
}

/// Begins to make the object that `params` name, as the target of a copy.
///
/// # Errors
/// As of [`open`]; or it is there already, or cannot be written in one go.
pub(crate) fn create(params: &Params, creation: &Creation, context: &Context) -> Result<Created> {
    target::create(wanted(params)?, creation, context)
}

fn wanted(params: &Params) -> Result<S3Params> {
    S3Params::parse(params, &|name| std::env::var(name).ok(), region)
}

/// The region of a bucket, which AWS says to anyone who asks; no signature is sent for that.
fn region(url: &Url, wanted: &HttpParams) -> Option<String> {
    let bell = Arc::new(Bell::new().ok()?);
    let mut caller = Caller::new(Arc::new(Dialer::new(wanted.ways.clone(), bell)));
    let root = Url { target: "/".into(), ..url.clone() };
    let origin = Origin::new(
        root.clone(),
        super::credentials::HttpCredentials::default(),
        wanted.manners.clone(),
    );
    let ask = |dialer: &Dialer| -> Result<Request<Payload>> {
        origin.request(Method::HEAD, &root, dialer, None)
    };
    let head = caller.call(&root, ask).ok()?;
    let told = head.headers().get("x-amz-bucket-region")?;
    told.to_str().ok().map(str::to_owned)
}
