//! The server's side of an exchange. The constants are the states of its record.

use rackpool_model::{GlobalAddr, MAX_RACKS, MemoryId, PageId, RackId};
use rackpool_shm::marks::ObjectHolder;
use rackpool_shm::metadata::{PEER_BATCH, PeerLog};
use rackpool_sync::atomic::{Ordering, fence};
use rackpool_wire::peer::PeerReply;

use crate::data_plane::DataPlane;

/// The record is being written: its fields mean nothing. After a crash the request counts as new.
const WRITING: u64 = 1;
/// The recorded exchange is being executed. After a crash the daemon completes it.
const DOING: u64 = 2;
/// The recorded exchange is done; a repeated request is answered from the record.
const DONE: u64 = 3;

const ALLOCATE: u64 = 1;
const FREE: u64 = 2;

/// The relation of a request to the record.
enum Order {
    Repeated,
    Next,
    Stale,
}

#[expect(clippy::cast_possible_truncation, reason = "the two halves of 128 bits")]
const fn halves(memory: MemoryId) -> [u64; 2] {
    [memory.0 as u64, (memory.0 >> 64) as u64]
}

fn order(log: &PeerLog, memory: MemoryId, sequence: u64) -> Order {
    let known = [log.memory[0].load(Ordering::Relaxed), log.memory[1].load(Ordering::Relaxed)];
    let last = log.sequence.load(Ordering::Relaxed);
    if known != halves(memory) || sequence > last {
        Order::Next
    } else if sequence == last {
        Order::Repeated
    } else {
        Order::Stale
    }
}

/// Marks an object in the record that was not freed because its page had moved. Objects begin at
/// even addresses.
const MOVED: u64 = 1;

fn addrs_of(log: &PeerLog) -> Vec<GlobalAddr> {
    let count = usize::try_from(log.count.load(Ordering::Acquire)).unwrap_or(PEER_BATCH);
    let cells = log.addrs.iter().take(count);
    cells.map(|cell| GlobalAddr::from_raw(cell.load(Ordering::Relaxed))).collect()
}

const fn mark(addr: GlobalAddr) -> GlobalAddr {
    GlobalAddr::from_raw(addr.raw() | MOVED)
}

const fn is_marked(addr: GlobalAddr) -> bool {
    addr.raw() & MOVED != 0
}

/// Returns the objects that were not freed.
fn marked_of(log: &PeerLog) -> Vec<GlobalAddr> {
    let marked = addrs_of(log).into_iter().filter(|addr| is_marked(*addr));
    marked.map(|addr| GlobalAddr::from_raw(addr.raw() & !MOVED)).collect()
}

impl DataPlane {
    /// Allocates objects for another rack. Returns `None` if leaving or shared pages may soon make
    /// room: the caller retries then. With `at_last` the function always answers.
    pub(in crate::data_plane) fn serve_allocate(
        &mut self,
        rack: RackId,
        memory: MemoryId,
        sequence: u64,
        bytes: u64,
        count: u16,
        at_last: bool,
    ) -> anyhow::Result<Option<PeerReply>> {
        if rack.0 >= MAX_RACKS || bytes == 0 {
            return Ok(Some(PeerReply::Invalid("no such rack, or no bytes".into())));
        }
        let metadata = std::sync::Arc::clone(&self.rack.metadata);
        let log = &metadata.peer(rack)?.served;
        match order(log, memory, sequence) {
            Order::Stale => {
                return Ok(Some(PeerReply::Invalid("an exchange of the past".into())));
            }
            Order::Repeated => return Ok(Some(self.handed_out(log))),
            Order::Next => {}
        }
        if self.slab.peek(bytes)?.is_none() {
            self.drop_copies()?;
        }
        if self.slab.peek(bytes)?.is_none() {
            self.slab.close_empty_pages()?;
            let reserves = self.reserve_for(bytes);
            let unshares = self.unshare_for(bytes);
            if (reserves || unshares || self.slab.is_leaving() || self.is_copying()) && !at_last {
                return Ok(None);
            }
        }
        write(log, memory, sequence, ALLOCATE, &[]);
        for (cell, taken) in log.addrs.iter().take(usize::from(count)).zip(1_u64..) {
            let Some(candidate) = self.slab.peek(bytes)? else { break };
            // Record first: after a kill before the commit, the successor removes the object from
            // the record, because it is not allocated.
            cell.store(candidate.addr.raw(), Ordering::Relaxed);
            log.count.store(taken, Ordering::Release);
            self.slab.commit(candidate, None)?;
        }
        log.state.store(DONE, Ordering::Release);
        Ok(Some(self.handed_out(log)))
    }

    /// Returns the answer to an allocation from its record.
    fn handed_out(&self, log: &PeerLog) -> PeerReply {
        match addrs_of(log) {
            addrs if addrs.is_empty() => PeerReply::Full { free_frames: self.slab.free_frames() },
            addrs => PeerReply::Allocated(addrs),
        }
    }

    /// Frees objects for another rack. The answer names the objects of pages that are not here.
    /// Returns `Err` with a page that is moving; then nothing was done.
    pub(in crate::data_plane) fn serve_free(
        &mut self,
        rack: RackId,
        memory: MemoryId,
        sequence: u64,
        addrs: &[GlobalAddr],
    ) -> anyhow::Result<Result<PeerReply, PageId>> {
        if rack.0 >= MAX_RACKS || addrs.len() > PEER_BATCH {
            return Ok(Ok(PeerReply::Invalid("no such rack, or too many objects".into())));
        }
        let metadata = std::sync::Arc::clone(&self.rack.metadata);
        let log = &metadata.peer(rack)?.served;
        match order(log, memory, sequence) {
            Order::Stale => return Ok(Ok(PeerReply::Invalid("an exchange of the past".into()))),
            Order::Repeated => {
                return Ok(Ok(PeerReply::Freed { refused: 0, moved: marked_of(log) }));
            }
            Order::Next => {}
        }
        let page_size = self.rack.geometry.page_size;
        let mut noted = Vec::with_capacity(addrs.len());
        let mut refused = 0;
        for addr in addrs {
            match addr.page(page_size) {
                Some(page) if self.is_moving(page) => return Ok(Err(page)),
                // The page's memory is lost, and no other rack has the page.
                Some(page) if self.swap_has_lost(page) => noted.push(*addr),
                Some(page) if self.slab.lookup(page).is_none() => noted.push(mark(*addr)),
                // Not recorded: after a crash, completing the record would free the object although
                // a program may have allocated it again.
                _ if !self.slab.may_free(*addr, ObjectHolder::DAEMON) => refused += 1,
                _ => noted.push(*addr),
            }
        }
        write(log, memory, sequence, FREE, &noted);
        for addr in noted.into_iter().filter(|addr| !is_marked(*addr)) {
            refused += u16::from(self.slab.free(addr, ObjectHolder::DAEMON)?.is_err());
        }
        log.state.store(DONE, Ordering::Release);
        Ok(Ok(PeerReply::Freed { refused, moved: marked_of(log) }))
    }

    /// Completes what an earlier daemon was doing for other racks. Must be called before anything
    /// is allocated, so that an object of the record that is not allocated was freed by that
    /// exchange.
    pub(crate) fn finish_served(&mut self) -> anyhow::Result<()> {
        let metadata = std::sync::Arc::clone(&self.rack.metadata);
        for rack in (0..MAX_RACKS).map(RackId) {
            let log = &metadata.peer(rack)?.served;
            match log.state.load(Ordering::Acquire) {
                DOING => {}
                WRITING => {
                    // Nothing was done. Clear the record's owner, so that the repeated request
                    // counts as new.
                    write(log, MemoryId(0), 0, 0, &[]);
                    log.state.store(DONE, Ordering::Release);
                    continue;
                }
                _ => continue,
            }
            let addrs = addrs_of(log);
            if log.kind.load(Ordering::Relaxed) == ALLOCATE {
                // An object in the record that is not allocated was about to be allocated: remove
                // it.
                let used: Vec<GlobalAddr> =
                    addrs.into_iter().filter(|addr| self.slab.is_allocated(*addr)).collect();
                for (cell, addr) in log.addrs.iter().zip(&used) {
                    cell.store(addr.raw(), Ordering::Relaxed);
                }
                log.count.store(used.len() as u64, Ordering::Release);
            } else {
                for addr in addrs.into_iter().filter(|addr| !is_marked(*addr)) {
                    if self.slab.free(addr, ObjectHolder::DAEMON)?.is_err() {
                        tracing::debug!("{addr} was freed before the crash");
                    }
                }
            }
            log.state.store(DONE, Ordering::Release);
        }
        Ok(())
    }
}

/// Writes the record of a new exchange. The state is stored last and makes the record valid.
fn write(log: &PeerLog, memory: MemoryId, sequence: u64, kind: u64, addrs: &[GlobalAddr]) {
    log.state.store(WRITING, Ordering::Release);
    // Orders the fields after the store of `WRITING`.
    fence(Ordering::SeqCst);
    let [low, high] = halves(memory);
    log.memory[0].store(low, Ordering::Relaxed);
    log.memory[1].store(high, Ordering::Relaxed);
    log.sequence.store(sequence, Ordering::Relaxed);
    log.kind.store(kind, Ordering::Relaxed);
    for (cell, addr) in log.addrs.iter().zip(addrs) {
        cell.store(addr.raw(), Ordering::Relaxed);
    }
    log.count.store(addrs.len().min(PEER_BATCH) as u64, Ordering::Relaxed);
    log.state.store(DOING, Ordering::Release);
}
