//! The memory of the service while a very large string is stored and read.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use rackpool_tests::contents;
use rackpool_tests::pool::TestPool;
use rackpool_tests::service::{Answer, Service};

const MIB: usize = 1 << 20;
const STRING: usize = 256 * MIB;

/// The anonymous memory of a process in bytes: without the memory of the pool that it maps.
fn own_memory(process: u32) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<usize>().ok());
    kib.unwrap_or_default() << 10
}

#[test]
fn a_service_stores_and_sends_a_very_large_string_without_holding_it() {
    let pool = TestPool::start(640 << 20, 2 << 20);
    pool.wait_until_racks_meet();
    let services = [0, 1].map(|rack| Service::start(&pool, rack, &["--threads", "1"]));
    let before = services.each_ref().map(|service| own_memory(service.id()));
    let (ends, most) = (AtomicBool::new(false), [AtomicUsize::new(0), AtomicUsize::new(0)]);
    let value = contents::of(3, STRING);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                for (service, most) in services.iter().zip(&most) {
                    most.fetch_max(own_memory(service.id()), Ordering::Relaxed);
                }
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        let mut wires = services.each_ref().map(Service::wire);
        assert_eq!(wires[0].ask(&[&b"SET"[..], b"k", &value[..]]), Answer::ok());
        for wire in &mut wires {
            assert!(wire.ask(&["GET", "k"]) == Answer::Bulk(value.clone()), "other bytes");
        }
        let answer = wires[0].ask(&["APPEND", "k", "x"]);
        assert_eq!(answer, Answer::Integer(i64::try_from(STRING + 1).expect("a length")));
        ends.store(true, Ordering::Relaxed);
    });
    for (before, most) in before.into_iter().zip(most) {
        let most = most.into_inner();
        assert!(most > 0 && most < before + 16 * MIB, "{before} B before, {most} B at most");
    }
}
