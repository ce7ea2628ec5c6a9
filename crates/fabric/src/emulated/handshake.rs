use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rackpool_model::{Incarnation, RackId};
use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;

use super::hello::{self, Hello};
use super::link::{self, LINK_BYTES, SharedLink, Side};
use super::socket::{self, Packet};
use super::{ExportedRegion, Mapper};
use crate::{FabricError, MemoryRegion};

/// What this side contributes to every link.
pub(super) struct Local {
    pub(super) rack: RackId,
    pub(super) incarnation: Incarnation,
    pub(super) exports: Vec<ExportedRegion>,
    pub(super) mapper: Arc<dyn Mapper>,
    /// Wakes the thread that polls the fabric.
    pub(super) wake: Arc<OwnedFd>,
}

/// A link whose handshake is complete.
pub(super) struct Established {
    pub(super) peer: RackId,
    pub(super) incarnation: Incarnation,
    pub(super) link: SharedLink,
    pub(super) remote: Vec<Arc<dyn MemoryRegion>>,
    pub(super) peer_wake: OwnedFd,
    pub(super) socket: Arc<OwnedFd>,
}

/// Initiator, first step: creates the link memory and sends the hello.
pub(super) fn greet(local: &Local, socket: &OwnedFd) -> Result<SharedLink, FabricError> {
    socket::check_user(socket)?;
    let memory = link::create_memory()?;
    let copy =
        memory.try_clone().map_err(|error| FabricError::local("copy a descriptor", error))?;
    let link = SharedLink::new(local.map(copy, LINK_BYTES)?, Side::Initiator)?;
    link.touch()?;
    local.say_hello(socket, Some(&memory))?;
    Ok(link)
}

/// Initiator, second step: processes the acceptor's answer.
pub(super) fn finish(
    local: &Local,
    socket: OwnedFd,
    link: SharedLink,
    answer: Packet,
) -> Result<Established, FabricError> {
    let theirs = hello::decode(&answer.bytes)?;
    local.establish(theirs, Arc::new(socket), link, answer.fds.into_iter())
}

/// Acceptor: processes the initiator's hello. If it cannot be served, sends a refusal with the
/// reason.
pub(super) fn answer(
    local: &Local,
    socket: OwnedFd,
    greeting: Packet,
) -> Result<Established, FabricError> {
    let socket = Arc::new(socket);
    let result = accept(local, &socket, greeting);
    if let Err(error) = &result {
        // An unauthenticated peer that does not read the refusal needs none.
        let _ = socket::send(&*socket, &hello::encode_refusal(&error.to_string()), &[]);
    }
    result
}

fn accept(
    local: &Local,
    socket: &Arc<OwnedFd>,
    greeting: Packet,
) -> Result<Established, FabricError> {
    socket::check_user(socket)?;
    let theirs = hello::decode(&greeting.bytes)?;
    let mut fds = greeting.fds.into_iter();
    let memory = next_fd(&mut fds)?;
    link::check_memory(&memory)?;
    let link = SharedLink::new(local.map(memory, LINK_BYTES)?, Side::Acceptor)?;
    link.touch()?;
    let established = local.establish(theirs, Arc::clone(socket), link, fds)?;
    local.say_hello(socket, None)?;
    Ok(established)
}

impl Local {
    /// Sends this side's hello; the initiator's hello carries the link memory.
    fn say_hello(&self, socket: &OwnedFd, memory: Option<&OwnedFd>) -> Result<(), FabricError> {
        let regions = self.exports.iter().map(|export| export.len).collect();
        let hello = Hello { rack: self.rack, incarnation: self.incarnation, regions };
        let mut fds: Vec<_> = memory.iter().map(|memory| memory.as_fd()).collect();
        fds.push(self.wake.as_fd());
        fds.extend(self.exports.iter().map(|export| export.fd.as_fd()));
        socket::send(socket, &hello.encode(), &fds).map_err(|errno| match errno {
            Errno::PIPE | Errno::CONNRESET => FabricError::PeerGone,
            errno => FabricError::local("greet the peer", errno),
        })
    }

    /// Checks and maps the descriptors that follow the link memory in the peer's hello.
    fn establish(
        &self,
        theirs: Hello,
        socket: Arc<OwnedFd>,
        link: SharedLink,
        mut fds: impl Iterator<Item = OwnedFd>,
    ) -> Result<Established, FabricError> {
        let peer_wake = next_fd(&mut fds)?;
        check_wake(&peer_wake)?;
        let mut remote = Vec::with_capacity(theirs.regions.len());
        for len in theirs.regions {
            let fd = next_fd(&mut fds)?;
            check_export(&fd, len)?;
            remote.push(self.map(fd, len)?);
        }
        if fds.next().is_some() {
            return Err(FabricError::misbehaved("it sent more descriptors than it announced"));
        }
        let (peer, incarnation) = (theirs.rack, theirs.incarnation);
        Ok(Established { peer, incarnation, link, remote, peer_wake, socket })
    }

    fn map(&self, fd: OwnedFd, len: u64) -> Result<Arc<dyn MemoryRegion>, FabricError> {
        let memory = self
            .mapper
            .map(fd, len)
            .map_err(|error| FabricError::local("map the memory of a peer", error))?;
        if memory.len() < len {
            return Err(FabricError::local("map the memory of a peer", "the mapping is too short"));
        }
        Ok(memory)
    }
}

fn next_fd(fds: &mut impl Iterator<Item = OwnedFd>) -> Result<OwnedFd, FabricError> {
    fds.next().ok_or_else(|| FabricError::misbehaved("it sent fewer descriptors than it announced"))
}

/// Checks that a write to the peer's eventfd cannot block this side.
fn check_wake(fd: &OwnedFd) -> Result<(), FabricError> {
    match rustix::fs::fcntl_getfl(fd) {
        Ok(flags) if flags.contains(OFlags::NONBLOCK) => Ok(()),
        _ => Err(FabricError::misbehaved("writing to its wake-up may block")),
    }
}

/// Checks that a file is at least as long as announced, since an access beyond its end would fault.
/// Devices report no size.
fn check_export(fd: &OwnedFd, len: u64) -> Result<(), FabricError> {
    let stat = rustix::fs::fstat(fd)
        .map_err(|errno| FabricError::local("look at the memory of a peer", errno))?;
    let is_file = FileType::from_raw_mode(stat.st_mode).is_file();
    if len == 0 || is_file && u64::try_from(stat.st_size).unwrap_or(0) < len {
        return Err(FabricError::misbehaved(format!("it exports {len} B that are not there")));
    }
    Ok(())
}
