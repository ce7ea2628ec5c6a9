use rackpool_client::GlobalAddr;

use crate::error::KvError;
use crate::handle::Handle;
use crate::header::TableHeader;
use crate::memory::Memory;
use crate::segment::SegmentHeader;
use crate::words::{Swap, read_word, swap_word};

/// The head of the stack of segments that wait to be used again.
///
/// ```text
///  63              42 41                    0
/// +------------------+-----------------------+
/// |       tag        |  segment address / 64 |
/// +------------------+-----------------------+
/// ```
///
/// The tag grows at each change, so that a head seen before never comes back unnoticed.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Top(u64);

impl Top {
    const TAG_SHIFT: u32 = 42;

    const fn segment(self) -> GlobalAddr {
        GlobalAddr::from_raw((self.0 & ((1 << Self::TAG_SHIFT) - 1)) << 6)
    }

    const fn followed_by(self, segment: GlobalAddr) -> Self {
        let tag = (self.0 >> Self::TAG_SHIFT).wrapping_add(1) << Self::TAG_SHIFT;
        Self(tag | segment.raw() >> 6)
    }
}

impl<M: Memory> Handle<M> {
    /// Takes a segment off the stack; it belongs to the caller then.
    pub(crate) fn pop_segment(&mut self) -> Result<Option<GlobalAddr>, KvError<M::Error>> {
        let memory = &self.shared.memory;
        let at = TableHeader::free_top_addr(self.shared.layout.addr);
        loop {
            let top = Top(read_word(memory, at)?);
            if top.segment().is_null() {
                return Ok(None);
            }
            let next = read_word(memory, SegmentHeader::next_addr(top.segment()))?;
            let new = top.followed_by(GlobalAddr::from_raw(next));
            match swap_word(memory, at, top.0, new.0)? {
                Swap::Done => return Ok(Some(top.segment())),
                Swap::Lost => {}
                // Another client may have made the very same change: nobody may use the segment.
                Swap::Unknown if read_word(memory, at)? == top.0 => {}
                Swap::Unknown => self.unreclaimed += 1,
            }
        }
    }

    /// Gives a segment that nobody points to back for later use.
    pub(crate) fn push_segment(&mut self, segment: GlobalAddr) -> Result<(), KvError<M::Error>> {
        let memory = &self.shared.memory;
        let at = TableHeader::free_top_addr(self.shared.layout.addr);
        loop {
            let top = Top(read_word(memory, at)?);
            let next = top.segment().raw().to_le_bytes();
            memory.write(SegmentHeader::next_addr(segment), &next).map_err(KvError::Memory)?;
            let new = top.followed_by(segment);
            match swap_word(memory, at, top.0, new.0)? {
                Swap::Done => return Ok(()),
                Swap::Lost => {}
                Swap::Unknown => {
                    let now = Top(read_word(memory, at)?);
                    if now == new {
                        return Ok(());
                    }
                    if now != top {
                        self.unreclaimed += 1;
                        return Ok(());
                    }
                }
            }
        }
    }
}
