use crate::sorted_set::rule::{ScoreChange, positions};
use crate::sorted_set::{Score, ScoreOutcome, ScoreRange, ScoreRule, Scored};

/// A sorted set in memory, to be kept in one value: decode, change, encode.
///
/// ```
/// use rackpool_kv::sorted_set::{ScoreOutcome, ScoreRule, Score, ScoreRange, SmallSet};
///
/// let mut set = SmallSet::default();
/// let score = Score::new(2.5).ok_or("not a number")?;
/// assert_eq!(set.add(b"page", score, ScoreRule::default()), ScoreOutcome::Added(score));
/// let mut bytes = Vec::new();
/// set.encode(&mut bytes);
/// let read = SmallSet::decode(&bytes).ok_or("damaged")?;
/// assert_eq!(read.by_score(&ScoreRange::ALL, false, 0, 10), [(b"page".to_vec(), score)]);
/// # Ok::<_, &str>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SmallSet {
    /// Ordered by score, then by member.
    members: Vec<Scored>,
}

const FORMAT: u8 = 1;

impl SmallSet {
    /// The most members; a larger set belongs into a [`SortedSet`](crate::sorted_set::SortedSet).
    pub const MAX_MEMBERS: usize = 64;
    /// The most bytes of the [encoding](Self::encode).
    pub const MAX_BYTES: usize = 1024;

    /// Decodes a set; `None` if the bytes are not one. Format (1 B), then for each member, in
    /// order: score (8 B), length (4 B) and bytes. All words are little-endian.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (&FORMAT, mut rest) = bytes.split_first()? else { return None };
        let mut members: Vec<Scored> = Vec::new();
        while !rest.is_empty() {
            let (score, after) = rest.split_first_chunk()?;
            let (len, after) = after.split_first_chunk()?;
            let len = usize::try_from(u32::from_le_bytes(*len)).ok()?;
            let (member, after) = after.split_at_checked(len)?;
            let scored = (member.to_vec(), Score::from_bits(u64::from_le_bytes(*score))?);
            if members.last().is_some_and(|last| order(last) >= order(&scored)) {
                return None;
            }
            members.push(scored);
            rest = after;
        }
        Some(Self { members })
    }

    /// Appends the set's encoding to `bytes`.
    pub fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.push(FORMAT);
        for (member, score) in &self.members {
            // A value in the pool is shorter than 4 GiB.
            let len = u32::try_from(member.len()).unwrap_or(u32::MAX);
            bytes.extend_from_slice(&score.get().to_le_bytes());
            bytes.extend_from_slice(&len.to_le_bytes());
            bytes.extend_from_slice(member);
        }
    }

    /// Whether the set is within [`MAX_MEMBERS`](Self::MAX_MEMBERS) and
    /// [`MAX_BYTES`](Self::MAX_BYTES).
    #[must_use]
    pub fn fits(&self) -> bool {
        let bytes: usize = self.members.iter().map(|(member, _)| 12 + member.len()).sum();
        self.members.len() <= Self::MAX_MEMBERS && bytes < Self::MAX_BYTES
    }

    /// All members, in order.
    #[must_use]
    pub fn members(&self) -> &[Scored] {
        &self.members
    }

    /// The number of members.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.members.len() as u64
    }

    /// Whether the set has no members.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Sets the score of `member`, if `rule` allows it.
    pub fn add(&mut self, member: &[u8], score: Score, rule: ScoreRule) -> ScoreOutcome {
        self.set(member, ScoreChange::Set(score), rule)
    }

    /// Adds `by` to the score of `member`, or to 0 if it is absent, if `rule` allows it.
    pub fn increment(&mut self, member: &[u8], by: Score, rule: ScoreRule) -> ScoreOutcome {
        self.set(member, ScoreChange::Add(by), rule)
    }

    fn set(&mut self, member: &[u8], wanted: ScoreChange, rule: ScoreRule) -> ScoreOutcome {
        let place = self.place(member);
        let outcome = rule.decide(place.map(|at| self.members[at].1), wanted);
        if let ScoreOutcome::Added(score) | ScoreOutcome::Changed(score) = outcome {
            place.inspect(|at| drop(self.members.remove(*at)));
            let scored = (member.to_vec(), score);
            let at = self.members.partition_point(|other| order(other) < order(&scored));
            self.members.insert(at, scored);
        }
        outcome
    }

    /// Removes `member`. Returns whether it was present.
    pub fn remove(&mut self, member: &[u8]) -> bool {
        self.place(member).inspect(|at| drop(self.members.remove(*at))).is_some()
    }

    /// The score of `member`.
    #[must_use]
    pub fn score(&self, member: &[u8]) -> Option<Score> {
        self.place(member).map(|at| self.members[at].1)
    }

    /// The number of members before `member`; with `reverse`, after it.
    #[must_use]
    pub fn rank(&self, member: &[u8], reverse: bool) -> Option<u64> {
        let at = self.place(member)?;
        Some(if reverse { self.members.len() - 1 - at } else { at } as u64)
    }

    /// Members with scores in `range`, in descending order with `reverse`: skips `offset` of them,
    /// then returns up to `limit`.
    #[must_use]
    pub fn by_score(
        &self,
        range: &ScoreRange,
        reverse: bool,
        offset: u64,
        limit: u64,
    ) -> Vec<Scored> {
        let within = self.within(range).iter();
        if reverse { part(within.rev(), offset, limit) } else { part(within, offset, limit) }
    }

    /// The members from position `start` to `stop`, both included; with `reverse` in descending
    /// order. Negative positions count from the end; -1 is the last one.
    #[must_use]
    pub fn by_index(&self, start: i64, stop: i64, reverse: bool) -> Vec<Scored> {
        let at = positions(start, stop, self.len());
        self.by_score(&ScoreRange::ALL, reverse, at.start, at.end - at.start)
    }

    /// The number of members with scores in `range`.
    #[must_use]
    pub fn count(&self, range: &ScoreRange) -> u64 {
        self.within(range).len() as u64
    }

    /// Removes the members with scores in `range`; returns their number.
    pub fn remove_by_score(&mut self, range: &ScoreRange) -> u64 {
        let before = self.len();
        self.members.retain(|(_, score)| !range.contains(*score));
        before - self.len()
    }

    fn within(&self, range: &ScoreRange) -> &[Scored] {
        let start = self.members.partition_point(|(_, score)| range.is_above(*score));
        let end = self.members.partition_point(|(_, score)| !range.is_below(*score));
        self.members.get(start..end).unwrap_or_default()
    }

    fn place(&self, member: &[u8]) -> Option<usize> {
        self.members.iter().position(|(other, _)| other == member)
    }
}

fn order((member, score): &Scored) -> (Score, &[u8]) {
    (*score, member)
}

fn part<'a>(members: impl Iterator<Item = &'a Scored>, offset: u64, limit: u64) -> Vec<Scored> {
    let [offset, limit] = [offset, limit].map(|count| usize::try_from(count).unwrap_or(usize::MAX));
    members.skip(offset).take(limit).cloned().collect()
}
