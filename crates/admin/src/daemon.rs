//! Requests to rack daemons, over their Unix sockets.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use anyhow::{Context, bail};
use rackpool_model::{GlobalAddr, PageId, RootUpdate};
use rackpool_shm::folder;
use rackpool_wire::control::{ControlReply, ControlRequest, RackStatus};
use rackpool_wire::history::{PageHeat, PageHistory};
use rackpool_wire::metadata::Tagged;
use rackpool_wire::{FrameReader, encode};

use super::timeout::TIMEOUT;

/// Asks a daemon for the status of its rack.
pub fn rack_status(control_path: &str) -> anyhow::Result<RackStatus> {
    match ask(control_path, ControlRequest::RackStatus)? {
        ControlReply::RackStatus(status) => Ok(*status),
        other => refused(&other),
    }
}

/// Asks a daemon for the hottest pages of its rack.
pub fn top_pages(control_path: &str, limit: u16) -> anyhow::Result<Vec<PageHeat>> {
    match ask(control_path, ControlRequest::TopPages { limit })? {
        ControlReply::TopPages(pages) => Ok(pages),
        other => refused(&other),
    }
}

/// Asks a daemon for its records of a page.
pub fn page_history(control_path: &str, page: PageId) -> anyhow::Result<PageHistory> {
    match ask(control_path, ControlRequest::PageHistory { page })? {
        ControlReply::PageHistory(history) => Ok(history),
        other => refused(&other),
    }
}

/// Asks a daemon to set a root to `new` if it is `expected`. Returns the root's value afterwards,
/// and whether this call set it.
pub fn put_root(
    control_path: &str,
    name: &str,
    expected: Option<GlobalAddr>,
    new: Option<GlobalAddr>,
) -> anyhow::Result<RootUpdate> {
    match ask(control_path, ControlRequest::PutRoot { name: name.into(), expected, new })? {
        ControlReply::Root { addr, changed } => Ok(RootUpdate { addr, changed }),
        other => refused(&other),
    }
}

fn refused<T>(reply: &ControlReply) -> anyhow::Result<T> {
    match reply {
        ControlReply::Refused(refusal) => bail!(refusal.clone()),
        other => {
            bail!("the daemon gave an unexpected answer, {other:?}: use programs of one version")
        }
    }
}

fn ask(control_path: &str, message: ControlRequest) -> anyhow::Result<ControlReply> {
    let mut stream = UnixStream::connect(control_path).with_context(|| {
        format!("no daemon serves {control_path}: start the daemon, or ask on the host to which the rack moved")
    })?;
    folder::require_private(Path::new(control_path).parent().unwrap_or(Path::new("/")))?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    stream.write_all(&encode(&Tagged { tag: 1, message })?)?;
    let reply: Tagged<ControlReply> = receive(&mut stream)?;
    Ok(reply.message)
}

fn receive<M: bincode::Decode<()>>(stream: &mut impl Read) -> anyhow::Result<M> {
    let mut frames = FrameReader::new();
    loop {
        if let Some(message) = frames.next()? {
            return Ok(message);
        }
        let mut bytes = [0; 16 << 10];
        match stream.read(&mut bytes).context("the daemon does not answer")? {
            0 => bail!(
                "the daemon closed the connection: repeat the command, or see the log of the daemon"
            ),
            count => frames.extend(&bytes[..count]),
        }
    }
}
