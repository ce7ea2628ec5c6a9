//! Figure 15: throughput of all clients together, by their number.

use rackpool_report::figures::Figure;

use super::{Sizes, load, reads_and_writes, statement, with_cores};
use crate::baselines::Kind;

pub(super) fn measure(sizes: &Sizes) -> anyhow::Result<Figure> {
    let mut setting = sizes.setting();
    setting.daemons.push(("--swap", "off".into()));
    let mut all = Vec::new();
    for kind in Kind::ALL {
        let system = kind.start(&setting)?;
        let rates = sizes.clients.iter().map(|count| {
            let (read, write) = load::rates(&*system, *count, setting.racks, sizes)?;
            Ok((read / 1e6, write / 1e6))
        });
        all.push(rates.collect::<anyhow::Result<Vec<_>>>()?);
    }
    let at = |count: usize| sizes.clients.iter().position(|clients| *clients == count).unwrap_or(0);
    let (one, four, many) = (at(1), at(4), at(16));
    let growth = |system: usize, from: usize, to: usize| all[system][to].0 / all[system][from].0;
    let (ours, to_four, to_many) =
        (growth(0, one, many), growth(3, one, four), growth(3, four, many));
    // The clients, and a daemon or home of each rack.
    let threads = 16 + 2;
    Ok(Figure {
        id: "15".into(),
        title: "Throughput by the number of clients".into(),
        setting: "Two racks; the clients read, then write random items of 64 B, half of which are \
                  in each rack; pages stay where they are."
            .into(),
        panels: reads_and_writes(
            ["Reads of 64 B", "Writes of 64 B"],
            ("clients", "million operations/s"),
            sizes.clients,
            &all,
        )
        .into(),
        statements: vec![
            with_cores(
                threads,
                statement(
                    "Rcmp's throughput grows about linearly up to 16 clients",
                    format!("{ours:.1} times with 16 clients"),
                    ours >= 11.0,
                    "One daemon in each rack serves all clients.",
                ),
            )?,
            with_cores(
                threads,
                statement(
                    "GAM's throughput grows up to four clients, then little or not at all",
                    format!(
                        "{to_four:.1} times with 4 clients, from there {to_many:.1} times with 16"
                    ),
                    to_four >= 2.0 && to_many < 1.5,
                    "Two clients rarely need the same of a node's 64 buckets.",
                ),
            )?,
        ],
        notes: vec![
            "Clients are threads of one process here. Fastswap's are programs of their own: their \
             page faults do not share an address space."
                .into(),
        ],
    })
}
