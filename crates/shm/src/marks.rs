//! Marks: for each small object of a frame, whether a program has it, or which client took it back.
//!
//! A mark is valid only while the bit of its object is 1. Clients and the daemon write marks. The
//! daemon does not trust them: a wrong mark can only keep an object from being freed. The protocol
//! is in docs/design/marks.md.

use rackpool_model::ClientId;
use rackpool_sync::atomic::{AtomicU16, Ordering};

/// The mark of a retired object.
const RETIRED: u16 = u16::MAX - 1;

/// The holder of an object that no program has: a client, or the daemon on behalf of another rack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectHolder(u16);

/// The mark of one object: 0 while a program has it, else its [`ObjectHolder`], or that it is
/// retired.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Mark(AtomicU16);

#[cfg(not(loom))]
// SAFETY: transparent around one atomic integer.
unsafe impl crate::Shared for Mark {}

impl ObjectHolder {
    /// The daemon, on behalf of another rack.
    pub const DAEMON: Self = Self(u16::MAX);

    /// A client of the rack. Clients whose ids differ by a multiple of 65,533 share a number.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "less than 65,533")]
    pub const fn of(client: ClientId) -> Self {
        Self(1 + (client.0 % (RETIRED as u32 - 1)) as u16)
    }
}

impl Mark {
    /// The mark of an object that a program has.
    #[must_use]
    pub fn new() -> Self {
        Self(AtomicU16::new(0))
    }

    /// Takes the object from the program for `holder`. Returns true if a program had it. Of several
    /// concurrent callers exactly one succeeds.
    #[inline]
    pub fn take(&self, holder: ObjectHolder) -> bool {
        // SYNC: pairs with the store in `hand_out`.
        self.0.compare_exchange(0, holder.0, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Like [`Self::take`], but also returns true if `holder` took the object before.
    pub fn take_or_holds(&self, holder: ObjectHolder) -> bool {
        self.take(holder) || self.is_held_by(holder)
    }

    /// Returns true if `holder` took the object.
    #[must_use]
    pub fn is_held_by(&self, holder: ObjectHolder) -> bool {
        self.0.load(Ordering::Acquire) == holder.0
    }

    /// Retires a fixed object that a program has: the object counts as free, and its memory is
    /// reused once no pin names it. Returns false if no program had it. Only the daemon calls it.
    pub fn retire(&self) -> bool {
        self.0.compare_exchange(0, RETIRED, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Returns true if the object is retired.
    #[must_use]
    pub fn is_retired(&self) -> bool {
        self.0.load(Ordering::Acquire) == RETIRED
    }

    /// Returns true if a program has the object.
    #[must_use]
    pub fn is_with_program(&self) -> bool {
        self.0.load(Ordering::Acquire) == 0
    }

    /// Gives the object to the program.
    #[inline]
    pub fn hand_out(&self) {
        // SYNC: pairs with the exchange in `take`.
        self.0.store(0, Ordering::Release);
    }

    /// Sets the mark of an object whose bit is 0.
    pub fn set(&self, holder: Option<ObjectHolder>) {
        self.0.store(holder.map_or(0, |holder| holder.0), Ordering::Release);
    }
}

#[cfg(not(loom))]
pub use file::Marks;

#[cfg(not(loom))]
mod file {
    use std::ptr::NonNull;
    use std::sync::Arc;

    use rackpool_model::{FrameId, PageSize, SizeClass};
    use rackpool_sync::atomic::{AtomicU64, Ordering};

    use super::Mark;
    use crate::{Mapping, OutsideMapping, PopulateError};

    /// The mapped marks of all frames of a rack. The marks of a frame are in the order of its
    /// objects; each frame has room for the objects of the smallest class.
    #[derive(Clone, Debug)]
    pub struct Marks {
        memory: Arc<Mapping>,
        /// log2 of the number of marks of a frame.
        frame_bits: u8,
        page_size: PageSize,
        frames: u32,
    }

    impl Marks {
        /// Bytes of the marks of a frame.
        #[must_use]
        pub const fn frame_bytes(page_size: PageSize) -> u64 {
            (page_size.bytes() >> SizeClass::MIN_BITS) * size_of::<Mark>() as u64
        }

        /// Bytes of the whole file. The file is sparse: smaller objects use more of it than larger
        /// ones.
        #[must_use]
        pub const fn bytes(page_size: PageSize, frames: u32) -> u64 {
            Self::frame_bytes(page_size) * frames as u64
        }

        /// Lays the marks over a mapping. Fails if the mapping is too short.
        pub fn new(
            memory: Arc<Mapping>,
            page_size: PageSize,
            frames: u32,
        ) -> Result<Self, OutsideMapping> {
            let len = Self::bytes(page_size, frames);
            if memory.len() < len {
                return Err(OutsideMapping { offset: 0, len, mapped: memory.len() });
            }
            let frame_bits = page_size.bits() - SizeClass::MIN_BITS;
            Ok(Self { memory, frame_bits, page_size, frames })
        }

        /// The mark of object `index` in a frame with objects of `class`. Returns `None` if there
        /// is no such frame or object.
        #[must_use]
        pub fn of(&self, frame: FrameId, class: SizeClass, index: u32) -> Option<&Mark> {
            if frame.0 >= self.frames || index >= class.objects_per_page(self.page_size) {
                return None;
            }
            let number = (u64::from(frame.0) << self.frame_bits) + u64::from(index);
            self.memory.view(number * size_of::<Mark>() as u64).ok()
        }

        /// Allocates memory for the marks of a frame with objects of `class`.
        pub fn reserve(&self, frame: FrameId, class: SizeClass) -> Result<(), PopulateError> {
            let objects = u64::from(class.objects_per_page(self.page_size));
            let offset = (u64::from(frame.0) << self.frame_bits) * size_of::<Mark>() as u64;
            self.memory.populate_part(offset, objects * size_of::<Mark>() as u64)
        }

        /// Marks 64 objects, from number `first` on, as the programs'.
        pub fn hand_out_64(&self, frame: FrameId, first: u32) -> Result<(), OutsideMapping> {
            let number = (u64::from(frame.0) << self.frame_bits) + u64::from(first);
            let left = (1_u64 << self.frame_bits).saturating_sub(u64::from(first)).min(64);
            let words = usize::try_from(left / 4).unwrap_or(0);
            let offset = number * size_of::<Mark>() as u64;
            for word in self.memory.view_slice::<AtomicU64>(offset, words)? {
                word.store(0, Ordering::Relaxed);
            }
            Ok(())
        }

        /// The first mark of frame 0. All marks stay mapped as long as `self` or a clone of it
        /// exists.
        pub(crate) fn base(&self) -> NonNull<Mark> {
            self.memory.base().cast()
        }

        /// log2 of the number of marks of a frame.
        pub(crate) const fn frame_bits(&self) -> u8 {
            self.frame_bits
        }

        /// Number of frames with marks.
        pub(crate) const fn frames(&self) -> u32 {
            self.frames
        }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::sync::Arc;

    use rackpool_model::{FrameId, PageSize, SizeClass};

    use super::*;
    use crate::Mapping;

    #[test]
    fn one_of_several_frees_takes_an_object() {
        let mark = Mark::new();
        let (one, other) = (ObjectHolder::of(ClientId(0)), ObjectHolder::of(ClientId(7)));
        assert!(mark.is_with_program());
        assert!(mark.take(one) && !mark.take(one) && !mark.take(other));
        assert!(mark.take_or_holds(one) && !mark.take_or_holds(other));
        assert!(!mark.take_or_holds(ObjectHolder::DAEMON));
        mark.hand_out();
        assert!(mark.take(other) && mark.is_held_by(other));
        mark.set(None);
        assert!(mark.is_with_program());
    }

    #[test]
    fn no_client_is_taken_for_a_program_or_the_daemon() {
        for id in [0, 1, 65_531, 65_532, 65_533, 65_534, u32::MAX] {
            let holder = ObjectHolder::of(ClientId(id));
            assert!(!matches!(holder.0, 0 | RETIRED) && holder != ObjectHolder::DAEMON);
        }
        assert_ne!(ObjectHolder::of(ClientId(0)), ObjectHolder::of(ClientId(65_532)));
    }

    #[test]
    fn a_retired_object_is_nobodys() {
        let mark = Mark::new();
        assert!(mark.retire() && mark.is_retired() && !mark.retire());
        let holder = ObjectHolder::of(ClientId(65_532));
        assert!(!mark.is_with_program() && !mark.take_or_holds(holder));
        assert!(!mark.take_or_holds(ObjectHolder::DAEMON));
        mark.set(None);
        assert!(mark.take(holder) && !mark.retire());
    }

    /// The offsets of docs/design/marks.md.
    #[test]
    fn the_layout_is_the_documented_one() {
        let page = PageSize::DEFAULT;
        assert_eq!(Marks::frame_bytes(page), 256 << 10);
        let bytes = Marks::bytes(page, 3);
        let file = tempfile::tempfile().unwrap();
        file.set_len(bytes).unwrap();
        let memory = Arc::new(Mapping::new(&file, bytes).unwrap());
        assert!(Marks::new(Arc::clone(&memory), page, 4).is_err(), "it is too short");
        let marks = Marks::new(Arc::clone(&memory), page, 3).unwrap();
        let class = SizeClass::for_bytes(64, page).unwrap();
        let set = |frame, index| {
            marks
                .of(FrameId(frame), class, index)
                .unwrap()
                .set(Some(ObjectHolder::of(ClientId(8))));
        };
        set(2, 5);
        let mut found = [0; 2];
        memory.read((2 << 18) + 10, &mut found).unwrap();
        assert_eq!(u16::from_le_bytes(found), 9);
        assert!(marks.of(FrameId(3), class, 0).is_none());
        assert!(marks.of(FrameId(0), class, 32_768).is_none(), "a page has no such object");
        set(1, 64);
        set(1, 127);
        set(1, 128);
        marks.hand_out_64(FrameId(1), 64).unwrap();
        let with_program = |index| marks.of(FrameId(1), class, index).unwrap().is_with_program();
        assert_eq!([64, 127, 128].map(with_program), [true, true, false]);
        assert!(marks.hand_out_64(FrameId(3), 0).is_err());
    }
}
