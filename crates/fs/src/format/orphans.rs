//! Lists of inodes without a name that are not freed yet.

use crate::attr::Ino;

/// Decodes a list of orphans.
pub(crate) fn orphans_in(value: Option<&[u8]>) -> Vec<Ino> {
    let numbers = value.unwrap_or_default().as_chunks().0.iter();
    numbers.map(|number| Ino(u64::from_le_bytes(*number))).collect()
}

/// Encodes a list of orphans; `None` for an empty one, which the table does not store.
pub(crate) fn encode_orphans(orphans: &[Ino]) -> Option<Vec<u8>> {
    let bytes: Vec<u8> = orphans.iter().flat_map(|ino| ino.0.to_le_bytes()).collect();
    Some(bytes).filter(|bytes| !bytes.is_empty())
}
