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
    let mut by_rack = [0.0; 2];
    for item in SIZES {
        let daemons = daemons.clone();
        let setting = Setting { item, homes: 1, spins: true, daemons, ..sizes.setting() };
        for (kind, means) in Kind::ALL.into_iter().zip(&mut means) {
            let system = kind.start(&setting)?;
            let mut path = system.client(0)?;
            let mut mean = |operation: load::Operation<'_>| {
                load::mean_us(&mut *path, sizes.rounds, ACCESSES, operation)
            };
            let read = mean(&load::reads(setting.bytes, item))?;
            means.push((read, mean(&load::writes(setting.bytes, item))?));
            if kind == Kind::Rackpool && item == SIZES[0] {
                for (rack, time) in by_rack.iter_mut().enumerate() {
                    *time = mean(&load::reads_of_rack(setting.bytes, item, rack as u64))?;
                }
            }
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
        statements: statements(&means, by_rack),
        panels: vec![reads, writes],
        notes: vec![
            "Fastswap's page faults are real ones (userfaultfd), handled by the thread that made \
             them. A signal, a copy into place and the removal of another page enter the kernel \
             three times more than Fastswap, which reclaims pages on another core."
                .into(),
        ],
    })
}

fn statements(means: &Means, [own, other]: [f64; 2]) -> Vec<Statement> {
    let [ours, others @ ..] = means;
    // The factors of all systems at all sizes: the least and the largest.
    let factors = |of: fn(&(f64, f64)) -> f64| {
        let all = others.iter().flat_map(|other| other.iter().zip(ours));
        all.map(|(other, ours)| of(other) / of(ours))
            .fold((f64::INFINITY, 0.0_f64), |(least, most), one| (least.min(one), most.max(one)))
    };
    let (read, write) = (factors(|mean| mean.0), factors(|mean| mean.1));
    let largest = |of: fn(&(f64, f64)) -> f64| ours.iter().map(of).fold(0.0, f64::max);
    let (most_read, most_write) = (largest(|mean| mean.0), largest(|mean| mean.1));
    let gam = |size: usize| others[2][size].0;
    let fastswap = others[0][0].0;
    vec![
        statement(
            "reads take others 2.7 to 8.1 times as long",
            format!(
                "{:.1} to {:.1} times; at 64 B rackpool takes {own:.2} us in the own rack, \
                 {other:.2} us in the other",
                read.0, read.1
            ),
            read.0 >= READS,
            "FaRM's path is one one-sided read that the client itself posts and polls for: little \
             more than the fabric's 2 us, where the system takes 8 us in the paper. rackpool's \
             client asks its daemon to read from the other rack, which takes two passes between \
             cores more.",
        ),
        statement(
            "writes take others 2.3 to 8.9 times as long",
            format!("{:.1} to {:.1} times", write.0, write.1),
            write.0 >= WRITES,
            "GAM's writes are posted, sixteen at a time, and nobody waits for them; rackpool's have \
             happened when they return.",
        ),
        statement(
            "reads below 3 us and writes below 3.5 us at every size",
            format!("at most {most_read:.1} and {most_write:.1} us"),
            most_read < 3.0 && most_write < 3.5,
            "The emulated fabric copies with the processor: long items take longer than over a card.",
        ),
        statement(
            "GAM's reads are far slower above its line of 512 B",
            format!("{:.1} us at 512 B, {:.1} us at 4 KiB", gam(3), gam(6)),
            gam(6) > 3.0 * gam(3),
            "An item's lines are requested one after the other; the fabric is quick.",
        ),
        statement(
            "Fastswap takes more than 12 us, about 5.2 times as long",
            format!("a read of 64 B {fastswap:.1} us, {:.1} times", fastswap / ours[0].0),
            fastswap > 12.0 && (fastswap / ours[0].0 - 5.2).abs() < 1.5,
            "Another processor, kernel and fabric: the factor compares, not the time.",
        ),
    ]
}
