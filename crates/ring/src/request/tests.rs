use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use proptest::prelude::*;

use super::*;

fn request(call: u32) -> Request {
    let arguments = [u64::from(call); ARGUMENTS];
    Request { code: 3, cell: 5, thread: 700, call, life: u64::MAX - 1, arguments }
}

fn entries(count: usize) -> Vec<RingEntry> {
    (0..count).map(|_| RingEntry::default()).collect()
}

fn pop(ring: &RequestRing<'_>, most: usize) -> Vec<u32> {
    let mut taken = Vec::new();
    let count = ring.pop(most, |popped| {
        assert_eq!(popped, request(popped.call), "torn");
        taken.push(popped.call);
    });
    assert_eq!(count, taken.len());
    taken
}

/// The offsets of docs/design/messages.md.
#[test]
fn the_layout_is_the_documented_one() {
    use std::mem::offset_of;
    assert_eq!(size_of::<RingHeader>(), 128);
    assert_eq!((offset_of!(RingHeader, pushers), offset_of!(RingHeader, popper)), (0, 64));
    assert_eq!((offset_of!(PusherLine, tail), offset_of!(PusherLine, seen_head)), (0, 8));
    assert_eq!(offset_of!(PopperLine, head), 0);
    assert_eq!(size_of::<RingEntry>(), 64);
    assert_eq!((offset_of!(RingEntry, turn), offset_of!(RingEntry, header)), (0, 8));
    assert_eq!((offset_of!(RingEntry, life), offset_of!(RingEntry, arguments)), (16, 24));
    let entry = RingEntry::default();
    entry.write(&Request { code: 1, cell: 2, thread: 3, call: 4, ..request(0) });
    assert_eq!(entry.header.load(Ordering::Relaxed), 4 << 32 | 3 << 16 | 2 << 8 | 1);
}

#[test]
fn requests_come_out_whole_and_in_order() {
    let (header, entries) = (RingHeader::default(), entries(4));
    let ring = RequestRing::new(&header, &entries);
    for round in 0..10 {
        let calls: Vec<u32> = (round * 4..round * 4 + 4).collect();
        ring.push(&[request(calls[0])]).unwrap();
        ring.push(&[request(calls[1]), request(calls[2]), request(calls[3])]).unwrap();
        assert_eq!(ring.push(&[request(99)]), Err(Full));
        assert_eq!(pop(&ring, 1), calls[..1]);
        assert_eq!(ring.push(&[request(98), request(99)]), Err(Full), "one fits, two do not");
        assert_eq!(pop(&ring, 9), calls[1..]);
        assert!(ring.is_empty());
    }
}

#[test]
fn a_batch_larger_than_the_ring_is_refused() {
    let (header, entries) = (RingHeader::default(), entries(2));
    let ring = RequestRing::new(&header, &entries);
    assert_eq!(ring.push(&[request(1); 3]), Err(Full));
    assert!(ring.is_empty());
}

#[test]
fn a_popper_killed_before_it_moved_the_head_finds_the_entries_again() {
    let (header, entries) = (RingHeader::default(), entries(2));
    let ring = RequestRing::new(&header, &entries);
    ring.push(&[request(1), request(2)]).unwrap();
    let read = ring.entry(0).read();
    assert_eq!(read, request(1), "read, and then killed");
    let next = RequestRing::new(&header, &entries);
    assert_eq!(pop(&next, 9), [1, 2]);
    next.push(&[request(3)]).unwrap();
    assert_eq!(pop(&next, 9), [3]);
}

#[test]
fn any_positions_in_the_header_are_survived() {
    for (tail, seen, head) in [(0, 5, 9), (u64::MAX, 0, 1), (3, u64::MAX, u64::MAX - 1)] {
        let (header, entries) = (RingHeader::default(), entries(4));
        header.pushers.tail.store(tail, Ordering::Relaxed);
        header.pushers.seen_head.store(seen, Ordering::Relaxed);
        header.popper.head.store(head, Ordering::Relaxed);
        let ring = RequestRing::new(&header, &entries);
        for call in 0..9 {
            let _ = ring.push(&[request(call)]);
            assert!(pop(&ring, 2).len() <= 2);
        }
    }
}

#[test]
fn threads_lose_and_double_nothing() {
    const THREADS: u32 = 4;
    const EACH: u32 = 20_000;
    let (header, entries) = (RingHeader::default(), entries(64));
    let ring = RequestRing::new(&header, &entries);
    let mut seen = vec![0_u32; (THREADS * EACH) as usize];
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                let mut call = thread * EACH;
                while call < (thread + 1) * EACH {
                    let count = 1 + call % 3;
                    let end = (call + count).min((thread + 1) * EACH);
                    let batch: Vec<_> = (call..end).map(request).collect();
                    while ring.push(&batch).is_err() {
                        std::thread::yield_now();
                    }
                    call = end;
                }
            });
        }
        let mut last = [None; THREADS as usize];
        let mut left = THREADS * EACH;
        while left > 0 {
            for call in pop(&ring, 7) {
                left -= 1;
                seen[call as usize] += 1;
                let order = &mut last[(call / EACH) as usize];
                assert!(order.is_none_or(|before| before < call), "out of order");
                *order = Some(call);
            }
            std::thread::yield_now();
        }
    });
    assert!(seen.iter().all(|times| *times == 1));
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Pushes a batch of this length.
    Push(u32),
    /// A pusher takes a position. It continues with `Fill`, or never if it is killed.
    Claim,
    /// A pusher in the order of waiting, chosen by this index, fills its entry.
    Fill(usize),
    Pop(usize),
    /// The daemon is killed while it reads the entry behind this many.
    KillPopper(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0_u32..7).prop_map(Step::Push),
        2 => Just(Step::Claim),
        2 => (0_usize..4).prop_map(Step::Fill),
        4 => (0_usize..7).prop_map(Step::Pop),
        1 => (0_usize..5).prop_map(Step::KillPopper),
    ];
    proptest::collection::vec(step, 1..200)
}

/// The model of the ring: the calls in the order of their positions; `None` for one that its pusher
/// has not filled yet.
#[derive(Default)]
struct Queue {
    calls: VecDeque<(u64, Option<u32>)>,
    tail: u64,
    last: u32,
}

impl Queue {
    fn next_call(&mut self) -> u32 {
        self.last += 1;
        self.last
    }

    fn append(&mut self, call: Option<u32>) {
        self.calls.push_back((self.tail, call));
        self.tail = self.tail.wrapping_add(1);
    }

    /// The complete calls before the first incomplete one.
    fn complete(&self) -> Vec<u32> {
        self.calls.iter().map_while(|(_, call)| *call).collect()
    }
}

/// A ring that has wrapped around until its next position is `start`.
fn gone_round(header: &RingHeader, entries: &[RingEntry], start: u64) {
    for past in (1..=entries.len() as u64).filter(|_| start != 0) {
        let position = start.wrapping_sub(past);
        let index = usize::try_from(position % entries.len() as u64).unwrap();
        entries[index].turn.store(position.wrapping_add(1), Ordering::Relaxed);
    }
    header.pushers.tail.store(start, Ordering::Relaxed);
    header.popper.head.store(start, Ordering::Relaxed);
    header.pushers.seen_head.store(start, Ordering::Relaxed);
}

fn one_step(
    step: Step,
    (header, entries): (&RingHeader, &[RingEntry]),
    queue: &mut Queue,
) -> Result<(), TestCaseError> {
    // Each party makes its own `RequestRing` over the shared memory.
    let ring = RequestRing::new(header, entries);
    let room = entries.len() - queue.calls.len();
    match step {
        Step::Push(count) => {
            let batch: Vec<u32> = (0..count).map(|_| queue.next_call()).collect();
            let requests: Vec<Request> = batch.iter().map(|call| request(*call)).collect();
            let fits = batch.len() <= room;
            prop_assert_eq!(ring.push(&requests).is_ok(), fits);
            batch.into_iter().filter(|_| fits).for_each(|call| queue.append(Some(call)));
        }
        Step::Claim if ring.has_room(queue.tail, 1) => {
            prop_assert!(room > 0);
            header.pushers.tail.store(queue.tail.wrapping_add(1), Ordering::Relaxed);
            queue.append(None);
        }
        Step::Claim => prop_assert_eq!(room, 0),
        Step::Fill(but) => {
            let call = queue.next_call();
            let mut waiting = queue.calls.iter_mut().filter(|(_, call)| call.is_none());
            if let Some((position, slot)) = waiting.nth(but) {
                ring.entry(*position).write(&request(call));
                let turn = position.wrapping_add(1);
                ring.entry(*position).turn.store(turn, Ordering::Release);
                *slot = Some(call);
            }
        }
        Step::Pop(most) => {
            let mut expected = queue.complete();
            expected.truncate(most);
            prop_assert_eq!(&pop(&ring, most), &expected);
            queue.calls.drain(..expected.len());
        }
        Step::KillPopper(after) => {
            let mut seen = Vec::new();
            let _killed = catch_unwind(AssertUnwindSafe(|| {
                ring.pop(entries.len(), |popped| {
                    seen.push(popped.call);
                    if seen.len() > after {
                        resume_unwind(Box::new("killed"));
                    }
                })
            }));
            let complete = queue.complete();
            prop_assert_eq!(&seen[..], &complete[..complete.len().min(after + 1)]);
            if seen.len() <= after {
                queue.calls.drain(..seen.len());
            }
        }
    }
    let is_empty = queue.calls.front().is_none_or(|(_, call)| call.is_none());
    prop_assert_eq!(RequestRing::new(header, entries).is_empty(), is_empty);
    Ok(())
}

proptest! {
    /// From any start position, including wrap-around of the numbers.
    #[test]
    fn behaves_like_a_bounded_queue(
        bits in 0_u32..4,
        start in prop_oneof![Just(0), any::<u64>(), u64::MAX - 40..=u64::MAX],
        steps in steps(),
    ) {
        let (header, entries) = (RingHeader::default(), entries(1 << bits));
        gone_round(&header, &entries, start);
        let mut queue = Queue { tail: start, ..Queue::default() };
        for step in steps {
            one_step(step, (&header, &entries), &mut queue)?;
        }
    }
}
