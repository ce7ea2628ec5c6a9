//! Reads of another rack into fixed memory: where they may land, and for how long it is not reused.

use super::*;

/// A rack with a lease of the other rack's page, and a head with an extent of a page.
struct Reading {
    stand: Stand,
    head: GlobalAddr,
    extent: GlobalAddr,
    batch: u64,
}

impl Reading {
    fn new() -> Self {
        let mut stand = Stand::new();
        stand.lease();
        let refill = RackRequest::RefillFixed { bytes: 64, count: 1 };
        assert_eq!(stand.call(1, refill), Some(RackAnswer::Done(1)));
        let slot = stand.plane.client(CLIENT).unwrap().file().thread(0).unwrap();
        let head = GlobalAddr::from_raw(slot.inbox[0].swap(0, Ordering::Relaxed));
        let extend = RackRequest::Extend { head, pages: 1, known: 0 };
        let Some(RackAnswer::Extent { addr: extent, pages: 1 }) = stand.call(1, extend) else {
            panic!("no extent")
        };
        Self { stand, head, extent, batch: 0 }
    }

    fn read(
        &mut self,
        cell: u8,
        from: GlobalAddr,
        len: u64,
        into: GlobalAddr,
    ) -> Option<RackAnswer> {
        self.batch += 1;
        let (head, batch) = (self.head, self.batch);
        self.stand.call(cell, RackRequest::ReadInto { addr: from, len, head, into, batch })
    }

    fn free_head(&mut self) {
        let slot = self.stand.plane.client(CLIENT).unwrap().file().thread(0).unwrap();
        slot.outbox[0].store(self.head.raw(), Ordering::Relaxed);
        assert_eq!(self.stand.call(1, RackRequest::Release), Some(RackAnswer::Done(0)));
    }

    /// Whether the rack has the memory of the extent again, after all pauses between two scans. The
    /// page of heads stays open.
    fn is_free(&mut self) -> bool {
        (0..20).for_each(|_| self.stand.step(100));
        self.stand.plane.metrics().free_frames == PlaneUnderTest::FRAMES - 1
    }
}

#[test]
fn a_read_lands_in_the_head_or_its_extents_and_nowhere_else() {
    let mut reading = Reading::new();
    let page = PlaneUnderTest::page_size().bytes();
    let at = |addr: GlobalAddr, offset| addr.add(offset).unwrap();
    let (head, extent, remote) = (reading.head, reading.extent, addr(REMOTE));
    for (from, len, into) in [
        (remote, 0, extent),
        (remote, page + 1, extent),
        (remote, 65, head),
        (remote, 64, at(head, 1)),
        (remote, 64, at(head, 64)),
        (remote, 64, at(extent, page - 63)),
        (remote, 64, at(extent, page)),
        (at(remote, 8), page, extent),
        (remote, 64, remote),
        (remote, 64, GlobalAddr::NULL),
        (remote, 64, GlobalAddr::from_raw(u64::MAX)),
        (GlobalAddr::from_raw(u64::MAX), 64, extent),
    ] {
        let refused = Some(RackAnswer::Invalid);
        assert_eq!(reading.read(2, from, len, into), refused, "{len} B of {from} into {into}");
    }
    for (len, into) in [(64, head), (page, extent), (64, at(extent, page - 64))] {
        assert_eq!(reading.read(2, remote, len, into), None, "{len} B into {into}");
        reading.stand.plane.complete(0);
        reading.stand.step(0);
        assert_eq!(reading.stand.answer(2), Some(RackAnswer::DoneAt(HOME)));
    }
    reading.head = extent;
    assert_eq!(reading.read(2, remote, 64, extent), Some(RackAnswer::Invalid), "no head");
    reading.head = head;
    reading.free_head();
    assert!(reading.is_free());
    assert_eq!(reading.read(2, remote, 64, extent), Some(RackAnswer::Invalid), "it is free");
}

#[test]
fn memory_is_not_reused_while_a_read_may_land_in_it() {
    for is_client_killed in [false, true] {
        let mut reading = Reading::new();
        let (extent, remote) = (reading.extent, addr(REMOTE));
        assert_eq!(reading.read(2, remote, 4096, extent), None);
        reading.free_head();
        if is_client_killed {
            reading.stand.plane.kill(CLIENT).unwrap();
        }
        assert!(!reading.is_free(), "the read is under way");
        reading.stand.plane.complete(0);
        assert!(reading.is_free(), "it has ended");
    }
}
