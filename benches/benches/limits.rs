//! Figures beside the limits that the project sets itself. Fails when one is missed.

use rackpool_benches::table::Table;
use rackpool_benches::{idle, kv, local, remote};

type Section = fn(&mut Table) -> anyhow::Result<()>;

const SECTIONS: [(&str, Section); 4] =
    [("local", local::run), ("kv", kv::run), ("remote", remote::run), ("idle", idle::run)];

fn main() -> anyhow::Result<()> {
    // Cargo passes `--bench`; names choose sections, several joined by `|`.
    let wanted: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with('-'))
        .flat_map(|argument| argument.split('|').map(str::to_owned).collect::<Vec<_>>())
        .collect();
    let mut table = Table::default();
    for (name, section) in SECTIONS {
        if !wanted.is_empty() && !wanted.iter().any(|wanted| name.contains(wanted.as_str())) {
            continue;
        }
        // Each on a thread of its own: the sections bind theirs to cores.
        table = std::thread::spawn(move || section(&mut table).map(|()| table))
            .join()
            .map_err(|_| anyhow::anyhow!("the section {name} panicked"))??;
    }
    match table.missed() {
        0 => Ok(()),
        missed => anyhow::bail!("{missed} limits were missed"),
    }
}
