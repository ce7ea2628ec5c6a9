use rackpool_fabric::{RegionId, RemoteRegion, Transfer};

/// Memory of this side that its own fabric can use and that peers can reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// What this side's fabric calls the region.
    pub region: RegionId,
    /// What peers call it: its place in the list of exports.
    pub export: RemoteRegion,
    /// Where in the region, in bytes.
    pub offset: u64,
    /// How many bytes.
    pub len: u32,
}

/// Memory of the peer, as it names it. Not trusted: the fabric checks it when it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemotePlace {
    /// The region.
    pub region: RemoteRegion,
    /// Where in the region, in bytes.
    pub offset: u64,
    /// How many bytes.
    pub len: u32,
}

impl Place {
    /// As peers see it.
    #[must_use]
    pub const fn exported(&self) -> RemotePlace {
        RemotePlace { region: self.export, offset: self.offset, len: self.len }
    }

    /// The first bytes of it, at most `len`.
    #[must_use]
    pub fn first(self, len: u32) -> Self {
        Self { len: self.len.min(len), ..self }
    }

    /// Moves all its bytes from or to the beginning of the peer's memory.
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
