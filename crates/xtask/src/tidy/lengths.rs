//! File lengths: a file of more than 500 lines holds two concepts.

use super::Violation;
use crate::tree::Tree;

const MAX_LINES: usize = 500;

pub(super) fn check(tree: &Tree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (file, rust) in tree.rust_files() {
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
