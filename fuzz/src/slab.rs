//! The metadata that a starting daemon finds.

use std::collections::{BTreeMap, BTreeSet};

use rackpool_daemon::testing::SlabUnderTest;
use rackpool_model::{
    Epoch, FrameId, GlobalAddr, PageId, PageSize, PageState, PageWord, SizeClass,
};
use rackpool_shm::metadata::PageUse;

use crate::Input;

const FRAMES: u32 = 8;
const OBJECT: u64 = 16;

struct Scenario {
    slab: SlabUnderTest,
    size: PageSize,
    first: u32,
    /// Objects handed out and not damaged since, with their lengths.
    held: BTreeMap<GlobalAddr, u64>,
    /// Objects in use in a damaged rack, with any owner.
    found: BTreeSet<GlobalAddr>,
    /// Pages that may be in the rack.
    pages: BTreeSet<PageId>,
    is_damaged: bool,
}

/// Objects are handed out and freed, the daemon restarts, and its metadata may be damaged. It
/// refuses to start, or
/// - no object is handed out that is in use, overlaps one, or is no valid address;
/// - every object that it counts can be freed, and afterwards nothing is in use;
/// - another restart gives the same metrics;
/// - no operation fails.
///
/// Without damage every object stays in use until it is freed, and nothing is lost.
pub fn slab(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let size = PageSize::from_bytes([4096, 16 << 10][usize::from(input.below(2))]).unwrap();
    // Includes page ids at the end of their range.
    let first = if input.below(4) == 0 { u32::MAX - FRAMES + 1 } else { 1 + input.half() % 5000 };
    let mut scenario = Scenario {
        slab: SlabUnderTest::new(size, FRAMES, PageId(first)).unwrap(),
        size,
        first,
        held: BTreeMap::new(),
        found: BTreeSet::new(),
        pages: (0..FRAMES).map(|frame| PageId(first + frame)).collect(),
        is_damaged: false,
    };
    while !input.is_empty() {
        match input.below(8) {
            0..=2 => scenario.alloc(&mut input),
            3 | 4 => scenario.free(&mut input),
            5 => scenario.slab.drain().unwrap(),
            6 => scenario.restart(),
            _ => {
                if !scenario.damage(&mut input) {
                    return;
                }
            }
        }
    }
    scenario.end();
}

impl Scenario {
    fn alloc(&mut self, input: &mut Input<'_>) {
        let bytes = match input.below(4) {
            0 => input.number(),
            1 => u64::from(input.byte()) * 1000,
            _ => u64::from(input.short() % 4200),
        };
        let is_fixed = input.below(4) == 0;
        let addr =
            if is_fixed { self.slab.alloc_fixed(bytes) } else { self.slab.alloc(bytes) }.unwrap();
        let Some(addr) = addr else { return };
        let length = match SizeClass::for_bytes(bytes, self.size) {
            Some(class) => class.bytes(),
            None => self.size.pages_for(bytes) * self.size.bytes(),
        };
        assert!(length >= bytes && !addr.is_null());
        assert!(self.slab.is_allocated(addr), "{addr} was handed out and is not in use");
        assert!(!self.found.contains(&addr), "{addr} was in use");
        let page = addr.page(self.size).unwrap();
        assert!(self.pages.contains(&page), "{page} is not in this rack");
        let end = addr.raw() + length;
        let beside = self.held.range(..GlobalAddr::from_raw(end)).next_back();
        let overlaps = beside.is_some_and(|(addr_, length)| addr_.raw() + length > addr.raw());
        assert!(!overlaps, "{addr} with {length} B overlaps {beside:?}");
        self.held.insert(addr, length);
    }

    fn free(&mut self, input: &mut Input<'_>) {
        let number = usize::from(input.byte());
        let known = self.held.keys().chain(&self.found).copied().collect::<Vec<_>>();
        let addr = match input.below(4) {
            0 => GlobalAddr::from_raw(input.number()),
            // An address near an object.
            1 => match known.get(number) {
                Some(addr) => GlobalAddr::from_raw(addr.raw().wrapping_add(input.number())),
                None => return,
            },
            _ if known.is_empty() => return,
            _ => known[number % known.len()],
        };
        let was_used = self.slab.is_allocated(addr);
        let freed = self.slab.free(addr).unwrap();
        assert!(freed || !was_used || self.is_damaged, "{addr} is in use and was not taken back");
        assert!(!freed || was_used, "{addr} was not in use and was taken back");
        if freed {
            let was_held = self.held.remove(&addr).is_some() | self.found.remove(&addr);
            assert!(was_held, "{addr} was nobody's");
            assert!(!self.slab.is_allocated(addr), "{addr} is still in use");
        }
    }

    fn restart(&mut self) {
        let counts = |slab: &SlabUnderTest| (slab.free_frames(), slab.allocated_bytes());
        let before = counts(&self.slab);
        self.slab.restart().unwrap();
        assert_eq!(counts(&self.slab), before, "what a restarted daemon counts");
        self.check();
    }

    fn check(&self) {
        for addr in self.held.keys().chain(&self.found) {
            assert!(self.slab.is_allocated(*addr), "{addr} is no longer in use");
        }
        if !self.is_damaged {
            assert_eq!(self.slab.allocated_bytes(), self.held.values().sum::<u64>());
        }
    }

    /// Damages words of one frame and restarts the daemon; returns true if it started.
    fn damage(&mut self, input: &mut Input<'_>) -> bool {
        self.is_damaged = true;
        for _ in 0..=input.below(4) {
            let frame = FrameId(u32::from(input.byte()) % FRAMES);
            let layout = self.slab.layout();
            match input.below(4) {
                0 => {
                    let word = self.page_word(input);
                    self.pages.insert(word.page());
                    self.slab.damage(layout.word(frame), &word.raw().to_le_bytes()).unwrap();
                }
                1 => {
                    let usage = self.usage(input);
                    self.slab.damage(layout.header(frame), &usage.to_le_bytes()).unwrap();
                }
                2 => {
                    let bits = input.number().to_le_bytes();
                    self.slab.damage(layout.header(frame) + 8, &bits).unwrap();
                }
                _ => {
                    let class = SizeClass::for_bytes(OBJECT, self.size).unwrap();
                    let word = layout.bit(frame, class, 0).word;
                    let end = layout.bytes() - word;
                    let offset = u64::from(input.byte()) % end.min(layout.bitmap_bytes());
                    let count = usize::try_from((end - offset).min(8)).unwrap();
                    self.slab.damage(word + offset, input.bytes(count)).unwrap();
                }
            }
        }
        if self.slab.restart().is_err() {
            return false;
        }
        self.held.clear();
        self.found = self.objects().collect();
        true
    }

    fn page_word(&self, input: &mut Input<'_>) -> PageWord {
        let states = [PageState::Free, PageState::Live, PageState::Frozen, PageState::Leaving];
        if input.below(8) == 0 {
            return PageWord::from_raw(input.word());
        }
        let state = states[usize::from(input.below(4))];
        let page = self.first.wrapping_add(input.half() % (FRAMES + 1));
        PageWord::new(state, Epoch::new(u32::from(input.byte())), PageId(page))
    }

    fn usage(&self, input: &mut Input<'_>) -> u64 {
        match input.below(4) {
            0 => input.word(),
            1 => {
                let class = SizeClass::from_index(input.below(10), self.size);
                class.map_or(0, |class| PageUse::Slab(class).to_raw())
            }
            _ => {
                let pages = u32::from(input.byte()) % (FRAMES + 2);
                PageUse::Run { index: u32::from(input.byte()) % (FRAMES + 1), pages }.to_raw()
            }
        }
    }

    /// Every object that is in use by the rack's metadata and that can be freed.
    fn objects(&self) -> impl Iterator<Item = GlobalAddr> {
        let offsets = (0..self.size.bytes() / OBJECT).map(|index| index * OBJECT);
        let all = self.pages.iter().flat_map(move |page| {
            offsets.clone().filter_map(|offset| GlobalAddr::new(*page, offset, self.size).ok())
        });
        all.filter(|addr| self.slab.is_allocated(*addr))
    }

    /// Frees everything.
    fn end(mut self) {
        self.restart();
        for addr in self.objects().collect::<Vec<_>>() {
            let freed = self.slab.free(addr).unwrap();
            assert!(freed || self.is_damaged, "{addr} is in use and was not taken back");
        }
        let used = self.slab.allocated_bytes();
        // A page that damage has frozen keeps its objects.
        assert!(used == 0 || self.is_damaged, "{used} bytes in use are in no object");
        self.slab.drain().unwrap();
        self.slab.restart().unwrap();
        let (free, used) = (self.slab.free_frames(), self.slab.allocated_bytes());
        assert!(
            self.is_damaged || (free, used) == (FRAMES, 0),
            "{free} frames free, {used} B used"
        );
    }
}
