//! Inline requests, as a person types them: words with quotes and escapes.

use std::ops::Range;

/// Splits a line into words: appends them to `words` and their ranges to `places`. False if a quote
/// is not closed, or closed within a word.
pub(super) fn split(line: &[u8], words: &mut Vec<u8>, places: &mut Vec<Range<usize>>) -> bool {
    let mut rest = line;
    loop {
        rest = rest.trim_ascii_start();
        if rest.is_empty() {
            return true;
        }
        let begin = words.len();
        match word(rest, words) {
            Some(next) => rest = next,
            None => return false,
        }
        places.push(begin..words.len());
    }
}

/// Parses one word; returns the rest of the line.
fn word<'a>(mut rest: &'a [u8], words: &mut Vec<u8>) -> Option<&'a [u8]> {
    while let Some((byte, next)) = rest.split_first() {
        rest = match byte {
            b'"' | b'\'' => {
                let after = quoted(*byte, next, words)?;
                // A closing quote must end its word.
                let ends = after.first().is_none_or(u8::is_ascii_whitespace);
                return ends.then_some(after);
            }
            byte if byte.is_ascii_whitespace() || *byte == 0 => return Some(next),
            byte => {
                words.push(*byte);
                next
            }
        };
    }
    Some(rest)
}

/// Parses the text of a quote; returns the rest of the line behind it.
fn quoted<'a>(quote: u8, mut rest: &'a [u8], words: &mut Vec<u8>) -> Option<&'a [u8]> {
    loop {
        let (byte, next) = rest.split_first()?;
        rest = match (*byte, next) {
            (byte, next) if byte == quote => return Some(next),
            (b'\\', [b'\'', next @ ..]) if quote == b'\'' => {
                words.push(b'\'');
                next
            }
            (b'\\', [b'x', high, low, next @ ..])
                if quote == b'"' && high.is_ascii_hexdigit() && low.is_ascii_hexdigit() =>
            {
                words.push(digit(*high) << 4 | digit(*low));
                next
            }
            (b'\\', [escaped, next @ ..]) if quote == b'"' => {
                words.push(match escaped {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 8,
                    b'a' => 7,
                    other => *other,
                });
                next
            }
            (byte, next) => {
                words.push(byte);
                next
            }
        };
    }
}

const fn digit(character: u8) -> u8 {
    match character {
        b'0'..=b'9' => character - b'0',
        b'a'..=b'f' => character - b'a' + 10,
        _ => character.wrapping_sub(b'A').wrapping_add(10),
    }
}
