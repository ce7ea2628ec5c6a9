//! `cargo x`: the checks and chores of this workspace. `cargo x ci` is what CI runs.

mod abi;
mod fuzz;
mod invocation;
mod lab;
mod limit;
mod manifest;
mod plasma;
mod python;
mod runner;
mod skipped;
mod steps;
mod tidy;
mod tree;
mod virtual_environment;

use std::env;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use skipped::Skipped;

const USAGE: &str = "\
usage: cargo x <command>

  ci [--strict]  every check that CI runs; writes nothing but build output; --strict fails when
                 a test was skipped for a reason that it does not know
  fix            let clippy and rustfmt mend what they can
  tidy           what no lint can check: imports, file lengths, markers, named tests
  loom           the models of the lock-free structures
  fuzz <target> [seconds]
                 fuzzes a target under libFuzzer (needs cargo-fuzz)
  fuzz --builtin <target> [seconds] [seed]
                 the same without libFuzzer: mutations of the corpus, not led by coverage
  kill-steps [rounds] [seed]
                 kills clients and daemons at chosen instructions; 10000 rounds take minutes
  swap-rounds [rounds] [seed]
                 pages swap while anyone is killed or stopped at chosen steps
  exec-rounds [count] [kill every]
                 clients at two instances of rackpool-kv raise counters by WATCH and EXEC
                 while instances are killed; 100000 take minutes
  lock-rounds [rounds] [seed]
                 programs of two racks add under a lock while they and daemons are killed
  leaks [seconds] [kill every ms] [seed] [kinds]
                 kills clients, services, mounts, daemons and metadata (all unless said)
                 under load, and fails if that leaves more memory in use than no kills
  lab            boots two racks, with soft-RoCE between them, and tries everything in them
  lab step NAME ...
                 the same with some of the steps in deploy/lab/steps
  lab run LINE [LINE]
                 boots them and runs a line of bash in both, or one in each
  lab script FILE [arguments]
                 the same with a script (deploy/lab/README.md)
  sim [--seed N | --from N --count C] [--minutes M]
                 racks, clients and the metadata server in simulated faults: one seed,
                 a range of them, or as many new ones as run in a minute or M
  wheel          builds the Python wheel into target/python/dist
  bench [names]  the benchmarks whose names contain one of the given ones
                 (what follows -- is passed on to the benchmark program);
                 --write before the names writes the figures into docs/benchmarking*.md;
                 `peers` also builds what rackpool is held against
  figures [numbers] [--full] [--out DIR]
                 measures figures 14 to 22 of the Rcmp paper again, beside the access paths
                 of other systems, and simulates those of the DDIO paper (ddio-3 and others):
                 data, plots and a page in target/figures
  within SECONDS PROGRAM [arguments]
                 runs a program; fails when it takes longer or leaves processes running, and
                 kills it and them (cargo starts the tests of `ci` with it)
";

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match run(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("cargo x: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the command named by the first argument; returns false when one of its steps failed.
fn run(arguments: &[String]) -> Result<bool> {
    let (command, rest) = match arguments.split_first() {
        Some((command, rest)) => (command.as_str(), rest),
        None => ("help", [].as_slice()),
    };
    let takes_any = [
        "bench",
        "exec-rounds",
        "lock-rounds",
        "figures",
        "fuzz",
        "kill-steps",
        "lab",
        "leaks",
        "sim",
        "swap-rounds",
        "within",
    ]
    .contains(&command);
    let is_strict = command == "ci" && rest == ["--strict"];
    if !takes_any && !is_strict && !rest.is_empty() {
        bail!("`cargo x {command}` takes no arguments, but got: {}", rest.join(" "));
    }
    if command == "within" {
        return within(rest);
    }
    let root = workspace_root()?;
    let steps = match command {
        "ci" => steps::ci(&root)?,
        "fix" => steps::fix(),
        "tidy" => vec![steps::tidy()],
        "loom" => vec![steps::loom(&root)?],
        "fuzz" => vec![fuzz::step(&root, rest)?],
        "kill-steps" => vec![steps::campaign("kill-steps", rest)?],
        "exec-rounds" => vec![steps::campaign("exec-rounds", rest)?],
        "lock-rounds" => vec![steps::campaign("lock-rounds", rest)?],
        "leaks" => vec![steps::checked_campaign("leaks", rest)?],
        "swap-rounds" => vec![steps::campaign("swap-rounds", rest)?],
        "lab" if rest.is_empty() => vec![steps::lab()],
        "lab" => return lab::by_hand(&root, rest).map(|()| true),
        "sim" => vec![steps::sim(rest)],
        "bench" => steps::bench(&root, rest),
        "figures" => vec![steps::figures(rest)],
        "wheel" => vec![python::wheel(&root)],
        "help" | "-h" | "--help" => {
            print!("{USAGE}");
            return Ok(true);
        }
        unknown => bail!("there is no command `{unknown}`\n\n{USAGE}"),
    };
    let passed = runner::run_all(&root, steps);
    let unexpected = if is_strict { Skipped::read(&root).unexpected() } else { 0 };
    if unexpected > 0 {
        println!("\nfailed: {unexpected} tests were tested nowhere (--strict)");
    }
    Ok(passed && unexpected == 0)
}

/// Runs a program under a limit; returns false when it fails.
fn within(arguments: &[String]) -> Result<bool> {
    let [seconds, program, arguments @ ..] = arguments else {
        bail!("usage: cargo x within SECONDS PROGRAM [arguments]");
    };
    let limit = Duration::from_secs(seconds.parse().context("SECONDS is no number")?);
    let status = limit::run(Command::new(program).args(arguments), limit)
        .with_context(|| format!("`{program}`"))?;
    ensure!(status.success(), "`{program}` failed: {status}");
    Ok(true)
}

/// The folder of the workspace's `Cargo.toml`, whichever folder `cargo x` was called from.
fn workspace_root() -> Result<PathBuf> {
    let start = match env::var_os("CARGO_MANIFEST_DIR") {
        Some(own_crate) => PathBuf::from(own_crate),
        None => env::current_dir().context("the current folder cannot be read")?,
    };
    start
        .ancestors()
        .find(|folder| tree::is_workspace_root(folder))
        .map(PathBuf::from)
        .with_context(|| format!("{} lies in no cargo workspace", start.display()))
}
