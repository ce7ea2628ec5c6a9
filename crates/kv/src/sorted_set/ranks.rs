use std::ops::ControlFlow;

use crate::memory::Memory;
use crate::ordered::OrderedError;
use crate::sorted_set::keys::order_prefix;
use crate::sorted_set::rule::positions;
use crate::sorted_set::walk::Stretch;
use crate::sorted_set::{ScoreRange, Scored, SortedSet};

impl<M: Memory> SortedSet<'_, M> {
    /// Members with scores in `range`, in descending order with `reverse`: skips `offset` of them,
    /// then returns up to `limit`.
    ///
    /// The result is not a snapshot. A member that is present with one score throughout the call is
    /// seen exactly once. A member that is added, removed or changed meanwhile may be seen with its
    /// old score, its new one, both or neither.
    pub fn by_score(
        &mut self,
        range: &ScoreRange,
        reverse: bool,
        offset: u64,
        limit: u64,
    ) -> Result<Vec<Scored>, OrderedError<M::Error>> {
        let (mut skip, mut members) = (offset, Vec::new());
        if limit > 0 {
            let wanted = offset.saturating_add(limit);
            self.walk(Stretch::new(range, reverse), wanted, |scored| {
                if skip > 0 {
                    skip -= 1;
                    return ControlFlow::Continue(());
                }
                members.push(scored);
                if (members.len() as u64) < limit {
                    ControlFlow::Continue(())
                } else {
                    ControlFlow::Break(())
                }
            })?;
        }
        Ok(members)
    }

    /// The members from position `start` to `stop`, both included; with `reverse` in descending
    /// order. Negative positions count from the end; -1 is the last one. It walks to `start`.
    pub fn by_index(
        &mut self,
        start: i64,
        stop: i64,
        reverse: bool,
    ) -> Result<Vec<Scored>, OrderedError<M::Error>> {
        let len = if start < 0 || stop < 0 { self.len()? } else { u64::MAX };
        let at = positions(start, stop, len);
        self.by_score(&ScoreRange::ALL, reverse, at.start, at.end - at.start)
    }

    /// The number of members before `member`; with `reverse`, after it. It walks along them.
    pub fn rank(
        &mut self,
        member: &[u8],
        reverse: bool,
    ) -> Result<Option<u64>, OrderedError<M::Error>> {
        let Some(truth) = self.truth(member)? else { return Ok(None) };
        let mut own = order_prefix(member, truth.score);
        let all = Stretch::new(&ScoreRange::ALL, reverse);
        let stretch = if reverse {
            own.extend_from_slice(&[0xff; 8]);
            all.after(own)
        } else {
            all.before(own)
        };
        self.length(stretch).map(Some)
    }

    /// Counts the members with scores in `range`. It walks along them.
    pub fn count(&mut self, range: &ScoreRange) -> Result<u64, OrderedError<M::Error>> {
        self.length(Stretch::new(range, false))
    }

    /// Removes the members with scores in `range`; returns their number. A member that is added
    /// meanwhile may stay.
    pub fn remove_by_score(&mut self, range: &ScoreRange) -> Result<u64, OrderedError<M::Error>> {
        let mut removed = 0;
        for (member, _) in self.by_score(range, false, 0, u64::MAX)? {
            removed += u64::from(self.remove_if(&member, |score| range.contains(score))?);
        }
        self.clean(Stretch::new(range, false))?;
        Ok(removed)
    }

    fn length(&mut self, stretch: Stretch) -> Result<u64, OrderedError<M::Error>> {
        let mut count = 0;
        self.walk(stretch, u64::MAX, |_| {
            count += 1;
            ControlFlow::Continue(())
        })?;
        Ok(count)
    }
}
