//! Parser of RESP2 answers. Answers are untrusted: memory is allocated only as data arrives.

use std::io::{self, BufRead, Read};

use super::error::RespError;

/// An answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Nothing,
    Text(String),
    Integer(i64),
    Bytes(Vec<u8>),
    List(Vec<Self>),
}

/// Limits of an answer: bytes of a line, bytes of a string, items of a list, depth of lists.
const MAX_LINE: u64 = 64 << 10;
const MAX_BYTES: u64 = 512 << 20;
const MAX_ITEMS: u64 = 16 << 20;
const MAX_DEPTH: u8 = 4;
/// The most memory allocated before data arrives.
const FIRST_BYTES: u64 = 64 << 10;

/// Reads an answer.
pub(crate) fn answer(from: &mut impl BufRead) -> Result<Answer, RespError> {
    nested(from, MAX_DEPTH)
}

/// Reads an answer whose lists may be nested `depth` levels deep.
fn nested(from: &mut impl BufRead, depth: u8) -> Result<Answer, RespError> {
    let line = line(from)?;
    let (kind, rest) = line.split_at_checked(1).ok_or(RespError::Protocol("an empty line"))?;
    let count = |most| match rest.parse::<i64>() {
        Ok(-1) => Ok(None),
        Ok(count) => match u64::try_from(count) {
            Ok(count) if count <= most => Ok(Some(count)),
            _ => Err(RespError::Protocol("a length out of range")),
        },
        Err(_) => Err(RespError::Protocol("a length that is no number")),
    };
    match kind {
        "+" => Ok(Answer::Text(rest.to_owned())),
        "-" if depth == MAX_DEPTH => Err(RespError::Refused(rest.to_owned())),
        // The rest of the list would be taken for the next answer.
        "-" => Err(RespError::Protocol("an error within a list")),
        ":" => {
            let number =
                rest.parse().map_err(|_| RespError::Protocol("an integer that is none"))?;
            Ok(Answer::Integer(number))
        }
        "$" => count(MAX_BYTES)?.map_or(Ok(Answer::Nothing), |len| bytes(from, len)),
        "*" if depth > 0 => {
            let Some(len) = count(MAX_ITEMS)? else { return Ok(Answer::Nothing) };
            let mut items = Vec::new();
            for _ in 0..len {
                items.push(nested(from, depth - 1)?);
            }
            Ok(Answer::List(items))
        }
        _ => Err(RespError::Protocol("an unknown kind of answer")),
    }
}

fn bytes(from: &mut impl BufRead, len: u64) -> Result<Answer, RespError> {
    let mut bytes = Vec::with_capacity(usize::try_from(len.min(FIRST_BYTES)).unwrap_or_default());
    from.take(len + 2).read_to_end(&mut bytes)?;
    if bytes.len() as u64 != len + 2 || !bytes.ends_with(b"\r\n") {
        return Err(RespError::Protocol("a string that does not end where it says"));
    }
    bytes.truncate(bytes.len() - 2);
    Ok(Answer::Bytes(bytes))
}

fn line(from: &mut impl BufRead) -> Result<String, RespError> {
    let mut line = Vec::new();
    from.take(MAX_LINE).read_until(b'\n', &mut line)?;
    if line.is_empty() {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
    }
    let line = line.strip_suffix(b"\r\n").ok_or(RespError::Protocol("a line without an end"))?;
    Ok(String::from_utf8_lossy(line).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(mut text: &[u8]) -> Result<Answer, RespError> {
        answer(&mut text)
    }

    #[test]
    fn answers_are_read() {
        let bytes = |text: &str| Answer::Bytes(text.as_bytes().to_vec());
        let list = Answer::List(vec![bytes("a"), Answer::Nothing, Answer::Integer(-7)]);
        for (text, expected) in [
            (&b"+OK\r\n"[..], Answer::Text("OK".into())),
            (b"$3\r\na\r\n\r\n", bytes("a\r\n")),
            (b"$0\r\n\r\n", bytes("")),
            (b"*-1\r\n", Answer::Nothing),
            (b"*3\r\n$1\r\na\r\n$-1\r\n:-7\r\n", list),
        ] {
            assert_eq!(parsed(text).unwrap(), expected);
        }
        let refused = parsed(b"-ERR no\r\n").unwrap_err().to_string();
        assert_eq!(refused, "the server refused: ERR no");
    }

    #[test]
    fn a_refusal_is_all_of_an_answer_or_none() {
        let mut text = &b"-ERR no\r\n+OK\r\n"[..];
        assert!(matches!(answer(&mut text), Err(RespError::Refused(_))));
        assert_eq!(answer(&mut text).unwrap(), Answer::Text("OK".into()));
        let within = parsed(b"*2\r\n-ERR no\r\n+OK\r\n");
        assert!(matches!(within, Err(RespError::Protocol(_))), "{within:?}");
    }

    #[test]
    fn anything_else_is_an_error_and_takes_no_memory() {
        for text in [
            &b""[..],
            b"\r\n",
            b"OK\r\n",
            b"+OK",
            b"$3\r\nab\r\n",
            b"$536870912\r\nab",
            b"$99999999999\r\n",
            b"$-2\r\n",
            b"*99999999999\r\n",
            b"*16000000\r\n+a\r\n",
            b":one\r\n",
            b"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n",
        ] {
            assert!(parsed(text).is_err(), "{text:?}");
        }
    }
}
