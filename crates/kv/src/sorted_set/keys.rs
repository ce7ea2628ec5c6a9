//! The encoding of members and their order as entries of an ordered map.

use std::ops::Bound;

use crate::ordered::KeyRange;
use crate::sorted_set::{Score, ScoreRange};

const TRUTH: u8 = 0;
const ORDER: u8 = 1;

/// The truth of a member: its current score.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Truth {
    pub(super) score: Score,
    /// Random, new with each change of the member.
    pub(super) nonce: u64,
}

/// The state of an order entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OrderEntryState {
    /// A change is about to store this truth. The entry counts only if the truth matches. Left for
    /// *sure* after the commit, or removed if it fails. A kill leaves the entry.
    Tentative = 0,
    /// The truth matches: the entry counts. Left for *closing* before the truth changes.
    Sure = 1,
    /// The truth is about to change or has changed. The entry counts only if the truth matches.
    /// Removed after the commit, or, after a kill, by a removal by range.
    Closing = 2,
}

impl Truth {
    pub(super) fn new(score: Score) -> Self {
        Self { score, nonce: rand::random() }
    }

    pub(super) fn encode(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.score.get().to_le_bytes());
        bytes[8..].copy_from_slice(&self.nonce.to_le_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (score, nonce) = bytes.split_first_chunk()?;
        let nonce = u64::from_le_bytes(nonce.try_into().ok()?);
        Some(Self { score: Score::from_bits(u64::from_le_bytes(*score))?, nonce })
    }
}

impl OrderEntryState {
    pub(super) fn encode(self) -> Vec<u8> {
        vec![self as u8]
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [0] => Some(Self::Tentative),
            [1] => Some(Self::Sure),
            [2] => Some(Self::Closing),
            _ => None,
        }
    }
}

/// The key of the entry with a member's truth.
pub(super) fn truth_key(member: &[u8]) -> Vec<u8> {
    [&[TRUTH], member].concat()
}

/// The range of the truth entries.
pub(super) const TRUTHS: KeyRange<'_> =
    KeyRange { from: Bound::Unbounded, to: Bound::Excluded(&[ORDER]) };

/// The key of the order entry for a truth of a member.
pub(super) fn order_key(member: &[u8], truth: Truth) -> Vec<u8> {
    let mut key = order_prefix(member, truth.score);
    key.extend_from_slice(&truth.nonce.to_be_bytes());
    key
}

/// The common prefix of all order entries of a member with a score.
pub(super) fn order_prefix(member: &[u8], score: Score) -> Vec<u8> {
    let mut key = score_key(score.ordered_bits());
    for byte in member {
        key.push(*byte);
        if *byte == 0 {
            key.push(0xff);
        }
    }
    key.extend_from_slice(&[0, 1]);
    key
}

/// The member and the truth in the key of an order entry; `None` if it is not such a key.
pub(super) fn parse_order_key(key: &[u8]) -> Option<(Vec<u8>, Truth)> {
    let (score, rest) = key.strip_prefix(&[ORDER])?.split_first_chunk()?;
    let (escaped, nonce) = rest.split_last_chunk()?;
    let mut escaped = escaped.strip_suffix(&[0, 1])?.iter();
    let mut member = Vec::with_capacity(escaped.len());
    while let Some(byte) = escaped.next() {
        member.push(*byte);
        if *byte == 0 && escaped.next() != Some(&0xff) {
            return None;
        }
    }
    let score = Score::from_ordered_bits(u64::from_be_bytes(*score))?;
    Some((member, Truth { score, nonce: u64::from_be_bytes(*nonce) }))
}

/// The keys of the order entries of a range of scores.
pub(super) struct OrderBounds {
    /// The lower bound, included.
    pub(super) from: Vec<u8>,
    /// The upper bound, excluded.
    pub(super) to: Vec<u8>,
}

/// The bounds of the order entries of a range of scores.
pub(super) fn order_bounds(range: &ScoreRange) -> OrderBounds {
    // No score has all bits set; that would be a NaN.
    let from = match range.min {
        Bound::Included(min) => score_key(min.ordered_bits()),
        Bound::Excluded(min) => score_key(min.ordered_bits().saturating_add(1)),
        Bound::Unbounded => vec![ORDER],
    };
    let to = match range.max {
        Bound::Included(max) => score_key(max.ordered_bits().saturating_add(1)),
        Bound::Excluded(max) => score_key(max.ordered_bits()),
        Bound::Unbounded => vec![ORDER + 1],
    };
    OrderBounds { from, to }
}

fn score_key(bits: u64) -> Vec<u8> {
    [&[ORDER], &bits.to_be_bytes()[..]].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_the_order_of_scores_and_members() {
        let scores =
            [f64::NEG_INFINITY, f64::MIN, -1.5, -f64::MIN_POSITIVE, 0.0, 5e-324, 1.0, 3e300];
        let members: [&[u8]; 8] =
            [b"", b"\0", b"\0\0", b"\0\x01", b"\0\xff", b"a", b"a\0", b"a\0b"];
        let mut last = vec![ORDER];
        for score in scores.into_iter().chain([f64::INFINITY]) {
            let score = Score::new(score).unwrap();
            for member in members {
                let truth = Truth { score, nonce: rand::random() };
                let key = order_key(member, truth);
                assert!(key > last, "{score:?} {member:?}");
                assert_eq!(parse_order_key(&key), Some((member.to_vec(), truth)));
                last = key;
            }
        }
        assert!(last < vec![ORDER + 1]);
        assert_eq!(Score::new(-0.0), Score::new(0.0));
        assert_eq!(Score::new(f64::NAN), None);
    }
}
