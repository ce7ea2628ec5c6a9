use rackpool_model::{MemoryId, PageId, RackId};
use rackpool_wire::swap::{SwapId, WantRefusal};

use crate::directory::Directory;

/// The home of a page that the asker may want, and the memories of both.
pub(super) fn check(
    directory: &Directory,
    asker: RackId,
    page: PageId,
    offered: PageId,
) -> Result<(RackId, [MemoryId; 2]), WantRefusal> {
    let home = directory.home(page).ok_or(WantRefusal::NoSuchPage)?;
    let owner = directory.home(offered).ok_or(WantRefusal::NoSuchPage)?;
    if home == asker {
        return Err(WantRefusal::AtHome);
    }
    if owner != asker {
        return Err(WantRefusal::NotYours);
    }
    Ok((home, memories(directory, asker, home)?))
}

/// What the two racks serve.
pub(super) fn memories(
    directory: &Directory,
    asker: RackId,
    home: RackId,
) -> Result<[MemoryId; 2], WantRefusal> {
    let memory = |rack| directory.served_by(rack).map(|run| run.memory);
    match (memory(asker), memory(home)) {
        (Some(mine), Some(theirs)) => Ok([mine, theirs]),
        _ => Err(WantRefusal::NoSuchPage),
    }
}

pub(super) fn serves(directory: &Directory, rack: RackId, memory: MemoryId) -> bool {
    directory.served_by(rack).is_some_and(|run| run.memory == memory)
}

/// Whether this swap brought `page` to `rack`: it can't have gone on while the rack asks.
pub(super) fn is_moved(directory: &Directory, rack: RackId, swap: SwapId, page: PageId) -> bool {
    directory.moved(page).is_some_and(|moved| moved.swap == swap && moved.home == rack)
}
