use crate::error::KvError;
use crate::ordered::MapId;

/// Why an operation on an ordered map failed. `E` is the error of the underlying memory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OrderedError<E: std::error::Error + 'static> {
    /// The node table failed. After [`KvError::OutcomeUnknown`] the change may have been made;
    /// after any other error it was not.
    #[error(transparent)]
    Table(#[from] KvError<E>),
    /// The map does not exist.
    #[error("there is no ordered map {map} in this node table: it was never made, or destroyed")]
    Gone {
        /// The map's id.
        map: MapId,
    },
    /// Bytes of the map could not be decoded.
    #[error(
        "the ordered map {map} is damaged: {what}. Some other program wrote to its node table; \
         destroy the map and make it anew"
    )]
    Damaged {
        /// The map's id.
        map: MapId,
        /// The defect that was found.
        what: &'static str,
    },
    /// A walk has read as many leaves as
    /// [`limit_leaves`](crate::ordered::OrderedMaps::limit_leaves) allows. It changed nothing.
    #[error("the ordered map {map} has more leaves than this walk may read: walk without a limit")]
    LeafLimit {
        /// The map's id.
        map: MapId,
    },
    /// The key is longer than 65535 bytes, or key and value together exceed a quarter of a page.
    #[error(
        "a key of {key_bytes} B and a value of {value_bytes} B: an ordered map takes keys of up \
         to 65535 B and, with their values, {max} B; store the value elsewhere and its address here"
    )]
    TooLarge {
        /// The key's length in bytes.
        key_bytes: usize,
        /// The value's length in bytes.
        value_bytes: usize,
        /// The largest length of key and value together, in bytes.
        max: usize,
    },
}
