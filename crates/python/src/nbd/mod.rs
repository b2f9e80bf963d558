//! `diskferry.nbd`: libnbd's module, over the [engine](crate::engine).
//!
//! Names, defaults, exceptions and their words are libnbd's. Calls that wait do so without the
//! interpreter.
//!
//! - `shared.rs`: one connection, and the threads that wait for it. `telling.rs`: callbacks.
//! - `settings.rs`, `connect.rs`, `options.rs`, `facts.rs`, `commands.rs`, `events.rs`: the methods
//!   of `NBD`.
//! - `buffer.rs`: Python's memory.

/// Methods of `NBD`: `name(parameters) -> result = call(values)` calls `self.call(py, "name",
/// values)`, so that errors name the method. A parameter may have a default.
macro_rules! methods {
    ($($(#[$doc:meta])*
      $name:ident($($arg:ident: $type:ty $(= $default:tt)?),*) -> $result:ty
          = $call:ident($($value:expr),*);)*) => {
        #[pyo3::pymethods]
        #[allow(clippy::too_many_arguments, reason = "libnbd's")]
        impl NBD {
            $($(#[$doc])*
            #[pyo3(signature = ($($arg $(= $default)?),*))]
            fn $name(&self, py: Python<'_> $(, $arg: $type)*) -> PyResult<$result> {
                self.$call(py, stringify!($name) $(, $value)*)
            })*
        }
    };
}

mod buffer;
mod commands;
mod connect;
mod events;
mod facts;
mod options;
mod settings;
mod shared;
mod telling;

use std::sync::atomic::{AtomicU64, Ordering};

use pyo3::prelude::*;

pub(crate) use buffer::{AioBuffer, View, fresh};
use shared::Shared;

/// An argument of any type.
type Object<'a, 'py> = &'a Bound<'py, PyAny>;

/// A connection to an NBD server.
///
/// The methods are those of libnbd's class of the same name. Offsets, counts and sizes are in
/// bytes. Failures raise diskferry.nbd.Error, with a text and an errno. Any thread may call any
/// method at any time.
#[pyclass(module = "diskferry.nbd", subclass, frozen)]
#[derive(Debug)]
#[expect(clippy::upper_case_acronyms, reason = "libnbd's name")]
pub(crate) struct NBD {
    shared: Shared,
}

#[pymethods]
impl NBD {
    #[new]
    fn new() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(1);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        Self { shared: Shared::new(format!("nbd{number}")) }
    }

    /// Closes the connection at once. Any later call raises ClosedHandle.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.shared.with(py, "close", |core| core.engine().map(|_| ()))?;
        self.shared.close(py);
        Ok(())
    }
}

impl Drop for NBD {
    fn drop(&mut self) {
        Python::attach(|py| self.shared.close(py));
    }
}
