//! Figure 20: the throughput with swaps of hot pages, by their threshold.

use rackpool_report::figures::{Figure, Shape};

use super::{Sizes, panel, series, statement};
use crate::measure::median;
use crate::swap::{SWAP_OFF, Skew, course, load};

const THRESHOLDS: [&str; 6] = ["1", "2", "3", "4", "6", "8"];

pub(super) fn measure(sizes: &Sizes) -> anyhow::Result<Figure> {
    let mut labels = vec!["off".to_owned()];
    labels.extend(THRESHOLDS.map(|hot| format!("Hp {hot}")));
    let mut rates = panel("swap", "Items of 64 B", ("swaps", "million operations/s"), labels);
    rates.shape = Shape::Bars;
    let mut all = Vec::new();
    for (skew, name) in [(Skew::Uniform, "uniform"), (Skew::Zipfian, "Zipfian")] {
        let mut load = load(skew, 9);
        load.settle = sizes.settle;
        let rate = |more| -> anyhow::Result<f64> {
            let rounds = (0..sizes.rounds).map(|_| course(&[], Some(more), &load));
            let rates = rounds.map(|round| Ok(round?.throughput / 1e6));
            Ok(median(rates.collect::<anyhow::Result<_>>()?))
        };
        let mut values = vec![rate(SWAP_OFF)?];
        for hot in THRESHOLDS {
            values.push(rate(("--hot", hot))?);
        }
        rates.series.push(series(name, values.clone()));
        all.push(values);
    }
    // Places in the panel: off, Hp 1, Hp 2, Hp 3.
    let gain = |values: &[f64], place: usize| (values[place] / values[0] - 1.0) * 100.0;
    let [uniform, zipfian] = [&all[0], &all[1]].map(|values| gain(values, 3));
    let low = gain(&all[1], 1);
    Ok(Figure {
        id: "20".into(),
        title: "Swaps of hot pages".into(),
        setting: "Clients in both racks read and write items of 64 B; with a Zipfian distribution \
                  each rack has hot pages of its own."
            .into(),
        panels: vec![rates],
        statements: vec![
            statement(
                "Hp 3 gains 35 % with a Zipfian distribution",
                format!("{zipfian:.0} %"),
                zipfian >= 35.0,
                "The pages of both racks are as hot, so that few move.",
            ),
            statement(
                "Hp 3 gains 5 % with a uniform distribution",
                format!("{uniform:.0} %"),
                (0.0..15.0).contains(&uniform),
                "Another effect: clients do not wait between accesses, so the rack that is ahead by \
                 chance ends with all pages. Its client is fast then, and the other one slow.",
            ),
            statement(
                "the throughput drops with Hp 1",
                format!("{low:.0} % with a Zipfian distribution"),
                low < 0.0,
                "A page moves only if another rack uses it more than its own, and then rests: a low \
                 threshold does not make pages move to and fro.",
            ),
        ],
        notes: Vec::new(),
    })
}
