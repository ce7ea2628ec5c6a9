//! The part of the page that compares the pool with Redis on the same machine.

use std::fmt::Write as _;

use super::demo_run::DemoRun;
use super::escape::escaped;
use super::redis::Redis;
use rackpool_output::numbers::{counted, grouped, latency, rounded};
use rackpool_ycsb::WorkloadResult;

/// Returns the section of the page.
pub(super) fn section(run: &DemoRun) -> String {
    let (about, table) = match &run.redis {
        None => return String::new(),
        Some(Redis::NotCompared { why }) => {
            (format!("{why}: nothing is compared with Redis."), String::new())
        }
        Some(Redis::Compared { server, results }) => {
            (about(run, server, results), table(run, server, results))
        }
    };
    format!("<h2>Beside Redis on this machine</h2>\n<p>{}</p>\n{table}", escaped(&about))
}

/// The results of rackpool-kv; none if it was not run.
fn service(run: &DemoRun) -> &[WorkloadResult] {
    run.companions.as_ref().map_or(&[], |companions| &companions.service)
}

/// Describes what is compared.
fn about(run: &DemoRun, server: &str, results: &[WorkloadResult]) -> String {
    let setting = |first: &WorkloadResult| {
        let records = counted(first.records, "record", "records");
        format!("{records}, {}", counted(first.threads as u64, "client", "clients"))
    };
    let [own, of_redis, of_service] = [&run.results[..], results, service(run)]
        .map(|results| results.first().map(setting).unwrap_or_default());
    let mut text = format!(
        "Library calls are compared with a server that is reached by a socket. {server} \
         ({of_redis}) is one process without persistence that runs after the pool has stopped. Its \
         clients use a Unix socket and store records as YCSB's own Redis binding does: an insert is \
         two commands, a scan one for each record and one more, and each command is a round trip \
         with system calls in both processes. The library's clients ({own}) have no server between \
         them and the records: a read in the own rack is loads from shared memory, one in another \
         rack crosses the emulated fabric."
    );
    if !of_service.is_empty() {
        let _ = write!(
            text,
            " Like Redis, rackpool-kv ({of_service}) is a server and gets the same commands. It has \
             an instance in each rack: records lie in any of them, and instances, rack daemons and \
             clients share the cores of this machine."
        );
    }
    text
}

fn table(run: &DemoRun, server: &str, results: &[WorkloadResult]) -> String {
    let mut columns = vec![
        ("rackpool, library", &run.results[..]),
        ("rackpool-kv", service(run)),
        (server, results),
    ];
    columns.retain(|(_, results)| !results.is_empty());
    let over = columns
        .iter()
        .map(|(name, _)| format!("<th scope=\"colgroup\" colspan=\"3\">{}</th>", escaped(name)));
    let heads = ["Per second", "p50", "p99"].map(|name| format!("<th scope=\"col\">{name}</th>"));
    let mut text = format!(
        "<div class=\"card wide\">\n<table>\n<thead><tr><th></th>{}</tr>\n\
         <tr><th scope=\"col\">Workload</th>{}</tr></thead>\n",
        over.collect::<String>(),
        heads.concat().repeat(columns.len())
    );
    for result in results {
        let same =
            |of: &'_ [WorkloadResult]| of.iter().find(|other| other.name == result.name).map(cells);
        let cells =
            columns.iter().map(|(_, of)| same(of).unwrap_or_else(|| "<td>-</td>".repeat(3)));
        let (name, what) = (escaped(&result.name), escaped(&result.description()));
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "<tbody><tr><th scope=\"row\">{name}<small>{what}</small></th>{}</tr></tbody>",
            cells.collect::<String>()
        );
    }
    text + "</table>\n</div>\n"
}

fn cells(result: &WorkloadResult) -> String {
    let [p50, p99] = [result.overall.p50_ns, result.overall.p99_ns].map(|ns| latency(ns as f64));
    let rate = grouped(rounded(result.throughput));
    [rate, p50, p99].map(|value| format!("<td>{value}</td>")).concat()
}
