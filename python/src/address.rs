use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;
use pyo3::types::PyType;
use rackpool_client::GlobalAddr;

use crate::arguments::unsigned;

/// An address in the pool: 64 bits that name the same bytes in every rack.
#[pyclass(frozen, eq, ord, hash, module = "rackpool")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Address(u64);

impl Address {
    pub(crate) const fn get(self) -> GlobalAddr {
        GlobalAddr::from_raw(self.0)
    }
}

impl From<GlobalAddr> for Address {
    fn from(addr: GlobalAddr) -> Self {
        Self(addr.raw())
    }
}

#[pymethods]
impl Address {
    #[new]
    fn new(raw: &Bound<'_, PyAny>) -> PyResult<Self> {
        unsigned("an address", raw).map(Self)
    }

    fn __int__(&self) -> u64 {
        self.0
    }

    /// Returns the address that lies `bytes` bytes behind this one.
    fn __add__(&self, bytes: &Bound<'_, PyAny>) -> PyResult<Self> {
        let sum = self.0.checked_add(unsigned("an offset", bytes)?);
        sum.map(Self)
            .ok_or_else(|| PyOverflowError::new_err("the sum leaves the address space of 64 bits"))
    }

    fn __repr__(&self) -> String {
        format!("Address({:#x})", self.0)
    }

    fn __str__(&self) -> String {
        self.get().to_string()
    }

    /// For `pickle`, with which `multiprocessing` passes addresses on.
    fn __reduce__<'py>(&self, py: Python<'py>) -> (Bound<'py, PyType>, (u64,)) {
        (py.get_type::<Self>(), (self.0,))
    }
}
