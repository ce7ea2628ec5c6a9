//! Fastswap's access path (Amaro et al., EuroSys 2020): a program loads and stores; a page of 4
//! KiB that is not in its local memory is a page fault, which reads the page one-sided before the
//! access goes on. Evicted pages are written back, without a wait, if they were written.
//!
//! The faults are real ones, handled by the thread that made them ([`super::paged_range`]). Each
//! client is a program with memory of its own, since programs do not share swapped pages.

use std::collections::VecDeque;

use super::network::{Home, Network};
use super::paged_range::{PAGE, PagedRange, Pager};
use super::parts::{Parts, part_bytes};
use super::{AccessPath, CACHED, Setting, System};

/// Homes of the pages.
pub(super) struct Fastswap {
    setting: Setting,
    homes: Vec<Home>,
}

impl Fastswap {
    pub(super) fn start(setting: &Setting) -> anyhow::Result<Self> {
        // One-sided operations only: the homes answer nothing.
        let homes = Home::all(part_bytes(setting), setting, || Box::new(|_, _| Vec::new()))?;
        Ok(Self { setting: setting.clone(), homes })
    }
}

impl System for Fastswap {
    fn client(&self, _: usize) -> anyhow::Result<Box<dyn AccessPath>> {
        let pages = usize::try_from(part_bytes(&self.setting))? / PAGE;
        let most = (pages / usize::try_from(CACHED)?).max(2);
        Ok(Box::new(Parts::new(&self.setting, &self.homes, |home| {
            let swap = Swap {
                network: home.connect()?,
                most,
                present: VecDeque::new(),
                marks: vec![Marks::default(); pages],
                bytes: Box::new([0; PAGE]),
                failure: None,
            };
            Ok(Client { range: PagedRange::new(pages)?, swap })
        })?))
    }
}

struct Client {
    range: PagedRange,
    swap: Swap,
}

/// What a page table notes of a page.
#[derive(Clone, Copy, Default)]
struct Marks {
    is_accessed: bool,
    is_dirty: bool,
}

struct Swap {
    network: Network,
    /// Pages that may be in local memory.
    most: usize,
    /// Pages in local memory, in the order in which they came; one that was accessed since gets
    /// a second chance.
    present: VecDeque<usize>,
    marks: Vec<Marks>,
    bytes: Box<[u8; PAGE]>,
    /// Why a page could not be brought.
    failure: Option<anyhow::Error>,
}

impl Swap {
    fn make_room(&mut self, range: &PagedRange) -> anyhow::Result<()> {
        while self.present.len() >= self.most {
            let Some(page) = self.present.pop_front() else { break };
            if std::mem::take(&mut self.marks[page].is_accessed) {
                self.present.push_back(page);
                continue;
            }
            range.remove(page, &mut self.bytes)?;
            if std::mem::take(&mut self.marks[page].is_dirty) {
                self.network.post_write((page * PAGE) as u64, &self.bytes[..])?;
            }
        }
        Ok(())
    }
}

impl Pager for Swap {
    fn bring(&mut self, range: &PagedRange, page: usize) {
        let posted = self.network.post_read((page * PAGE) as u64, PAGE);
        // While the page is on its way.
        let read = posted
            .and_then(|()| self.make_room(range))
            .and_then(|()| self.network.complete_read(&mut self.bytes[..]))
            .and_then(|()| Ok(range.insert(page, &self.bytes)?));
        if let Err(error) = read {
            // The access must end: it goes on with zeroes, and fails.
            self.failure = Some(error);
            range.insert(page, &[0; PAGE]).expect("the page is missing");
        }
        self.present.push_back(page);
    }
}

impl Client {
    fn mark(&mut self, offset: u64, len: usize, is_write: bool) -> anyhow::Result<usize> {
        let offset = usize::try_from(offset)?;
        for page in offset / PAGE..=(offset + len.max(1) - 1) / PAGE {
            let marks = &mut self.swap.marks[page];
            (marks.is_accessed, marks.is_dirty) = (true, marks.is_dirty | is_write);
        }
        Ok(offset)
    }
}

impl AccessPath for Client {
    fn read(&mut self, offset: u64, into: &mut [u8]) -> anyhow::Result<()> {
        let offset = self.mark(offset, into.len(), false)?;
        self.range.read(offset, into, &mut self.swap);
        self.swap.failure.take().map_or(Ok(()), Err)
    }

    fn write(&mut self, offset: u64, from: &[u8]) -> anyhow::Result<()> {
        let offset = self.mark(offset, from.len(), true)?;
        self.range.write(offset, from, &mut self.swap);
        self.swap.failure.take().map_or(Ok(()), Err)
    }
}
