//! A recorded access trace of a pool, as the cache of one rack sees it.

use anyhow::ensure;
use rackpool_dca::{Access as CacheAccess, AccessKind, Accesses};
use rackpool_model::{Access, RackId};
use rackpool_sync::SplitMix64;
use rackpool_trace::{Accessed, Trace};

const LINE: u64 = 64;
/// Address and size of the memory into which the rack's own reads of other racks arrive.
const ARRIVALS: u64 = 1 << 50;
const ARRIVAL_BYTES: u64 = 4 << 20;

/// The accesses to the memory of a rack, and the arrivals of what it reads elsewhere. The trace
/// names pages: each access goes to a random place of its page. Pages stay where they were first.
pub(super) fn accesses(trace: &Trace, rack: RackId, bytes: u64) -> anyhow::Result<Accesses> {
    ensure!(
        trace.racks.iter().any(|frames| frames.rack == rack),
        "the trace has no rack {}: it has {}",
        rack.0,
        trace.racks.iter().map(|frames| frames.rack.0.to_string()).collect::<Vec<_>>().join(", ")
    );
    let mut random = SplitMix64::new(1);
    let mut arrived = 0;
    let mut all = Vec::new();
    for accessed in &trace.accesses {
        let place = random.draw() % (trace.page_bytes / LINE).max(1) * LINE;
        let address = u64::from(accessed.page.0) * trace.page_bytes + place;
        let is_home = trace.home(accessed.page) == Some(rack);
        let mut add = |kind, address| {
            all.push(CacheAccess { time_ns: accessed.at_ns, kind, core: 0, address, bytes });
        };
        match (is_home, accessed) {
            (true, Accessed { rack: by, access, .. }) => {
                add(kind(*by == rack, *access), address);
            }
            (false, Accessed { rack: by, access: Access::Read, .. }) if *by == rack => {
                let into = ARRIVALS + arrived % ARRIVAL_BYTES;
                arrived += bytes.next_multiple_of(LINE);
                add(AccessKind::DeviceWrite, into);
                add(AccessKind::CoreRead, into);
            }
            _ => {}
        }
    }
    Ok(Accesses::new(all)?)
}

const fn kind(is_own: bool, access: Access) -> AccessKind {
    match (is_own, access) {
        (true, Access::Read) => AccessKind::CoreRead,
        (true, Access::Write) => AccessKind::CoreWrite,
        (false, Access::Read) => AccessKind::DeviceRead,
        (false, Access::Write) => AccessKind::DeviceWrite,
    }
}
