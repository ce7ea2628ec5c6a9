//! A memfd: memory without a name. It ends with the last process that has it, so the contents of a
//! rack are lost when its daemon ends. For hosts without a writable memory file system, and for
//! tests.
//!
//! It is sealed at its length: no process that receives it can truncate it.

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

use super::error::system;
use super::tmpfs::{pages_behind, shared_setting};
use super::{MemoryError, MemoryLock, MemoryPlace, RackMemory};
use crate::Mapping;

pub(super) fn create(place: &MemoryPlace<'_>) -> Result<RackMemory, MemoryError> {
    const WHAT: &str = "memory without a name (memfd)";
    let made = memfd_create("rackpool-frames", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .map_err(|error| system("make", WHAT)(error.into()))?;
    let file = std::fs::File::from(made);
    file.set_len(place.bytes).map_err(system("size", WHAT))?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
        .map_err(|error| system("seal", WHAT)(error.into()))?;
    let mapping = Mapping::new(&file, place.bytes).map_err(system("map", WHAT))?;
    mapping.advise_huge();
    let mut warnings = vec![
        "memory of kind memfd ends with this daemon: the next one begins with an empty rack, and what this one holds is lost".to_owned(),
    ];
    let preferred = place.prefer(&mapping, &file, &mut warnings)?;
    let pages = pages_behind(&mapping, || shared_setting(place.machine));
    let lock = MemoryLock::none();
    let mut memory = RackMemory { mapping, file, lock, pages, warnings, node: None };
    place.check_node(&mut memory, preferred.as_ref())?;
    Ok(memory)
}
