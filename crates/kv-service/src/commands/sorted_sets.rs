use std::ops::Bound;

use rackpool_kv::ordered::{MapEntry, MapId};
use rackpool_kv::sorted_set::{
    Existing, Score, ScoreOrder, ScoreOutcome, ScoreRange, ScoreRule, Scored, SmallSet, SortedSet,
};

use super::arguments::{integer, is};
use super::scan::scan_pairs;
use super::{CommandResult, Context};
use crate::collections::{Edit, LargeMaps, Small};
use crate::failure::{DAMAGED, Failure, NOT_A_FLOAT, SYNTAX, said};
use crate::number::{Decimal, parse_bound, parse_float};
use crate::resp::{Args, Reply};
use crate::values::SORTED_SET;

const NOT_A_RANGE: Failure = said("ERR min or max is not a float");

fn decode(bytes: &[u8]) -> Result<SmallSet, Failure> {
    if bytes.is_empty() { Ok(SmallSet::default()) } else { SmallSet::decode(bytes).ok_or(DAMAGED) }
}

/// Adds the members of a small set to a new map.
fn fill(maps: &mut LargeMaps, id: MapId, members: &[u8]) -> Result<(), Failure> {
    let set = decode(members)?;
    let mut large = SortedSet::new(maps.map(id));
    for (member, score) in set.members() {
        large.add(member, *score, ScoreRule::default())?;
    }
    Ok(())
}

/// Encodes a changed small set; `Grow` if it is too large.
fn stored<R>(set: &SmallSet, made: &mut Vec<u8>, result: R) -> Small<R> {
    if !set.fits() {
        return Small::Grow;
    }
    if !set.is_empty() {
        set.encode(made);
    }
    Small::Store(result)
}

/// Runs the same expression on either form of a set.
macro_rules! look {
    ($context:expr, $key:expr, |$set:ident| $work:expr) => {
        $context.store.look(
            $key,
            SORTED_SET,
            |small| {
                #[allow(unused_mut, reason = "the large form needs it")]
                let mut $set = decode(small)?;
                Ok($work)
            },
            |maps, id| {
                let mut $set = SortedSet::new(maps.map(id));
                Ok($work?)
            },
        )
    };
}

fn score(argument: &[u8]) -> Result<Score, Failure> {
    parse_float(argument).and_then(Score::new).ok_or(NOT_A_FLOAT)
}

/// The options of `ZADD`.
#[derive(Clone, Copy, Default)]
struct AddOptions {
    rule: ScoreRule,
    counts_changed: bool,
    increments: bool,
    /// The index of the first score.
    first: usize,
}

impl AddOptions {
    fn parse(args: Args<'_>) -> Result<Self, Failure> {
        let mut options = Self { first: 2, ..Self::default() };
        let (mut new, mut old, mut greater, mut less) = (false, false, false, false);
        for word in args.from(2) {
            match word {
                word if is(word, "nx") => new = true,
                word if is(word, "xx") => old = true,
                word if is(word, "gt") => greater = true,
                word if is(word, "lt") => less = true,
                word if is(word, "ch") => options.counts_changed = true,
                word if is(word, "incr") => options.increments = true,
                _ => break,
            }
            options.first += 1;
        }
        let pairs = args.len().saturating_sub(options.first);
        if pairs == 0 || !pairs.is_multiple_of(2) {
            return Err(SYNTAX);
        }
        if new && old {
            return Err(said("ERR XX and NX options at the same time are not compatible"));
        }
        if (greater && (new || less)) || (less && new) {
            let text = "ERR GT, LT, and/or NX options at the same time are not compatible";
            return Err(said(text));
        }
        if options.increments && pairs > 2 {
            return Err(said("ERR INCR option supports a single increment-element pair"));
        }
        options.rule.existing = match (new, old) {
            (true, _) => Existing::OnlyNew,
            (_, true) => Existing::OnlyOld,
            _ => Existing::Any,
        };
        options.rule.order = match (greater, less) {
            (true, _) => ScoreOrder::Greater,
            (_, true) => ScoreOrder::Less,
            _ => ScoreOrder::Any,
        };
        Ok(options)
    }
}

pub(super) fn zadd(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    let options = AddOptions::parse(args)?;
    let mut pairs = Vec::new();
    for at in (options.first..args.len()).step_by(2) {
        pairs.push((score(args.at(at))?, args.at(at + 1)));
    }
    if options.increments {
        let Some((by, member)) = pairs.pop() else { return Err(SYNTAX) };
        return increment(context, args.at(1), member, by, options.rule, reply);
    }
    let counts = |outcome| match outcome {
        ScoreOutcome::Added(_) => 1,
        ScoreOutcome::Changed(_) => usize::from(options.counts_changed),
        _ => 0,
    };
    let small = |old: &[u8], made: &mut Vec<u8>| {
        let mut set = decode(old)?;
        let (mut count, mut changes) = (0, false);
        for (score, member) in &pairs {
            let outcome = set.add(member, *score, options.rule);
            changes |= matches!(outcome, ScoreOutcome::Added(_) | ScoreOutcome::Changed(_));
            count += counts(outcome);
        }
        // An unchanged set is not stored again: a new version would abort transactions of its
        // watchers.
        Ok(if changes { stored(&set, made, count) } else { Small::Keep(count) })
    };
    let large = |maps: &mut LargeMaps, id: MapId| {
        let mut set = SortedSet::new(maps.map(id));
        let mut count = 0;
        for (score, member) in &pairs {
            count += counts(set.add(member, *score, options.rule)?);
        }
        Ok(count)
    };
    let several = pairs.len() > 1;
    let edit = Edit { family: SORTED_SET, several, small, large, fill };
    let count: usize = context.edit(args.at(1), edit)?;
    reply.count(count);
    Ok(())
}

fn increment(
    context: &mut Context<'_>,
    key: &[u8],
    member: &[u8],
    by: Score,
    rule: ScoreRule,
    reply: &mut Reply<'_>,
) -> CommandResult {
    let small = |old: &[u8], made: &mut Vec<u8>| {
        let mut set = decode(old)?;
        let outcome = set.increment(member, by, rule);
        Ok(match outcome {
            ScoreOutcome::Added(_) | ScoreOutcome::Changed(_) => stored(&set, made, outcome),
            outcome => Small::Keep(outcome),
        })
    };
    let large = |maps: &mut LargeMaps, id: MapId| {
        Ok(SortedSet::new(maps.map(id)).increment(member, by, rule)?)
    };
    let several = false;
    let edit = Edit { family: SORTED_SET, several, small, large, fill };
    match context.edit(key, edit)? {
        ScoreOutcome::Added(score) | ScoreOutcome::Changed(score) | ScoreOutcome::Same(score) => {
            reply.double(score.get());
        }
        ScoreOutcome::Refused => reply.null(),
        ScoreOutcome::NotANumber => return Err(said("ERR resulting score is not a number (NaN)")),
    }
    Ok(())
}

pub(super) fn zincrby(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    let by = score(args.at(2))?;
    increment(context, args.at(1), args.at(3), by, ScoreRule::default(), reply)
}

pub(super) fn zrem(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    let small = |old: &[u8], made: &mut Vec<u8>| {
        let mut set = decode(old)?;
        let count = args.from(2).filter(|member| set.remove(member)).count();
        Ok(if count == 0 { Small::Keep(0) } else { stored(&set, made, count) })
    };
    let large = |maps: &mut LargeMaps, id: MapId| {
        let mut set = SortedSet::new(maps.map(id));
        let mut count = 0;
        for member in args.from(2) {
            count += usize::from(set.remove(member)?);
        }
        Ok(count)
    };
    let several = args.len() > 3;
    let edit = Edit { family: SORTED_SET, several, small, large, fill };
    let count = context.edit(args.at(1), edit)?;
    reply.count(count);
    Ok(())
}

pub(super) fn zscore(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    match look!(context, args.at(1), |set| set.score(args.at(2)))? {
        Some(score) => reply.double(score.get()),
        None => reply.null(),
    }
    Ok(())
}

pub(super) fn zcard(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    let count = look!(context, args.at(1), |set| set.len())?;
    reply.integer(i64::try_from(count).unwrap_or(i64::MAX));
    Ok(())
}

fn rank(
    context: &mut Context<'_>,
    args: Args<'_>,
    reverse: bool,
    reply: &mut Reply<'_>,
) -> CommandResult {
    match look!(context, args.at(1), |set| set.rank(args.at(2), reverse))? {
        Some(rank) => reply.integer(i64::try_from(rank).unwrap_or(i64::MAX)),
        None => reply.null(),
    }
    Ok(())
}

pub(super) fn zrank(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    rank(context, args, false, reply)
}

pub(super) fn zrevrank(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    rank(context, args, true, reply)
}

/// One end of a range of scores; a leading `(` excludes it.
fn bound(argument: &[u8]) -> Result<Bound<Score>, Failure> {
    let parse = |text| parse_bound(text).and_then(Score::new).ok_or(NOT_A_RANGE);
    match argument {
        [b'(', text @ ..] => parse(text).map(Bound::Excluded),
        text => parse(text).map(Bound::Included),
    }
}

fn range(min: &[u8], max: &[u8]) -> Result<ScoreRange, Failure> {
    Ok(ScoreRange { min: bound(min)?, max: bound(max)? })
}

pub(super) fn zcount(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    let range = range(args.at(2), args.at(3))?;
    let count = look!(context, args.at(1), |set| set.count(&range))?;
    reply.integer(i64::try_from(count).unwrap_or(i64::MAX));
    Ok(())
}

pub(super) fn zremrangebyscore(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    let range = range(args.at(2), args.at(3))?;
    let small = |old: &[u8], made: &mut Vec<u8>| {
        let mut set = decode(old)?;
        let count = set.remove_by_score(&range);
        Ok(if count == 0 { Small::Keep(0) } else { stored(&set, made, count) })
    };
    let large =
        |maps: &mut LargeMaps, id: MapId| Ok(SortedSet::new(maps.map(id)).remove_by_score(&range)?);
    let several = true;
    let edit = Edit { family: SORTED_SET, several, small, large, fill };
    let count = context.edit(args.at(1), edit)?;
    reply.integer(i64::try_from(count).unwrap_or(i64::MAX));
    Ok(())
}

/// The values of `LIMIT`. A negative count means no limit.
#[derive(Clone, Copy)]
struct Limit {
    offset: i64,
    count: i64,
}

/// The options of a range query.
#[derive(Clone, Copy)]
struct RangeOptions {
    by_score: bool,
    reverse: bool,
    with_scores: bool,
    limit: Option<Limit>,
}

impl RangeOptions {
    /// Parses the options behind the range. `is_general`: those of `ZRANGE`.
    fn parse(mut self, args: Args<'_>, is_general: bool) -> Result<Self, Failure> {
        let mut words = args.from(4);
        while let Some(word) = words.next() {
            if is(word, "withscores") {
                self.with_scores = true;
            } else if is(word, "limit") && (is_general || self.by_score) {
                let (Some(offset), Some(count)) = (words.next(), words.next()) else {
                    return Err(SYNTAX);
                };
                self.limit = Some(Limit { offset: integer(offset)?, count: integer(count)? });
            } else if is(word, "byscore") && is_general {
                self.by_score = true;
            } else if is(word, "rev") && is_general {
                self.reverse = true;
            } else {
                return Err(SYNTAX);
            }
        }
        if self.limit.is_some() && !self.by_score {
            return Err(said(
                "ERR syntax error, LIMIT is only supported in combination with either BYSCORE or \
                 BYLEX",
            ));
        }
        Ok(self)
    }

    fn answer(
        self,
        context: &mut Context<'_>,
        args: Args<'_>,
        reply: &mut Reply<'_>,
    ) -> CommandResult {
        let (key, first, last) = (args.at(1), args.at(2), args.at(3));
        let found = if self.by_score {
            // In reverse order the greater end comes first.
            let (min, max) = if self.reverse { (last, first) } else { (first, last) };
            let range = range(min, max)?;
            let (offset, limit) = match self.limit {
                None => (0, u64::MAX),
                // A negative offset is behind all members; a negative count means no limit.
                Some(Limit { offset, count }) => (
                    u64::try_from(offset).unwrap_or(u64::MAX),
                    u64::try_from(count).unwrap_or(u64::MAX),
                ),
            };
            if offset == u64::MAX {
                // The key must still be of the right type.
                look!(context, key, |set| set.len())?;
                Vec::new()
            } else {
                look!(context, key, |set| set.by_score(&range, self.reverse, offset, limit))?
            }
        } else {
            let (start, stop) = (integer(first)?, integer(last)?);
            look!(context, key, |set| set.by_index(start, stop, self.reverse))?
        };
        self.write(&found, reply);
        Ok(())
    }

    fn write(self, found: &[Scored], reply: &mut Reply<'_>) {
        let in_pairs = self.with_scores && reply.is_resp3();
        let flat = if self.with_scores && !in_pairs { 2 } else { 1 };
        reply.array(found.len() * flat);
        for (member, score) in found {
            if in_pairs {
                reply.array(2);
            }
            reply.bulk(member);
            if self.with_scores {
                reply.double(score.get());
            }
        }
    }
}

const BY_INDEX: RangeOptions =
    RangeOptions { by_score: false, reverse: false, with_scores: false, limit: None };

pub(super) fn zrange(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    BY_INDEX.parse(args, true)?.answer(context, args, reply)
}

pub(super) fn zrevrange(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    RangeOptions { reverse: true, ..BY_INDEX }.parse(args, false)?.answer(context, args, reply)
}

pub(super) fn zrangebyscore(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    RangeOptions { by_score: true, ..BY_INDEX }.parse(args, false)?.answer(context, args, reply)
}

pub(super) fn zrevrangebyscore(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    let wanted = RangeOptions { by_score: true, reverse: true, ..BY_INDEX };
    wanted.parse(args, false)?.answer(context, args, reply)
}

pub(super) fn zscan(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    let all = look!(context, args.at(1), |set| set.by_index(0, -1, false))?;
    let text = |score: Score| Decimal(score.get()).to_string().into_bytes();
    let entry = |(key, score)| MapEntry { key, value: text(score) };
    let pairs: Vec<_> = all.into_iter().map(entry).collect();
    scan_pairs(args, reply, &pairs)
}
