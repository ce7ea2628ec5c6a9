//! Bytes in flight: many clients of one rack use the memory of many others, and never have more in
//! flight than the rack's budget. See docs/design/in-flight.md.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rackpool_client::{GlobalAddr, Pool, ReadRequest, WriteRequest};
use rackpool_testing::StopAtEnd;
use rackpool_testing::wait::{TIMEOUT, wait_until};
use rackpool_tests::contents;
use rackpool_tests::pool::{PAGE, TestPool};
use rackpool_wire::control::{BytesInFlight, RackStatus};

/// Racks beside the one whose clients are many.
const PEERS: u16 = 8;
const CLIENTS: usize = 64;
/// Pages of each client in another rack.
const PAGES: usize = 8;
const ROUNDS: u64 = 2;

/// Writes to pages and reads them again, all at once.
fn use_pages(pool: &Pool, addrs: &[GlobalAddr], round: u64) {
    let len = usize::try_from(PAGE).unwrap();
    let tag = |at: usize| round * 1000 + addrs[at].raw() % 997;
    let written: Vec<Vec<u8>> = (0..addrs.len()).map(|at| contents::of(tag(at), len)).collect();
    let writes: Vec<WriteRequest<'_>> = addrs
        .iter()
        .zip(&written)
        .map(|(addr, bytes)| WriteRequest { addr: *addr, from: bytes })
        .collect();
    pool.write_batch(&writes).unwrap();
    let mut found = vec![vec![0; len]; addrs.len()];
    let mut reads: Vec<ReadRequest<'_>> = addrs
        .iter()
        .zip(&mut found)
        .map(|(addr, into)| ReadRequest { addr: *addr, into })
        .collect();
    pool.read_batch(&mut reads).unwrap();
    assert!(found == written, "the pages of {addrs:?} have other bytes");
}

/// The kinds of bytes in flight to a rack.
fn parts(status: &RackStatus) -> [(&'static str, BytesInFlight); 3] {
    let bytes = &status.in_flight;
    [("requests", bytes.requests), ("reads", bytes.reads), ("writes of peers", bytes.peer_writes)]
}

#[test]
fn many_clients_and_racks_stay_within_the_budget() {
    let pool = TestPool::with(|options| {
        (options.racks, options.lease_ms) = (1 + PEERS, 20_000);
    });
    wait_until("all racks know each other", TIMEOUT, || {
        (0..=PEERS).all(|rack| pool.status(rack).other_racks.len() == usize::from(PEERS))
    });
    let others: Vec<Pool> = (1..=PEERS).map(|rack| pool.open(rack)).collect();
    let far: Vec<Vec<GlobalAddr>> = (0..CLIENTS)
        .map(|client| {
            let home = &others[client % others.len()];
            (0..PAGES).map(|_| home.alloc(PAGE).unwrap()).collect()
        })
        .collect();
    let own = pool.open(0);
    let near: Vec<Vec<GlobalAddr>> =
        others.iter().map(|_| (0..2).map(|_| own.alloc(PAGE).unwrap()).collect()).collect();

    let (over, samples) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                for (part, bytes) in parts(&pool.status(0)) {
                    assert!(bytes.used <= bytes.limit, "{part}: {bytes:?}");
                }
                samples.fetch_add(1, Ordering::Relaxed);
            }
        });
        let _stop = StopAtEnd(&over);
        std::thread::scope(|users| {
            for addrs in &far {
                users.spawn(|| {
                    let client = pool.open(0);
                    (0..ROUNDS).for_each(|round| use_pages(&client, addrs, round));
                });
            }
            for (client, addrs) in others.iter().zip(&near) {
                users.spawn(|| (0..2 * ROUNDS).for_each(|round| use_pages(client, addrs, round)));
            }
        });
    });
    assert!(samples.load(Ordering::Relaxed) > 1);
    let status = pool.status(0);
    for (part, bytes) in parts(&status) {
        assert!(bytes.limit > 0 && bytes.peak <= bytes.limit, "{part}: {bytes:?}");
    }
    let reads = status.in_flight.reads;
    assert!(reads.peak > reads.limit / 2, "the limit was not reached: {reads:?}");
    assert!(status.in_flight.peer_writes.used > 0, "{:?}", status.in_flight);
}
