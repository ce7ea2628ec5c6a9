//! Tests of the kill campaigns' oracle: a fault of each kind is planted in a real pool, and must be
//! found.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rackpool_client::{GlobalAddr, Pool, RackId};
use rackpool_kv::Table;
use rackpool_model::{FrameId, PageWord, SizeClass};
use rackpool_objects::{CreateOptions, Store};
use rackpool_ring::call::Answer;
use rackpool_ring::client_file::{ClientFile, RingKind};
use rackpool_ring::request::Request;
use rackpool_shm::metadata::RackMetadata;
use rackpool_testing::wait::{TIMEOUT, wait_until};
use rackpool_tests::census::{self, Census};
use rackpool_tests::contents;
use rackpool_tests::program::step::store::STORE;
use rackpool_tests::program::store::value;
use rackpool_tests::steps::autopsy::Body;
use rackpool_tests::steps::campaign::{Campaign, Finding, Killed, Prepared, Scene};
use rackpool_tests::steps::stock::Hand;
use rackpool_tests::steps::tracer::{At, Means, may_trace};
use rackpool_wire::rack::RackAnswer;

/// Bytes of the objects of slot 0's clients.
const BYTES: u64 = 64;
/// Bytes that an entry of a table takes.
const ENTRY: u64 = 512;

fn scene() -> Scene {
    Scene::new(Campaign { rounds: 0, least: 0, seed: 1, means: Means::Times, is_one_rack: false })
}

fn file(body: Option<&Body>) -> &ClientFile {
    body.map(Body::file).expect("the file of a client")
}

/// A cell for slot 0's objects in a client's magazine; the first 31 hold objects.
fn cell(client: &Prepared, index: usize) -> &AtomicU64 {
    let slot = file(client.body.as_ref()).thread(0).expect("a slot");
    &slot.magazines[SizeClass::index_for(BYTES)][index]
}

fn take(cell: &AtomicU64) -> GlobalAddr {
    GlobalAddr::from_raw(cell.swap(0, Ordering::Relaxed))
}

fn at_its_mark(client: Prepared) -> Killed {
    client.kill("at its mark".into())
}

fn is_free(finding: &Finding, wanted: GlobalAddr) -> bool {
    matches!(finding, Finding::Free { addr, .. } if *addr == wanted)
}

fn with_client<T>(scene: &Scene, act: impl FnOnce(&Pool) -> T) -> T {
    let own = scene.pool().open(0);
    let done = act(&own);
    own.close();
    done
}

#[test]
fn nothing_is_found_where_nothing_is_wrong() {
    let mut scene = scene();
    assert_eq!(scene.look(&[]), []);
    let operations =
        ["alloc", "refill", "run", "free", "read", "reservation", "publish", "put", "open"];
    let killed = operations.map(|name| at_its_mark(scene.prepare(0, name)));
    assert!(killed.iter().all(|client| client.hand == Hand::Empty), "{killed:?}");
    assert_eq!(scene.look(&killed), [], "{killed:?}");
    if may_trace() == Means::Steps {
        let killed =
            ["alloc", "refill", "run"].map(|name| scene.prepare(0, name).follow(name, |_| {}));
        assert!(killed.iter().all(|client| matches!(client.hand, Hand::Has(_))), "{killed:?}");
        assert_eq!(scene.look(&killed), [], "{killed:?}");
    }
}

#[test]
fn an_object_that_is_nobodys_is_found() {
    let mut scene = scene();
    let addr = with_client(&scene, |own| own.alloc(8192).expect("room"));
    let client = scene.prepare(0, "read");
    let lost = take(cell(&client, 3));
    let found = scene.look(&[at_its_mark(client)]);
    let leaked = [(addr, 8192), (lost, BYTES)].map(|(addr, bytes)| Finding::Leaked { addr, bytes });
    assert!(leaked.iter().all(|leak| found.contains(leak)) && found.len() == 2, "{found:?}");
}

/// Two of the client's objects are noted nowhere when it is killed; `alloc` returns one.
#[test]
fn an_alloc_that_has_lost_an_object_is_found() {
    let mut scene = scene();
    let client = scene.prepare(0, "alloc");
    let lost = [2, 3].map(|index| take(cell(&client, index)));
    let killed = at_its_mark(client);
    assert_eq!(killed.hand, Hand::Wrong(2));
    let found = scene.look(&[killed]);
    assert!(found.iter().any(|finding| matches!(finding, Finding::Hand(_))), "{found:?}");
    for addr in lost {
        assert!(found.contains(&Finding::Leaked { addr, bytes: BYTES }), "{found:?}");
    }
}

/// A kill at that instruction looks like one after `alloc` has taken its object; only the following
/// instructions show the difference.
#[test]
fn an_alloc_that_leaves_an_object_to_nobody_for_an_instant_is_found() {
    if may_trace() == Means::Times {
        return;
    }
    let mut scene = scene();
    let (mut step, mut object) = (0, GlobalAddr::NULL);
    let killed = scene.prepare(0, "alloc").follow("its mark", |client| {
        step += 1;
        match step {
            20 => object = take(cell(client, 2)),
            22 => cell(client, 2).store(object.raw(), Ordering::Relaxed),
            _ => {}
        }
    });
    let found = scene.look(&[killed]);
    assert!(matches!(&found[..], [Finding::Hand(what)] if what.contains("went back")), "{found:?}");
}

#[test]
fn an_object_that_is_freed_while_alloc_has_it_in_hand_is_found() {
    if may_trace() == Means::Times {
        return;
    }
    let mut scene = scene();
    let known = scene.prepare(0, "alloc").follow("its mark", |_| {});
    let Hand::Has(addr) = known.hand else { panic!("{known:?}") };
    with_client(&scene, |own| own.free(addr).expect("an object in use"));
    let found = scene.look(&[known]);
    assert!(found.len() == 1 && is_free(&found[0], addr), "{found:?}");

    // A client that got its object from the daemon has also requested its page's place. The file
    // holds the last of two answers, so it does not tell what `alloc` has in hand: at most one
    // object stays.
    let before = Census::of(scene.pool());
    let mut client = scene.prepare(0, "refill");
    while client.hand() == Hand::Empty {
        assert_eq!(client.victim.step(), At::Step, "an alloc that takes nothing");
    }
    assert_eq!(client.hand(), Hand::Unknown);
    let _killed = client.kill("with an object in hand".into());
    wait_until("all else is back", TIMEOUT, || before.newcomers_are_gone(scene.pool()));
    let objects = census::objects(scene.pool());
    let is_new = |addr: &GlobalAddr| !before.objects.contains_key(addr);
    let of_size: Vec<_> =
        objects.iter().filter(|(addr, bytes)| **bytes == BYTES && is_new(addr)).collect();
    assert!(of_size.len() <= 1, "{of_size:?}");
    with_client(&scene, |own| {
        of_size.iter().for_each(|(addr, _)| own.free(**addr).expect("an object in use"));
    });
}

/// The client's own object, and one of a client that lives: both are among its free ones.
#[test]
fn an_object_that_is_freed_although_in_use_is_found() {
    let mut scene = scene();
    let (client, filler) = (scene.prepare(0, "read"), scene.filler());
    let own = client.objects[0];
    cell(&client, 40).store(own.raw(), Ordering::Relaxed);
    cell(&client, 41).store(filler.raw(), Ordering::Relaxed);
    let found = scene.look(&[at_its_mark(client)]);
    for addr in [own, filler] {
        assert!(found.iter().any(|finding| is_free(finding, addr)), "{addr} {found:?}");
    }
    assert_eq!(found.len(), 2, "{found:?}");
}

#[test]
fn an_object_that_is_freed_twice_is_found() {
    let mut scene = scene();
    let client = scene.prepare(0, "read");
    let free = with_client(&scene, |own| {
        let addr = own.alloc(BYTES).expect("room");
        own.free(addr).expect("an object in use");
        addr
    });
    cell(&client, 40).store(free.raw(), Ordering::Relaxed);
    let found = scene.look(&[at_its_mark(client)]);
    assert!(matches!(&found[..], [Finding::Log(line)] if line.contains("not in use")), "{found:?}");
}

#[test]
fn an_object_that_is_handed_out_twice_is_found() {
    if may_trace() == Means::Times {
        return;
    }
    let mut scene = scene();
    let first = scene.prepare(0, "read");
    let twice = first.objects[0];
    let second = scene.prepare(0, "alloc");
    // The last object of the magazine is the next one to be handed out.
    let lost = GlobalAddr::from_raw(cell(&second, 31).swap(twice.raw(), Ordering::Relaxed));
    let second = second.follow("its mark", |_| {});
    assert_eq!(second.hand, Hand::Has(twice), "{second:?}");
    let found = scene.look(&[at_its_mark(first), second]);
    let is_twice =
        |finding: &Finding| matches!(finding, Finding::Twice { addr, .. } if *addr == twice);
    assert!(found.iter().any(is_twice), "{found:?}");
    assert!(found.contains(&Finding::Leaked { addr: lost, bytes: BYTES }), "{found:?}");
}

#[test]
fn bytes_that_nobody_wrote_are_found() {
    let mut scene = scene();
    let client = scene.prepare(0, "read");
    let addr = client.objects[0];
    let mixed = [&contents::of(addr.raw(), 64)[..32], &contents::of(1, 64)[32..]].concat();
    with_client(&scene, |own| own.write(addr, &mixed).expect("an object in use"));
    let found = scene.look(&[at_its_mark(client)]);
    assert!(matches!(&found[..], [Finding::Torn(what)] if what.contains("at 32")), "{found:?}");
}

/// Half an old value and half a new one, with the right checksum.
#[test]
fn a_torn_value_of_an_entry_is_found() {
    let mut scene = scene();
    let own = Arc::new(scene.pool().open(0));
    let mut handle = Table::open(Arc::clone(&own), scene.table(3)).expect("a table").handle();
    let mixed = [&value(1, 400)[..200], &value(2, 400)[200..]].concat();
    handle.put(b"torn", &mixed).expect("room");
    drop(handle);
    drop(own);
    let found = scene.look(&[]);
    assert!(matches!(&found[..], [Finding::Torn(what)] if what.contains("torn in")), "{found:?}");
}

/// An entry whose bytes do not match its checksum, and an entry that no table has.
#[test]
fn a_damaged_entry_and_one_without_a_table_are_found() {
    let mut scene = scene();
    let before = census::objects(scene.pool());
    let own = Arc::new(scene.pool().open(0));
    let mut handle = Table::open(Arc::clone(&own), scene.table(0)).expect("a table").handle();
    handle.put(b"damaged", &value(1, 400)).expect("room");
    drop(handle);
    drop(own);
    let is_entry =
        |(addr, bytes): &(&GlobalAddr, &u64)| **bytes == ENTRY && !before.contains_key(addr);
    let objects = census::objects(scene.pool());
    let entry = *objects.iter().find(is_entry).expect("the entry").0;
    let addr = with_client(&scene, |own| {
        let inside = entry.add(100).expect("an address in the entry");
        own.write(inside, &[7; 8]).expect("an object in use");
        own.alloc(ENTRY).expect("room")
    });
    let found = scene.look(&[]);
    let is_damage = |f: &Finding| matches!(f, Finding::Torn(what) if what.contains("the table"));
    assert!(found.iter().any(is_damage), "{found:?}");
    assert!(found.iter().any(|f| matches!(f, Finding::Entries { .. })), "{found:?}");
    assert!(found.contains(&Finding::Leaked { addr, bytes: ENTRY }), "{found:?}");
}

/// An object with other bytes than its creator's, one that nobody sealed, an entry that is left
/// when all objects are deleted, and memory of an object that no table leads to.
#[test]
fn what_is_wrong_in_the_object_store_is_found() {
    let mut scene = scene();
    let own = Arc::new(scene.pool().open(0));
    let store = Store::open(Arc::clone(&own), STORE).expect("a store").expect("the scene's store");
    for id in ["7-100", "unsealed-7-100"] {
        store.put(id.as_bytes(), &[1; 100], &CreateOptions::default()).expect("room");
    }
    let header = own.root(STORE).expect("a pool that serves").expect("the scene's store");
    let mut word = [0; 8];
    own.read(header.add(64).expect("an address"), &mut word).expect("an object in use");
    let table = GlobalAddr::from_raw(u64::from_le_bytes(word));
    let mut entries = Table::open(Arc::clone(&own), table).expect("a table").handle();
    entries.put(b"left", b"over").expect("room");
    let lost = own.alloc_fixed(2048).expect("room");
    own.disown(lost).expect("an object of this client");
    drop((entries, store, own));
    let found = scene.look(&[]);
    let torn = |id: &str| Finding::Torn(format!("the object {id}"));
    for wanted in [torn("7-100"), torn("unsealed-7-100")] {
        assert!(found.contains(&wanted), "{wanted}: {found:?}");
    }
    assert!(found.contains(&Finding::Leaked { addr: lost, bytes: 2048 }), "{found:?}");
    let is_stale = |f: &Finding| matches!(f, Finding::Stale { table: of, .. } if *of == table);
    assert!(found.iter().any(is_stale) && found.len() == 4, "{found:?}");
}

/// A client that gets an object leaves it in the store.
#[test]
fn an_object_that_a_reader_has_taken_away_is_found() {
    let mut scene = scene();
    let client = scene.prepare(0, "store-get");
    let addr = client.objects[0];
    let own = Arc::new(scene.pool().open(0));
    let store = Store::open(own, STORE).expect("a store").expect("the scene's store");
    let listed = store.list(b"").expect("a store");
    assert!(store.delete(&listed[0].id).expect("a store") && listed.len() == 1, "{listed:?}");
    drop(store);
    let found = scene.look(&[at_its_mark(client)]);
    assert!(found.len() == 1 && is_free(&found[0], addr), "{found:?}");
}

#[test]
fn whatever_is_torn_in_the_file_of_a_dead_client_is_found() {
    let mut scene = scene();
    let before = Census::of(scene.pool());
    let killed = at_its_mark(scene.prepare(0, "read"));
    let addr = killed.objects[0].raw();
    wait_until("its daemon is done", TIMEOUT, || before.newcomers_are_gone(scene.pool()));
    let file = file(killed.body.as_ref());
    let torn = Request { code: 99, cell: 0, thread: 0, call: 1, life: 1, arguments: [0; 5] };
    file.ring(RingKind::Remote).push(&[torn]).expect("room");
    let slot = file.thread(1).expect("a slot");
    slot.outbox[5].store(addr, Ordering::Relaxed);
    slot.reservations[2].hold(addr);
    let (status, values) = RackAnswer::Invalid.to_words();
    file.cells(2).expect("cells")[3].finish(1, &Answer { status, values });
    let found = scene.look(&[killed]);
    assert_eq!(found.len(), 4, "{found:?}");
    for wanted in ["a torn entry", "still has", "still has a reservation", "was answered"] {
        let is_wanted = |f: &Finding| matches!(f, Finding::Body(what) if what.contains(wanted));
        assert!(found.iter().any(is_wanted), "{wanted}: {found:?}");
    }
}

/// A bit of a page's bitmap that its daemon has not set.
#[test]
fn metrics_that_the_metadata_does_not_bear_out_are_found() {
    let mut scene = scene();
    scene.timeout = Duration::from_secs(2);
    // Only links are of this size.
    let objects = census::objects(scene.pool());
    let link = *objects.iter().find(|(_, bytes)| **bytes == 16).expect("a link").0;
    let racks = [0, 1].map(|rack| census::metadata_of(scene.pool(), RackId(rack)));
    let page_size = racks[0].1;
    let class = SizeClass::for_bytes(16, page_size).expect("a class");
    let page = link.page(page_size).expect("the page of a link");
    let frames = racks.iter().flat_map(|(metadata, _, frames)| {
        (0..*frames).map(move |frame| (metadata, FrameId(frame)))
    });
    let is_here = |(metadata, frame): &(&RackMetadata, FrameId)| {
        let word = metadata.word(*frame).expect("a frame").load(Ordering::Relaxed);
        PageWord::from_raw(word).page() == page
    };
    let (metadata, frame) = frames.into_iter().find(is_here).expect("the frame of the page");
    let bits = &metadata.bitmap(frame, class).expect("a bitmap")[5];
    assert_eq!(bits.fetch_or(1, Ordering::Relaxed) & 1, 0);
    let found = scene.look(&[]);
    let addr = GlobalAddr::new(page, 5 * 64 * 16, page_size).expect("an address");
    let counted: u64 = census::objects(scene.pool()).values().sum();
    assert!(found.contains(&Finding::Leaked { addr, bytes: 16 }), "{found:?} {counted}");
    let is_metric =
        |f: &Finding| matches!(f, Finding::Counts { said, counted } if said + 16 == *counted);
    assert!(found.iter().any(is_metric), "{found:?}");
}

#[test]
fn what_is_not_taken_back_in_time_is_found() {
    let mut scene = scene();
    scene.timeout = Duration::from_millis(300);
    let alive = scene.pool().client(0, &["serve"]);
    wait_until("it has opened the pool", TIMEOUT, || census::client_files(scene.pool(), 0) > 1);
    let found = scene.look(&[]);
    assert!(found.contains(&Finding::Overdue), "{found:?}");
    drop(alive);
}

#[test]
fn a_table_that_is_gone_is_found() {
    let mut scene = scene();
    let own = Arc::new(scene.pool().open(0));
    let table = Table::open(Arc::clone(&own), scene.table(0)).expect("a table");
    table.destroy().expect("a table that nobody uses");
    drop(own);
    let found = scene.look(&[]);
    assert!(found.iter().any(|f| matches!(f, Finding::Torn(_))), "{found:?}");
    assert!(found.iter().any(|f| matches!(f, Finding::Refused(_))), "{found:?}");
}
