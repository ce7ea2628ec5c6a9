//! The report's HTML page.

use std::fmt::Write as _;

use super::companions::Companions;
use super::demo_run::DemoRun;
use super::escape::escaped;
use super::page::{commands, document, fact_card, inline, list};
use super::redis::Redis;
use super::redis_section;
use rackpool_output::numbers::{counted, grouped, latency, rounded};
use rackpool_ycsb::{LatencySummary, WorkloadResult};

/// Notes that hold for every run; the page adds them to those of the run.
const NOTES: [&str; 5] = [
    "Rates are operations divided by the whole time of a workload, from its first start to its last \
     end, for a rack as well: so the racks' rates add up to the workload's. Of a \
     workload's operations each worker takes the next one when it is free; of the records to load each \
     has the same number, and a rack that is done sooner waits for the others. Lines over time end when \
     the first worker is done.",
    "Each value that is read is verified. A scan reads some 50 values and counts as one operation, an \
     insert or update reads none: so there may be more verified values than operations, or fewer.",
    "Latencies are those a worker thread sees, from its call to the answer: on a machine with \
     fewer cores than busy threads (workers, daemons, servers) they include waiting for a core, \
     which shows in the tail first.",
    "Each worker starts its next operation when the last one is done (a closed loop), so a stall \
     delays the operations after it instead of counting against them.",
    "Keys, mixes and distributions are YCSB's; its random numbers are not, so single keys differ \
     from those of its Java client while their frequencies agree.",
];

/// Returns the page with the SVG document and caption of each plot embedded.
pub(super) fn page(run: &DemoRun, plots: &[(String, String)]) -> String {
    let main = format!(
        "{}<h2>Results</h2>\n{}{}{}<h2>Plots</h2>\n{}<h2>What was run, and where</h2>\n{}\
         <h2>Notes</h2>\n{}{}",
        problems(run),
        table(&run.results),
        run.companions.as_ref().map(companions).unwrap_or_default(),
        redis_section::section(run),
        plot_list(plots),
        facts(run),
        notes(run),
        commands(&run.commands),
    );
    document(&run.title, &run.started, &tiles(run), &main)
}

fn tiles(run: &DemoRun) -> String {
    let results = &run.results;
    let fastest = results.iter().max_by(|a, b| a.throughput.total_cmp(&b.throughput));
    let operations: u64 = results.iter().map(|result| result.operations).sum();
    let verified: u64 = results.iter().map(|result| result.verified).sum();
    let mut tiles = Vec::new();
    if let Some(fastest) = fastest {
        let rate = grouped(rounded(fastest.throughput));
        tiles.push((rate, format!("operations/s in {}, the fastest", fastest.name)));
        let median = latency(fastest.overall.p50_ns as f64);
        tiles.push((median, format!("median latency in {}", fastest.name)));
    }
    tiles.push((grouped(operations), "operations in all".to_owned()));
    if verified > 0 {
        let corrupt: u64 = results.iter().map(|result| result.corrupt).sum();
        let what = if verified > operations {
            "values verified (a scan reads many)"
        } else {
            "values verified"
        };
        tiles.push((grouped(verified), format!("{what}, {} wrong", grouped(corrupt))));
    }
    let tile = |(value, name): &(String, String)| {
        format!(
            "<div class=\"card\"><b>{}</b><span>{}</span></div>\n",
            escaped(value),
            escaped(name)
        )
    };
    format!("<div class=\"tiles\">\n{}</div>\n", tiles.iter().map(tile).collect::<String>())
}

fn problems(run: &DemoRun) -> String {
    let service = run.companions.iter().flat_map(|companions| &companions.service);
    let redis = run.redis.iter().flat_map(Redis::results);
    let all = run.results.iter().chain(service).chain(redis);
    let problems: Vec<_> = all.flat_map(WorkloadResult::problems).collect();
    if problems.is_empty() {
        return String::new();
    }
    format!("<section class=\"card bad\">\n<h2>Not clean</h2>\n{}</section>\n", list(&problems))
}

fn table(results: &[WorkloadResult]) -> String {
    const HEADINGS: [&str; 9] =
        ["Workload", "Operations", "Per second", "Mean", "p50", "p95", "p99", "p99.9", "Max"];
    let heads = HEADINGS.map(|heading| format!("<th scope=\"col\">{heading}</th>")).concat();
    let mut text = format!("<div class=\"card wide\">\n<table>\n<thead><tr>{heads}</tr></thead>\n");
    for result in results {
        let what = escaped(&result.description());
        let name = format!("{}<small>{what}</small>", escaped(&result.name));
        text.push_str("<tbody>\n");
        row(&mut text, &name, Some(result.throughput), &result.overall);
        if result.by_operation.len() > 1 {
            for kind in &result.by_operation {
                row(&mut text, &escaped(&kind.operation), None, &kind.latency);
            }
        }
        if result.by_rack.len() > 1 {
            for rack in &result.by_rack {
                let from = format!("from rack {}", rack.rack);
                row(&mut text, &from, Some(rack.throughput), &rack.overall);
            }
        }
        text.push_str("</tbody>\n");
    }
    text + "</table>\n</div>\n"
}

fn companions(run: &Companions) -> String {
    let mut text = String::new();
    if !run.service.is_empty() {
        text.push_str("<h2>Through Redis' protocol: rackpool-kv in every rack</h2>\n");
        text.push_str(&table(&run.service));
    }
    if !run.mount.is_empty() {
        text.push_str("<h2>Through a mount: rackpool-fuse in every rack</h2>\n");
        text.push_str("<div class=\"card wide\">\n<table>\n<tbody>\n");
        for step in &run.mount {
            let (what, amount) = (escaped(&step.what), escaped(&step.amount()));
            let (rate, time) = (escaped(&step.rate()), latency(step.seconds * 1e9));
            let _ = writeln!(
                text,
                "<tr><th scope=\"row\">{amount}<small>{what}</small></th><td>{rate}</td><td>{time}</td></tr>"
            );
        }
        text.push_str("</tbody>\n</table>\n</div>\n");
    }
    if !run.left_out.is_empty() {
        text.push_str("<h2>Left out on this machine</h2>\n");
        text.push_str(&list(&run.left_out));
    }
    text
}

fn row(text: &mut String, name: &str, rate: Option<f64>, times: &LatencySummary) {
    let rate = rate.map(|rate| grouped(rounded(rate))).unwrap_or_default();
    let whole = [times.p50_ns, times.p95_ns, times.p99_ns, times.p999_ns, times.max_ns];
    let times_ns = std::iter::once(times.mean_ns).chain(whole.map(|ns| ns as f64));
    let cells: String = times_ns.map(|ns| format!("<td>{}</td>", latency(ns))).collect();
    let count = grouped(times.count);
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "<tr><th scope=\"row\">{name}</th><td>{count}</td><td>{rate}</td>{cells}</tr>"
    );
}

fn plot_list(plots: &[(String, String)]) -> String {
    let plot = |(caption, drawing): &(String, String)| {
        format!("<figure class=\"card\">\n{}</figure>\n", inline(drawing, caption))
    };
    plots.iter().map(plot).collect()
}

fn facts(run: &DemoRun) -> String {
    let mut bench = Vec::new();
    if let Some(first) = run.results.first() {
        let names: Vec<_> = run.results.iter().map(|result| result.name.as_str()).collect();
        bench.push(("Workloads".to_owned(), names.join(", ")));
        bench.push(("Records".to_owned(), grouped(first.records)));
        bench.push(("Value".to_owned(), format!("{} B", grouped(first.value_bytes as u64))));
        bench.push((
            "Threads".to_owned(),
            format!("{} in {}", first.threads, counted(first.racks as u64, "rack", "racks")),
        ));
    }
    let sections: String = [
        ("Machine", run.machine.as_slice()),
        ("Pool", run.pool.as_slice()),
        ("Benchmark", bench.as_slice()),
    ]
    .into_iter()
    .filter(|(_, facts)| !facts.is_empty())
    .map(|(name, facts)| fact_card(name, facts))
    .collect();
    format!("<div class=\"facts\">\n{sections}</div>\n")
}

fn notes(run: &DemoRun) -> String {
    let notes: Vec<_> =
        run.notes.iter().map(String::as_str).chain(NOTES).map(str::to_owned).collect();
    list(&notes)
}
