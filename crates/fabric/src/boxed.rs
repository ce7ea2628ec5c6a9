//! Implements [`Fabric`] for a boxed fabric, so that decorators accept any fabric.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use crate::{
    DeviceCounters, EndpointId, Event, Fabric, FabricError, MemoryRegion, RegionId, Unsent,
    WorkRequest,
};

impl<F: Fabric + ?Sized> Fabric for Box<F> {
    fn register(&mut self, region: Arc<dyn MemoryRegion>) -> RegionId {
        (**self).register(region)
    }
    fn unregister(&mut self, region: RegionId) {
        (**self).unregister(region);
    }
    fn connect(&mut self, address: &str) -> Result<EndpointId, FabricError> {
        (**self).connect(address)
    }
    fn post(&mut self, endpoint: EndpointId, list: &[WorkRequest]) -> Result<(), FabricError> {
        (**self).post(endpoint, list)
    }
    fn send(&mut self, endpoint: EndpointId, message: Vec<u8>) -> Result<(), Unsent> {
        (**self).send(endpoint, message)
    }
    fn flush(&mut self, endpoint: EndpointId) {
        (**self).flush(endpoint);
    }
    fn poll(&mut self, events: &mut Vec<Event>) {
        (**self).poll(events);
    }
    fn disconnect(&mut self, endpoint: EndpointId) {
        (**self).disconnect(endpoint);
    }
    fn arm(&mut self) -> bool {
        (**self).arm()
    }
    fn disarm(&mut self) {
        (**self).disarm();
    }
    fn wake_fd(&self) -> BorrowedFd<'_> {
        (**self).wake_fd()
    }
    fn device_counters(&self) -> DeviceCounters {
        (**self).device_counters()
    }
    fn next_completion(&self) -> Option<Duration> {
        (**self).next_completion()
    }
    fn queue_depth(&self) -> usize {
        (**self).queue_depth()
    }
    fn address(&self) -> String {
        (**self).address()
    }
    fn description(&self) -> String {
        (**self).description()
    }
}
