//! The clients of the rack as the data plane sees them.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rackpool_fabric::RegionId;
use rackpool_model::{ClientId, GlobalAddr};
use rackpool_ring::call::Answer;
use rackpool_ring::client_file::{ClientFile, ThreadSlot};
use rackpool_shm::access::AccessSlot;
use rackpool_sync::atomic::{AtomicU64, Ordering};
use rackpool_sync::futex;
use rackpool_wire::rack::RackAnswer;

/// Who waits for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Caller {
    pub(crate) client: ClientId,
    pub(crate) thread: u16,
    pub(crate) cell: u8,
    pub(crate) call: u32,
}

/// One client.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) file: Arc<ClientFile>,
    pub(crate) region: RegionId,
    /// `None` while the client of an earlier daemon has not come back.
    pub(crate) doorbell: Option<OwnedFd>,
    /// It has gone; what it held is on the way back.
    pub(crate) gone: bool,
    /// Exchanges with other racks that take back what it held.
    pub(crate) returning: usize,
    /// For each thread the last batch of which a part was not done.
    pub(crate) refused: BTreeMap<u16, u64>,
}

/// All of them, in a fixed order.
#[derive(Debug, Default)]
pub(crate) struct Clients(pub(crate) BTreeMap<ClientId, Client>);

impl Client {
    /// A thread's slot; `None` for a number the file has no room for.
    pub(crate) fn thread(&self, thread: u16) -> Option<&ThreadSlot> {
        self.file.thread(thread).ok()
    }

    /// All thread slots.
    pub(crate) fn threads(&self) -> impl Iterator<Item = &ThreadSlot> {
        (0..self.file.threads()).filter_map(|thread| self.thread(thread))
    }
}

/// Every place of a thread slot where an object can stand.
pub(crate) fn object_cells(slot: &ThreadSlot) -> impl Iterator<Item = &AtomicU64> {
    slot.inbox.iter().chain(&slot.outbox).chain(slot.magazines.iter().flatten())
}

/// Strikes objects out of a thread slot.
pub(crate) fn strike(slot: &ThreadSlot, struck: impl Fn(GlobalAddr) -> bool) {
    for cell in object_cells(slot) {
        let found = cell.load(Ordering::Relaxed);
        if found != 0 && struck(GlobalAddr::from_raw(found)) {
            cell.store(0, Ordering::Release);
        }
    }
}

impl Clients {
    /// Delivers an answer, if somebody still waits for it.
    pub(crate) fn finish(&self, caller: Caller, answer: RackAnswer) {
        let Some(client) = self.0.get(&caller.client).filter(|client| !client.gone) else { return };
        let Ok(cells) = client.file.cells(caller.thread) else { return };
        let Some(cell) = cells.get(usize::from(caller.cell)) else { return };
        let (status, values) = answer.to_words();
        if cell.finish(caller.call, &Answer { status, values }) {
            futex::wake_all(cell.sleep_word().0);
        }
    }

    /// Whether the caller still waits.
    pub(crate) fn is_waiting(&self, caller: Caller) -> bool {
        self.0
            .get(&caller.client)
            .filter(|client| !client.gone)
            .and_then(|client| client.file.cells(caller.thread).ok())
            .and_then(|cells| cells.get(usize::from(caller.cell)))
            .is_some_and(|cell| cell.is_waiting_for(caller.call))
    }

    /// The access slots of everyone who may be using a frame.
    pub(crate) fn access_slots(&self) -> impl Iterator<Item = &AccessSlot> {
        self.0
            .values()
            .filter(|client| !client.gone)
            .flat_map(|client| client.threads().map(|slot| &slot.access))
    }
}
