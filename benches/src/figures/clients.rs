//! Figure 15: throughput of all clients together, by their number.

use rackpool_report::figures::Figure;

use super::{ITEM, Sizes, TOO_FEW_CORES, has_cores, load, panel, series, statement};
use crate::baselines::{Kind, System};

pub(super) fn measure(sizes: &Sizes) -> anyhow::Result<Figure> {
    let mut setting = sizes.setting();
    setting.daemons.push(("--swap", "off".into()));
    let labels: Vec<String> = sizes.clients.iter().map(ToString::to_string).collect();
    let names = ("clients", "million operations/s");
    let mut reads = panel("reads", "Reads of 64 B", names, labels.clone());
    let mut writes = panel("writes", "Writes of 64 B", names, labels);
    let (reads_of, writes_of) = (load::reads(sizes.bytes, ITEM), load::writes(sizes.bytes, ITEM));
    let mut all = Vec::new();
    for kind in Kind::ALL {
        let system = kind.start(&setting)?;
        let (mut read, mut write) = (Vec::new(), Vec::new());
        for &count in sizes.clients {
            let rate = |operation: load::Operation<'_>| -> anyhow::Result<f64> {
                Ok(load::rate(&mut clients(&*system, count, 2)?, sizes.time, operation)? / 1e6)
            };
            read.push(rate(&reads_of)?);
            write.push(rate(&writes_of)?);
        }
        reads.series.push(series(kind.name(), read.clone()));
        writes.series.push(series(kind.name(), write));
        all.push(read);
    }
    let at = |count: usize| sizes.clients.iter().position(|clients| *clients == count).unwrap_or(0);
    let (one, four, many) = (at(1), at(4), at(16));
    let (growth, gam) = (all[0][many] / all[0][one], all[3][many] / all[3][four]);
    let is_testable = has_cores(16 + 2)?;
    Ok(Figure {
        number: 15,
        title: "Throughput by the number of clients".into(),
        setting: "Two racks; the clients read, then write random items of 64 B, half of them in \
                  each rack; pages stay where they are."
            .into(),
        panels: vec![reads, writes],
        statements: vec![
            statement(
                "Rcmp's throughput grows about linearly up to 16 clients",
                format!("{growth:.1} times with 16 clients"),
                is_testable && growth >= 11.0,
                if is_testable {
                    "One daemon in each rack serves all clients."
                } else {
                    TOO_FEW_CORES
                },
            ),
            statement(
                "GAM's throughput grows up to four clients, then little or not at all",
                format!("{gam:.1} times with 16 clients as with 4"),
                is_testable && gam < 1.5,
                if is_testable {
                    "Two clients rarely need the same of a node's 64 buckets."
                } else {
                    TOO_FEW_CORES
                },
            ),
        ],
        notes: Vec::new(),
    })
}

/// Clients of the racks in turn.
pub(super) fn clients(
    system: &dyn System,
    count: usize,
    racks: usize,
) -> anyhow::Result<Vec<Box<dyn crate::baselines::AccessPath>>> {
    (0..count).map(|client| system.client(client % racks)).collect()
}
