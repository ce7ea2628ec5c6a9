//! Every comment that names the partner of a memory ordering names an existing definition.

use super::Violation;
use super::definitions::Definitions;
use super::rust_source::RustSource;
use crate::tree::Tree;

const MARKER: &str = "SYNC: pairs with";

pub(super) fn check(tree: &Tree, definitions: &Definitions) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (file, rust) in tree.rust_files() {
        for (line, sentence) in sentences(rust) {
            if let Some(message) = broken(&sentence, definitions) {
                violations.push(Violation::new(file.path.as_str(), line, message));
            }
        }
    }
    violations
}

/// The rest of each marked comment, with the line in which it starts.
fn sentences(rust: &RustSource) -> Vec<(usize, String)> {
    let lines: Vec<(&str, &str)> = rust.comments.lines().zip(rust.code.lines()).collect();
    let mut sentences = Vec::new();
    for (index, (comment, _)) in lines.iter().enumerate() {
        let Some((_, rest)) = comment.split_once(MARKER) else { continue };
        let mut sentence = rest.to_owned();
        for (comment, code) in &lines[index + 1..] {
            let comment = comment.trim();
            if !code.trim().is_empty() || !comment.starts_with("//") || comment.contains(MARKER) {
                break;
            }
            sentence.push(' ');
            sentence.push_str(comment.trim_start_matches(['/', '!']).trim());
        }
        sentences.push((index + 1, sentence));
    }
    sentences
}

/// The first broken name in one comment. All paths and calls must exist; of plain words (which may
/// be fields, or orderings) one must.
fn broken(sentence: &str, definitions: &Definitions) -> Option<String> {
    let sentence = sentence.split_once(". ").map_or(sentence, |(first, _)| first);
    let names = names(sentence);
    let exists = |name: &&&str| definitions.has_path(name);
    let is_path = |name: &&&str| name.contains("::") || name.ends_with("()");
    if names.is_empty() {
        return Some(format!(
            "`{MARKER}` names nothing: write the function or type of the other end in backticks"
        ));
    }
    let missing = names.iter().filter(is_path).find(|name| !exists(name));
    let missing = missing.or_else(|| names.iter().find(exists).is_none().then_some(&names[0]));
    missing.map(|name| {
        format!(
            "`{MARKER}` names `{name}`, which no function or type is called: name the other end"
        )
    })
}

/// The names in backticks, and the calls: `pop()` counts without backticks.
fn names(sentence: &str) -> Vec<&str> {
    let mut names = Vec::new();
    for (index, part) in sentence.split('`').enumerate() {
        if index % 2 == 1 {
            names.push(part);
        } else {
            let words =
                part.split_whitespace().map(|word| word.trim_end_matches([',', '.', ':', ';']));
            names.extend(words.filter(|word| word.len() > 2 && word.ends_with("()")));
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(comment: &str) -> Vec<Violation> {
        let text = format!(
            "struct Ring;\nfn push() {{}}\nfn pop() {{}}\n{comment}\nhead.store(1, Release);\n"
        );
        let tree = Tree::of(&[("crates/ring/src/lib.rs", text.as_str())]);
        check(&tree, &Definitions::of(&tree))
    }

    #[test]
    fn an_existing_other_end_passes() {
        assert_eq!(found("// SYNC: pairs with the acquire load of `head` in `pop`."), []);
        assert_eq!(found("// SYNC: pairs with `Ring::pop`. It keeps `no_such_name` apart."), []);
        assert_eq!(found("// SYNC: pairs with the load in the other\n// thread's `pop()`"), []);
        assert_eq!(found("// SYNC: pairs with the load in pop(): it sees the entry"), []);
        assert_eq!(found("let text = \"// SYNC: pairs with `nobody`\";"), []);
    }

    #[test]
    fn a_name_that_is_gone_is_found() {
        let gone = found("// SYNC: pairs with the load in `take`");
        assert!(gone[0].to_string().starts_with("crates/ring/src/lib.rs:4: "), "{}", gone[0]);
        assert!(gone[0].message.contains("`take`"));
        assert_eq!(found("// SYNC: pairs with `pop` and `take()`").len(), 1);
        assert_eq!(found("// SYNC: pairs with take(), see `pop`").len(), 1);
        assert_eq!(found("// SYNC: pairs with `Queue::pop`").len(), 1);
    }

    #[test]
    fn a_comment_without_a_name_is_found() {
        let unnamed = found("// SYNC: pairs with the load that pops");
        assert!(unnamed[0].message.contains("backticks"));
    }

    #[test]
    fn each_of_two_comments_stands_alone() {
        let two = "// SYNC: pairs with `pop`\n// SYNC: pairs with `take`";
        assert_eq!(found(two).len(), 1);
        assert_eq!(found(two)[0].line, 5);
    }
}
