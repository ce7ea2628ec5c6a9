//! Every promise in `docs/SEMANTICS.md` and in the pages of `docs/semantics` names its tests, and
//! the tests must exist. A test is named by `path/to/file.rs::test`, by `file::test` for a file
//! below a folder `tests`, or by `::test` if the cell names its file before. A test of Python is
//! named by its path.

use super::Violation;
use super::definitions::Definitions;
use crate::tree::{TextFile, Tree};

const PATH: &str = "docs/SEMANTICS.md";
/// The pages that have the promises by operation. `PATH` links to each.
const PAGES: &str = "docs/semantics/";

pub(super) fn check(tree: &Tree, definitions: &Definitions) -> Vec<Violation> {
    let Some(contents) = tree.text(PATH) else {
        let message = "missing: write down what rackpool promises, each promise with its test";
        return vec![Violation::new(PATH, 1, message)];
    };
    let mut violations = Vec::new();
    for file in &tree.files {
        if let Some(name) = file.path.strip_prefix(PAGES) {
            if !contents.contains(&format!("](semantics/{name})")) {
                let message = format!("{PATH} does not link to this page: add it to its contents");
                violations.push(Violation::new(file.path.as_str(), 1, message));
            }
        } else if file.path != PATH {
            continue;
        }
        violations.extend(check_page(tree, definitions, file));
    }
    violations
}

/// Every test cell of a page names tests that exist.
fn check_page(tree: &Tree, definitions: &Definitions, page: &TextFile) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (line, cell) in test_cells(&page.text) {
        let tests: Vec<&str> = cell.split('`').skip(1).step_by(2).collect();
        if tests.is_empty() {
            let message = "this promise names no test: write `path/to/file.rs::test` in its row";
            violations.push(Violation::new(page.path.as_str(), line, message));
        }
        let mut file = "";
        for test in tests {
            let (path, name) = test.rsplit_once("::").unwrap_or(("", test));
            file = if path.is_empty() { file } else { path };
            let exists = if file.ends_with(".py") {
                is_python_test(tree, file, name)
            } else {
                definitions.has_function(name) && is_test(tree, file, name)
            };
            if !exists {
                let message =
                    format!("the test `{test}` does not exist: write it, or name the test");
                violations.push(Violation::new(page.path.as_str(), line, message));
            }
        }
    }
    violations
}

/// Returns true if the function is a test of the file that `path` names.
fn is_test(tree: &Tree, path: &str, name: &str) -> bool {
    let head = format!("fn {name}(");
    tree.rust_files().filter(|(file, _)| is_named(&file.path, path)).any(|(_, rust)| {
        rust.code.split_once(head.as_str()).is_some_and(|(before, _)| {
            // The attributes are between the function and the end of the preceding item.
            before.rsplit(['{', '}', ';']).next().is_some_and(|last| last.contains("test"))
        })
    })
}

/// Returns true if pytest finds the function in the file at `path`.
fn is_python_test(tree: &Tree, path: &str, name: &str) -> bool {
    let head = format!("def {name}(");
    let text = tree.text(path).unwrap_or_default();
    name.starts_with("test_") && text.lines().any(|line| line.starts_with(&head))
}

/// Returns true if `name` is the file's path, or its name without `.rs` and it is below a folder
/// `tests`.
fn is_named(path: &str, name: &str) -> bool {
    let (folders, file) = path.rsplit_once('/').unwrap_or(("", path));
    let is_short = || file.strip_suffix(".rs") == Some(name);
    path == name || is_short() && folders.split('/').any(|folder| folder == "tests")
}

/// The cells below every table heading `Test` or `Tests`, with their lines.
fn test_cells(text: &str) -> Vec<(usize, &str)> {
    let mut cells = Vec::new();
    let mut column: Option<usize> = None;
    let mut in_table = false;
    for (index, line) in text.lines().enumerate() {
        let Some(row) = line.trim().strip_prefix('|') else {
            in_table = false;
            continue;
        };
        let row: Vec<&str> = row.trim_end_matches('|').split('|').map(str::trim).collect();
        if !in_table {
            in_table = true;
            column = row.iter().position(|heading| matches!(*heading, "Test" | "Tests"));
        } else if let Some(column) = column
            && !row.iter().all(|cell| is_rule(cell))
        {
            cells.push((index + 1, row.get(column).copied().unwrap_or("")));
        }
    }
    cells
}

/// Returns true for cells of the line between heading and rows.
fn is_rule(cell: &str) -> bool {
    !cell.is_empty() && cell.chars().all(|c| matches!(c, '-' | ':'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(semantics: &str) -> Vec<(usize, String)> {
        let tree = Tree::of(&[
            (PATH, semantics),
            ("tests/tests/kill.rs", "#[test]\nfn daemon_dies() {}\nfn client_dies() {}\n"),
        ]);
        let violations = check(&tree, &Definitions::of(&tree));
        violations.into_iter().map(|violation| (violation.line, violation.message)).collect()
    }

    #[test]
    fn existing_tests_pass_whatever_else_is_in_the_text() {
        let text = "# Promises\n`not::a::test`\n\n| Promise | Test |\n|---|:--|\n\
                    | `x` is kept | `kill::daemon_dies`, `::daemon_dies` |\n\n\
                    | Word | Meaning |\n|---|---|\n| `page` | 2 MiB |\n";
        assert_eq!(found(text), []);
    }

    #[test]
    fn a_test_that_is_gone_is_found() {
        let text =
            "| Test | Promise |\n|---|---|\n| `kill::daemon_dies` | a |\n| `kill::gone` | b |\n";
        let violations = found(text);
        assert_eq!(violations.len(), 1);
        assert_eq!(violations[0].0, 4);
        assert!(violations[0].1.contains("`kill::gone`"));
    }

    #[test]
    fn a_test_is_one_of_the_named_file() {
        let text = "| Promise | Test |\n|---|---|\n| a | `live::daemon_dies` |\n\
                    | b | `daemon_dies` |\n| c | `kill::daemon_dies` |\n";
        assert_eq!(found(text).iter().map(|(line, _)| *line).collect::<Vec<_>>(), [3, 4]);
    }

    #[test]
    fn a_test_with_a_path_is_one_of_that_file() {
        let text = "| Promise | Test |\n|---|---|\n\
                    | a | `tests/tests/kill.rs::daemon_dies` |\n\
                    | b | `tests/tests/kill.rs::daemon_dies`, `::client_dies` |\n\
                    | c | `tests/tests/live.rs::daemon_dies` |\n";
        let violations = found(text);
        assert_eq!(violations.iter().map(|(line, _)| *line).collect::<Vec<_>>(), [4, 5]);
        assert!(violations[0].1.contains("`::client_dies`"));
    }

    #[test]
    fn a_test_of_python_is_one_of_that_file() {
        let text = "| Promise | Test |\n|---|---|\n\
                    | a | `python/tests/test_fork.py::test_child`, `::test_parent` |\n\
                    | b | `python/tests/test_fork.py::helper` |\n| c | `test_fork.py::test_child` |\n";
        let code = "def test_child(pool):\n    pass\ndef helper():\n    pass\n";
        let tree = Tree::of(&[(PATH, text), ("python/tests/test_fork.py", code)]);
        let violations = check(&tree, &Definitions::of(&tree));
        assert_eq!(violations.iter().map(|wrong| wrong.line).collect::<Vec<_>>(), [3, 4, 5]);
        assert!(violations[0].message.contains("`::test_parent`"));
    }

    #[test]
    fn a_promise_without_a_test_is_found() {
        let violations = found("| Promise | Tests |\n|---|---|\n| a | |\n| b |\n");
        assert_eq!(violations.iter().map(|(line, _)| *line).collect::<Vec<_>>(), [3, 4]);
    }

    #[test]
    fn pages_of_promises_are_checked_like_the_first_and_linked_from_it() {
        let promises = "| Promise | Test |\n|---|---|\n\
                        | a | `kill::daemon_dies` |\n| b | `kill::gone` |\n| c | |\n";
        let tree = Tree::of(&[
            (PATH, "[tables](semantics/kv.md)\n"),
            ("docs/semantics/kv.md", promises),
            ("docs/semantics/mount.md", "# Promises\n"),
            ("tests/tests/kill.rs", "#[test]\nfn daemon_dies() {}\n"),
        ]);
        let found = check(&tree, &Definitions::of(&tree));
        let places: Vec<_> = found.iter().map(|wrong| (wrong.path.as_str(), wrong.line)).collect();
        let (tables, files) = ("docs/semantics/kv.md", "docs/semantics/mount.md");
        assert_eq!(places, [(tables, 4), (tables, 5), (files, 1)]);
    }

    #[test]
    fn the_file_must_exist() {
        let tree = Tree::of(&[]);
        assert_eq!(check(&tree, &Definitions::of(&tree)).len(), 1);
    }
}
