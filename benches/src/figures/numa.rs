//! The figures of Nelson and Palmieri, "Performance Evaluation of the Impact of NUMA on One-sided
//! RDMA Interactions" (SRDS 2020), from the study on the model of the emulated fabric, beside the
//! published values. The fabric runs, in dilated time; nothing is said of this machine.

use rackpool_numa::figures::{Figure as Studied, Plot, requests as plot_of_requests};
use rackpool_numa::published::{FIGURE_5, FIGURE_6};
use rackpool_numa::{Outcome, Study, Verdict};
use rackpool_report::figures::{Figure, Panel};

use super::{Sizes, panel, series, statement};

const SETTING: &str = "The model of rackpool numa study --model: two sockets, cards of 56 Gbit/s, \
                       MTU 256 B; times dilated 20 times.";
/// Differences up to this part count as none.
const NEGLIGIBLE: f64 = 0.015;
const CAUSE: &str = "The model has constants from one setting of the publication.";

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

fn drawn(plot: Plot) -> Panel {
    let mut drawn = panel(plot.name, plot.title, (plot.x_name, plot.y_name), plot.x);
    drawn.series = plot.lines.into_iter().map(|(name, values)| series(&name, values)).collect();
    drawn
}

fn run(studied: Studied, sizes: &Sizes) -> anyhow::Result<(Vec<Outcome>, Figure)> {
    let study = Study { time: sizes.time / 8, ..Study::default() };
    let outcomes = studied
        .experiments()
        .iter()
        .map(|experiment| study.run(experiment))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let panels = studied.plots(&outcomes).into_iter().map(drawn).collect();
    let figure = figure(studied.number(), studied.title(), panels);
    Ok((outcomes, figure))
}

/// By how many percent each outcome is more with memory of the other node.
fn percent(outcomes: &[Outcome]) -> Vec<f64> {
    outcomes.iter().map(|found| (found.ratio.mean - 1.0) * 100.0).collect()
}

fn range(values: &[f64]) -> (f64, f64) {
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    (low, values.iter().copied().fold(f64::NEG_INFINITY, f64::max))
}

/// Figure 3: latency by queue pairs.
pub(super) fn latency(sizes: &Sizes) -> anyhow::Result<Figure> {
    let (outcomes, mut figure) = run(Studied::Latency, sizes)?;
    let (reads, writes) = outcomes.split_at(outcomes.len() / 2);
    // The last place has 16 queue pairs, which fill the card.
    let (read, write) = (percent(&reads[..reads.len() - 1]), percent(writes));
    let (low, high) = range(&read);
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
            format!("within {:.2} %", write.iter().fold(0.0, |most: f64, x| most.max(x.abs()))),
            write.iter().all(|x| x.abs() < 1.0),
            CAUSE,
        ),
    ];
    figure.notes = vec!["The rise of the latency above 16 queue pairs is not modelled.".into()];
    Ok(figure)
}

/// Figure 4: rate by size.
pub(super) fn size(sizes: &Sizes) -> anyhow::Result<Figure> {
    let (outcomes, mut figure) = run(Studied::Size, sizes)?;
    let (reads, writes) = outcomes.split_at(outcomes.len() / 2);
    let is_whole = |found: &&Outcome| found.experiment.bytes <= 256;
    let whole: Vec<Outcome> = reads.iter().filter(is_whole).cloned().collect();
    let fragmented: Vec<Outcome> = reads.iter().filter(|found| !is_whole(found)).cloned().collect();
    let (low, high) = range(&percent(&whole));
    let (least, most) = range(&percent(&fragmented));
    let (slowest, fastest) = range(&percent(writes));
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
            fragmented.iter().all(|found| found.verdict(NEGLIGIBLE) == Verdict::NoEffect),
            CAUSE,
        ),
        statement(
            "Writes are not.",
            format!("{slowest:.1} to {fastest:.1} %"),
            writes.iter().all(|found| found.verdict(NEGLIGIBLE) == Verdict::NoEffect),
            CAUSE,
        ),
    ];
    Ok(figure)
}

/// Figure 5: rate by threads that write the registered memory, beside the published rates.
pub(super) fn workers(sizes: &Sizes) -> anyhow::Result<Figure> {
    let (outcomes, mut figure) = run(Studied::Workers, sizes)?;
    let (reads, writes) = outcomes.split_at(outcomes.len() / 2);
    let mut worst = 0.0_f64;
    for (at, (_, published)) in FIGURE_5.iter().enumerate() {
        let modelled = [writes[at].local, writes[at].remote, reads[at].local, reads[at].remote];
        for (found, published) in modelled.iter().zip(published) {
            worst = worst.max((found.rate / 1e6 / published - 1.0).abs() * 100.0);
        }
    }
    if let Some(panel) = figure.panels.first_mut() {
        let names = ["write, the card's node", "write, the other node"];
        for (column, name) in names.iter().enumerate() {
            let values = FIGURE_5.iter().map(|(_, rates)| rates[column]);
            panel.series.push(series(&format!("{name}, published"), values));
        }
    }
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
            worst <= 10.0,
            CAUSE,
        ),
    ];
    Ok(figure)
}

/// Figure 6: requests of a key-value server, beside the published rates.
pub(super) fn requests(_: &Sizes) -> anyhow::Result<Figure> {
    let plot = plot_of_requests();
    let mut worst = 0.0_f64;
    for (column, (_, values)) in plot.lines.iter().enumerate() {
        for (value, published) in values.iter().zip(FIGURE_6) {
            worst = worst.max((value / published[column] - 1.0).abs() * 100.0);
        }
    }
    let [loaded, alone] = [1, 0].map(|at| plot.lines[0].1[at]);
    let lost = (1.0 - loaded / alone) * 100.0;
    let mut figure = figure(6, "Requests of a key-value server by load", vec![drawn(plot)]);
    figure.setting =
        "Figure 6 of Nelson and Palmieri, SRDS 2020. Arithmetic of a request; nothing runs.".into();
    figure.statements = vec![
        statement(
            "Load on the server's node costs 40 to 50 %.",
            format!("{lost:.0} %"),
            (40.0..=50.0).contains(&lost),
            CAUSE,
        ),
        statement(
            "9 rates of the figure.",
            format!("each within {worst:.1} %"),
            worst <= 10.0,
            CAUSE,
        ),
    ];
    Ok(figure)
}
