use pyo3::prelude::*;

use crate::address::Address;

/// An object of a store.
#[pyclass(frozen, eq, get_all, module = "rackpool")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ObjectInfo {
    /// The id.
    id: Vec<u8>,
    /// The length of the bytes.
    size: u64,
    /// The length of the metadata in bytes.
    metadata_size: u64,
    /// The number that names the layout of the bytes.
    layout_tag: u64,
    /// The checksum of bytes and metadata.
    checksum: u64,
    /// When the object was sealed, in milliseconds since 1970 by the creator's clock.
    created_ms: u64,
    /// The number of the rack in which the object was created.
    rack: u16,
    /// Whether its bytes are in a file of the rack.
    is_spilled: bool,
}

/// An object and where it is.
#[pyclass(frozen, eq, get_all, module = "rackpool")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ObjectStat {
    /// What the store says of the object.
    info: ObjectInfo,
    /// The address of its head.
    addr: Address,
    /// The number of pieces in which its bytes lie; 0 if they are in a file.
    pieces: u32,
    /// About when a program of its rack last got the object, in milliseconds since 1970; 0 if it is
    /// in a file.
    last_use_ms: u64,
    /// The numbers of the other racks that have replicas.
    replicas: Vec<u16>,
}

impl From<rackpool_objects::ObjectInfo> for ObjectInfo {
    fn from(info: rackpool_objects::ObjectInfo) -> Self {
        Self {
            id: info.id,
            size: info.bytes,
            metadata_size: info.metadata_bytes,
            layout_tag: info.layout_tag,
            checksum: info.checksum,
            created_ms: info.created_ms,
            rack: info.rack.0,
            is_spilled: info.is_spilled,
        }
    }
}

impl From<rackpool_objects::ObjectStat> for ObjectStat {
    fn from(stat: rackpool_objects::ObjectStat) -> Self {
        Self {
            info: stat.info.into(),
            addr: stat.addr.into(),
            pieces: stat.pieces,
            last_use_ms: stat.last_use_ms,
            replicas: stat.replicas.iter().map(|rack| rack.0).collect(),
        }
    }
}

#[pymethods]
impl ObjectInfo {
    fn __repr__(&self) -> String {
        let id = self.id.escape_ascii();
        format!("<rackpool.ObjectInfo of \"{id}\": {} B from rack {}>", self.size, self.rack)
    }
}

#[pymethods]
impl ObjectStat {
    fn __repr__(&self) -> String {
        let (id, replicas) = (self.info.id.escape_ascii(), self.replicas.len());
        format!("<rackpool.ObjectStat of \"{id}\": {} B, {replicas} replicas>", self.info.size)
    }
}
