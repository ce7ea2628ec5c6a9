use std::collections::BTreeMap;
use std::sync::Arc;

use crate::region::fits;
use crate::{Event, FabricError, MemoryRegion, RegionId};

/// The memory that the owner of a fabric has registered, with the number of operations in flight on
/// it.
#[derive(Default)]
pub(crate) struct Regions {
    next: u32,
    regions: BTreeMap<RegionId, Registered>,
}

struct Registered {
    memory: Arc<dyn MemoryRegion>,
    in_flight: usize,
    leaving: bool,
}

impl Regions {
    /// Registers `memory` under a new id.
    pub(crate) fn register(&mut self, memory: Arc<dyn MemoryRegion>) -> RegionId {
        let id = RegionId(self.next);
        self.next += 1;
        self.regions.insert(id, Registered { memory, in_flight: 0, leaving: false });
        id
    }

    /// Removes a region, at once or when the last operation on it has ended.
    pub(crate) fn unregister(&mut self, id: RegionId, events: &mut Vec<Event>) {
        if let Some(region) = self.regions.get_mut(&id) {
            region.leaving = true;
            self.release_idle(id, events);
        }
    }

    /// Checks that an operation may use `len` bytes at `offset`.
    pub(crate) fn check(&self, id: RegionId, offset: u64, len: u64) -> Result<(), FabricError> {
        let Some(region) = self.regions.get(&id).filter(|region| !region.leaving) else {
            return Err(FabricError::UnknownRegion { region: id.0 });
        };
        let region_len = region.memory.len();
        if !fits(offset, len, region_len) {
            return Err(FabricError::OutOfRange { side: "local", offset, len, region_len });
        }
        Ok(())
    }

    /// Counts an operation that has passed `check` as in flight.
    pub(crate) fn begin(&mut self, id: RegionId) {
        if let Some(region) = self.regions.get_mut(&id) {
            region.in_flight += 1;
        }
    }

    /// Counts an operation as ended; removes the region if it was unregistered and is now idle.
    pub(crate) fn end(&mut self, id: RegionId, events: &mut Vec<Event>) {
        if let Some(region) = self.regions.get_mut(&id) {
            region.in_flight = region.in_flight.saturating_sub(1);
            self.release_idle(id, events);
        }
    }

    /// The memory of a region with operations in flight.
    pub(crate) fn memory(&self, id: RegionId) -> Result<&dyn MemoryRegion, FabricError> {
        let region = self.regions.get(&id);
        region.map(|region| &*region.memory).ok_or(FabricError::UnknownRegion { region: id.0 })
    }

    fn release_idle(&mut self, id: RegionId, events: &mut Vec<Event>) {
        if self.regions.get(&id).is_some_and(|region| region.leaving && region.in_flight == 0) {
            self.regions.remove(&id);
            events.push(Event::Unregistered { region: id });
        }
    }
}
