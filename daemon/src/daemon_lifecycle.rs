//! Starting, running and stopping the daemon.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context;
use rackpool_access::{Credentials, Party};
use rackpool_fabric::Fabric;
use rackpool_fabric::Keyring;
use rackpool_model::{ByteSize, Incarnation, PageId};
use rackpool_output::UsageError;
use rackpool_proto::lease::LeaseRules;
use rackpool_shm::free_space;
use rackpool_shm::host::HostFiles;
use rackpool_shm::memory::MemoryKind;
use rackpool_sync::eventfd;
use rackpool_wire::metadata::{MetadataReply, MetadataRequest, RackAnnouncement};
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc as async_mpsc;

use crate::DaemonOptions;
use crate::adoption::{Adopted, adopt_clients};
use crate::control::{self, Control};
use crate::data_plane::{
    Command, ControlNotification, DataPlane, Located, Parts, PlaneMetrics, SwapSettings, Waker,
};
use crate::fabric::{self, Buffers};
use crate::link::{MetadataLink, Registered, Requester};
use crate::metadata_connector::MetadataConnector;
use crate::metrics::RackMetrics;
use crate::placement::Placement;
use crate::priority::Priority;
use crate::rack::{Rack, describe};
use crate::reserver::{self, ReserveRules};
use crate::slab::Slab;
use crate::spill_folder::{self, SpillFolder};
use crate::wake_latency::WakeLatency;

/// The operator is warned when the credentials expire within this time.
const RENEWAL: Duration = Duration::from_secs(30 * 86_400);

/// Serves the rack until a signal stops the daemon.
pub fn run(options: &DaemonOptions) -> anyhow::Result<()> {
    // Check all options before anything is created or sent to the metadata server.
    let rules = PlaneRules::of(options).map_err(UsageError::new)?;
    ReserveRules::of(options).map_err(UsageError::new)?;
    options.metrics.map(rackpool_metrics::check).transpose().map_err(UsageError::new)?;
    let metadata_server = MetadataConnector::new(options.metadata.clone(), credentials(options)?);
    fabric::check(options, metadata_server.credentials())?;
    let _wake_latency = options.wake_latency_us.map(WakeLatency::hold).transpose()?;
    let machine = HostFiles::here();
    let mut placement = Placement::choose(options, &machine)
        .and_then(|placement| placement.on(options.cpu, &machine))
        .map_err(UsageError::new)?;
    // Only the log thread exists so far. Threads that start later inherit the affinity.
    placement.make_way()?;
    let rack = Rack::open(options, placement.frames())
        .with_context(|| describe(options.rack, &options.dir))?;
    let rack = Arc::new(rack);
    placement.found_frames(rack.frames_node);
    if placement.is_bound() {
        tracing::info!("{}: {placement}", options.rack);
    } else {
        tracing::debug!("{}: {placement}", options.rack);
    }
    warn_of_limit(&rack, options, &machine);
    if placement.has_too_many() {
        tracing::warn!(
            "{}: this process may use no processor but that of --cpu, so its threads take turns there: allow it more (cpuset, taskset)",
            options.rack
        );
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let serving = serve(options, metadata_server, Arc::clone(&rack), placement, rules);
    let result = runtime.block_on(serving);
    if result.is_err() {
        rack.give_up_unused();
    }
    result
}

/// Warns if the process's memory limit is smaller than the pool's memory: the kernel would kill
/// processes that use the pool, without a message to them.
fn warn_of_limit(rack: &Rack, options: &DaemonOptions, machine: &HostFiles) {
    let Some(limit) = machine.memory_limit() else { return };
    let own = match options.memory_kind {
        // A memfd file is not in the pool's folder, so `free_space::bytes_of` does not count it.
        MemoryKind::Memfd => rack.frames.len(),
        _ => 0,
    };
    let takes = own.saturating_add(free_space::bytes_of(rack.directory.pool()));
    if limit.bytes < takes {
        tracing::warn!(
            "{}: {limit}, and the racks of this pool take {}: the kernel kills processes of the group that use more; {}",
            options.rack,
            ByteSize(takes),
            limit.fix()
        );
    }
}

/// Loads the rack's credentials, if the options name a folder.
fn credentials(options: &DaemonOptions) -> anyhow::Result<Option<Credentials>> {
    let Some(folder) = &options.credentials else { return Ok(None) };
    let credentials = Credentials::load_of(folder, Party::Rack(options.rack))?;
    if credentials.expire_within(RENEWAL) {
        tracing::warn!("the credentials expire within 30 days: `rackpool credentials add --renew`");
    }
    Ok(Some(credentials))
}

/// Returns the rack's announcement to the metadata server.
fn announcement(rack: &Rack, fabric_address: String) -> anyhow::Result<RackAnnouncement> {
    Ok(RackAnnouncement {
        rack: rack.geometry.rack,
        memory: rack.geometry.memory,
        incarnation: rack.incarnation,
        frames: rack.geometry.frames,
        page_bytes: rack.geometry.page_size.bytes(),
        seen: rack.metadata.superblock()?.seen(&rack.directory.metadata())?,
        control_path: rack.directory.control_socket().display().to_string(),
        fabric_address,
    })
}

async fn serve(
    options: &DaemonOptions,
    metadata_server: MetadataConnector,
    rack: Arc<Rack>,
    placement: Placement,
    rules: PlaneRules,
) -> anyhow::Result<()> {
    let keyring = Keyring::awaited();
    let buffers = Buffers::new(&placement, rack.metadata.layout())
        .context("no memory for the buffers of requests")?;
    let fabric = fabric::start(options, &rack, &buffers, keyring.clone())?;
    let description = fabric.description();
    let metrics = Arc::new(PlaneMetrics::default());
    let announcement = announcement(&rack, fabric.address())?;
    // Memory that already has its page ids is served even while the metadata server is away.
    let known = rack.pages()?;
    let (mut link, requester) = MetadataLink::new(
        metadata_server.clone(),
        announcement.clone(),
        Arc::clone(&metrics),
        known,
        keyring,
        options.lease(),
    );
    end_lost_lease(&metadata_server, &announcement, rack.lost).await;
    join(&mut link, &rack, known.is_none()).await?;
    let (notifications, mut noticed) = async_mpsc::unbounded_channel();
    let poll = Duration::from_millis(options.poll_ms.into());
    let StartedPlane { mut plane, waker, adopted: Adopted { orphans, last } } = data_plane(
        &rack,
        Transport { fabric, buffers },
        notifications,
        &metrics,
        known.is_some(),
        poll,
        rules,
    )?;
    reserve_ahead(options, &rack, &waker, &mut plane)?;
    let shown = RackMetrics::of(&rack, &metrics, metadata_server.credentials());
    let scraped = scraped(options.metrics, Arc::new(shown)).await?;
    // Register the handlers before the socket exists: a process that finds the socket may signal
    // this process to stop.
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let (_spill_folder, listener) = admit_clients(options, &rack)?;
    let (ended, mut plane_ended) = async_mpsc::channel(1);
    let (thread, priority) = start(plane, placement.clone(), options.nice, ended)?;
    // This thread receives the metadata server's messages, for which swaps wait. A refusal is not
    // reported here: the data plane's thread is refused as well, and its refusal is reported.
    let _ = Priority::take(options.nice);
    say_what_is_served(options, &rack, &description);
    tracing::info!("{}: data plane at {priority}", options.rack);
    let control = Arc::new(Control {
        rack: Arc::clone(&rack),
        plane: Arc::clone(&waker),
        metadata: requester.clone(),
        metrics,
        fabric: description,
        placement,
        priority,
        last_client: Mutex::new(last),
        orphans: Mutex::default(),
    });
    control::watch_adopted(&control, orphans);
    let result = tokio::select! {
        served = control::serve(listener, Arc::clone(&control)) => served,
        kept = link.keep(Arc::clone(&waker)) => kept,
        () = follow_notifications(&mut noticed, &requester, &control) => Ok(()),
        () = scraped => Ok(()),
        _ = plane_ended.recv() => Ok(()),
        () = crate::process::stdin_closed(options.stop_with_stdin) => Ok(()),
        _ = interrupt.recv() => Ok(()),
        _ = terminate.recv() => Ok(()),
    };
    waker.tell(Command::Stop);
    let plane_result = thread.join().map_err(|_| anyhow::anyhow!("the data plane panicked, which is a defect of rackpool: start the daemon again (the rack's memory is kept) and report the log"))?;
    MetadataLink::leave(&metadata_server, &announcement).await;
    let _ = std::fs::remove_file(rack.directory.control_socket());
    tracing::info!("{} stopped; its memory stays", options.rack);
    result.and(plane_result)
}

/// Ends the lease of the previous daemon if it is known to be dead, so that no other rack waits
/// until the lease expires.
async fn end_lost_lease(
    metadata_server: &MetadataConnector,
    announcement: &RackAnnouncement,
    lost: Option<Incarnation>,
) {
    if let Some(incarnation) = lost {
        let dead = RackAnnouncement { incarnation, ..announcement.clone() };
        MetadataLink::leave(metadata_server, &dead).await;
    }
}

/// Prepares the rack's folder for files, and then the socket by which programs find the rack.
fn admit_clients(
    options: &DaemonOptions,
    rack: &Rack,
) -> anyhow::Result<(Option<SpillFolder>, UnixListener)> {
    let (dir, memory) = (options.spill_dir.as_deref(), rack.geometry.memory);
    let spill_folder = spill_folder::prepare(dir, &rack.directory, memory)?;
    Ok((spill_folder, control::bind(&rack.directory.control_socket())?))
}

/// Starts the reserver thread if the kind of memory has its frames' memory allocated on demand.
fn reserve_ahead(
    options: &DaemonOptions,
    rack: &Arc<Rack>,
    waker: &Arc<Waker>,
    plane: &mut DataPlane,
) -> anyhow::Result<()> {
    if let Some(rules) = ReserveRules::of(options)? {
        plane.reserve_with(reserver::start(Arc::clone(rack), Arc::clone(waker))?, rules);
    }
    Ok(())
}

/// Registers the rack. `is_new` memory is given its page ids.
async fn join(link: &mut MetadataLink, rack: &Rack, is_new: bool) -> anyhow::Result<()> {
    let registered = link.register(is_new).await;
    if registered.is_err() && link.may_be_registered() {
        rack.keep();
    }
    if let Some(Registered { pages, position }) = registered? {
        // Store the position before acting on the registration.
        rack.metadata.superblock()?.set_seen(position);
        if is_new {
            rack.bind_pages(pages.first)?;
            link.remember(pages);
        }
    }
    Ok(())
}

/// Returns a future that serves the metrics for ever, or never does anything without an address.
async fn scraped(
    address: Option<SocketAddr>,
    metrics: Arc<RackMetrics>,
) -> anyhow::Result<impl Future<Output = ()>> {
    let listener = match address {
        Some(address) => Some(rackpool_metrics::bind(address).await?),
        None => None,
    };
    Ok(async move {
        match listener {
            Some(listener) => match rackpool_metrics::serve(listener, metrics).await {},
            None => std::future::pending().await,
        }
    })
}

fn say_what_is_served(options: &DaemonOptions, rack: &Rack, fabric: &str) {
    tracing::info!(
        "{} serves {} frames of {}, {fabric}",
        describe(options.rack, &options.dir),
        rack.geometry.frames,
        rack.geometry.page_size
    );
    tracing::info!("{}: memory of kind {}", options.rack, rack.memory);
}

/// The lease and swap rules that the options give.
struct PlaneRules {
    leases: LeaseRules,
    swaps: SwapSettings,
}

impl PlaneRules {
    fn of(options: &DaemonOptions) -> anyhow::Result<Self> {
        let swaps = options.swaps.settings(options.bandwidth_gbps, options.page_size.0)?;
        Ok(Self { leases: LeaseRules::of(options.lease()), swaps })
    }
}

/// The fabric, and the buffers that it uses for requests.
struct Transport {
    fabric: Box<dyn Fabric>,
    buffers: Buffers,
}

/// A data plane that has adopted what an earlier daemon left.
struct StartedPlane {
    plane: DataPlane,
    waker: Arc<Waker>,
    /// The clients of the earlier daemon.
    adopted: Adopted,
}

/// Starts the data plane's thread, binds it to its placement and sets its priority. The thread
/// reports its end through `ended`.
fn start(
    plane: DataPlane,
    placement: Placement,
    nice: i32,
    ended: async_mpsc::Sender<()>,
) -> anyhow::Result<(JoinHandle<anyhow::Result<()>>, Priority)> {
    let (taken, priority) = mpsc::channel();
    let thread = std::thread::Builder::new().name("data-plane".into()).spawn(move || {
        let _ = taken.send(Priority::take(nice));
        let result = placement.bind_thread().and_then(|()| Ok(plane.run()?));
        // The receiver is gone if the daemon is stopping anyway.
        let _ = ended.blocking_send(());
        result
    })?;
    Ok((thread, priority.recv().context("the data plane did not start")?))
}

/// Creates the data plane, which adopts everything that an earlier daemon left.
fn data_plane(
    rack: &Arc<Rack>,
    Transport { fabric, buffers }: Transport,
    notifications: async_mpsc::UnboundedSender<ControlNotification>,
    metrics: &Arc<PlaneMetrics>,
    restarted: bool,
    poll: Duration,
    rules: PlaneRules,
) -> anyhow::Result<StartedPlane> {
    let (commands, receiver) = mpsc::channel();
    let wake = eventfd::new()?;
    let waker = Arc::new(Waker::new(commands, wake.try_clone()?));
    let first = rack.pages()?.context("the rack has no page ids")?.first;
    let slab = Slab::adopt(
        Arc::clone(&rack.metadata),
        rack.marks.clone(),
        rack.geometry.page_size,
        first,
    )?;
    let mut plane = DataPlane::new(Parts {
        rack: Arc::clone(rack),
        slab,
        fabric,
        in_flight: buffers.in_flight(),
        buffers: buffers.memory,
        commands: receiver,
        notifications,
        metrics: Arc::clone(metrics),
        wake,
        poll,
        restarted,
        lease_rules: rules.leases,
        swap: rules.swaps,
    })?;
    let adopted = adopt_clients(rack, &mut plane)?;
    plane.begin()?;
    plane.resume_exchanges()?;
    Ok(StartedPlane { plane, waker, adopted })
}

async fn follow_notifications(
    notifications: &mut async_mpsc::UnboundedReceiver<ControlNotification>,
    requester: &Requester,
    control: &Arc<Control>,
) {
    while let Some(notification) = notifications.recv().await {
        match notification {
            ControlNotification::Meet => requester.hurry(),
            ControlNotification::Locate(page) => answer_where(page, 0, requester, control),
            ControlNotification::Find { page, question } => {
                answer_where(page, question, requester, control);
            }
            ControlNotification::TellServer(message) => requester.tell(message),
            ControlNotification::Reclaimed(client) => {
                if let Err(error) = std::fs::remove_file(control.rack.directory.client(client)) {
                    tracing::warn!("can't remove the file of client {}: {error}", client.0);
                }
            }
        }
    }
}

/// Asks the metadata server for a page's home, and passes the answer to the data plane.
fn answer_where(page: PageId, question: u64, requester: &Requester, control: &Arc<Control>) {
    let (requester, control) = (requester.clone(), Arc::clone(control));
    tokio::spawn(async move {
        let home = locate(&requester, page).await;
        control.plane.tell(Command::Located { page, question, home });
    });
}

async fn locate(requester: &Requester, page: PageId) -> Located {
    match requester.ask(MetadataRequest::Locate { page }).await {
        Some(MetadataReply::Located { home, .. }) => Located::Home(home),
        Some(MetadataReply::NoSuchPage) => Located::NoSuchPage,
        Some(MetadataReply::PageLost) => Located::Lost,
        _ => Located::Unreachable,
    }
}
