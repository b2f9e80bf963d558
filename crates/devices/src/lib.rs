//! One file a device, and the table that names them.
