use std::collections::BTreeMap;
use std::io::{self, Write};
use std::mem;

use rackpool_model::{Access, PageId, RackId};

use crate::RackFrames;
use crate::format::{Kind, Packed, header, part};

/// Writes a trace.
///
/// ```
/// use rackpool_model::{Access, PageId, RackId};
/// use rackpool_trace::{RackFrames, Recording, Trace};
///
/// let racks = [RackFrames { rack: RackId(0), first: PageId(1), frames: 8, free: 4 }];
/// let mut bytes = Vec::new();
/// let mut recording = Recording::start(&mut bytes, 65536, &racks)?;
/// recording.accessed(RackId(0), 1_000, PageId(3), Access::Write)?;
/// recording.finish()?;
/// assert_eq!(Trace::parse(&bytes).unwrap().accesses.len(), 1);
/// # std::io::Result::Ok(())
/// ```
#[derive(Debug)]
pub struct Recording<W> {
    to: W,
    /// The accesses of each rack that are not written yet.
    open: BTreeMap<RackId, Packed>,
    count: u64,
}

impl<W: Write> Recording<W> {
    /// Begins a trace of these racks, which are in order of their page ids.
    ///
    /// # Errors
    /// When writing fails.
    pub fn start(mut to: W, page_bytes: u64, racks: &[RackFrames]) -> io::Result<Self> {
        to.write_all(&header(page_bytes, racks))?;
        Ok(Self { to, open: BTreeMap::new(), count: 0 })
    }

    /// Records the home of a page that has moved; once, before its first access.
    ///
    /// # Errors
    /// When writing fails.
    pub fn lives(&mut self, page: PageId, rack: RackId) -> io::Result<()> {
        let mut content = page.0.to_le_bytes().to_vec();
        content.extend_from_slice(&rack.0.to_le_bytes());
        self.to.write_all(&part(Kind::Home, &content))
    }

    /// Records an access. Threads may overtake each other on their way here: a time of a rack
    /// earlier than its last one counts as equal to it.
    ///
    /// # Errors
    /// When writing fails.
    pub fn accessed(
        &mut self,
        rack: RackId,
        at_ns: u64,
        page: PageId,
        access: Access,
    ) -> io::Result<()> {
        let packed = self.open.entry(rack).or_insert_with(|| Packed::new(rack, at_ns));
        if !packed.has_room() {
            let full = mem::replace(packed, Packed::new(rack, at_ns));
            self.to.write_all(&part(Kind::Accesses, &full.content))?;
        }
        packed.push(at_ns, page, access);
        self.count += 1;
        Ok(())
    }

    /// Returns the number of accesses recorded.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Completes the trace. A trace without this counts as cut off.
    ///
    /// # Errors
    /// When writing fails.
    pub fn finish(mut self) -> io::Result<W> {
        for packed in self.open.values() {
            self.to.write_all(&part(Kind::Accesses, &packed.content))?;
        }
        self.to.write_all(&part(Kind::End, &self.count.to_le_bytes()))?;
        self.to.flush()?;
        Ok(self.to)
    }
}
