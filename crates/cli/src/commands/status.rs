//! `rackpool status`: a pool's racks and their figures.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::{Context, bail};
use rackpool_model::ByteSize;
use rackpool_wire::control::{ControlReply, ControlRequest, RackStatus};
use rackpool_wire::metadata::{MetadataReply, MetadataRequest, PoolStatus, Tagged};
use rackpool_wire::{FrameReader, encode};

use super::PoolFolder;
use crate::cluster::metadata_address;

/// How long a server may take to answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// Which pool is shown.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// The pool.
    #[command(flatten)]
    pub pool: PoolFolder,
    /// Address of the metadata server [default: as the pool's folder says].
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub metadata: Option<String>,
}

/// Shows the pool.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let address = match &options.metadata {
        Some(address) => address.clone(),
        None => metadata_address(&options.pool.dir)?,
    };
    let pool = pool_status(&address)?;
    println!("metadata server  {address}, store of {}", ByteSize(pool.store_bytes));
    println!("pages of         {}", ByteSize(pool.page_bytes));
    println!("lease            {} ms", pool.lease_ms);
    if pool.lost_pages > 0 {
        println!("lost pages       {}", pool.lost_pages);
    }
    for (name, addr) in &pool.roots {
        println!("root             {name} = {addr}");
    }
    println!();
    println!(
        "{:<6} {:<6} {:>8} {:>8} {:>8} {:>10} {:>8} {:>12} {:>12}",
        "rack", "state", "pid", "frames", "free", "in use", "clients", "requests", "remote ops"
    );
    let mut fabrics = Vec::new();
    for member in &pool.members {
        let figures = member.alive.then(|| rack_status(&member.control_path));
        match figures {
            Some(Ok(rack)) => {
                println!(
                    "{:<6} {:<6} {:>8} {:>8} {:>8} {:>10} {:>8} {:>12} {:>12}",
                    member.rack.0,
                    "up",
                    rack.pid,
                    rack.frames,
                    rack.free_frames,
                    ByteSize(rack.allocated_bytes),
                    rack.clients,
                    rack.requests,
                    rack.remote_operations
                );
                fabrics.push((member.rack.0, rack));
            }
            Some(Err(error)) => println!("{:<6} {:<6} {error:#}", member.rack.0, "silent"),
            None => println!("{:<6} {:<6} its lease has run out", member.rack.0, "down"),
        }
    }
    println!();
    for (rack, status) in fabrics {
        println!(
            "rack {rack}: {}; {} B of metadata a frame; slept {} times",
            status.fabric, status.metadata_bytes_per_frame, status.sleeps
        );
    }
    Ok(())
}

/// What the metadata server says of the pool.
pub fn pool_status(address: &str) -> anyhow::Result<PoolStatus> {
    let mut stream = TcpStream::connect(address)
        .with_context(|| format!("no metadata server at {address}: start it"))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(&encode(&Tagged { tag: 1, message: MetadataRequest::Status })?)?;
    let reply: Tagged<MetadataReply> = receive(&mut stream)?;
    match reply.message {
        MetadataReply::Status(status) => Ok(status),
        MetadataReply::Refused(refusal) => bail!(refusal),
        other => bail!("the metadata server answered {other:?}"),
    }
}

/// What a daemon says of its rack.
pub fn rack_status(control_path: &str) -> anyhow::Result<RackStatus> {
    let mut stream = UnixStream::connect(control_path)
        .with_context(|| format!("no daemon at {control_path}: start it"))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(&encode(&Tagged { tag: 1, message: ControlRequest::RackStatus })?)?;
    let reply: Tagged<ControlReply> = receive(&mut stream)?;
    match reply.message {
        ControlReply::RackStatus(status) => Ok(status),
        ControlReply::Refused(refusal) => bail!(refusal),
        other => bail!("the daemon answered {other:?}"),
    }
}

fn receive<M: bincode::Decode<()>>(stream: &mut impl Read) -> anyhow::Result<M> {
    let mut frames = FrameReader::new();
    loop {
        if let Some(message) = frames.next()? {
            return Ok(message);
        }
        let mut bytes = [0; 16 << 10];
        match stream.read(&mut bytes).context("no answer")? {
            0 => bail!("the connection was closed"),
            count => frames.extend(&bytes[..count]),
        }
    }
}
