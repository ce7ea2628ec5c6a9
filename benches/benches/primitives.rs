//! The small parts on the hot paths, timed with criterion.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use rackpool_benches::names;
use rackpool_model::{Access, FrameId, PageEvent, PageId, PageWord};
use rackpool_ring::call::{Answer, CallCell, VALUES};
use rackpool_ring::data::DataRing;
use rackpool_ring::request::{ARGUMENTS, Request, RequestRing, RingEntry, RingHeader};
use rackpool_shm::access::{AccessIntent, AccessSlot, PageWordRef};
use rackpool_sync::atomic::AtomicU64;
use rackpool_sync::barrier::Barrier;
use rackpool_wire::peer::PeerRequest;

fn access(criterion: &mut Criterion) {
    let live = PageWord::free(PageId(1)).apply(PageEvent::Allocated).expect("a free page");
    let (slot, cell) = (AccessSlot::new(), AtomicU64::new(live.raw()));
    for barrier in [Barrier::Full, Barrier::Light] {
        let name = format!("{}, {barrier:?} barrier", names::ENTER_AND_LEAVE);
        criterion.bench_function(&name, |bench| {
            bench.iter(|| {
                let word = PageWordRef::new(&cell);
                drop(black_box(slot.enter(FrameId(3), AccessIntent::Read, word, live, barrier)));
            });
        });
    }
}

fn ring(criterion: &mut Criterion) {
    let header = RingHeader::default();
    let entries: Vec<RingEntry> = (0..64).map(|_| RingEntry::default()).collect();
    let ring = RequestRing::new(&header, &entries);
    let request =
        Request { code: 1, cell: 2, thread: 3, call: 4, life: 5, arguments: [6; ARGUMENTS] };
    criterion.bench_function(names::REQUEST_RING, |bench| {
        bench.iter(|| {
            ring.push(black_box(&[request])).expect("there is room");
            ring.pop(1, |popped| _ = black_box(popped))
        });
    });
    let cell = CallCell::default();
    let answer = Answer { status: 0, values: [1; VALUES] };
    let mut call = 0;
    criterion.bench_function(names::CALL_CELL, |bench| {
        bench.iter(|| {
            call += 1;
            cell.finish(black_box(call), &answer);
            black_box(cell.answer(call))
        });
    });
    let data = DataRing::new(1 << 20);
    criterion.bench_function(names::DATA_RING, |bench| {
        bench.iter(|| data.give_back(data.take(black_box(4096)).expect("there is room")));
    });
}

fn codec(criterion: &mut Criterion) {
    let message =
        PeerRequest::Lookup { page: PageId(9), question: 1, access: Access::Read, keep: false };
    criterion.bench_function(names::PEER_MESSAGE, |bench| {
        bench.iter(|| {
            let bytes = rackpool_wire::encode(black_box(&message)).expect("it is small");
            rackpool_wire::decode::<PeerRequest>(&bytes).expect("it was just encoded")
        });
    });
}

criterion_group!(primitives, access, ring, codec);
criterion_main!(primitives);
