//! One client's connection.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use rackpool_model::ClientId;
use rackpool_output::chain;
use rackpool_ring::client_file::{ClientFile, MAX_THREADS};
use rackpool_shm::free_space::Room;
use rackpool_shm::host::HostFiles;
use rackpool_shm::memory::sampled_nodes;
use rackpool_shm::metadata::MetadataLayout;
use rackpool_shm::superblock::{FileKind, Geometry, OwnerProcess};
use rackpool_shm::{Mapping, file};
use rackpool_sync::eventfd;
use rackpool_wire::bounds::{MAX_CONTROL_REQUEST_BYTES, OutOfBounds};
use rackpool_wire::control::{
    ControlRefusal, ControlReply, ControlRequest, FrameMemory, RackStatus, Resume,
};
use rackpool_wire::metadata::{MetadataReply, MetadataRequest, Tagged};
use rackpool_wire::{FrameReader, Unreadable, encode};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::oneshot;

use super::orphan::{owner_of, watch_orphan};
use super::{Control, open_files};
use crate::data_plane::{Command, get};
use crate::descriptors;
use crate::rack::Rack;

/// How long a connected peer may take to send its first message.
const INTRODUCTION: Duration = Duration::from_secs(5);

/// How a client's connection ended.
enum End {
    /// The client's process has ended.
    Gone,
    /// The connection has ended. If the process lives and has not closed the pool, it uses its
    /// memory and may reconnect.
    Lost,
}

/// Serves one connection to its end.
pub(super) async fn serve(mut stream: UnixStream, control: &Arc<Control>) -> anyhow::Result<()> {
    let peer = stream.peer_cred()?;
    let owner = rustix::process::geteuid().as_raw();
    let mut frames = FrameReader::with_limit(MAX_CONTROL_REQUEST_BYTES);
    let hello = tokio::time::timeout(INTRODUCTION, next(&mut stream, &mut frames)).await;
    let Some(hello) = hello.context("a process connected and sent no request")?? else {
        return Ok(());
    };
    let Tagged { tag, message: hello } = match hello {
        Ok(hello) => hello,
        Err(Unreadable { reason, .. }) => bail!(reason),
    };
    if peer.uid() != owner {
        let refusal = ControlRefusal::Credentials { owner, caller: peer.uid() };
        return refuse(&mut stream, tag, refusal).await;
    }
    match hello {
        ControlRequest::Hello { threads, resume } => {
            let pid = peer.pid().and_then(|pid| u64::try_from(pid).ok()).unwrap_or(0);
            let owner = control.rack.client_host.identify(pid);
            match admit(control, threads, resume, owner).await {
                Ok(admitted) => {
                    let client = admitted.client;
                    let served = welcome(&mut stream, &mut frames, control, tag, admitted, owner);
                    match served.await {
                        Ok(End::Gone) => drop(control.plane.tell(Command::Gone { client })),
                        Ok(End::Lost) => watch_orphan(control, client, owner),
                        Err(error) => {
                            tracing::warn!(
                                "the connection of client {} ended: {}",
                                client.0,
                                chain(error.as_ref())
                            );
                            watch_orphan(control, client, owner);
                        }
                    }
                    Ok(())
                }
                Err(refusal) => refuse(&mut stream, tag, refusal).await,
            }
        }
        // A status request, for instance of an operator: no client is created.
        request => {
            let message = answer(control, request).await;
            stream.write_all(&encode(&Tagged { tag, message })?).await?;
            serve_requests(&mut stream, &mut frames, control).await.map(drop)
        }
    }
}

async fn next(
    stream: &mut UnixStream,
    frames: &mut FrameReader,
) -> anyhow::Result<Option<Result<Tagged<ControlRequest>, Unreadable>>> {
    loop {
        if let Some(request) = frames.next_request()? {
            return Ok(Some(request));
        }
        let mut bytes = [0; 4096];
        match stream.read(&mut bytes).await {
            Ok(0) => return Ok(None),
            Ok(count) => frames.extend(&bytes[..count]),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
}

async fn refuse(stream: &mut UnixStream, tag: u64, refusal: ControlRefusal) -> anyhow::Result<()> {
    tracing::warn!("refused a client: {refusal}");
    let message = ControlReply::Refused(refusal);
    stream.write_all(&encode(&Tagged { tag, message })?).await?;
    Ok(())
}

/// A client that the data plane serves, with the descriptors to pass to it.
struct Admitted {
    client: ClientId,
    file: std::fs::File,
    metadata: std::fs::File,
    bell: OwnedFd,
}

/// Creates the client's file, or finds that of a reconnecting client, and has the data plane serve
/// it.
async fn admit(
    control: &Arc<Control>,
    threads: u16,
    resume: Option<Resume>,
    owner: OwnerProcess,
) -> Result<Admitted, ControlRefusal> {
    let rack = control.rack.geometry.rack;
    let invalid = |error: anyhow::Error| ControlRefusal::Invalid(open_files::explain(&error, rack));
    let bell = eventfd::new().map_err(|error| invalid(error.into()))?;
    let kept = bell.try_clone().map_err(|error| invalid(error.into()))?;
    let metadata = file::open_read_only(&control.rack.directory.metadata())
        .map_err(|error| invalid(error.into()))?;
    let (client, mapped) = match resume {
        Some(Resume { client, memory }) => {
            let path = control.rack.directory.client(client);
            let known = memory == control.rack.geometry.memory
                && owner_of(&path) == Some(owner)
                && control.claim_orphan(client);
            if !known {
                return Err(ControlRefusal::UnknownClient);
            }
            (client, None)
        }
        None => {
            if threads == 0 || threads > MAX_THREADS {
                let text = format!("{threads} threads: ask for 1 to {MAX_THREADS}");
                return Err(ControlRefusal::Invalid(text));
            }
            let client = control.next_client();
            (client, Some(create(control, client, threads, owner).map_err(invalid)?))
        }
    };
    let file = match descriptor_for(control, client) {
        Ok(file) => file,
        Err(error) => {
            match mapped {
                // Nothing was recorded in the new file.
                Some(_) => drop(std::fs::remove_file(control.rack.directory.client(client))),
                None => watch_orphan(control, client, owner),
            }
            return Err(invalid(error));
        }
    };
    let (admitted, served) = oneshot::channel();
    control.plane.tell(Command::Admit { client, file: mapped, doorbell: bell, admitted });
    match served.await {
        Ok(true) => Ok(Admitted { client, file, metadata, bell: kept }),
        Ok(false) => Err(ControlRefusal::UnknownClient),
        Err(_) => Err(ControlRefusal::Invalid("the daemon is about to stop: try again".into())),
    }
}

fn create(
    control: &Control,
    client: ClientId,
    threads: u16,
    owner: OwnerProcess,
) -> anyhow::Result<Arc<ClientFile>> {
    let path = control.rack.directory.client(client);
    let bytes = ClientFile::bytes(threads);
    let file = file::create(&path, bytes)?;
    if let Some(room) = Room::of(control.rack.directory.pool(), &HostFiles::here())
        && room.missing() > 0
    {
        std::fs::remove_file(&path)?;
        bail!("no room for the file of a client: {room}: {}", room.fix(room.missing()));
    }
    let mapped = ClientFile::new(Mapping::new(&file, bytes)?, threads)?;
    control.placement.bind_memory("a client's file", mapped.memory())?;
    let block = mapped.superblock()?;
    block.set_owner(owner);
    block.format(&Geometry {
        kind: FileKind::Client,
        client,
        threads: u32::from(threads),
        ..control.rack.geometry
    });
    Ok(Arc::new(mapped))
}

/// Opens the client's file for passing to the client, and takes a hold on it. Only the client keeps
/// the hold, by its descriptor or its mapping; this daemon does not. A file that is held therefore
/// has a living client that may reconnect; a file that is not held is left by an open that failed,
/// or during which the daemon ended.
fn descriptor_for(control: &Control, client: ClientId) -> anyhow::Result<std::fs::File> {
    let path = control.rack.directory.client(client);
    let file = file::open(&path)?.context("the client's file is gone")?;
    file::hold(&file, &path)?;
    Ok(file)
}

/// Passes the descriptors and serves the client until its connection or its process ends.
async fn welcome(
    stream: &mut UnixStream,
    frames: &mut FrameReader,
    control: &Control,
    tag: u64,
    Admitted { client, file, metadata, bell }: Admitted,
    process: OwnerProcess,
) -> anyhow::Result<End> {
    let rack = &control.rack;
    let message = ControlReply::Welcome {
        client,
        rack: rack.geometry.rack,
        memory: rack.geometry.memory,
        incarnation: rack.incarnation,
    };
    let reply = encode(&Tagged { tag, message })?;
    let files = [
        rack.frames_file.as_fd(),
        metadata.as_fd(),
        rack.marks_file.as_fd(),
        rack.locks_file.as_fd(),
        file.as_fd(),
        bell.as_fd(),
    ];
    descriptors::send(stream, &reply, &files).await?;
    drop((bell, metadata));
    // The client ends with its process, even if a child process keeps the socket open.
    #[expect(
        deprecated,
        reason = "its successor is unsafe; an `OwnedFd` keeps the promise it asks"
    )]
    let process = rack.client_host.watch(process).map(AsyncFd::new);
    match process {
        Some(Ok(process)) => tokio::select! {
            served = serve_requests(stream, frames, control) => served,
            _ = process.readable() => Ok(End::Gone),
        },
        _ => serve_requests(stream, frames, control).await,
    }
}

async fn serve_requests(
    stream: &mut UnixStream,
    frames: &mut FrameReader,
    control: &Control,
) -> anyhow::Result<End> {
    while let Some(request) = next(stream, frames).await? {
        let (tag, message) = match request {
            Ok(Tagged { message: ControlRequest::Hello { .. }, .. }) => {
                bail!("a client sent Hello twice")
            }
            Ok(Tagged { tag, message }) => (tag, answer(control, message).await),
            Err(Unreadable { tag, reason }) => (tag, out_of_bounds(reason)),
        };
        stream.write_all(&encode(&Tagged { tag, message })?).await?;
    }
    Ok(End::Lost)
}

const fn out_of_bounds(reason: OutOfBounds) -> ControlReply {
    ControlReply::Refused(ControlRefusal::OutOfBounds(reason))
}

async fn answer(control: &Control, request: ControlRequest) -> ControlReply {
    if let Err(reason) = request.check() {
        return out_of_bounds(reason);
    }
    let request = match request {
        ControlRequest::GetRoot { name } => MetadataRequest::GetRoot { name },
        ControlRequest::PutRoot { name, expected, new } => {
            MetadataRequest::PutRoot { name, expected, new }
        }
        ControlRequest::RackStatus => return ControlReply::RackStatus(Box::new(status(control))),
        ControlRequest::PageHistory { page } => {
            let (answer, told) = oneshot::channel();
            control.plane.tell(Command::PageHistory { page, answer });
            return told.await.map_or_else(|_| stopping(), ControlReply::PageHistory);
        }
        ControlRequest::TopPages { limit } => {
            let (answer, told) = oneshot::channel();
            control.plane.tell(Command::TopPages { limit, answer });
            return told.await.map_or_else(|_| stopping(), ControlReply::TopPages);
        }
        ControlRequest::Hello { .. } => {
            return ControlReply::Refused(ControlRefusal::Invalid(
                "the first request of a client must be Hello".into(),
            ));
        }
    };
    match control.metadata.ask(request).await {
        Some(MetadataReply::Root { addr, changed }) => ControlReply::Root { addr, changed },
        Some(MetadataReply::Refused(refusal)) => {
            ControlReply::Refused(ControlRefusal::Metadata(refusal))
        }
        Some(_) | None => ControlReply::Refused(ControlRefusal::MetadataUnreachable),
    }
}

/// The answer when the data plane has ended.
fn stopping() -> ControlReply {
    let text = "the daemon is about to stop: try again";
    ControlReply::Refused(ControlRefusal::Invalid(text.into()))
}

/// Where the frames lie. Their nodes are left out if the kernel does not tell them.
fn frame_memory(rack: &Rack) -> FrameMemory {
    let nodes = sampled_nodes(&rack.frames, &rack.frames_file).unwrap_or_default();
    FrameMemory {
        bytes: rack.frames.len(),
        page_bytes: rack.kernel_page_bytes,
        nodes: nodes.into_iter().collect(),
    }
}

fn status(control: &Control) -> RackStatus {
    let metrics = &control.metrics;
    let narrow = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
    RackStatus {
        pid: std::process::id(),
        siblings: control.rack.siblings.clone(),
        frames: control.rack.geometry.frames,
        frame_memory: frame_memory(&control.rack),
        free_frames: narrow(get(&metrics.free_frames)),
        other_racks: metrics.other_racks(),
        other_frames: get(&metrics.other_frames),
        other_free_frames: get(&metrics.other_free_frames),
        allocated_bytes: get(&metrics.allocated_bytes),
        fixed: metrics.fixed.status(),
        in_flight: metrics.in_flight.status(),
        clients: narrow(get(&metrics.clients)),
        metadata_bytes_per_frame: MetadataLayout::BYTES_PER_FRAME,
        remote_operations: get(&metrics.remote_operations),
        local_accesses: get(&metrics.local_accesses),
        remote_times: metrics.remote_times.micros(),
        requests: get(&metrics.requests),
        sleeps: get(&metrics.sleeps),
        pure_requests: get(&metrics.pure_requests),
        then_one_sided_requests: get(&metrics.then_one_sided_requests),
        zero_copy_requests: get(&metrics.zero_copy_requests),
        posted: get(&metrics.posted),
        messages: get(&metrics.messages),
        doorbells: get(&metrics.doorbells),
        swaps: metrics.swaps.status(),
        sharing: metrics.sharing.status(),
        device_requests: get(&metrics.device_requests),
        device_doorbells: get(&metrics.device_doorbells),
        device_completions: get(&metrics.device_completions),
        device_signalled: get(&metrics.device_signalled),
        device_inlined: get(&metrics.device_inlined),
        thresholds: metrics.thresholds(),
        fabric: control.fabric.clone(),
        memory: control.rack.memory.clone(),
        placement: format!("{}; {}", control.placement, control.priority),
    }
}
