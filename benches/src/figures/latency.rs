//! Figure 14: the mean time of a random access by its size.

use rackpool_report::figures::{Figure, Scale, Statement};

use super::{Sizes, load, polling_daemons, reads_and_writes, statement};
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
    let [mut reads, mut writes] =
        reads_and_writes(["Reads", "Writes"], ("bytes", "us, mean"), &SIZES, &means);
    (reads.scale, writes.scale) = (Scale::Log, Scale::Log);
    Ok(Figure {
        id: "14".into(),
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
    let ours = &means[0];
    // The least and the largest factor of a system, and the names of those below a factor.
    let factors = |of: fn(&(f64, f64)) -> f64, least: f64| {
        let of_system = |kind: usize| means[kind].iter().zip(ours).map(|(a, b)| of(a) / of(b));
        let (mut range, mut below) = ((f64::INFINITY, 0.0_f64), Vec::new());
        for (number, kind) in Kind::ALL.iter().enumerate().skip(1) {
            let of_kind = of_system(number);
            let (low, high) =
                of_kind.fold((f64::INFINITY, 0.0_f64), |(a, b), one| (a.min(one), b.max(one)));
            range = (range.0.min(low), range.1.max(high));
            if low < least {
                below.push(format!("{} {low:.1}", kind.name()));
            }
        }
        (range, below)
    };
    let (read, slow_reads) = factors(|mean| mean.0, READS);
    let (write, slow_writes) = factors(|mean| mean.1, WRITES);
    let largest = |of: fn(&(f64, f64)) -> f64| ours.iter().map(of).fold(0.0, f64::max);
    let (most_read, most_write) = (largest(|mean| mean.0), largest(|mean| mean.1));
    let gam = |size: usize| means[3][size].0;
    let fastswap = means[1][0].0;
    let bare = "The paths alone are far quicker than the systems, of which FaRM takes 8 us in the \
                paper.";
    vec![
        statement(
            "the others' reads take 2.7 to 8.1 times as long",
            format!(
                "{:.1} to {:.1} times; at 64 B rackpool takes {own:.2} us in the own rack, \
                 {other:.2} us in the other",
                read.0, read.1
            ),
            slow_reads.is_empty(),
            &format!("Least for {}. {bare}", slow_reads.join(", ")),
        ),
        statement(
            "the others' writes take 2.3 to 8.9 times as long",
            format!("{:.1} to {:.1} times", write.0, write.1),
            slow_writes.is_empty(),
            &format!(
                "Least for {}. {bare} GAM's writes are posted and nobody waits for them; rackpool's \
                 have happened when they return.",
                slow_writes.join(", ")
            ),
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
