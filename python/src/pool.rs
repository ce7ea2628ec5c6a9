use std::path::PathBuf;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyType};
use rackpool_client::{ClientOptions, DaemonError, GlobalAddr, RackId};

use crate::address::Address;
use crate::arguments::{seconds, short, unsigned, word};
use crate::bytes::{Writable, unchanging};
use crate::errors::{Misaligned, Raise};
use crate::session::Session;

/// A pool of memory that spans racks, used from one rack. Any thread may call any method.
#[pyclass(frozen, module = "rackpool")]
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) session: Arc<Session>,
    rack: RackId,
    page_bytes: u64,
}

impl Pool {
    fn open(
        py: Python<'_>,
        options: ClientOptions,
        threads: Option<&Bound<'_, PyAny>>,
        request_timeout: f64,
        reconnect_timeout: f64,
        checked: bool,
    ) -> PyResult<Self> {
        let options = match threads {
            Some(threads) => options.threads(short("threads", threads)?),
            None => options,
        };
        let options = options
            .request_timeout(seconds("request_timeout", request_timeout)?)
            .reconnect_timeout(seconds("reconnect_timeout", reconnect_timeout)?)
            .checked(checked);
        let pool = py.detach(|| rackpool_client::Pool::open(options));
        let pool = pool.map_err(|error| error.raise(py))?;
        let (rack, page_bytes) = (pool.rack(), pool.page_bytes());
        Ok(Self { session: Session::new(pool), rack, page_bytes })
    }

    /// Reads `len` bytes into a new object, in place: no other thread knows it yet.
    fn read_bytes<'py>(
        &self,
        py: Python<'py>,
        addr: GlobalAddr,
        len: usize,
    ) -> PyResult<Bound<'py, PyBytes>> {
        // An access of more than a page is checked before so much memory is taken for its bytes.
        if len as u64 > self.page_bytes {
            self.session.run(py, |pool| {
                let object = pool.object(addr)?;
                object.at(addr.raw().saturating_sub(object.addr().raw()), len as u64)
            })?;
        }
        PyBytes::new_with(py, len, |into| self.session.run(py, |pool| pool.read(addr, into)))
    }
}

/// The address of a word, which has to be a multiple of 8.
fn aligned(addr: &Address) -> PyResult<GlobalAddr> {
    let addr = addr.get();
    if addr.raw().is_multiple_of(8) {
        return Ok(addr);
    }
    Err(Misaligned::new_err(format!(
        "{addr} is not aligned to 8 B: load and store need an address that is a multiple of 8"
    )))
}

#[pymethods]
impl Pool {
    #[new]
    #[pyo3(signature = (path, rack, *, threads=None, request_timeout=30.0, reconnect_timeout=10.0, checked=false))]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        rack: &Bound<'_, PyAny>,
        threads: Option<&Bound<'_, PyAny>>,
        request_timeout: f64,
        reconnect_timeout: f64,
        checked: bool,
    ) -> PyResult<Self> {
        let options = ClientOptions::new(path, RackId(short("rack", rack)?));
        Self::open(py, options, threads, request_timeout, reconnect_timeout, checked)
    }

    /// Opens the pool through the daemon that listens on this Unix socket.
    #[classmethod]
    #[pyo3(signature = (socket, *, threads=None, request_timeout=30.0, reconnect_timeout=10.0, checked=false))]
    fn with_socket(
        _: &Bound<'_, PyType>,
        py: Python<'_>,
        socket: PathBuf,
        threads: Option<&Bound<'_, PyAny>>,
        request_timeout: f64,
        reconnect_timeout: f64,
        checked: bool,
    ) -> PyResult<Self> {
        let options = ClientOptions::with_socket(socket);
        Self::open(py, options, threads, request_timeout, reconnect_timeout, checked)
    }

    /// The number of the rack from which the pool is used.
    #[getter]
    fn rack(&self) -> u16 {
        self.rack.0
    }

    /// The size of a page in bytes.
    #[getter]
    pub(crate) fn page_bytes(&self) -> u64 {
        self.page_bytes
    }

    /// Whether the pool is closed.
    #[getter]
    fn closed(&self) -> bool {
        self.session.is_closed()
    }

    /// Allocates at least `size` bytes of unspecified contents.
    fn alloc(&self, py: Python<'_>, size: &Bound<'_, PyAny>) -> PyResult<Address> {
        let size = unsigned("size", size)?;
        self.session.run(py, |pool| pool.alloc(size)).map(Address::from)
    }

    /// Frees an object that `alloc` returned to any program in any rack.
    fn free(&self, py: Python<'_>, addr: &Address) -> PyResult<()> {
        self.session.run(py, |pool| pool.free(addr.get()))
    }

    /// Reads `size` bytes at `addr`.
    fn read<'py>(
        &self,
        py: Python<'py>,
        addr: &Address,
        size: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let size = usize::try_from(unsigned("size", size)?)?;
        self.read_bytes(py, addr.get(), size)
    }

    /// Fills a writable C-contiguous buffer with the bytes at `addr`; returns how many it has.
    fn readinto(
        &self,
        py: Python<'_>,
        addr: &Address,
        buffer: &Bound<'_, PyAny>,
    ) -> PyResult<usize> {
        let buffer = Writable::new(buffer)?;
        let len = buffer.len()?;
        let bytes = self.read_bytes(py, addr.get(), len)?;
        buffer.fill(&bytes)?;
        Ok(len)
    }

    /// Writes the bytes of a C-contiguous buffer to `addr`.
    fn write(&self, py: Python<'_>, addr: &Address, data: &Bound<'_, PyAny>) -> PyResult<()> {
        let data = unchanging(data)?;
        let from = data.as_bytes();
        self.session.run(py, |pool| pool.write(addr.get(), from))
    }

    /// Reads the 8 bytes (little endian) at `addr` as a number.
    fn load(&self, py: Python<'_>, addr: &Address) -> PyResult<u64> {
        let addr = aligned(addr)?;
        self.session.run(py, |pool| {
            let mut bytes = [0; 8];
            pool.read(addr, &mut bytes).map(|()| u64::from_le_bytes(bytes))
        })
    }

    /// Writes a number to the 8 bytes (little endian) at `addr`.
    fn store(&self, py: Python<'_>, addr: &Address, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let (addr, bytes) = (aligned(addr)?, word("value", value)?.to_le_bytes());
        self.session.run(py, |pool| pool.write(addr, &bytes))
    }

    /// Adds `delta` to the word at `addr`, modulo 2^64; returns its value from before.
    fn fetch_add(&self, py: Python<'_>, addr: &Address, delta: &Bound<'_, PyAny>) -> PyResult<u64> {
        let delta = word("delta", delta)?;
        self.session.run(py, |pool| pool.fetch_and_add(addr.get(), delta))
    }

    /// Replaces the word at `addr` with `new` if it is `expected`; returns its value from before.
    fn compare_exchange(
        &self,
        py: Python<'_>,
        addr: &Address,
        expected: &Bound<'_, PyAny>,
        new: &Bound<'_, PyAny>,
    ) -> PyResult<u64> {
        let (expected, new) = (word("expected", expected)?, word("new", new)?);
        self.session.run(py, |pool| pool.compare_and_swap(addr.get(), expected, new))
    }

    /// Whether `addr` lies in the rack from which the pool is used.
    fn is_local(&self, py: Python<'_>, addr: &Address) -> PyResult<bool> {
        self.session.run(py, |pool| pool.is_local(addr.get()))
    }

    /// The address under the root `name`; `None` if there is no such root.
    fn root(&self, py: Python<'_>, name: &str) -> PyResult<Option<Address>> {
        self.session.run(py, |pool| pool.root(name)).map(|addr| addr.map(Address::from))
    }

    /// Replaces the address under the root `name` with `new` if it is `expected`. Returns the
    /// address that is there afterwards, and whether this call changed it.
    #[pyo3(signature = (name, expected, new))]
    fn set_root(
        &self,
        py: Python<'_>,
        name: &str,
        expected: Option<&Address>,
        new: Option<&Address>,
    ) -> PyResult<(Option<Address>, bool)> {
        let (expected, new) = (expected.map(|addr| addr.get()), new.map(|addr| addr.get()));
        let root = self.session.run(py, |pool| pool.set_root(name, expected, new))?;
        Ok((root.addr.map(Address::from), root.changed))
    }

    /// Sends the rack daemon a request that it answers at once, and waits for the answer.
    fn ping(&self, py: Python<'_>) -> PyResult<()> {
        self.session.run(py, |pool| pool.ping())
    }

    /// Closes the pool, its tables and its object stores. The objects stay.
    fn close(&self, py: Python<'_>) {
        self.session.close(py);
    }

    fn __enter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        if slf.get().closed() {
            return Err(DaemonError::Closed.raise(slf.py()));
        }
        Ok(slf)
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) {
        self.session.close(py);
    }

    fn __repr__(&self) -> String {
        let state = if self.closed() { "closed" } else { "open" };
        format!("<rackpool.Pool from {}, {state}>", self.rack)
    }
}
