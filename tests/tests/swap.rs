//! Hot pages move to the rack that uses them, and only the speed of accesses changes.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::time::Duration;

use rackpool_client::{GlobalAddr, Pool};
use rackpool_model::{FabricKind, PageId, PageSize};
use rackpool_sync::SplitMix64;
use rackpool_testing::wait::{TIMEOUT, wait_until};
use rackpool_tests::contents;
use rackpool_tests::pool::{PAGE, TestPool};

/// Objects of a page that is made hot; part of the page stays free.
const OBJECTS: usize = 24;
const SIZE: u64 = 1000;

/// Options with which a page moves as soon as it is used remotely.
fn eager() -> Vec<(&'static str, String)> {
    let arguments =
        [("--hot", "1.5"), ("--rest-ms", "0"), ("--swap-pause-ms", "1"), ("--swap", "on")];
    arguments.map(|(name, value)| (name, value.into())).into()
}

/// Two racks in which a page moves as soon as it is used remotely.
fn restless(fabric: FabricKind) -> TestPool {
    restless_with(fabric, &[])
}

fn restless_with(fabric: FabricKind, more: &[(&'static str, &str)]) -> TestPool {
    TestPool::with(|options| {
        options.fabric = fabric;
        options.daemon_arguments = eager();
        options.daemon_arguments.extend(more.iter().map(|(name, value)| (*name, (*value).into())));
    })
}

fn page_of(addr: GlobalAddr) -> PageId {
    addr.page(PageSize::from_bytes(PAGE).unwrap()).unwrap()
}

/// Objects of one page.
fn objects_of_a_page(rack: &Pool) -> Vec<GlobalAddr> {
    let objects: Vec<_> = (0..OBJECTS).map(|_| rack.alloc(SIZE).unwrap()).collect();
    assert!(objects.iter().all(|addr| page_of(*addr) == page_of(objects[0])));
    for addr in &objects {
        contents::write(rack, *addr, SIZE);
    }
    objects
}

/// Uses an object until it is in the user's rack.
fn attract(rack: &Pool, addr: GlobalAddr) {
    wait_until("the page comes", TIMEOUT, || {
        contents::write(rack, addr, SIZE);
        contents::check(rack, addr, SIZE);
        rack.is_local(addr).unwrap()
    });
}

fn check_all(racks: &[&Pool], objects: &[GlobalAddr]) {
    for rack in racks {
        for addr in objects {
            contents::check(rack, *addr, SIZE);
        }
    }
}

fn a_hot_page_becomes_local_and_goes_on_living_there(fabric: FabricKind) {
    let mut pool = restless(fabric);
    pool.wait_until_racks_meet();
    let before = [0, 1].map(|rack| pool.status(rack));
    let (home, user) = (pool.open(0), pool.open(1));
    let objects = objects_of_a_page(&home);
    assert!(home.is_local(objects[0]).unwrap() && !user.is_local(objects[0]).unwrap());

    attract(&user, objects[0]);
    // The old home learns of it a little later.
    wait_until("the page has gone", TIMEOUT, || {
        pool.status(0).swaps.departed == before[0].swaps.departed + 1
    });
    let after = [0, 1].map(|rack| pool.status(rack));
    assert_eq!(after[1].swaps.arrived - before[1].swaps.arrived, 1, "{:?}", after[1].swaps);
    assert!(after[1].swaps.copied_bytes >= PAGE);
    check_all(&[&user], &objects);

    // A write waits until the page is writable here; from then on objects are allocated from it.
    contents::write(&user, objects[0], SIZE);
    // Allocations in the page's new rack take objects of the page, and frees from both racks return
    // them.
    let own = user.alloc(SIZE).unwrap();
    assert_eq!(page_of(own), page_of(objects[0]), "the page has room");
    contents::write(&user, own, SIZE);
    contents::check(&home, own, SIZE);
    home.free(own).unwrap();
    let (kept, freed) = objects.split_at(OBJECTS / 2);
    for (index, addr) in freed.iter().enumerate() {
        let rack = if index % 2 == 0 { &home } else { &user };
        rack.free(*addr).unwrap();
    }
    check_all(&[&home, &user], kept);

    for rack in [1, 0] {
        pool.kill_daemon(rack);
        pool.restart_daemon(rack);
        check_all(&[&home, &user], kept);
    }
    let again = home.alloc(SIZE).unwrap();
    contents::write(&home, again, SIZE);
    check_all(&[&home, &user], &[kept, &[again]].concat());
    for addr in kept.iter().chain([&again]) {
        home.free(*addr).unwrap();
    }
    home.close();
    user.close();
    pool.wait_allocated("all is freed", TIMEOUT, [0, 0]);
}

/// Sampled local accesses keep a page where it is used most, and decay.
#[test]
fn a_page_stays_where_it_is_used_more_and_goes_when_it_is_not_used_there_any_more() {
    let pool = TestPool::with(|options| {
        options.daemon_arguments = vec![
            ("--hot", "1.5".into()),
            ("--rest-ms", "0".into()),
            ("--swap-pause-ms", "1".into()),
            ("--heat-lifetime-ms", "1000".into()),
            // Without a copy, which the reader's rack would otherwise keep.
            ("--share", "off".into()),
        ];
    });
    pool.wait_until_racks_meet();
    let (home, user) = (pool.open(0), pool.open(1));
    let objects = objects_of_a_page(&home);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Ends the thread however the scope ends; otherwise a failure would wait for ever.
        let _end = EndOf(&stop);
        let uses = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                contents::check(&home, objects[1], SIZE);
            }
        });
        wait_until("the page is hot at home", TIMEOUT, || {
            let hottest = pool.hottest(0);
            hottest.iter().any(|heat| heat.page == page_of(objects[0]) && heat.milli > 10_000_000)
        });
        wait_until("the page's home refuses", TIMEOUT, || {
            contents::check(&user, objects[0], SIZE);
            let refused = pool.status(1).swaps.refused;
            let because = ["hotter", "read-hot"];
            let refused = refused.iter().filter(|(why, _)| because.contains(&why.as_str()));
            refused.map(|(_, count)| *count).sum::<u64>() > 3
        });
        assert_eq!(pool.status(1).swaps.arrived, 0, "its home uses it more");
        assert!(!uses.is_finished());
    });
    attract(&user, objects[0]);
    check_all(&[&home, &user], &objects);
}

struct EndOf<'a>(&'a AtomicBool);

impl Drop for EndOf<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_hot_page_becomes_local_and_survives_both_daemons() {
    a_hot_page_becomes_local_and_goes_on_living_there(FabricKind::Emulated);
}

#[test]
fn a_hot_page_becomes_local_over_tcp() {
    a_hot_page_becomes_local_and_goes_on_living_there(FabricKind::Tcp);
}

/// A user of the pool in a storm of swaps.
struct Storm<'a> {
    rack: &'a Pool,
    random: SplitMix64,
    counters: &'a [GlobalAddr],
    added: Vec<u64>,
    held: Vec<GlobalAddr>,
}

impl Storm<'_> {
    fn number(&mut self, below: usize) -> usize {
        usize::try_from(self.random.draw()).unwrap() % below
    }

    fn step(&mut self) {
        match self.number(8) {
            0..=2 => {
                let counter = self.number(self.counters.len());
                self.rack.fetch_and_add(self.counters[counter], 1).unwrap();
                self.added[counter] += 1;
            }
            3 if self.held.len() < 200 => {
                let addr = self.rack.alloc(SIZE).unwrap();
                contents::write(self.rack, addr, SIZE);
                self.held.push(addr);
            }
            4 if self.held.len() > 20 => {
                let index = self.number(self.held.len());
                let addr = self.held.swap_remove(index);
                contents::check(self.rack, addr, SIZE);
                self.rack.free(addr).unwrap();
            }
            _ if !self.held.is_empty() => {
                let index = self.number(self.held.len());
                contents::check(self.rack, self.held[index], SIZE);
                contents::write(self.rack, self.held[index], SIZE);
            }
            _ => {}
        }
    }
}

/// Turns of each rack at full speed.
const TURNS: usize = 20;
/// Pause between two steps of the rack that is not at full speed.
const CALM: Duration = Duration::from_millis(10);

/// Pages move back and forth between two racks whose programs use the same ones. The racks take
/// turns at full speed; otherwise the first to have a page would keep it, since it is the faster
/// one.
#[test]
fn programs_that_share_pages_in_a_storm_of_swaps_see_every_word() {
    let pool = restless_with(FabricKind::Emulated, &[("--heat-decay", "20")]);
    pool.wait_until_racks_meet();
    let racks = [pool.open(0), pool.open(1)];
    // A page each, so that both racks compete for them.
    let counters: Vec<_> = (0..4).map(|index| racks[index % 2].alloc(PAGE).unwrap()).collect();
    counters.iter().for_each(|addr| racks[0].write(*addr, &[0; 8]).unwrap());
    let (over, hurried) = (AtomicBool::new(false), AtomicU16::new(0));
    let storms: Vec<Storm<'_>> = std::thread::scope(|scope| {
        let threads: Vec<_> = [0, 1, 0, 1]
            .into_iter()
            .enumerate()
            .map(|(seed, turn)| {
                let (rack, counters, over, hurried) =
                    (&racks[usize::from(turn)], &counters, &over, &hurried);
                scope.spawn(move || {
                    let (added, held) = (vec![0; counters.len()], Vec::new());
                    let mut storm =
                        Storm { rack, random: SplitMix64::new(seed as u64), counters, added, held };
                    while !over.load(Ordering::Relaxed) {
                        storm.step();
                        if hurried.load(Ordering::Relaxed) != turn {
                            std::thread::sleep(CALM);
                        }
                    }
                    storm
                })
            })
            .collect();
        let end = EndOf(&over);
        for rack in [0, 1].repeat(TURNS) {
            hurried.store(rack, Ordering::Relaxed);
            let rack = &racks[usize::from(rack)];
            let has = |addr| {
                // This thread's translation of the page may be stale until an access.
                rack.read(addr, &mut [0; 8]).unwrap();
                rack.is_local(addr).unwrap()
            };
            wait_until("the pages come to who uses them more", TIMEOUT, || {
                counters.iter().all(|addr| has(*addr))
            });
        }
        drop(end);
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for (index, counter) in counters.iter().enumerate() {
        let added: u64 = storms.iter().map(|storm| storm.added[index]).sum();
        for rack in &racks {
            let mut found = [0; 8];
            rack.read(*counter, &mut found).unwrap();
            assert_eq!(u64::from_le_bytes(found), added);
        }
        racks[index / 2].free(*counter).unwrap();
    }
    for storm in storms {
        for addr in storm.held {
            // From the rack that did not allocate it.
            let other = &racks[usize::from(storm.rack.rack() == racks[0].rack())];
            contents::check(other, addr, SIZE);
            other.free(addr).unwrap();
        }
    }
    racks.into_iter().for_each(Pool::close);
    pool.wait_allocated("all is freed", TIMEOUT, [0, 0]);
}

/// A page of 64 MiB of 16 B objects has a bitmap of 512 KiB, more than a message may carry.
#[test]
fn large_pages_of_small_objects_move() {
    let pool = TestPool::with(|options| {
        (options.memory, options.page_size) = (256 << 20, 64 << 20);
        options.daemon_arguments = eager();
    });
    pool.wait_until_racks_meet();
    let (home, user) = (pool.open(0), pool.open(1));
    let objects: Vec<_> = (0..1000).map(|_| home.alloc(16).unwrap()).collect();
    for addr in &objects {
        contents::write(&home, *addr, 16);
    }
    wait_until("the page comes", TIMEOUT, || {
        contents::check(&user, objects[0], 16);
        contents::write(&user, objects[0], 16);
        user.is_local(objects[0]).unwrap()
    });
    for addr in &objects {
        contents::check(&home, *addr, 16);
        home.free(*addr).unwrap();
    }
    assert!(pool.status(1).swaps.arrived > 0);
}
