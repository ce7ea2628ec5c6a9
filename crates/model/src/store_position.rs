/// A commit in the history of a metadata server's store. Of two positions of one history the later
/// one is the larger.
#[cfg_attr(feature = "wire", derive(bincode::Encode, bincode::Decode))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StorePosition {
    /// The identity of the store: the random id of the first server that wrote it.
    pub store: u64,
    /// Which start of the server, counted from 1.
    pub boot: u32,
    /// The random id of that server: two servers that start from copies of one store differ in it.
    pub server: u64,
    /// Commits of that server up to this one.
    pub commit: u64,
}

impl core::fmt::Display for StorePosition {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Self { store, boot, server, commit } = self;
        write!(f, "start {boot} ({server:016x}), commit {commit}, of store {store:016x}")
    }
}
