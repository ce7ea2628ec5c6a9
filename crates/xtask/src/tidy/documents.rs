//! Every document that a comment, a message or another document names must exist, and every heading
//! to which a document links.

use super::Violation;
use super::headings::anchors;
use super::rust_source::is_name;
use crate::tree::{TextFile, Tree};

/// The tests of these rules name documents that do not exist.
const TESTS: &str = "crates/xtask/src/tidy/";
const END: &str = ".md";

pub(super) fn check(tree: &Tree) -> Vec<Violation> {
    let files = tree.files.iter().filter(|file| !file.path.starts_with(TESTS));
    files.flat_map(|file| check_file(tree, file)).collect()
}

fn check_file(tree: &Tree, file: &TextFile) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (index, line) in file.text.lines().enumerate() {
        let named = named(line).map(|document| (document, ""));
        for (document, anchor) in named.chain(linked(&file.path, line)) {
            let message = match tree.text(&document) {
                None => format!("there is no {document}: name the document that says it now"),
                Some(text) if !anchor.is_empty() && !anchors(text).iter().any(|a| a == anchor) => {
                    format!("{document} has no heading #{anchor}: link to the one that says it now")
                }
                Some(_) => continue,
            };
            violations.push(Violation::new(file.path.as_str(), index + 1, message));
        }
    }
    violations
}

/// Documents named by their path from the root: `docs/design/kv.md`.
fn named(line: &str) -> impl Iterator<Item = String> {
    line.match_indices("docs/").filter_map(|(at, _)| {
        let is_inner = line[..at].chars().last().is_some_and(|c| is_name(c) || "-/.".contains(c));
        let path = |c: char| is_name(c) || "-/.".contains(c);
        let name = line[at..].split(|c| !path(c)).next()?.trim_end_matches('.');
        (!is_inner && name.ends_with(END)).then(|| name.to_owned())
    })
}

/// Documents to which a document links, relative to its own folder, each with the anchor of a
/// heading or an empty one: `[ADR 3](../adr/0003-barriers.md#why)`, `[why](#why)`.
fn linked<'a>(from: &str, line: &'a str) -> impl Iterator<Item = (String, &'a str)> {
    let links = line.split("](").skip(1).filter(|_| from.ends_with(END));
    links.filter_map(move |link| {
        let target = link.split(')').next()?;
        let (document, anchor) = target.split_once('#').unwrap_or((target, ""));
        match document {
            "" if !anchor.is_empty() => Some((from.to_owned(), anchor)),
            _ if document.ends_with(END) && !target.contains("://") => {
                Some((resolve(from, document), anchor))
            }
            _ => None,
        }
    })
}

/// The path from the root of a path relative to the folder of file `from`.
fn resolve(from: &str, target: &str) -> String {
    let mut folders: Vec<&str> = from.split('/').collect();
    folders.pop();
    for part in target.split('/') {
        match part {
            "." => {}
            ".." => _ = folders.pop(),
            part => folders.push(part),
        }
    }
    folders.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missing(path: &str, text: &str) -> Vec<usize> {
        let barriers = ("docs/adr/0003-barriers.md", "# Barriers\n\n## Why\n");
        let there = [("docs/design/kv.md", ""), barriers, (path, text)];
        check(&Tree::of(&there)).iter().map(|violation| violation.line).collect()
    }

    #[test]
    fn documents_that_are_named_exist() {
        let code =
            "//! docs/design/kv.md.\n//! (`docs/design/trace.md` draws them)\n//! docs/design/\n";
        assert_eq!(missing("crates/trace/src/format.rs", code), [2]);
    }

    #[test]
    fn documents_that_are_linked_exist_where_the_link_goes() {
        let text = "[3](../adr/0003-barriers.md#why) [KV](kv.md) [4](../adr/0004.md)\n\
                    [other](https://docs.rs/x.md) [kv](./kv.md)\n[kv](design/kv.md)\n";
        assert_eq!(missing("docs/design/swap.md", text), [1, 3]);
        assert_eq!(missing("client/src/lib.rs", "//! [`a`](nowhere.md)\n"), [0; 0]);
    }

    #[test]
    fn headings_that_are_linked_exist() {
        let text = "## Swaps of pages\n[3](../adr/0003-barriers.md#why)\n[gone](kv.md#why)\n\
                    [here](#swaps-of-pages)\n[other](https://docs.rs/x.md#y)\n[gone](#swaps)\n";
        assert_eq!(missing("docs/design/swap.md", text), [3, 6]);
    }
}
