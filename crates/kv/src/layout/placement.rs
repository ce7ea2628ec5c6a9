use crate::layout::bucket::SegmentShape;
use crate::layout::hash::KeyHash;
use crate::layout::slot::SlotWord;

/// An entry that moves from a frozen segment to a new one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moving {
    /// `None` if the memory of its object is lost.
    pub(crate) hash: Option<KeyHash>,
    pub(crate) word: SlotWord,
    /// Its slot in the old segment.
    pub(crate) index: usize,
}

/// Assigns each entry a slot in the new segment such that no earlier slot of its path is empty.
/// This lets a search stop at the first empty slot.
///
/// All entries start at their old positions, so each has a slot. Then each entry moves to the first
/// empty slot of its path until none can move. Every move brings an entry nearer to the start of
/// its path, so the loop terminates. An entry that is not in its path is damaged and keeps its
/// slot, and so does one whose object is lost.
pub(crate) fn place(shape: SegmentShape, moving: &[Moving]) -> Vec<usize> {
    let mut taken = vec![false; shape.slots()];
    let mut places: Vec<usize> = moving.iter().map(|entry| entry.index).collect();
    places.iter().for_each(|index| taken[*index] = true);
    let mut moved = true;
    while moved {
        moved = false;
        for (entry, index) in moving.iter().zip(&mut places) {
            let Some(hash) = entry.hash else { continue };
            let path = shape.path(hash);
            let at = path.slots().position(|slot| slot == *index).unwrap_or(0);
            let better = path.slots().take(at).find(|slot| !taken[*slot]);
            if let Some(better) = better {
                taken[*index] = false;
                taken[better] = true;
                *index = better;
                moved = true;
            }
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_a_full_segment_finds_its_places() {
        for bits in [8, 11, 15] {
            let shape = SegmentShape::new(bits).unwrap();
            let mut taken = vec![false; shape.slots()];
            let mut moving = Vec::new();
            for key in 0u32.. {
                let hash = KeyHash::of(&key.to_le_bytes());
                let path = shape.path(hash);
                let Some(index) = path.slots().find(|slot| !taken[*slot]) else { break };
                taken[index] = true;
                moving.push(Moving { hash: Some(hash), word: SlotWord::from_raw(0), index });
            }
            moving.retain(|entry| entry.hash.is_some_and(|hash| hash.suffix(1) == 1));
            let places = place(shape, &moving);
            let mut used = vec![false; shape.slots()];
            for place in &places {
                assert!(!std::mem::replace(&mut used[*place], true), "two entries in one slot");
            }
            for (entry, place) in moving.iter().zip(&places) {
                let path = shape.path(entry.hash.unwrap());
                assert!(path.slots().take_while(|slot| slot != place).all(|slot| used[slot]));
            }
        }
    }
}
