//! The end of a string: of one that a key has named, of one that no key will name, and of what a
//! killed service left.

use rackpool_kv::now_ms;

use super::Nodes;
use super::head::{Head, StringKey, head_key, marker_key};
use crate::failure::{Failure, said};
use crate::store::Store;
use crate::values::{LargeString, StringId};

/// A string whose marker is older, in milliseconds, will not be named: longer than a transaction is
/// repeated.
const ABANDONED_MS: u64 = 30_000;

/// Stores the marker of a string that no key names yet.
pub(super) fn mark(nodes: &mut Nodes, id: StringId, now_ms: u64) -> Result<(), Failure> {
    let made = now_ms.to_le_bytes();
    let done = nodes.outside(|nodes| nodes.insert(&marker_key(id), &made))?;
    if done { Ok(()) } else { Err(said("ERR the id of a string is in use")) }
}

/// Deletes the marker of a string that no key will name.
pub(super) fn unmark(nodes: &mut Nodes, id: StringId) -> Result<bool, Failure> {
    Ok(nodes.outside(|nodes| nodes.delete(&marker_key(id)))?)
}

/// Frees a string that no key names and none will name. Its memory is reused after its last view.
pub(crate) fn free(nodes: &mut Nodes, id: StringId) -> Result<bool, Failure> {
    let (key, mut value) = (head_key(id), Vec::new());
    let Some(place) = nodes.get_placed(&key, &mut value)? else { return Ok(false) };
    Ok(nodes.delete_placed(&key, &place)?)
}

impl Store {
    /// Frees what a key of the node table leads to if it belongs to a string that no key names and
    /// none will name. Returns whether it did. To be called outside of transactions.
    pub fn sweep_string(&mut self, key: &[u8]) -> Result<bool, Failure> {
        match StringKey::parse(key) {
            Some(StringKey::Head(id)) => self.sweep_head(id),
            // The marker of a string that is there goes with it.
            Some(StringKey::Marker(id)) => {
                let mut value = Vec::new();
                let has_head = self.nodes().get_placed(&head_key(id), &mut value)?.is_some();
                Ok(!has_head && self.unmark_abandoned(id)? == Marker::Removed)
            }
            None => Ok(false),
        }
    }

    fn sweep_head(&mut self, id: StringId) -> Result<bool, Failure> {
        let (key, mut value) = (head_key(id), Vec::new());
        let Some(place) = self.nodes().get_placed(&key, &mut value)? else { return Ok(false) };
        // A damaged head is kept: its key is unknown.
        let Some(head) = Head::decode(&value) else { return Ok(false) };
        match self.unmark_abandoned(id)? {
            Marker::Kept => return Ok(false),
            Marker::Removed => {}
            // The string was named: the marker is stored before the head. A name that is lost never
            // comes back. An expired entry still counts, since it can be revived.
            Marker::None => {
                let entry = self.keys.read_stored(&head.owner)?;
                if entry.and_then(LargeString::of).is_some_and(|named| named.id == id) {
                    return Ok(false);
                }
            }
        }
        Ok(self.nodes().delete_placed(&key, &place)?)
    }

    /// Deletes the marker of a string if it is old. A transaction that names the string fails from
    /// then on.
    fn unmark_abandoned(&mut self, id: StringId) -> Result<Marker, Failure> {
        let (key, mut value) = (marker_key(id), Vec::new());
        if !self.nodes().get(&key, &mut value)? {
            return Ok(Marker::None);
        }
        let made = value.first_chunk().map_or(0, |made| u64::from_le_bytes(*made));
        if now_ms().saturating_sub(made) < ABANDONED_MS {
            return Ok(Marker::Kept);
        }
        let is_removed = self.nodes().compare_and_delete(&key, &value)?;
        Ok(if is_removed { Marker::Removed } else { Marker::Kept })
    }
}

/// What became of a marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Marker {
    /// There is none.
    None,
    /// It is young, or a transaction has just deleted it.
    Kept,
    Removed,
}
