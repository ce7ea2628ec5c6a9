//! Rust source with code and comments separated, so that a rule about one is not misled by the
//! other or by string literals.

/// Both texts have the same lines as the source; text of the other kind, and of literals, is blank.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RustSource {
    pub(crate) code: String,
    pub(crate) comments: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Code,
    Comment,
    Literal,
}

impl RustSource {
    pub(crate) fn split(text: &str) -> Self {
        let mut split = Self { code: String::new(), comments: String::new() };
        let mut rest = text;
        while !rest.is_empty() {
            let (kind, length) = first_token(rest);
            let (token, after) = rest.split_at(length);
            split.push(kind, token);
            rest = after;
        }
        split
    }

    fn push(&mut self, kind: Kind, token: &str) {
        let blank = |c: char| if c == '\n' { '\n' } else { ' ' };
        let unless = |other: bool| move |c: char| if other { blank(c) } else { c };
        self.code.extend(token.chars().map(unless(kind != Kind::Code)));
        self.comments.extend(token.chars().map(unless(kind != Kind::Comment)));
    }
}

/// Returns true if `c` can be part of a Rust name.
pub(crate) fn is_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The kind and length in bytes of the first token of `text`, which must not be empty.
fn first_token(text: &str) -> (Kind, usize) {
    if text.starts_with("//") {
        return (Kind::Comment, text.find('\n').unwrap_or(text.len()));
    }
    if text.starts_with("/*") {
        return (Kind::Comment, block_comment(text));
    }
    let word = text.find(|c| !is_name(c)).unwrap_or(text.len());
    let (prefix, after) = text.split_at(word);
    let string = match prefix {
        "" | "b" | "c" => string(after),
        "r" | "br" | "cr" => raw_string(after),
        _ => None,
    };
    if let Some(length) = string {
        return (Kind::Literal, word + length);
    }
    if word > 0 {
        return (Kind::Code, word);
    }
    match character(text) {
        Some(length) => (Kind::Literal, length),
        None => (Kind::Code, text.chars().next().map_or(0, char::len_utf8)),
    }
}

/// The length of a block comment, which may contain nested ones.
fn block_comment(text: &str) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while at < text.len() {
        let rest = &text.as_bytes()[at..];
        if rest.starts_with(b"/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if rest.starts_with(b"*/") {
            (depth, at) = (depth - 1, at + 2);
        } else {
            at += 1;
        }
        if depth == 0 {
            return at;
        }
    }
    text.len()
}

/// The length of a string literal at the start of `text`, if there is one.
fn string(text: &str) -> Option<usize> {
    text.starts_with('"').then(|| quoted(text, b'"'))
}

/// The length of a raw string literal without its `r`.
fn raw_string(text: &str) -> Option<usize> {
    let hashes = text.bytes().take_while(|byte| *byte == b'#').count();
    let body = text[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    Some(body.find(&end).map_or(text.len(), |at| hashes + 1 + at + end.len()))
}

/// The length of a character literal at the start of `text`; `None` for a lifetime.
fn character(text: &str) -> Option<usize> {
    let mut inside = text.strip_prefix('\'')?.chars();
    match inside.next()? {
        '\\' => Some(quoted(text, b'\'')),
        c => (inside.next()? == '\'').then_some(2 + c.len_utf8()),
    }
}

/// The length of a literal between two `quote`s; `text` begins with the first.
fn quoted(text: &str, quote: u8) -> usize {
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            _ if byte == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> String {
        let code = RustSource::split(text).code;
        code.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn comments_and_literals_are_no_code() {
        assert_eq!(code("a // unsafe\nb"), "a b");
        assert_eq!(code("a /* x /* y */ z */ b"), "a b");
        assert_eq!(code(r#"f("unsafe \" still", g)"#), "f( , g)");
        assert_eq!(code(r##"f(r#"a " b"#, br"\", c"z")"##), "f( , , )");
        assert_eq!(code(r"['\'', '\\', '\u{41}', '界', b'\n']"), "[ , , , , b ]");
    }

    #[test]
    fn lifetimes_and_raw_names_are_code() {
        assert_eq!(code("fn f<'a>(x: &'a str) {}"), "fn f<'a>(x: &'a str) {}");
        assert_eq!(code("r#type + 'label: loop"), "r#type + 'label: loop");
        assert_eq!(code("bar\"text\""), "bar");
    }

    #[test]
    fn lines_stay_where_they_are() {
        let source = RustSource::split("a; // one\n\"\n\"; /* two\nthree */ b\n");
        assert_eq!(source.code, "a;       \n \n ;       \n         b\n");
        assert_eq!(source.comments, "   // one\n \n   /* two\nthree */  \n");
    }

    #[test]
    fn what_never_ends_goes_to_the_end() {
        for text in ["/* a", "\"a", "r#\"a\"", "'\\"] {
            assert_eq!(RustSource::split(text).code.trim(), "", "{text}");
        }
    }
}
