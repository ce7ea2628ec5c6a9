//! Lists the objects that make up a table, without changing anything.

use std::collections::BTreeMap;

use rackpool_client::GlobalAddr;

use crate::error::KvError;
use crate::handle::TableState;
use crate::handle::table::Table;
use crate::layout::bucket::{slot_addr, slots_in, word_at};
use crate::layout::header::{DecodedHeader, TableHeader};
use crate::layout::object::EntryObject;
use crate::layout::segment::SegmentRef;
use crate::layout::slot::{ObjectRef, SlotKind};
use crate::layout::spare_block::{SparePlace, SpareSegments};
use crate::lifecycle::create::read_header;
use crate::memory::Memory;

/// The role of an object in its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TablePart {
    /// The table header.
    Header,
    /// The directory.
    Directory,
    /// A spare-segment block, except the first, which is in the header.
    SpareSegmentBlock,
    /// A segment in the directory, which has entries.
    Segment,
    /// A segment outside the directory, without entries, to be reused.
    SpareSegment,
    /// A key and its value.
    Entry,
}

/// The result of a walk over the parts of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableWalk {
    /// The number of entries that fit into a segment.
    pub segment_entries: u64,
    /// Segments that clients have borrowed. The walk does not visit them.
    pub taken_segments: u64,
    /// Parts that could not be read. The objects that they point to are unknown.
    pub unread: u64,
    /// Whether the table's creation is complete. If not, the next client to open it completes it.
    pub is_complete: bool,
}

impl<M: Memory> Table<M> {
    /// Calls `visit` with each object of the table at `addr`, and with the object's size in bytes
    /// if that is known; extents belong to their object. It only reads, and skips parts that it
    /// cannot read. If other clients use the table meanwhile, some objects are missed, visited
    /// twice, or freed before the visit.
    ///
    /// ```
    /// use rackpool_kv::{GlobalAddr, KvError, Memory, TablePart, Table};
    ///
    /// fn entries<M: Memory>(pool: M, table: GlobalAddr) -> Result<u64, KvError<M::Error>> {
    ///     let mut entries = 0;
    ///     Table::walk(pool, table, |part, _, _| entries += u64::from(part == TablePart::Entry))?;
    ///     Ok(entries)
    /// }
    /// ```
    ///
    /// # Errors
    /// [`KvError::NotATable`], [`KvError::Version`], [`KvError::Corrupt`] or the memory's own
    /// error, at the header.
    pub fn walk(
        memory: M,
        addr: GlobalAddr,
        mut visit: impl FnMut(TablePart, GlobalAddr, Option<u64>),
    ) -> Result<TableWalk, KvError<M::Error>> {
        let DecodedHeader { layout, stage } = read_header(&memory, addr)?;
        let table = Self::with_layout(memory, layout);
        let mut walk = TableWalk {
            segment_entries: layout.shape.slots() as u64,
            is_complete: stage.is_complete(),
            ..TableWalk::default()
        };
        visit(TablePart::Header, addr, Some((TableHeader::BYTES as u64).next_power_of_two()));
        let mut segments = BTreeMap::new();
        if !layout.directory.is_null() {
            let bytes = TableHeader::directory_bytes(layout.max_depth);
            visit(TablePart::Directory, layout.directory, Some(bytes.max(LEAST)));
            // The first entry of a directory in its creation is its owner word.
            match table.segments_in_directory() {
                _ if !stage.has_directory() => {}
                Ok(found) => segments.extend(found),
                Err(_) => walk.unread += 1,
            }
        }
        match table.handle().spare_segments() {
            Ok(blocks) => table.walk_spare_segments(&blocks, &mut segments, &mut walk, &mut visit),
            Err(_) => walk.unread += 1,
        }
        for (segment, part) in segments {
            visit(part, segment, Some(layout.shape.bytes()));
            if part == TablePart::Segment && table.walk_segment(segment, &mut visit).is_err() {
                walk.unread += 1;
            }
        }
        Ok(walk)
    }

    /// The segments in the directory: those that a search finds ([`TablePart::Segment`]), and those
    /// that an unfinished split left there ([`TablePart::SpareSegment`]).
    fn segments_in_directory(&self) -> Result<BTreeMap<GlobalAddr, TablePart>, KvError<M::Error>> {
        let TableState { memory, layout, .. } = &*self.shared;
        let bytes = TableHeader::directory_bytes(layout.max_depth);
        let mut entries = vec![0; usize::try_from(bytes).unwrap_or_default()];
        memory.read(layout.directory, &mut entries).map_err(KvError::Memory)?;
        let entry = |index: usize| SegmentRef::from_raw(word_at(&entries, index));
        let all = 0..entries.len() / 8;
        let mut segments: BTreeMap<GlobalAddr, TablePart> = all
            .clone()
            .map(entry)
            .filter(|segment| !segment.is_none())
            .map(|segment| (segment.addr(), TablePart::SpareSegment))
            .collect();
        for suffix in all {
            let found =
                (0..=layout.max_depth).map(|depth| suffix & ((1 << depth) - 1)).find_map(|index| {
                    let segment = entry(index);
                    let depth = segment.depth().min(layout.max_depth);
                    (!segment.is_none() && suffix & ((1 << depth) - 1) == index).then_some(segment)
                });
            if let Some(segment) = found {
                segments.insert(segment.addr(), TablePart::Segment);
            }
        }
        Ok(segments)
    }

    fn walk_spare_segments(
        &self,
        blocks: &[SpareSegments],
        segments: &mut BTreeMap<GlobalAddr, TablePart>,
        walk: &mut TableWalk,
        visit: &mut impl FnMut(TablePart, GlobalAddr, Option<u64>),
    ) {
        let first = TableHeader::spare_segments_addr(self.shared.layout.addr);
        for block in blocks {
            if block.addr != first {
                visit(TablePart::SpareSegmentBlock, block.addr, Some(SpareSegments::BYTES as u64));
            }
            for (_, place) in block.places() {
                match place {
                    Some(SparePlace::Segment(addr)) => {
                        segments.entry(addr).or_insert(TablePart::SpareSegment);
                    }
                    Some(SparePlace::Taken) => walk.taken_segments += 1,
                    Some(SparePlace::Empty) | None => {}
                }
            }
        }
    }

    fn walk_segment(
        &self,
        segment: GlobalAddr,
        visit: &mut impl FnMut(TablePart, GlobalAddr, Option<u64>),
    ) -> Result<(), KvError<M::Error>> {
        let TableState { memory, layout, .. } = &*self.shared;
        let mut bytes = vec![0; layout.shape.slots() * 8];
        memory.read(slot_addr(segment, 0), &mut bytes).map_err(KvError::Memory)?;
        for slot in slots_in(&bytes).filter(|slot| slot.kind() == SlotKind::Live) {
            let object = slot.object();
            visit(TablePart::Entry, object.addr, self.entry_bytes(object));
        }
        Ok(())
    }

    /// The size of an object with its extents, in bytes. The slot tells that of a small one.
    fn entry_bytes(&self, object: ObjectRef) -> Option<u64> {
        if let Some(bytes) = object.whole_bytes() {
            return Some(bytes as u64);
        }
        let mut header = [0; EntryObject::HEADER];
        self.shared.memory.read(object.addr, &mut header).ok()?;
        if let Some(at) = EntryObject::extended_value_at(&header) {
            // Reads whole words, for which every object has room.
            let skipped = at % 8;
            let first = object.addr.raw().checked_add((at - skipped) as u64)?;
            let mut words = [0; 16];
            self.shared.memory.read(GlobalAddr::from_raw(first), &mut words).ok()?;
            return words.get(skipped..)?.first_chunk().map(|total| u64::from_le_bytes(*total));
        }
        EntryObject::len_in(&header)?.checked_next_power_of_two().map(|bytes| bytes as u64)
    }
}

/// The least size of a reservation in bytes: a cache line.
const LEAST: u64 = 64;
