//! Groups: a stream of messages from one program to others in many racks.
//!
//! The machines are in `rackpool_proto::group`; docs/design/groups.md describes them and this
//! shell.
//!
//! | module | contains |
//! |---|---|
//! | `options` | [`GroupOptions`], [`GroupReport`], [`GroupFailure`] |
//! | `names` | the names by which root and members find each other, and the decision |
//! | `place` | the memory of a program: words and ring |
//! | `record` | the bytes of a message in a ring |
//! | `opening` | how a root makes a group |
//! | `root` | [`GroupRoot`] |
//! | `joining` | how a program becomes a member |
//! | `member` | [`GroupMember`] |

mod joining;
mod member;
mod names;
mod opening;
mod options;
mod place;
mod record;
mod root;

pub use member::{GroupMember, Message, Received};
pub use options::{GroupFailure, GroupOptions, GroupOutcome, GroupReport};
pub use root::GroupRoot;

/// Decodes what a root's object says.
#[cfg(feature = "fuzzing")]
pub(crate) fn fuzz_place(bytes: &[u8]) {
    let Some(found) = bytes.first_chunk().and_then(place::decode_group) else { return };
    assert!(found.racks.len() == found.seats.len() && found.bytes.is_power_of_two());
}

/// Reads a ring: its first 8 bytes are the number of the group. What is whole up to some record
/// begins with a record, and neither reads past the ring.
#[cfg(feature = "fuzzing")]
pub(crate) fn fuzz_ring(bytes: &[u8]) {
    let Some((number, ring)) = bytes.split_first_chunk() else { return };
    let number = u64::from_le_bytes(*number);
    let found = record::Record::read(ring, number, 0);
    let end = found.map_or(rackpool_proto::group::ALIGN, record::Record::bytes);
    assert_eq!(record::is_whole(ring, number, 0, end), found.is_some());
}
