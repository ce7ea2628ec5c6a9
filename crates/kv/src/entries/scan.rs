use rackpool_client::GlobalAddr;

use crate::entries::find::MAX_CHANGED;
use crate::entries::verify::{Glance, Peek};
use crate::entry::{Entry, ValueKind};
use crate::error::KvError;
use crate::handle::Handle;
use crate::handle::scan_batch::{CopiedEntry, ScanBatch};
use crate::layout::bucket::{BUCKET_BYTES, BUCKET_SLOTS, slot_addr, slots_in};
use crate::layout::hash::KeyHash;
use crate::layout::object::ObjectParts;
use crate::layout::segment::{SegmentHeader, SegmentRef};
use crate::layout::slot::{SlotKind, SlotWord};
use crate::locks::entry_lock::EntryLock;
use crate::locks::id::TransactionOutcome;
use crate::memory::Memory;
use crate::memory::words::read_word;

/// After this number of attempts undecodable bytes are damage and not a race.
const MAX_DAMAGED: u32 = 64;

impl<M: Memory> Handle<M> {
    /// Calls `visit` with the key and value of every string, in no particular order.
    ///
    /// Other clients may use the table concurrently. A key that is present throughout the call is
    /// visited exactly once, with a value that it had during the call. A key that appears or
    /// disappears during the call may be visited or not; one that disappears and reappears may be
    /// visited twice.
    ///
    /// If entries are damaged, or their memory is lost, all others are visited before the call
    /// fails.
    ///
    /// # Errors
    /// [`KvError::Corrupt`] for a damaged entry; the memory's own error for a lost one. After
    /// another error of the memory the visit is incomplete.
    pub fn for_each(&mut self, visit: impl FnMut(&[u8], &[u8])) -> Result<(), KvError<M::Error>> {
        match self.walk(visit)? {
            None => Ok(()),
            Some(addr) => Err(self.damage_at(addr)),
        }
    }

    /// Visits every string that is not damaged; returns the address of a damaged one.
    pub(crate) fn walk(
        &mut self,
        mut visit: impl FnMut(&[u8], &[u8]),
    ) -> Result<Option<GlobalAddr>, KvError<M::Error>> {
        let mut batch = ScanBatch::default();
        let mut damaged = None;
        let mut at = 0;
        while let Some(hash) = self.suffix_at(at) {
            let segment = self.copy_whole(hash, &mut batch)?;
            batch.each(|key, entry| {
                if entry.form.kind == ValueKind::STRING && !entry.form.is_over() {
                    visit(key, entry.value);
                }
            });
            damaged = damaged.or(batch.damaged);
            at += self.suffixes_of(segment);
        }
        Ok(damaged)
    }

    /// Calls `visit` with some entries of any kind, expired ones included, and returns the cursor
    /// of the next step; 0 when all have been visited. The first cursor is 0.
    ///
    /// A cursor is valid for any handle, at any time. A key that is present throughout the scan is
    /// visited at least once; it may be visited twice if the table grows meanwhile. A step visits
    /// about `wanted` entries, at most those of one segment. Damaged entries are skipped, and those
    /// whose memory is lost. If a step fails, [`scan_past`](Self::scan_past) returns the cursor
    /// behind the segment at which it failed.
    ///
    /// ```
    /// use rackpool_kv::{Entry, Handle, KvError, Memory};
    ///
    /// fn bytes<M: Memory>(handle: &mut Handle<M>) -> Result<usize, KvError<M::Error>> {
    ///     let (mut cursor, mut bytes) = (0, 0);
    ///     loop {
    ///         let count = |key: &[u8], entry: Entry<'_>| bytes += key.len() + entry.value.len();
    ///         cursor = handle.scan(cursor, 100, count)?;
    ///         if cursor == 0 {
    ///             return Ok(bytes);
    ///         }
    ///     }
    /// }
    /// ```
    ///
    /// # Errors
    /// [`KvError`]: damaged parts of the table, or the memory's own error.
    pub fn scan(
        &mut self,
        cursor: u64,
        wanted: usize,
        visit: impl FnMut(&[u8], Entry<'_>),
    ) -> Result<u64, KvError<M::Error>> {
        self.scan_kind(cursor, wanted, None, visit)
    }

    /// [`scan`](Self::scan), for the table's own entries of kind `reserved` if that is given.
    pub(crate) fn scan_kind(
        &mut self,
        cursor: u64,
        wanted: usize,
        reserved: Option<ValueKind>,
        visit: impl FnMut(&[u8], Entry<'_>),
    ) -> Result<u64, KvError<M::Error>> {
        let [first, ..] = cursor.to_le_bytes();
        let at = cursor >> u8::BITS;
        let Some(hash) = self.suffix_at(at) else { return Ok(0) };
        let last = self.enough_from(first, hash, wanted)?;
        let mut batch = std::mem::take(&mut self.batch);
        batch.fingerprints = Some(first..=last);
        batch.reserved = reserved;
        let copied = self.copy_whole(hash, &mut batch);
        if copied.is_ok() {
            match &self.view {
                Some(view) if reserved.is_none() => view.overlay(&batch, cursor == 0, visit),
                _ => batch.each(visit),
            }
        }
        self.batch = batch;
        let segment = copied?;
        if let Some(next) = last.checked_add(1) {
            return Ok(at << u8::BITS | u64::from(next));
        }
        Ok(self.cursor_behind(at, segment))
    }

    /// The cursor behind the segment that a [`scan`](Self::scan) step from `cursor` would read.
    ///
    /// # Errors
    /// As [`Handle::scan`].
    pub fn scan_past(&mut self, cursor: u64) -> Result<u64, KvError<M::Error>> {
        let at = cursor >> u8::BITS;
        let Some(hash) = self.suffix_at(at) else { return Ok(0) };
        let segment = self.resolve(hash)?;
        Ok(self.cursor_behind(at, segment))
    }

    /// Maps a random number to a cursor: half of the time to any part of any segment, else to the
    /// beginning of a segment. Otherwise the first part of each segment would be a starting point
    /// only once in 256 times.
    pub(crate) fn cursor_in(&self, random: u64) -> u64 {
        let cursors = 1 << (u32::from(self.shared.layout.max_depth) + u8::BITS);
        let cursor = random % cursors;
        let is_beginning = random >> (u64::BITS - 1) == 1;
        if is_beginning { cursor & !u64::from(u8::MAX) } else { cursor }
    }

    /// The suffixes of a segment are consecutive and start at a multiple of their number.
    fn cursor_behind(&self, at: u64, segment: SegmentRef) -> u64 {
        let suffixes = self.suffixes_of(segment);
        let next = (at / suffixes + 1) * suffixes;
        self.suffix_at(next).map_or(0, |_| next << u8::BITS)
    }

    /// The last fingerprint of a range from `first` that has about `wanted` entries in the segment
    /// of `hash`. An estimate: correctness does not depend on it.
    fn enough_from(
        &mut self,
        first: u8,
        hash: KeyHash,
        wanted: usize,
    ) -> Result<u8, KvError<M::Error>> {
        let segment = self.resolve(hash)?;
        let mut bytes = vec![0; self.shared.layout.shape.slots() * 8];
        let slots = slot_addr(segment.addr(), 0);
        self.shared.memory.read(slots, &mut bytes).map_err(KvError::Memory)?;
        let mut entries = [0; 1 << u8::BITS];
        for slot in slots_in(&bytes).filter(|slot| slot.kind() == SlotKind::Live) {
            entries[usize::from(slot.fingerprint())] += 1;
        }
        let mut sum = 0;
        let enough = (first..u8::MAX).find(|at| {
            sum += entries[usize::from(*at)];
            sum >= wanted
        });
        Ok(enough.unwrap_or(u8::MAX))
    }

    /// Counts the entries, including expired ones that are still in their slots. Reads every slot.
    /// Entries that appear or disappear meanwhile are counted or not.
    ///
    /// # Errors
    /// As [`Handle::scan`].
    pub fn count(&mut self) -> Result<u64, KvError<M::Error>> {
        let mut bytes = vec![0; self.shared.layout.shape.slots() * 8];
        let (mut at, mut count) = (0, 0);
        while let Some(hash) = self.suffix_at(at) {
            let segment = self.resolve(hash)?;
            let slots = slot_addr(segment.addr(), 0);
            self.shared.memory.read(slots, &mut bytes).map_err(KvError::Memory)?;
            let tag = SegmentHeader::tag_addr(segment.addr());
            if read_word(&self.shared.memory, tag)? != segment.tag(hash) {
                self.refresh(hash, segment)?;
                continue;
            }
            count += slots_in(&bytes).filter(|slot| slot.kind() == SlotKind::Live).count() as u64;
            at += self.suffixes_of(segment);
        }
        Ok(count)
    }

    /// Calls `visit` once for every entry, expired ones included: with its value if `wants` returns
    /// true for its kind, else with an empty value. Unwanted values are not read, whatever their
    /// length.
    ///
    /// Entries that appear or disappear meanwhile are visited or not; damaged ones are skipped.
    ///
    /// # Errors
    /// As [`Handle::scan`]. After an error the visit is incomplete.
    pub fn survey(
        &mut self,
        wants: fn(ValueKind) -> bool,
        mut visit: impl FnMut(Entry<'_>),
    ) -> Result<(), KvError<M::Error>> {
        // The overlay of a view needs the keys.
        let surveyed = if self.view.is_some() { None } else { Some(wants) };
        let mut batch = ScanBatch { surveyed, ..ScanBatch::default() };
        let mut at = 0;
        while let Some(hash) = self.suffix_at(at) {
            let segment = self.copy_whole(hash, &mut batch)?;
            match &self.view {
                Some(view) => view.overlay(&batch, at == 0, |_, entry| visit(entry)),
                None => batch.each(|_, entry| visit(entry)),
            }
            at += self.suffixes_of(segment);
        }
        Ok(())
    }

    /// Calls `visit` with key and value of every entry of a reserved kind.
    pub(crate) fn walk_reserved(
        &mut self,
        kind: ValueKind,
        mut visit: impl FnMut(&[u8], &[u8]),
    ) -> Result<(), KvError<M::Error>> {
        let mut batch = ScanBatch { reserved: Some(kind), ..ScanBatch::default() };
        let mut at = 0;
        while let Some(hash) = self.suffix_at(at) {
            let segment = self.copy_whole(hash, &mut batch)?;
            batch.each(|key, entry| visit(key, entry.value));
            at += self.suffixes_of(segment);
        }
        Ok(())
    }

    /// Copies entries of the segment of `hash`; returns that segment.
    fn copy_whole(
        &mut self,
        hash: KeyHash,
        batch: &mut ScanBatch,
    ) -> Result<SegmentRef, KvError<M::Error>> {
        let mut damaged = 0;
        loop {
            batch.passes = damaged == MAX_DAMAGED;
            let segment = self.resolve(hash)?;
            match self.copy_segment(segment, hash, batch) {
                Ok(true) => return Ok(segment),
                Ok(false) => self.refresh(hash, segment)?,
                Err(KvError::Corrupt { .. }) if damaged < MAX_DAMAGED => damaged += 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// Copies the entries of a segment; false if the segment was replaced meanwhile.
    fn copy_segment(
        &mut self,
        segment: SegmentRef,
        hash: KeyHash,
        batch: &mut ScanBatch,
    ) -> Result<bool, KvError<M::Error>> {
        batch.clear();
        for first in (0..self.shared.layout.shape.slots()).step_by(BUCKET_SLOTS) {
            let mut line = [0; BUCKET_BYTES];
            let addr = slot_addr(segment.addr(), first);
            self.shared.memory.read(addr, &mut line).map_err(KvError::Memory)?;
            for (index, slot) in slots_in(&line).enumerate() {
                let mut now = slot;
                for looks in 0.. {
                    if looks > MAX_CHANGED {
                        let addr = segment.addr();
                        return Err(KvError::Corrupt { what: "entry", addr });
                    }
                    if now.is_frozen() {
                        // The upper half may already be published and changed.
                        self.reshape(segment, hash)?;
                        return Ok(false);
                    }
                    match self.copy_entry(segment, hash, first + index, now, batch)? {
                        Some(true) => break,
                        Some(false) => return Ok(false),
                        None => {
                            let addr = slot_addr(segment.addr(), first + index);
                            now = SlotWord::from_raw(read_word(&self.shared.memory, addr)?);
                        }
                    }
                }
            }
        }
        let tag = read_word(&self.shared.memory, SegmentHeader::tag_addr(segment.addr()))?;
        Ok(tag == segment.tag(hash))
    }

    /// Copies the entry of one slot, if it has one. `None`: the slot changed. `Some(false)`: the
    /// segment was replaced.
    fn copy_entry(
        &mut self,
        segment: SegmentRef,
        hash: KeyHash,
        index: usize,
        word: SlotWord,
        batch: &mut ScanBatch,
    ) -> Result<Option<bool>, KvError<M::Error>> {
        match word.kind() {
            SlotKind::Live => {
                let only = batch.fingerprints.as_ref();
                if only.is_some_and(|only| !only.contains(&word.fingerprint())) {
                    return Ok(Some(true));
                }
            }
            SlotKind::Dead => return Ok(Some(true)),
            SlotKind::Empty(life) => return Ok(Some(life == segment.life())),
        }
        let at = slot_addr(segment.addr(), index);
        if let Some(kind) = batch.reserved {
            match self.glance(at, word, segment, hash)? {
                Glance::Form(form) if form.kind != kind => return Ok(Some(true)),
                Glance::Form(_) | Glance::Unclear => {}
                Glance::Changed => return Ok(None),
                Glance::Stale => return Ok(Some(false)),
            }
        }
        if let Some(wants) = batch.surveyed {
            match self.glance(at, word, segment, hash)? {
                Glance::Form(form) if form.kind.is_reserved() => {}
                Glance::Form(form) if !wants(form.kind) => {
                    batch.entries.push(CopiedEntry { key_len: 0, value_len: 0, form });
                    return Ok(Some(true));
                }
                Glance::Form(_) | Glance::Unclear => {}
                Glance::Changed => return Ok(None),
                Glance::Stale => return Ok(Some(false)),
            }
        }
        match self.peek(at, word, segment, hash)? {
            Peek::Whole(parts, now) => {
                if now.is_frozen() {
                    return Ok(None);
                }
                // A split takes a lost entry into the lower half, and its memory may come back.
                let depth = segment.depth();
                if parts.hash.suffix(depth) != hash.suffix(depth) {
                    return Ok(Some(true));
                }
                self.copy_parts(parts, batch)
            }
            Peek::Changed => Ok(None),
            Peek::Stale => Ok(Some(false)),
            Peek::Damaged if !batch.passes => {
                Err(KvError::Corrupt { what: "entry", addr: word.object().addr })
            }
            Peek::Damaged | Peek::Lost => {
                batch.damaged = Some(word.object().addr);
                Ok(Some(true))
            }
        }
    }

    /// Copies the entry in the scratch buffer, or the entry that it stands for if it is a lock.
    /// `None`: the slot must be read again.
    fn copy_parts(
        &mut self,
        parts: ObjectParts,
        batch: &mut ScanBatch,
    ) -> Result<Option<bool>, KvError<M::Error>> {
        let (mut form, mut value) = (parts.form, parts.value);
        if form.kind.is_reserved() && batch.reserved.is_none() {
            let lock = EntryLock::decode(&self.scratch[value.clone()]);
            let Some(lock) = lock.filter(|_| form.kind == ValueKind::LOCK) else {
                return Ok(Some(true));
            };
            let committed = match self.outcome(lock.id, true)? {
                TransactionOutcome::Committed => true,
                TransactionOutcome::Over if batch.over != Some(lock.id) => {
                    batch.over = Some(lock.id);
                    return Ok(None);
                }
                TransactionOutcome::Pending
                | TransactionOutcome::Aborted
                | TransactionOutcome::Over => false,
            };
            let Some(side) = lock.side(committed) else { return Ok(Some(true)) };
            form = side.form;
            value = value.start + side.value.start..value.start + side.value.end;
        } else if batch.reserved.is_some_and(|kind| kind != form.kind) {
            return Ok(Some(true));
        }
        let (key_len, value_len) = (parts.key.len(), value.len());
        batch.entries.push(CopiedEntry { key_len, value_len, form });
        batch.bytes.extend_from_slice(&self.scratch[parts.key]);
        batch.bytes.extend_from_slice(&self.scratch[value]);
        Ok(Some(true))
    }
}
