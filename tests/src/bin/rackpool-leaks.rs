//! `rackpool-leaks [SECONDS] [KILL EVERY MS] [SEED] [KIND...]`: runs a load while programs of these
//! kinds (by default all) are killed, and reports the memory that remains in use.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use rackpool_tests::leaks::{Campaign, Kind, run};

fn main() -> anyhow::Result<ExitCode> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let numbers = words.iter().take_while(|word| word.starts_with(|c: char| c.is_ascii_digit()));
    let numbers = numbers.map(|text| text.parse::<u64>().with_context(|| format!("'{text}'")));
    let numbers = numbers.collect::<anyhow::Result<Vec<_>>>()?;
    let number = |index, unless_said| numbers.get(index).copied().unwrap_or(unless_said);
    let kinds: Result<Vec<Kind>, String> =
        words[numbers.len()..].iter().map(|word| word.parse()).collect();
    let mut kinds = kinds.map_err(anyhow::Error::msg)?;
    if kinds.is_empty() {
        kinds = Kind::ALL.to_vec();
    }
    let report = run(&Campaign {
        time: Duration::from_secs(number(0, 1200)),
        kill_every: Duration::from_millis(number(1, 3000)),
        seed: number(2, 1),
        kinds,
    });
    println!("{report}");
    Ok(if report.has_failed() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
