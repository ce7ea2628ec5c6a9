//! `rackpool dca sim`.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, ensure};
use rackpool_dca::{Accesses, Counters, ForwarderOutcome, replay, simulate};
use rackpool_model::RackId;
use rackpool_output::{Style, UsageError, print};
use rackpool_trace::Trace;

use super::recording;
use super::sim_options::{Case, SimOptions};

/// The largest trace that is read, in bytes.
const MAX_BYTES: u64 = 1 << 30;
/// The most combinations of values.
const MAX_CASES: usize = 1000;

/// The columns: the values that were chosen, what was counted, and what packets met.
const CHOSEN: [&str; 6] = ["cores", "descriptors", "bytes", "ways", "gbps", "cycles"];
const COUNTED: [&str; 6] =
    ["write hit %", "read hit %", "leaked %", "core miss %", "mem read MB", "mem write MB"];
const PACKETS: [&str; 6] = ["sent Gbit/s", "packets", "drops", "pauses", "p50 us", "p99 us"];

pub(super) fn run(options: &SimOptions, style: Style) -> anyhow::Result<()> {
    let all = options.llc_ways;
    if let Some(ways) = options.ways.iter().find(|ways| !(1..=all).contains(ways)) {
        let fix = format!("--ways {ways}: the cache has {all} ways: give a number from 1 to {all}");
        return Err(UsageError::new(fix).into());
    }
    let (heads, rows) = match (&options.trace, &options.recording) {
        (None, None) => simulated(options)?,
        (Some(file), _) => {
            let text = String::from_utf8(read(file)?)
                .map_err(|_| anyhow::anyhow!("{} is no text", file.display()))?;
            let accesses = Accesses::parse(&text).with_context(|| file.display().to_string())?;
            replayed(options, &accesses)?
        }
        (None, Some(file)) => {
            let trace = Trace::parse(&read(file)?).with_context(|| file.display().to_string())?;
            let rack = RackId(options.rack);
            replayed(options, &recording::accesses(&trace, rack, options.access)?)?
        }
    };
    let text = if options.csv { csv(&heads, &rows) } else { table(&heads, &rows, style) };
    print(format_args!("{text}"))?;
    Ok(())
}

type Rows = (Vec<&'static str>, Vec<Vec<String>>);

fn simulated(options: &SimOptions) -> anyhow::Result<Rows> {
    let cases = options.cases();
    let count = cases.len();
    ensure!(
        count <= MAX_CASES,
        UsageError::new(format!("{count} combinations of values: give at most {MAX_CASES}"))
    );
    let mut rows = Vec::new();
    for case in &cases {
        let outcome = simulate(&options.simulation(case), &options.forwarders(case));
        let outcome = outcome.map_err(UsageError::new)?;
        let measured = outcome.forwarders.first().context("no program was simulated")?;
        rows.push([chosen(case), counted(&measured.counters), packets(measured)].concat());
    }
    Ok(([CHOSEN, COUNTED, PACKETS].concat(), rows))
}

fn replayed(options: &SimOptions, accesses: &Accesses) -> anyhow::Result<Rows> {
    ensure!(!accesses.as_slice().is_empty(), "the trace has no accesses that this cache sees");
    let mut rows = Vec::new();
    for ways in &options.ways {
        let counters = replay(&options.machine(*ways), options.path.of_model(), accesses);
        let counters = counters.map_err(UsageError::new)?;
        rows.push([vec![ways.to_string()], counted(&counters)].concat());
    }
    Ok(([&["ways"][..], &COUNTED].concat(), rows))
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    let file = File::open(path).with_context(|| path.display().to_string())?;
    let length = file.metadata()?.len();
    ensure!(
        length <= MAX_BYTES,
        "{} has {length} B, more than the limit of {MAX_BYTES} B: record fewer accesses",
        path.display()
    );
    let mut bytes = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn chosen(case: &Case) -> Vec<String> {
    let Case { cores, descriptors, packet, ways, gbps, extra_cycles } = case;
    vec![
        cores.to_string(),
        descriptors.to_string(),
        packet.to_string(),
        ways.to_string(),
        gbps.to_string(),
        extra_cycles.to_string(),
    ]
}

fn counted(counters: &Counters) -> Vec<String> {
    let percent = |value: Option<f64>| value.map_or_else(|| "-".into(), |v| format!("{v:.1}"));
    #[expect(clippy::cast_precision_loss, reason = "a number for people")]
    let megabytes = |bytes: u64| format!("{:.1}", bytes as f64 / 1e6);
    vec![
        percent(counters.write_hit_percent()),
        percent(counters.read_hit_percent()),
        percent(counters.leaked_percent()),
        percent(counters.core_miss_percent()),
        megabytes(counters.memory_read_bytes),
        megabytes(counters.memory_write_bytes),
    ]
}

fn packets(outcome: &ForwarderOutcome) -> Vec<String> {
    vec![
        format!("{:.1}", outcome.sent_gbps),
        outcome.packets.to_string(),
        outcome.drops.to_string(),
        outcome.pauses.to_string(),
        format!("{:.3}", outcome.latency_p50_ns / 1e3),
        format!("{:.3}", outcome.latency_p99_ns / 1e3),
    ]
}

fn csv(heads: &[&str], rows: &[Vec<String>]) -> String {
    let names: Vec<String> = heads
        .iter()
        .map(|head| head.replace('%', "percent").replace([' ', '/'], "_").to_lowercase())
        .collect();
    let lines = std::iter::once(&names).chain(rows).map(|row| row.join(",") + "\n");
    lines.collect()
}

fn table(heads: &[&str], rows: &[Vec<String>], style: Style) -> String {
    let widths: Vec<usize> = heads
        .iter()
        .enumerate()
        .map(|(at, head)| {
            rows.iter().filter_map(|row| row.get(at)).map(String::len).fold(head.len(), usize::max)
        })
        .collect();
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let mut line = String::new();
        for (cell, width) in cells.zip(&widths) {
            let _ = write!(line, "{cell:>width$}  ");
        }
        line.trim_end().to_owned()
    };
    let mut text = style.bold(&line(&mut heads.iter().copied())).to_string();
    text.push('\n');
    for row in rows {
        text.push_str(&line(&mut row.iter().map(String::as_str)));
        text.push('\n');
    }
    text
}
