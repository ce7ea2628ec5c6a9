//! The records that programs read and other programs wrote, for `rackpool-fuzz`.

use std::fmt::Debug;

use bincode::{Decode, Encode};

use crate::cast;
use crate::group;
use crate::layout::filling::Filling;
use crate::layout::head::Head;
use crate::layout::header::StorePrefix;
use crate::layout::registration::Registration;

/// Decodes a record of the kind that its first byte selects. It is either refused or equal after
/// encoding and decoding it again.
///
/// # Panics
/// If a decoded record differs after encoding and decoding.
pub fn record(bytes: &[u8]) {
    let Some((kind, bytes)) = bytes.split_first() else { return };
    match kind % 8 {
        0 => head(bytes),
        1 => registration(bytes),
        2 => words(bytes),
        3 => drop(bytes.first_chunk().map(StorePrefix::decode)),
        4 => group::fuzz_place(bytes),
        5 => group::fuzz_ring(bytes),
        _ => cast::fuzz_record(bytes),
    }
}

fn head(bytes: &[u8]) {
    let Some(head) = Head::decode(bytes) else { return };
    let again = match head.file {
        Some(file) => head.encode_stub(file).to_vec(),
        None => head.encode().to_vec(),
    };
    assert_eq!(again, bytes);
}

fn registration(bytes: &[u8]) {
    let Some(registration) = Registration::decode(bytes) else { return };
    assert_eq!(Registration::decode(&registration.encode()), Some(registration));
}

fn words(bytes: &[u8]) {
    let Some(word) = bytes.first_chunk().copied().map(u64::from_le_bytes) else { return };
    let filling = Filling::decode(word);
    assert_eq!(Filling::decode(filling.encode()), filling);
    assert!(filling.bytes(1 << 20) <= 1 << 20);
}

/// Decodes a record of a board.
pub(crate) fn of_board<T: Decode<()> + Encode + PartialEq + Debug>(bytes: &[u8]) {
    let Ok(record) = rackpool_wire::decode::<T>(bytes) else { return };
    let again = rackpool_wire::encode(&record).expect("what was decoded can be encoded");
    let again = rackpool_wire::decode::<T>(&again).expect("what was encoded can be decoded");
    assert_eq!(again, record);
}
