//! diskferry for Python.
//!
//! The package `diskferry` is in `python/`, with its types and documentation; this is its native
//! part. `nbd` is libnbd's module over an `engine` of its own, since a program that tests servers
//! decides on every step and may send what is wrong, which the client of this project never does.
//! `disks` are disks by name, over the crates that every verb of the command line stands on.
//!
//! Nothing here keeps the interpreter while it waits.

#![deny(clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

mod disks;
mod engine;
mod nbd;

use pyo3::prelude::*;

/// The native part of the package `diskferry`; import that instead.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<nbd::NBD>()?;
    module.add_class::<nbd::AioBuffer>()?;
    module.add_class::<disks::Disk>()?;
    module.add_class::<disks::Extents>()?;
    module.add_class::<disks::DiskServer>()?;
    module.add_function(wrap_pyfunction!(disks::copy_disk, module)?)?;
    module.add_function(wrap_pyfunction!(disks::compare_disks, module)?)?;
    module.add_function(wrap_pyfunction!(disks::info, module)?)?;
    module.add_function(wrap_pyfunction!(disks::measure, module)?)?;
    module.add_function(wrap_pyfunction!(disks::check, module)?)?;
    module.add_function(wrap_pyfunction!(disks::create, module)?)?;
    module.add_function(wrap_pyfunction!(disks::resize, module)?)?;
    module.add_function(wrap_pyfunction!(disks::bitmap, module)?)?;
    module.add_function(wrap_pyfunction!(disks::digest_disk, module)?)?;
    Ok(())
}
