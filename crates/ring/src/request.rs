//! The polling ring: a bounded queue of fixed-size entries. Many threads push, one pops.
//!
//! The order of entries is given by their *turn*: entry `i` of a ring of `n` may be filled for
//! position `p` (with `p % n == i`) when its turn is `p`, and may be taken when it is `p + 1`.
//! Both ends keep their position in the ring's header, so a daemon that was killed goes on where
//! it stopped. An entry whose pusher died before setting the turn is never seen; the whole ring
//! goes with its client.

use rackpool_sync::atomic::{AtomicU64, Ordering};

/// Arguments of a request.
pub const ARGUMENTS: usize = 6;

/// The positions of both ends, each on a cache line of its own.
#[derive(Debug, Default)]
#[repr(C)]
pub struct RingHeader {
    tail: Line,
    head: Line,
}

#[derive(Debug, Default)]
#[repr(C, align(64))]
struct Line(AtomicU64);

/// One request in the ring: a cache line.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Entry {
    turn: AtomicU64,
    header: AtomicU64,
    arguments: [AtomicU64; ARGUMENTS],
}

/// A request as it is pushed and popped.
///
/// ```text
/// header  63          32 31         16 15      8 7       0
///        +--------------+-------------+---------+---------+
///        |  call number |    thread   |  cell   |  code   |
///        +--------------+-------------+---------+---------+
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// What is asked; the daemon refuses codes it does not know.
    pub code: u8,
    /// The call cell, among those of its thread, that waits for the answer.
    pub cell: u8,
    /// The thread slot that asks.
    pub thread: u16,
    /// The call's number: an answer to an earlier call of the same cell is ignored.
    pub call: u32,
    /// What is asked for, in the meaning of `code`.
    pub arguments: [u64; ARGUMENTS],
}

/// The ring is full: its consumer has to catch up first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the request ring is full")]
pub struct Full;

/// A ring laid over its header and its entries.
#[derive(Clone, Copy, Debug)]
pub struct RequestRing<'a> {
    header: &'a RingHeader,
    entries: &'a [Entry],
}

impl Request {
    fn header(&self) -> u64 {
        u64::from(self.code)
            | (u64::from(self.cell) << 8)
            | (u64::from(self.thread) << 16)
            | (u64::from(self.call) << 32)
    }

    fn from_words(header: u64, arguments: [u64; ARGUMENTS]) -> Self {
        let [code, cell, t0, t1, c0, c1, c2, c3] = header.to_le_bytes();
        Self {
            code,
            cell,
            thread: u16::from_le_bytes([t0, t1]),
            call: u32::from_le_bytes([c0, c1, c2, c3]),
            arguments,
        }
    }
}

impl<'a> RequestRing<'a> {
    /// A ring over `entries`; their number must be a power of two.
    ///
    /// # Panics
    /// When the number of entries is none, a bug of the caller.
    #[must_use]
    pub fn new(header: &'a RingHeader, entries: &'a [Entry]) -> Self {
        assert!(entries.len().is_power_of_two(), "a ring of {} entries", entries.len());
        Self { header, entries }
    }

    /// Makes the entries ready for their first turn. Only before anyone uses the ring.
    pub fn format(&self) {
        for (turn, entry) in (0_u64..).zip(self.entries) {
            entry.turn.store(turn, Ordering::Relaxed);
        }
        self.header.head.0.store(0, Ordering::Relaxed);
        self.header.tail.0.store(0, Ordering::Release);
    }

    fn entry(&self, position: u64) -> &'a Entry {
        let mask = self.entries.len() as u64 - 1;
        #[expect(clippy::cast_possible_truncation, reason = "masked to the number of entries")]
        &self.entries[(position & mask) as usize]
    }

    /// Appends a request. Any thread of the client may do so at any time.
    pub fn push(&self, request: &Request) -> Result<(), Full> {
        let mut position = self.header.tail.0.load(Ordering::Relaxed);
        loop {
            let entry = self.entry(position);
            // SYNC: pairs with the store of the turn in `pop`: the arguments were read.
            let turn = entry.turn.load(Ordering::Acquire);
            if turn == position {
                let next = position.wrapping_add(1);
                match self.header.tail.0.compare_exchange_weak(
                    position,
                    next,
                    Ordering::Relaxed,
                    Ordering::Relaxed,
                ) {
                    Ok(_) => {
                        entry.header.store(request.header(), Ordering::Relaxed);
                        for (cell, argument) in entry.arguments.iter().zip(request.arguments) {
                            cell.store(argument, Ordering::Relaxed);
                        }
                        // SYNC: pairs with the load of the turn in `pop`: the entry is complete.
                        entry.turn.store(next, Ordering::Release);
                        return Ok(());
                    }
                    Err(found) => position = found,
                }
            } else if turn.wrapping_sub(position) > u64::MAX / 2 {
                return Err(Full);
            } else {
                position = self.header.tail.0.load(Ordering::Relaxed);
            }
        }
    }

    /// Takes the oldest complete request. One thread of one process at a time.
    ///
    /// Everything here was written by another process: an entry that makes no sense is still an
    /// entry, and its receiver checks it.
    #[must_use]
    pub fn pop(&self) -> Option<Request> {
        let position = self.header.head.0.load(Ordering::Relaxed);
        let entry = self.entry(position);
        // SYNC: pairs with the store of the turn in `push`.
        if entry.turn.load(Ordering::Acquire) != position.wrapping_add(1) {
            return None;
        }
        let header = entry.header.load(Ordering::Relaxed);
        let arguments = std::array::from_fn(|i| entry.arguments[i].load(Ordering::Relaxed));
        // The position first: a consumer killed in between leaves an entry that is never reused,
        // which its successor mends in `recover`; the other way round it could be taken twice.
        self.header.head.0.store(position.wrapping_add(1), Ordering::Relaxed);
        // SYNC: pairs with the load of the turn in `push`.
        entry.turn.store(position.wrapping_add(self.entries.len() as u64), Ordering::Release);
        Some(Request::from_words(header, arguments))
    }

    /// Whether there is nothing to take.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let position = self.header.head.0.load(Ordering::Relaxed);
        self.entry(position).turn.load(Ordering::Acquire) != position.wrapping_add(1)
    }

    /// Mends what a consumer killed within [`Self::pop`] left: the entry before the head may not
    /// have been given back. Called once by a new consumer before it pops.
    pub fn recover(&self) {
        let head = self.header.head.0.load(Ordering::Relaxed);
        let before = head.wrapping_sub(1);
        let entry = self.entry(before);
        if entry.turn.load(Ordering::Acquire) == head {
            entry.turn.store(before.wrapping_add(self.entries.len() as u64), Ordering::Release);
        }
    }
}

#[cfg(not(loom))]
mod shared {
    use super::{Entry, RingHeader};

    // SAFETY: `repr(C)`, nothing but atomic integers and padding.
    unsafe impl rackpool_shm::Shared for RingHeader {}
    // SAFETY: `repr(C)`, nothing but atomic integers.
    unsafe impl rackpool_shm::Shared for Entry {}
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    fn request(call: u32) -> Request {
        Request { code: 3, cell: 5, thread: 700, call, arguments: [u64::from(call); ARGUMENTS] }
    }

    fn entries(count: usize) -> Vec<Entry> {
        (0..count).map(|_| Entry::default()).collect()
    }

    #[test]
    fn requests_come_out_whole_and_in_order() {
        let (header, entries) = (RingHeader::default(), entries(4));
        let ring = RequestRing::new(&header, &entries);
        ring.format();
        for round in 0..10 {
            for call in 0..4 {
                ring.push(&request(round * 4 + call)).unwrap();
            }
            assert_eq!(ring.push(&request(99)), Err(Full));
            for call in 0..4 {
                assert_eq!(ring.pop(), Some(request(round * 4 + call)));
            }
            assert_eq!(ring.pop(), None);
        }
    }

    #[test]
    fn a_consumer_killed_while_popping_costs_no_entry() {
        let (header, entries) = (RingHeader::default(), entries(2));
        let ring = RequestRing::new(&header, &entries);
        ring.format();
        ring.push(&request(1)).unwrap();
        // The head moved, the turn did not: as if killed between the two stores of `pop`.
        header.head.0.store(1, Ordering::Relaxed);
        ring.recover();
        ring.recover();
        for call in 2..20 {
            ring.push(&request(call)).unwrap();
            assert_eq!(ring.pop(), Some(request(call)));
        }
    }

    #[test]
    fn threads_lose_and_double_nothing() {
        const THREADS: u32 = 4;
        const EACH: u32 = 20_000;
        let (header, entries) = (RingHeader::default(), entries(64));
        let ring = RequestRing::new(&header, &entries);
        ring.format();
        let mut seen = vec![0_u32; (THREADS * EACH) as usize];
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                scope.spawn(move || {
                    for call in 0..EACH {
                        while ring.push(&request(thread * EACH + call)).is_err() {
                            std::thread::yield_now();
                        }
                    }
                });
            }
            let mut last = [None; THREADS as usize];
            for _ in 0..THREADS * EACH {
                let popped = loop {
                    match ring.pop() {
                        Some(popped) => break popped,
                        None => std::thread::yield_now(),
                    }
                };
                assert_eq!(popped, request(popped.call), "torn");
                seen[popped.call as usize] += 1;
                let order = &mut last[(popped.call / EACH) as usize];
                assert!(order.is_none_or(|before| before < popped.call), "out of order");
                *order = Some(popped.call);
            }
        });
        assert!(seen.iter().all(|times| *times == 1));
    }
}
