//! Checks 61, 63, 70, 71 and 78 need a backend that lacks something or is slow. Our server
//! stands in front of a scripted one, through its `nbd` device.
