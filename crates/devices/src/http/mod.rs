//! `http`: an object on an HTTP or HTTPS server, as a read-only disk.
//!
//! Ranges are asked for in parallel over a few connections that are kept alive, into a window in
//! memory that all clients of the device share, ahead of those that read in order. Each byte comes
//! once where reads are in order. The bytes are those of the object that was opened, or an error:
//! an object that changes meanwhile is never mixed with its older state. It sends nothing
//! that would change it, unless it is the target of a copy.
//!
//! | file | what |
//! |---|---|
//! | `params`, `secret`, `netrc` | the parameters |
//! | `url`, `proxy`, `dial` | connections to the server |
//! | `transport`, `connection`, `pace` | one HTTP/1.1 connection: hyper over our stream, on the thread that waits |
//! | `payload`, `calling` | one request and its answer, over a connection that is kept |
//! | `answer`, `origin`, `credentials`, `signing`, `asking` | one request for bytes, until they come |
//! | `window`, `turns`, `streams`, `read` | what is in memory, what is fetched next and ahead, and which reads wait |
//! | `shared`, `fetching`, `pass` | the threads that fetch |
//! | `headway`, `passed` | whether what they get is enough, and still the same object |
//! | `device` | the contract |
//! | `xml` | what is read in the answers of stores |
//! | `put` | an object as a target: one PUT |
//! | `s3` | objects in stores that speak S3's protocol: a signature in each request |
//! | `tried` | answers from memory, for fuzzing |

mod answer;
mod asking;
mod calling;
mod connection;
mod credentials;
mod device;
mod dial;
#[cfg(test)]
mod encrypted;
mod fetching;
#[cfg(test)]
mod habits;
mod headway;
#[cfg(test)]
mod hostile;
mod netrc;
mod origin;
mod pace;
mod params;
mod pass;
mod passed;
mod payload;
mod proxy;
mod put;
mod reach;
mod read;
pub(crate) mod s3;
mod secret;
mod shared;
mod signing;
#[cfg(test)]
mod site;
mod streams;
#[cfg(test)]
mod tests;
mod transport;
mod tried;
mod turns;
mod url;
mod window;
mod xml;

use std::sync::Arc;

use ::device::{Device, Params, Result};

use crate::OpenOptions;
use device::{FIRST, HttpDevice};
use params::HttpParams;
pub(crate) use put::create;
pub(crate) use reach::reaches;
pub(crate) use tried::tried;

/// Opens the object that `params` name: see the table for the parameters.
///
/// # Errors
/// The parameters make no sense, the server cannot be reached, or it refuses.
pub(crate) fn open(params: &Params, options: &OpenOptions) -> Result<Arc<dyn Device>> {
    open_with(params, options, FIRST)
}

/// The same, with a first range of so many bytes.
fn open_with(params: &Params, options: &OpenOptions, first: u64) -> Result<Arc<dyn Device>> {
    let wanted = HttpParams::parse(params)?;
    Ok(Arc::new(HttpDevice::open(wanted, options, first)?))
}

/// Reads a `.netrc`: see `crate::parsers`.
pub(crate) fn netrc_tried(text: &str) {
    for user in [None, Some("user")] {
        let _ = netrc::login(text, "host", user);
    }
}

/// A URL for people, without what may be secret.
pub(crate) fn shown(url: &str) -> String {
    url::redacted(url)
}
