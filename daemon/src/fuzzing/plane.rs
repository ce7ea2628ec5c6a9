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
use rackpool_shm::Mapping;
use rackpool_shm::memory::MemoryKind;
use rackpool_shm::metadata::{MetadataLayout, RackMetadata};
use rackpool_shm::superblock::SUPERBLOCK_BYTES;
use rackpool_wire::metadata::Member;
use rackpool_wire::swap::FromServer;
use rustix::event::{EventfdFlags, eventfd};
use tokio::sync::{mpsc as async_mpsc, oneshot};

use super::fabric::{Scene, Stage, lock};
use crate::Options;
use crate::fabric::Buffers;
use crate::placement::NodeChoice;
use crate::placement::Placement;
use crate::plane::{Command, ControlNotification, DataPlane, Located, Parts, PlaneMetrics};
use crate::rack::Rack;
use crate::reserver::{Order, ReserveRules};
use crate::slab::Slab;
use crate::swap_options::SwapOptions;

/// The rack that is served.
const RACK_ID: RackId = RackId(0);
static FOLDERS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Files are mapped once and used again: faulting them in takes longer than all the rest.
    static RACK: RefCell<Option<Memory>> = const { RefCell::new(None) };
    static FILES: RefCell<Vec<ClientUnderTest>> = const { RefCell::new(Vec::new()) };
}

/// A rack whose files have no name any more.
#[derive(Clone)]
struct Memory {
    rack: Arc<Rack>,
    metadata: Arc<Mapping>,
    buffers: Arc<dyn MemoryRegion>,
}

/// A data plane without its threads, sockets and clock.
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
}

/// A client's file as its process has it.
pub struct ClientUnderTest {
    file: ClientFile,
    /// The whole file, to write any bytes into.
    bytes: Mapping,
    served: Arc<ClientFile>,
}

impl Memory {
    /// A rack without objects.
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
        // A rack's memory lies on a file system that is memory.
        let folder = std::path::Path::new("/dev/shm");
        let dir = folder.join(format!("rackpool-fuzz-{}-{number}", std::process::id()));
        let page_size = PlaneUnderTest::page_size().bytes();
        let rack = Arc::new(Rack::open(&Options {
            release_free_after_s: None,
            metrics: None,
            config: ConfigFile::default(),
            credentials: None,
            rack: RACK_ID,
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
        })?);
        let metadata =
            std::fs::OpenOptions::new().read(true).write(true).open(rack.directory.metadata())?;
        let metadata = Arc::new(Mapping::new(&metadata, rack.metadata.layout().bytes())?);
        std::fs::remove_dir_all(&dir)?;
        let buffers = Buffers::new(&Placement::anywhere("a test"), rack.metadata.layout())?.memory;
        Ok(Self { rack, metadata, buffers })
    }
}

/// Makes the bytes of a range zeroes.
fn wipe(memory: &Mapping, from: u64, to: u64) -> anyhow::Result<()> {
    let zeroes = [0; 4096];
    for at in (from..to).step_by(zeroes.len()) {
        let len = usize::try_from(to - at).map_or(zeroes.len(), |left| left.min(zeroes.len()));
        memory.write(at, &zeroes[..len])?;
    }
    Ok(())
}

impl ClientUnderTest {
    /// A new file for so many threads.
    fn blank(threads: u16) -> anyhow::Result<Self> {
        let known = FILES.with_borrow_mut(|files| {
            let at = files.iter().position(|file| file.file.threads() == threads)?;
            Some(files.swap_remove(at))
        });
        let client = match known {
            Some(client) => client,
            None => Self::open(threads)?,
        };
        // The data ring is nobody's but the fabric's.
        wipe(&client.bytes, 0, client.file.data_offset())?;
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

    /// The file's structures.
    #[must_use]
    pub const fn file(&self) -> &ClientFile {
        &self.file
    }

    /// The file's bytes.
    #[must_use]
    pub const fn bytes(&self) -> &Mapping {
        &self.bytes
    }
}

impl PlaneUnderTest {
    /// The first page of the rack.
    pub const FIRST: PageId = PageId(100);
    /// Its frames.
    pub const FRAMES: u32 = 16;

    /// The page size of the rack.
    #[must_use]
    pub fn page_size() -> PageSize {
        PageSize::from_bytes(4096).unwrap_or(PageSize::DEFAULT)
    }

    /// A daemon that has just formatted its rack.
    pub fn new() -> anyhow::Result<Self> {
        let memory = Memory::blank()?;
        let (scene, clients) = (Arc::default(), BTreeMap::new());
        let (plane, commands, notifications) = start(&memory, &scene, &clients, false)?;
        let now = Instant::now();
        Ok(Self { memory, plane, scene, commands, notifications, clients, now, orders: None })
    }

    /// The daemon is killed and started again.
    pub fn restart(&mut self) -> anyhow::Result<()> {
        *lock(&self.scene) = Scene::default();
        let (plane, commands, notifications) =
            start(&self.memory, &self.scene, &self.clients, true)?;
        (self.plane, self.commands, self.notifications) = (plane, commands, notifications);
        Ok(())
    }

    fn tell(&self, command: Command) -> anyhow::Result<()> {
        Ok(self.commands.send(command)?)
    }

    /// A client opens the pool.
    pub fn open(&mut self, id: ClientId, threads: u16) -> anyhow::Result<()> {
        if self.clients.contains_key(&id) {
            return Ok(());
        }
        let client = ClientUnderTest::blank(threads)?;
        let file = Some(Arc::clone(&client.served));
        self.clients.insert(id, client);
        self.admit(id, file)
    }

    /// A client comes back to a restarted daemon.
    pub fn come_back(&self, id: ClientId) -> anyhow::Result<()> {
        self.admit(id, None)
    }

    fn admit(&self, client: ClientId, file: Option<Arc<ClientFile>>) -> anyhow::Result<()> {
        let doorbell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (admitted, _) = oneshot::channel();
        self.tell(Command::Admit { client, file, doorbell, admitted })
    }

    /// What a client maps, as long as it lives.
    #[must_use]
    pub fn client(&self, id: ClientId) -> Option<&ClientUnderTest> {
        self.clients.get(&id)
    }

    /// The life of the daemon, for requests.
    #[must_use]
    pub fn life(&self) -> u64 {
        self.memory.rack.incarnation.0
    }

    /// A client dies.
    pub fn kill(&mut self, id: ClientId) -> anyhow::Result<()> {
        self.tell(Command::Gone { client: id })
    }

    /// The metadata server names the members of the pool.
    pub fn members(&self, members: Vec<Member>) -> anyhow::Result<()> {
        self.tell(Command::Members(members))
    }

    /// The metadata server says which rack is a page's home; `None`: there is no such page.
    pub fn located(&self, page: PageId, home: Option<RackId>) -> anyhow::Result<()> {
        self.tell(Command::Located { page, home: home.map_or(Located::NoSuchPage, Located::Home) })
    }

    /// The metadata server says something about a swap.
    pub fn server_sent(&self, message: FromServer) -> anyhow::Result<()> {
        self.tell(Command::ServerSent(message))
    }

    /// A rack connects to this one.
    pub fn accept(&self, peer: RackId) -> EndpointId {
        let mut scene = lock(&self.scene);
        let endpoint = scene.endpoint();
        scene.open.push(endpoint);
        scene.events.push(Event::Accepted { endpoint, peer, incarnation: Incarnation(1) });
        endpoint
    }

    /// The oldest connection that this rack began is made, with whoever says to be there, or fails.
    pub fn connect(&self, peer: Option<RackId>) -> Option<EndpointId> {
        let mut scene = lock(&self.scene);
        if scene.connecting.is_empty() {
            return None;
        }
        let (endpoint, _) = scene.connecting.remove(0);
        let incarnation = Incarnation(1);
        let event = match peer {
            Some(peer) => Event::Connected { endpoint, peer, incarnation },
            None => {
                let error = rackpool_fabric::FabricError::PeerGone;
                Event::ConnectFailed { endpoint, error }
            }
        };
        if peer.is_some() {
            scene.open.push(endpoint);
        }
        scene.events.push(event);
        Some(endpoint)
    }

    /// A message arrives, if the endpoint is open.
    pub fn message(&self, endpoint: EndpointId, bytes: &[u8]) {
        let mut scene = lock(&self.scene);
        if scene.open.contains(&endpoint) {
            scene.events.push(Event::Message { endpoint, bytes: bytes.to_vec() });
        }
    }

    /// An endpoint ends.
    pub fn disconnect(&self, endpoint: EndpointId, reason: DisconnectReason) {
        lock(&self.scene).end(endpoint, reason);
    }

    /// The transfers under way are done; so many of the next posts and messages find no room.
    pub fn complete(&self, full: u8) {
        let mut scene = lock(&self.scene);
        scene.complete();
        scene.full = full;
    }

    /// Whether the endpoint can be used.
    #[must_use]
    pub fn is_open(&self, endpoint: EndpointId) -> bool {
        lock(&self.scene).open.contains(&endpoint)
    }

    /// Nobody may use a page of this rack from afar any more, or everybody may again.
    pub fn need(&mut self, page: PageId, is_needed: bool) -> anyhow::Result<()> {
        self.plane.need(page, is_needed)
    }

    /// The home of a page has refused it: it is read-hot there too.
    pub fn want_copy(&mut self, page: PageId) -> anyhow::Result<()> {
        self.plane.want_copy(page)
    }

    /// Messages that the daemon sent since the last call.
    #[must_use]
    pub fn sent(&self) -> Vec<(EndpointId, Vec<u8>)> {
        std::mem::take(&mut lock(&self.scene).sent)
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

    /// One round of the poll loop, so much later. Clients of which nothing is left are forgotten.
    pub fn step(&mut self, later: Duration) -> anyhow::Result<()> {
        self.now += later;
        self.plane.step(self.now)?;
        while let Ok(notification) = self.notifications.try_recv() {
            if let ControlNotification::Reclaimed(client) = notification {
                FILES.with_borrow_mut(|files| files.extend(self.clients.remove(&client)));
            }
        }
        Ok(())
    }

    /// The rack's metadata.
    #[must_use]
    pub fn metadata(&self) -> &RackMetadata {
        &self.memory.rack.metadata
    }

    /// Frames without a page, bytes in objects in use, and whether pages are leaving.
    #[must_use]
    pub fn metrics(&self) -> (u32, u64, bool) {
        self.plane.memory_measurements()
    }

    /// How many frames without a page others are told of.
    #[must_use]
    pub fn published_free_frames(&self) -> u64 {
        self.plane.published_free_frames()
    }

    /// Whether the address is an object of this rack in use.
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

type Started =
    (DataPlane, mpsc::Sender<Command>, async_mpsc::UnboundedReceiver<ControlNotification>);

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
        plane.adopt(*id, Arc::clone(&client.served))?;
    }
    plane.finish_served()?;
    plane.resume_exchanges()?;
    Ok((plane, commands, noticed))
}
