//! The format of Java's `.properties` files.

/// Parses the names and values of a text, in its order.
///
/// The format is that of `java.util.Properties`: `name=value`, `name: value` or `name value`. `#`
/// and `!` begin a comment. A backslash at the end of a line continues the line; elsewhere it
/// escapes.
pub(super) fn parse(text: &str) -> Vec<(String, String)> {
    let mut pairs = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let line = line.trim_start();
        if line.is_empty() || line.starts_with(['#', '!']) {
            continue;
        }
        let mut whole = line.to_owned();
        while is_continued(&whole) {
            whole.pop();
            let Some(next) = lines.next() else { break };
            whole.push_str(next.trim_start());
        }
        pairs.push(pair(&whole));
    }
    pairs
}

/// Returns whether a line ends with an unescaped backslash.
fn is_continued(line: &str) -> bool {
    let backslashes = line.chars().rev().take_while(|letter| *letter == '\\').count();
    !backslashes.is_multiple_of(2)
}

fn pair(line: &str) -> (String, String) {
    let mut escaped = false;
    let end = line.find(|letter: char| {
        let ends = !escaped && (matches!(letter, '=' | ':') || letter.is_whitespace());
        escaped = !escaped && letter == '\\';
        ends
    });
    let (name, rest) = line.split_at(end.unwrap_or(line.len()));
    let rest = rest.trim_start();
    let value = rest.strip_prefix(['=', ':']).unwrap_or(rest);
    (unescaped(name), unescaped(value.trim()))
}

fn unescaped(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        if letter != '\\' {
            plain.push(letter);
            continue;
        }
        match letters.next() {
            Some('t') => plain.push('\t'),
            Some('n') => plain.push('\n'),
            Some('r') => plain.push('\r'),
            Some('f') => plain.push('\u{c}'),
            Some('u') => {
                let code: String = letters.by_ref().take(4).collect();
                let code = u32::from_str_radix(&code, 16).ok().and_then(char::from_u32);
                plain.push(code.unwrap_or(char::REPLACEMENT_CHARACTER));
            }
            Some(other) => plain.push(other),
            None => {}
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_as_java_reads_them() {
        let text = "# a comment\n! another\n\n  recordcount=1000\r\nworkload: site.ycsb.Core\n\
                    fieldcount 10\nempty=\nlong = one \\\n   two\\\\\nwith\\ space\\==v\\u0041\\tlue\n\
                    = no name\nlast=1\\";
        let pairs = parse(text);
        let pairs: Vec<_> = pairs.iter().map(|(name, value)| (&name[..], &value[..])).collect();
        let expected = [
            ("recordcount", "1000"),
            ("workload", "site.ycsb.Core"),
            ("fieldcount", "10"),
            ("empty", ""),
            ("long", "one two\\"),
            ("with space=", "vA\tlue"),
            ("", "no name"),
            ("last", "1"),
        ];
        assert_eq!(pairs, expected);
    }

    #[test]
    fn any_text_is_read() {
        for text in ["\\", "\\\\\\", "=", ":", "\\u", "\\u12", "\\ud800=x", "a\\\n#b", "é=ü\\é"]
        {
            for (name, value) in parse(text) {
                assert!(name.len() + value.len() <= text.len() + 3, "{text:?}");
            }
        }
    }
}
