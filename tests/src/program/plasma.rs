//! A client of Plasma's protocol, at the requests of the standard input.

use std::io::BufRead;

use anyhow::bail;

use super::{Arguments, say};
use crate::plasma::{PlasmaClient, id};

/// `plasma SOCKET`: answers each line of the standard input with one line, until the input ends.
pub(super) fn plasma(arguments: &mut Arguments) -> anyhow::Result<()> {
    let mut client = PlasmaClient::connect(arguments.text("SOCKET")?.as_ref())?;
    for line in std::io::stdin().lock().lines() {
        let words: Vec<String> = line?.split_whitespace().map(str::to_owned).collect();
        let mut words = Arguments(words.into_iter());
        let command = words.text("a request")?;
        let object = id(u8::try_from(words.number("ID")?)?);
        say(&match command.as_str() {
            "create" => format!("{:?}", client.create(object, words.number("BYTES")?).is_ok()),
            "get" => format!("{:?}", client.get(object, 0).map(|bytes| bytes.len())),
            other => bail!("there is no request '{other}'"),
        })?;
    }
    Ok(())
}
