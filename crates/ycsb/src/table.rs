//! Results as a table for the terminal.

use std::fmt::Write as _;

use super::summary::{LatencySummary, Session, WorkloadResult};
use rackpool_output::Style;
use rackpool_output::numbers::{counted, grouped, micros, rounded};

const HEADINGS: [&str; 10] =
    ["workload", "operation", "count", "ops/s", "mean", "p50", "p95", "p99", "p99.9", "max"];
const UNITS: [&str; 10] = ["", "", "", "", "µs", "µs", "µs", "µs", "µs", "µs"];
/// Number of leading columns of words, which are left-aligned; numbers are right-aligned.
const WORDS: usize = 2;

type Row = [String; HEADINGS.len()];

/// Returns the session as a table: for each phase its operations by kind, then by rack if there are
/// several, then problems.
pub fn render(session: &Session, style: Style) -> String {
    let groups: Vec<Vec<Row>> = session.phases().map(rows).collect();
    let heads = [HEADINGS.map(str::to_owned), UNITS.map(str::to_owned)];
    let mut widths = [0; HEADINGS.len()];
    for row in groups.iter().flatten().chain(&heads) {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let rule = "─".repeat(widths.iter().sum::<usize>() + 2 * (widths.len() - 1));
    let mut text = format!("{}\n\n", style.bold(&title(session)));
    line(&mut text, &style.bold(&aligned(&heads[0], &widths)));
    line(&mut text, &style.dim(&aligned(&heads[1], &widths)));
    for group in &groups {
        line(&mut text, &style.dim(&rule));
        for (i, row) in group.iter().enumerate() {
            let row = aligned(row, &widths);
            line(&mut text, &if i == 0 { style.bold(&row) } else { row });
        }
    }
    line(&mut text, &style.dim(&rule));
    for note in notes(session) {
        line(&mut text, &style.dim(&note));
    }
    for problem in session.problems() {
        line(&mut text, &style.red(&format!("error: {problem}")));
    }
    text
}

fn title(session: &Session) -> String {
    let Some(phase) = session.phases().next() else { return session.store.clone() };
    format!(
        "YCSB, {}: {} of {} B, {} in {}",
        session.store,
        counted(phase.records, "record", "records"),
        grouped(phase.value_bytes as u64),
        counted(phase.threads as u64, "thread", "threads"),
        counted(phase.racks as u64, "rack", "racks"),
    )
}

/// All operations first, then each kind and each rack if there are several.
fn rows(result: &WorkloadResult) -> Vec<Row> {
    let mut rows = Vec::new();
    let kinds = &result.by_operation;
    let whole = match kinds.as_slice() {
        [only] => only.operation.clone(),
        _ => "all".to_owned(),
    };
    let name = format!("{:<4}  {}", result.name, result.description());
    rows.push(row(name, whole, Some(result.throughput), &result.overall));
    if kinds.len() > 1 {
        for kind in kinds {
            rows.push(row(String::new(), kind.operation.clone(), None, &kind.latency));
        }
    }
    if result.by_rack.len() > 1 {
        for rack in &result.by_rack {
            let place = format!("from rack {}", rack.rack);
            rows.push(row(String::new(), place, Some(rack.throughput), &rack.overall));
        }
    }
    rows
}

fn row(workload: String, operation: String, rate: Option<f64>, latency: &LatencySummary) -> Row {
    let us = |ns: u64| micros(ns as f64);
    [
        workload,
        operation,
        grouped(latency.count),
        rate.map_or_else(String::new, |rate| grouped(rounded(rate))),
        micros(latency.mean_ns),
        us(latency.p50_ns),
        us(latency.p95_ns),
        us(latency.p99_ns),
        us(latency.p999_ns),
        us(latency.max_ns),
    ]
}

fn aligned(row: &Row, widths: &[usize; HEADINGS.len()]) -> String {
    let mut text = String::new();
    for (column, (cell, &width)) in row.iter().zip(widths).enumerate() {
        let gap = if column == 0 { "" } else { "  " };
        // Writing to a string cannot fail.
        let _ = if column < WORDS {
            write!(text, "{gap}{cell:<width$}")
        } else {
            write!(text, "{gap}{cell:>width$}")
        };
    }
    text
}

fn notes(session: &Session) -> Vec<String> {
    let mut notes = Vec::new();
    if session.workloads.iter().any(|result| result.name == "F") {
        notes.push(
            "F: a read-modify-write counts also as the read and the update in it.".to_owned(),
        );
    }
    let verified: u64 = session.phases().map(|result| result.verified).sum();
    if verified > 0 {
        let corrupt: u64 = session.phases().map(|result| result.corrupt).sum();
        notes.push(format!("{} values verified, {} wrong.", grouped(verified), grouped(corrupt)));
    }
    notes
}

fn line(text: &mut String, line: &str) {
    text.push_str(line.trim_end());
    text.push('\n');
}

#[cfg(test)]
mod tests;
