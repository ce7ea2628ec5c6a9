//! Objects of the rack and of its clients' files, as the machine reads them.

use rackpool_model::{ClientId, GlobalAddr};
use rackpool_proto::exchange::{Caller, ClientThread, ObjectMemory};
use rackpool_ring::client_file::ThreadSlot;
use rackpool_shm::marks::ObjectHolder;
use rackpool_sync::atomic::{AtomicU64, Ordering};

use crate::data_plane::clients::object_cells;
use crate::data_plane::machine::View;

fn is_there<'a>(mut cells: impl Iterator<Item = &'a AtomicU64>, addr: GlobalAddr) -> bool {
    cells.any(|cell| cell.load(Ordering::Relaxed) == addr.raw())
}

fn objects(slot: &ThreadSlot) -> impl Iterator<Item = GlobalAddr> {
    let addrs = object_cells(slot).map(|cell| GlobalAddr::from_raw(cell.load(Ordering::Relaxed)));
    addrs.filter(|addr| !addr.is_null())
}

impl ObjectMemory for View<'_> {
    fn is_allocated(&self, addr: GlobalAddr) -> bool {
        self.slab.is_allocated(addr)
    }

    fn may_free(&self, addr: GlobalAddr, client: Option<ClientId>) -> bool {
        self.slab.may_free(addr, client.map_or(ObjectHolder::DAEMON, ObjectHolder::of))
    }

    fn candidate(&self, bytes: u64) -> Option<GlobalAddr> {
        // Damaged metadata has no free object.
        self.slab.peek(bytes).ok()?.map(|candidate| candidate.addr)
    }

    fn free_frames(&self) -> u32 {
        self.slab.free_frames()
    }

    fn takes(&self, caller: Caller) -> bool {
        let slot = self.clients.slot(caller.client_thread());
        let is_empty =
            |slot: &ThreadSlot| slot.inbox.iter().all(|cell| cell.load(Ordering::Relaxed) == 0);
        self.clients.is_waiting(caller) && slot.is_some_and(is_empty)
    }

    fn holds(&self, owner: ClientThread, addr: GlobalAddr) -> bool {
        let client = self.clients.all.get(owner.client);
        client.is_some_and(|client| {
            client.thread(owner.thread).is_some_and(|slot| {
                is_there(slot.outbox.iter(), addr)
                    || client.gone && is_there(object_cells(slot), addr)
            })
        })
    }

    fn held(&self) -> impl Iterator<Item = (ClientThread, GlobalAddr)> {
        let slots = self.clients.all.iter().flat_map(|(client, _)| self.clients.threads_of(client));
        slots.flat_map(|(owner, slot)| objects(slot).map(move |addr| (owner, addr)))
    }
}
