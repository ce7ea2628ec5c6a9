//! The figures of A. Farshin et al., "Reexamining Direct Cache Access to Optimize I/O Intensive
//! Applications for Multi-hundred-gigabit Networks" (USENIX ATC 2020), from the model of
//! `rackpool dca sim`, beside the published values. Nothing is measured on this machine.

use rackpool_dca::published::{
    FIGURE_3_MISS_GROWTH, FIGURE_5, FIGURE_6, FIGURE_6_DESCRIPTORS, FIGURE_10, FIGURE_11,
    FIGURE_11_WAYS, FIGURE_12, FIGURE_14_P99_GROWTH_PERCENT,
};
use rackpool_dca::{
    DmaPath, Forwarder, ForwarderOutcome, MachineOptions, RandomReader, SimulationOptions, WayMask,
    simulate, simulate_with_readers,
};
use rackpool_report::figures::{Figure, Panel, Scale, Shape};

use super::{Sizes, panel, series, statement};

/// The most by which hit rates may differ from the published ones, in percentage points: on
/// average, and any of them.
const MEAN: f64 = 3.0;
const LARGEST: f64 = 8.0;

const SETTING: &str = "The model of rackpool dca sim: a Xeon Gold 6140, 24.75 MiB in 11 ways, \
                       random replacement, hashed sets; a 100 Gbit/s card.";

fn run(ways: u32, rounds: u32, programs: &[Forwarder]) -> anyhow::Result<ForwarderOutcome> {
    let machine =
        MachineOptions { ddio_ways: WayMask::highest(ways, 11), ..MachineOptions::default() };
    let options = SimulationOptions { machine, warm_up_rounds: rounds, rounds: 6 };
    Ok(simulate(&options, programs)?.forwarders.swap_remove(0))
}

fn hits(outcome: &ForwarderOutcome) -> f64 {
    outcome.counters.write_hit_percent().unwrap_or(f64::NAN)
}

fn forwarder(cores: u32, descriptors: u32, packet_bytes: u32) -> Forwarder {
    Forwarder { cores, descriptors, packet_bytes, ..Forwarder::default() }
}

/// Write hits of one core.
fn one_core(descriptors: u32, packet_bytes: u32, ways: u32) -> anyhow::Result<f64> {
    Ok(hits(&run(ways, 6, &[forwarder(1, descriptors, packet_bytes)])?))
}

fn figure(number: u32, title: &str, panels: Vec<Panel>) -> Figure {
    Figure {
        id: format!("ddio-{number}"),
        title: title.into(),
        setting: format!("Figure {number} of Farshin et al., USENIX ATC 2020. {SETTING}"),
        panels,
        statements: Vec::new(),
        notes: Vec::new(),
    }
}

fn hit_rates(name: &str, title: &str, x_name: &str, x: impl IntoIterator<Item = u32>) -> Panel {
    let labels = x.into_iter().map(|x| x.to_string()).collect();
    panel(name, title, (x_name, "%, writes of the card that hit"), labels)
}

/// Adds the published values and those of the model, and returns the differences.
fn beside(panel: &mut Panel, what: &str, published: &[f64], model: &[f64]) -> Vec<f64> {
    panel.series.push(series(&format!("published{what}"), published.iter().copied()));
    panel.series.push(series(&format!("model{what}"), model.iter().copied()));
    published.iter().zip(model).map(|(a, b)| (a - b).abs()).collect()
}

/// Says how far the model is from the published values.
fn agree(figure: &mut Figure, errors: &[f64]) {
    let largest = errors.iter().copied().fold(0.0, f64::max);
    #[expect(clippy::cast_precision_loss, reason = "a few values")]
    let mean = errors.iter().sum::<f64>() / errors.len() as f64;
    let values = figure.panels.iter().flat_map(|panel| &panel.series);
    let published = values.filter(|series| series.name.starts_with("published"));
    let rates: Vec<f64> = published.flat_map(|series| &series.values).copied().flatten().collect();
    let least = rates.iter().copied().fold(f64::INFINITY, f64::min);
    figure.statements.push(statement(
        &format!("{} hit rates from {least} to 100 %", rates.len()),
        format!(
            "the model misses them by {mean:.1} points on average, {largest:.1} at most; {MEAN} and \
             {LARGEST} count as agreement"
        ),
        mean <= MEAN && largest <= LARGEST,
        "The model lacks an effect.",
    ));
}

/// Figure 3: a program that wants much cache, in the ways that the card writes into.
pub(super) fn overlap(_: &Sizes) -> anyhow::Result<Figure> {
    let load = Forwarder { rate_gbps: 82.0, cat_mask: WayMask(0x0c0), ..forwarder(1, 4096, 1024) };
    let options =
        SimulationOptions { warm_up_rounds: 6, rounds: 6, ..SimulationOptions::default() };
    let masks = [0x003, 0x00c, 0x030, 0x0c0, 0x180, 0x600].map(WayMask);
    let mut misses = Vec::new();
    for cat_mask in masks {
        let reader = RandomReader { cat_mask, ..RandomReader::default() };
        let outcome = simulate_with_readers(&options, std::slice::from_ref(&load), &[reader])?;
        let counters = outcome.forwarders[0].counters;
        misses.push(counters.core_miss_percent().unwrap_or(f64::NAN));
    }
    let labels = masks.iter().map(ToString::to_string).collect();
    let mut rates = panel(
        "overlap",
        "Misses of the forwarder by the ways of the other program",
        ("ways of the other program", "%, header reads that miss"),
        labels,
    );
    rates.series.push(series("model", misses.iter().copied()));
    let growth = misses[5] / misses[1];
    let mut figure = figure(3, "A cache-hungry program in the card's ways", vec![rates]);
    figure.statements.push(statement(
        &format!(
            "sharing the card's ways (0x600) takes about {FIGURE_3_MISS_GROWTH} times the misses"
        ),
        format!("{growth:.1} times those with 0xc"),
        growth >= 0.8 * FIGURE_3_MISS_GROWTH,
        "The model's program reads less.",
    ));
    Ok(figure)
}

/// Figure 5: more ways for the card.
pub(super) fn ways(_: &Sizes) -> anyhow::Result<Figure> {
    let published = FIGURE_5.map(|(_, hits)| hits);
    let mut model = Vec::new();
    for (ways, _) in FIGURE_5 {
        model.push(one_core(4096, 1024, ways)?);
    }
    let mut rates = hit_rates("hits", "Hits by ways", "ways", FIGURE_5.map(|(ways, _)| ways));
    let errors = beside(&mut rates, "", &published, &model);
    let mut figure = figure(5, "1024 B, 4096 descriptors, one core: more ways", vec![rates]);
    agree(&mut figure, &errors);
    Ok(figure)
}

/// Figure 6: sizes and descriptors.
pub(super) fn descriptors(_: &Sizes) -> anyhow::Result<Figure> {
    let mut rates = hit_rates("hits", "Hits by descriptors", "descriptors", FIGURE_6_DESCRIPTORS);
    let mut errors = Vec::new();
    for (bytes, published) in FIGURE_6 {
        let mut model = Vec::new();
        for descriptors in FIGURE_6_DESCRIPTORS {
            model.push(one_core(descriptors, bytes, 2)?);
        }
        errors.extend(beside(&mut rates, &format!(" {bytes} B"), &published, &model));
    }
    let mut figure = figure(6, "Descriptors and packet sizes, one core, two ways", vec![rates]);
    agree(&mut figure, &errors);
    Ok(figure)
}

/// Figure 10: more cores.
pub(super) fn cores(_: &Sizes) -> anyhow::Result<Figure> {
    let published = FIGURE_10.map(|(_, hits)| hits);
    let mut model = Vec::new();
    for (cores, _) in FIGURE_10 {
        model.push(hits(&run(2, 60, &[forwarder(cores, 256, 1500)])?));
    }
    let mut rates = hit_rates("hits", "Hits by cores", "cores", FIGURE_10.map(|(cores, _)| cores));
    beside(&mut rates, "", &published, &model);
    let peak = model.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map_or(0, |(at, _)| at);
    let falls = model[peak..].is_sorted_by(|a, b| a > b);
    let mut figure = figure(10, "256 descriptors for each core, 1500 B: more cores", vec![rates]);
    figure.statements.push(statement(
        "the rate is highest with 4 cores and falls after",
        format!(
            "highest with {} cores, {} after",
            FIGURE_10[peak].0,
            if falls { "falls" } else { "does not fall" }
        ),
        [4, 6].contains(&FIGURE_10[peak].0) && falls,
        "The model lacks an effect of several cores.",
    ));
    figure.notes.push(
        "Three constants of the model act on several cores; two are calibrated on 2 cores here and \
         on 4 cores in figure 11. The other points are not."
            .into(),
    );
    Ok(figure)
}

/// Figure 11: ways instead of cores.
pub(super) fn ways_and_cores(_: &Sizes) -> anyhow::Result<Figure> {
    let mut rates = hit_rates("hits", "Hits by ways", "ways", FIGURE_11_WAYS);
    let mut all = Vec::new();
    for (cores, published) in FIGURE_11 {
        let mut model = Vec::new();
        for ways in FIGURE_11_WAYS {
            model.push(hits(&run(ways, 60, &[forwarder(cores, 4096 / cores, 1500)])?));
        }
        beside(&mut rates, &format!(" {cores} cores"), &published, &model);
        all.push(model);
    }
    let difference = (all[1][1] - all[2][0]).abs();
    let mut figure = figure(11, "4096 descriptors in all, 1500 B: ways or cores", vec![rates]);
    figure.statements.push(statement(
        "2 cores with 4 ways (70.5 %) hit about as often as 4 cores with 2 ways (72.9 %)",
        format!("{:.1} % and {:.1} %", all[1][1], all[2][0]),
        difference <= 10.0,
        "The model lacks an effect of several cores.",
    ));
    Ok(figure)
}

/// Figure 12: ways where the load is out of balance.
pub(super) fn imbalance(_: &Sizes) -> anyhow::Result<Figure> {
    let gain = |imbalance: f64| -> anyhow::Result<f64> {
        let mut weights = vec![(18.0 - imbalance) / 17.0; 18];
        weights[0] = imbalance;
        let load = Forwarder { extra_cycles: 1800.0, weights, ..forwarder(18, 512, 1500) };
        let p99 = |ways| run(ways, 8, std::slice::from_ref(&load)).map(|one| one.latency_p99_ns);
        Ok(100.0 * (1.0 - p99(8)? / p99(2)?))
    };
    let mut model = Vec::new();
    for (imbalance, _) in FIGURE_12 {
        model.push(gain(imbalance)?);
    }
    let labels = FIGURE_12.iter().map(|(imbalance, _)| imbalance.to_string()).collect();
    let mut gains = panel(
        "gains",
        "How much eight ways lower the 99th percentile",
        ("load of the busiest core, times the mean", "%, lower p99"),
        labels,
    );
    gains.shape = Shape::Bars;
    let published = FIGURE_12.map(|(_, gain)| gain);
    gains.series.push(series("published", published));
    gains.series.push(series("model", model.iter().copied()));
    let mut figure = figure(12, "More ways where cores have unequal load", vec![gains]);
    figure.statements.push(statement(
        "p99 is lower by 21 % at 2.78 times the mean load, by 2 % at 1.69 times",
        format!("{:.1} % and {:.1} %", model[1], model[0]),
        model[1] >= 0.8 * published[1] && model[0] < model[1],
        "The direction is the paper's; the model's stateful program is a number of cycles and \
         reads one line of each packet.",
    ));
    Ok(figure)
}

/// Figure 14: a second program, whose packets pass the cache or not.
pub(super) fn bypass(_: &Sizes) -> anyhow::Result<Figure> {
    let names = ["alone", "both, 2 ways", "both, 4 ways", "other socket", "DDIO off"];
    let second = [
        None,
        Some((2, DmaPath::Ddio)),
        Some((4, DmaPath::Ddio)),
        Some((2, DmaPath::OtherSocket)),
        Some((2, DmaPath::DdioDisabled)),
    ];
    let panels = [
        ("latency", "99th percentile of the important program", "us"),
        ("hits", "Hits of the important program", "%, writes of the card that hit"),
    ];
    let mut panels = panels.map(|(name, title, y_name)| {
        let labels = names.iter().map(ToString::to_string).collect();
        let panel = panel(name, title, ("the second program", y_name), labels);
        Panel { shape: Shape::Bars, scale: Scale::Linear, ..panel }
    });
    let mut measured = Vec::new();
    for descriptors in [256, 1024] {
        let important = Forwarder { rate_gbps: 98.0, ..forwarder(4, descriptors, 1500) };
        let mut outcomes = Vec::new();
        for second in second {
            let (ways, path) = second.unwrap_or((2, DmaPath::Ddio));
            let other = second.map(|_| Forwarder { path, ..important.clone() });
            let programs: Vec<Forwarder> =
                std::iter::once(important.clone()).chain(other).collect();
            outcomes.push(run(ways, 40, &programs)?);
        }
        let name = format!("{descriptors} descriptors");
        let latency = outcomes.iter().map(|one| one.latency_p99_ns / 1e3);
        panels[0].series.push(series(&name, latency));
        panels[1].series.push(series(&name, outcomes.iter().map(hits)));
        measured.push(outcomes);
    }
    let growth = |at: usize, of: &[ForwarderOutcome]| {
        100.0 * (of[at].latency_p99_ns / of[0].latency_p99_ns - 1.0)
    };
    let mut figure = figure(14, "A second program at 200 Gbit/s", panels.into());
    let [short, long] = &measured[..] else { anyhow::bail!("two lengths of rings") };
    figure.statements.push(statement(
        &format!("a second program in the same two ways raises p99 by up to {FIGURE_14_P99_GROWTH_PERCENT} %"),
        format!("by {:.1} % with rings of 256, {:.1} % with 1024", growth(1, short), growth(1, long)),
        growth(1, short).max(growth(1, long)) >= 0.8 * FIGURE_14_P99_GROWTH_PERCENT,
        "The model has no contention for memory channels: a miss costs the same time however many \
         there are.",
    ));
    figure.statements.push(statement(
        "a second program that passes the cache by leaves p99 as it is",
        format!(
            "{:+.1} % through the other socket, {:+.1} % with DDIO off (rings of 256)",
            growth(3, short),
            growth(4, short)
        ),
        growth(3, short).abs() <= 2.0 && growth(4, short).abs() <= 2.0,
        "The second program's own lines still take ways.",
    ));
    figure.statements.push(statement(
        "four ways are as good as passing the cache by",
        format!("hits {:.1} % and {:.1} %", hits(&short[2]), hits(&short[3])),
        hits(&short[2]) >= hits(&short[3]) - 1.0,
        "Four ways are too few for both.",
    ));
    Ok(figure)
}
