//! A written trace can be read; other bytes are refused.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use proptest::prelude::*;
use rackpool_model::{Access, PageId, RackId};
use rackpool_trace::{Accessed, RackFrames, Recording, Trace, TraceError};

const RACKS: [RackFrames; 2] = [
    RackFrames { rack: RackId(0), first: PageId(1), frames: 100, free: 10 },
    RackFrames { rack: RackId(7), first: PageId(5000), frames: 1 << 20, free: 0 },
];

fn write(accesses: &[Accessed], homes: &[(PageId, RackId)]) -> Vec<u8> {
    let mut recording = Recording::start(Vec::new(), 65536, &RACKS).unwrap();
    for (page, rack) in homes {
        recording.lives(*page, *rack).unwrap();
    }
    for Accessed { at_ns, page, rack, access } in accesses {
        recording.accessed(*rack, *at_ns, *page, *access).unwrap();
    }
    recording.finish().unwrap()
}

fn accesses() -> impl Strategy<Value = Vec<Accessed>> {
    let page = prop_oneof![1_u32..101, 5000_u32..5000 + (1 << 20)];
    let one = (0_u64..1 << 40, page, any::<bool>(), any::<bool>());
    prop::collection::vec(one, 0..300).prop_map(|all| {
        let mut at_ns = 0;
        let mut access = |(wait, page, second, writes)| {
            at_ns += wait;
            let rack = RackId(if second { 7 } else { 0 });
            let access = if writes { Access::Write } else { Access::Read };
            Accessed { at_ns, page: PageId(page), rack, access }
        };
        all.into_iter().map(&mut access).collect()
    })
}

proptest! {
    #[test]
    fn what_is_written_is_read(accesses in accesses()) {
        let trace = Trace::parse(&write(&accesses, &[(PageId(5), RackId(7))])).unwrap();
        prop_assert_eq!(trace.racks.as_slice(), &RACKS);
        prop_assert_eq!(trace.page_bytes, 65536);
        prop_assert_eq!(trace.home(PageId(5)), Some(RackId(7)));
        prop_assert_eq!(trace.home(PageId(6)), Some(RackId(0)));
        prop_assert_eq!(trace.home(PageId(4999)), None);
        // Accesses of two racks at equal times may be reordered.
        let mut read = trace.accesses;
        let key = |access: &Accessed| (access.at_ns, access.rack);
        read.sort_by_key(key);
        let mut written = accesses;
        written.sort_by_key(key);
        prop_assert_eq!(read, written);
    }

    #[test]
    fn a_trace_that_breaks_off_or_is_changed_is_refused(
        accesses in accesses(), cut in any::<prop::sample::Index>(), bit in 0_u8..8,
    ) {
        let mut bytes = write(&accesses, &[]);
        let at = cut.index(bytes.len());
        prop_assert!(Trace::parse(&bytes[..at]).is_err());
        bytes[at] ^= 1 << bit;
        prop_assert!(Trace::parse(&bytes).is_err());
    }
}

#[test]
fn an_access_takes_four_bytes_when_pages_are_near_and_time_is_short() {
    let mut all = Vec::new();
    for n in 0..500_000_u64 {
        let page = PageId(1 + u32::try_from(n * 7 % 60).unwrap());
        let access = if n % 3 == 0 { Access::Write } else { Access::Read };
        all.push(Accessed { at_ns: n * 2000, page, rack: RackId(0), access });
    }
    let bytes = write(&all, &[]);
    assert!(bytes.len() < all.len() * 4 + 200, "{}", bytes.len());
    assert_eq!(Trace::parse(&bytes).unwrap().accesses, all);
}

#[test]
fn what_is_no_trace_says_how_to_make_one() {
    let error = Trace::parse(b"PNG").unwrap_err();
    assert_eq!(error, TraceError::Foreign);
    assert!(error.to_string().contains("--record"));
    let whole = write(&[], &[]);
    assert_eq!(Trace::parse(&whole[..whole.len() - 1]), Err(TraceError::CutOff(0)));
    let more = [&whole[..], b"A"].concat();
    assert!(matches!(Trace::parse(&more), Err(TraceError::Damaged(_))));
}

#[test]
fn racks_and_pages_that_can_not_be_are_refused() {
    let start = |racks: &[RackFrames]| {
        Trace::parse(&Recording::start(Vec::new(), 65536, racks).unwrap().finish().unwrap())
    };
    assert!(start(&RACKS).is_ok());
    assert!(start(&[]).is_err());
    assert!(start(&[RACKS[1], RACKS[0]]).is_err(), "not in order");
    assert!(start(&[RackFrames { free: 101, ..RACKS[0] }]).is_err());
    assert!(start(&[RackFrames { frames: u32::MAX, ..RACKS[1] }]).is_err());
    let strange = |page, rack| {
        let access = Access::Read;
        let access = Accessed { at_ns: 0, page: PageId(page), rack: RackId(rack), access };
        Trace::parse(&write(&[access], &[]))
    };
    assert!(strange(1, 0).is_ok());
    assert!(strange(0, 0).is_err());
    assert!(strange(200, 0).is_err());
    assert!(strange(1, 3).is_err());
}
