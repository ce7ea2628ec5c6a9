//! The words of `docs/glossary.md`: words that this project once had for what the field names
//! otherwise do not come back.

use super::Violation;
use crate::tree::{TextFile, Tree};

/// This file must contain the words.
const TABLE: &str = "crates/xtask/src/tidy/glossary.rs";

/// Decisions and releases keep the words of their time.
const HISTORY: [&str; 2] = ["docs/adr/", "CHANGELOG.md"];

/// Words, and what the field says. A word is a part of an identifier (`of_a_word`, `OfAWord`) or
/// stands in prose.
const WORDS: &[(&str, &str)] = &[
    ("annul", "abort"),
    ("annulled", "aborted"),
    ("asker", "requester"),
    ("crowd", "admission limiter, or many clients"),
    ("delegate", "forward"),
    ("delegated", "forwarded"),
    ("delegates", "forwards"),
    ("delegation", "forwarding"),
    ("detour", "slow path"),
    ("draft", "reservation"),
    ("drafts", "reservations"),
    ("lane", "channel"),
    ("lanes", "channels"),
    ("linger", "busy-poll window"),
    ("lookout", "spinner"),
    ("meeting", "handshake"),
    ("meetings", "handshakes"),
    ("nap", "sleep word"),
    ("naps", "event count"),
    ("papers", "credentials"),
    ("patience", "adaptive spin, timeout or grace period"),
    ("shelf", "spare segments"),
    ("stranger", "unauthenticated peer, or other user"),
    ("strangers", "unauthenticated peers, or other users"),
];

pub(super) fn check(tree: &Tree) -> Vec<Violation> {
    let is_history = |path: &str| HISTORY.iter().any(|history| path.starts_with(history));
    let files = tree.files.iter().filter(|file| file.path != TABLE && !is_history(&file.path));
    files.filter(|file| is_ours(&file.path)).flat_map(check_file).collect()
}

/// Whether people write the file.
fn is_ours(path: &str) -> bool {
    [".rs", ".md", ".sh", ".toml", ".service", ".py"].iter().any(|end| path.ends_with(end))
}

fn check_file(file: &TextFile) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (index, line) in file.text.lines().enumerate() {
        for word in parts(line) {
            if let Some((_, instead)) = WORDS.iter().find(|(old, _)| *old == word) {
                let message = format!("`{word}` is not a word of docs/glossary.md: say {instead}");
                violations.push(Violation::new(file.path.as_str(), index + 1, message));
            }
        }
    }
    violations
}

/// The words of a line in lower case, those of identifiers apart from each other.
fn parts(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut before = ' ';
    for c in line.chars() {
        let begins = c.is_uppercase() && !before.is_uppercase();
        if begins || !c.is_alphabetic() {
            words.push(String::new());
        }
        if let Some(word) = words.last_mut().filter(|_| c.is_alphabetic()) {
            word.extend(c.to_lowercase());
        }
        before = c;
    }
    words.retain(|word| !word.is_empty());
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        check(&Tree::of(&[(path, text)])).iter().map(|violation| violation.line).collect()
    }

    #[test]
    fn words_are_found_in_names_and_prose() {
        let code =
            "struct HeapDraft;\nfn take_draft() {}\nconst MAX_STRANGERS: u8 = 1;\n// A draft.\n";
        assert_eq!(lines("client/src/lib.rs", code), [1, 2, 3, 4]);
        assert_eq!(lines("docs/operating.md", "Patience, please.\n"), [1]);
    }

    #[test]
    fn parts_of_words_and_what_was_written_in_its_time_stay() {
        assert_eq!(lines("client/src/lib.rs", "let plane = Plane::napkin(shelfless);\n"), [0; 0]);
        assert_eq!(lines("docs/adr/0001-a.md", "A draft.\n"), [0; 0]);
        assert_eq!(lines("fuzz/corpus/resp/a", "a draft\n"), [0; 0]);
    }

    #[test]
    fn what_to_say_instead_is_said() {
        let found = check(&Tree::of(&[("README.md", "a lane\n")]));
        assert!(found[0].to_string().ends_with("say channel"), "{}", found[0]);
    }
}
