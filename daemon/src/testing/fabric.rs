use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rackpool_fabric::{
    DisconnectReason, EndpointId, Event, Fabric, FabricError, MAX_MESSAGE, MemoryRegion, RegionId,
    Unsent, WorkRequest,
};
use rackpool_rrpc::message::{self, Message};

/// The calls that a fabric received and the events that it reports, as the test sees them.
#[derive(Debug, Default)]
pub(super) struct Scene {
    pub(super) events: Vec<Event>,
    sent: Vec<(EndpointId, Vec<u8>)>,
    /// Endpoints that are being connected, with their addresses.
    pub(super) connecting: Vec<(EndpointId, String)>,
    pub(super) open: Vec<EndpointId>,
    posted: Vec<(EndpointId, u64)>,
    /// Number of the next posts and messages that are refused as `RingFull`.
    pub(super) full: u8,
    endpoints: u64,
}

/// A fabric without a network: it reports the events that the test prescribes.
pub(super) struct Stage {
    scene: Arc<Mutex<Scene>>,
    regions: BTreeMap<RegionId, Arc<dyn MemoryRegion>>,
    wake: OwnedFd,
}

pub(super) fn lock(scene: &Mutex<Scene>) -> MutexGuard<'_, Scene> {
    scene.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Scene {
    /// Creates an endpoint id.
    pub(super) fn endpoint(&mut self) -> EndpointId {
        self.endpoints += 1;
        EndpointId(self.endpoints)
    }

    /// Opens an endpoint, whose peer lets this rack write 1 MiB at once.
    pub(super) fn opened(&mut self, endpoint: EndpointId, event: Event) {
        self.open.push(endpoint);
        self.events.push(event);
        self.events.push(Event::Message { endpoint, bytes: message::window(1 << 20) });
    }

    /// The messages sent since the last call, without those about windows.
    pub(super) fn take_sent(&mut self) -> Vec<(EndpointId, Vec<u8>)> {
        let mut sent = std::mem::take(&mut self.sent);
        sent.retain(|(_, bytes)| {
            let is_window = matches!(
                message::decode(bytes),
                Ok(Message::Window { .. } | Message::WindowTaken { .. })
            );
            !is_window
        });
        sent
    }

    /// Ends an endpoint: its posted requests fail, and `Disconnected` is its last event.
    pub(super) fn end(&mut self, endpoint: EndpointId, reason: DisconnectReason) {
        if !self.open.contains(&endpoint) {
            return;
        }
        self.open.retain(|open| *open != endpoint);
        for (over, id) in std::mem::take(&mut self.posted) {
            if over == endpoint {
                let result = Err(reason.error());
                self.events.push(Event::Completed { endpoint, id, result });
            } else {
                self.posted.push((over, id));
            }
        }
        self.events.push(Event::Disconnected { endpoint, reason });
    }

    /// Completes all posted operations.
    pub(super) fn complete(&mut self) {
        for (endpoint, id) in std::mem::take(&mut self.posted) {
            self.events.push(Event::Completed { endpoint, id, result: Ok(()) });
        }
    }

    fn has_room(&mut self) -> Result<(), FabricError> {
        if self.full > 0 {
            self.full -= 1;
            return Err(FabricError::RingFull);
        }
        Ok(())
    }
}

impl Stage {
    pub(super) fn new(scene: Arc<Mutex<Scene>>) -> anyhow::Result<Self> {
        use rustix::event::{EventfdFlags, eventfd};
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { scene, regions: BTreeMap::new(), wake })
    }
}

impl Fabric for Stage {
    fn register(&mut self, region: Arc<dyn MemoryRegion>) -> RegionId {
        let last = self.regions.last_key_value().map_or(0, |(id, _)| id.0);
        self.regions.insert(RegionId(last + 1), region);
        RegionId(last + 1)
    }

    fn unregister(&mut self, region: RegionId) {
        if self.regions.remove(&region).is_some() {
            lock(&self.scene).events.push(Event::Unregistered { region });
        }
    }

    fn connect(&mut self, address: &str) -> Result<EndpointId, FabricError> {
        let mut scene = lock(&self.scene);
        if address.is_empty() {
            return Err(FabricError::PeerGone);
        }
        let endpoint = scene.endpoint();
        scene.connecting.push((endpoint, address.to_owned()));
        Ok(endpoint)
    }

    fn post(&mut self, endpoint: EndpointId, list: &[WorkRequest]) -> Result<(), FabricError> {
        let mut scene = lock(&self.scene);
        if !scene.open.contains(&endpoint) {
            return Err(FabricError::PeerGone);
        }
        scene.has_room()?;
        for request in list {
            let transfer = request.operation.transfer();
            let local = self.regions.get(&transfer.local);
            // The data plane must have checked what it posts.
            assert!(transfer.len > 0, "a transfer of nothing");
            let end = transfer.local_offset.checked_add(u64::from(transfer.len));
            let fits = local.is_some_and(|region| end.is_some_and(|end| end <= region.len()));
            assert!(fits, "a transfer past the end of a client's file");
            scene.posted.push((endpoint, request.id));
        }
        Ok(())
    }

    fn send(&mut self, endpoint: EndpointId, message: Vec<u8>) -> Result<(), Unsent> {
        let mut scene = lock(&self.scene);
        if !scene.open.contains(&endpoint) {
            return Err(Unsent { error: FabricError::PeerGone, message });
        }
        assert!((1..=MAX_MESSAGE).contains(&message.len()), "no message has {} B", message.len());
        if let Err(error) = scene.has_room() {
            return Err(Unsent { error, message });
        }
        scene.sent.push((endpoint, message));
        Ok(())
    }

    fn flush(&mut self, _: EndpointId) {}

    fn poll(&mut self, events: &mut Vec<Event>) {
        events.append(&mut lock(&self.scene).events);
    }

    fn disconnect(&mut self, endpoint: EndpointId) {
        lock(&self.scene).end(endpoint, DisconnectReason::PeerGone);
    }

    fn arm(&mut self) -> bool {
        lock(&self.scene).events.is_empty()
    }

    fn disarm(&mut self) {}

    fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    fn next_completion(&self) -> Option<Duration> {
        None
    }

    fn queue_depth(&self) -> usize {
        4
    }

    fn address(&self) -> String {
        "stage".into()
    }

    fn description(&self) -> String {
        "a stage".into()
    }
}
