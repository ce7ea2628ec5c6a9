//! Between the threads of a client and the daemon of its rack: what the entries of the request
//! rings and the answers in call cells mean. Plain words, no encoding: they are written and read
//! millions of times a second.

use rackpool_model::{Access, FrameId, GlobalAddr, PageId, PageWord, RackId};

/// Arguments of an entry.
pub type Arguments = [u64; 5];
/// Values of an answer.
pub type Values = [u64; 5];

/// The longest write in a page that moves (bytes): its home carries it out with the thread that
/// serves everybody, and remembers all of it in one message. A longer one is refused as
/// [`RackAnswer::Moved`], and comes again in pieces.
pub const LONGEST_DELEGATED: u32 = 4 << 10;

/// What a client asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RackRequest {
    /// Where is the page? For a page of another rack the daemon takes a location lease first. The
    /// answer waits while a swap keeps the page from being used in this way.
    Translate {
        /// The page.
        page: PageId,
        /// What for: a frozen page can be read, and not written to.
        access: Access,
    },
    /// Put up to `count` free objects into the thread's inbox.
    Refill {
        /// Bytes of each; rounded up to a size class, or to whole pages.
        bytes: u64,
        /// How many.
        count: u64,
    },
    /// Free what is in the thread's outbox.
    Release,
    /// Copy bytes of another rack into the data ring.
    Read {
        /// From where.
        addr: GlobalAddr,
        /// How many; they must not leave the page.
        len: u64,
        /// Where in the data ring.
        data: u64,
        /// The batch it belongs to, counted by the thread: when one request of a batch is
        /// answered with [`RackAnswer::Moved`], so are all later ones of it, so that a batch is
        /// never done out of order.
        batch: u64,
    },
    /// Copy bytes of the data ring to another rack.
    Write {
        /// To where.
        addr: GlobalAddr,
        /// How many; they must not leave the page.
        len: u64,
        /// Where in the data ring.
        data: u64,
        /// The batch it belongs to, counted by the thread: when one request of a batch is
        /// answered with [`RackAnswer::Moved`], so are all later ones of it, so that a batch is
        /// never done out of order.
        batch: u64,
    },
    /// Compare and swap 8 bytes of another rack.
    CompareAndSwap {
        /// Where; aligned to 8 bytes.
        addr: GlobalAddr,
        /// What must be there.
        expected: u64,
        /// What shall be there.
        new: u64,
    },
    /// Add to 8 bytes of another rack, wrapping.
    FetchAndAdd {
        /// Where; aligned to 8 bytes.
        addr: GlobalAddr,
        /// What to add.
        delta: u64,
    },
    /// Answer at once: how long does that take?
    Ping,
}

/// What the daemon answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RackAnswer {
    /// The page lies in this rack.
    Local {
        /// In this frame.
        frame: FrameId,
        /// Its page word at that moment.
        word: PageWord,
        /// What the page is used for, as its slab header says.
        usage: u64,
    },
    /// The page lies in another rack.
    Remote {
        /// Its home.
        home: RackId,
        /// What the page is used for, as its slab header says.
        usage: u64,
    },
    /// The page lies in another rack, and this rack keeps a copy that can be read.
    Copied {
        /// Its home, to write to.
        home: RackId,
        /// What the page is used for, as its slab header says.
        usage: u64,
        /// Where the copy lies.
        frame: FrameId,
        /// Its number: it can be read as long as the frame shows this one.
        copy: u64,
    },
    /// It is done. The value before for atomics, the number of objects for the others.
    Done(u64),
    /// A transfer is done in the page's home, another rack.
    DoneAt(RackId),
    /// The page has moved, or its lease is gone: translate again.
    Moved,
    /// The page holds nothing: it was freed, or never allocated.
    NotAllocated,
    /// The page's contents went with its rack's memory.
    PageLost,
    /// The home rack does not answer.
    RackUnavailable(RackId),
    /// The home rack's daemon died while it may or may not have done it.
    Indeterminate(RackId),
    /// No rack has room. Each figure is that of its rack when it said so.
    OutOfMemory {
        /// Frames of this rack.
        rack_frames: u32,
        /// Free ones of them.
        rack_free: u32,
        /// Other racks that were asked and have no room.
        asked: u16,
        /// Frames of them.
        other_frames: u64,
        /// Free ones of them.
        other_free: u64,
        /// Other racks of the pool, which did not answer or are down.
        unreachable: u16,
    },
    /// The object is larger than the memory of any rack.
    TooLarge {
        /// Bytes of the largest rack.
        most: u64,
    },
    /// The metadata server does not answer, and without it the page's home can't be found.
    MetadataUnreachable,
    /// The request breaks a rule of this interface.
    Invalid,
    /// The page was on its way or not where it was said to be, last at this rack, for as long as
    /// the request waited.
    PageBusy(RackId),
}

impl RackRequest {
    /// The request as an entry's code and arguments.
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
        }
    }

    /// What an entry asks; `None` when it makes no sense.
    #[inline]
    #[must_use]
    pub fn from_words(code: u8, arguments: Arguments) -> Option<Self> {
        let [first, second, third, fourth, ..] = arguments;
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
            _ => return None,
        })
    }
}

impl RackAnswer {
    /// The answer as a cell's status and values.
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
        }
    }

    /// What a cell says; `None` when it makes no sense.
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
        fn answers_survive_their_words(status in 0_u32..14, values in any::<Values>()) {
            if let Some(answer) = RackAnswer::from_words(status, values) {
                let (status, values) = answer.to_words();
                prop_assert_eq!(RackAnswer::from_words(status, values), Some(answer));
            }
        }
    }
}
