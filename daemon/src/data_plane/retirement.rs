//! Retired objects, and the fixed objects that gone clients owned. `rackpool_proto::retirement`
//! decides when the memory of a retired object is reused; this module executes the barriers and
//! reads the pins.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use rackpool_model::{ClientId, GlobalAddr};
use rackpool_proto::Time;
use rackpool_proto::retirement::Retirements;
use rackpool_ring::client_file::{ArrayKind, ClientFile};
use rackpool_ring::objects::NoteCell;
use rackpool_ring::pins::pinned;
use rackpool_shm::marks::ObjectHolder;
use rackpool_sync::atomic::Ordering;

use super::DataPlane;
use super::clients::struck_cells;
use crate::data_plane::error::Result;

/// The most objects of a gone client that are freed, and the most cells that are read, before
/// requests are served again.
const OBJECTS_A_STEP: usize = 1024;
const CELLS_A_STEP: usize = 64 * OBJECTS_A_STEP;

/// The owned array of a gone client, up to `next` of which the objects are freed.
#[derive(Clone, Copy, Debug)]
struct Estate {
    client: ClientId,
    next: usize,
}

/// The retired objects of the rack, and what gone clients owned.
#[derive(Debug, Default)]
pub(super) struct Retiring {
    retirements: Retirements,
    estates: VecDeque<Estate>,
}

impl Retiring {
    /// Returns true if objects that a gone client owned are not freed yet.
    pub(super) fn has_estate_of(&self, client: ClientId) -> bool {
        self.estates.iter().any(|estate| estate.client == client)
    }
}

impl DataPlane {
    /// Returns true if objects are to be freed without a request.
    pub(super) fn has_retiring(&self) -> bool {
        self.slab.has_newly_retired()
            || self.retiring.retirements.deadline().is_some()
            || !self.retiring.estates.is_empty()
    }

    /// Returns true if memory becomes free without a pin being dropped.
    pub(super) fn frees_retired(&self) -> bool {
        self.slab.has_newly_retired()
            || self.retiring.retirements.deadline() == Some(Time::ZERO)
            || !self.retiring.estates.is_empty()
    }

    /// Frees the next objects of gone clients, and retired objects that no pin names.
    pub(super) fn drive_retiring(&mut self, now: Instant) -> Result<()> {
        self.settle_estate()?;
        for addr in self.slab.take_newly_retired() {
            self.retiring.retirements.retired(addr);
        }
        let at = self.at(now);
        if self.retiring.retirements.deadline().is_none_or(|due| due > at) {
            return Ok(());
        }
        let Some(scan) = self.retiring.retirements.begin_scan(at) else { return Ok(()) };
        self.rack.client_host.barrier();
        let mut objects: Vec<u64> = scan.objects().map(GlobalAddr::raw).collect();
        objects.sort_unstable();
        let bounds = objects.first().copied().zip(objects.last().copied());
        let is_of_scan = |pin: &u64| {
            bounds.is_some_and(|(first, last)| (first..=last).contains(pin))
                && objects.binary_search(pin).is_ok()
        };
        // The process of a gone client has ended, and its pins with it.
        let clients = self.clients.all.values().filter(|client| !client.gone);
        let found: BTreeSet<u64> = clients
            .flat_map(|client| pinned(&client.file.array(ArrayKind::Pins)))
            // A transfer may land after its client has given it up, or has gone.
            .chain(self.transfers.heads().map(GlobalAddr::raw))
            .filter(is_of_scan)
            .collect();
        let is_pinned = |addr: GlobalAddr| found.contains(&addr.raw());
        for addr in self.retiring.retirements.scanned(at, scan, is_pinned) {
            self.slab.free_retired(addr)?;
        }
        Ok(())
    }

    /// A bit for each of the objects that a client's array pins. A pin that is being made or
    /// dropped meanwhile is found or not.
    pub(super) fn pinned_among(&self, objects: &[GlobalAddr]) -> u64 {
        let clients = self.clients.all.values().filter(|client| !client.gone);
        let pins = clients.flat_map(|client| pinned(&client.file.array(ArrayKind::Pins)));
        pins.fold(0, |found, pin| {
            let same = (0..).zip(objects).filter(|(_, object)| object.raw() == pin);
            same.fold(found, |found, (bit, _)| found | 1 << bit)
        })
    }

    /// A client has gone: the objects that it owned will be freed, in steps. Must be called before
    /// any object that its thread slots note is freed: an object that is noted there too, by a kill
    /// between two stores, is freed with those, and could be another client's by the time that its
    /// cell in the array is read.
    pub(super) fn inherit(&mut self, id: ClientId, file: &ClientFile) {
        let owned = file.array(ArrayKind::Owned).in_use();
        if owned.is_empty() {
            return;
        }
        let slots = (0..file.threads()).filter_map(|thread| file.thread(thread).ok());
        let noted: BTreeSet<u64> = slots
            .flat_map(struck_cells)
            .map(|cell| cell.load(Ordering::Relaxed))
            .filter(|addr| self.slab.is_fixed_object(GlobalAddr::from_raw(*addr)))
            .collect();
        if !noted.is_empty() {
            for cell in owned.iter().filter(|cell| noted.contains(&cell.object())) {
                cell.set(0);
            }
        }
        self.retiring.estates.push_back(Estate { client: id, next: 0 });
    }

    /// Frees the next objects of the first gone client.
    fn settle_estate(&mut self) -> Result<()> {
        let Some(estate) = self.retiring.estates.front_mut() else { return Ok(()) };
        let id = estate.client;
        let file = self.clients.all.get(id).map(|client| Arc::clone(&client.file));
        let mut is_settled = true;
        if let Some(file) = file {
            let cells = file.array(ArrayKind::Owned).in_use();
            let end = cells.len().min(estate.next.saturating_add(CELLS_A_STEP));
            let mut freed = 0;
            for cell in cells.get(estate.next..end).unwrap_or_default() {
                if freed == OBJECTS_A_STEP {
                    break;
                }
                estate.next += 1;
                let addr = GlobalAddr::from_raw(cell.object());
                if addr.is_null() {
                    continue;
                }
                // Freed first: a daemon killed in between leaves a note of a free object, which its
                // successor removes before it allocates anything.
                if self.slab.is_fixed_object(addr) {
                    let _ = self.slab.free(addr, ObjectHolder::of(id))?;
                }
                cell.set(0);
                freed += 1;
            }
            is_settled = estate.next >= cells.len();
        }
        if is_settled {
            self.retiring.estates.pop_front();
            self.forget_if_returned(id);
        }
        Ok(())
    }

    /// Removes free objects from the owned arrays: they were being freed when an earlier daemon
    /// ended. Must be called before anything is allocated.
    pub(super) fn strike_free_owned(&self) {
        for client in self.clients.all.values() {
            for cell in client.file.array(ArrayKind::Owned).in_use() {
                let addr = cell.object();
                if addr != 0 && !self.slab.is_fixed_object(GlobalAddr::from_raw(addr)) {
                    cell.strike(addr);
                }
            }
        }
    }
}
