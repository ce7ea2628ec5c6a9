//! Published figures again. Figures 14 to 22 of the Rcmp paper are measured: rackpool beside the
//! access paths of other systems (`baselines`) and beside itself without a technique.
//! docs/design/figures.md says what each figure runs, and where it differs from the paper. Those of
//! the DDIO paper and of the NUMA paper come from models: docs/design/direct-cache-access.md and
//! docs/design/numa-model.md.

mod clients;
mod dca;
mod hot_pages;
mod ladder;
mod latency;
mod load;
mod numa;
mod racks;
mod requests;
mod rings;
mod write_buffer;
mod ycsb;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::Parser;
use rackpool_report::figures::{
    Figure, FiguresRun, Panel, Scale, Series, Shape, Statement, Verdict,
};

use crate::baselines::{Kind, Setting};
use crate::cpu::of_process;

/// What the measurement of a figure returns, by the figure's id.
type Measure = fn(&Sizes) -> anyhow::Result<Figure>;

const FIGURES: [(&str, Measure); 20] = [
    ("14", latency::measure),
    ("15", clients::measure),
    ("16", racks::measure),
    ("17", ycsb::measure),
    ("18", ladder::measure),
    ("19", rings::measure),
    ("20", hot_pages::measure),
    ("21", write_buffer::measure),
    ("22", requests::measure),
    ("ddio-3", dca::overlap),
    ("ddio-5", dca::ways),
    ("ddio-6", dca::descriptors),
    ("ddio-10", dca::cores),
    ("ddio-11", dca::ways_and_cores),
    ("ddio-12", dca::imbalance),
    ("ddio-14", dca::bypass),
    ("numa-3", numa::latency),
    ("numa-4", numa::size),
    ("numa-5", numa::workers),
    ("numa-6", numa::requests),
];

/// Measures figures 14 to 22 of the Rcmp paper again, beside the access paths of other systems, and
/// simulates those of the DDIO and the NUMA paper
#[derive(Debug, Parser)]
#[command(name = "cargo x figures")]
pub struct Arguments {
    /// Figures: 14 to 22, ddio-3, ddio-5, numa-3 and others [default: all]
    figures: Vec<String>,
    /// Folder of the data, the plots and the page; files of an earlier run are replaced
    #[arg(long, value_name = "DIR", default_value = "target/figures")]
    out: PathBuf,
    /// Sizes for a machine with a core for each thread: more memory, clients and time. Without it
    /// all figures take about 8 minutes on two cores
    #[arg(long)]
    full: bool,
}

/// The sizes of all figures.
struct Sizes {
    /// Bytes of the memory of all racks.
    bytes: u64,
    /// Numbers of clients in figure 15.
    clients: &'static [usize],
    /// Clients of each rack in figure 16, and clients in figures 17 and 18.
    rack_clients: usize,
    /// Time of one measurement of throughput.
    time: Duration,
    /// Time in which hot pages move before a measurement.
    settle: Duration,
    /// Measurements of which the median counts.
    rounds: usize,
}

const DEFAULT: Sizes = Sizes {
    bytes: 64 << 20,
    clients: &[1, 2, 4, 8, 16],
    rack_clients: 2,
    time: Duration::from_millis(400),
    settle: Duration::from_millis(2500),
    rounds: 3,
};

const FULL: Sizes = Sizes {
    bytes: 1 << 30,
    clients: &[1, 2, 4, 8, 16, 32],
    rack_clients: 8,
    time: Duration::from_secs(2),
    settle: Duration::from_secs(10),
    rounds: 10,
};

/// Bytes of an item, if a figure does not vary them: the paper's.
const ITEM: usize = 64;
/// The fabric's latency: in the middle of the paper's 1.5 to 3 us.
const LATENCY: Duration = Duration::from_micros(2);

impl Sizes {
    /// A system of two racks as the figures start it.
    fn setting(&self) -> Setting {
        Setting {
            bytes: self.bytes,
            item: ITEM,
            racks: 2,
            homes: 2,
            latency: LATENCY,
            spins: false,
            daemons: Vec::new(),
        }
    }
}

/// Arguments of daemons that poll on a core of their own.
fn polling_daemons() -> anyhow::Result<Vec<(&'static str, String)>> {
    let cpu = of_process()?.get(1).copied().context("one core only: a daemon needs its own")?;
    Ok(vec![("--cpu", cpu.to_string()), ("--poll-ms", "1".into())])
}

/// Measures the figures and writes the page.
///
/// # Errors
/// If a figure's number is unknown, a measurement fails, or a file can't be written.
pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let known = FIGURES.map(|(id, _)| id);
    for id in &arguments.figures {
        ensure!(known.contains(&id.as_str()), "no figure {id}: there are {}", known.join(", "));
    }
    let sizes = if arguments.full { &FULL } else { &DEFAULT };
    let (mut figures, mut missing) = (Vec::new(), Vec::new());
    eprintln!("figures are measured: other programs on this machine disturb them");
    for (id, measure) in FIGURES {
        if !arguments.figures.is_empty() && !arguments.figures.iter().any(|one| one == id) {
            continue;
        }
        let start = Instant::now();
        // A thread of its own, since figures bind their thread to cores.
        let figure = std::thread::scope(|scope| scope.spawn(|| measure(sizes)).join())
            .unwrap_or_else(|_| Err(anyhow::anyhow!("it panicked")));
        match figure {
            Ok(figure) => {
                print_figure(&figure, start.elapsed());
                figures.push(figure);
            }
            // The others are measured and written all the same.
            Err(error) => {
                eprintln!("figure {id} is missing: {error:#}");
                missing.push(id);
            }
        }
    }
    ensure!(!figures.is_empty(), "nothing was measured");
    let verdicts: Vec<Verdict> =
        figures.iter().flat_map(|figure| &figure.statements).map(|one| one.verdict).collect();
    let count = |wanted| verdicts.iter().filter(|verdict| **verdict == wanted).count();
    let written = rackpool_report::figures::write(&arguments.out, &page(arguments, figures)?)?;
    println!(
        "\nof {} published statements {} hold here, {} do not, and {} are not testable on this \
         machine; the page says why",
        verdicts.len(),
        count(Verdict::Agrees),
        count(Verdict::Differs),
        count(Verdict::Untestable)
    );
    println!("written to {}", written.html.display());
    ensure!(missing.is_empty(), "not measured: figure {}", missing.join(", "));
    Ok(())
}

fn page(arguments: &Arguments, figures: Vec<Figure>) -> anyhow::Result<FiguresRun> {
    let ids: String = arguments.figures.iter().map(|id| format!(" {id}")).collect();
    let full = if arguments.full { " --full" } else { "" };
    Ok(FiguresRun {
        title: "rackpool: published figures, measured again".into(),
        started: started()?,
        machine: rackpool_report::machine_facts(),
        figures,
        commands: vec![format!("cargo x figures{ids}{full}")],
        notes: vec![
            "The other systems are their access paths, written anew after what was published of \
             them: one-sided operations, messages and caches over the fabric that rackpool uses, \
             without recovery, allocation or replicas."
                .into(),
            "A statement of a gain agrees if the gain is at least what the paper says."
                .into(),
            "The fabric is emulated: shared memory with a latency of 2 us and 100 Gbit/s. A one-sided \
             operation takes this latency once, a request and its answer twice: a path of messages \
             takes longer here than over a card. All processes run on this machine."
                .into(),
        ],
    })
}

fn started() -> anyhow::Result<String> {
    let date = std::process::Command::new("date").arg("+%Y-%m-%d %H:%M").output();
    let text = String::from_utf8(date.context("can't run date")?.stdout)?;
    Ok(text.trim().to_owned())
}

fn print_figure(figure: &Figure, took: Duration) {
    println!("\nfigure {}: {} ({:.0} s)", figure.id, figure.title, took.as_secs_f64());
    for panel in &figure.panels {
        println!("  {}: {} by {}", panel.title, panel.y_name, panel.x_name);
        let width = panel.series.iter().map(|series| series.name.len()).max().unwrap_or(0);
        let column = panel.x.iter().map(|label| label.len() + 2).max().unwrap_or(0).max(11);
        let cells = |values: Vec<String>| {
            values.iter().map(|v| format!("{v:>column$}")).collect::<String>()
        };
        println!("    {:width$} {}", "", cells(panel.x.clone()));
        for series in &panel.series {
            let shown =
                |value: &Option<f64>| value.map_or("-".into(), |value| format!("{value:.2}"));
            println!(
                "    {:width$} {}",
                series.name,
                cells(series.values.iter().map(shown).collect())
            );
        }
    }
    for Statement { paper, measured, verdict, cause } in &figure.statements {
        let sign = match verdict {
            Verdict::Agrees => '=',
            Verdict::Differs => '!',
            Verdict::Untestable => '?',
        };
        println!("  {sign} the paper: {paper}; here: {measured}");
        if let Some(cause) = cause {
            println!("      {cause}");
        }
    }
}

/// Lines over sizes or numbers.
fn panel(name: &str, title: &str, (x_name, y_name): (&str, &str), x: Vec<String>) -> Panel {
    Panel {
        name: name.into(),
        title: title.into(),
        x_name: x_name.into(),
        y_name: y_name.into(),
        shape: Shape::Lines,
        scale: Scale::Linear,
        x,
        series: Vec::new(),
    }
}

/// Panels of reads and writes: lines by size or number for each system.
fn reads_and_writes(
    what: [&str; 2],
    names: (&str, &str),
    x: &[usize],
    systems: &[Vec<(f64, f64)>],
) -> [Panel; 2] {
    let labels: Vec<String> = x.iter().map(ToString::to_string).collect();
    let mut reads = panel("reads", what[0], names, labels.clone());
    let mut writes = panel("writes", what[1], names, labels);
    for (kind, values) in Kind::ALL.into_iter().zip(systems) {
        reads.series.push(series(kind.name(), values.iter().map(|one| one.0)));
        writes.series.push(series(kind.name(), values.iter().map(|one| one.1)));
    }
    [reads, writes]
}

fn series(name: &str, values: impl IntoIterator<Item = f64>) -> Series {
    let measured = |value: f64| value.is_finite().then_some(value);
    Series { name: name.into(), values: values.into_iter().map(measured).collect() }
}

/// What the paper states, and what was measured; `cause` is shown if it does not agree.
fn statement(paper: &str, measured: String, agrees: bool, cause: &str) -> Statement {
    let cause = (!agrees).then(|| cause.to_owned());
    let verdict = if agrees { Verdict::Agrees } else { Verdict::Differs };
    Statement { paper: paper.into(), measured, verdict, cause }
}

/// A statement about how programs scale: it can't be tested unless each of `threads` has a core.
fn with_cores(threads: usize, statement: Statement) -> anyhow::Result<Statement> {
    let cores = of_process()?.len();
    if cores >= threads {
        return Ok(statement);
    }
    let cause = format!("{threads} clients and daemons share {cores} cores.");
    Ok(Statement { verdict: Verdict::Untestable, cause: Some(cause), ..statement })
}
