//! The names by which benchmarks are chosen.

use anyhow::bail;

/// Benchmark of `primitives`: entering and leaving an access slot, for each barrier.
pub const ENTER_AND_LEAVE: &str = "access slot: enter and leave";
/// Benchmark of the request ring.
pub const REQUEST_RING: &str = "request ring: push and pop, one thread";
/// Benchmark of a call cell.
pub const CALL_CELL: &str = "call cell: finish and answer, one thread";
/// Benchmark of the data ring.
pub const DATA_RING: &str = "data ring: take and give back, one thread";
/// Benchmark of messages between racks.
pub const PEER_MESSAGE: &str = "peer message: encode and decode";

const PRIMITIVES: [&str; 5] = [ENTER_AND_LEAVE, REQUEST_RING, CALL_CELL, DATA_RING, PEER_MESSAGE];

/// The names given to a benchmark program: the arguments before its options, each with several
/// names joined by `|`.
pub fn wanted(arguments: impl Iterator<Item = String>) -> Vec<String> {
    let names = arguments.take_while(|argument| !argument.starts_with('-'));
    names.flat_map(|names| names.split('|').map(str::to_owned).collect::<Vec<_>>()).collect()
}

/// Refuses a name that is part of no section's and no primitive's name.
///
/// # Errors
/// When a name is refused; lists all names.
pub fn check(wanted: &[String], sections: &[&str]) -> anyhow::Result<()> {
    let is_known = |wanted: &String| {
        sections.iter().chain(&PRIMITIVES).any(|name| name.contains(wanted.as_str()))
    };
    match wanted.iter().find(|wanted| !is_known(wanted)) {
        None => Ok(()),
        Some(unknown) => bail!(
            "no benchmark has '{unknown}' in its name: the sections are {}; the primitives are '{}'",
            sections.join(", "),
            PRIMITIVES.join("', '")
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_nothing_has_is_refused() {
        let given = ["local|ring", "--sample-size", "10", "--bench"].map(str::to_owned);
        let wanted = wanted(given.into_iter());
        assert_eq!(wanted, ["local", "ring"]);
        check(&wanted, &["local", "kv"]).unwrap();
        check(&[], &["local"]).unwrap();
        let refused = check(&["lokal".into()], &["local", "kv"]).unwrap_err().to_string();
        assert!(refused.contains("'lokal'") && refused.contains("local, kv"), "{refused}");
    }
}
