use rackpool_fabric::{RegionId, RemoteRegion, Transfer};

/// Memory of this side that is registered with the fabric and exported to peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The region's id in this side's fabric.
    pub region: RegionId,
    /// The region's index in the list of exports.
    pub export: RemoteRegion,
    /// Offset in the region, in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub len: u32,
}

/// Memory of the peer, as named by the peer. It is not trusted: the fabric checks it at use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemotePlace {
    /// The region.
    pub region: RemoteRegion,
    /// Offset in the region, in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub len: u32,
}

impl Place {
    /// The place as peers name it.
    #[must_use]
    pub const fn exported(&self) -> RemotePlace {
        RemotePlace { region: self.export, offset: self.offset, len: self.len }
    }

    /// The first `len` bytes of the place, or all of it if it is shorter.
    #[must_use]
    pub fn first(self, len: u32) -> Self {
        Self { len: self.len.min(len), ..self }
    }

    /// The transfer between all bytes of this place and the beginning of the peer's.
    #[must_use]
    pub const fn transfer(&self, remote: &RemotePlace) -> Transfer {
        Transfer {
            local: self.region,
            local_offset: self.offset,
            remote: remote.region,
            remote_offset: remote.offset,
            len: self.len,
        }
    }
}
