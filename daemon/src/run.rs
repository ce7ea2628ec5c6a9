//! Starting, running and stopping the daemon.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use anyhow::Context;
use rackpool_fabric::Fabric;
use rackpool_fabric::emulated::{EmulatedFabric, EmulatedOptions, ExportedRegion};
use rackpool_model::{ClientId, PageId};
use rackpool_ring::client_file::{ClientFile, MAX_THREADS};
use rackpool_shm::directory::RackDirectory;
use rackpool_shm::superblock::FileKind;
use rackpool_shm::{Mapping, file};
use rackpool_wire::metadata::{MetadataReply, MetadataRequest, RackAnnouncement};
use rustix::event::{EventfdFlags, eventfd};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc as async_mpsc;

use crate::Options;
use crate::control::{self, Control};
use crate::link::{Asker, Link};
use crate::plane::{Command, DataPlane, Figures, Located, Notice, Parts, Waker};
use crate::rack::{Rack, describe};
use crate::region::PeerMapper;
use crate::slab::Slab;

/// Serves the rack until a signal ends it.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let rack = Arc::new(Rack::open(options).with_context(|| describe(options.rack, &options.dir))?);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(serve(options, rack))
}

async fn serve(options: &Options, rack: Arc<Rack>) -> anyhow::Result<()> {
    let fabric = fabric(options, &rack)?;
    let description = fabric.description();
    let figures = Arc::new(Figures::default());
    let announcement = RackAnnouncement {
        rack: rack.geometry.rack,
        memory: rack.geometry.memory,
        incarnation: rack.incarnation,
        frames: rack.geometry.frames,
        page_bytes: rack.geometry.page_size.bytes(),
        control_path: rack.directory.control_socket().display().to_string(),
        fabric_address: fabric.address(),
    };
    // Memory that has its page ids can be served while the metadata server is away.
    let known = rack.pages()?;
    let address = options.metadata.clone();
    let (mut link, asker) = Link::new(address, announcement.clone(), Arc::clone(&figures), known);
    let registered = link.register(known.is_none()).await?;
    if let (None, Some(pages)) = (known, registered) {
        rack.bind_pages(pages.first)?;
        link.remember(pages);
    }
    let (notices, mut noticed) = async_mpsc::unbounded_channel();
    let (plane, waker, orphans) =
        data_plane(&rack, Box::new(fabric), notices, &figures, known.is_some())?;
    let listener = control::bind(&rack.directory.control_socket())?;
    let (ended, mut plane_ended) = async_mpsc::channel(1);
    let thread = std::thread::Builder::new().name("data-plane".into()).spawn(move || {
        let result = plane.run();
        // Nobody waits for it when the daemon is ending anyway.
        let _ = ended.blocking_send(());
        result
    })?;
    tracing::info!(
        "{} serves {} frames of {}, {description}",
        describe(options.rack, &options.dir),
        rack.geometry.frames,
        rack.geometry.page_size
    );
    let control = Arc::new(Control {
        rack: Arc::clone(&rack),
        plane: Arc::clone(&waker),
        metadata: asker.clone(),
        figures,
        fabric: description,
        last_client: Mutex::new(orphans.iter().map(|client| client.0).max().unwrap_or(0)),
        orphans: Mutex::default(),
    });
    control::watch_adopted(&control, orphans);
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let result = tokio::select! {
        served = control::serve(listener, Arc::clone(&control)) => served,
        kept = link.keep(Arc::clone(&waker)) => kept,
        () = follow_notices(&mut noticed, &asker, &control) => Ok(()),
        _ = plane_ended.recv() => Ok(()),
        () = crate::process::stdin_closed(options.stop_with_stdin) => Ok(()),
        _ = interrupt.recv() => Ok(()),
        _ = terminate.recv() => Ok(()),
    };
    waker.tell(Command::Stop);
    let plane_result = thread.join().map_err(|_| anyhow::anyhow!("the data plane panicked"))?;
    Link::leave(&options.metadata, &announcement).await;
    let _ = std::fs::remove_file(rack.directory.control_socket());
    tracing::info!("{} stopped; its memory stays", options.rack);
    result.and(plane_result)
}

/// The data plane, with everything an earlier daemon left taken over; how to wake it; and the
/// clients that may come back.
fn data_plane(
    rack: &Arc<Rack>,
    fabric: Box<dyn Fabric>,
    notices: async_mpsc::UnboundedSender<Notice>,
    figures: &Arc<Figures>,
    restarted: bool,
) -> anyhow::Result<(DataPlane, Arc<Waker>, BTreeSet<ClientId>)> {
    let (commands, receiver) = mpsc::channel();
    let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let waker = Arc::new(Waker::new(commands, wake.try_clone()?));
    let first = rack.pages()?.context("the rack has no page ids")?.first;
    let slab = Slab::adopt(Arc::clone(&rack.metadata), rack.geometry.page_size, first)?;
    let mut plane = DataPlane::new(Parts {
        rack: Arc::clone(rack),
        slab,
        fabric,
        commands: receiver,
        notices,
        figures: Arc::clone(figures),
        wake,
        restarted,
    })?;
    let orphans = adopt_clients(rack, &mut plane)?;
    plane.finish_served()?;
    plane.resume_exchanges()?;
    Ok((plane, waker, orphans))
}

fn fabric(options: &Options, rack: &Rack) -> anyhow::Result<EmulatedFabric> {
    let listen = rack.directory.fabric_socket();
    let mapper = Arc::new(PeerMapper);
    let mut emulated = EmulatedOptions::new(rack.geometry.rack, rack.incarnation, listen, mapper);
    emulated.latency = Duration::from_secs_f64(options.latency_us / 1e6);
    emulated.bandwidth_gbps = options.bandwidth_gbps;
    let len = rack.frames.len();
    emulated.exports = vec![ExportedRegion { fd: rack.frames_file.try_clone()?.into(), len }];
    Ok(EmulatedFabric::new(emulated)?)
}

/// Takes over the files of an earlier daemon's clients. Those whose process has ended go at once.
fn adopt_clients(rack: &Rack, plane: &mut DataPlane) -> anyhow::Result<BTreeSet<ClientId>> {
    let mut orphans = BTreeSet::new();
    for entry in std::fs::read_dir(rack.directory.path())? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(client) = name.to_str().and_then(RackDirectory::client_of) else { continue };
        match open_client(rack, client, &entry.path()) {
            Ok(file) => {
                plane.adopt(client, Arc::new(file))?;
                orphans.insert(client);
            }
            // A daemon killed while it made the file: nothing was ever noted in it.
            Err(error) if is_unfinished(&entry.path())? => {
                tracing::warn!("{} is removed: {error:#}", entry.path().display());
                std::fs::remove_file(entry.path())?;
            }
            Err(error) => return Err(error.context(entry.path().display().to_string())),
        }
    }
    Ok(orphans)
}

/// Whether the file has no superblock yet, which is written before a client gets to know the file.
fn is_unfinished(path: &Path) -> anyhow::Result<bool> {
    let bytes = std::fs::read(path)?;
    Ok(bytes.iter().take(4096).all(|byte| *byte == 0) || bytes.len() < 4096)
}

fn open_client(rack: &Rack, client: ClientId, path: &Path) -> anyhow::Result<ClientFile> {
    let found = file::open(path)?.context("it went away")?;
    let block = Mapping::new(&found, 4096)?;
    if found.metadata()?.len() < 4096 {
        anyhow::bail!("it is too short");
    }
    let geometry = block.view::<rackpool_shm::superblock::Superblock>(0)?.read(path)?;
    let threads = u16::try_from(geometry.threads)?;
    anyhow::ensure!((1..=MAX_THREADS).contains(&threads), "it has {threads} threads");
    let wanted = rackpool_shm::superblock::Geometry {
        kind: FileKind::Client,
        client,
        threads: geometry.threads,
        ..rack.geometry
    };
    geometry.require(&wanted, path)?;
    let bytes = ClientFile::bytes(threads);
    file::check_len(&found, path, bytes)?;
    Ok(ClientFile::new(Mapping::new(&found, bytes)?, threads)?)
}

async fn follow_notices(
    notices: &mut async_mpsc::UnboundedReceiver<Notice>,
    asker: &Asker,
    control: &Arc<Control>,
) {
    while let Some(notice) = notices.recv().await {
        match notice {
            Notice::Meet => asker.hurry(),
            Notice::Locate(page) => {
                let (asker, control) = (asker.clone(), Arc::clone(control));
                tokio::spawn(async move {
                    let home = locate(&asker, page).await;
                    control.plane.tell(Command::Located { page, home });
                });
            }
            Notice::Reclaimed(client) => {
                if let Err(error) = std::fs::remove_file(control.rack.directory.client(client)) {
                    tracing::warn!("can't remove the file of client {}: {error}", client.0);
                }
            }
        }
    }
}

async fn locate(asker: &Asker, page: PageId) -> Located {
    match asker.ask(MetadataRequest::Locate { page }).await {
        Some(MetadataReply::Located { home, .. }) => Located::Home(home),
        Some(MetadataReply::NoSuchPage) => Located::NoSuchPage,
        Some(MetadataReply::PageLost) => Located::Lost,
        _ => Located::Unreachable,
    }
}
