//! Figure 14: the mean time of a random access by its size.

use rackpool_report::figures::{Figure, Scale, Statement};

use super::{Sizes, load, panel, polling_daemons, series, statement};
use crate::baselines::{Kind, Setting};

const SIZES: [usize; 7] = [64, 128, 256, 512, 1024, 2048, 4096];
/// Accesses of a round.
const ACCESSES: u32 = 3000;
/// The least factors of the paper, at any size.
const READS: f64 = 2.7;
const WRITES: f64 = 2.3;

/// Times of reads and writes by size, of each system.
type Means = [Vec<(f64, f64)>; Kind::ALL.len()];

pub(super) fn measure(sizes: &Sizes) -> anyhow::Result<Figure> {
    let mut daemons = polling_daemons()?;
    // Random accesses from both racks leave pages where they are; here one rack has a client.
    daemons.push(("--swap", "off".into()));
    let mut means: Means = [const { Vec::new() }; Kind::ALL.len()];
    for item in SIZES {
        let daemons = daemons.clone();
        let setting = Setting { item, spins: true, daemons, ..sizes.setting() };
        for (kind, means) in Kind::ALL.into_iter().zip(&mut means) {
            let system = kind.start(&setting)?;
            let mut path = system.client(0)?;
            let mut mean = |operation: load::Operation<'_>| {
                load::mean_us(&mut *path, sizes.rounds, ACCESSES, operation)
            };
            let read = mean(&load::reads(setting.bytes, item))?;
            means.push((read, mean(&load::writes(setting.bytes, item))?));
        }
    }
    let names = ("bytes", "us, mean");
    let labels: Vec<String> = SIZES.iter().map(ToString::to_string).collect();
    let mut reads = panel("reads", "Reads", names, labels.clone());
    let mut writes = panel("writes", "Writes", names, labels);
    for (kind, means) in Kind::ALL.into_iter().zip(&means) {
        reads.series.push(series(kind.name(), means.iter().map(|mean| mean.0)));
        writes.series.push(series(kind.name(), means.iter().map(|mean| mean.1)));
    }
    (reads.scale, writes.scale) = (Scale::Log, Scale::Log);
    Ok(Figure {
        number: 14,
        title: "Access latency by size".into(),
        setting: "Two racks with half of the pages each; one client reads, then writes random items. \
                  rackpool's daemons poll on a core of their own, and an access to the own rack takes \
                  50 ns more, as in the paper's emulation."
            .into(),
        statements: statements(&means),
        panels: vec![reads, writes],
        notes: vec![
            "Fastswap's page faults are real ones (userfaultfd), handled by the thread that made \
             them."
                .into(),
        ],
    })
}

fn statements(means: &Means) -> Vec<Statement> {
    let [ours, others @ ..] = means;
    let factor = |of: fn(&(f64, f64)) -> f64, size: usize| {
        let factors = others.iter().map(|other| of(&other[size]) / of(&ours[size]));
        factors.fold(f64::INFINITY, f64::min)
    };
    let (read, write) = (factor(|mean| mean.0, 0), factor(|mean| mean.1, 0));
    let largest = |of: fn(&(f64, f64)) -> f64| ours.iter().map(of).fold(0.0, f64::max);
    let (most_read, most_write) = (largest(|mean| mean.0), largest(|mean| mean.1));
    let gam = |size: usize| others[2][size].0;
    let fastswap = others[0][0].0;
    vec![
        statement(
            "reads take others 2.7 to 8.1 times as long",
            format!("at 64 B at least {read:.1} times"),
            read >= READS,
            "FaRM's path is one one-sided read, and the measured thread polls for it; in the \
             paper it takes 8 us. Half of rackpool's reads take the fabric's time, too, so even \
             without any other cost the factor would be below 2.",
        ),
        statement(
            "writes take others 2.3 to 8.9 times as long",
            format!("at 64 B at least {write:.1} times"),
            write >= WRITES,
            "GAM's writes are posted, sixteen at a time, and nobody waits for them; rackpool's \
             have happened when they return.",
        ),
        statement(
            "reads below 3 us and writes below 3.5 us at every size",
            format!("at most {most_read:.1} and {most_write:.1} us"),
            most_read < 3.0 && most_write < 3.5,
            "The emulated fabric copies with the processor, and the client's daemon copies once \
             more: 4 KiB take longer than by a card.",
        ),
        statement(
            "GAM's reads are far slower above its line of 512 B",
            format!("{:.1} us at 512 B, {:.1} us at 4 KiB", gam(3), gam(6)),
            gam(6) > 3.0 * gam(3),
            "A line's request costs as much as the others'.",
        ),
        statement(
            "Fastswap takes more than 12 us, about 5.2 times as long",
            format!("a read of 64 B {fastswap:.1} us, {:.1} times", fastswap / ours[0].0),
            fastswap / ours[0].0 >= 4.0,
            "A fault reported through userfaultfd costs less here than the kernel's swap there.",
        ),
    ]
}
