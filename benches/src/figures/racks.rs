//! Figure 16: throughput of each rack, by the number of racks.

use rackpool_report::figures::Figure;

use super::clients::clients;
use super::{ITEM, Sizes, load, panel, series, statement};
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
            let setting = Setting { racks, ..sizes.setting() };
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
    // The racks share this machine: what all of them do together is what can stay the same.
    let kept = |rates: &[f64]| rates[3] * 5.0 / (rates[0] * 2.0) * 100.0;
    let (ours, fastswap) = (kept(&all[0]), kept(&all[1]));
    let shared = "All racks share this machine's cores, so a rack's throughput falls with their \
                  number; and with more racks fewer of the items are in the own one.";
    Ok(Figure {
        number: 16,
        title: "Throughput of a rack by the number of racks".into(),
        setting: format!(
            "{} clients in each rack read, then write random items of 64 B of all racks.",
            sizes.rack_clients
        ),
        panels: vec![reads, writes],
        statements: vec![
            statement(
                "rackpool loses a little with more racks",
                format!("all five racks do {ours:.0} % of what two do"),
                ours >= 80.0,
                shared,
            ),
            statement(
                "Fastswap loses nothing",
                format!("all five racks do {fastswap:.0} % of what two do"),
                fastswap >= 90.0,
                shared,
            ),
        ],
        notes: vec![
            "GAM's path leaves out the messages to the other nodes that have a line, of which the \
             paper says that they cost GAM most here: its figures are upper bounds."
                .into(),
        ],
    })
}
