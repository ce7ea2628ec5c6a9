//! Pipelines of the shell scripts. Under `pipefail` a pipeline fails with status 141 when a writer
//! is killed by SIGPIPE. That happens only if the writer writes after its reader has ended, so
//! readers must read to the end of their input.

use super::Violation;
use crate::tree::Tree;

pub(super) fn check(tree: &Tree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for file in tree.files.iter().filter(|file| file.path.ends_with(".sh")) {
        for (number, line) in file.text.lines().enumerate() {
            if let Some(reader) = readers(line).find(|reader| stops_early(reader)) {
                let message = format!(
                    "`{}` may leave its pipe before all is written, which fails the pipeline with \
                     141: let it read to the end",
                    reader.trim()
                );
                violations.push(Violation::new(file.path.as_str(), number + 1, message));
            }
        }
    }
    violations
}

/// The commands of a line that read from a pipe.
fn readers(line: &str) -> impl Iterator<Item = &str> {
    let comment = line.trim_start().starts_with('#');
    // `||` is not a pipe: the command after it reads none.
    let alternatives = if comment { "" } else { line }.split("||");
    alternatives.flat_map(|pipeline| pipeline.split('|').skip(1))
}

/// Returns true if a command may end before the end of its input.
fn stops_early(command: &str) -> bool {
    let mut words = command.split_whitespace();
    let program = words.next().unwrap_or_default();
    match program {
        "head" => true,
        "grep" => words.take_while(|word| word.starts_with('-')).any(|option| {
            let short = !option.starts_with("--");
            short && option.contains(['q', 'm', 'l']) || option == "--quiet"
        }),
        "awk" => command.contains("exit"),
        "sed" => words.any(|word| word.trim_matches(['\'', '"', ')']).ends_with('q')),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(line: &str) -> usize {
        check(&Tree::of(&[("deploy/lab/steps/50-verbs.sh", line)])).len()
    }

    #[test]
    fn readers_that_leave_early_are_found() {
        for line in [
            "library=$(ldconfig -p | awk '$1 == \"libibverbs.so.1\" { print $NF; exit }')",
            "printf '%s\\n' a b | sort -V | head -n 1",
            "rackpool doctor | grep -q rxe0 || fail 'no device'",
            "a || b | grep -E -m 1 c",
            "tc qdisc | sed 2q",
        ] {
            assert_eq!(found(line), 1, "{line}");
        }
    }

    #[test]
    fn readers_that_read_all_are_not() {
        for line in [
            "ldconfig -p | awk '$1 == \"libibverbs.so.1\" && !found++ { print $NF }'",
            "grep -q rxe0 devices || head -n 1 devices",
            "status | grep \"^rack\" | sed -n '1p; s/^qp//'",
            "# doctor | head",
        ] {
            assert_eq!(found(line), 0, "{line}");
        }
    }

    #[test]
    fn only_scripts_are_looked_at() {
        assert_eq!(check(&Tree::of(&[("docs/design/lab.md", "ip link | head")])), []);
    }
}
