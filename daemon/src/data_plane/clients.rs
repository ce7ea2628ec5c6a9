//! The clients of the rack, as the data plane knows them.

mod by_id;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rackpool_fabric::{EndpointId, RegionId};
use rackpool_model::GlobalAddr;
pub(crate) use rackpool_proto::exchange::{Caller, ClientThread};
use rackpool_ring::call::{Answer, CallCell};
use rackpool_ring::client_file::{CELLS_PER_THREAD, ClientFile, ThreadSlot};
use rackpool_ring::objects;
use rackpool_ring::reservation::ReservationRecord;
use rackpool_shm::access::AccessSlot;
use rackpool_sync::atomic::{AtomicU64, Ordering, fence};
use rackpool_wire::rack::RackAnswer;

use crate::client_host::ClientHost;
use by_id::ById;

/// One client.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) file: Arc<ClientFile>,
    pub(crate) region: RegionId,
    /// `None` while a client of an earlier daemon has not reconnected.
    pub(crate) doorbell: Option<OwnedFd>,
    /// Set when the client has gone; its objects are being reclaimed.
    pub(crate) gone: bool,
    /// Number of reservations that are being resolved, plus 1 while the client is being reclaimed,
    /// plus 1 while the objects that it owned are being freed.
    pub(crate) returning: usize,
    /// The latest batch of each thread.
    pub(crate) batches: BTreeMap<u16, Batch>,
    /// For each thread and cell the number of the call that waits for an answer; 0 for none.
    open: Vec<[u32; CELLS_PER_THREAD]>,
}

/// A thread's transfers, which are executed in order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batch {
    pub(crate) number: u64,
    /// The endpoint over which some were posted. A transfer on another path could overtake them.
    pub(crate) over: Option<EndpointId>,
    /// Set when a part of the batch failed; the rest is not executed.
    pub(crate) refused: bool,
}

/// All clients.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    pub(crate) all: ById<Client>,
    /// Calls answered since [`Clients::rouse`] last ran.
    answered: Vec<Caller>,
    /// Set when a thread was woken since [`Clients::has_woken`] was last called.
    has_woken: bool,
}

impl Client {
    pub(crate) fn new(file: Arc<ClientFile>, region: RegionId, doorbell: Option<OwnedFd>) -> Self {
        Self {
            file,
            region,
            doorbell,
            gone: false,
            returning: 0,
            batches: BTreeMap::new(),
            open: Vec::new(),
        }
    }

    /// Returns true if requests of the client are served now.
    pub(crate) const fn is_served(&self) -> bool {
        !self.gone && self.doorbell.is_some()
    }

    /// Returns the thread's batch with this number: its latest one, or a new one.
    pub(crate) fn batch(&mut self, thread: u16, number: u64) -> &mut Batch {
        let new = Batch { number, over: None, refused: false };
        let last = self.batches.entry(thread).or_insert(new);
        if last.number != number {
            *last = new;
        }
        last
    }

    fn cell(&self, caller: Caller) -> Option<&CallCell> {
        self.file.cells(caller.thread).ok()?.get(usize::from(caller.cell))
    }

    fn open(&mut self, caller: Caller) -> Option<&mut u32> {
        self.open.get_mut(usize::from(caller.thread))?.get_mut(usize::from(caller.cell))
    }

    /// Returns a thread's slot; `None` if the file has no such thread.
    pub(crate) fn thread(&self, thread: u16) -> Option<&ThreadSlot> {
        self.file.thread(thread).ok()
    }

    /// Returns the number of thread slots, from the first on, that have sent a request. A thread
    /// that uses pages of the rack has requested their translation. After a restart of the daemon,
    /// a thread is known from its next request on.
    pub(crate) fn used_threads(&self) -> u16 {
        u16::try_from(self.open.len()).unwrap_or(u16::MAX)
    }

    /// All thread slots.
    pub(crate) fn threads(&self) -> impl Iterator<Item = &ThreadSlot> {
        (0..self.file.threads()).filter_map(|thread| self.thread(thread))
    }
}

/// Returns every cell of a thread slot's arrays that can hold an object.
pub(crate) fn array_cells(slot: &ThreadSlot) -> impl Iterator<Item = &AtomicU64> {
    slot.inbox.iter().chain(&slot.outbox).chain(slot.magazines.iter().flatten())
}

/// Returns every cell of a thread slot whose object is reclaimed when the client has gone.
pub(crate) fn object_cells(slot: &ThreadSlot) -> impl Iterator<Item = &AtomicU64> {
    array_cells(slot).chain(slot.reservations.iter().filter_map(ReservationRecord::noted))
}

/// Returns the cells from which objects are removed: those of the arrays, and the reservation
/// records for which it is not resolved yet what is reclaimed.
pub(crate) fn struck_cells(slot: &ThreadSlot) -> impl Iterator<Item = &AtomicU64> {
    array_cells(slot).chain(slot.reservations.iter().filter_map(ReservationRecord::struck))
}

/// Removes the objects that satisfy `struck` from a thread slot's cells.
pub(crate) fn strike(slot: &ThreadSlot, struck: impl Fn(GlobalAddr) -> bool) {
    objects::strike(struck_cells(slot), |found| struck(GlobalAddr::from_raw(found)));
}

impl Clients {
    /// Returns a thread's slot; `None` if there is no such client or thread.
    pub(crate) fn slot(&self, of: ClientThread) -> Option<&ThreadSlot> {
        self.all.get(of.client)?.thread(of.thread)
    }

    fn served(&mut self, caller: Caller) -> Option<&mut Client> {
        self.all.get_mut(caller.client).filter(|client| !client.gone)
    }

    /// Records a call. Returns false if the client has no such thread or cell, or if the cell
    /// already waits for an answer: a client never has more open calls than cells.
    pub(crate) fn begin(&mut self, caller: Caller) -> bool {
        let Some(client) = self.served(caller) else { return false };
        let threads = usize::from(client.file.threads());
        let thread = usize::from(caller.thread);
        if thread >= threads {
            return false;
        }
        if thread >= client.open.len() {
            client.open.resize(thread + 1, [0; CELLS_PER_THREAD]);
        }
        match client.open(caller) {
            Some(open) if *open == 0 && caller.call != 0 => {
                *open = caller.call;
                true
            }
            _ => false,
        }
    }

    /// Delivers an answer, at most once. The caller must call [`Self::rouse`] afterwards.
    pub(crate) fn finish(&mut self, caller: Caller, answer: RackAnswer) {
        let Some(client) = self.served(caller) else { return };
        match client.open(caller) {
            Some(open) if *open == caller.call => *open = 0,
            _ => return,
        }
        let Some(cell) = client.cell(caller) else { return };
        let (status, values) = answer.to_words();
        cell.finish(caller.call, &Answer { status, values });
        self.answered.push(caller);
    }

    /// Wakes the sleeping threads among those that were answered.
    pub(crate) fn rouse(&mut self, host: &dyn ClientHost) {
        if self.answered.is_empty() {
            return;
        }
        // SYNC: pairs with the fence in `CallCell::will_sleep`: either this thread sees the
        // sleeper, or the sleeper sees the answer.
        fence(Ordering::SeqCst);
        for caller in self.answered.drain(..) {
            let cell = self.all.get(caller.client).and_then(|client| client.cell(caller));
            if let Some(cell) = cell.filter(|cell| cell.rouse()) {
                host.wake(cell.sleep_word());
                self.has_woken = true;
            }
        }
    }

    /// Returns true if a thread was woken since the last call of this function.
    pub(crate) const fn has_woken(&mut self) -> bool {
        std::mem::replace(&mut self.has_woken, false)
    }

    /// Returns true if the call is still unanswered.
    pub(crate) fn is_waiting(&self, caller: Caller) -> bool {
        let client = self.all.get(caller.client).filter(|client| !client.gone);
        let open = client
            .and_then(|client| client.open.get(usize::from(caller.thread)))
            .and_then(|cells| cells.get(usize::from(caller.cell)));
        caller.call != 0 && open.is_some_and(|open| *open == caller.call)
    }

    /// Returns the access slots of all threads that may be using a frame.
    pub(crate) fn access_slots(&self) -> impl Iterator<Item = &AccessSlot> {
        self.all
            .values()
            .filter(|client| !client.gone)
            .flat_map(|client| client.threads().map(|slot| &slot.access))
    }
}
