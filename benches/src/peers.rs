//! A round trip to the daemon compared with one between two processes over iceoryx2, in the
//! separate program `benches/peers`. `cargo x bench peers` builds that program; without it the
//! section fails.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Context;

use crate::measure::in_turn;
use crate::rings::{ROUND_TRIPS, pinned, round_trips};
use crate::table::Table;

const PROGRAM: &str = "peers/release/rackpool-peers";
/// The two patterns in which iceoryx2 can carry a request and its answer.
const PATTERNS: [&str; 2] = ["request-response", "publish-subscribe"];

/// Runs the section.
pub fn run(table: &mut Table) -> anyhow::Result<()> {
    table.section("client to daemon and back against iceoryx2 between two processes, a core each");
    let Some(program) = program()? else {
        table.not_measured("`cargo x bench peers` builds what it takes");
        return Ok(());
    };
    let (cluster, pool) = pinned()?;
    for pattern in PATTERNS {
        peer(&program, pattern)?;
        let trip =
            in_turn(|| round_trips(&pool), || peer(&program, pattern).expect("it has just worked"));
        let detail = format!("{:.0} ns against {:.0} ns", trip.ours, trip.peer);
        table.at_most(&format!("round trip / iceoryx2 {pattern}"), trip.ratio, 1.0, "x", &detail);
    }
    drop(pool);
    cluster.stop()
}

/// The path of that program in cargo's target folder, if it was built.
fn program() -> anyhow::Result<Option<PathBuf>> {
    let own = std::env::current_exe()?;
    let here = own.ancestors().map(|folder| folder.join(PROGRAM)).find(|path| path.is_file());
    Ok(here)
}

/// Nanoseconds of a round trip over iceoryx2.
fn peer(program: &PathBuf, pattern: &str) -> anyhow::Result<f64> {
    let output = Command::new(program).arg(pattern).arg(ROUND_TRIPS.to_string()).output()?;
    anyhow::ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout)?;
    text.trim().parse().with_context(|| format!("not a figure: {text}"))
}
