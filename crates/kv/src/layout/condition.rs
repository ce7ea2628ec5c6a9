use crate::layout::slot::SlotWord;

/// The condition in the object of a compare-and-put. The object counts only if the object that it
/// replaced is the one that the client had read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Condition {
    /// The slot's word before the compare-and-put.
    pub(crate) word: SlotWord,
    /// The stamp of the object that the client had read.
    pub(crate) stamp: u64,
}

impl Condition {
    pub(crate) const BYTES: usize = 16;

    /// Whether an owner word is the complement of a token, which marks an aborted object.
    pub(crate) const fn is_aborted(owner: u64) -> bool {
        owner >> 63 != 0
    }
}
