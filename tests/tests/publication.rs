//! A kill between the allocation of an object and its publication, or between the change of a link
//! and the free of the replaced object, leaves no unreachable object in use.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use rackpool_client::{GlobalAddr, Pool, RackId};
use rackpool_kv::{Table, TableOptions};
use rackpool_model::ClientId;
use rackpool_ring::client_file::ClientFile;
use rackpool_ring::reservation::{Armed, ArmedMode, Borrowed};
use rackpool_shm::directory::RackDirectory;
use rackpool_shm::{Mapping, file};
use rackpool_testing::wait::{TIMEOUT, wait_until};
use rackpool_tests::census::{self, Census};
use rackpool_tests::client::TestClient;
use rackpool_tests::pool::TestPool;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// The most time until everything of a killed client is reclaimed.
const RECLAIM: Duration = Duration::from_secs(1);
const BYTES: u64 = 100;

/// Two racks, a link in one of them, and a client in rack 0 that makes reservations. The pool is
/// dropped after its clients.
struct Scene {
    client: TestClient,
    link: GlobalAddr,
    /// What was in use before the client started.
    before: Census,
    own: Pool,
    pool: TestPool,
}

impl Scene {
    fn new(link_rack: u16) -> Self {
        let pool = TestPool::small();
        pool.wait_until_racks_meet();
        let own = pool.open(link_rack);
        let link = own.alloc(16).unwrap();
        own.write(link, &[0; 16]).unwrap();
        let before = Census::of(&pool);
        let client = pool.client(0, &["reservations"]);
        Self { client, link, before, own, pool }
    }

    fn reservation(&mut self) -> GlobalAddr {
        rackpool_tests::client::parse_addr(&self.client.ask(&format!("reservation {BYTES}")))
    }

    fn publish(&mut self, reservation: usize, expected: u64, replaced: u64) -> u64 {
        let link = self.link.raw();
        let said =
            self.client.ask(&format!("publish {reservation} {link:x} {expected:x} {replaced:x}"));
        u64::from_str_radix(&said, 16).unwrap()
    }

    fn link(&self) -> u64 {
        let mut word = [0; 8];
        self.own.read(self.link, &mut word).unwrap();
        u64::from_le_bytes(word)
    }

    /// Waits until, of all objects allocated since the start, only these are left.
    #[track_caller]
    fn expect_left(&self, timeout: Duration, left: &[GlobalAddr]) {
        let gone = || self.before.newcomers_are_gone(&self.pool);
        wait_until("the client is gone", timeout, gone);
        let found: BTreeSet<_> = census::objects(&self.pool).into_keys().collect();
        let known: BTreeSet<_> = self.before.objects.keys().chain(left).copied().collect();
        assert_eq!(found, known, "what is in use, and what is reachable");
    }

    #[track_caller]
    fn kill_and_expect_left(&mut self, left: &[GlobalAddr]) {
        self.client.kill();
        self.expect_left(RECLAIM, left);
    }
}

#[test]
fn a_reservation_that_was_not_linked_comes_back() {
    for rack in [0, 1] {
        let mut scene = Scene::new(rack);
        scene.reservation();
        scene.reservation();
        // This publication is refused, and the object stays reserved.
        assert_eq!(scene.publish(1, 7, 0), 0);
        scene.kill_and_expect_left(&[]);
        assert_eq!(scene.link(), 0);
    }
}

#[test]
fn a_linked_reservation_stays_and_what_it_replaced_comes_back() {
    for rack in [0, 1] {
        let mut scene = Scene::new(rack);
        let (old, new) = (scene.reservation(), scene.reservation());
        assert_eq!(scene.publish(0, 0, 0), 0);
        assert_eq!(scene.publish(1, old.raw(), old.raw()), old.raw());
        scene.kill_and_expect_left(&[new]);
        assert_eq!(scene.link(), new.raw());
    }
}

#[test]
fn what_a_finished_reservation_replaced_comes_back_once() {
    for rack in [0, 1] {
        let mut scene = Scene::new(rack);
        let (old, new) = (scene.reservation(), scene.reservation());
        scene.publish(0, 0, 0);
        assert_eq!(scene.client.ask("finish 0"), "ok");
        assert_eq!(scene.publish(1, old.raw(), old.raw()), old.raw());
        assert_eq!(scene.client.ask("finish 1"), "ok");
        scene.kill_and_expect_left(&[new]);
    }
}

#[test]
fn a_reservation_counts_as_linked_after_others_have_unlinked_it() {
    for rack in [0, 1] {
        let mut scene = Scene::new(rack);
        let (old, new) = (scene.reservation(), scene.reservation());
        scene.publish(0, 0, 0);
        scene.publish(1, old.raw(), old.raw());
        let mut owner = [7; 8];
        scene.own.read(new, &mut owner).unwrap();
        assert_eq!(owner, [0; 8], "the publisher clears the owner word");
        assert_eq!(scene.own.compare_and_swap(scene.link, new.raw(), 5).unwrap(), new.raw());
        // It stays until the client that unlinked it frees it; the killed client owns only the
        // replaced object.
        scene.kill_and_expect_left(&[new]);
    }
}

#[test]
fn what_a_tombstone_took_out_comes_back() {
    for rack in [0, 1] {
        let mut scene = Scene::new(rack);
        let old = scene.reservation();
        scene.publish(0, 0, 0);
        assert_eq!(scene.client.ask("tombstone"), "ok");
        assert_eq!(scene.publish(1, old.raw(), old.raw()), old.raw());
        scene.kill_and_expect_left(&[]);
        assert_ne!(scene.link(), old.raw());
    }
}

#[test]
fn what_was_taken_out_of_a_word_is_put_back_there() {
    for (rack, published) in [(0, false), (0, true), (1, false), (1, true)] {
        let mut scene = Scene::new(rack);
        // Objects that are never freed: one waits to be borrowed, the other one is linked.
        let [shelved, old] = [16, 16].map(|bytes| scene.own.alloc(bytes).unwrap());
        let place = GlobalAddr::from_raw(scene.link.raw() + 8);
        scene.own.write(place, &shelved.raw().to_le_bytes()).unwrap();
        scene.own.write(scene.link, &old.raw().to_le_bytes()).unwrap();
        let take = format!("take {:x} {:x}", place.raw(), shelved.raw());
        assert_eq!(scene.client.ask(&take), "ok");
        assert_eq!(scene.client.ask(&take), "no");
        if published {
            assert_eq!(scene.publish(0, old.raw(), old.raw()), old.raw());
        } else {
            assert_eq!(scene.publish(0, 7, 0), old.raw(), "it is refused");
        }
        scene.kill_and_expect_left(&[shelved, old]);
        let back = if published { old } else { shelved };
        assert_eq!(scene.own.compare_and_swap(place, 0, 0).unwrap(), back.raw());
    }
}

#[test]
fn a_link_is_settled_before_what_was_taken_out_comes_back() {
    for rack in [0, 1] {
        let mut scene = Scene::new(rack);
        let old = scene.reservation();
        scene.publish(0, 0, 0);
        assert_eq!(scene.client.ask("tombstone"), "ok");
        let (link, old) = (scene.link.raw(), old.raw());
        scene.client.ask(&format!("settle 1 {link:x} {old:x} {old:x} 2a"));
        scene.kill_and_expect_left(&[]);
        assert_eq!(scene.link(), 0x2a);
    }
}

#[test]
fn the_stamp_of_what_was_replaced_decides_whether_a_reservation_counts() {
    for (rack, fits) in [(0, true), (0, false), (1, true), (1, false)] {
        let mut scene = Scene::new(rack);
        let (old, new) = (scene.reservation(), scene.reservation());
        scene.publish(0, 0, 0);
        assert_eq!(scene.client.ask("finish 0"), "ok");
        let stamp = GlobalAddr::from_raw(old.raw() + 8);
        scene.own.write(stamp, &77_u64.to_le_bytes()).unwrap();
        let (link, told) = (scene.link.raw(), if fits { 77 } else { 78 });
        scene.client.ask(&format!("compare 1 {link:x} {:x} {:x} {told:x}", old.raw(), old.raw()));
        scene.client.kill();
        if fits {
            scene.expect_left(RECLAIM, &[new]);
            assert_eq!(scene.own.compare_and_swap(new, 0, 0).unwrap(), 0);
            continue;
        }
        // The new object stands for the old one while it is linked, and can't be freed before.
        let owner = || scene.own.compare_and_swap(new, 0, 0).unwrap();
        wait_until("it is decided", RECLAIM, || owner() >> 63 == 1);
        assert_eq!(
            scene.own.compare_and_swap(scene.link, new.raw(), old.raw()).unwrap(),
            new.raw()
        );
        scene.expect_left(RECLAIM, &[old]);
    }
}

#[test]
fn reservations_wait_for_a_link_whose_rack_is_away() {
    let mut scene = Scene::new(1);
    let (old, new) = (scene.reservation(), scene.reservation());
    scene.publish(0, 0, 0);
    scene.publish(1, old.raw(), old.raw());
    scene.pool.kill_daemon(1);
    scene.client.kill();
    // The daemon of rack 0 knows of the kill once its metrics show it; it frees nothing whose
    // publication is unresolved.
    wait_until("the client is gone", RECLAIM, || scene.pool.status(0).clients == 0);
    assert!(census::objects(&scene.pool).contains_key(&old), "freed on no evidence");
    assert!(!scene.before.newcomers_are_gone(&scene.pool), "the records are kept");
    scene.pool.restart_daemon(1);
    scene.expect_left(TIMEOUT, &[new]);
}

#[test]
fn reservations_of_a_client_that_died_with_its_daemon_come_back() {
    for (rack, daemon_first) in [(0, true), (0, false), (1, true), (1, false)] {
        let mut scene = Scene::new(rack);
        let (old, new) = (scene.reservation(), scene.reservation());
        scene.reservation();
        scene.publish(0, 0, 0);
        scene.publish(1, old.raw(), old.raw());
        // In the second case the daemon dies before, while or after it resolves them.
        if daemon_first {
            scene.pool.kill_daemon(0);
            scene.client.kill();
        } else {
            scene.client.kill();
            scene.pool.kill_daemon(0);
        }
        scene.pool.restart_daemon(0);
        scene.expect_left(TIMEOUT, &[new]);
    }
}

#[test]
fn records_full_of_garbage_harm_nobody() {
    let pool = TestPool::small();
    pool.wait_until_racks_meet();
    let own = [0, 1].map(|rack| pool.open(rack));
    let objects = [0, 1].map(|rack: usize| own[rack].alloc(64).unwrap());
    let before = Census::of(&pool);
    let mut random = SmallRng::seed_from_u64(5);
    for _ in 0..20 {
        let mut client = pool.client(0, &["reservations"]);
        client.alloc(64);
        let file = newest_client_file(&pool);
        for record in &file.thread(0).unwrap().reservations {
            let mut word = || match random.random_range(0..5) {
                0 => 0,
                // An address in a page of this pool, aligned or not.
                1 => objects[random.random_range(0..2)].raw() + random.random_range(1..60_u64),
                2 => random.random_range(0..1_u64 << 32),
                _ => random.random(),
            };
            let (object, token, link) = (word(), word(), word());
            let mode = match word() % 4 {
                0 => ArmedMode::Plain,
                1 => ArmedMode::Borrowed(word()),
                2 => ArmedMode::Compare(word()),
                _ => ArmedMode::Settle(word()),
            };
            let borrowed = Borrowed { object, token, place: word() };
            let (word, mask, replaced) = (word(), word(), word());
            record.arm(&Armed { object, token, link, word, mask, replaced, mode });
            match random.random_range(0..10) {
                0 | 1 => record.disarm(),
                2 => record.mark_replaced(),
                3 => record.borrow(&borrowed),
                _ => {}
            }
        }
        client.kill();
        wait_until("the client is gone", TIMEOUT, || before.newcomers_are_gone(&pool));
    }
    for (own, addr) in own.iter().zip(objects) {
        own.write(addr, &[1; 64]).unwrap();
        own.free(addr).unwrap();
    }
}

fn newest_client_file(pool: &TestPool) -> ClientFile {
    let directory = RackDirectory::new(pool.dir(), RackId(0));
    let names = std::fs::read_dir(pool.rack_dir(0)).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name());
    let clients = names.filter_map(|name| RackDirectory::client_of(name.to_str()?));
    let newest: ClientId = clients.max_by_key(|client| client.0).unwrap();
    let found = file::open(&directory.client(newest)).unwrap().unwrap();
    let threads = 64;
    ClientFile::new(Mapping::new(&found, ClientFile::bytes(threads)).unwrap(), threads).unwrap()
}

/// Kills clients in the middle of table operations, and checks after each kill that no object of
/// the size of entries is in use without being an entry.
fn kill_inside_operations(pool: &TestPool, table_rack: u16, bytes: u64, rounds: u64) {
    const KEYS: u64 = 60;
    let before = Census::of(pool);
    let creator = Arc::new(pool.open(table_rack));
    // One segment, in which compactions make room.
    let options = TableOptions { max_depth: 0, segment_bytes: 2048 };
    let table = Table::create(Arc::clone(&creator), &options).unwrap().addr();
    drop(creator);
    let mut random = SmallRng::seed_from_u64(bytes);
    for round in 0..rounds {
        let mut clients = [0, 1].map(|rack| {
            let seed = round * 2 + u64::from(rack);
            let line = format!("mix {:x} {seed} {bytes} {KEYS}", table.raw());
            pool.client(rack, &line.split(' ').collect::<Vec<_>>())
        });
        for client in &mut clients {
            client.wait_for_lines(random.random_range(1..8));
        }
        clients.iter_mut().for_each(TestClient::kill);
        // What they had of the other rack's objects is on its way home when they are gone.
        wait_until("the clients are gone", RECLAIM, || {
            before.newcomers_are_gone(pool) && census::exchanges_have_ended(pool)
        });
        let reader = Arc::new(pool.open(0));
        let mut entries = 0;
        let mut handle = Table::open(Arc::clone(&reader), table).unwrap().handle();
        handle.for_each(|_, _| entries += 1).unwrap();
        drop((handle, reader));
        wait_until("the reader is gone", RECLAIM, || before.newcomers_are_gone(pool));
        let size = (32 + 8 + 8 + bytes).next_power_of_two();
        let found = census::objects(pool).into_values().filter(|found| *found == size).count();
        assert_eq!(found, entries, "round {round}: objects in use, and entries");
    }
    let last = Arc::new(pool.open(1));
    Table::open(Arc::clone(&last), table).unwrap().destroy().unwrap();
    drop(last);
    wait_until("all is gone", RECLAIM, || before.newcomers_are_gone(pool));
    assert_eq!(census::objects(pool), before.objects, "left by killed clients");
}

#[test]
fn kills_inside_table_operations_leave_no_object_behind() {
    let pool = TestPool::small();
    pool.wait_until_racks_meet();
    kill_inside_operations(&pool, 0, 100, 30);
}

#[test]
fn kills_inside_operations_on_large_values_leave_no_object_behind() {
    let pool = TestPool::small();
    pool.wait_until_racks_meet();
    kill_inside_operations(&pool, 1, 9000, 6);
}
