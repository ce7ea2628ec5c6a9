use std::ops::Range;
use std::sync::Arc;

use rackpool_client::{Extent, GlobalAddr, Pin, PinnedBytes, Pool};
use rackpool_kv::EntryPlace;

use super::head::{Head, at, head_key};
use super::memory::StringMemory;
use super::{LargeStrings, Nodes, accessed, mapped, pinned};
use crate::failure::{DAMAGED, Failure};
use crate::values::LargeString;

/// The longest read from another rack, in bytes.
const LONGEST_READ: usize = 4 << 20;

/// Bytes of a large string, where they lie in this rack's memory. They neither change nor go until
/// the last clone is dropped, whatever becomes of the key meanwhile.
#[derive(Clone, Debug)]
pub struct StringView {
    bytes: Arc<ViewBytes>,
    range: Range<usize>,
}

#[derive(Debug)]
struct ViewBytes {
    /// Dropped first: it pins the memory.
    bytes: PinnedBytes<Arc<Pool>>,
    /// The copy of a string of another rack.
    _copy: Option<StringMemory>,
}

impl StringView {
    /// These bytes of a string: in place, or a copy in this rack's memory if the string is in
    /// another rack. `None` if the string is gone: then its key no longer names it.
    pub(crate) fn open(
        strings: &LargeStrings,
        nodes: &mut Nodes,
        name: LargeString,
        range: Range<u64>,
    ) -> Result<Option<Self>, Failure> {
        let Some((place, head)) = find(nodes, name)? else { return Ok(None) };
        let opened = match strings.pool.is_in_own_part(place.addr) {
            Ok(true) => Self::pin(strings, nodes, name, &place, &head, range),
            Ok(false) => copy(strings, &place, &head, range).map(Some),
            Err(error) => Err(accessed(error)),
        };
        // What was read, or has failed, counts only if the string is still there.
        match find(nodes, name)? {
            Some((now, _)) if now == place => opened,
            _ => Ok(None),
        }
    }

    /// Whether a string is in the memory of this rack. True if it is gone.
    pub(crate) fn is_near(
        strings: &LargeStrings,
        nodes: &mut Nodes,
        name: LargeString,
    ) -> Result<bool, Failure> {
        let found = find(nodes, name)?;
        Ok(found.is_none_or(|(place, _)| strings.pool.is_in_own_part(place.addr).unwrap_or(true)))
    }

    fn pin(
        strings: &LargeStrings,
        nodes: &mut Nodes,
        name: LargeString,
        place: &EntryPlace,
        head: &Head,
        range: Range<u64>,
    ) -> Result<Option<Self>, Failure> {
        let pin = Pin::new(Arc::clone(&strings.pool), place.addr).map_err(pinned)?;
        // The pin counts if the string is still in the table: it was not freed before.
        if !find(nodes, name)?.is_some_and(|(now, _)| now == *place) {
            return Ok(None);
        }
        let extents = extents(strings, place.addr, head)?;
        let bytes = pin.map_extents(&extents, head.len).map_err(mapped)?;
        Self::new(bytes, None, range).map(Some)
    }

    /// The first `len` bytes of memory that this process owns.
    pub(super) fn of_memory(memory: &StringMemory, len: u64) -> Result<Self, Failure> {
        Self::new(memory.map(len)?, None, 0..len)
    }

    fn new(
        bytes: PinnedBytes<Arc<Pool>>,
        copy: Option<StringMemory>,
        range: Range<u64>,
    ) -> Result<Self, Failure> {
        let range = usize::try_from(range.start).ok().zip(usize::try_from(range.end).ok());
        let range = range.map(|(start, end)| start..end);
        let range = range.filter(|range| bytes.get(range.clone()).is_some()).ok_or(DAMAGED)?;
        Ok(Self { bytes: Arc::new(ViewBytes { bytes, _copy: copy }), range })
    }

    /// The bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        self.bytes.bytes.get(self.range.clone()).unwrap_or_default()
    }
}

/// The place and the head of a string; `None` if it is gone.
fn find(nodes: &mut Nodes, name: LargeString) -> Result<Option<(EntryPlace, Head)>, Failure> {
    let mut value = Vec::new();
    let Some(place) = nodes.get_placed(&head_key(name.id), &mut value)? else { return Ok(None) };
    let head = Head::decode(&value).filter(|head| head.len == name.len).ok_or(DAMAGED)?;
    Ok(Some((place, head)))
}

/// Reads the list of extents of a string.
fn extents(strings: &LargeStrings, addr: GlobalAddr, head: &Head) -> Result<Vec<Extent>, Failure> {
    let page_bytes = strings.pool.page_bytes();
    if u64::from(head.extents) * 8 > page_bytes {
        return Err(DAMAGED);
    }
    let mut list = vec![0; head.extents as usize * 8];
    strings.pool.read(at(addr, Head::words_at(head.owner.len())), &mut list).map_err(accessed)?;
    let words = list.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word));
    let extents = words.map(|word| Head::decode_extent(word, page_bytes));
    extents.collect::<Option<_>>().ok_or(DAMAGED)
}

/// Copies bytes of a string of another rack into memory of this one.
fn copy(
    strings: &LargeStrings,
    place: &EntryPlace,
    head: &Head,
    range: Range<u64>,
) -> Result<StringView, Failure> {
    let len = range.end.checked_sub(range.start).filter(|_| range.end <= head.len);
    let len = len.ok_or(DAMAGED)?;
    let extents = extents(strings, place.addr, head)?;
    let mut memory = StringMemory::new(strings, 0, len)?;
    memory.grow(len, len)?;
    memory.fill(len, |into| read(&strings.pool, &extents, range.start, into))?;
    StringView::new(memory.map(len)?, Some(memory), 0..len)
}

/// Fills `into` from an offset in extents, which may be freed meanwhile.
fn read(pool: &Pool, extents: &[Extent], offset: u64, into: &mut [u8]) -> Result<(), Failure> {
    let (mut offset, mut rest) = (offset, into);
    for extent in extents {
        if offset >= extent.bytes {
            offset -= extent.bytes;
            continue;
        }
        while offset < extent.bytes && !rest.is_empty() {
            let left = usize::try_from(extent.bytes - offset).unwrap_or(usize::MAX);
            let (part, after) = rest.split_at_mut(rest.len().min(left).min(LONGEST_READ));
            pool.read(at(extent.addr, offset), part).map_err(accessed)?;
            (offset, rest) = (offset + part.len() as u64, after);
        }
        offset = 0;
    }
    if rest.is_empty() { Ok(()) } else { Err(DAMAGED) }
}
