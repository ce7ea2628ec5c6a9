use crate::memory::Memory;
use crate::ordered::{MapChange, OrderedError, OrderedMap};
use crate::sorted_set::keys::{OrderEntryState, TRUTHS, Truth, order_key, truth_key};
use crate::sorted_set::rule::ScoreChange;
use crate::sorted_set::{Score, ScoreOutcome, ScoreRule};

/// A sorted set of any size on an ordered map of its own.
///
/// Changes of one member, and reads of its score, are linearizable among all clients in all racks.
/// A member has up to 65515 bytes; half of that if it has zero bytes in it.
#[derive(Debug)]
pub struct SortedSet<'a, M> {
    pub(super) map: OrderedMap<'a, M>,
}

impl<'a, M: Memory> SortedSet<'a, M> {
    /// The set on `map`, which must have been [created](crate::ordered::OrderedMaps::create).
    #[must_use]
    pub fn new(map: OrderedMap<'a, M>) -> Self {
        Self { map }
    }

    /// The underlying map, for example to destroy it.
    #[must_use]
    pub fn into_map(self) -> OrderedMap<'a, M> {
        self.map
    }

    /// Sets the score of `member`, if `rule` allows it.
    pub fn add(
        &mut self,
        member: &[u8],
        score: Score,
        rule: ScoreRule,
    ) -> Result<ScoreOutcome, OrderedError<M::Error>> {
        self.set(member, ScoreChange::Set(score), rule)
    }

    /// Adds `by` to the score of `member`, or to 0 if it is absent, if `rule` allows it.
    pub fn increment(
        &mut self,
        member: &[u8],
        by: Score,
        rule: ScoreRule,
    ) -> Result<ScoreOutcome, OrderedError<M::Error>> {
        self.set(member, ScoreChange::Add(by), rule)
    }

    fn set(
        &mut self,
        member: &[u8],
        wanted: ScoreChange,
        rule: ScoreRule,
    ) -> Result<ScoreOutcome, OrderedError<M::Error>> {
        loop {
            let truth = self.truth(member)?;
            let outcome = rule.decide(truth.map(|truth| truth.score), wanted);
            let (ScoreOutcome::Added(score) | ScoreOutcome::Changed(score)) = outcome else {
                return Ok(outcome);
            };
            if self.change(member, truth, Some(Truth::new(score)))? {
                return Ok(outcome);
            }
        }
    }

    /// Removes `member`. Returns whether it was present.
    pub fn remove(&mut self, member: &[u8]) -> Result<bool, OrderedError<M::Error>> {
        self.remove_if(member, |_| true)
    }

    /// Removes `member` if `goes` returns true for its score. Returns whether it removed it.
    pub(super) fn remove_if(
        &mut self,
        member: &[u8],
        goes: impl Fn(Score) -> bool,
    ) -> Result<bool, OrderedError<M::Error>> {
        loop {
            let truth = self.truth(member)?;
            if !truth.is_some_and(|truth| goes(truth.score)) {
                return Ok(false);
            }
            if self.change(member, truth, None)? {
                return Ok(true);
            }
        }
    }

    /// The score of `member`.
    pub fn score(&mut self, member: &[u8]) -> Result<Option<Score>, OrderedError<M::Error>> {
        Ok(self.truth(member)?.map(|truth| truth.score))
    }

    /// Counts the members. It reads each leaf of about 40 members.
    pub fn len(&mut self) -> Result<u64, OrderedError<M::Error>> {
        self.map.count(&TRUTHS)
    }

    /// Whether the set has no members.
    pub fn is_empty(&mut self) -> Result<bool, OrderedError<M::Error>> {
        Ok(self.map.range(&TRUTHS, crate::ordered::Direction::Forward, 1)?.is_empty())
    }

    pub(super) fn truth(&mut self, member: &[u8]) -> Result<Option<Truth>, OrderedError<M::Error>> {
        let mut bytes = Vec::new();
        if !self.map.get(&truth_key(member), &mut bytes)? {
            return Ok(None);
        }
        let damaged = || self.map.damaged("a member has no score");
        Truth::decode(&bytes).map(Some).ok_or_else(damaged)
    }

    /// Changes the truth of a member from `old` to `new`; returns whether it still was `old`.
    fn change(
        &mut self,
        member: &[u8],
        old: Option<Truth>,
        new: Option<Truth>,
    ) -> Result<bool, OrderedError<M::Error>> {
        let old_key = old.map(|truth| order_key(member, truth));
        let new_key = new.map(|truth| order_key(member, truth));
        if let Some(key) = &new_key {
            self.map.insert(key, &OrderEntryState::Tentative.encode())?;
        }
        let result = self.change_truth(member, old_key.as_deref(), old, new);
        match &result {
            // The change is committed. Readers check the truth of order entries that are not
            // *sure*.
            Ok(true) => {
                if let Some(key) = &new_key {
                    let _ = self.move_on(key, OrderEntryState::Tentative, OrderEntryState::Sure);
                }
                old_key.inspect(|key| drop(self.map.remove(key)));
            }
            Err(OrderedError::Table(crate::KvError::OutcomeUnknown)) => {}
            Ok(false) | Err(_) => drop(new_key.map(|key| self.map.remove(&key))),
        }
        result
    }

    /// Makes the old order entry *closing*, then commits: replaces the truth if it still is `old`.
    fn change_truth(
        &mut self,
        member: &[u8],
        old_key: Option<&[u8]>,
        old: Option<Truth>,
        new: Option<Truth>,
    ) -> Result<bool, OrderedError<M::Error>> {
        if let Some(key) = old_key {
            self.map.update(key, |state| match state.and_then(OrderEntryState::decode) {
                Some(OrderEntryState::Tentative | OrderEntryState::Sure) => {
                    MapChange::Put(OrderEntryState::Closing.encode())
                }
                Some(OrderEntryState::Closing) | None => MapChange::Keep,
            })?;
        }
        let expected = old.map(Truth::encode);
        let mut done = false;
        self.map.update(&truth_key(member), |now| {
            done = now == expected.as_ref().map(|bytes| &bytes[..]);
            match new {
                _ if !done => MapChange::Keep,
                Some(new) => MapChange::Put(new.encode().to_vec()),
                None => MapChange::Remove,
            }
        })?;
        Ok(done)
    }

    /// Changes the state of an order entry from `from` to `to`; does nothing in another state.
    fn move_on(
        &mut self,
        key: &[u8],
        from: OrderEntryState,
        to: OrderEntryState,
    ) -> Result<(), OrderedError<M::Error>> {
        let change = |state: Option<&[u8]>| match state.and_then(OrderEntryState::decode) {
            Some(state) if state == from => MapChange::Put(to.encode()),
            _ => MapChange::Keep,
        };
        self.map.update(key, change).map(drop)
    }
}
