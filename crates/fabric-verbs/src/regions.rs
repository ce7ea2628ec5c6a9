use std::collections::BTreeMap;
use std::sync::Arc;

use rackpool_fabric::{Event, FabricError, MemoryRegion, RegionId};

use crate::DeviceLimits;
use crate::error::{explain_memory, local};
use crate::verbs::{Domain, Registration, Slice};

/// The memory that the owner of a fabric has registered, with the number of operations in flight on
/// it.
pub(crate) struct Regions {
    domain: Arc<Domain>,
    limits: DeviceLimits,
    /// The memory that peers may access.
    exports: Vec<Arc<Registration>>,
    next: u32,
    regions: BTreeMap<RegionId, Registered>,
}

struct Registered {
    /// The registration. Its error is returned by every post that names the region.
    memory: Result<Arc<Registration>, FabricError>,
    in_flight: usize,
    leaving: bool,
}

impl Regions {
    pub(crate) fn new(
        domain: Arc<Domain>,
        limits: DeviceLimits,
        exports: Vec<Arc<Registration>>,
    ) -> Self {
        Self { domain, limits, exports, next: 0, regions: BTreeMap::new() }
    }

    /// Registers a region under a new id. An exported region's registration is reused; otherwise
    /// its pages would be locked, and counted against the limit, twice.
    pub(crate) fn register(&mut self, region: Arc<dyn MemoryRegion>) -> RegionId {
        let id = RegionId(self.next);
        self.next += 1;
        let exported = self.exports.iter().find(|export| export.covers(&*region)).cloned();
        let memory = exported
            .map_or_else(|| register(&self.domain, region, self.limits, false).map(Arc::new), Ok);
        let memory = memory.map_err(|cause| local("register memory with the RDMA device", cause));
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
    pub(crate) fn check(&self, id: RegionId, offset: u64, len: u32) -> Result<(), FabricError> {
        let Some(region) = self.regions.get(&id).filter(|region| !region.leaving) else {
            return Err(FabricError::UnknownRegion { region: id.0 });
        };
        let memory = region.memory.as_ref().map_err(Clone::clone)?;
        if memory.slice(offset, len).is_none() {
            let (len, region_len) = (len.into(), memory.len());
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

    /// Bytes of a region with operations in flight.
    pub(crate) fn slice(
        &self,
        id: RegionId,
        offset: u64,
        len: u32,
    ) -> Result<Slice<'_>, FabricError> {
        let memory = self.regions.get(&id).and_then(|region| region.memory.as_ref().ok());
        let slice = memory.and_then(|memory| memory.slice(offset, len));
        slice.ok_or(FabricError::UnknownRegion { region: id.0 })
    }

    fn release_idle(&mut self, id: RegionId, events: &mut Vec<Event>) {
        if self.regions.get(&id).is_some_and(|region| region.leaving && region.in_flight == 0) {
            self.regions.remove(&id);
            events.push(Event::Unregistered { region: id });
        }
    }
}

/// Registers memory with the device. The error is a text for operators.
pub(crate) fn register(
    domain: &Arc<Domain>,
    region: Arc<dyn MemoryRegion>,
    limits: DeviceLimits,
    remote: bool,
) -> Result<Registration, String> {
    let len = region.len();
    limits.check_registration(len)?;
    Registration::new(domain, region, remote).map_err(|error| explain_memory(&error, len))
}
