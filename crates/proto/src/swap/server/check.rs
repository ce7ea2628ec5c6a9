use rackpool_model::{MemoryId, PageId, RackId};
use rackpool_wire::swap::{RequestRefusal, SwapId};

use crate::directory::Directory;

/// Checks a request. Returns the home of the page, and the memories of requester and home.
pub(super) fn check(
    directory: &Directory,
    requester: RackId,
    page: PageId,
    offered: PageId,
) -> Result<(RackId, [MemoryId; 2]), RequestRefusal> {
    let home = directory.home(page).ok_or(RequestRefusal::NoSuchPage)?;
    let owner = directory.home(offered).ok_or(RequestRefusal::NoSuchPage)?;
    if home == requester {
        return Err(RequestRefusal::AtHome);
    }
    if owner != requester {
        return Err(RequestRefusal::NotYours);
    }
    Ok((home, memories(directory, requester, home)?))
}

/// Returns the memories that the two racks serve.
pub(super) fn memories(
    directory: &Directory,
    requester: RackId,
    home: RackId,
) -> Result<[MemoryId; 2], RequestRefusal> {
    let memory = |rack| directory.served_by(rack).map(|run| run.memory);
    match (memory(requester), memory(home)) {
        (Some(mine), Some(theirs)) => Ok([mine, theirs]),
        _ => Err(RequestRefusal::NoSuchPage),
    }
}

pub(super) fn serves(directory: &Directory, rack: RackId, memory: MemoryId) -> bool {
    directory.served_by(rack).is_some_and(|run| run.memory == memory)
}

/// Returns true if this swap moved `page` to `rack`. The page can't have moved on while `rack`
/// still asks.
pub(super) fn is_moved(directory: &Directory, rack: RackId, swap: SwapId, page: PageId) -> bool {
    directory.moved(page).is_some_and(|moved| moved.swap == swap && moved.home == rack)
}
