//! Markers of unfinished work, which are forbidden in the tree.

use super::Violation;
use super::rust_source::is_name;
use crate::tree::{TextFile, Tree};

/// This file must contain them.
const TABLE: &str = "crates/xtask/src/tidy/markers.rs";

/// The markers, matched in any case as whole words, and what to do instead.
const MARKERS: &[(&str, &str)] = &[
    ("todo!", "write the code"),
    ("todo:", "do it, or say as a fact what is not there"),
    ("fixme", "mend it"),
    ("xxx", "mend it, or say as a fact what is odd"),
    ("for now", "finish it, or say as a fact what it does and does not do"),
    ("#[ignore", "make the test pass where `cargo test` runs, or remove it"),
];

pub(super) fn check(tree: &Tree) -> Vec<Violation> {
    tree.files.iter().filter(|file| file.path != TABLE).flat_map(check_file).collect()
}

fn check_file(file: &TextFile) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (index, line) in file.text.lines().enumerate() {
        let line = line.to_lowercase();
        for (marker, instead) in MARKERS {
            if has_word(&line, marker) {
                let message = format!("leftover `{marker}`: {instead}");
                violations.push(Violation::new(file.path.as_str(), index + 1, message));
            }
        }
    }
    violations
}

fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let joins = |inner: Option<char>, outer: Option<char>| {
            inner.is_some_and(is_name) && outer.is_some_and(is_name)
        };
        let (before, after) = (&line[..at], &line[at + word.len()..]);
        !joins(word.chars().next(), before.chars().last())
            && !joins(word.chars().last(), after.chars().next())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marker_lines(path: &str, text: &str) -> Vec<usize> {
        check(&Tree::of(&[(path, text)])).iter().map(|violation| violation.line).collect()
    }

    #[test]
    fn markers_are_found_in_code_and_prose() {
        let code = "fn f() {\n    todo!()\n}\n// FIXME\n#[ignore = \"slow\"]\n// XXX: odd\n";
        assert_eq!(marker_lines("client/src/lib.rs", code), [2, 4, 5, 6]);
        assert_eq!(marker_lines("docs/operating.md", "TODO: write\nFor now, restart.\n"), [1, 2]);
    }

    #[test]
    fn parts_of_words_are_no_markers() {
        let text = "mktemp /tmp/rackpool-XXXXXX\ntodo = \"deny\"\nask for nowhere\nmastodo!\n";
        assert_eq!(marker_lines("deploy/prepare.sh", text), [0; 0]);
    }

    #[test]
    fn the_table_itself_is_left_out() {
        assert_eq!(marker_lines(TABLE, "(\"todo!\", \"write the code\")\n"), [0; 0]);
    }
}
