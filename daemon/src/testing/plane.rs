use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use rackpool_config::ConfigFile;
use rackpool_fabric::{DisconnectReason, EndpointId, Event, MemoryRegion};
use rackpool_model::{
    ByteSize, ClientId, FabricKind, GlobalAddr, Incarnation, PageId, PageSize, RackId,
};
use rackpool_proto::lease::LeaseRules;
use rackpool_ring::client_file::ClientFile;
use rackpool_ring::sparse_array::ARRAY_CELLS;
use rackpool_rrpc::InFlightLimits;
use rackpool_shm::Mapping;
use rackpool_shm::memory::{FramesNode, MemoryKind};
use rackpool_shm::metadata::{MetadataLayout, RackMetadata};
use rackpool_shm::superblock::SUPERBLOCK_BYTES;
use rackpool_wire::metadata::Member;
use rackpool_wire::swap::FromServer;
use rustix::event::{EventfdFlags, eventfd};
use tokio::sync::{mpsc as async_mpsc, oneshot};

use super::fabric::{Scene, Stage, lock};
use crate::DaemonOptions;
use crate::data_plane::{
    Command, ControlNotification, DataPlane, Located, MemoryMetrics, Parts, PlaneMetrics,
};
use crate::fabric::Buffers;
use crate::placement::NodeChoice;
use crate::placement::Placement;
use crate::rack::Rack;
use crate::reserver::{Order, ReserveRules};
use crate::slab::Slab;
use crate::swap_options::SwapOptions;

/// The rack that the data plane serves.
const RACK_ID: RackId = RackId(0);
static FOLDERS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Mapped files are reused: faulting them in would take longer than the rest of a run.
    static RACK: RefCell<Option<Memory>> = const { RefCell::new(None) };
    static FILES: RefCell<Vec<ClientUnderTest>> = const { RefCell::new(Vec::new()) };
}

/// A rack whose files are unlinked.
#[derive(Clone)]
struct Memory {
    rack: Arc<Rack>,
    metadata: Arc<Mapping>,
    buffers: Arc<dyn MemoryRegion>,
}

/// A data plane without threads, sockets and clock.
pub struct PlaneUnderTest {
    memory: Memory,
    plane: DataPlane,
    scene: Arc<Mutex<Scene>>,
    commands: mpsc::Sender<Command>,
    notifications: async_mpsc::UnboundedReceiver<ControlNotification>,
    clients: BTreeMap<ClientId, ClientUnderTest>,
    now: Instant,
    /// Frames whose memory is to be reserved, where frames have none of their own.
    orders: Option<mpsc::Receiver<Order>>,
    /// The numbers of the machine's last questions to the metadata server.
    questions: BTreeMap<PageId, u64>,
}

/// A client's file as its process maps it.
pub struct ClientUnderTest {
    file: ClientFile,
    /// The whole file, for writing arbitrary bytes.
    bytes: Mapping,
    served: Arc<ClientFile>,
}

impl Memory {
    /// Returns a rack without objects.
    fn blank() -> anyhow::Result<Self> {
        let memory = match RACK.with_borrow_mut(Option::take) {
            Some(memory) => memory,
            None => Self::open()?,
        };
        let past = MetadataLayout::new(PlaneUnderTest::page_size(), PlaneUnderTest::FRAMES).bytes();
        wipe(&memory.metadata, SUPERBLOCK_BYTES, past)?;
        memory.rack.bind_pages(PlaneUnderTest::FIRST)?;
        Ok(memory)
    }

    fn open() -> anyhow::Result<Self> {
        let number = FOLDERS.fetch_add(1, Ordering::Relaxed);
        // Rack memory lies on a memory file system.
        let folder = std::path::Path::new("/dev/shm");
        let dir = folder.join(format!("rackpool-test-{}-{number}", std::process::id()));
        let page_size = PlaneUnderTest::page_size().bytes();
        let options = DaemonOptions {
            release_free_after_s: None,
            spill_dir: None,
            metrics: None,
            config: ConfigFile::default(),
            credentials: None,
            rack: RACK_ID,
            rack_daemons: Vec::new(),
            dir: dir.clone(),
            metadata: String::new(),
            memory: ByteSize(u64::from(PlaneUnderTest::FRAMES) * page_size),
            memory_kind: MemoryKind::Tmpfs,
            cxl_latency_ns: 0,
            fabric: FabricKind::Emulated,
            fabric_listen: None,
            rdma_device: None,
            rdma_port: None,
            gid_index: None,
            numa_node: NodeChoice::Anywhere,
            frames_node: NodeChoice::Anywhere,
            cpu: None,
            nice: 0,
            wake_latency_us: None,
            poll_ms: 0,
            page_size: ByteSize(page_size),
            latency_us: 0.0,
            bandwidth_gbps: 1.0,
            lease_ms: 2000,
            swaps: SwapOptions::default(),
            stop_with_stdin: false,
        };
        let rack = Arc::new(Rack::open(&options, FramesNode::Anywhere)?);
        let metadata =
            std::fs::OpenOptions::new().read(true).write(true).open(rack.directory.metadata())?;
        let metadata = Arc::new(Mapping::new(&metadata, rack.metadata.layout().bytes())?);
        std::fs::remove_dir_all(&dir)?;
        let buffers = Buffers::new(&Placement::anywhere("a test"), rack.metadata.layout())?.memory;
        Ok(Self { rack, metadata, buffers })
    }
}

/// Zeroes a range of bytes.
fn wipe(memory: &Mapping, from: u64, to: u64) -> anyhow::Result<()> {
    let zeroes = [0; 4096];
    for at in (from..to).step_by(zeroes.len()) {
        let len = usize::try_from(to - at).map_or(zeroes.len(), |left| left.min(zeroes.len()));
        memory.write(at, &zeroes[..len])?;
    }
    Ok(())
}

impl ClientUnderTest {
    /// Returns an empty file for `threads` threads.
    fn blank(threads: u16) -> anyhow::Result<Self> {
        let known = FILES.with_borrow_mut(|files| {
            let at = files.iter().position(|file| file.file.threads() == threads)?;
            Some(files.swap_remove(at))
        });
        let client = match known {
            Some(client) => client,
            None => Self::open(threads)?,
        };
        // Only the fabric uses the data ring.
        wipe(&client.bytes, 0, client.file.data_offset())?;
        // Without their high-water marks the sparse arrays are empty. Tests use their first cells.
        let marks = ClientFile::transfer_bytes(threads);
        wipe(&client.bytes, marks, marks + 8192)?;
        let pins = marks + 4096 + (ARRAY_CELLS * size_of::<u64>()) as u64;
        wipe(&client.bytes, pins, pins + 4096)?;
        Ok(client)
    }

    fn open(threads: u16) -> anyhow::Result<Self> {
        let bytes = ClientFile::bytes(threads);
        let file = rustix::fs::memfd_create("client", rustix::fs::MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&file, bytes)?;
        let map = || Mapping::new(&file, bytes);
        let (file, served) = (ClientFile::new(map()?, threads)?, ClientFile::new(map()?, threads)?);
        Ok(Self { file, bytes: map()?, served: Arc::new(served) })
    }

    /// Returns the file's structures.
    #[must_use]
    pub const fn file(&self) -> &ClientFile {
        &self.file
    }

    /// Returns the file's bytes.
    #[must_use]
    pub const fn bytes(&self) -> &Mapping {
        &self.bytes
    }
}

impl PlaneUnderTest {
    /// The first page id of the rack.
    pub const FIRST: PageId = PageId(100);
    /// Number of frames of the rack.
    pub const FRAMES: u32 = 16;

    /// Returns the page size of the rack.
    #[must_use]
    pub fn page_size() -> PageSize {
        PageSize::from_bytes(4096).unwrap_or(PageSize::DEFAULT)
    }

    /// Starts a daemon that has just formatted its rack.
    pub fn new() -> anyhow::Result<Self> {
        let memory = Memory::blank()?;
        let (scene, clients) = (Arc::default(), BTreeMap::new());
        let Started { plane, commands, notifications } = start(&memory, &scene, &clients, false)?;
        let now = Instant::now();
        let (orders, questions) = (None, BTreeMap::new());
        Ok(Self { memory, plane, scene, commands, notifications, clients, now, orders, questions })
    }

    /// Kills the daemon and starts it again.
    pub fn restart(&mut self) -> anyhow::Result<()> {
        *lock(&self.scene) = Scene::default();
        let Started { plane, commands, notifications } =
            start(&self.memory, &self.scene, &self.clients, true)?;
        (self.plane, self.commands, self.notifications) = (plane, commands, notifications);
        Ok(())
    }

    fn tell(&self, command: Command) -> anyhow::Result<()> {
        Ok(self.commands.send(command)?)
    }

    /// Opens the pool for a client.
    pub fn open(&mut self, id: ClientId, threads: u16) -> anyhow::Result<()> {
        if self.clients.contains_key(&id) {
            return Ok(());
        }
        let client = ClientUnderTest::blank(threads)?;
        let file = Some(Arc::clone(&client.served));
        self.clients.insert(id, client);
        self.admit(id, file)
    }

    /// Reconnects a client to a restarted daemon.
    pub fn come_back(&self, id: ClientId) -> anyhow::Result<()> {
        self.admit(id, None)
    }

    fn admit(&self, client: ClientId, file: Option<Arc<ClientFile>>) -> anyhow::Result<()> {
        let doorbell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (admitted, _) = oneshot::channel();
        self.tell(Command::Admit { client, file, doorbell, admitted })
    }

    /// Returns the client's file while the client is known.
    #[must_use]
    pub fn client(&self, id: ClientId) -> Option<&ClientUnderTest> {
        self.clients.get(&id)
    }

    /// Returns the daemon's incarnation, for requests.
    #[must_use]
    pub fn life(&self) -> u64 {
        self.memory.rack.incarnation.0
    }

    /// Reports the end of a client's process.
    pub fn kill(&mut self, id: ClientId) -> anyhow::Result<()> {
        self.tell(Command::Gone { client: id })
    }

    /// Passes the pool's members as the metadata server names them.
    pub fn members(&self, members: Vec<Member>) -> anyhow::Result<()> {
        self.tell(Command::Members(members))
    }

    /// Passes the metadata server's answer to the last question about a page's home; `None`: there
    /// is no such page.
    pub fn located(&self, page: PageId, home: Option<RackId>) -> anyhow::Result<()> {
        let question = self.questions.get(&page).copied().unwrap_or(0);
        let home = home.map_or(Located::NoSuchPage, Located::Home);
        self.tell(Command::Located { page, question, home })
    }

    /// Passes a swap message of the metadata server.
    pub fn server_sent(&self, message: FromServer) -> anyhow::Result<()> {
        self.tell(Command::ServerSent(message))
    }

    /// Connects another rack to this one.
    pub fn accept(&self, peer: RackId) -> EndpointId {
        let mut scene = lock(&self.scene);
        let endpoint = scene.endpoint();
        let incarnation = Incarnation(1);
        scene.opened(endpoint, Event::Accepted { endpoint, peer, incarnation });
        endpoint
    }

    /// Completes the oldest connection attempt of this rack: with the peer `peer`, or as failed.
    pub fn connect(&self, peer: Option<RackId>) -> Option<EndpointId> {
        let mut scene = lock(&self.scene);
        if scene.connecting.is_empty() {
            return None;
        }
        let (endpoint, _) = scene.connecting.remove(0);
        let incarnation = Incarnation(1);
        match peer {
            Some(peer) => scene.opened(endpoint, Event::Connected { endpoint, peer, incarnation }),
            None => {
                let error = rackpool_fabric::FabricError::PeerGone;
                scene.events.push(Event::ConnectFailed { endpoint, error });
            }
        }
        Some(endpoint)
    }

    /// Delivers a message if the endpoint is open.
    pub fn message(&self, endpoint: EndpointId, bytes: &[u8]) {
        let mut scene = lock(&self.scene);
        if scene.open.contains(&endpoint) {
            scene.events.push(Event::Message { endpoint, bytes: bytes.to_vec() });
        }
    }

    /// Ends an endpoint.
    pub fn disconnect(&self, endpoint: EndpointId, reason: DisconnectReason) {
        lock(&self.scene).end(endpoint, reason);
    }

    /// Completes the transfers in progress; the next `full` posts and messages are refused.
    pub fn complete(&self, full: u8) {
        let mut scene = lock(&self.scene);
        scene.complete();
        scene.full = full;
    }

    /// Returns true if the endpoint can be used.
    #[must_use]
    pub fn is_open(&self, endpoint: EndpointId) -> bool {
        lock(&self.scene).open.contains(&endpoint)
    }

    /// Starts (or ends) the need that no other rack has a lease of the page.
    pub fn need(&mut self, page: PageId, is_needed: bool) -> anyhow::Result<()> {
        Ok(self.plane.require_page(page, is_needed)?)
    }

    /// Makes the data plane request a copy of a page whose home has refused a swap because the page
    /// is read-hot there too.
    pub fn want_copy(&mut self, page: PageId) -> anyhow::Result<()> {
        Ok(self.plane.want_copy(page)?)
    }

    /// Returns the messages that the daemon sent since the last call.
    #[must_use]
    pub fn sent(&self) -> Vec<(EndpointId, Vec<u8>)> {
        lock(&self.scene).take_sent()
    }

    /// From now on free frames have no memory until [`reserve`](Self::reserve) gets it for one.
    pub fn reserve_on_demand(&mut self) {
        let (orders, receiver) = mpsc::channel();
        self.plane.reserve_with(orders, ReserveRules { stock: 1, release_after: None });
        self.orders = Some(receiver);
    }

    /// Gets the memory of the next frame that was ordered. Returns whether there was one.
    pub fn reserve(&self) -> anyhow::Result<bool> {
        let order = self.orders.as_ref().and_then(|orders| orders.try_recv().ok());
        if let Some(Order::Reserve(frame)) = order {
            self.tell(Command::Reserved { frame, is_there: true })?;
        }
        Ok(order.is_some())
    }

    /// Runs one round of the poll loop, `later` after the previous one. Forgets reclaimed clients.
    pub fn step(&mut self, later: Duration) -> anyhow::Result<()> {
        self.now += later;
        self.plane.step(self.now)?;
        while let Ok(notification) = self.notifications.try_recv() {
            match notification {
                ControlNotification::Reclaimed(client) => {
                    FILES.with_borrow_mut(|files| files.extend(self.clients.remove(&client)));
                }
                ControlNotification::Find { page, question } => {
                    self.questions.insert(page, question);
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns the rack's metadata.
    #[must_use]
    pub fn metadata(&self) -> &RackMetadata {
        &self.memory.rack.metadata
    }

    /// Returns what the rack's memory holds.
    #[must_use]
    pub fn metrics(&self) -> MemoryMetrics {
        self.plane.memory_metrics()
    }

    /// Returns the number of free frames that the daemon publishes.
    #[must_use]
    pub fn published_free_frames(&self) -> u64 {
        self.plane.published_free_frames()
    }

    /// Returns true if the address is an allocated object of this rack.
    #[must_use]
    pub fn has_object(&self, addr: GlobalAddr) -> bool {
        self.plane.has_object(addr)
    }
}

impl Drop for PlaneUnderTest {
    fn drop(&mut self) {
        let clients = std::mem::take(&mut self.clients).into_values();
        FILES.with_borrow_mut(|files| files.extend(clients));
        RACK.set(Some(self.memory.clone()));
    }
}

/// A data plane with the other ends of its channels.
struct Started {
    plane: DataPlane,
    commands: mpsc::Sender<Command>,
    notifications: async_mpsc::UnboundedReceiver<ControlNotification>,
}

fn start(
    memory: &Memory,
    scene: &Arc<Mutex<Scene>>,
    clients: &BTreeMap<ClientId, ClientUnderTest>,
    restarted: bool,
) -> anyhow::Result<Started> {
    let (commands, receiver) = mpsc::channel();
    let (notifications, noticed) = async_mpsc::unbounded_channel();
    let rack = &memory.rack;
    let metadata = Arc::clone(&rack.metadata);
    let slab =
        Slab::adopt(metadata, rack.marks.clone(), rack.geometry.page_size, PlaneUnderTest::FIRST)?;
    let mut plane = DataPlane::new(Parts {
        rack: Arc::clone(rack),
        slab,
        fabric: Box::new(Stage::new(Arc::clone(scene))?),
        buffers: Arc::clone(&memory.buffers),
        in_flight: InFlightLimits::default(),
        commands: receiver,
        notifications,
        metrics: Arc::new(PlaneMetrics::default()),
        wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        poll: Duration::ZERO,
        restarted,
        lease_rules: LeaseRules::DEFAULT,
        swap: SwapOptions::default().settings(1.0, rack.geometry.page_size.bytes())?,
    })?;
    for (id, client) in clients {
        plane.adopt(*id, Arc::clone(&client.served));
    }
    plane.begin()?;
    plane.resume_exchanges()?;
    Ok(Started { plane, commands, notifications: noticed })
}
