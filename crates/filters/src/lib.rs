//! The filters, and the table that names them.
//!
//! A filter is a device over a device. Each is one file or folder here and one line in [`table`];
//! no other code names it. Shared code is in `kit`. Names, parameters and meanings are nbdkit's
//! where nbdkit has the filter.

mod blocksize;
mod blocksize_policy;
mod bzip2;
mod cache;
mod checkwrite;
mod count;
mod cow;
mod ddrescue;
mod delay;
mod error;
mod evil;
mod exitlast;
mod exitwhen;
mod exportname;
mod ext2;
mod extentlist;
mod filter_kind;
mod fua;
mod gzip;
mod indexed_gzip;
mod ip;
mod kit;
mod limit;
mod log;
mod luks;
mod lzip;
mod map;
mod multi_conn;
mod nocache;
mod noextents;
mod nofilter;
mod noparallel;
mod nozero;
mod offset;
mod openonce;
mod partition;
mod pause;
mod protect;
mod qcow2dec;
mod rate;
mod readahead;
mod readonly;
mod retry;
mod retry_request;
mod rotational;
mod scan;
mod spinning;
mod stats;
mod swab;
pub mod table;
mod tar;
mod time_limit;
mod tls_fallback;
mod truncate;
mod xor;
mod xz;

pub use filter_kind::FilterKind;
pub use rate::HOLDS_BACK;
pub use table::{kind, kinds, open};
