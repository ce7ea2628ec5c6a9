use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rackpool_model::{Incarnation, RackId};
use rustix::fs::{FileType, OFlags};

use super::hello::{self, Hello};
use super::link::{self, LINK_BYTES, Link, Side};
use super::socket::{self, Packet};
use super::{ExportedRegion, Mapper};
use crate::{FabricError, MemoryRegion};

/// What this side brings into every link.
pub(super) struct Local {
    pub(super) rack: RackId,
    pub(super) incarnation: Incarnation,
    pub(super) exports: Vec<ExportedRegion>,
    pub(super) mapper: Arc<dyn Mapper>,
    /// Wakes the thread that polls the fabric.
    pub(super) wake: Arc<OwnedFd>,
}

/// A link that both sides have agreed on.
pub(super) struct Established {
    pub(super) peer: RackId,
    pub(super) incarnation: Incarnation,
    pub(super) link: Link,
    pub(super) remote: Vec<Arc<dyn MemoryRegion>>,
    pub(super) peer_wake: OwnedFd,
    pub(super) socket: Arc<OwnedFd>,
}

/// Initiator, first step: makes the link memory and says hello.
pub(super) fn greet(local: &Local, socket: &OwnedFd) -> Result<Link, FabricError> {
    socket::check_user(socket)?;
    let memory = link::create_memory()?;
    let copy = memory.try_clone().map_err(|error| FabricError::local("copy a descriptor", error))?;
    let link = Link::new(local.map(copy, LINK_BYTES)?, Side::Initiator)?;
    local.say_hello(socket, Some(&memory))?;
    Ok(link)
}

/// Initiator, second step: the acceptor has answered.
pub(super) fn finish(
    local: &Local,
    socket: OwnedFd,
    link: Link,
    answer: Packet,
) -> Result<Established, FabricError> {
    let theirs = hello::decode(&answer.bytes)?;
    let mut fds = answer.fds.into_iter();
    let peer_wake = next_fd(&mut fds)?;
    local.establish(theirs, socket, link, peer_wake, fds)
}

/// Acceptor: the initiator has said hello. When it can't be served it is told why.
pub(super) fn answer(
    local: &Local,
    socket: OwnedFd,
    greeting: Packet,
) -> Result<Established, FabricError> {
    match check_greeting(local, &socket, greeting) {
        Ok((theirs, link, peer_wake, fds)) => {
            let established = local.establish(theirs, socket, link, peer_wake, fds.into_iter());
            let established = established?;
            local.say_hello(&established.socket, None)?;
            Ok(established)
        }
        Err(error) => {
            // A stranger that does not listen to the reason needs none.
            let _ = socket::send(&socket, &hello::encode_refusal(&error.to_string()), &[]);
            Err(error)
        }
    }
}
