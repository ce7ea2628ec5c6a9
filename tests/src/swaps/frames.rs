//! All frames of a pool, and the invariants that hold while no page moves.

use std::collections::{BTreeMap, BTreeSet};

use rackpool_model::{FrameId, PageId, PageState, PageWord};

/// The rack and page word of each frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frames(Vec<(u16, FrameId, PageWord)>);

/// Returns true if the frame is the home of a page in use.
const fn is_used(word: PageWord) -> bool {
    matches!(word.state(), Some(PageState::Live | PageState::Shared))
}

fn is_free(word: PageWord) -> bool {
    word.state() == Some(PageState::Free)
}

impl Frames {
    /// Frames with these words, each with its rack.
    #[must_use]
    pub const fn new(words: Vec<(u16, FrameId, PageWord)>) -> Self {
        Self(words)
    }

    /// Returns true if every frame is free or the home of a page in use, so that no page is moving.
    /// A shared page stays shared until it is written.
    #[must_use]
    pub fn are_at_rest(&self) -> bool {
        self.0.iter().all(|(_, _, word)| is_free(*word) || is_used(*word))
    }

    /// The number of free frames of a rack.
    #[must_use]
    pub fn free(&self, rack: u16) -> usize {
        self.0.iter().filter(|(of, _, word)| *of == rack && is_free(*word)).count()
    }

    /// The number of frames.
    pub(super) const fn len(&self) -> usize {
        self.0.len()
    }

    /// The rack of each page in use.
    #[must_use]
    pub fn homes(&self) -> BTreeMap<PageId, u16> {
        let used = self.0.iter().filter(|(_, _, word)| is_used(*word));
        used.map(|(rack, _, word)| (word.page(), *rack)).collect()
    }

    /// Violations in a pool at rest in which the pages `in_use` are in use: a frame that is neither
    /// free nor a home, a page in two frames or in none, a page in use that is not in `in_use`, or
    /// a page of `in_use` that is not in use.
    #[must_use]
    pub fn problems(&self, in_use: &BTreeSet<PageId>) -> Vec<String> {
        let mut problems = Vec::new();
        let mut places = BTreeMap::<PageId, Vec<String>>::new();
        for (rack, frame, word) in &self.0 {
            let place = format!("{frame} of rack {rack} ({:?})", word.state());
            if !is_free(*word) && !is_used(*word) {
                problems.push(format!("{place} is out of use"));
            }
            if is_used(*word) && !in_use.contains(&word.page()) {
                problems.push(format!("{} in {place} is nobody's", word.page()));
            }
            places.entry(word.page()).or_default().push(place);
        }
        let twice = places.iter().filter(|(_, places)| places.len() > 1);
        problems.extend(twice.map(|(page, all)| format!("{page} is in {}", all.join(" and in "))));
        if places.len() != self.0.len() {
            problems.push(format!("{} frames hold {} pages", self.0.len(), places.len()));
        }
        let homes = self.homes();
        let lost = in_use.iter().filter(|page| !homes.contains_key(page));
        problems.extend(lost.map(|page| format!("{page} is in use and has no frame")));
        problems
    }
}

#[cfg(test)]
mod tests {
    use rackpool_model::{Epoch, PageEvent};

    use super::*;

    const USED: [PageId; 3] = [PageId(0), PageId(2), PageId(5)];

    /// Two racks of three frames with three pages in use.
    fn sound() -> Vec<(u16, FrameId, PageWord)> {
        (0..6_u32)
            .map(|number| {
                let free = PageWord::free(PageId(number));
                let used = USED.contains(&PageId(number));
                let word = if used { free.apply(PageEvent::Allocated).unwrap() } else { free };
                (u16::from(number > 2), FrameId(number % 3), word)
            })
            .collect()
    }

    fn problems(words: Vec<(u16, FrameId, PageWord)>) -> Vec<String> {
        Frames::new(words).problems(&USED.into())
    }

    #[test]
    fn a_sound_pool_has_no_problems_and_all_its_frames_are_accounted_for() {
        let frames = Frames::new(sound());
        assert!(frames.are_at_rest());
        assert_eq!(frames.problems(&USED.into()), [] as [&str; 0]);
        assert_eq!((frames.free(0), frames.free(1)), (1, 2));
        assert_eq!(frames.homes(), BTreeMap::from([(USED[0], 0), (USED[1], 0), (USED[2], 1)]));
    }

    #[test]
    fn a_frame_that_is_neither_free_nor_a_home_has_leaked() {
        for state in [PageState::Frozen, PageState::Leaving, PageState::Arriving] {
            let mut words = sound();
            words[1].2 = PageWord::new(state, Epoch::new(3), PageId(1));
            assert!(!Frames::new(words.clone()).are_at_rest(), "{state:?}");
            assert!(problems(words)[0].contains("out of use"), "{state:?}");
        }
        let mut words = sound();
        words[1].2 = PageWord::from_raw(u64::MAX);
        assert!(!problems(words).is_empty(), "a word that nobody writes");
    }

    #[test]
    fn a_page_in_use_that_nobody_has_is_a_leak() {
        let mut words = sound();
        words[4].2 = words[4].2.apply(PageEvent::Allocated).unwrap();
        let found = problems(words);
        assert!(found.len() == 1 && found[0].contains("nobody's"), "{found:?}");
    }

    #[test]
    fn a_page_in_two_frames_or_in_none_is_found() {
        let mut words = sound();
        words[4].2 = words[0].2;
        let found = problems(words);
        assert!(found.iter().any(|problem| problem.contains(" and in ")), "{found:?}");
        assert!(found.iter().any(|problem| problem == "6 frames hold 5 pages"), "{found:?}");
        let mut words = sound();
        words[5].2 = PageWord::free(USED[2]);
        let found = problems(words);
        assert!(found.len() == 1 && found[0].contains("has no frame"), "{found:?}");
    }
}
