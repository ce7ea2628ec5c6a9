//! `rackpool heat`: tries the thresholds of the swap on a recorded trace.

mod replay_options;
mod sweep;
mod table;
mod tried;

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, bail};
use rackpool_output::{Style, UsageError, outln, print};
use rackpool_trace::{Policy, Trace, replay};
use serde::Serialize;

use replay_options::Command;
use tried::Tried;

pub(crate) use replay_options::{Options, ReplayOptions};

/// The largest trace that is read, in bytes: about 250 million accesses.
const MAX_BYTES: u64 = 1 << 30;

/// Runs the command.
///
/// # Errors
/// If the trace can't be read, or a rule is outside its valid range.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let Command::Replay(options) = &options.command;
    let trace = read(&options.file).with_context(|| options.file.display().to_string())?;
    if trace.accesses.is_empty() {
        bail!(
            "{} has no accesses: record a run with at least one operation (rackpool ycsb --record)",
            options.file.display()
        );
    }
    let tried = try_all(&trace, options).map_err(UsageError::new)?;
    if options.json {
        outln!("{}", serde_json::to_string_pretty(&Report::of(&trace, options, &tried))?)?;
    } else {
        print(format_args!("{}", table::render(&trace, options, &tried, Style::of_stdout())))?;
    }
    Ok(())
}

fn read(path: &Path) -> anyhow::Result<Trace> {
    let file = File::open(path)?;
    let length = file.metadata()?.len();
    if length > MAX_BYTES {
        bail!(
            "the trace has {length} B, more than the limit of {MAX_BYTES} B: record fewer operations"
        );
    }
    let mut bytes = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut bytes)?;
    Ok(Trace::parse(&bytes)?)
}

/// Replays without swaps first, then with each policy of the sweep.
fn try_all(trace: &Trace, options: &ReplayOptions) -> anyhow::Result<Vec<Tried>> {
    let costs = options.costs();
    let given = options.policy();
    let still = Policy { swaps: false, ..given };
    let swept = options.sweep.as_ref().map_or_else(|| vec![given], |sweep| sweep.over(&given));
    let policies = std::iter::once(still).chain(swept);
    let each = policies.map(|policy| {
        let outcome = replay(trace, &policy, &costs)?;
        Ok(Tried { policy, outcome })
    });
    each.collect()
}

/// The output of `--json`.
#[derive(Debug, Serialize)]
struct Report {
    accesses: u64,
    pages: usize,
    page_bytes: u64,
    racks: usize,
    seconds: f64,
    local_ns: u64,
    remote_ns: u64,
    policies: Vec<Row>,
}

/// A policy in the output of `--json`.
#[derive(Debug, Serialize)]
struct Row {
    swap: bool,
    hot: f64,
    heat_decay: f64,
    heat_lifetime_ms: f64,
    read_hot: f64,
    rest_ms: f64,
    local_share: f64,
    asked: u64,
    swaps: u64,
    moves: u64,
    returns: u64,
    given_up: u64,
    refused: RefusedRow,
    bytes_moved: u64,
    mean_ns: u64,
    time_s: f64,
}

/// Refused swaps by reason, in the output of `--json`.
#[derive(Debug, Serialize)]
struct RefusedRow {
    nothing_to_offer: u64,
    hotter: u64,
    read_hot: u64,
    rests: u64,
    unavailable: u64,
    full: u64,
    by_server: u64,
}

impl Report {
    #[expect(clippy::cast_precision_loss, reason = "a number for people")]
    fn of(trace: &Trace, options: &ReplayOptions, tried: &[Tried]) -> Self {
        Self {
            accesses: trace.accesses.len() as u64,
            pages: trace.pages(),
            page_bytes: trace.page_bytes,
            racks: trace.racks.len(),
            seconds: trace.span_ns() as f64 / 1e9,
            local_ns: options.local_ns,
            remote_ns: options.remote_ns,
            policies: tried.iter().map(Row::of).collect(),
        }
    }
}

impl Row {
    fn of(tried: &Tried) -> Self {
        let (heat, outcome) = (&tried.policy.heat, &tried.outcome);
        let refused = outcome.refused;
        Self {
            swap: tried.policy.swaps,
            hot: heat.hot,
            heat_decay: heat.decay,
            heat_lifetime_ms: heat.lifetime.as_secs_f64() * 1e3,
            read_hot: heat.read_hot,
            rest_ms: heat.rest.as_secs_f64() * 1e3,
            local_share: outcome.local_share(),
            asked: outcome.asked,
            swaps: outcome.swaps,
            moves: outcome.moves,
            returns: outcome.returns,
            given_up: outcome.given_up,
            refused: RefusedRow {
                nothing_to_offer: refused.nothing_to_offer,
                hotter: refused.hotter,
                read_hot: refused.read_hot,
                rests: refused.rests,
                unavailable: refused.unavailable,
                full: refused.full,
                by_server: refused.by_server,
            },
            bytes_moved: outcome.bytes_moved,
            mean_ns: u64::try_from(outcome.mean().as_nanos()).unwrap_or(u64::MAX),
            time_s: outcome.time.as_secs_f64(),
        }
    }
}
