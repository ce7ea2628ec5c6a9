//! Glob patterns: `*`, `?`, `[a-z]`, `[^a]`, and `\` before a literal character.

/// Where to continue after a mismatch behind a star: offsets in the pattern and in the text.
struct Retry {
    pattern: usize,
    text: usize,
}

/// Whether `text` as a whole matches the pattern. The time is at most proportional to the product
/// of both lengths.
#[must_use]
pub(crate) fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut at, mut from) = (0, 0);
    // Each retry advances the text behind the last star by a byte.
    let mut star: Option<Retry> = None;
    loop {
        let rest = &pattern[at..];
        if let [b'*', ..] = rest {
            star = Some(Retry { pattern: at + 1, text: from });
            at += 1;
            continue;
        }
        let step = match text.get(from) {
            None if rest.is_empty() => return true,
            None => None,
            Some(byte) => one(rest, *byte),
        };
        if let Some(used) = step {
            at += used;
            from += 1;
        } else {
            match &mut star {
                Some(retry) if retry.text < text.len() => {
                    retry.text += 1;
                    (at, from) = (retry.pattern, retry.text);
                }
                _ => return false,
            }
        }
    }
}

/// The length of the first element of a pattern if it matches the byte.
fn one(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern {
        [] => None,
        [b'?', ..] => Some(1),
        [b'[', class @ ..] => {
            let (fits, len) = in_class(class, byte);
            fits.then_some(len + 1)
        }
        [b'\\', escaped, ..] => (*escaped == byte).then_some(2),
        [other, ..] => (*other == byte).then_some(1),
    }
}

/// Whether a byte is in the class after a `[`, and the length of the class including the `]`. A
/// class without `]` ends with the pattern.
fn in_class(class: &[u8], byte: u8) -> (bool, usize) {
    let negated = class.first() == Some(&b'^');
    let mut at = usize::from(negated);
    let mut fits = false;
    loop {
        at += match &class[at..] {
            [] => break,
            [b']', ..] => {
                at += 1;
                break;
            }
            [b'\\', escaped, ..] => {
                fits |= *escaped == byte;
                2
            }
            [low, b'-', high, ..] => {
                fits |= (*low.min(high)..=*low.max(high)).contains(&byte);
                3
            }
            [other, ..] => {
                fits |= *other == byte;
                1
            }
        };
    }
    (fits != negated, at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_fit_as_in_redis() {
        for (pattern, text, fits) in [
            ("*", "", true),
            ("", "", true),
            ("", "a", false),
            ("h?llo", "hello", true),
            ("h*llo", "heeeello", true),
            ("h[ae]llo", "hillo", false),
            ("h[^e]llo", "hallo", true),
            ("h[a-c]llo", "hbllo", true),
            ("h[c-a]llo", "hbllo", true),
            ("a\\*", "a*", true),
            ("a\\*", "ab", false),
            ("*a*b*c", "xxaxxbxxc", true),
            ("*a*b*c", "xxaxxbxx", false),
            ("[", "a", false),
            ("[a", "a", true),
            ("a**", "a", true),
            ("?", "", false),
        ] {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), fits, "{pattern} {text}");
        }
    }

    #[test]
    fn many_stars_take_no_exponential_time() {
        let (pattern, text) = ("a*".repeat(200) + "b", "a".repeat(5000));
        assert!(!matches(pattern.as_bytes(), text.as_bytes()));
    }
}
