//! Figure 16: throughput of each rack, by the number of racks.

use rackpool_report::figures::Figure;

use super::{Sizes, load, reads_and_writes, statement, with_cores};
use crate::baselines::{Kind, Setting};

const RACKS: [usize; 4] = [2, 3, 4, 5];

pub(super) fn measure(sizes: &Sizes) -> anyhow::Result<Figure> {
    let mut all = Vec::new();
    for kind in Kind::ALL {
        let rates = RACKS.into_iter().map(|racks| {
            let daemons = vec![("--swap", "off".to_owned())];
            let system =
                kind.start(&Setting { racks, homes: racks, daemons, ..sizes.setting() })?;
            let (read, write) = load::rates(&*system, racks * sizes.rack_clients, racks, sizes)?;
            Ok((read / 1e3 / racks as f64, write / 1e3 / racks as f64))
        });
        all.push(rates.collect::<anyhow::Result<Vec<_>>>()?);
    }
    // A rack's throughput with five racks, of that with two.
    let kept = |system: usize| all[system][3].0 / all[system][0].0 * 100.0;
    let (ours, fastswap) = (kept(0), kept(1));
    // Clients, and a daemon or home of each rack.
    let threads = 5 * (sizes.rack_clients + 1);
    Ok(Figure {
        id: "16".into(),
        title: "Throughput of a rack by the number of racks".into(),
        setting: format!(
            "{} clients in each rack read, then write random items of 64 B of all racks; pages stay \
             where they are.",
            sizes.rack_clients
        ),
        panels: reads_and_writes(
            ["Reads of 64 B", "Writes of 64 B"],
            ("racks", "thousand operations/s of a rack"),
            &RACKS,
            &all,
        )
        .into(),
        statements: vec![
            with_cores(
                threads,
                statement(
                    "Rcmp loses a little with more racks",
                    format!("a rack keeps {ours:.0} % with five racks"),
                    ours >= 70.0,
                    "With more racks fewer of the items are in the own one.",
                ),
            )?,
            with_cores(
                threads,
                statement(
                    "Fastswap loses nothing",
                    format!("a rack keeps {fastswap:.0} % with five racks"),
                    fastswap >= 90.0,
                    "Clients are threads of one process here, and their page faults share its \
                     address space.",
                ),
            )?,
        ],
        notes: vec![
            "GAM's path leaves out the messages to the other nodes that have a line; the paper says \
             that coherence costs GAM more with more racks: its figures are upper bounds."
                .into(),
        ],
    })
}
