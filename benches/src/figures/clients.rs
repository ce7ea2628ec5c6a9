//! Figure 15: throughput of all clients together, by their number.

use rackpool_report::figures::Figure;

use super::{ITEM, Sizes, load, panel, series, statement};
use crate::baselines::{Kind, System};
use crate::cpu::of_process;

pub(super) fn measure(sizes: &Sizes) -> anyhow::Result<Figure> {
    let setting = sizes.setting();
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
    let cores = of_process()?.len();
    // The largest number of clients that have a core each, beside two for daemons.
    let most = sizes.clients.iter().rposition(|count| count + 2 <= cores).unwrap_or(0);
    let growth = all[0][most] / all[0][0];
    let clients = sizes.clients[most];
    let last = sizes.clients.len() - 1;
    let four = sizes.clients.iter().position(|count| *count == 4).unwrap_or(last);
    let gam = all[3][last] / all[3][four];
    let linear = 0.7 * sizes.clients[most.max(1)] as f64;
    Ok(Figure {
        number: 15,
        title: "Throughput by the number of clients".into(),
        setting: "Two racks; the clients read, then write random items of 64 B, half of them in \
                  each rack."
            .into(),
        panels: vec![reads, writes],
        statements: vec![
            statement(
                "rackpool's throughput grows with its clients, up to 16",
                format!("{growth:.1} times with {clients} clients, on {cores} cores"),
                growth >= linear,
                "The clients and the two racks' daemons share the cores of this machine: there is \
                 none for a second client.",
            ),
            statement(
                "GAM's throughput grows up to four clients, then little or not at all",
                format!("{gam:.2} times with {} clients as with 4", sizes.clients[last]),
                gam < 1.5,
                "The nodes' locks are short here, and there are cores for more clients.",
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
