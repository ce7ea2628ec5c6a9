//! Fixed objects, their extents and pins: memory that keeps its place comes back when its program
//! is killed, and is not reused while another program reads it.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use rackpool_client::{
    AccessError, AllocError, Extent, FreeError, GlobalAddr, MapError, Pin, PinError, Pool, RackId,
};
use rackpool_testing::wait::{TIMEOUT, wait_until};
use rackpool_tests::census;
use rackpool_tests::client::{TestClient, parse_addr};
use rackpool_tests::contents;
use rackpool_tests::pool::{PAGE, TestPool};

/// The most time until everything of a killed client is reclaimed.
const RECLAIM: Duration = Duration::from_secs(1);
/// A time in which the daemon looks at each retired object at least once: twice the longest pause.
const LOOKED_AT: Duration = Duration::from_millis(200);

fn refused(addr: GlobalAddr) -> Result<(), FreeError> {
    Err(FreeError::NotAllocated(addr))
}

fn write(pool: &Pool, addr: GlobalAddr, bytes: u64, tag: u64) {
    pool.write(addr, &contents::of(tag, usize::try_from(bytes).unwrap())).unwrap();
}

fn sum(extents: &[Extent]) -> u64 {
    extents.iter().map(|extent| extent.bytes).sum()
}

/// A head with extents that hold a pattern, which stays when its program ends.
fn written_head(pool: &Pool, bytes: u64) -> (GlobalAddr, Vec<Extent>) {
    let head = pool.alloc_fixed(64).unwrap();
    let extents = pool.alloc_extents(head, bytes).unwrap();
    for Extent { addr, bytes } in &extents {
        write(pool, *addr, *bytes, addr.raw());
    }
    pool.disown(head).unwrap();
    (head, extents)
}

#[test]
fn owned_objects_of_a_killed_client_come_back_within_a_second() {
    let pool = TestPool::small();
    let mut client = pool.client(0, &["serve"]);
    let last = parse_addr(&client.ask("own 100000 64"));
    // The daemon publishes its counts after it has answered.
    wait_until("they are counted", TIMEOUT, || pool.allocated()[0] >= 6_400_000);
    let own = pool.open(0);
    let began = Instant::now();
    client.kill();
    // Requests are served meanwhile.
    let mut slowest = Duration::ZERO;
    while pool.allocated()[0] > 0 && began.elapsed() < RECLAIM {
        let asked = Instant::now();
        own.ping().unwrap();
        slowest = slowest.max(asked.elapsed());
    }
    pool.wait_allocated("all objects are back", Duration::ZERO, [0, 0]);
    assert!(slowest < RECLAIM / 4, "a request waited for {slowest:?}");
    assert_eq!(own.free(last), refused(last));
    own.close();
    wait_until("its file is gone", TIMEOUT, || census::client_files(&pool, 0) == 0);
    census::wait_until_frames_are_free(&pool);
}

#[test]
fn what_was_disowned_or_published_stays_and_a_reservation_comes_back() {
    let mut pool = TestPool::small();
    let own = pool.open(0);
    let link = own.alloc(16).unwrap();
    own.write(link, &[0; 16]).unwrap();
    let (disowned, _) = written_head(&own, PAGE);
    for is_daemon_killed in [false, true] {
        let before = census::objects(&pool);
        let mut client = pool.client(0, &["reservations"]);
        let [published, _unpublished] =
            [0; 2].map(|_| parse_addr(&client.ask(&format!("own 64 {}", 2 * PAGE))));
        assert_eq!(client.ask(&format!("publish 0 {:x} 0 0", link.raw())), "0");
        if is_daemon_killed {
            pool.kill_daemon(0);
        }
        client.kill();
        if is_daemon_killed {
            pool.restart_daemon(0);
        }
        let expected: BTreeSet<_> = before.keys().copied().chain([published]).collect();
        wait_until("only what is reachable is left", TIMEOUT, || {
            census::objects(&pool).into_keys().collect::<BTreeSet<_>>() == expected
        });
        assert_eq!(sum(&own.extents(published).unwrap()), 2 * PAGE);
        own.write(link, &[0; 8]).unwrap();
        own.free(published).unwrap();
    }
    for addr in [disowned, link] {
        own.free(addr).unwrap();
    }
    own.close();
    pool.wait_allocated("all is freed", TIMEOUT, [0, 0]);
}

/// Allocates all memory of the rack and overwrites it, then frees it and waits until it is free.
fn use_all_memory(pool: &TestPool, own: &Pool) {
    let before = pool.allocated()[0];
    let small: Vec<_> = (0..64).map_while(|_| own.alloc_fixed(64).ok()).collect();
    let pages: Vec<_> = std::iter::from_fn(|| own.alloc_fixed(PAGE).ok()).collect();
    assert!(small.len() == 64 && pages.len() > 200, "the rack was full before");
    small.iter().for_each(|addr| write(own, *addr, 64, 0xbad));
    pages.iter().for_each(|addr| write(own, *addr, PAGE, 0xbad));
    small.iter().chain(&pages).for_each(|addr| own.free(*addr).unwrap());
    let pages = u32::try_from(pages.len()).unwrap();
    wait_until("the rest is free", TIMEOUT, || {
        // Objects of 64 B that are allocated ahead are owned.
        pool.allocated()[0] <= before + 64 * 64 && pool.status(0).free_frames + 1 >= pages
    });
}

#[track_caller]
fn check(reader: &mut TestClient, head: GlobalAddr, extents: &[Extent]) {
    assert_eq!(reader.ask(&format!("check {:x} 64 {}", head.raw(), head.raw())), "ok");
    for Extent { addr, bytes } in extents {
        assert_eq!(reader.ask(&format!("check {:x} {bytes} {}", addr.raw(), addr.raw())), "ok");
    }
}

#[test]
fn bytes_of_a_pinned_object_are_reused_only_after_its_reader_has_ended() {
    let mut pool = TestPool::small();
    let own = pool.open(0);
    let (head, extents) = written_head(&own, 5 * PAGE);
    write(&own, head, 64, head.raw());
    let mut reader = pool.client(0, &["serve"]);
    assert_eq!(reader.ask(&format!("pin {:x}", head.raw())), "ok");
    own.free(head).unwrap();
    assert_eq!(own.free(head), refused(head), "it is retired");
    assert!(matches!(own.extents(head), Err(AllocError::NotAHead(_))));
    use_all_memory(&pool, &own);
    check(&mut reader, head, &extents);
    // The mark and the pin outlive the daemon, and a stopped reader keeps its pin.
    pool.kill_daemon(0);
    reader.signal(Signal::SIGSTOP);
    pool.restart_daemon(0);
    assert_eq!(own.free(head), refused(head));
    use_all_memory(&pool, &own);
    reader.signal(Signal::SIGCONT);
    check(&mut reader, head, &extents);
    assert_eq!(census::retired(&pool), 1);
    reader.kill();
    own.close();
    pool.wait_allocated("the reader has ended", RECLAIM, [0, 0]);
    let next = pool.open(0);
    let reused: BTreeSet<_> = (0..64).map(|_| next.alloc_fixed(64).unwrap()).collect();
    assert!(reused.contains(&head), "the object's memory is not reused");
}

#[test]
fn a_dropped_pin_keeps_nothing() {
    let pool = TestPool::small();
    let own = pool.open(0);
    let (head, _) = written_head(&own, 3 * PAGE);
    let (first, second) = (own.pin(head).unwrap(), own.pin(head).unwrap());
    own.free(head).unwrap();
    std::thread::sleep(LOOKED_AT);
    assert_eq!(census::retired(&pool), 1, "two pins name it");
    drop(first);
    std::thread::sleep(LOOKED_AT);
    assert_eq!(census::retired(&pool), 1, "a pin names it");
    drop(second);
    wait_until("no pin names it", RECLAIM, || census::retired(&pool) == 0);
    own.close();
    pool.wait_allocated("all is freed", RECLAIM, [0, 0]);
}

#[test]
fn a_retired_object_is_freed_by_nobody_again() {
    let mut pool = TestPool::small();
    pool.wait_until_racks_meet();
    let racks = [pool.open(0), pool.open(1)];
    let (head, extents) = written_head(&racks[0], 2 * PAGE);
    for extent in &extents {
        assert_eq!(racks[0].free(extent.addr), refused(extent.addr), "it goes with its head");
        assert_eq!(racks[1].free(extent.addr), refused(extent.addr), "it goes with its head");
    }
    let pin = racks[0].pin(head).unwrap();
    racks[1].free(head).unwrap();
    let program = pool.open(0);
    for _ in 0..2 {
        for free in [&racks[0], &racks[1], &program] {
            assert_eq!(free.free(head), refused(head));
        }
        pool.kill_daemon(0);
        pool.restart_daemon(0);
        pool.wait_until_racks_serve();
    }
    drop(pin);
    program.close();
    racks.into_iter().for_each(Pool::close);
    pool.wait_allocated("all is freed once", TIMEOUT, [0, 0]);
}

#[test]
fn a_fragmented_rack_has_room_for_extents() {
    let pool = TestPool::small();
    let own = pool.open(0);
    let mut pages: Vec<_> = std::iter::from_fn(|| own.alloc_fixed(PAGE).ok()).collect();
    assert_eq!(pages.len(), 255, "the last page is for movable objects");
    // Refills bring pages in any order.
    pages.sort_unstable();
    for addr in pages.iter().skip(1).step_by(2) {
        own.free(*addr).unwrap();
    }
    // 128 pages are free and no neighbours. One gets the head, and one stays.
    let head = own.alloc_fixed(64).unwrap();
    let bytes = 126 * PAGE;
    let extents = own.alloc_extents(head, bytes).unwrap();
    assert_eq!((extents.len(), sum(&extents)), (126, bytes));
    assert_eq!(own.extents(head).unwrap(), extents);
    assert_eq!(own.alloc_extents(head, bytes).unwrap(), extents, "it has them already");
    let distinct: BTreeSet<_> = extents.iter().map(|extent| extent.addr).collect();
    assert_eq!(distinct.len(), 126);
    let full = own.alloc_extents(head, bytes + 1);
    assert!(matches!(full, Err(AllocError::RackFull { rack: RackId(0), free: 1, .. })), "{full:?}");
    own.free(head).unwrap();
    pages.iter().step_by(2).for_each(|addr| own.free(*addr).unwrap());
    let one = own.alloc_fixed(64).unwrap();
    let whole = own.alloc_extents(one, 254 * PAGE).unwrap();
    assert_eq!(sum(&whole), 254 * PAGE, "all frames but that of the head and the last one");
    own.free(one).unwrap();
    own.close();
    pool.wait_allocated("all is freed", TIMEOUT, [0, 0]);
}

#[test]
fn wrong_calls_are_refused_and_change_nothing() {
    let pool = TestPool::small();
    pool.wait_until_racks_meet();
    let racks = [pool.open(0), pool.open(1)];
    let own = &racks[0];
    assert!(matches!(own.alloc_fixed(0), Err(AllocError::ZeroSize)));
    let larger = own.alloc_fixed(PAGE + 1);
    assert!(matches!(larger, Err(AllocError::LargerThanPage { page_bytes: PAGE, .. })));
    let (movable, run) = (own.alloc(64).unwrap(), own.alloc(2 * PAGE).unwrap());
    let (small, head) = (own.alloc_fixed(32).unwrap(), own.alloc_fixed(64).unwrap());
    for addr in [movable, run, small, head.add(16).unwrap(), GlobalAddr::NULL] {
        assert!(matches!(own.alloc_extents(addr, 1), Err(AllocError::NotAHead(_))), "{addr}");
        assert!(matches!(own.extents(addr), Err(AllocError::NotAHead(_))), "{addr}");
    }
    assert!(matches!(racks[1].alloc_extents(head, 1), Err(AllocError::NotAHead(_))), "far");
    assert!(matches!(own.alloc_extents(head, 0), Err(AllocError::ZeroSize)));
    for addr in [movable, run, head.add(16).unwrap()] {
        let told = own.pin(addr).err();
        assert_eq!(told, Some(PinError::Access(AccessError::NotFixed(addr))), "{addr}");
    }
    let far = racks[1].pin(head).err();
    assert_eq!(far, Some(PinError::Access(AccessError::NotFixed(head))), "of another rack");
    for other in [movable, GlobalAddr::NULL] {
        assert_eq!(own.disown(other), Err(AccessError::NotOwned(other)));
        let told = own.reserve_owned(other).err();
        assert_eq!(told, Some(AllocError::Access(AccessError::NotOwned(other))));
    }
    assert_eq!(racks[1].disown(head), Err(AccessError::NotOwned(head)), "of another program");
    own.disown(head).unwrap();
    assert_eq!(own.disown(head), Err(AccessError::NotOwned(head)), "no longer");
    let inner = head.add(16).unwrap();
    let told = own.free(inner);
    assert_eq!(told, Err(FreeError::NotAnObject { addr: inner, object_bytes: 64 }));
    for addr in [movable, run, small, head] {
        own.free(addr).unwrap();
    }
    racks.into_iter().for_each(Pool::close);
    pool.wait_allocated("all is freed", TIMEOUT, [0, 0]);
}

#[test]
fn pinned_memory_is_a_slice_and_only_its_owner_writes_it() {
    let pool = TestPool::small();
    let [own, other] = [0, 0].map(|rack| Arc::new(pool.open(rack)));
    let pin = |pool: &Arc<Pool>, addr| Pin::new(Arc::clone(pool), addr).unwrap();
    let (bytes, head) = (5 * PAGE, own.alloc_fixed(256).unwrap());
    let extents = own.alloc_extents(head, bytes).unwrap();
    let foreign = own.alloc_fixed(64).unwrap();
    let foreign_extents = own.alloc_extents(foreign, PAGE).unwrap();
    let mut whole = pin(&own, head).map_extents_mut(&extents, bytes).unwrap();
    assert_eq!(whole.len() as u64, bytes);
    let contents = contents::of(7, usize::try_from(bytes).unwrap());
    let (first, rest) = contents.split_at(1001);
    whole[..first.len()].copy_from_slice(first);
    whole.copy_past_caches(first.len(), rest).unwrap();
    let beyond = AccessError::BeyondObject { addr: head, len: 2, available: 1 };
    assert_eq!(whole.copy_past_caches(contents.len() - 1, &[0; 2]), Err(beyond));
    let being_written = AccessError::BeingWritten(head);
    let told = pin(&own, head).map_extents(&extents, bytes);
    assert!(matches!(told, Err(MapError::Access(error)) if error == being_written));
    let told = pin(&own, head).map_head_mut(0..64);
    assert!(matches!(told, Err(MapError::Access(error)) if error == being_written));
    assert_eq!(own.disown(head), Err(being_written.clone()));
    assert_eq!(own.reserve_owned(head).err(), Some(AllocError::Access(being_written)));
    let told = pin(&other, head).map_extents_mut(&extents, bytes);
    assert!(matches!(told, Err(MapError::Access(AccessError::NotOwned(_)))), "{told:?}");
    drop(whole);
    let view = pin(&other, head).map_extents(&extents, bytes - 1).unwrap();
    assert_eq!((view.len() as u64, contents::difference(7, &view)), (bytes - 1, None));
    let at = view.frames_offset().unwrap();
    let mut byte = [0; 8];
    rustix::io::pread(other.frames_file(), &mut byte, at).unwrap();
    assert_eq!(byte, view[..8]);
    // Memory of other objects, and more than there is, is refused.
    let inner = Extent { addr: extents[0].addr.add(PAGE).unwrap(), bytes: PAGE };
    let longer = Extent { bytes: 6 * PAGE, ..extents[0] };
    for wrong in [&foreign_extents[..], &[inner], &[longer], &[Extent { addr: head, bytes: 64 }]] {
        let told = pin(&own, head).map_extents(wrong, wrong[0].bytes);
        assert!(matches!(told, Err(MapError::NotItsMemory { .. })), "{told:?}");
    }
    let told = pin(&own, head).map_extents(&extents, bytes + 1);
    assert!(matches!(told, Err(MapError::NotItsMemory { .. })), "{told:?}");
    assert!(matches!(pin(&own, head).map_head(64..257), Err(MapError::NotItsMemory { .. })));
    // The slice stays when the object is freed.
    own.free(head).unwrap();
    use_all_memory(&pool, &own);
    assert_eq!(contents::difference(7, &view), None);
    drop(view);
    own.free(foreign).unwrap();
    drop((own, other));
    pool.wait_allocated("all is freed", TIMEOUT, [0, 0]);
}

#[test]
fn words_of_an_object_are_stored_while_its_bytes_are_read() {
    let pool = TestPool::small();
    pool.wait_until_racks_meet();
    let [own, other] = [0, 1].map(|rack| Arc::new(pool.open(rack)));
    let from = other.alloc(PAGE).unwrap();
    write(&other, from, PAGE, 5);
    let head = own.alloc_fixed(256).unwrap();
    let extents = own.alloc_extents(head, PAGE).unwrap();
    let pin = || Pin::new(Arc::clone(&own), head).unwrap();
    let mut bytes = pin().map_extents_mut(&extents, PAGE).unwrap();
    let (words, mut done) = (bytes.words(8).unwrap(), 0);
    let len = usize::try_from(PAGE).unwrap();
    bytes
        .read_from(0, from, len, |piece| {
            done += piece.len() as u64;
            words.store([done, 3]);
        })
        .unwrap();
    assert_eq!(contents::difference(5, &bytes), None);
    let mut found = [0; 24];
    own.read(head, &mut found).unwrap();
    assert_eq!(found[8..], [PAGE.to_le_bytes(), 3_u64.to_le_bytes()].concat());
    // Only aligned words of the head that are not among the bytes.
    for (offset, is_there) in [(0, true), (240, true), (4, false), (248, false), (u64::MAX, false)]
    {
        let told = bytes.words::<2>(offset);
        let is_refused = matches!(told, Err(MapError::NotItsMemory { .. }));
        assert!(told.is_ok() == is_there && is_refused != is_there, "{offset}: {told:?}");
    }
    // The words keep the object's memory when the bytes are given back.
    drop(bytes);
    let bytes = pin().map_head_mut(64..128).unwrap();
    let is_free = |offset| bytes.words::<1>(offset).is_ok();
    assert_eq!([56, 64, 120, 128].map(is_free), [true, false, false, true]);
    drop(bytes);
    own.free(head).unwrap();
    use_all_memory(&pool, &own);
    words.store([7, 9]);
    let view = pool.status(0);
    assert!(view.fixed.retired > 0, "{view:?}");
    drop(words);
    other.free(from).unwrap();
    drop((own, other));
    pool.wait_allocated("all is freed", TIMEOUT, [0, 0]);
}
