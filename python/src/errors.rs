//! The exceptions, named like the errors of the Rust library. Each has the library's message, which
//! says what to do next.

use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyValueError};
use pyo3::prelude::*;
use rackpool_client as client;
use rackpool_client::{AccessError, AllocError, DaemonError, FreeError, MapError, PinError};
use rackpool_kv::PoolError;
use rackpool_objects::StoreError;

/// Declares the exceptions below `RackpoolError`, and adds all to the module.
macro_rules! exceptions {
    ($($name:ident: $meaning:literal;)*) => {
        create_exception!(
            rackpool, RackpoolError, PyException, "An operation on the pool failed."
        );
        $(create_exception!(rackpool, $name, RackpoolError, $meaning);)*

        pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
            let py = module.py();
            module.add(stringify!(RackpoolError), py.get_type::<RackpoolError>())?;
            $(module.add(stringify!($name), py.get_type::<$name>())?;)*
            Ok(())
        }
    };
}

exceptions! {
    OpenError: "The pool could not be opened.";
    InvalidAddress: "The address belongs to no page of the pool.";
    NotAllocated: "Nothing is allocated at the address.";
    NotAnObject: "The address is not the first byte of an object.";
    BeyondObject: "The access goes past the end of the allocation.";
    Empty: "The access has no byte.";
    ZeroSize: "The allocation has no byte.";
    TooLarge: "The object is larger than any rack, or the entry than a page.";
    Misaligned: "The address of a word is not a multiple of 8.";
    OutOfMemory: "No reachable rack has room.";
    RackFull: "The own rack has no room for an object, whose bytes lie in no other.";
    NoCell: "The program has too many views or unsealed objects.";
    TooManyThreads: "No thread slot became free in time.";
    PageLost: "The contents of the page were lost with its rack's memory.";
    RackUnavailable: "The home rack of the address does not answer.";
    PageBusy: "The page moved for longer than the request timeout.";
    Indeterminate: "A daemon died during the operation: it may or may not have happened.";
    Unavailable: "The own rack's daemon does not answer.";
    Forgotten: "The own rack's daemon no longer knows this client.";
    MetadataUnreachable: "The metadata server does not answer.";
    Inherited: "The pool was opened before a fork: open it again in the child.";
    Closed: "The pool is closed.";
    Protocol: "The own rack's daemon is of another release.";
    RootError: "The root's name is wrong, or the metadata server refused the change.";
    OutcomeUnknown: "A daemon went away in the deciding step of a change of a table.";
    KeyLength: "The key is longer than 65535 bytes.";
    OtherKind: "The value is not a string of bytes.";
    TableFull: "The table is full at its maximum depth.";
    NotATable: "There is no table, or one of another format.";
    Corrupt: "Bytes of the table are damaged.";
    IdLength: "The id is empty or longer than 64 bytes.";
    Exists: "There is a sealed object of this id.";
    Fragmented: "The rack has room for the object, but in too many pieces.";
    StoreFull: "The capacity of the object store is reached, and nothing else may be evicted.";
    NoSpillFolder: "The rack has no folder for objects that are moved out of memory.";
    SpillFile: "A file of a spilled object could not be written or read.";
    NotRestored: "The object is in a file of another rack, and no program there brings it back.";
    LayoutTag: "The object has another layout tag than the reader expects.";
    NotAStore: "There is no object store of this name.";
    Removed: "The object store was removed, or its removal has begun.";
    RemovalUnderWay: "Another program removes the object store.";
    Version: "The object store was written by another version of the library.";
    Damaged: "The bytes of the object are not those that were sealed.";
}

/// An error of the Rust library that has an exception.
pub(crate) trait Raise {
    /// The exception.
    fn raise(self, py: Python<'_>) -> PyErr;
}

impl Raise for client::OpenError {
    fn raise(self, _: Python<'_>) -> PyErr {
        OpenError::new_err(self.to_string())
    }
}

impl Raise for DaemonError {
    fn raise(self, _: Python<'_>) -> PyErr {
        let text = self.to_string();
        match self {
            Self::Unavailable => Unavailable::new_err(text),
            Self::Forgotten => Forgotten::new_err(text),
            Self::MetadataUnreachable => MetadataUnreachable::new_err(text),
            Self::TooManyThreads(_) => TooManyThreads::new_err(text),
            Self::Closed => Closed::new_err(text),
            Self::Inherited => Inherited::new_err(text),
            Self::Protocol => Protocol::new_err(text),
            _ => RackpoolError::new_err(text),
        }
    }
}

impl Raise for AccessError {
    fn raise(self, py: Python<'_>) -> PyErr {
        let text = self.to_string();
        match self {
            Self::InvalidAddress(_) => InvalidAddress::new_err(text),
            Self::NotAllocated(_) => NotAllocated::new_err(text),
            Self::BeyondObject { .. } => BeyondObject::new_err(text),
            Self::Empty => Empty::new_err(text),
            Self::Misaligned(_) => Misaligned::new_err(text),
            Self::PageLost(_) => PageLost::new_err(text),
            Self::RackUnavailable(_) => RackUnavailable::new_err(text),
            Self::PageBusy(..) => PageBusy::new_err(text),
            Self::Indeterminate(_) => Indeterminate::new_err(text),
            Self::Daemon(error) => error.raise(py),
            _ => RackpoolError::new_err(text),
        }
    }
}

impl Raise for AllocError {
    fn raise(self, py: Python<'_>) -> PyErr {
        let text = self.to_string();
        match self {
            Self::ZeroSize => ZeroSize::new_err(text),
            Self::TooLarge { .. } => TooLarge::new_err(text),
            Self::OutOfMemory(_) => OutOfMemory::new_err(text),
            Self::RackFull { .. } => RackFull::new_err(text),
            Self::NoCell(_) => NoCell::new_err(text),
            Self::Access(error) => error.raise(py),
            Self::Daemon(error) => error.raise(py),
            _ => RackpoolError::new_err(text),
        }
    }
}

impl Raise for FreeError {
    fn raise(self, py: Python<'_>) -> PyErr {
        let text = self.to_string();
        match self {
            Self::NotAnObject { .. } => NotAnObject::new_err(text),
            Self::NotAllocated(_) => NotAllocated::new_err(text),
            Self::Access(error) => error.raise(py),
            _ => RackpoolError::new_err(text),
        }
    }
}

impl Raise for PinError {
    fn raise(self, py: Python<'_>) -> PyErr {
        match self {
            Self::Access(error) => error.raise(py),
            Self::NoCell(error) => NoCell::new_err(error.to_string()),
            other => RackpoolError::new_err(other.to_string()),
        }
    }
}

impl Raise for MapError {
    fn raise(self, py: Python<'_>) -> PyErr {
        match self {
            Self::Access(error) => error.raise(py),
            other => RackpoolError::new_err(other.to_string()),
        }
    }
}

impl Raise for client::RootError {
    fn raise(self, py: Python<'_>) -> PyErr {
        if let Self::Daemon(error) = self {
            return error.raise(py);
        }
        let raised = RootError::new_err(self.to_string());
        let noted = raised.value(py).setattr("is_unchanged", self.is_unchanged());
        noted.err().unwrap_or(raised)
    }
}

impl Raise for PoolError {
    fn raise(self, py: Python<'_>) -> PyErr {
        match self {
            Self::Alloc(error) => error.raise(py),
            Self::Access(error) => error.raise(py),
            Self::Free(error) => error.raise(py),
            Self::Root(error) => error.raise(py),
            other => RackpoolError::new_err(other.to_string()),
        }
    }
}

/// The error of an operation on a table.
pub(crate) type KvError = rackpool_kv::KvError<PoolError>;

impl Raise for KvError {
    fn raise(self, py: Python<'_>) -> PyErr {
        let text = self.to_string();
        match self {
            Self::Memory(error) => error.raise(py),
            Self::OutcomeUnknown => OutcomeUnknown::new_err(text),
            Self::KeyLength { .. } => KeyLength::new_err(text),
            Self::TooLarge { .. } => TooLarge::new_err(text),
            Self::OtherKind { .. } => OtherKind::new_err(text),
            Self::TableFull { .. } => TableFull::new_err(text),
            Self::NotATable { .. } | Self::Version { .. } => NotATable::new_err(text),
            Self::Corrupt { .. } => Corrupt::new_err(text),
            Self::Option { .. } => PyValueError::new_err(text),
            _ => RackpoolError::new_err(text),
        }
    }
}

impl Raise for StoreError {
    fn raise(self, py: Python<'_>) -> PyErr {
        let text = self.to_string();
        match self {
            Self::IdLength { .. } => IdLength::new_err(text),
            Self::Exists => Exists::new_err(text),
            Self::TooLarge { .. } => TooLarge::new_err(text),
            Self::Fragmented { .. } => Fragmented::new_err(text),
            Self::StoreFull { .. } => StoreFull::new_err(text),
            Self::Option { .. } => PyValueError::new_err(text),
            Self::NoSpillFolder { .. } => NoSpillFolder::new_err(text),
            Self::SpillFile { .. } => SpillFile::new_err(text),
            Self::NotRestored { .. } => NotRestored::new_err(text),
            Self::LayoutTag { .. } => LayoutTag::new_err(text),
            Self::NotAStore { .. } => NotAStore::new_err(text),
            Self::Removed => Removed::new_err(text),
            Self::RemovalUnderWay => RemovalUnderWay::new_err(text),
            Self::Version { .. } => Version::new_err(text),
            Self::Damaged { .. } | Self::DamagedFile { .. } => Damaged::new_err(text),
            Self::Table(error) => error.raise(py),
            Self::Alloc(error) => error.raise(py),
            Self::Access(error) => error.raise(py),
            Self::Pin(error) => error.raise(py),
            Self::Map(error) => error.raise(py),
            Self::Free(error) => error.raise(py),
            Self::Root(error) => error.raise(py),
            Self::Daemon(error) => error.raise(py),
            _ => RackpoolError::new_err(text),
        }
    }
}
