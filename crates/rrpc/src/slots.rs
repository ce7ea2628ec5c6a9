/// A table of values under numbers that identify one use of a slot: the slot's index (low 32 bits)
/// and its generation (high 32 bits, from 1). A number of an earlier use finds nothing.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    most: u32,
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

const fn number(index: u32, generation: u32) -> u64 {
    (generation as u64) << 32 | index as u64
}

#[expect(clippy::cast_possible_truncation, reason = "the two halves of a number")]
const fn parts(number: u64) -> (u32, u32) {
    (number as u32, (number >> 32) as u32)
}

impl<T> Slots<T> {
    /// An empty table with at most `most` values.
    pub(crate) const fn new(most: u32) -> Self {
        Self { slots: Vec::new(), free: Vec::new(), most }
    }

    /// Inserts a value and returns its number; returns the value if the table is full.
    pub(crate) fn insert(&mut self, value: T) -> Result<u64, T> {
        if let Some(index) = self.free.pop()
            && let Some(slot) = self.slots.get_mut(index as usize)
        {
            slot.value = Some(value);
            return Ok(number(index, slot.generation));
        }
        match u32::try_from(self.slots.len()) {
            Ok(index) if index < self.most => {
                self.slots.push(Slot { generation: 1, value: Some(value) });
                Ok(number(index, 1))
            }
            _ => Err(value),
        }
    }

    pub(crate) fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        let (index, generation) = parts(number);
        let slot = self.slots.get_mut(index as usize)?;
        slot.value.as_mut().filter(|_| slot.generation == generation)
    }

    pub(crate) fn remove(&mut self, number: u64) -> Option<T> {
        let (index, generation) = parts(number);
        let slot = self.slots.get_mut(index as usize)?;
        if slot.generation != generation {
            return None;
        }
        let value = slot.value.take()?;
        slot.generation = slot.generation.wrapping_add(1).max(1);
        self.free.push(index);
        Some(value)
    }

    /// The number of values.
    pub(crate) const fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// All values with their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        self.slots.iter().zip(0..).filter_map(|(slot, index)| {
            slot.value.as_ref().map(|value| (number(index, slot.generation), value))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_the_past_finds_nothing() {
        let mut slots = Slots::new(1);
        let first = slots.insert('a').unwrap();
        assert_eq!(slots.insert('b'), Err('b'));
        assert_eq!(slots.remove(first), Some('a'));
        let second = slots.insert('c').unwrap();
        assert_eq!(parts(first).0, parts(second).0, "the slot is used again");
        assert_eq!(slots.get_mut(first), None);
        assert_eq!(slots.remove(first), None);
        assert_eq!(slots.get_mut(second), Some(&mut 'c'));
        assert_eq!((slots.len(), slots.iter().next()), (1, Some((second, &'c'))));
    }

    #[test]
    fn numbers_of_a_peer_may_be_anything() {
        let mut slots = Slots::new(4);
        let number = slots.insert(()).unwrap();
        for unauthenticated_peer in [0, 1, u64::MAX, number + 1, number | 1 << 63] {
            assert_eq!(slots.remove(unauthenticated_peer), None);
        }
        assert_eq!(slots.len(), 1);
    }
}
