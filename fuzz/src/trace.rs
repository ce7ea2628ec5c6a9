//! Access traces, as `rackpool heat replay` reads them.

use rackpool_trace::{Accessed, Costs, Policy, Recording, Trace, replay};
use xxhash_rust::xxh3::xxh3_64;

/// The most accesses that are replayed, so that a run stays short.
const REPLAYED: usize = 2000;

/// Bytes of the header up to the number of racks, of the entry of a rack, and of a part up to its
/// content.
const HEADER: usize = 18;
const RACK: usize = 14;
const PART: usize = 13;

/// Writes valid checksums where the format has them; without them no mutation would be accepted.
fn repair(bytes: &mut [u8]) {
    let racks = bytes.get(16..HEADER).map_or(0, |count| u16::from_le_bytes([count[0], count[1]]));
    let mut at = HEADER + RACK * usize::from(racks);
    let Some((header, rest)) = bytes.split_at_mut_checked(at) else { return };
    let Some(sum) = rest.get_mut(..8) else { return };
    sum.copy_from_slice(&xxh3_64(header).to_le_bytes());
    at += 8;
    while let Some(part) = bytes.get_mut(at..).filter(|part| part.len() >= PART) {
        let (head, content) = part.split_at_mut(PART);
        let length = u32::from_le_bytes([head[1], head[2], head[3], head[4]]);
        let length = usize::try_from(length).unwrap();
        let Some(content) = content.get(..length) else { return };
        let sum = xxh3_64(content).wrapping_add(u64::from(head[0]));
        head[5..].copy_from_slice(&sum.to_le_bytes());
        at += PART + length;
    }
}

/// Bytes are refused, or encode exactly one trace, which can be replayed whatever it contains. No
/// access is lost, and an access that is remote without swaps becomes local only by a move.
pub fn trace(bytes: &[u8]) {
    check(bytes);
    let mut bytes = bytes.to_vec();
    repair(&mut bytes);
    check(&bytes);
}

fn check(bytes: &[u8]) {
    let Ok(mut trace) = Trace::parse(bytes) else { return };
    let mut again = Recording::start(Vec::new(), trace.page_bytes, &trace.racks).unwrap();
    for (page, home) in &trace.homes {
        again.lives(*page, *home).unwrap();
    }
    for Accessed { at_ns, page, rack, access } in &trace.accesses {
        again.accessed(*rack, *at_ns, *page, *access).unwrap();
    }
    let written = again.finish().unwrap();
    let mut read = Trace::parse(&written).unwrap();
    // Equal times of two racks may change places.
    let key = |access: &Accessed| (access.at_ns, access.rack);
    read.accesses.sort_by_key(key);
    trace.accesses.sort_by_key(key);
    assert_eq!(read, trace);
    trace.accesses.truncate(REPLAYED);
    let still = Policy { swaps: false, ..Policy::DEFAULT };
    let [moving, still] =
        [Policy::DEFAULT, still].map(|policy| replay(&trace, &policy, &Costs::DEFAULT).unwrap());
    assert_eq!(moving.accesses, trace.accesses.len() as u64);
    assert_eq!((still.accesses, still.moves), (moving.accesses, 0));
    assert!(moving.local <= moving.accesses && moving.returns <= moving.moves);
    assert!(moving.moves > 0 || moving.local == still.local, "{moving:?}");
}
