//! A fabric between two racks in one thread; the test decides what happens and when.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rackpool_fabric::{
    DisconnectReason, EndpointId, Event, Fabric, FabricError, MemoryRegion, Operation, OutOfRange,
    RegionId, Transfer, Unsent, WorkRequest,
};
use rackpool_model::{Incarnation, RackId};

/// Memory of a rack.
#[derive(Debug)]
pub struct Ram(Mutex<Vec<u8>>);

impl Ram {
    pub fn new(bytes: Vec<u8>) -> Arc<Self> {
        Arc::new(Self(Mutex::new(bytes)))
    }

    fn with<R>(
        &self,
        offset: u64,
        len: usize,
        work: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R, OutOfRange> {
        let mut bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (len, region_len) = (len as u64, bytes.len() as u64);
        match bytes.get_mut(offset as usize..(offset + len) as usize) {
            Some(bytes) => Ok(work(bytes)),
            None => Err(OutOfRange { offset, len, region_len }),
        }
    }
}

impl MemoryRegion for Ram {
    fn len(&self) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len() as u64
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), OutOfRange> {
        self.with(offset, into.len(), |bytes| into.copy_from_slice(bytes))
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), OutOfRange> {
        self.with(offset, from.len(), |bytes| bytes.copy_from_slice(from))
    }

    fn load(&self, offset: u64) -> Result<u64, OutOfRange> {
        let mut word = [0; 8];
        self.read(offset, &mut word).map(|()| u64::from_le_bytes(word))
    }

    fn store(&self, offset: u64, value: u64) -> Result<(), OutOfRange> {
        self.write(offset, &value.to_le_bytes())
    }

    fn compare_exchange(&self, offset: u64, current: u64, new: u64) -> Result<u64, OutOfRange> {
        self.with(offset, 8, |bytes| {
            let found = bytes.try_into().map_or(0, u64::from_le_bytes);
            if found == current {
                bytes.copy_from_slice(&new.to_le_bytes());
            }
            found
        })
    }

    fn full_fence(&self) {}
}

#[derive(Debug)]
enum Item {
    Operation(WorkRequest),
    Message(Vec<u8>),
}

/// The items that one rack has on the wire, and the events it will get.
#[derive(Default)]
pub struct End {
    queue: VecDeque<Item>,
    /// Items that are not flushed: they occupy room, and nothing moves them.
    unrung: VecDeque<Item>,
    events: Vec<Event>,
    regions: BTreeMap<RegionId, Arc<dyn MemoryRegion>>,
    exports: Vec<Arc<dyn MemoryRegion>>,
    endpoint: Option<EndpointId>,
    /// The number of next posts and messages that will find no room.
    pub full: u8,
    /// Lengths of the posted lists.
    pub lists: Vec<usize>,
    /// For each flush, the number of items that it put on the wire.
    pub doorbells: Vec<usize>,
}

/// The wire between two racks.
pub struct Net {
    pub ends: [End; 2],
    depth: usize,
    endpoints: u64,
    is_cut: bool,
}

pub type Shared = Arc<Mutex<Net>>;

pub fn lock(net: &Shared) -> MutexGuard<'_, Net> {
    net.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Net {
    /// A wire between two racks that export this memory.
    pub fn new(depth: usize, exports: [Vec<Arc<dyn MemoryRegion>>; 2]) -> Shared {
        let ends = exports.map(|exports| End { exports, ..End::default() });
        Arc::new(Mutex::new(Self { ends, depth, endpoints: 0, is_cut: false }))
    }

    pub fn endpoint(&self, side: usize) -> Option<EndpointId> {
        self.ends[side].endpoint
    }

    /// Returns true if both ends have seen the end of the last connection.
    pub fn is_apart(&self) -> bool {
        self.ends.iter().all(|end| end.endpoint.is_none())
    }

    /// Connects the racks. With `measured`, the first rack connects and calibrates; otherwise, both
    /// accept.
    pub fn connect(&mut self, measured: bool) {
        self.endpoints += 1;
        let (endpoint, incarnation) = (EndpointId(self.endpoints), Incarnation(1));
        self.is_cut = false;
        for (side, end) in self.ends.iter_mut().enumerate() {
            assert!(end.endpoint.is_none() && end.queue.is_empty() && end.unrung.is_empty());
            end.endpoint = Some(endpoint);
            let peer = RackId(1 - side as u16);
            end.events.push(match side {
                0 if measured => Event::Connected { endpoint, peer, incarnation },
                _ => Event::Accepted { endpoint, peer, incarnation },
            });
        }
    }

    pub fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Ends the connection; each side sees the end later.
    pub fn cut(&mut self) {
        self.is_cut = true;
    }

    /// Delivers arbitrary bytes to a rack as a message.
    pub fn inject(&mut self, side: usize, bytes: Vec<u8>) {
        if let Some(endpoint) = self.ends[side].endpoint {
            self.ends[side].events.push(Event::Message { endpoint, bytes });
        }
    }

    /// Executes the oldest item that a rack has put on the wire; returns false if there is none.
    /// After the end of the connection, a write still lands until its target has seen the end.
    pub fn advance(&mut self, side: usize) -> bool {
        let Some(item) = self.ends[side].queue.pop_front() else { return false };
        let Some(endpoint) = self.ends[side].endpoint else { panic!("an ended end has a queue") };
        match item {
            Item::Message(bytes) if !self.is_cut => self.inject(1 - side, bytes),
            Item::Message(_) => {}
            Item::Operation(WorkRequest { id, operation }) => {
                if self.ends[1 - side].endpoint.is_some() {
                    self.execute(side, operation);
                }
                let result = if self.is_cut { Err(FabricError::PeerGone) } else { Ok(()) };
                self.ends[side].events.push(Event::Completed { endpoint, id, result });
            }
        }
        true
    }

    fn execute(&self, side: usize, operation: Operation) {
        let Transfer { local, local_offset, remote, remote_offset, len } = *operation.transfer();
        let local = &self.ends[side].regions[&local];
        let remote = &self.ends[1 - side].exports[usize::from(remote.0)];
        let mut bytes = vec![0; len as usize];
        let copied = match operation {
            Operation::Read(_) => remote
                .read(remote_offset, &mut bytes)
                .and_then(|()| local.write(local_offset, &bytes)),
            Operation::Write(_) => local
                .read(local_offset, &mut bytes)
                .and_then(|()| remote.write(remote_offset, &bytes)),
        };
        assert_eq!(copied, Ok(()), "checked when it was posted");
    }

    /// Lets a rack see the end of the connection. The operations of the rack and its peer fail, and
    /// their messages are dropped.
    pub fn end(&mut self, side: usize) {
        if !self.is_cut {
            return;
        }
        for poster in [1 - side, side] {
            let Some(endpoint) = self.ends[poster].endpoint else { continue };
            let end = &mut self.ends[poster];
            let unrung = std::mem::take(&mut end.unrung);
            for item in std::mem::take(&mut end.queue).into_iter().chain(unrung) {
                if let Item::Operation(WorkRequest { id, .. }) = item {
                    let result = Err(FabricError::PeerGone);
                    self.ends[poster].events.push(Event::Completed { endpoint, id, result });
                }
            }
        }
        if let Some(endpoint) = self.ends[side].endpoint.take() {
            let reason = DisconnectReason::PeerGone;
            self.ends[side].events.push(Event::Disconnected { endpoint, reason });
        }
    }

    fn check(&self, side: usize, transfer: &Transfer) -> Result<(), FabricError> {
        let Some(local) = self.ends[side].regions.get(&transfer.local) else {
            return Err(FabricError::UnknownRegion { region: transfer.local.0 });
        };
        let Some(remote) = self.ends[1 - side].exports.get(usize::from(transfer.remote.0)) else {
            return Err(FabricError::UnknownRemoteRegion { region: transfer.remote.0 });
        };
        let len = u64::from(transfer.len);
        assert!(len > 0, "a transfer of nothing");
        for (side, offset, region_len) in [
            ("local", transfer.local_offset, local.len()),
            ("remote", transfer.remote_offset, remote.len()),
        ] {
            if offset.checked_add(len).is_none_or(|end| end > region_len) {
                return Err(FabricError::OutOfRange { side, offset, len, region_len });
            }
        }
        Ok(())
    }

    fn open(&mut self, side: usize, endpoint: EndpointId) -> Result<&mut End, FabricError> {
        if self.is_cut || self.ends[side].endpoint != Some(endpoint) {
            return Err(FabricError::PeerGone);
        }
        let end = &mut self.ends[side];
        if end.full > 0 {
            end.full -= 1;
            return Err(FabricError::RingFull);
        }
        Ok(end)
    }
}

/// One rack's end of the wire.
pub struct Wire {
    pub net: Shared,
    pub side: usize,
    wake: File,
}

impl Wire {
    pub fn new(net: Shared, side: usize) -> Self {
        Self { net, side, wake: File::open("/dev/null").expect("it is always there") }
    }
}

impl Fabric for Wire {
    fn register(&mut self, region: Arc<dyn MemoryRegion>) -> RegionId {
        let regions = &mut lock(&self.net).ends[self.side].regions;
        let id = RegionId(regions.len() as u32);
        regions.insert(id, region);
        id
    }

    fn unregister(&mut self, _: RegionId) {
        panic!("nobody unregisters");
    }

    fn connect(&mut self, _: &str) -> Result<EndpointId, FabricError> {
        panic!("the test connects");
    }

    fn post(&mut self, endpoint: EndpointId, list: &[WorkRequest]) -> Result<(), FabricError> {
        let mut net = lock(&self.net);
        for request in list {
            net.check(self.side, request.operation.transfer())?;
        }
        let depth = net.depth;
        let end = net.open(self.side, endpoint)?;
        let is_operation = |item: &&Item| matches!(item, Item::Operation(_));
        let in_flight = end.queue.iter().chain(&end.unrung).filter(is_operation).count();
        assert!(!list.is_empty() && in_flight + list.len() <= depth, "more than the queue holds");
        end.unrung.extend(list.iter().map(|request| Item::Operation(*request)));
        end.lists.push(list.len());
        Ok(())
    }

    fn send(&mut self, endpoint: EndpointId, message: Vec<u8>) -> Result<(), Unsent> {
        assert!((1..=rackpool_fabric::MAX_MESSAGE).contains(&message.len()));
        match lock(&self.net).open(self.side, endpoint) {
            Ok(end) => end.unrung.push_back(Item::Message(message)),
            Err(error) => return Err(Unsent { error, message }),
        }
        Ok(())
    }

    fn flush(&mut self, endpoint: EndpointId) {
        let end = &mut lock(&self.net).ends[self.side];
        if end.endpoint == Some(endpoint) {
            assert!(!end.unrung.is_empty(), "it is rung for nothing");
            end.doorbells.push(end.unrung.len());
            end.queue.append(&mut end.unrung);
        }
    }

    fn poll(&mut self, events: &mut Vec<Event>) {
        events.append(&mut lock(&self.net).ends[self.side].events);
    }

    fn disconnect(&mut self, endpoint: EndpointId) {
        let mut net = lock(&self.net);
        if net.ends[self.side].endpoint == Some(endpoint) {
            net.cut();
        }
    }

    fn arm(&mut self) -> bool {
        false
    }

    fn disarm(&mut self) {}

    fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    fn next_completion(&self) -> Option<Duration> {
        None
    }

    fn queue_depth(&self) -> usize {
        lock(&self.net).depth
    }

    fn address(&self) -> String {
        "test".into()
    }

    fn description(&self) -> String {
        "a wire of a test".into()
    }
}
