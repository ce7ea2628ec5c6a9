//! The small parts on the hot paths, timed with criterion.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use rackpool_model::{FrameId, PageEvent, PageId, PageWord};
use rackpool_ring::call::{Answer, CallCell, VALUES};
use rackpool_ring::request::{ARGUMENTS, Entry, Request, RequestRing, RingHeader};
use rackpool_shm::access::{AccessSlot, Intent, PageWordRef};
use rackpool_sync::atomic::AtomicU64;
use rackpool_sync::barrier::Barrier;
use rackpool_wire::peer::{PeerMessage, PeerRequest};

fn access(criterion: &mut Criterion) {
    let live = PageWord::free(PageId(1)).apply(PageEvent::Allocated).expect("a free page");
    let (slot, cell) = (AccessSlot::new(), AtomicU64::new(live.raw()));
    for barrier in [Barrier::Full, Barrier::Light] {
        let name = format!("access slot: enter and leave, {barrier:?} barrier");
        criterion.bench_function(&name, |bench| {
            bench.iter(|| {
                let word = PageWordRef::new(&cell);
                drop(black_box(slot.enter(FrameId(3), Intent::Read, word, live, barrier)));
            });
        });
    }
}

fn ring(criterion: &mut Criterion) {
    let header = RingHeader::default();
    let entries: Vec<Entry> = (0..64).map(|_| Entry::default()).collect();
    let ring = RequestRing::new(&header, &entries);
    ring.format();
    let request = Request { code: 1, cell: 2, thread: 3, call: 4, arguments: [5; ARGUMENTS] };
    criterion.bench_function("request ring: push and pop, one thread", |bench| {
        bench.iter(|| {
            ring.push(black_box(&request)).expect("there is room");
            black_box(ring.pop())
        });
    });
    let cell = CallCell::default();
    let answer = Answer { status: 0, values: [1; VALUES] };
    criterion.bench_function("call cell: begin, finish, answer, one thread", |bench| {
        bench.iter(|| {
            let call = cell.begin();
            black_box(cell.finish(call, &answer));
            black_box(cell.answer())
        });
    });
}

fn codec(criterion: &mut Criterion) {
    let message =
        PeerMessage::Request { call: 7, request: PeerRequest::Lookup { page: PageId(9) } };
    criterion.bench_function("peer message: encode and decode", |bench| {
        bench.iter(|| {
            let bytes = rackpool_wire::encode(black_box(&message)).expect("it is small");
            rackpool_wire::decode::<PeerMessage>(&bytes).expect("it was just encoded")
        });
    });
}

criterion_group!(primitives, access, ring, codec);
criterion_main!(primitives);
