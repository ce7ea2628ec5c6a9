use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use rackpool_model::{FrameId, PageEvent, PageId, PageSize, PageWord, RackId, SizeClass};
use rackpool_ring::client_file::ThreadSlot;
use rackpool_ring::reservation::{Armed, Borrowed, RESERVATIONS};
use rackpool_shm::metadata::PageUse;
use rackpool_sync::atomic::AtomicU64;
use rackpool_wire::rack::{RackAnswer, RackRequest};

use super::{Phase, PublishCas, PublishMode, Reservation};
use crate::testing::Bench;
use crate::thread::Thread;
use crate::{AccessError, AllocError, DaemonError, GlobalAddr};

const PAGE: u64 = PageSize::DEFAULT.bytes();
/// Refills hand out the 64 B objects of page 1 from index 2 up to this one (exclusive).
const OBJECTS: u64 = 48;
const LINK: GlobalAddr = GlobalAddr::from_raw(PAGE);

fn object(index: u64) -> GlobalAddr {
    GlobalAddr::from_raw(PAGE + index * 64)
}

/// A bench whose page 1 lies in frame 0 and has objects 0 to 63 in use; those from 2 on are handed
/// out, 30 at a time.
fn bench() -> Bench {
    let mut bench = Bench::new();
    let class = SizeClass::for_bytes(64, PageSize::DEFAULT).unwrap();
    let (page, frame) = (PageId(1), FrameId(0));
    let word = PageWord::free(page).apply(PageEvent::Allocated).unwrap();
    let layout = bench.connection.layout;
    let cell = |at: u64| bench.metadata.view::<AtomicU64>(at).unwrap();
    cell(layout.word(frame)).store(word.raw(), Ordering::Release);
    let usage = PageUse::Slab(class).to_raw();
    cell(layout.header(frame)).store(usage, Ordering::Release);
    cell(layout.bit(frame, class, 0).word).store(u64::MAX, Ordering::Release);
    let mut next = 2;
    bench.serve(move |slot, request| match request {
        RackRequest::Translate { page: PageId(1), .. } => {
            Some(RackAnswer::Local { frame, word, usage })
        }
        RackRequest::Translate { .. } => Some(RackAnswer::Remote { home: RackId(1), usage }),
        RackRequest::Refill { .. } => {
            for cell in slot.inbox.iter().take(30) {
                cell.store(object(next).raw(), Ordering::Release);
                next = if next + 1 == OBJECTS { 2 } else { next + 1 };
            }
            Some(RackAnswer::Done(30))
        }
        // Atomics in other racks get no answer.
        _ => None,
    });
    bench
}

fn thread(bench: &Bench) -> Thread {
    bench.thread()
}

fn reservation(thread: &mut Thread) -> Reservation {
    let reservation = thread.reservation(Some(64)).unwrap();
    thread
        .transfer(
            reservation.addr(),
            crate::transfer::Bytes::Write(&reservation.token().to_le_bytes()),
        )
        .unwrap();
    reservation
}

fn word(thread: &mut Thread, addr: GlobalAddr) -> u64 {
    let mut word = [0; 8];
    thread.transfer(addr, crate::transfer::Bytes::Read(&mut word)).unwrap();
    u64::from_le_bytes(word)
}

fn link(expected: u64, new: u64, replaced: Option<GlobalAddr>) -> PublishCas {
    PublishCas { addr: LINK, expected, new, mask: u64::MAX, replaced, mode: PublishMode::Plain }
}

fn is_cached(slot: &ThreadSlot, addr: GlobalAddr) -> bool {
    slot.magazines.iter().flatten().any(|cell| cell.load(Ordering::Relaxed) == addr.raw())
}

#[test]
fn a_reservation_stands_in_its_record_until_it_is_finished() {
    let bench = bench();
    let mut thread = thread(&bench);
    let reservation = reservation(&mut thread);
    let (addr, slot) = (reservation.addr(), bench.slot(0));
    let noted = slot.reservations[0].noted().map(|cell| cell.load(Ordering::Relaxed));
    assert!(slot.reservations[0].is_held());
    assert_eq!(noted, Some(addr.raw()));
    assert!(!is_cached(slot, addr));
    thread.finish(&reservation).unwrap();
    assert!(slot.reservations[0].is_free() && is_cached(slot, addr));
}

#[test]
fn a_published_reservation_has_a_clear_owner_word_and_frees_what_it_replaced() {
    let bench = bench();
    let mut thread = thread(&bench);
    let (mut first, mut second) = (reservation(&mut thread), reservation(&mut thread));
    let (old, new) = (first.addr(), second.addr());
    assert_eq!(thread.publish(&mut first, &link(0, old.raw(), None)), Ok(0));
    assert_eq!((word(&mut thread, LINK), word(&mut thread, old)), (old.raw(), 0));
    thread.finish(&first).unwrap();
    let slot = bench.slot(0);
    assert!(slot.reservations[0].is_free() && !is_cached(slot, old));
    let swap = link(old.raw(), new.raw(), Some(old));
    assert_eq!(thread.publish(&mut second, &swap), Ok(old.raw()));
    // The record names what was replaced until that is noted elsewhere.
    let armed = Armed {
        object: new.raw(),
        token: second.token(),
        link: LINK.raw(),
        word: new.raw(),
        mask: u64::MAX,
        replaced: old.raw(),
        mode: rackpool_ring::reservation::ArmedMode::Plain,
    };
    assert_eq!(slot.reservations[1].armed(), Some(armed));
    assert_eq!(thread.publish(&mut second, &swap), Err(AccessError::NotAReservation(new)));
    thread.finish(&second).unwrap();
    assert!(slot.reservations[1].is_free() && is_cached(slot, old) && !is_cached(slot, new));
}

#[test]
fn a_refused_reservation_is_held_again() {
    let bench = bench();
    let mut thread = thread(&bench);
    let mut reservation = reservation(&mut thread);
    assert_eq!(thread.publish(&mut reservation, &link(7, 1, Some(LINK))), Ok(0));
    assert!(bench.slot(0).reservations[0].is_held());
    assert_eq!(word(&mut thread, reservation.addr()), reservation.token());
    thread.finish(&reservation).unwrap();
    assert!(is_cached(bench.slot(0), reservation.addr()));
    assert!(!is_cached(bench.slot(0), LINK), "nothing was replaced");
}

#[test]
fn a_reservation_in_doubt_frees_nothing_until_it_is_decided() {
    let bench = bench();
    let mut thread = thread(&bench);
    for decided in [None, Some(false), Some(true)] {
        let mut reservation = reservation(&mut thread);
        let (addr, slot) = (reservation.addr(), bench.slot(0));
        // In another rack, which never answers: the swap may still be executed after the client
        // gives up.
        let far = PublishCas {
            addr: GlobalAddr::from_raw(9 * PAGE),
            ..link(0, addr.raw(), Some(object(1)))
        };
        let found = thread.publish(&mut reservation, &far);
        assert_eq!(found, Err(DaemonError::Unavailable.into()));
        assert_eq!(reservation.phase, Phase::InDoubt);
        if let Some(published) = decided {
            if !published {
                thread.resolve(&mut reservation, false);
                assert_eq!(reservation.phase, Phase::InDoubt, "the swap may still be made");
                Bench::lose_calls(&bench.connection);
            }
            thread.resolve(&mut reservation, published);
        }
        thread.finish(&reservation).unwrap();
        assert_eq!(is_cached(slot, addr), decided == Some(false));
        assert_eq!(is_cached(slot, object(1)), decided == Some(true));
        assert_eq!(slot.reservations[0].armed().is_some(), decided.is_none());
        if decided.is_none() {
            slot.reservations[0].clear();
            thread.reservations.left = 0;
        }
    }
}

#[test]
fn a_thread_has_sixteen_reservations_and_forgets_those_in_doubt_first() {
    let bench = bench();
    let mut thread = thread(&bench);
    let reservations: Vec<Reservation> =
        (0..RESERVATIONS).map(|_| reservation(&mut thread)).collect();
    assert_eq!(thread.reservation(Some(64)).unwrap_err(), AllocError::TooManyReservations);
    assert_eq!(thread.reservation(None).unwrap_err(), AllocError::TooManyReservations);
    let tokens: BTreeSet<u64> = reservations.iter().map(Reservation::token).collect();
    assert_eq!(tokens.len(), RESERVATIONS);
    let mut doubtful = reservations.into_iter().next().unwrap();
    doubtful.phase = Phase::InDoubt;
    bench.slot(0).reservations[0].arm(&Armed { object: 1, ..Armed::default() });
    thread.finish(&doubtful).unwrap();
    let next = thread.reservation(Some(64)).unwrap();
    assert_eq!(next.record, 0);
    assert!(bench.slot(0).reservations[0].is_held());
}

#[test]
fn what_an_earlier_thread_left_in_doubt_is_not_overwritten() {
    let bench = bench();
    let left = Armed { object: 64, token: 1, ..Armed::default() };
    bench.slot(0).reservations[0].arm(&left);
    let mut thread = thread(&bench);
    let reservation = reservation(&mut thread);
    assert_eq!(reservation.record, 1);
    assert_eq!(bench.slot(0).reservations[0].armed(), Some(left));
    thread.finish(&reservation).unwrap();
}

#[test]
fn what_is_taken_out_of_a_word_goes_back_there() {
    let bench = bench();
    let mut thread = thread(&bench);
    let (place, link_at, slot) = (LINK, object(1), bench.slot(0));
    let (shelved, old) = (object(40), object(41));
    let put = |thread: &mut Thread, at: GlobalAddr, word: u64| {
        let bytes = word.to_le_bytes();
        thread.transfer(at, crate::transfer::Bytes::Write(&bytes)).unwrap();
    };
    for replaced in [None, Some(old), Some(GlobalAddr::NULL)] {
        put(&mut thread, place, shelved.raw());
        put(&mut thread, link_at, 5);
        assert!(thread.take_out(place, old).unwrap().is_none() && slot.reservations[0].is_free());
        let mut reservation = thread.take_out(place, shelved).unwrap().unwrap();
        let borrowed =
            Borrowed { object: shelved.raw(), token: reservation.token(), place: place.raw() };
        assert_eq!(
            (word(&mut thread, place), slot.reservations[0].borrowed()),
            (reservation.token(), Some(borrowed))
        );
        put(&mut thread, shelved, reservation.token());
        if let Some(replaced) = replaced {
            let replaced = Some(replaced).filter(|addr| !addr.is_null());
            let swap = PublishCas { addr: link_at, ..link(5, shelved.raw(), replaced) };
            assert_eq!(thread.publish(&mut reservation, &swap), Ok(5));
            assert_eq!(word(&mut thread, shelved), 0, "the owner word");
        }
        thread.finish(&reservation).unwrap();
        assert_eq!(word(&mut thread, place), replaced.unwrap_or(shelved).raw());
        assert!(
            slot.reservations[0].is_free() && !is_cached(slot, old) && !is_cached(slot, shelved)
        );
    }
}

#[test]
fn a_link_is_settled_but_for_the_bits_that_others_may_change() {
    let bench = bench();
    let mut thread = thread(&bench);
    let old = object(1);
    let tombstone = thread.reservation(None).unwrap();
    thread.finish(&tombstone).unwrap();
    let mut tombstone = thread.reservation(None).unwrap();
    let swap =
        PublishCas { mask: !1, mode: PublishMode::Settle(0x80), ..link(0, 0x100, Some(old)) };
    assert_eq!(thread.publish(&mut tombstone, &swap), Ok(0));
    thread.atomic(LINK, rackpool_shm::window::AtomicOperation::FetchAndAdd { delta: 1 }).unwrap();
    thread.finish(&tombstone).unwrap();
    assert_eq!(word(&mut thread, LINK), 0x81);
    assert!(is_cached(bench.slot(0), old) && bench.slot(0).reservations[0].is_free());
}

#[test]
fn a_reservation_that_compares_frees_what_whoever_decides_it_says() {
    let bench = bench();
    let mut thread = thread(&bench);
    let (old, slot) = (object(1), bench.slot(0));
    for counts in [None, Some(false), Some(true)] {
        let mut reservation = reservation(&mut thread);
        let (addr, before) = (reservation.addr(), word(&mut thread, LINK));
        let swap =
            PublishCas { mode: PublishMode::Compare(9), ..link(before, addr.raw(), Some(old)) };
        assert_eq!(thread.publish(&mut reservation, &swap), Ok(before));
        assert_eq!(word(&mut thread, addr), reservation.token(), "the caller swaps it");
        match counts {
            Some(true) => thread.resolve(&mut reservation, true),
            Some(false) => {
                slot.reservations[usize::from(reservation.record)].disarm();
                reservation.phase = Phase::Held;
            }
            None => {}
        }
        thread.finish(&reservation).unwrap();
        assert_eq!(is_cached(slot, addr), counts == Some(false));
        assert_eq!(is_cached(slot, old), counts == Some(true));
        assert!(slot.reservations[0].armed().is_some(), "the first is left to the daemon");
    }
}
