//! The extension module of the Python package `rackpool`: the pool, its hash table and its object
//! store for Python.
//!
//! `docs/design/python.md` says what maps to what. Three rules hold in all modules:
//!
//! - A call of the Rust library runs with the GIL released.
//! - A lock of this crate is taken and released while the thread holds the GIL. `os.fork` holds the
//!   GIL too, so a child inherits no locked one.
//! - The Rust library gets a buffer of Python only where no Python code can change it meanwhile.
//!
//! Unsafe code is in `objects` alone, which exports the pool's memory as buffers of Python.

mod address;
mod arguments;
mod bytes;
mod errors;
mod future;
mod items;
mod objects;
mod pool;
mod process;
mod session;
mod table;

use pyo3::prelude::*;

/// Adds the classes and exceptions to the module that `rackpool/__init__.py` imports.
#[pymodule]
fn _rackpool(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<address::Address>()?;
    module.add_class::<pool::Pool>()?;
    module.add_class::<table::Table>()?;
    module.add_class::<objects::ObjectStore>()?;
    module.add_class::<objects::UnsealedObject>()?;
    module.add_class::<objects::View>()?;
    module.add_class::<objects::ObjectInfo>()?;
    module.add_class::<objects::ObjectStat>()?;
    module.add_class::<objects::Subscription>()?;
    module.add_class::<objects::StoreEvent>()?;
    errors::add_to(module)
}
