//! Lengths: a file of more than 500 lines holds two concepts, a comment wraps at 100 columns, and a
//! document is read to its end.

use super::Violation;
use crate::tree::Tree;

const MAX_LINES: usize = 500;
const MAX_COLUMNS: usize = 100;
/// Documents and the bytes that each may have at most; a path that ends with `/` is that of all
/// documents in a folder.
const MAX_BYTES: [(&str, usize); 10] = [
    ("ARCHITECTURE.md", 16_000),
    ("CHANGELOG.md", 16_000),
    ("README.md", 8_000),
    ("docs/SEMANTICS.md", 12_000),
    ("docs/benchmarking-objects.md", 10_000),
    ("docs/benchmarking-racks.md", 10_000),
    ("docs/benchmarking.md", 10_000),
    ("docs/design/", 30_000),
    ("docs/operating.md", 60_000),
    ("docs/semantics/", 16_000),
];

pub(super) fn check(tree: &Tree) -> Vec<Violation> {
    let mut violations = documents(tree);
    for (file, rust) in tree.rust_files() {
        violations.extend(wide_comments(&file.path, &file.text));
        let lines = if is_test(&file.path) { 0 } else { lines_before_tests(&rust.code) };
        if lines > MAX_LINES {
            let message = format!(
                "{lines} lines of code, {MAX_LINES} are allowed: split the file along its concepts"
            );
            violations.push(Violation::new(file.path.as_str(), MAX_LINES + 1, message));
        }
    }
    violations
}

fn documents(tree: &Tree) -> Vec<Violation> {
    let limit = |path: &str| {
        let is_of = |of: &str| of == path || (of.ends_with('/') && path.starts_with(of));
        MAX_BYTES.iter().find(|(of, _)| is_of(of)).map(|(_, most)| *most)
    };
    let too_long = tree.files.iter().filter_map(|file| {
        let (bytes, most) = (file.text.len(), limit(&file.path)?);
        let message = || format!("{bytes} B, {most} are allowed: say less, or give it pages");
        (bytes > most).then(|| Violation::new(file.path.as_str(), 1, message()))
    });
    too_long.collect()
}

/// Lines that are comments and wider than the code may be. A link or a row of a table has no place
/// to wrap.
fn wide_comments(path: &str, text: &str) -> Vec<Violation> {
    let is_wide = |line: &str| {
        let comment = line.trim_start();
        let breaks = !comment.contains("://") && !comment.contains("| ");
        comment.starts_with("//") && breaks && line.chars().count() > MAX_COLUMNS
    };
    let wide = text.lines().enumerate().filter(|(_, line)| is_wide(line));
    let message = format!("a comment wraps at {MAX_COLUMNS} columns");
    wide.map(|(index, _)| Violation::new(path, index + 1, message.as_str())).collect()
}

/// Returns true if the whole file is test code: `tests.rs`, or a file in a package's `tests`
/// folder. The package in the top folder `tests` has code of its own beside its tests.
fn is_test(path: &str) -> bool {
    path.ends_with("/tests.rs") || path.split('/').skip(1).any(|folder| folder == "tests")
}

/// The number of lines before the `#[cfg(test)]` of `mod tests`; all lines if there is none.
fn lines_before_tests(code: &str) -> usize {
    let lines: Vec<&str> = code.lines().map(str::trim).collect();
    let Some(module) = lines.iter().position(|line| line.starts_with("mod tests")) else {
        return lines.len();
    };
    let above = &lines[..module];
    let attributes = above.iter().rev().take_while(|line| line.starts_with("#[")).count();
    let start = module - attributes;
    if above[start..].iter().any(|line| is_cfg_test(line)) { start } else { lines.len() }
}

fn is_cfg_test(line: &str) -> bool {
    line.starts_with("#[cfg(test)") || line.starts_with("#[cfg(all(test")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn length_violations(path: &str, text: &str) -> Vec<Violation> {
        check(&Tree::of(&[(path, text)]))
    }

    #[test]
    fn documents_have_a_length() {
        let text = |bytes: usize| "x".repeat(bytes);
        assert_eq!(length_violations("README.md", &text(8_000)), []);
        assert_eq!(length_violations("README.md", &text(8_001)).len(), 1);
        assert_eq!(length_violations("docs/design/kv.md", &text(30_001)).len(), 1);
        assert_eq!(length_violations("docs/semantics/kv.md", &text(16_001)).len(), 1);
        assert_eq!(length_violations("docs/other.md", &text(99_999)), []);
    }

    #[test]
    fn comments_have_a_width() {
        let words = "word ".repeat(20);
        let code = format!("// {words}\n//! {}\nlet a = \"{words}\";\n", &words[..90]);
        let found = length_violations("client/src/lib.rs", &code);
        assert_eq!(found.iter().map(|wide| wide.line).collect::<Vec<_>>(), [1]);
        let link = format!("// https://example.org/{}\n", "x".repeat(100));
        assert_eq!(length_violations("client/src/lib.rs", &link), []);
    }

    #[test]
    fn only_lines_before_the_tests_count() {
        let code = "fn f() {}\n".repeat(500);
        let tests = "#[cfg(test)]\nmod tests {\n}\n".to_owned() + &"\n".repeat(900);
        assert_eq!(length_violations("client/src/pool.rs", &(code.clone() + &tests)), []);
        let attributed = "#[cfg(all(test, not(loom)))]\n#[expect(dead_code)]\nmod tests {\n}\n";
        assert_eq!(length_violations("client/src/pool.rs", &(code.clone() + attributed)), []);
        let found = length_violations("client/src/pool.rs", &(code + "\n" + &tests));
        assert!(found[0].to_string().starts_with("client/src/pool.rs:501: 501 lines"));
    }

    #[test]
    fn a_module_without_cfg_is_no_test() {
        let text = "mod tests;\n".to_owned() + &"\n".repeat(600);
        assert_eq!(length_violations("client/src/pool.rs", &text).len(), 1);
    }

    #[test]
    fn files_of_tests_may_be_long() {
        let long = "\n".repeat(600);
        assert_eq!(length_violations("tests/tests/kill.rs", &long), []);
        assert_eq!(length_violations("client/tests/kill.rs", &long), []);
        assert_eq!(length_violations("client/src/pool/tests.rs", &long), []);
        assert_eq!(length_violations("tests/src/cluster.rs", &long).len(), 1);
    }
}
