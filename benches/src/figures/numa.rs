//! The figures of J. Nelson and R. Palmieri, "Performance Evaluation of the Impact of NUMA on
//! One-sided RDMA Interactions" (SRDS 2020), from the study on the model of the emulated fabric,
//! beside the published values. The fabric runs, in dilated time; nothing is said of this machine.

use std::time::Duration;

use rackpool_model::FabricKind;
use rackpool_numa::published::{FIGURE_5, FIGURE_5_WORKERS, KV_KOPS};
use rackpool_numa::{
    ClientPlacement, Configuration, Figure as Preset, Length, Model, NodeChoice, Outcome,
    StudyOptions, Verdict, Workload, study,
};
use rackpool_report::figures::{Figure, Panel};

use super::{Sizes, panel, series, statement};

const SETTING: &str = "The model of rackpool numa study --model: two sockets, cards of 56 Gbit/s, \
                       MTU 256 B; times dilated 50 times.";
const CAUSE: &str = "The model has constants from one setting of the publication.";
/// The most by which a rate may differ from the published one, in percent.
const LARGEST: f64 = 10.0;

fn figure(number: u32, title: &str, panels: Vec<Panel>) -> Figure {
    Figure {
        id: format!("numa-{number}"),
        title: title.into(),
        setting: format!("Figure {number} of Nelson and Palmieri, SRDS 2020. {SETTING}"),
        panels,
        statements: Vec::new(),
        notes: Vec::new(),
    }
}

fn options(time: Duration) -> StudyOptions {
    StudyOptions {
        fabric: FabricKind::Emulated,
        rdma_device: None,
        topology: None,
        model: Some(Model { dilation: 50 }),
        length: Length::Seconds(time.as_secs_f64()),
        pairs: 5,
        negligible: 0.015,
        client_threads: 1,
        window: 16,
        client: ClientPlacement::on(NodeChoice::Local),
    }
}

fn run(preset: Preset, keep: impl Fn(&Configuration) -> bool, sizes: &Sizes) -> Ran {
    let options = options(sizes.time / 4);
    let configurations = preset.grid(1).configurations()?;
    let outcomes = configurations
        .iter()
        .filter(|one| keep(one))
        .map(|one| study(&options, one, |_, _| {}))
        .collect::<Result<Vec<_>, _>>()?;
    Ok(outcomes)
}

type Ran = anyhow::Result<Vec<Outcome>>;

/// The mean metric of each outcome with a placement.
fn values(outcomes: &[&Outcome], placement: usize, unit: f64) -> Vec<f64> {
    let value = |outcome: &&Outcome| {
        let direction = outcome.configuration.direction();
        outcome.placements[placement].mean(|one| one.metric(direction)) / unit
    };
    outcomes.iter().map(value).collect()
}

/// By how many percent the metric is higher with memory of the other node.
fn percent(outcomes: &[&Outcome]) -> Vec<f64> {
    let of = |outcome: &&Outcome| {
        let comparison = outcome.placements[1].comparison;
        comparison.map_or(f64::NAN, |found| (found.interval.ratio - 1.0) * 100.0)
    };
    outcomes.iter().map(of).collect()
}

fn has_no_effect(outcomes: &[&Outcome]) -> bool {
    let verdict = |outcome: &&Outcome| outcome.placements[1].comparison.map(|found| found.verdict);
    outcomes.iter().all(|outcome| verdict(outcome) == Some(Verdict::NoEffect))
}

fn of(outcomes: &[Outcome], workload: Workload) -> Vec<&Outcome> {
    outcomes.iter().filter(|outcome| outcome.configuration.workload == workload).collect()
}

fn range(values: &[f64]) -> (f64, f64) {
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    (low, values.iter().copied().fold(f64::NEG_INFINITY, f64::max))
}

/// A panel with reads and writes of both nodes.
fn drawn(outcomes: &[Outcome], title: &str, x: (&str, Vec<String>), y: (&str, f64)) -> Panel {
    let mut drawn = panel("values", title, (x.0, y.0), x.1);
    for (name, workload) in [("read", Workload::Read), ("write", Workload::Write)] {
        let outcomes = of(outcomes, workload);
        for (at, node) in ["the card's node", "the other node"].iter().enumerate() {
            drawn.series.push(series(&format!("{name}, {node}"), values(&outcomes, at, y.1)));
        }
    }
    drawn
}

fn texts(outcomes: &[&Outcome], value: impl Fn(&Configuration) -> u32) -> Vec<String> {
    outcomes.iter().map(|outcome| value(&outcome.configuration).to_string()).collect()
}

/// Figure 3: latency by queue pairs.
pub(super) fn latency(sizes: &Sizes) -> anyhow::Result<Figure> {
    let outcomes = run(Preset::LatencyRatio, |_| true, sizes)?;
    let (reads, writes) = (of(&outcomes, Workload::Read), of(&outcomes, Workload::Write));
    let places = texts(&reads, |one| one.queue_pairs);
    let drawn = drawn(&outcomes, "Median latency", ("queue pairs", places), ("us", 1e3));
    let mut figure = figure(3, "Latency of 64 B by queue pairs", vec![drawn]);
    // The last place has 16 queue pairs, which fill the card.
    let read = percent(&reads[..reads.len() - 1]);
    let (low, high) = range(&read);
    let (least, most) = range(&percent(&writes));
    figure.statements = vec![
        statement(
            "A read of the other node's memory takes 3 to 5 % longer.",
            format!("{low:.2} to {high:.2} % with up to 8 queue pairs"),
            low >= 3.0 && high <= 5.0,
            CAUSE,
        ),
        statement(
            "(122 - 38) / 2300 predicts 3.65 %.",
            format!("{:.2} % with one queue pair", read[0]),
            (read[0] - 3.65).abs() <= 0.3,
            CAUSE,
        ),
        statement(
            "Writes take as long.",
            format!("{least:.2} to {most:.2} %"),
            has_no_effect(&writes),
            CAUSE,
        ),
    ];
    figure.notes = vec!["The rise of the latency above 16 queue pairs is not modelled.".into()];
    Ok(figure)
}

/// Figure 4: rate by size.
pub(super) fn size(sizes: &Sizes) -> anyhow::Result<Figure> {
    let outcomes = run(Preset::ThroughputByBytes, |_| true, sizes)?;
    let (reads, writes) = (of(&outcomes, Workload::Read), of(&outcomes, Workload::Write));
    let places = texts(&reads, |one| one.bytes);
    let drawn = drawn(&outcomes, "Rate", ("bytes", places), ("million/s", 1e6));
    let mut figure = figure(4, "Rate of 8 clients by size", vec![drawn]);
    let is_whole = |outcome: &&Outcome| outcome.configuration.bytes <= 256;
    let (whole, fragmented): (Vec<&Outcome>, Vec<&Outcome>) = reads.into_iter().partition(is_whole);
    let (low, high) = range(&percent(&whole));
    let (least, most) = range(&percent(&fragmented));
    let (slowest, fastest) = range(&percent(&writes));
    figure.statements = vec![
        statement(
            "Reads of up to 256 B are 5 to 7 % slower from the other node.",
            format!("{low:.1} to {high:.1} %"),
            low >= -7.5 && high <= -4.5,
            CAUSE,
        ),
        statement(
            "Fragmented reads are not.",
            format!("{least:.1} to {most:.1} %"),
            has_no_effect(&fragmented),
            CAUSE,
        ),
        statement(
            "Writes are not.",
            format!("{slowest:.1} to {fastest:.1} %"),
            has_no_effect(&writes),
            CAUSE,
        ),
    ];
    Ok(figure)
}

/// Figure 5: rate by threads that write the registered memory, beside the published rates.
pub(super) fn workers(sizes: &Sizes) -> anyhow::Result<Figure> {
    let outcomes = run(Preset::ThroughputByWorkers, |_| true, sizes)?;
    let (reads, writes) = (of(&outcomes, Workload::Read), of(&outcomes, Workload::Write));
    let places = FIGURE_5_WORKERS.map(|workers| workers.to_string()).to_vec();
    let mut drawn = drawn(&outcomes, "Rate", ("threads", places), ("million/s", 1e6));
    let modelled = [
        values(&writes, 0, 1e6),
        values(&writes, 1, 1e6),
        values(&reads, 0, 1e6),
        values(&reads, 1, 1e6),
    ];
    let mut worst = 0.0_f64;
    for (rates, (name, published)) in modelled.iter().zip(FIGURE_5) {
        for (rate, published) in rates.iter().zip(published) {
            worst = worst.max((rate / published - 1.0).abs() * 100.0);
        }
        if name.starts_with("write") {
            drawn.series.push(series(&format!("published {name}"), published));
        }
    }
    let title = "Rate of 8 clients, 8 B, by threads that write the registered memory";
    let mut figure = figure(5, title, vec![drawn]);
    let (low, high) = range(&percent(&writes[2..]));
    figure.statements = vec![
        statement(
            "From 8 threads on, writes to the other node are 70 to 80 % faster.",
            format!("{low:.0} to {high:.0} %"),
            low >= 70.0 && high <= 80.0,
            CAUSE,
        ),
        statement(
            "20 rates of the figure.",
            format!("each within {worst:.1} %"),
            worst <= LARGEST,
            CAUSE,
        ),
    ];
    Ok(figure)
}

/// Figure 6: requests of a key-value server with 8 clients, beside the published rates.
pub(super) fn requests(sizes: &Sizes) -> anyhow::Result<Figure> {
    // Eight connections: the published values are of these.
    let outcomes = run(Preset::KeyValue, |one| one.queue_pairs == 8, sizes)?;
    let load = |wanted: Option<NodeChoice>| {
        outcomes.iter().find(|outcome| {
            let load = outcome.configuration.load;
            (load.threads > 0).then_some(load.node) == wanted
        })
    };
    let names = ["all on the card's node", "server on the other", "all on the other"];
    let places = ["none", "the card's node", "the other node"].map(String::from).to_vec();
    let mut drawn = panel("requests", "Requests", ("programs that load", "thousand/s"), places);
    let (mut worst, mut rates) = (0.0_f64, Vec::new());
    for (at, name) in names.iter().enumerate() {
        let mut line = Vec::new();
        for (node, published) in KV_KOPS {
            let rate = load(node).map_or(f64::NAN, |found| values(&[found], at, 1e3)[0]);
            worst = worst.max((rate / published[at] - 1.0).abs() * 100.0);
            line.push(rate);
        }
        drawn.series.push(series(name, line.clone()));
        rates.push(line);
    }
    let lost = |from: f64, to: f64| (1.0 - to / from) * 100.0;
    let placed = [lost(rates[0][0], rates[1][0]), lost(rates[0][0], rates[2][0])];
    let loaded = lost(rates[0][0], rates[0][1]);
    let mut figure = figure(6, "Requests of a key-value server by load", vec![drawn]);
    figure.statements = vec![
        statement(
            "Placement costs 10 to 20 %.",
            format!("{:.0} and {:.0} %", placed[0], placed[1]),
            placed.iter().all(|lost| (10.0..=20.0).contains(lost)),
            CAUSE,
        ),
        statement(
            "Load on the server's node costs 40 to 50 %.",
            format!("{loaded:.0} %"),
            (40.0..=50.0).contains(&loaded),
            CAUSE,
        ),
        statement(
            "9 rates of the figure.",
            format!("each within {worst:.1} %"),
            worst <= LARGEST,
            CAUSE,
        ),
    ];
    Ok(figure)
}
