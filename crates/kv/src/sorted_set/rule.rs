use crate::sorted_set::Score;

/// Restricts which members get a new score.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScoreRule {
    /// The restriction by presence.
    pub existing: Existing,
    /// The restriction of present members by their old score.
    pub order: ScoreOrder,
}

/// Whether absent members are added and present members changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Existing {
    /// Both.
    #[default]
    Any,
    /// Members are only added (Redis: `NX`).
    OnlyNew,
    /// Members are only changed (Redis: `XX`).
    OnlyOld,
}

/// The required relation of a member's new score to its old one. Absent members are added anyway.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScoreOrder {
    /// Any.
    #[default]
    Any,
    /// Greater (Redis: `GT`).
    Greater,
    /// Less (Redis: `LT`).
    Less,
}

/// The result of a change of one member.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ScoreOutcome {
    /// The member was added with this score.
    Added(Score),
    /// The member's score changed to this one.
    Changed(Score),
    /// The member already had this score.
    Same(Score),
    /// The rule forbids the change; nothing was changed.
    Refused,
    /// The sum of old score and increment is not a number (`inf` and `-inf`); nothing was changed.
    NotANumber,
}

/// The score to set, or the increment to add.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ScoreChange {
    Set(Score),
    Add(Score),
}

impl ScoreRule {
    /// The outcome for a member with the score `old`; `None` if it is absent.
    pub(super) fn decide(self, old: Option<Score>, wanted: ScoreChange) -> ScoreOutcome {
        let (ScoreChange::Set(score) | ScoreChange::Add(score)) = wanted;
        let Some(old) = old else {
            return match self.existing {
                Existing::OnlyOld => ScoreOutcome::Refused,
                Existing::Any | Existing::OnlyNew => ScoreOutcome::Added(score),
            };
        };
        if self.existing == Existing::OnlyNew {
            return ScoreOutcome::Refused;
        }
        let new = match wanted {
            ScoreChange::Set(score) => Some(score),
            ScoreChange::Add(by) => Score::new(old.get() + by.get()),
        };
        let Some(new) = new else { return ScoreOutcome::NotANumber };
        match self.order {
            ScoreOrder::Greater if new <= old => ScoreOutcome::Refused,
            ScoreOrder::Less if new >= old => ScoreOutcome::Refused,
            _ if new == old => ScoreOutcome::Same(new),
            _ => ScoreOutcome::Changed(new),
        }
    }
}

/// The positions of Redis's `start` and `stop` in a set of `len` members. Negative ones count from
/// the end.
pub(super) fn positions(start: i64, stop: i64, len: u64) -> std::ops::Range<u64> {
    let from_end =
        |at: i64| at.checked_neg().map_or(0, |back| len.saturating_sub(back.unsigned_abs()));
    let start = u64::try_from(start).unwrap_or_else(|_| from_end(start));
    let end = match u64::try_from(stop) {
        Ok(stop) => stop.saturating_add(1).min(len),
        // -1 is the last position. A position before the first ends the range at the start.
        Err(_) => len.saturating_add(1).saturating_sub(stop.unsigned_abs()),
    };
    start..end.max(start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_those_of_redis() {
        for (start, stop, expected) in [
            (0, -1, 0..5),
            (1, 2, 1..3),
            (-2, -1, 3..5),
            (-100, 1, 0..2),
            (3, 100, 3..5),
            (0, -5, 0..1),
            (0, -6, 0..0),
            (4, 2, 4..4),
            (7, 9, 7..7),
            (i64::MIN, i64::MAX, 0..5),
            (i64::MIN, i64::MIN, 0..0),
        ] {
            assert_eq!(positions(start, stop, 5), expected, "{start} {stop}");
        }
    }
}
