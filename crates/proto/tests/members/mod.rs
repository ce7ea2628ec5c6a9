use rackpool_model::{Incarnation, MemoryId, PageRange, RackId};
use rackpool_wire::metadata::Member;

/// A rack as the metadata server names it. What the machines do not read is empty.
pub(crate) fn member(rack: RackId, memory: MemoryId, alive: bool, pages: PageRange) -> Member {
    Member {
        rack,
        incarnation: Incarnation(1),
        memory,
        alive,
        pages,
        free_frames: 0,
        control_path: String::new(),
        fabric_address: String::new(),
    }
}
