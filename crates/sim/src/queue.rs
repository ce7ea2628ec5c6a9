//! Future events in order of time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::world::Event;

/// An event queue. Events of equal time are executed in the order of insertion. The heap holds
/// indices only, so it does not move events.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    order: BinaryHeap<Reverse<(u64, u64, usize)>>,
    events: Vec<Option<Event>>,
    empty: Vec<usize>,
    sequence: u64,
}

impl Queue {
    pub(crate) fn push(&mut self, time: u64, event: Event) {
        self.sequence += 1;
        let place = self.empty.pop().unwrap_or_else(|| {
            self.events.push(None);
            self.events.len() - 1
        });
        self.events[place] = Some(event);
        self.order.push(Reverse((time, self.sequence, place)));
    }

    pub(crate) fn next_time(&self) -> Option<u64> {
        self.order.peek().map(|Reverse((time, ..))| *time)
    }

    pub(crate) fn pop(&mut self) -> Option<(u64, Event)> {
        let Reverse((time, _, place)) = self.order.pop()?;
        self.empty.push(place);
        Some((time, self.events[place].take()?))
    }
}
