//! Unsafe code is fenced: only five crates and a module may contain it, and each gives the reason
//! at its start.

use super::Violation;
use super::rust_source::{RustSource, is_name};
use crate::tree::Tree;

/// The folders of the crates and modules that may hold unsafe code. Python's buffer protocol passes
/// raw pointers to the class that exports memory, so no other crate can do that for the wheel.
const FENCED: &[&str] = &[
    "crates/shm",
    "crates/ring",
    "crates/fabric-verbs",
    "benches",
    "tests/abi",
    OBJECTS_OF_PYTHON,
];
const OBJECTS_OF_PYTHON: &str = "python/src/objects";

pub(super) fn check(tree: &Tree) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut users: Vec<&str> = Vec::new();
    for (file, rust) in tree.rust_files() {
        let Some(line) = first_unsafe(rust) else { continue };
        match FENCED.iter().find(|folder| is_below(&file.path, folder)) {
            Some(folder) => users.push(folder),
            None => violations.push(Violation::new(
                file.path.as_str(),
                line,
                format!("unsafe code outside {}: give one of them a safe function", list(FENCED)),
            )),
        }
    }
    users.dedup();
    violations.extend(users.into_iter().filter_map(|folder| check_opening(tree, folder)));
    violations
}

/// A crate or module with unsafe code must declare it: it is denied elsewhere.
fn check_opening(tree: &Tree, folder: &str) -> Option<Violation> {
    let path = match folder {
        OBJECTS_OF_PYTHON => format!("{folder}.rs"),
        _ => format!("{folder}/src/lib.rs"),
    };
    let file = tree.rust_files().find(|(file, _)| file.path == path);
    let opens = file.is_some_and(|(_, rust)| opens_with_reason(&rust.code));
    let mend = "open it with #![expect(unsafe_code, reason = \"...\")]: the reason there is unsafe \
                code";
    (!opens).then(|| Violation::new(path, 1, mend))
}

/// Returns true if one of the attributes before the first item expects unsafe code and gives a
/// reason.
fn opens_with_reason(code: &str) -> bool {
    let dense: String = code.split_whitespace().collect();
    let mut rest = dense.as_str();
    while let Some(attribute) = rest.strip_prefix("#![") {
        let Some(end) = attribute.find(']') else { return false };
        if attribute[..end].contains("expect(unsafe_code,reason=") {
            return true;
        }
        rest = &attribute[end + 1..];
    }
    false
}

fn first_unsafe(rust: &RustSource) -> Option<usize> {
    let has_unsafe = |line: &str| line.split(|c| !is_name(c)).any(|word| word == "unsafe");
    rust.code.lines().position(has_unsafe).map(|index| index + 1)
}

fn is_below(path: &str, folder: &str) -> bool {
    path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'))
}

fn list(folders: &[&str]) -> String {
    folders.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPENING: &str = "//! Rings.\n#![no_std]\n#![expect(\n    unsafe_code,\n    reason = \"raw \
                           memory\"\n)]\n";

    #[test]
    fn unsafe_code_outside_the_fence_is_found() {
        let text = "// unsafe in a comment\nfn f() { unsafe { g() } }\n";
        let found = check(&Tree::of(&[("daemon/src/main.rs", text)]));
        assert!(found[0].to_string().starts_with("daemon/src/main.rs:2: unsafe code outside"));
        // A folder whose name merely begins like that of a fenced crate is outside too.
        assert_eq!(check(&Tree::of(&[("crates/ring-tools/src/lib.rs", text)])).len(), 1);
    }

    #[test]
    fn words_with_unsafe_in_them_are_not_the_keyword() {
        let text = "#![forbid(unsafe_code)]\nconst WHAT: &str = \"unsafe\"; // unsafe\n";
        assert_eq!(check(&Tree::of(&[("crates/proto/src/lib.rs", text)])), []);
    }

    #[test]
    fn a_fenced_crate_with_unsafe_code_opens_with_its_reason() {
        let user = ("crates/ring/src/cell.rs", "unsafe fn f() {}\n");
        assert_eq!(check(&Tree::of(&[user, ("crates/ring/src/lib.rs", OPENING)])), []);
        let late = format!("mod cell;\n{OPENING}");
        for text in ["mod cell;\n", "#![expect(unsafe_code)]\n", "#![expect(", &late] {
            let found = check(&Tree::of(&[user, ("crates/ring/src/lib.rs", text)]));
            assert_eq!(found.len(), 1, "{text}");
            assert_eq!(found[0].path, "crates/ring/src/lib.rs");
        }
    }

    #[test]
    fn a_fenced_module_opens_with_its_reason_and_its_crate_is_outside() {
        let user = ("python/src/objects/export.rs", "unsafe fn f() {}\n");
        assert_eq!(check(&Tree::of(&[user, ("python/src/objects.rs", OPENING)])), []);
        let found = check(&Tree::of(&[user, ("python/src/lib.rs", OPENING)]));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].path, "python/src/objects.rs");
        let other = ("python/src/pool.rs", "unsafe fn f() {}\n");
        assert!(check(&Tree::of(&[other]))[0].to_string().contains("unsafe code outside"));
    }

    #[test]
    fn a_fenced_crate_without_unsafe_code_needs_no_reason() {
        assert_eq!(check(&Tree::of(&[("crates/sync/src/lib.rs", "//! Atomics.\n")])), []);
    }
}
