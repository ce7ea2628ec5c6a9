//! Which steps each command consists of.

use std::env;
use std::path::Path;

use anyhow::Result;

use crate::invocation::Invocation;
use crate::runner::{Step, Work};
use crate::tidy;
use crate::tree::{Member, Tree};

/// Everything that CI checks, the cheapest first. The lock file must be up to date: nothing here
/// may write into the tree.
pub(crate) fn ci(root: &Path) -> Result<Vec<Step>> {
    let cargo = Invocation::cargo;
    Ok(vec![
        Step::run("fmt", vec![cargo("fmt --all -- --check")]),
        tidy(),
        Step::run(
            "clippy",
            vec![cargo("clippy --locked --workspace --all-targets -- -D warnings")],
        ),
        // The process tests start the daemon, the metadata server and the command as processes:
        // cargo builds the binaries of a package for that package's own tests only.
        Step::run(
            "test",
            vec![
                cargo("build --locked --workspace --exclude rackpool-xtask --bins"),
                cargo("test --locked --workspace").env("RUST_BACKTRACE", "1"),
            ],
        ),
        loom(root)?,
        Step::run(
            "doc",
            vec![cargo("doc --locked --workspace --no-deps").env("RUSTDOCFLAGS", "-D warnings")],
        ),
        deny(root),
    ])
}

/// Lets clippy and rustfmt mend what they can.
pub(crate) fn fix() -> Vec<Step> {
    let clippy = "clippy --fix --workspace --all-targets --allow-dirty --allow-staged";
    vec![
        Step::run("clippy", vec![Invocation::cargo(clippy)]),
        // Last, because what clippy writes is not always formatted.
        Step::run("fmt", vec![Invocation::cargo("fmt --all")]),
    ]
}

/// The checks of the `tidy` module.
pub(crate) fn tidy() -> Step {
    Step { name: "tidy", repeat: "cargo x tidy".into(), work: Work::Check(tidy::check) }
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
    // A folder of its own: the flag changes every dependency, and would rebuild all each time.
    let target = env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| "target".into());
    let call = packages
        .iter()
        .fold(Invocation::cargo("test --release"), |call, name| call.with("-p").with(name));
    call.with("--test")
        .with("loom*")
        .env("RUSTFLAGS", format!("{flags} --cfg loom").trim_start())
        .env("CARGO_TARGET_DIR", format!("{target}/loom"))
        // Models are small: linking them takes longer than what the linker could save.
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
}

fn deny(root: &Path) -> Step {
    let mut step = Step::run("deny", vec![Invocation::cargo("deny check bans licenses sources")]);
    if !Invocation::cargo("deny --version").succeeds(root) {
        step.work = Work::Skip(
            "cargo-deny is not installed, so licences and bans were NOT checked \
             (cargo install --locked cargo-deny)"
                .into(),
        );
    }
    step
}

/// The benchmarks whose names contain one of the names in `arguments` (all, when there is none);
/// what follows `--` goes to the benchmark program as it is.
pub(crate) fn bench(arguments: &[String]) -> Vec<Step> {
    let cargo = Invocation::cargo;
    let (names, options) = match arguments.iter().position(|argument| argument == "--") {
        Some(at) => (&arguments[..at], &arguments[at + 1..]),
        None => (arguments, [].as_slice()),
    };
    let mut run = cargo("bench -p rackpool-benches --benches");
    if !arguments.is_empty() {
        run = run.with("--");
    }
    if !names.is_empty() {
        // The benchmark program takes one filter, a regular expression.
        run = run.with(names.join("|"));
    }
    let run = options.iter().fold(run, |run, option| run.with(option));
    // The benchmarks start the daemon and the metadata server.
    vec![Step::run(
        "bench",
        vec![cargo("build --release --workspace --exclude rackpool-xtask --bins"), run],
    )]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bench_line(arguments: &[&str]) -> String {
        let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
        bench(&arguments)[0].repeat.clone()
    }

    #[test]
    fn bench_passes_names_as_one_filter_and_options_unchanged() {
        let build = "cargo build --release --workspace --exclude rackpool-xtask --bins && ";
        let bench = "cargo bench -p rackpool-benches --benches";
        assert_eq!(bench_line(&[]), format!("{build}{bench}"));
        assert_eq!(bench_line(&["local"]), format!("{build}{bench} -- local"));
        assert_eq!(
            bench_line(&["local", "swap", "--", "--quick"]),
            format!("{build}{bench} -- 'local|swap' --quick")
        );
    }

    #[test]
    fn the_models_are_built_apart_from_everything_else() {
        let line = loom_call(&["rackpool-ring".into(), "rackpool-sync".into()]).to_string();
        assert!(line.contains("--cfg loom'"), "{line}");
        assert!(line.contains("/loom "), "{line}");
        assert!(line.contains("-p rackpool-ring -p rackpool-sync --test 'loom*'"), "{line}");
    }
}
