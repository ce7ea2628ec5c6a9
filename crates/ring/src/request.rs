//! The request ring: a bounded queue of fixed-size entries with many producers and one consumer.
//!
//! Entry `i` of a ring of `n` entries serves the positions `p` with `p % n == i`. It holds the
//! request of position `p` when its *turn* is `p + 1`. Pushers write entries; the popper writes
//! only the head. A request therefore moves between cores as one cache line in one direction.
//! Pushers read the head only when the ring seems full.
//!
//! Both ends keep their position in the ring's header. A daemon that replaces a killed one
//! continues at the head: requests that the killed one took without moving the head are delivered
//! again. A pusher that dies before it sets a turn blocks its ring; the ring ends with its client.
//! A ring of zeroes is empty.

use rackpool_sync::atomic::{AtomicU64, Ordering};

/// Number of arguments of a request.
pub const ARGUMENTS: usize = 5;

/// The positions of both ends, each on its own cache line.
///
/// ```text
///  0      8            64     72   128
/// +------+------+-----+------+-----+
/// | tail | seen |     | head |     |
/// +------+------+-----+------+-----+
///   pushers              popper
/// ```
#[derive(Debug, Default)]
#[repr(C)]
pub struct RingHeader {
    pushers: PusherLine,
    popper: PopperLine,
}

#[derive(Debug, Default)]
#[repr(C, align(64))]
struct PusherLine {
    tail: AtomicU64,
    /// The head when a pusher last read it.
    seen_head: AtomicU64,
}

#[derive(Debug, Default)]
#[repr(C, align(64))]
struct PopperLine {
    head: AtomicU64,
}

/// One request in the ring: a cache line.
///
/// ```text
///  0      8        16     24                                64
/// +------+--------+------+---------------------------------+
/// | turn | header | life | 5 arguments                     |
/// +------+--------+------+---------------------------------+
/// ```
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct RingEntry {
    turn: AtomicU64,
    header: AtomicU64,
    life: AtomicU64,
    arguments: [AtomicU64; ARGUMENTS],
}

/// A request as pushed and popped.
///
/// ```text
/// header  63          32 31         16 15      8 7       0
///        +--------------+-------------+---------+---------+
///        |  call number |    thread   |  cell   |  code   |
///        +--------------+-------------+---------+---------+
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The operation; the daemon refuses codes that it does not know.
    pub code: u8,
    /// Index, among the cells of its thread, of the call cell that waits for the answer.
    pub cell: u8,
    /// Index of the thread slot that sends the request.
    pub thread: u16,
    /// Number of the call in its cell.
    pub call: u32,
    /// Incarnation of the daemon that the request is for; a daemon of another incarnation drops it.
    pub life: u64,
    /// Arguments, whose meaning depends on `code`.
    pub arguments: [u64; ARGUMENTS],
}

/// The ring is full: the popper must first catch up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the request ring is full")]
pub struct Full;

/// A ring over its header and its entries.
#[derive(Clone, Copy, Debug)]
pub struct RequestRing<'a> {
    header: &'a RingHeader,
    entries: &'a [RingEntry],
}

impl RingEntry {
    #[inline]
    fn write(&self, request: &Request) {
        let header = u64::from(request.code)
            | (u64::from(request.cell) << 8)
            | (u64::from(request.thread) << 16)
            | (u64::from(request.call) << 32);
        self.header.store(header, Ordering::Relaxed);
        self.life.store(request.life, Ordering::Relaxed);
        for (cell, argument) in self.arguments.iter().zip(request.arguments) {
            cell.store(argument, Ordering::Relaxed);
        }
    }

    #[inline]
    fn read(&self) -> Request {
        let header = self.header.load(Ordering::Relaxed);
        let [code, cell, t0, t1, c0, c1, c2, c3] = header.to_le_bytes();
        Request {
            code,
            cell,
            thread: u16::from_le_bytes([t0, t1]),
            call: u32::from_le_bytes([c0, c1, c2, c3]),
            life: self.life.load(Ordering::Relaxed),
            arguments: std::array::from_fn(|i| self.arguments[i].load(Ordering::Relaxed)),
        }
    }

    /// Returns true if the entry holds the request of this position.
    #[inline]
    fn is_filled(&self, position: u64) -> bool {
        // SYNC: pairs with the store of the turn in `push`.
        self.turn.load(Ordering::Acquire) == position.wrapping_add(1)
    }
}

impl<'a> RequestRing<'a> {
    /// A ring over `entries`.
    ///
    /// # Panics
    /// If the number of entries is not a power of two, which is a bug of the caller.
    #[must_use]
    pub const fn new(header: &'a RingHeader, entries: &'a [RingEntry]) -> Self {
        assert!(entries.len().is_power_of_two(), "the entries are no power of two");
        Self { header, entries }
    }

    #[inline]
    fn entry(&self, position: u64) -> &'a RingEntry {
        let mask = self.entries.len() as u64 - 1;
        #[expect(clippy::cast_possible_truncation, reason = "masked to the number of entries")]
        &self.entries[(position & mask) as usize]
    }

    /// Appends all requests contiguously, or none. Any thread of the client may call it at any
    /// time.
    ///
    /// # Errors
    /// [`Full`] if the ring has no room for all of them.
    #[inline]
    pub fn push(&self, requests: &[Request]) -> Result<(), Full> {
        let count = requests.len() as u64;
        let tail = &self.header.pushers.tail;
        let mut position = tail.load(Ordering::Relaxed);
        loop {
            if !self.has_room(position, count) {
                let now = tail.load(Ordering::Relaxed);
                if now == position {
                    return Err(Full);
                }
                position = now;
                continue;
            }
            let end = position.wrapping_add(count);
            let took =
                tail.compare_exchange_weak(position, end, Ordering::Relaxed, Ordering::Relaxed);
            match took {
                Ok(_) => break,
                Err(found) => position = found,
            }
        }
        for request in requests {
            let entry = self.entry(position);
            entry.write(request);
            position = position.wrapping_add(1);
            // SYNC: pairs with the load in `is_filled`: the entry is complete.
            entry.turn.store(position, Ordering::Release);
        }
        Ok(())
    }

    /// Returns true if the popper has read the `count` entries from `position` on. Returns false
    /// for a stale position.
    #[inline]
    fn has_room(&self, position: u64, count: u64) -> bool {
        let fits =
            |head| position.wrapping_sub(head).saturating_add(count) <= self.entries.len() as u64;
        // SYNC: pairs with the store at the end of `has_room`, by which another pusher passes on
        // the head that it has seen.
        if fits(self.header.pushers.seen_head.load(Ordering::Acquire)) {
            return true;
        }
        // SYNC: pairs with the store in `pop`: the entries before the head have been read.
        let head = self.header.popper.head.load(Ordering::Acquire);
        // SYNC: pairs with the first load in `has_room`.
        self.header.pushers.seen_head.store(head, Ordering::Release);
        fits(head)
    }

    /// Pops up to `most` complete requests, the oldest first, and returns their number. Only one
    /// thread of one process may call it at a time.
    ///
    /// The entries were written by another process. An entry with meaningless contents is popped
    /// like any other; its receiver checks it.
    #[inline]
    pub fn pop(&self, most: usize, mut take: impl FnMut(Request)) -> usize {
        let start = self.header.popper.head.load(Ordering::Relaxed);
        let mut taken = 0;
        let mut position = start;
        while taken < most && self.entry(position).is_filled(position) {
            take(self.entry(position).read());
            position = position.wrapping_add(1);
            taken += 1;
        }
        if taken > 0 {
            // SYNC: pairs with the load in `has_room`.
            self.header.popper.head.store(position, Ordering::Release);
        }
        taken
    }

    /// Returns true if there is no complete request at the head.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let position = self.header.popper.head.load(Ordering::Relaxed);
        !self.entry(position).is_filled(position)
    }
}

#[cfg(not(loom))]
mod shared {
    use super::{RingEntry, RingHeader};

    // SAFETY: `repr(C)`, nothing but atomic integers and padding.
    unsafe impl rackpool_shm::Shared for RingHeader {}
    // SAFETY: `repr(C)`, nothing but atomic integers.
    unsafe impl rackpool_shm::Shared for RingEntry {}
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests;
