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

#[cfg(test)]
mod tests {
    use rackpool_model::PageId;
    use rackpool_trace::RackFrames;

    use super::*;

    #[test]
    fn a_rack_sees_its_programs_as_cores_and_the_others_as_devices() {
        let frames = |rack, first| RackFrames {
            rack: RackId(rack),
            first: PageId(first),
            frames: 8,
            free: 0,
        };
        let accessed = |at_ns, rack, page, access| Accessed {
            at_ns,
            page: PageId(page),
            rack: RackId(rack),
            access,
        };
        let trace = Trace {
            page_bytes: 4096,
            racks: vec![frames(0, 1), frames(1, 9)],
            homes: [(PageId(9), RackId(0))].into(),
            accesses: vec![
                accessed(1, 0, 1, Access::Write),
                accessed(2, 1, 1, Access::Read),
                accessed(3, 1, 9, Access::Write),
                accessed(4, 0, 10, Access::Read),
                accessed(5, 0, 10, Access::Write),
                accessed(6, 1, 10, Access::Read),
            ],
        };
        let seen = accesses(&trace, RackId(0), 100).unwrap();
        let kinds: Vec<(u64, AccessKind)> =
            seen.as_slice().iter().map(|one| (one.time_ns, one.kind)).collect();
        assert_eq!(
            kinds,
            [
                (1, AccessKind::CoreWrite),
                (2, AccessKind::DeviceRead),
                // The page had moved here.
                (3, AccessKind::DeviceWrite),
                // What it reads elsewhere arrives in its memory.
                (4, AccessKind::DeviceWrite),
                (4, AccessKind::CoreRead),
            ]
        );
        let page = |at: usize| seen.as_slice()[at].address / 4096;
        assert_eq!((page(0), page(1), page(2)), (1, 1, 9));
        assert!(seen.as_slice()[3].address >= ARRIVALS);
        let refused = accesses(&trace, RackId(7), 64).unwrap_err().to_string();
        assert!(refused.contains("no rack 7: it has 0, 1"), "{refused}");
    }
}
