//! One-sided operations.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rackpool_model::RackId;

use super::pair::{End, FRAMES_LEN, Pair, bytes_of, memory_of, ok, pattern, read, transfer, write};
use super::{Factory, Hardware};
use crate::{ErrorClass, Event, FabricError, RegionId, RemoteRegion, WorkRequest};

/// Bytes arrive at their destination and nowhere else, at any size and alignment.
pub fn sizes_and_offsets(factory: &impl Factory) {
    let mut pair = Pair::new(factory, Hardware::FAST);
    let sizes = [1, 7, 8, 9, 63, 64, 4095, 4096, 4097, 65_536, 65_537, 1 << 20, (2 << 20) + 3];
    for (seed, len) in (1..).zip(sizes) {
        for remote_at in [64, 4093] {
            let content = pattern(len, seed);
            let source = memory_of(factory, &[&[0; 5][..], &content].concat());
            let target = factory.memory(len as u64 + 8);
            let (from, to) = (pair.a.register(&source), pair.a.register(&target));
            let size = u32::try_from(len).unwrap_or(0);
            ok(pair.a.post(&[write(1, transfer(from, 5, remote_at, size))]));
            ok(pair.a.completed(1));
            let around = bytes_of(&pair.b.node.frames, remote_at - 1, len + 2);
            assert_eq!(around[1..=len], content, "{len} B written to {remote_at}");
            assert_eq!((around[0], around[len + 1]), (0, 0), "{len} B written to {remote_at}");
            ok(pair.a.post(&[read(2, transfer(to, 3, remote_at, size))]));
            ok(pair.a.completed(2));
            assert_eq!(bytes_of(&target, 3, len), content, "{len} B read from {remote_at}");
            assert_eq!(bytes_of(&target, 0, 3), [0; 3], "{len} B read from {remote_at}");
            ok(pair.b.node.frames.write(remote_at, &vec![0; len]));
        }
    }
}

/// Empty requests and requests outside of a region are refused, and the endpoint stays open.
pub fn empty_and_outside_are_refused(factory: &impl Factory) {
    let mut pair = Pair::new(factory, Hardware::FAST);
    let region = pair.a.register(&memory_of(factory, &[9; 64]));
    let refused = [
        transfer(region, 0, 0, 0),
        transfer(region, 1, 0, 64),
        transfer(region, u64::MAX, 0, 1),
        transfer(region, 0, FRAMES_LEN, 1),
        transfer(region, 0, FRAMES_LEN - 1, 2),
        transfer(region, 0, u64::MAX - 3, 8),
        transfer(RegionId(12_345), 0, 0, 1),
    ];
    let mut unknown = transfer(region, 0, 0, 1);
    unknown.remote = RemoteRegion(1);
    for transfer in refused.into_iter().chain([unknown]) {
        for request in [write(1, transfer), read(1, transfer)] {
            let Err(error) = pair.a.post(&[request]) else { panic!("{request:?} was taken") };
            assert_eq!(error.class(), ErrorClass::Fatal, "{error}");
        }
    }
    ok(pair.a.post(&[write(2, transfer(region, 0, FRAMES_LEN - 64, 64))]));
    ok(pair.a.completed(2));
    assert_eq!(pair.a.events, []);
    assert_eq!(bytes_of(&pair.b.node.frames, FRAMES_LEN - 64, 64), [9; 64]);
}

/// The requests of a list, and of consecutive lists, take effect and complete in order.
pub fn lists_are_executed_in_order(factory: &impl Factory) {
    let mut pair = Pair::new(factory, Hardware::FAST);
    let values = memory_of(factory, &pattern(200, 1));
    let back = factory.memory(200);
    let (from, to) = (pair.a.register(&values), pair.a.register(&back));
    let list: Vec<_> = (0..200)
        .flat_map(|i| {
            [write(2 * i, transfer(from, i, 77, 1)), read(2 * i + 1, transfer(to, i, 77, 1))]
        })
        .collect();
    for part in list.chunks(50) {
        ok(pair.a.post(part));
    }
    ok(pair.a.completed(399));
    let order: Vec<_> = pair
        .a
        .events
        .iter()
        .map(|event| match event {
            Event::Completed { id, result: Ok(()), .. } => *id,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(order, (0..399).collect::<Vec<_>>());
    assert_eq!(bytes_of(&back, 0, 200), pattern(200, 1));
}

/// One invalid request keeps the whole list from being posted.
pub fn a_list_is_taken_whole_or_not_at_all(factory: &impl Factory) {
    let mut pair = Pair::new(factory, Hardware::FAST);
    let region = pair.a.register(&memory_of(factory, &[1; 8]));
    let list = [write(1, transfer(region, 0, 0, 8)), write(2, transfer(region, 0, FRAMES_LEN, 8))];
    assert!(matches!(pair.a.post(&list), Err(FabricError::OutOfRange { .. })));
    ok(pair.a.post(&[write(3, transfer(region, 0, 64, 8))]));
    ok(pair.a.completed(3));
    assert_eq!(pair.a.events, []);
    assert_eq!(bytes_of(&pair.b.node.frames, 0, 8), [0; 8]);
}

/// Every request completes exactly once, even if ids repeat.
pub fn completions_come_exactly_once(factory: &impl Factory) {
    let mut pair = Pair::new(factory, Hardware::FAST);
    let region = pair.a.register(&memory_of(factory, &[1; 64]));
    for round in 0..20 {
        let list: Vec<_> = (0..30).map(|i| write(i % 3, transfer(region, 0, i * 64, 64))).collect();
        ok(pair.a.post(&list));
        ok(pair.a.post(&[read(1000 + round, transfer(region, 0, 0, 64))]));
    }
    ok(pair.a.completed(1019));
    for _ in 0..100 {
        pair.a.poll();
    }
    assert_eq!(pair.a.events.len(), 20 * 31 - 1);
    for id in 0..3 {
        let is = |event: &&Event| matches!(event, Event::Completed { id: done, .. } if *done == id);
        assert_eq!(pair.a.events.iter().filter(is).count(), 20 * 10);
    }
}

/// A full queue accepts nothing more until a request completes.
pub fn a_full_queue_says_retry(factory: &impl Factory) {
    let mut pair = Pair::new(factory, Hardware::FAST);
    let region = pair.a.register(&memory_of(factory, &[1; 64]));
    let depth = pair.a.fabric().queue_depth();
    let request = |id| write(id, transfer(region, 0, 0, 64));
    let list: Vec<WorkRequest> = (0..depth as u64).map(request).collect();
    ok(pair.a.post(&list));
    match pair.a.post(&[request(9)]) {
        Err(error) => assert_eq!(error.class(), ErrorClass::Retry),
        Ok(()) => panic!("more than queue_depth() requests were taken without a poll"),
    }
    ok(pair.a.completed(depth as u64 - 1));
    assert_eq!(pair.a.events.len(), depth - 1);
    ok(pair.a.post(&list));
    let longer: Vec<_> = (0..=depth as u64).map(request).collect();
    match pair.b.post(&longer) {
        Err(error) => assert_eq!(error.class(), ErrorClass::Fatal),
        Ok(()) => panic!("a list longer than the queue was taken"),
    }
}

/// A reader sees an aligned word whole while the word is being written.
pub fn words_are_moved_whole(factory: &impl Factory) {
    whole_words(factory, 0, 0);
}

/// The same in a transfer that begins and ends within other words.
pub fn words_between_ragged_ends_are_moved_whole(factory: &impl Factory) {
    whole_words(factory, 5, 3);
}

/// Writes and reads back 64 words except `skipped` bytes of the first and `left` bytes of the last.
fn whole_words(factory: &impl Factory, skipped: u32, left: u32) {
    const WORDS: u32 = 64;
    const LEN: usize = WORDS as usize * 8;
    // The words that are transferred completely.
    let moved = u64::from(skipped.div_ceil(8))..u64::from(WORDS - left.div_ceil(8));
    let seen_by_reader = moved.clone();
    let mut pair = Pair::new(factory, Hardware::FAST);
    let own = [[0x11; LEN], [0xee; LEN]].map(|bytes| memory_of(factory, &bytes));
    let own = own.map(|memory| pair.a.register(&memory));
    let back = factory.memory(LEN as u64);
    let to = pair.a.register(&back);
    let whole = |word: u64| [0, 0x1111_1111_1111_1111, 0xeeee_eeee_eeee_eeee].contains(&word);
    let frames = Arc::clone(&pair.b.node.frames);
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let reader = std::thread::spawn(move || {
        let mut seen = 0;
        while stopped.try_recv() != Err(std::sync::mpsc::TryRecvError::Disconnected) {
            for at in seen_by_reader.clone() {
                let word = ok(frames.load(4096 - 256 + at * 8));
                assert!(whole(word), "{word:#x} was torn");
                seen += 1;
            }
        }
        seen
    });
    for round in 0..500 {
        let len = WORDS * 8 - skipped - left;
        let (local, remote) = (u64::from(skipped), 4096 - 256 + u64::from(skipped));
        let from = own[usize::from(round % 2 == 0)];
        // Crosses a 4 KiB boundary, at which an implementation is likely to split.
        let list = [
            write(1, transfer(from, local, remote, len)),
            read(2, transfer(to, local, remote, len)),
        ];
        ok(pair.a.post(&list));
        ok(pair.a.completed(2));
        assert!(moved.clone().all(|at| whole(ok(back.load(at * 8)))));
        pair.a.events.clear();
    }
    drop(stop);
    assert!(ok(reader.join()) > 0);
}

/// A region is released exactly when its last operation is done.
pub fn regions_leave_when_idle(factory: &impl Factory) {
    let mut pair = Pair::new(factory, Hardware::FAST);
    let memory = memory_of(factory, &[5; 4096]);
    let region = pair.a.register(&memory);
    let idle = pair.a.register(&memory);
    ok(pair.a.post(&[write(1, transfer(region, 0, 0, 4096))]));
    for region in [region, idle, RegionId(999)] {
        pair.a.fabric().unregister(region);
    }
    let late = pair.a.post(&[write(2, transfer(region, 0, 0, 8))]);
    assert_eq!(late, Err(FabricError::UnknownRegion { region: region.0 }));
    pair.a.wait("the idle region", |event| *event == Event::Unregistered { region: idle });
    let gone = |event: &Event| *event == Event::Unregistered { region };
    pair.a.wait("the busy region", gone);
    let completed = |event: &Event| matches!(event, Event::Completed { id: 1, result: Ok(()), .. });
    assert!(pair.a.events.iter().any(completed), "it left before its operation was done");
    assert_eq!(Arc::strong_count(&memory), 1, "the fabric still holds the memory");
}

/// Nothing completes or arrives before the modelled hardware could have done it.
pub fn time_is_at_least_what_the_model_says(factory: &impl Factory) {
    if !factory.models_time() {
        return;
    }
    let latency = Duration::from_millis(5);
    let mut pair = Pair::new(factory, Hardware { latency, bandwidth_gbps: 0.8 });
    let region = pair.a.register(&factory.memory(1 << 20));
    let start = Instant::now();
    // At 0.8 Gbit/s 1 MiB takes 10.4 ms.
    ok(pair.a.post(&[
        write(1, transfer(region, 0, 0, 1 << 20)),
        write(2, transfer(region, 0, 0, 1 << 20)),
    ]));
    assert!(pair.a.fabric().next_completion().is_some());
    ok(pair.a.completed(1));
    assert!(start.elapsed() >= latency + Duration::from_millis(10));
    ok(pair.a.completed(2));
    assert!(start.elapsed() >= latency + Duration::from_millis(20));
    assert_eq!(pair.a.fabric().next_completion(), None);
    let start = Instant::now();
    ok(pair.a.send(&[1; 10_000]));
    pair.b.wait("the message", |event| matches!(event, Event::Message { .. }));
    assert!(start.elapsed() >= latency + Duration::from_micros(100));
}

/// Racks that read the same rack wait for each other, since its card transmits all their bytes.
pub fn racks_that_read_the_same_rack_share_its_card(factory: &impl Factory) {
    const READERS: u16 = 3;
    if !factory.models_time() {
        return;
    }
    let hardware = Hardware { latency: Duration::from_millis(5), bandwidth_gbps: 0.8 };
    let mut root = End::alone(factory.start(RackId(1), FRAMES_LEN, hardware));
    let address = root.fabric().address();
    let mut readers: Vec<(End, RegionId)> = (0..READERS)
        .map(|reader| {
            let mut end = End::alone(factory.start(RackId(2 + reader), FRAMES_LEN, hardware));
            end.endpoint = ok(end.fabric().connect(&address));
            end.wait("the connection", |event| matches!(event, Event::Connected { .. }));
            root.wait("a reader", |event| matches!(event, Event::Accepted { .. }));
            let region = end.register(&factory.memory(1 << 20));
            (end, region)
        })
        .collect();
    let start = Instant::now();
    for (end, region) in &mut readers {
        ok(end.post(&[read(1, transfer(*region, 0, 0, 1 << 20))]));
    }
    // At 0.8 Gbit/s 1 MiB takes 10.4 ms.
    for (earlier, (end, _)) in (1..).zip(&mut readers) {
        ok(end.completed(1));
        assert!(start.elapsed() >= hardware.latency + Duration::from_millis(10) * earlier);
    }
}
