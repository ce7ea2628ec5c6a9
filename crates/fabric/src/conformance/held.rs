use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::{EndpointId, Event};

/// Events that a decorator holds back until they are due.
///
/// The completions of an endpoint keep their order, and so do its messages. A fabric promises no
/// other order.
pub(crate) struct Held {
    events: BTreeMap<(Instant, u64), Event>,
    count: u64,
    /// The latest due time of an endpoint's held events of each kind.
    last: BTreeMap<(EndpointId, Kind), Instant>,
    message_bytes: usize,
}

/// Limit of the bytes of held messages; above it, the oldest events are released at once.
const MOST_BYTES: usize = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Completion,
    Message,
}

impl Held {
    pub(crate) const fn new() -> Self {
        Self { events: BTreeMap::new(), count: 0, last: BTreeMap::new(), message_bytes: 0 }
    }

    /// Holds an event back until `due`, or until the earlier events of its kind are released.
    pub(crate) fn hold(&mut self, event: Event, due: Instant) {
        let due = match &event {
            Event::Completed { endpoint, .. } => self.in_order(*endpoint, Kind::Completion, due),
            Event::Message { endpoint, bytes } => {
                self.message_bytes += bytes.len();
                self.in_order(*endpoint, Kind::Message, due)
            }
            // The last event of a region comes after the completions of its operations.
            Event::Unregistered { .. } => self.after_completions(due),
            _ => due,
        };
        self.events.insert((due, self.count), event);
        self.count += 1;
    }

    fn in_order(&mut self, endpoint: EndpointId, kind: Kind, due: Instant) -> Instant {
        let last = self.last.entry((endpoint, kind)).or_insert(due);
        *last = due.max(*last);
        *last
    }

    fn after_completions(&self, due: Instant) -> Instant {
        let completions = self.last.iter().filter(|((_, kind), _)| *kind == Kind::Completion);
        completions.map(|(_, last)| *last).fold(due, Instant::max)
    }

    /// Moves the events that are due to `events`.
    pub(crate) fn release(&mut self, now: Instant, events: &mut Vec<Event>) {
        while let Some(entry) = self.events.first_entry()
            && (entry.key().0 <= now || self.message_bytes > MOST_BYTES)
        {
            let event = entry.remove();
            if let Event::Message { bytes, .. } = &event {
                self.message_bytes -= bytes.len();
            }
            events.push(event);
        }
        if self.events.is_empty() {
            self.last.clear();
        }
    }

    /// Removes and returns all held events of an endpoint, in order.
    pub(crate) fn take(&mut self, ended: EndpointId) -> Vec<Event> {
        self.last.retain(|(endpoint, _), _| *endpoint != ended);
        let taken: Vec<Event> = self
            .events
            .extract_if(.., |_, event| endpoint_of(event) == Some(ended))
            .map(|(_, e)| e)
            .collect();
        for event in &taken {
            if let Event::Message { bytes, .. } = event {
                self.message_bytes -= bytes.len();
            }
        }
        taken
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Time until the next event is due.
    pub(crate) fn next_due(&self, now: Instant) -> Option<Duration> {
        self.events.first_key_value().map(|((due, _), _)| due.saturating_duration_since(now))
    }
}

/// The endpoint of a completion or message; `None` for other events.
const fn endpoint_of(event: &Event) -> Option<EndpointId> {
    match event {
        Event::Completed { endpoint, .. } | Event::Message { endpoint, .. } => Some(*endpoint),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RegionId;

    const ONE: EndpointId = EndpointId(1);
    const TWO: EndpointId = EndpointId(2);

    fn completed(endpoint: EndpointId, id: u64) -> Event {
        Event::Completed { endpoint, id, result: Ok(()) }
    }

    fn released(held: &mut Held, now: Instant) -> Vec<Event> {
        let mut events = Vec::new();
        held.release(now, &mut events);
        events
    }

    #[test]
    fn kinds_overtake_each_other_and_never_themselves() {
        let (mut held, now) = (Held::new(), Instant::now());
        let at = |ms| now + Duration::from_millis(ms);
        let message = Event::Message { endpoint: ONE, bytes: vec![1] };
        held.hold(completed(ONE, 1), at(9));
        held.hold(completed(ONE, 2), at(1));
        held.hold(completed(TWO, 3), at(2));
        held.hold(message.clone(), at(3));
        let gone = Event::Unregistered { region: RegionId(0) };
        held.hold(gone.clone(), now);
        assert_eq!(held.next_due(now), Some(Duration::from_millis(2)));
        assert_eq!(released(&mut held, at(8)), [completed(TWO, 3), message]);
        assert_eq!(released(&mut held, at(9)), [completed(ONE, 1), completed(ONE, 2), gone]);
        assert!(held.is_empty());
    }

    #[test]
    fn an_endpoint_can_be_taken_out() {
        let (mut held, now) = (Held::new(), Instant::now());
        held.hold(completed(ONE, 1), now);
        held.hold(completed(TWO, 2), now);
        held.hold(completed(ONE, 3), now);
        assert_eq!(held.take(ONE), [completed(ONE, 1), completed(ONE, 3)]);
        assert_eq!(released(&mut held, now), [completed(TWO, 2)]);
    }

    #[test]
    fn messages_are_not_hoarded() {
        let (mut held, now) = (Held::new(), Instant::now());
        let later = now + Duration::from_secs(9);
        for _ in 0..17 {
            held.hold(Event::Message { endpoint: ONE, bytes: vec![0; 1 << 16] }, later);
        }
        assert_eq!(released(&mut held, now).len(), 1);
    }
}
