//! A replay as text.

use std::fmt::Write as _;

use rackpool_model::ByteSize;
use rackpool_output::Style;
use rackpool_output::numbers::{counted, grouped, latency};
use rackpool_trace::Trace;

use super::replay_options::ReplayOptions;
use super::tried::Tried;

const HEADS: [&str; 11] = [
    "policy",
    "local",
    "mean",
    "gain",
    "asked",
    "swaps",
    "moves",
    "ping-pong",
    "refused",
    "given up",
    "copied",
];

pub(super) fn render(
    trace: &Trace,
    options: &ReplayOptions,
    tried: &[Tried],
    style: Style,
) -> String {
    let mut text = String::new();
    #[expect(clippy::cast_precision_loss, reason = "a number for people")]
    let seconds = trace.span_ns() as f64 / 1e9;
    let _ = writeln!(
        text,
        "{} of {} to {} of {} within {seconds:.1} s",
        counted(trace.accesses.len() as u64, "access", "accesses"),
        counted(trace.racks.len() as u64, "rack", "racks"),
        counted(trace.pages() as u64, "page", "pages"),
        ByteSize(trace.page_bytes),
    );
    let _ = writeln!(
        text,
        "taken to cost: {} in the rack, {} to another one; copies at {} Gbit/s\n",
        latency_of(options.local_ns),
        latency_of(options.remote_ns),
        options.copy_gbps
    );
    let rows: Vec<[String; HEADS.len()]> =
        tried.iter().map(|one| row(one, &tried[0], options)).collect();
    let mut widths = HEADS.map(|head| head.chars().count());
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let _ = writeln!(text, "{}", style.bold(&line(&HEADS.map(str::to_owned), &widths)));
    for row in &rows {
        let _ = writeln!(text, "{}", line(row, &widths));
    }
    text.push_str(&reasons(tried, options));
    text
}

#[expect(clippy::cast_precision_loss, reason = "a number for people")]
fn latency_of(ns: u64) -> String {
    latency(ns as f64)
}

fn line(cells: &[String; HEADS.len()], widths: &[usize; HEADS.len()]) -> String {
    let mut line = String::new();
    for (at, (cell, width)) in cells.iter().zip(widths).enumerate() {
        if at == 0 {
            let _ = write!(line, "{cell:<width$}");
        } else {
            let _ = write!(line, "  {cell:>width$}");
        }
    }
    line
}

fn row(one: &Tried, still: &Tried, options: &ReplayOptions) -> [String; HEADS.len()] {
    let outcome = &one.outcome;
    let mean = outcome.mean().as_nanos();
    let gain = still.outcome.time.as_secs_f64() / outcome.time.as_secs_f64().max(1e-12) - 1.0;
    let moved = |number: u64| if one.policy.swaps { grouped(number) } else { "-".into() };
    [
        name(one, options),
        format!("{:.1} %", outcome.local_share() * 100.0),
        latency_of(u64::try_from(mean).unwrap_or(u64::MAX)),
        if one.policy.swaps { format!("{:+.1} %", gain * 100.0) } else { "-".into() },
        moved(outcome.asked),
        moved(outcome.swaps),
        moved(outcome.moves),
        moved(outcome.returns),
        moved(outcome.refused.all()),
        moved(outcome.given_up),
        if one.policy.swaps { ByteSize(outcome.bytes_moved).to_string() } else { "-".into() },
    ]
}

fn name(one: &Tried, options: &ReplayOptions) -> String {
    use super::sweep::SweepOver;
    let heat = &one.policy.heat;
    if !one.policy.swaps {
        return "no swap".into();
    }
    match options.sweep.as_ref().map(|sweep| sweep.rule) {
        Some(SweepOver::Lambda) => format!("heat-decay {}", heat.decay),
        Some(SweepOver::Lifetime) => format!("lifetime {} ms", heat.lifetime.as_secs_f64() * 1e3),
        Some(SweepOver::ReadHot) => format!("read-hot {}", heat.read_hot),
        Some(SweepOver::Rest) => format!("rest {} ms", heat.rest.as_secs_f64() * 1e3),
        Some(SweepOver::Hot) | None => format!("hot {}", heat.hot),
    }
}

/// Lists the reasons for which pages stayed, under the policy with the lowest cost of accesses.
fn reasons(tried: &[Tried], options: &ReplayOptions) -> String {
    let swapping = tried.iter().filter(|one| one.policy.swaps && one.outcome.refused.all() > 0);
    let Some(best) = swapping.min_by_key(|one| one.outcome.time) else { return String::new() };
    let refused = best.outcome.refused;
    let reasons = [
        ("at least as hot at home", refused.hotter),
        ("the same, and mostly read by the requester", refused.read_hot),
        ("had come lately", refused.rests),
        ("nothing cold to give for it", refused.nothing_to_offer),
        ("in another swap or moved meanwhile", refused.unavailable),
        ("too many swaps at once, or no free frame", refused.full),
        ("by the metadata server", refused.by_server),
    ];
    let told: Vec<String> = reasons
        .iter()
        .filter(|(_, count)| *count > 0)
        .map(|(reason, count)| format!("  {:>10}  {reason}", grouped(*count)))
        .collect();
    format!("\nrefused with {}:\n{}\n", name(best, options), told.join("\n"))
}
