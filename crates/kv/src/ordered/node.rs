use std::ops::Range;

use crate::ordered::id::NodeId;

/// One node of a tree, with the bytes that were read.
#[derive(Clone, Debug)]
pub(super) struct MapNode {
    bytes: Vec<u8>,
    low: Range<usize>,
    high: Option<Range<usize>>,
    entries: Vec<EntryPosition>,
}

/// The position of an entry in its node.
#[derive(Clone, Copy, Debug)]
struct EntryPosition {
    at: usize,
    key_len: usize,
    value_len: usize,
}

/// All of a node but its entries.
#[derive(Clone, Copy, Debug)]
pub(super) struct NodeHeader<'a> {
    pub(super) level: u8,
    pub(super) version: u64,
    /// The version that the split node had when this half was put.
    pub(super) birth: u64,
    /// The number of splits of this node.
    pub(super) splits: u64,
    pub(super) low: &'a [u8],
    /// The lower bound of the right sibling, and its id.
    pub(super) right: Option<(&'a [u8], NodeId)>,
    pub(super) owner: &'a [u8],
}

const FORMAT: u8 = 1;
const HAS_HIGH: u8 = 1;
/// The greatest level. Each level has at least twice the nodes of the one above.
const MAX_LEVEL: u8 = 64;
const HEADER: usize = 64;
/// The size of the two lengths before an entry.
const PREFIX: usize = 8;

const COUNT: usize = 4;
const VERSION: usize = 8;
const BIRTH: usize = 16;
const SPLITS: usize = 24;
const RIGHT: usize = 32;
const LOW_LEN: usize = 48;
const HIGH_LEN: usize = 52;
const OWNER_LEN: usize = 56;

impl MapNode {
    /// A longer node is split, if it has more than one entry. With its key and the object's header
    /// this is 2 KiB, which the table reads at once.
    pub(super) const SPLIT_BYTES: usize = 2048 - 32 - 32;

    /// Decodes a node. The error says what is wrong.
    pub(super) fn decode(bytes: Vec<u8>) -> Result<Self, &'static str> {
        let header = bytes.get(..HEADER).ok_or("a node is shorter than its header")?;
        if header[0] != FORMAT || header[1] > MAX_LEVEL || header[2] & !HAS_HIGH != 0 {
            return Err("a node has another format");
        }
        let low = HEADER..HEADER + u32_at(&bytes, LOW_LEN);
        let high = low.end..low.end + u32_at(&bytes, HIGH_LEN);
        let owner = high.end..high.end + u32_at(&bytes, OWNER_LEN);
        let has_high = header[2] & HAS_HIGH != 0;
        if owner.end > bytes.len() || (!has_high && !high.is_empty()) {
            return Err("a node's keys leave it");
        }
        let count = u32_at(&bytes, COUNT);
        let entries = entries_in(&bytes, owner.end, count)?;
        let node = Self { low, high: has_high.then_some(high), bytes, entries };
        node.check()?;
        Ok(node)
    }

    /// Checks that keys, sibling and children are in order.
    fn check(&self) -> Result<(), &'static str> {
        let (low, high) = (self.low(), self.high());
        let has_right = self.id_at(RIGHT) != NodeId::ROOT;
        if has_right != high.is_some() || high.is_some_and(|high| high <= low) {
            return Err("a node ends before it begins, or without a sibling");
        }
        let keys = (0..self.len()).map(|index| self.key(index));
        let ends = [self.len().checked_sub(1).map(|last| self.key(last)), high];
        if let [Some(last), Some(high)] = ends
            && last >= high
        {
            return Err("a node has keys of its sibling");
        }
        if !keys.is_sorted_by(|a, b| a < b) || (self.len() > 0 && self.key(0) < low) {
            return Err("a node's keys are out of order");
        }
        if self.level() > 0 {
            let all_ids = (0..self.len()).all(|index| self.value(index).len() == NodeId::BYTES);
            if self.len() == 0 || self.key(0) != low || !all_ids {
                return Err("an inner node has no children");
            }
        }
        Ok(())
    }

    /// Encodes a node with these entries.
    pub(super) fn encode<'a>(
        frame: &NodeHeader<'_>,
        entries: impl Iterator<Item = (&'a [u8], &'a [u8])>,
    ) -> Vec<u8> {
        let mut bytes = vec![0; HEADER];
        let (high, right) = frame.right.unwrap_or((&[], NodeId::ROOT));
        (bytes[0], bytes[1], bytes[2]) = (FORMAT, frame.level, u8::from(frame.right.is_some()));
        for (at, word) in [(VERSION, frame.version), (BIRTH, frame.birth), (SPLITS, frame.splits)] {
            bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        bytes[RIGHT..RIGHT + NodeId::BYTES].copy_from_slice(right.as_bytes());
        for (at, part) in [(LOW_LEN, frame.low), (HIGH_LEN, high), (OWNER_LEN, frame.owner)] {
            bytes[at..at + 4].copy_from_slice(&len_bytes(part));
            bytes.extend_from_slice(part);
        }
        let mut count = 0_u32;
        for (key, value) in entries {
            push_entry(&mut bytes, key, value);
            count += 1;
        }
        bytes[COUNT..COUNT + 4].copy_from_slice(&count.to_le_bytes());
        bytes
    }

    /// The bytes of this node, with its version incremented, after `replaced` entries (0 or 1) from
    /// `index` on were replaced by `entry`.
    pub(super) fn with(
        &self,
        index: usize,
        replaced: usize,
        entry: Option<(&[u8], &[u8])>,
    ) -> Vec<u8> {
        let (from, to) = (self.offset(index), self.offset(index + replaced));
        let mut bytes = Vec::with_capacity(
            self.bytes.len() + entry.map_or(0, |(key, value)| PREFIX + key.len() + value.len()),
        );
        bytes.extend_from_slice(&self.bytes[..from]);
        if let Some((key, value)) = entry {
            push_entry(&mut bytes, key, value);
        }
        bytes.extend_from_slice(&self.bytes[to..]);
        let count = self.len() - replaced + usize::from(entry.is_some());
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        bytes[COUNT..COUNT + 4].copy_from_slice(&count.to_le_bytes());
        let version = self.version().wrapping_add(1);
        bytes[VERSION..VERSION + 8].copy_from_slice(&version.to_le_bytes());
        bytes
    }

    /// The offset of entry `index`; behind the last, the end of the node.
    fn offset(&self, index: usize) -> usize {
        self.entries.get(index).map_or(self.bytes.len(), |entry| entry.at)
    }

    /// The index of the right half's first entry; `None` if the node has only one. It depends on
    /// the node's content only.
    pub(super) fn split_index(&self) -> Option<usize> {
        let first = self.entries.first()?.at;
        let bytes = self.bytes.len() - first;
        // Keys beyond the last one are likely to arrive in ascending order.
        let left = if self.high.is_none() { bytes * 9 / 10 } else { bytes / 2 };
        let index = self.entries.partition_point(|entry| entry.at < first + left);
        (self.len() > 1).then(|| index.clamp(1, self.len() - 1))
    }

    /// The lower bound of the right half: the shortest key that separates it from the left half.
    pub(super) fn separator(&self, index: usize) -> &[u8] {
        let right = self.key(index);
        if self.level() > 0 || index == 0 {
            return right;
        }
        let left = self.key(index - 1);
        let same = left.iter().zip(right).take_while(|(a, b)| a == b).count();
        &right[..right.len().min(same + 1)]
    }

    /// Whether the node must be split before `more` bytes are added.
    pub(super) fn must_split_for(&self, more: usize) -> bool {
        let most = Self::SPLIT_BYTES + u32_at(&self.bytes, OWNER_LEN);
        self.len() > 1 && self.bytes.len() + more > most
    }

    /// The size of an entry in a node, in bytes.
    pub(super) const fn entry_bytes(key: &[u8], value: &[u8]) -> usize {
        PREFIX + key.len() + value.len()
    }

    /// All of the node but its entries.
    pub(super) fn frame(&self) -> NodeHeader<'_> {
        NodeHeader {
            level: self.level(),
            version: self.version(),
            birth: self.birth(),
            splits: self.splits(),
            low: self.low(),
            right: self.right(),
            owner: self.owner(),
        }
    }

    pub(super) fn entries(
        &self,
        range: Range<usize>,
    ) -> impl DoubleEndedIterator<Item = (&[u8], &[u8])> {
        range.map(|index| (self.key(index), self.value(index)))
    }

    /// The index of `key`, or the index at which it would be inserted.
    pub(super) fn search(&self, key: &[u8]) -> Result<usize, usize> {
        let index = self.partition_point(|other| other < key);
        if index < self.len() && self.key(index) == key { Ok(index) } else { Err(index) }
    }

    /// The number of leading entries whose keys satisfy `before`.
    pub(super) fn partition_point(&self, before: impl Fn(&[u8]) -> bool) -> usize {
        self.entries.partition_point(|entry| {
            let key = entry.at + PREFIX;
            before(&self.bytes[key..key + entry.key_len])
        })
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn key(&self, index: usize) -> &[u8] {
        let EntryPosition { at, key_len, .. } = self.entries[index];
        &self.bytes[at + PREFIX..at + PREFIX + key_len]
    }

    pub(super) fn value(&self, index: usize) -> &[u8] {
        let EntryPosition { at, key_len, value_len } = self.entries[index];
        let start = at + PREFIX + key_len;
        &self.bytes[start..start + value_len]
    }

    /// The id of the child at `index`.
    pub(super) fn child(&self, index: usize) -> NodeId {
        // `check` has verified the length.
        NodeId::from_bytes(self.value(index).try_into().unwrap_or_default())
    }

    pub(super) fn level(&self) -> u8 {
        self.bytes[1]
    }

    pub(super) fn version(&self) -> u64 {
        u64_at(&self.bytes, VERSION)
    }

    pub(super) fn birth(&self) -> u64 {
        u64_at(&self.bytes, BIRTH)
    }

    /// The birth of the halves of a split of this node.
    pub(super) fn birth_of_half(&self) -> u64 {
        self.version()
    }

    pub(super) fn splits(&self) -> u64 {
        u64_at(&self.bytes, SPLITS)
    }

    pub(super) fn low(&self) -> &[u8] {
        &self.bytes[self.low.clone()]
    }

    pub(super) fn high(&self) -> Option<&[u8]> {
        self.high.clone().map(|high| &self.bytes[high])
    }

    /// The lower bound of the right sibling, and its id.
    pub(super) fn right(&self) -> Option<(&[u8], NodeId)> {
        Some((self.high()?, self.id_at(RIGHT)))
    }

    pub(super) fn owner(&self) -> &[u8] {
        let end = self.offset(0);
        &self.bytes[end - u32_at(&self.bytes, OWNER_LEN)..end]
    }

    fn id_at(&self, at: usize) -> NodeId {
        let bytes = self.bytes[at..at + NodeId::BYTES].try_into();
        NodeId::from_bytes(bytes.unwrap_or_default())
    }
}

/// Finds `count` entries that fill `bytes` from offset `at` to the end.
fn entries_in(
    bytes: &[u8],
    mut at: usize,
    count: usize,
) -> Result<Vec<EntryPosition>, &'static str> {
    let left = "a node's entries leave it";
    if count > (bytes.len() - at) / PREFIX {
        return Err(left);
    }
    let mut entries = Vec::with_capacity(count);
    for _ in 0..count {
        if bytes.len() - at < PREFIX {
            return Err(left);
        }
        let (key_len, value_len) = (u32_at(bytes, at), u32_at(bytes, at + 4));
        let end = at + PREFIX + key_len + value_len;
        if end > bytes.len() {
            return Err(left);
        }
        entries.push(EntryPosition { at, key_len, value_len });
        at = end;
    }
    if at == bytes.len() { Ok(entries) } else { Err("a node is longer than its entries") }
}

fn push_entry(bytes: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    bytes.extend_from_slice(&len_bytes(key));
    bytes.extend_from_slice(&len_bytes(value));
    bytes.extend_from_slice(key);
    bytes.extend_from_slice(value);
}

/// The length of a part of a node. A node fits into a page.
fn len_bytes(part: &[u8]) -> [u8; 4] {
    u32::try_from(part.len()).unwrap_or(u32::MAX).to_le_bytes()
}

fn u32_at(bytes: &[u8], at: usize) -> usize {
    bytes[at..].first_chunk().map_or(0, |word| u32::from_le_bytes(*word) as usize)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes[at..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word))
}
