/// A commit in the history of the metadata server's store. Positions of one history are ordered: a
/// later commit compares larger.
#[cfg_attr(feature = "wire", derive(bincode::Encode, bincode::Decode))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StorePosition {
    /// The identity of the store: the random id of the first server that wrote it.
    pub store: u64,
    /// The number of the server's start, from 1.
    pub boot: u32,
    /// The random id drawn at that start. Two servers started from copies of one store have
    /// different ids.
    pub server: u64,
    /// The number of this commit among those since that start, from 1.
    pub commit: u64,
}

impl core::fmt::Display for StorePosition {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Self { store, boot, server, commit } = self;
        write!(f, "start {boot} ({server:016x}), commit {commit}, of store {store:016x}")
    }
}
