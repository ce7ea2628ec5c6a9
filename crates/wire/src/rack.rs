//! Messages between the threads of a client and its rack daemon: the meaning of entries of the
//! request rings and of answers in call cells. They are plain words without encoding, since
//! millions are written and read each second.

use rackpool_model::{Access, CLAIMS, FrameId, GlobalAddr, LockClaim, PageId, PageWord, RackId};

use crate::lock::LockOutcome;

/// The arguments of a ring entry.
pub type Arguments = [u64; 5];
/// The values of an answer.
pub type Values = [u64; 5];

/// The longest forwarded write, in bytes. The page's home executes it on the data plane's thread
/// and sends all of its lines in one message later. A longer one is refused with
/// [`RackAnswer::Moved`]; the client then posts it in pieces.
pub const LONGEST_FORWARDED: u32 = 4 << 10;

/// A request of a client's thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RackRequest {
    /// Translate a page. For a page of another rack the daemon first takes a location lease. The
    /// answer is delayed while a swap prevents this kind of access.
    Translate {
        /// The page.
        page: PageId,
        /// The kind of access: a frozen page can be read, not written.
        access: Access,
    },
    /// Put up to `count` free objects into the thread's inbox.
    Refill {
        /// The size of each object in bytes, rounded up to a size class or to whole pages.
        bytes: u64,
        /// The most objects.
        count: u64,
    },
    /// Put up to `count` free fixed objects of this rack into the thread's inbox.
    RefillFixed {
        /// The size of each object in bytes, rounded up to a size class; at most a page.
        bytes: u64,
        /// The most objects.
        count: u64,
    },
    /// Name an extent of a head of this rack, or allocate one.
    Extend {
        /// The head.
        head: GlobalAddr,
        /// The most pages of a new extent. 0: allocate none.
        pages: u64,
        /// The number of the head's extents that the client knows. The daemon names the next one,
        /// and allocates it if there is none; so a repeated request has the same answer.
        known: u64,
    },
    /// Free the objects in the thread's outbox.
    Release,
    /// Copy bytes from another rack into the data ring.
    Read {
        /// The source address.
        addr: GlobalAddr,
        /// The number of bytes; they lie within one page.
        len: u64,
        /// The offset in the data ring.
        data: u64,
        /// The thread's number of the batch. Once a request of a batch is answered with
        /// [`RackAnswer::Moved`], all later ones of the batch are too, so a batch is never executed
        /// out of order.
        batch: u64,
    },
    /// Copy bytes from the data ring to another rack.
    Write {
        /// The destination address.
        addr: GlobalAddr,
        /// The number of bytes; they lie within one page.
        len: u64,
        /// The offset in the data ring.
        data: u64,
        /// The thread's number of the batch. Once a request of a batch is answered with
        /// [`RackAnswer::Moved`], all later ones of the batch are too, so a batch is never executed
        /// out of order.
        batch: u64,
    },
    /// Copy bytes from another rack into fixed memory of this one. Until the request has ended,
    /// the memory is not reused, even if the head is freed.
    ReadInto {
        /// The source address.
        addr: GlobalAddr,
        /// The number of bytes; they lie within one page, at the source and at the destination.
        len: u64,
        /// The fixed object to which the destination belongs.
        head: GlobalAddr,
        /// The destination: bytes of the head, or of one of its extents.
        into: GlobalAddr,
        /// As in [`Self::Read`].
        batch: u64,
    },
    /// Compare and swap 8 bytes in another rack.
    CompareAndSwap {
        /// The address, aligned to 8 bytes.
        addr: GlobalAddr,
        /// The expected value.
        expected: u64,
        /// The new value.
        new: u64,
    },
    /// Add to 8 bytes in another rack, wrapping.
    FetchAndAdd {
        /// The address, aligned to 8 bytes.
        addr: GlobalAddr,
        /// The summand.
        delta: u64,
    },
    /// Answer at once, to measure the round trip.
    Ping,
    /// Tell which of these fixed objects of this rack are pinned now: bit n of the answer's value
    /// stands for the nth address. Null addresses are not pinned.
    Pinned {
        /// The objects.
        objects: [GlobalAddr; Self::PINNED],
    },
    /// Lock lines for one of the thread's claims.
    Lock {
        /// The lines and the mode.
        claim: LockClaim,
        /// The index of the claim in the thread's slot.
        index: u8,
        /// How long the request waits, in microseconds.
        timeout_us: u64,
    },
    /// Give up the lock of a claim that is cleared, or the request for it.
    Unlock {
        /// The index of the claim in the thread's slot.
        index: u8,
        /// Whether the thread does not know that the lock was granted.
        withdrawn: bool,
    },
}

/// An answer of the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RackAnswer {
    /// The page is in this rack.
    Local {
        /// Its frame.
        frame: FrameId,
        /// Its page word at the time of the answer.
        word: PageWord,
        /// The use of the page, from its slab header.
        usage: u64,
    },
    /// The page is in another rack.
    Remote {
        /// Its home.
        home: RackId,
        /// The use of the page, from its slab header.
        usage: u64,
    },
    /// The page is in another rack, and this rack keeps a replica that can be read.
    Copied {
        /// Its home, for writes.
        home: RackId,
        /// The use of the page, from its slab header.
        usage: u64,
        /// The frame of the replica.
        frame: FrameId,
        /// The number of the replica. It is readable while the frame's published number equals this
        /// one.
        copy: u64,
    },
    /// The request is done. For an atomic: the value before; for an allocation or release: the
    /// number of objects.
    Done(u64),
    /// An extent of a head.
    Extent {
        /// The address of its first byte.
        addr: GlobalAddr,
        /// The number of its pages.
        pages: u32,
    },
    /// The transfer was executed by the page's home, another rack.
    DoneAt(RackId),
    /// The page has moved or its lease has ended; the client must translate again.
    Moved,
    /// The page is not allocated: it was freed or never allocated.
    NotAllocated,
    /// The page is lost with the memory of its rack.
    PageLost,
    /// The home rack does not answer.
    RackUnavailable(RackId),
    /// The home's daemon ended before it answered; the operation may or may not have been executed.
    Indeterminate(RackId),
    /// No rack has room. Each count is the one that its rack reported last.
    OutOfMemory {
        /// Frames of this rack.
        rack_frames: u32,
        /// Free frames of this rack.
        rack_free: u32,
        /// Other racks that were asked and have no room.
        asked: u16,
        /// Their frames.
        other_frames: u64,
        /// Their free frames.
        other_free: u64,
        /// Other racks of the pool that did not answer or are down.
        unreachable: u16,
    },
    /// The object is larger than the memory of any rack.
    TooLarge {
        /// The memory of the largest rack, in bytes.
        most: u64,
    },
    /// The metadata server does not answer, and the page's home is not known without it.
    MetadataUnreachable,
    /// The request violates a rule of this interface.
    Invalid,
    /// The page could not be used until the request timed out: it was moving, or was not at the
    /// home that was named. The value is the last rack asked.
    PageBusy(RackId),
    /// The outcome of a request for a lock.
    Lock {
        /// The outcome.
        outcome: LockOutcome,
        /// The daemon's number of a granted lock of another rack's lines, never 0; `None`: the
        /// lines are in this rack, or the lock is not granted.
        number: Option<u64>,
    },
    /// The thread has lost a lock of these bytes. The operation was not executed.
    LockLost,
}

/// Returns the index of a claim; `None` if a thread has no such claim.
fn claim_index(word: u64) -> Option<u8> {
    u8::try_from(word).ok().filter(|index| *index < CLAIMS)
}

impl RackRequest {
    /// The number of objects of [`RackRequest::Pinned`].
    pub const PINNED: usize = 5;

    /// Encodes the request as the code and arguments of an entry.
    #[inline]
    #[must_use]
    pub const fn to_words(self) -> (u8, Arguments) {
        match self {
            Self::Translate { page, access } => (1, [page.0 as u64, access as u64, 0, 0, 0]),
            Self::Refill { bytes, count } => (2, [bytes, count, 0, 0, 0]),
            Self::Release => (3, [0; 5]),
            Self::Read { addr, len, data, batch } => (4, [addr.raw(), len, data, batch, 0]),
            Self::Write { addr, len, data, batch } => (5, [addr.raw(), len, data, batch, 0]),
            Self::CompareAndSwap { addr, expected, new } => (6, [addr.raw(), expected, new, 0, 0]),
            Self::FetchAndAdd { addr, delta } => (7, [addr.raw(), delta, 0, 0, 0]),
            Self::Ping => (8, [0; 5]),
            Self::RefillFixed { bytes, count } => (9, [bytes, count, 0, 0, 0]),
            Self::Extend { head, pages, known } => (10, [head.raw(), pages, known, 0, 0]),
            Self::Pinned { objects: [a, b, c, d, e] } => {
                (11, [a.raw(), b.raw(), c.raw(), d.raw(), e.raw()])
            }
            Self::ReadInto { addr, len, head, into, batch } => {
                (12, [addr.raw(), len, head.raw(), into.raw(), batch])
            }
            Self::Lock { claim, index, timeout_us } => {
                (13, [claim.to_raw(), index as u64, timeout_us, 0, 0])
            }
            Self::Unlock { index, withdrawn } => (14, [index as u64, withdrawn as u64, 0, 0, 0]),
        }
    }

    /// Decodes an entry; `None` if the words are invalid.
    #[inline]
    #[must_use]
    pub fn from_words(code: u8, arguments: Arguments) -> Option<Self> {
        let [first, second, third, fourth, fifth] = arguments;
        let addr = GlobalAddr::from_raw(first);
        Some(match code {
            1 => {
                let access = match second {
                    0 => Access::Read,
                    1 => Access::Write,
                    _ => return None,
                };
                Self::Translate { page: PageId(u32::try_from(first).ok()?), access }
            }
            2 => Self::Refill { bytes: first, count: second },
            3 => Self::Release,
            4 => Self::Read { addr, len: second, data: third, batch: fourth },
            5 => Self::Write { addr, len: second, data: third, batch: fourth },
            6 => Self::CompareAndSwap { addr, expected: second, new: third },
            7 => Self::FetchAndAdd { addr, delta: second },
            8 => Self::Ping,
            9 => Self::RefillFixed { bytes: first, count: second },
            10 => Self::Extend { head: addr, pages: second, known: third },
            11 => Self::Pinned { objects: arguments.map(GlobalAddr::from_raw) },
            12 => {
                let (head, into) = (GlobalAddr::from_raw(third), GlobalAddr::from_raw(fourth));
                Self::ReadInto { addr, len: second, head, into, batch: fifth }
            }
            13 => Self::Lock {
                claim: LockClaim::from_raw(first)?,
                index: claim_index(second)?,
                timeout_us: third,
            },
            14 => {
                let withdrawn = match second {
                    0 => false,
                    1 => true,
                    _ => return None,
                };
                Self::Unlock { index: claim_index(first)?, withdrawn }
            }
            _ => return None,
        })
    }
}

impl RackAnswer {
    /// Encodes the answer as the status and values of a cell.
    #[inline]
    #[must_use]
    pub const fn to_words(self) -> (u32, Values) {
        match self {
            Self::Done(value) => (0, [value, 0, 0, 0, 0]),
            Self::Local { frame, word, usage } => (1, [frame.0 as u64, word.raw(), usage, 0, 0]),
            Self::Remote { home, usage } => (2, [home.0 as u64, usage, 0, 0, 0]),
            Self::Moved => (3, [0; 5]),
            Self::NotAllocated => (4, [0; 5]),
            Self::PageLost => (5, [0; 5]),
            Self::RackUnavailable(rack) => (6, [rack.0 as u64, 0, 0, 0, 0]),
            Self::Indeterminate(rack) => (7, [rack.0 as u64, 0, 0, 0, 0]),
            Self::OutOfMemory {
                rack_frames,
                rack_free,
                asked,
                other_frames,
                other_free,
                unreachable,
            } => {
                let racks = (asked as u64) << 16 | unreachable as u64;
                (8, [rack_frames as u64, rack_free as u64, racks, other_frames, other_free])
            }
            Self::MetadataUnreachable => (9, [0; 5]),
            Self::Invalid => (10, [0; 5]),
            Self::PageBusy(rack) => (11, [rack.0 as u64, 0, 0, 0, 0]),
            Self::Copied { home, usage, frame, copy } => {
                (12, [home.0 as u64, usage, frame.0 as u64, copy, 0])
            }
            Self::DoneAt(home) => (13, [home.0 as u64, 0, 0, 0, 0]),
            Self::TooLarge { most } => (14, [most, 0, 0, 0, 0]),
            Self::Extent { addr, pages } => (15, [addr.raw(), pages as u64, 0, 0, 0]),
            Self::Lock { outcome, number } => {
                let number = match number {
                    Some(number) => number,
                    None => 0,
                };
                let outcome = match outcome {
                    LockOutcome::Granted { recovered: false } => 0,
                    LockOutcome::Granted { recovered: true } => 1,
                    LockOutcome::TimedOut => 2,
                    LockOutcome::Moved => 3,
                    LockOutcome::Queued => 4,
                };
                (16, [outcome, number, 0, 0, 0])
            }
            Self::LockLost => (17, [0; 5]),
        }
    }

    /// Decodes a cell; `None` if the words are invalid.
    #[inline]
    #[must_use]
    pub fn from_words(status: u32, values: Values) -> Option<Self> {
        let rack = || Some(RackId(u16::try_from(values[0]).ok()?));
        Some(match status {
            0 => Self::Done(values[0]),
            1 => Self::Local {
                frame: FrameId(u32::try_from(values[0]).ok()?),
                word: PageWord::from_raw(values[1]),
                usage: values[2],
            },
            2 => Self::Remote { home: rack()?, usage: values[1] },
            3 => Self::Moved,
            4 => Self::NotAllocated,
            5 => Self::PageLost,
            6 => Self::RackUnavailable(rack()?),
            7 => Self::Indeterminate(rack()?),
            8 => Self::OutOfMemory {
                rack_frames: u32::try_from(values[0]).ok()?,
                rack_free: u32::try_from(values[1]).ok()?,
                asked: u16::try_from(values[2] >> 16).ok()?,
                other_frames: values[3],
                other_free: values[4],
                unreachable: u16::try_from(values[2] & 0xffff).ok()?,
            },
            9 => Self::MetadataUnreachable,
            10 => Self::Invalid,
            11 => Self::PageBusy(rack()?),
            12 => Self::Copied {
                home: rack()?,
                usage: values[1],
                frame: FrameId(u32::try_from(values[2]).ok()?),
                copy: values[3],
            },
            13 => Self::DoneAt(rack()?),
            14 => Self::TooLarge { most: values[0] },
            15 => Self::Extent {
                addr: GlobalAddr::from_raw(values[0]),
                pages: u32::try_from(values[1]).ok()?,
            },
            16 => Self::Lock {
                outcome: match values[0] {
                    0 => LockOutcome::Granted { recovered: false },
                    1 => LockOutcome::Granted { recovered: true },
                    2 => LockOutcome::TimedOut,
                    3 => LockOutcome::Moved,
                    4 => LockOutcome::Queued,
                    _ => return None,
                },
                number: Some(values[1]).filter(|number| *number != 0),
            },
            17 => Self::LockLost,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn requests_survive_their_words(code in any::<u8>(), arguments in any::<Arguments>()) {
            if let Some(request) = RackRequest::from_words(code, arguments) {
                let (code, arguments) = request.to_words();
                prop_assert_eq!(RackRequest::from_words(code, arguments), Some(request));
            }
        }

        #[test]
        fn answers_survive_their_words(status in 0_u32..18, values in any::<Values>()) {
            if let Some(answer) = RackAnswer::from_words(status, values) {
                let (status, values) = answer.to_words();
                prop_assert_eq!(RackAnswer::from_words(status, values), Some(answer));
            }
        }
    }
}
