//! Ids of objects as text.

use std::fmt::{self, Write};
use std::str::FromStr;

/// The longest id in bytes.
const LONGEST: usize = 64;

/// Bytes that name an object, or begin its name. Printable characters stand for themselves, `\\`
/// for a backslash, `\xNN` for the byte NN.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::commands) struct Bytes(pub(in crate::commands) Vec<u8>);

/// The id of an object: 1 to 64 bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::commands) struct Id(pub(in crate::commands) Bytes);

/// The text is not an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(in crate::commands) enum IdError {
    #[error("write a backslash as \\\\ and any other byte as \\xNN, with two hexadecimal digits")]
    Escape,
    #[error("an id of {bytes} B: ids have 1 to {LONGEST} bytes")]
    Length { bytes: usize },
}

impl FromStr for Bytes {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
        while let [first, after @ ..] = rest {
            (bytes, rest) = match (first, after) {
                (b'\\', [b'\\', after @ ..]) => (with(bytes, b'\\'), after),
                (b'\\', [b'x', high, low, after @ ..]) => {
                    let digit = |digit: &u8| char::from(*digit).to_digit(16);
                    let byte = digit(high).zip(digit(low)).map(|(high, low)| high << 4 | low);
                    let byte = byte.and_then(|byte| u8::try_from(byte).ok());
                    (with(bytes, byte.ok_or(IdError::Escape)?), after)
                }
                (b'\\', _) => return Err(IdError::Escape),
                (byte, after) => (with(bytes, *byte), after),
            };
        }
        Ok(Self(bytes))
    }
}

fn with(mut bytes: Vec<u8>, byte: u8) -> Vec<u8> {
    bytes.push(byte);
    bytes
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            for character in chunk.valid().chars() {
                match character {
                    '\\' => f.write_str("\\\\")?,
                    shown if is_printable(shown) => f.write_char(shown)?,
                    other => escape(f, other.encode_utf8(&mut [0; 4]).as_bytes())?,
                }
            }
            escape(f, chunk.invalid())?;
        }
        Ok(())
    }
}

/// Returns true for characters that a terminal shows and that do not combine with others.
fn is_printable(character: char) -> bool {
    matches!(character, '\'' | '"') || character.escape_debug().len() == 1
}

fn escape(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(f, "\\x{byte:02x}"))
}

impl FromStr for Id {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let bytes: Bytes = text.parse()?;
        match bytes.0.len() {
            1..=LONGEST => Ok(Self(bytes)),
            bytes => Err(IdError::Length { bytes }),
        }
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_id_is_read_as_it_is_shown() {
        let ids: [(&[u8], &str); 7] = [
            (b"layer-1/w 'a'", "layer-1/w 'a'"),
            ("größe".as_bytes(), "größe"),
            (b"a\\b", "a\\\\b"),
            (b"\0\x1b[2J\n", "\\x00\\x1b[2J\\x0a"),
            (&[0xff, b'x', 0xc3], "\\xffx\\xc3"),
            // A space of no width, and a mark that combines with the character before it.
            ("\u{200b}".as_bytes(), "\\xe2\\x80\\x8b"),
            ("a\u{301}".as_bytes(), "a\\xcc\\x81"),
        ];
        for (bytes, text) in ids {
            assert_eq!(Bytes(bytes.to_vec()).to_string(), text);
            assert_eq!(text.parse(), Ok(Bytes(bytes.to_vec())));
        }
        for byte in 0..=255 {
            let id = Bytes(vec![byte, byte]);
            assert_eq!(id.to_string().parse(), Ok(id));
        }
    }

    #[test]
    fn what_is_no_id_is_refused() {
        for text in ["\\", "\\n", "\\x", "\\x1", "\\xg0", "a\\x+1"] {
            assert_eq!(text.parse::<Bytes>(), Err(IdError::Escape), "{text}");
        }
        assert_eq!("".parse::<Id>(), Err(IdError::Length { bytes: 0 }));
        assert_eq!("x".repeat(65).parse::<Id>(), Err(IdError::Length { bytes: 65 }));
        assert!("\\x00".repeat(64).parse::<Id>().is_ok());
    }
}
