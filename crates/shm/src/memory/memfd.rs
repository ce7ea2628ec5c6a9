//! Memory without a name. It ends with the last process that has it, so what a rack holds is lost
//! when its daemon ends: for places where no memory file system can be written, and for tests.
//!
//! It is sealed at its length: nobody it is passed to can cut it short under the others.

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

use super::error::system;
use super::tmpfs::{pages_behind, shared_setting};
use super::{MemoryError, MemoryLock, Place, RackMemory};
use crate::Mapping;

pub(super) fn create(place: &Place<'_>) -> Result<RackMemory, MemoryError> {
    const WHAT: &str = "memory without a name (memfd)";
    let made = memfd_create("rackpool-frames", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .map_err(|error| system("make", WHAT)(error.into()))?;
    let file = std::fs::File::from(made);
    file.set_len(place.bytes).map_err(system("size", WHAT))?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
        .map_err(|error| system("seal", WHAT)(error.into()))?;
    let mapping = Mapping::new(&file, place.bytes).map_err(system("map", WHAT))?;
    mapping.advise_huge();
    let pages = pages_behind(&mapping, || shared_setting(place.machine));
    let warnings = vec![
        "memory of kind memfd ends with this daemon: the next one begins with an empty rack, and what this one holds is lost".to_owned(),
    ];
    Ok(RackMemory { mapping, file, lock: MemoryLock::none(), pages, warnings })
}
