//! The steps of each command.

use std::env;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::abi;
use crate::invocation::Invocation;
use crate::lab;
use crate::plasma;
use crate::python;
use crate::runner::{Step, Work};
use crate::tidy;
use crate::tree::{Member, Tree};

/// All checks of CI, the cheapest first. The lock file must be up to date: no step may write into
/// the tree.
pub(crate) fn ci(root: &Path) -> Result<Vec<Step>> {
    let cargo = Invocation::cargo;
    Ok(vec![
        fmt(&["--check"]),
        tidy(),
        Step::run(
            "clippy",
            vec![cargo("clippy --locked --workspace --all-targets -- -D warnings")],
        ),
        // A step of its own, so that its time is shown; later steps repeat the command, which then
        // takes no time.
        Step::run("build", vec![build_tested()]),
        Step::run(
            "test",
            vec![
                build_tested(),
                within_limits(cargo("test --locked --workspace --no-fail-fast"))?
                    .env("RUST_BACKTRACE", "1"),
            ],
        ),
        // Alone, since it needs both cores. CI always uses the same seed; campaigns use others.
        campaign("kill-steps", &["10000".into(), "7".into()])?,
        // CI always uses the same seeds; campaigns use others.
        sim(&["--seed".into(), "0".into(), "--minutes".into(), "1".into()]),
        loom(root)?,
        Step::run(
            "doc",
            vec![cargo("doc --locked --workspace --no-deps").env("RUSTDOCFLAGS", "-D warnings")],
        ),
        deny(root),
        advisories(root),
        abi::step(root),
        python::step(root)?,
        plasma::step(root)?,
        lab(),
    ])
}

/// The limit for the tests of one file: several times the duration of the longest.
const TESTS_OF_A_FILE_S: u32 = 600;

/// A call of `cargo test` in which `cargo x within` starts each test program. Tests that hang, and
/// tests that leave processes running, then fail and are named.
fn within_limits(call: Invocation) -> Result<Invocation> {
    let own = env::current_exe().context("can't find this program's own file")?;
    let own = own.to_str().context("this program's own file has a name that is no text")?;
    let limit = TESTS_OF_A_FILE_S;
    let runner = format!("target.'cfg(all())'.runner = ['{own}', 'within', '{limit}']");
    Ok(call.with("--config").with(runner))
}

/// Lets clippy and rustfmt fix what they can.
pub(crate) fn fix() -> Vec<Step> {
    let clippy = "clippy --fix --workspace --all-targets --allow-dirty --allow-staged";
    vec![
        Step::run("clippy", vec![Invocation::cargo(clippy)]),
        // Last, because clippy's changes are not always formatted.
        fmt(&[]),
    ]
}

/// The format of the workspace and of the workspaces apart. `options` go to rustfmt.
fn fmt(options: &[&str]) -> Step {
    let apart = |manifest| Invocation::cargo("fmt --manifest-path").with(manifest);
    let all = Invocation::cargo("fmt --all");
    let calls = [all, apart(PEERS_MANIFEST), apart(abi::MANIFEST), apart(python::MANIFEST)];
    let with_options = |call: Invocation| match options {
        [] => call,
        _ => options.iter().fold(call.with("--"), |call, option| call.with(*option)),
    };
    Step::run("fmt", calls.into_iter().map(with_options).collect())
}

/// The checks of the `tidy` module.
pub(crate) fn tidy() -> Step {
    Step { name: "tidy", repeat: "cargo x tidy".into(), work: Work::Check(tidy::check) }
}

/// Two racks as guests of this computer.
pub(crate) fn lab() -> Step {
    Step { name: "lab", repeat: "cargo x lab".into(), work: Work::Check(lab::check) }
}

/// Every `tests/loom*.rs` of the workspace, with the atomics of `rackpool-sync` replaced by loom's.
pub(crate) fn loom(root: &Path) -> Result<Step> {
    let tree = Tree::read(root)?;
    let has_models = |member: &Member| tree.files.iter().any(|f| member.has_loom_model(&f.path));
    let packages: Vec<String> = tree
        .members()?
        .into_iter()
        .filter(has_models)
        .map(|member| member.manifest.package)
        .collect();
    let work = if packages.is_empty() {
        Work::Skip("no crate has a tests/loom*.rs".into())
    } else {
        Work::Run(vec![loom_call(&packages)])
    };
    Ok(Step { name: "loom", repeat: "cargo x loom".into(), work })
}

fn loom_call(packages: &[String]) -> Invocation {
    let flags = env::var("RUSTFLAGS").unwrap_or_default();
    // A target folder of its own: the flag changes every dependency, and would rebuild all each
    // time.
    let target = env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| "target".into());
    let call = packages
        .iter()
        .fold(Invocation::cargo("test --release"), |call, name| call.with("-p").with(name));
    call.with("--test")
        .with("loom*")
        .env("RUSTFLAGS", format!("{flags} --cfg loom").trim_start())
        .env("CARGO_TARGET_DIR", format!("{target}/loom"))
        // Models are small: link-time optimization would cost more than it saves.
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
}

fn deny(root: &Path) -> Step {
    let own = Invocation::cargo("deny check bans licenses sources");
    let apart = |manifest| {
        let call = Invocation::cargo("deny --manifest-path").with(manifest);
        ["--config", "deny.toml", "check", "bans", "licenses", "sources"]
            .into_iter()
            .fold(call, Invocation::with)
    };
    let apart = [PEERS_MANIFEST, abi::MANIFEST, python::MANIFEST].map(apart);
    let mut step = Step::run("deny", [own].into_iter().chain(apart).collect());
    if !Invocation::cargo("deny --version").succeeds(root) {
        step.work = Work::Skip(
            "cargo-deny is not installed, so licences and bans were NOT checked \
             (cargo install --locked cargo-deny)"
                .into(),
        );
    }
    step
}

fn advisories(root: &Path) -> Step {
    let mut step = Step::run("advisories", vec![Invocation::cargo("deny check advisories")]);
    if !Invocation::cargo("deny fetch db").succeeds(root) {
        step.work = Work::Skip(
            "advisories were NOT checked: cargo-deny is not installed, or can't fetch them".into(),
        );
    }
    step
}

/// A campaign of the tests, in the test profile. `kill-steps` kills clients and daemons at chosen
/// instructions; `swap-rounds` kills or stops processes at chosen steps of a swap; `exec-rounds`
/// kills instances of the service while clients execute transactions; `lock-rounds` kills holders
/// of locks.
pub(crate) fn campaign(name: &'static str, arguments: &[String]) -> Result<Step> {
    let are_numbers = arguments.iter().all(|number| number.parse::<u64>().is_ok());
    ensure!(
        arguments.len() <= 2 && are_numbers,
        "usage: cargo x {name} and at most two numbers (cargo x help)"
    );
    checked_campaign(name, arguments)
}

/// A campaign that checks its arguments itself. `leaks` kills programs of all kinds under load, and
/// measures the memory that stays in use.
pub(crate) fn checked_campaign(name: &'static str, arguments: &[String]) -> Result<Step> {
    // Cargo puts the program beside this one, whatever the target folder.
    let own = env::current_exe().context("can't find this program's own file")?;
    let run = Invocation::built(own.with_file_name(format!("rackpool-{name}")).to_string_lossy());
    let run = arguments.iter().fold(run, |run, argument| run.with(argument));
    Ok(Step::run(name, vec![build_tested(), run]))
}

/// Builds the tests and the programs that they start: cargo builds the programs of a package for
/// that package's own tests only. One call builds both, and campaigns use the same call: cargo
/// chooses the features of a dependency by the set of packages built, and would otherwise build
/// most crates once for each set.
pub(crate) fn build_tested() -> Invocation {
    Invocation::cargo("build --locked --workspace --exclude rackpool-xtask --bins --tests")
}

/// The simulator, which checks its arguments itself.
pub(crate) fn sim(arguments: &[String]) -> Step {
    let run = Invocation::cargo("run --quiet --release -p rackpool-sim --");
    Step::run("sim", vec![arguments.iter().fold(run, |run, argument| run.with(argument))])
}

/// The benchmarks whose names contain one of the names in `arguments` (all, if there is none).
/// Arguments after `--` go to the benchmark program unchanged. `--write` before the names writes
/// what was measured into the pages of figures in `docs`.
pub(crate) fn bench(root: &Path, arguments: &[String]) -> Vec<Step> {
    let cargo = Invocation::cargo;
    let (writes, arguments) = match arguments.split_first() {
        Some((first, rest)) if first == "--write" => (true, rest),
        _ => (false, arguments),
    };
    let (names, options) = match arguments.iter().position(|argument| argument == "--") {
        Some(at) => (&arguments[..at], &arguments[at + 1..]),
        None => (arguments, [].as_slice()),
    };
    // What is written are the limits; the primitives have none.
    let mut run = if writes {
        let pages = root.join("docs");
        cargo("bench -p rackpool-benches --bench limits").env(PAGES, pages.to_string_lossy())
    } else {
        cargo("bench -p rackpool-benches --benches")
    };
    if !arguments.is_empty() {
        run = run.with("--");
    }
    if !names.is_empty() {
        // The benchmark program takes one filter, a regular expression.
        run = run.with(names.join("|"));
    }
    let run = options.iter().fold(run, |run, option| run.with(option));
    let mut calls = vec![cargo(MEASURED_PROGRAMS)];
    if names.is_empty() || names.iter().any(|name| name == PEERS) {
        // Only here, where its dependencies are fetched and built.
        calls.push(
            peers("clippy --locked --release --all-targets").with("--").with("-D").with("warnings"),
        );
        calls.push(peers("build --locked --release"));
    }
    if names.iter().any(|name| name == PLASMA) {
        calls.extend(plasma::environment_of_peer(root).make());
    }
    calls.push(run);
    vec![Step::run("bench", calls)]
}

/// Builds the daemon and the metadata server as users get them, for programs that measure them: the
/// fuzz targets would turn on the daemon's feature `testing`.
const MEASURED_PROGRAMS: &str =
    "build --release --workspace --exclude rackpool-xtask --exclude rackpool-fuzz --bins";

/// The figures of the Rcmp paper; the program checks the arguments.
pub(crate) fn figures(arguments: &[String]) -> Step {
    let run = Invocation::cargo("run --quiet --release -p rackpool-benches --bin figures --");
    let run = arguments.iter().fold(run, |run, argument| run.with(argument));
    Step::run("figures", vec![Invocation::cargo(MEASURED_PROGRAMS), run])
}

/// The benchmarks that compare rackpool with other systems; no other command builds these.
const PEERS: &str = "peers";
/// The benchmark that compares `rackpool-plasma` with Plasma's own store. It needs an old Python
/// and PyPI, so a run of all benchmarks uses the environment that a run of this one has made.
const PLASMA: &str = "plasma";
/// Where the benchmarks find the pages that they write: `rackpool_benches::page::VARIABLE`.
const PAGES: &str = "RACKPOOL_BENCH_PAGES";
const PEERS_MANIFEST: &str = "benches/peers/Cargo.toml";

/// A command of cargo for the package of the peers.
fn peers(command: &str) -> Invocation {
    Invocation::cargo(command)
        .with("--manifest-path")
        .with(PEERS_MANIFEST)
        .with("--target-dir")
        .with(format!("{}/{PEERS}", target_dir()))
}

fn target_dir() -> String {
    env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| "target".into())
}

/// Cargo's target folder as an absolute path, for programs that do not start at the root.
pub(crate) fn absolute_target(root: &Path) -> String {
    root.join(target_dir()).to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bench_line(arguments: &[&str]) -> String {
        let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
        bench(Path::new("/root"), &arguments)[0].repeat.clone()
    }

    #[test]
    fn bench_passes_names_as_one_filter_and_options_unchanged() {
        let build = "cargo build --release --workspace --exclude rackpool-xtask \
                     --exclude rackpool-fuzz --bins && ";
        let bench = "cargo bench -p rackpool-benches --benches";
        assert_eq!(bench_line(&["local"]), format!("{build}{bench} -- local"));
        let target = target_dir();
        let of_peers =
            format!("--manifest-path benches/peers/Cargo.toml --target-dir {target}/peers");
        let peers = format!(
            "cargo clippy --locked --release --all-targets {of_peers} -- -D warnings && \
             cargo build --locked --release {of_peers} && "
        );
        assert_eq!(bench_line(&[]), format!("{build}{peers}{bench}"));
        assert_eq!(bench_line(&["peers"]), format!("{build}{peers}{bench} -- peers"));
        assert_eq!(
            bench_line(&["local", "swap", "--", "--quick"]),
            format!("{build}{bench} -- 'local|swap' --quick")
        );
        let plasma = bench_line(&["plasma"]);
        assert!(plasma.contains("/peers/plasma/venv") && plasma.contains(" && cargo bench "));
        assert!(!bench_line(&[]).contains("venv"));
        let limits = "cargo bench -p rackpool-benches --bench limits";
        let pages = "RACKPOOL_BENCH_PAGES=/root/docs";
        assert_eq!(bench_line(&["--write", "kv"]), format!("{build}{pages} {limits} -- kv"));
    }

    #[test]
    fn the_workspaces_apart_are_formatted_too() {
        let line = fmt(&["--check"]).repeat;
        for part in [
            "fmt --all -- --check",
            "benches/peers/Cargo.toml -- --check",
            "abi/Cargo.toml -- --check",
            "python/Cargo.toml -- --check",
        ] {
            assert!(line.contains(part), "{line}");
        }
        assert!(!fmt(&[]).repeat.contains("--check"));
    }

    #[test]
    fn campaigns_take_numbers_only() {
        let step = |arguments: &[&str]| {
            let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
            campaign("kill-steps", &arguments).map(|step| step.repeat)
        };
        assert!(step(&["many"]).is_err() && step(&["1", "2", "3"]).is_err());
        assert!(step(&["500", "7"]).unwrap().ends_with("/rackpool-kill-steps 500 7"));
    }

    #[test]
    fn ci_kills_ten_thousand_clients_after_the_tests() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
        let steps = ci(root).unwrap();
        let of = |name| steps.iter().position(|step| step.name == name).unwrap();
        assert!(steps[of("kill-steps")].repeat.ends_with("/rackpool-kill-steps 10000 7"));
        assert!(of("test") < of("kill-steps"), "what is quick to find comes first");
    }

    #[test]
    fn nothing_is_built_twice_for_what_starts_processes() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
        let steps = ci(root).unwrap();
        let line = |name| &steps.iter().find(|step| step.name == name).unwrap().repeat;
        let build = build_tested().to_string();
        assert_eq!(*line("build"), build);
        for step in ["test", "kill-steps"] {
            assert!(line(step).starts_with(&format!("{build} && ")), "{step}");
        }
    }

    #[test]
    fn sim_passes_its_arguments_on() {
        let step = sim(&["--seed".into(), "7".into()]);
        assert_eq!(step.repeat, "cargo run --quiet --release -p rackpool-sim -- --seed 7");
    }

    #[test]
    fn the_models_are_built_apart_from_everything_else() {
        let line = loom_call(&["rackpool-ring".into(), "rackpool-sync".into()]).to_string();
        assert!(line.contains("--cfg loom'"), "{line}");
        assert!(line.contains("/loom "), "{line}");
        assert!(line.contains("-p rackpool-ring -p rackpool-sync --test 'loom*'"), "{line}");
    }
}
