//! Figure 16: throughput of each rack, by the number of racks.

use rackpool_report::figures::Figure;

use super::clients::clients;
use super::{ITEM, Sizes, TOO_FEW_CORES, has_cores, load, panel, series, statement};
use crate::baselines::{Kind, Setting};

const RACKS: [usize; 4] = [2, 3, 4, 5];

pub(super) fn measure(sizes: &Sizes) -> anyhow::Result<Figure> {
    let labels: Vec<String> = RACKS.iter().map(ToString::to_string).collect();
    let names = ("racks", "thousand operations/s of a rack");
    let mut reads = panel("reads", "Reads of 64 B", names, labels.clone());
    let mut writes = panel("writes", "Writes of 64 B", names, labels);
    let (reads_of, writes_of) = (load::reads(sizes.bytes, ITEM), load::writes(sizes.bytes, ITEM));
    let mut all = Vec::new();
    for kind in Kind::ALL {
        let (mut read, mut write) = (Vec::new(), Vec::new());
        for racks in RACKS {
            let daemons = vec![("--swap", "off".to_owned())];
            let setting = Setting { racks, homes: racks, daemons, ..sizes.setting() };
            let system = kind.start(&setting)?;
            let rate = |operation: load::Operation<'_>| -> anyhow::Result<f64> {
                let mut clients = clients(&*system, racks * sizes.rack_clients, racks)?;
                Ok(load::rate(&mut clients, sizes.time, operation)? / 1e3 / racks as f64)
            };
            read.push(rate(&reads_of)?);
            write.push(rate(&writes_of)?);
        }
        reads.series.push(series(kind.name(), read.clone()));
        writes.series.push(series(kind.name(), write));
        all.push(read);
    }
    // A rack's throughput with five racks, of that with two.
    let kept = |rates: &[f64]| rates[3] / rates[0] * 100.0;
    let (ours, fastswap) = (kept(&all[0]), kept(&all[1]));
    let is_testable = has_cores(5 * (sizes.rack_clients + 1))?;
    let cause = if is_testable {
        "All clients of this machine share its memory and its kernel; rackpool's also find fewer items in the own rack."
    } else {
        TOO_FEW_CORES
    };
    Ok(Figure {
        number: 16,
        title: "Throughput of a rack by the number of racks".into(),
        setting: format!(
            "{} clients in each rack read, then write random items of 64 B of all racks; pages stay where they are.",
            sizes.rack_clients
        ),
        panels: vec![reads, writes],
        statements: vec![
            statement(
                "Rcmp loses a little with more racks",
                format!("a rack keeps {ours:.0} % with five racks"),
                is_testable && ours >= 70.0,
                cause,
            ),
            statement(
                "Fastswap loses nothing",
                format!("a rack keeps {fastswap:.0} % with five racks"),
                is_testable && fastswap >= 90.0,
                cause,
            ),
        ],
        notes: vec![
            "GAM's path leaves out the messages to the other nodes that have a line, of which the \
             paper says that they cost GAM most here: its figures are upper bounds."
                .into(),
        ],
    })
}
