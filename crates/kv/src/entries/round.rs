use crate::handle::Handle;
use crate::memory::Memory;

/// A walk through a whole table in steps, round after round, from an arbitrary position.
///
/// A program that always starts at the beginning, and is killed before it completes a round, never
/// reaches the end. Walks from random positions reach every entry eventually, and several programs
/// share the work.
#[derive(Clone, Copy, Debug)]
pub struct Round {
    begin: u64,
    next: u64,
    has_turned: bool,
}

impl Round {
    /// Starts at a random position of the table.
    #[must_use]
    pub fn anywhere<M: Memory>(handle: &Handle<M>) -> Self {
        Self::from(handle.cursor_in(rand::random()))
    }

    /// Starts at a cursor of [`Handle::scan`].
    #[must_use]
    pub const fn from(cursor: u64) -> Self {
        Self { begin: cursor, next: cursor, has_turned: false }
    }

    /// The cursor for the next step.
    #[must_use]
    pub const fn cursor(&self) -> u64 {
        self.next
    }

    /// Advances to the cursor that a step returned. Returns whether that completes a round.
    pub const fn go_on(&mut self, next: u64) -> bool {
        let is_complete = if next == 0 {
            self.has_turned || self.begin == 0
        } else {
            self.has_turned && next >= self.begin
        };
        if is_complete {
            *self = Self::from(next);
        } else {
            self.has_turned |= next == 0;
            self.next = next;
        }
        is_complete
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_is_complete_when_it_comes_to_where_it_began() {
        let mut round = Round::from(20);
        let complete: Vec<bool> = [30, 40, 0, 10, 20].map(|next| round.go_on(next)).into();
        assert_eq!(complete, [false, false, false, false, true]);
        let complete: Vec<bool> = [30, 0, 15, 25].map(|next| round.go_on(next)).into();
        assert_eq!((complete, round.cursor()), (vec![false, false, false, true], 25));
    }

    #[test]
    fn one_from_the_beginning_is_complete_at_the_end() {
        let mut round = Round::from(0);
        assert_eq!([10, 20, 0, 10].map(|next| round.go_on(next)), [false, false, true, false]);
    }

    #[test]
    fn one_that_began_in_the_last_part_is_complete_at_the_end_at_the_latest() {
        let mut round = Round::from(90);
        assert_eq!([0, 50, 0].map(|next| round.go_on(next)), [false, false, true]);
    }
}
