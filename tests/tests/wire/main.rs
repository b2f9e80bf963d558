//! What goes over a connection: the protocol, checked against its conformance list from both sides;
//! real peers, and hostile ones; services of our own, HTTP and TLS; nbdkit's plugins and words.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod arrivals;
mod client_conformance;
mod contexts;
mod control;
mod faults;
mod filters_beside_nbdkit;
mod filters_blocksize_policy;
mod filters_noparallel;
mod filters_traffic;
mod frozen;
mod hot_exports;
mod http;
mod limits;
mod metrics;
mod nbdkit_words;
mod our_client_against_peers;
mod peers_against_our_server;
mod plugins;
mod proxy;
mod reconnecting;
mod s3;
mod s3_faults;
mod s3_fleet;
mod secrets;
mod server_conformance;
mod server_log;
mod service;
mod stopping;
mod tls;
mod waiting;
