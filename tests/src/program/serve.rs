//! Executes the requests of the standard input.

use std::io::BufRead;
use std::sync::Arc;

use anyhow::bail;
use rackpool_client::{Pin, Pool};

use super::locks::Guards;
use super::{Arguments, say};
use crate::contents;

/// `serve`: answers each line of the standard input with one line, until the input ends.
pub(super) fn serve(pool: &Arc<Pool>) -> anyhow::Result<()> {
    let (mut pins, mut guards) = (Vec::new(), Guards::default());
    for line in std::io::stdin().lock().lines() {
        let words: Vec<String> = line?.split_whitespace().map(str::to_owned).collect();
        let mut arguments = Arguments(words.into_iter());
        let answer = match answer(pool, &mut pins, &mut guards, &mut arguments) {
            Ok(answer) => answer,
            Err(error) => format!("error: {error:#}"),
        };
        say(&answer)?;
    }
    Ok(())
}

fn answer<'a>(
    pool: &'a Arc<Pool>,
    pins: &mut Vec<Pin<Arc<Pool>>>,
    guards: &mut Guards<'a>,
    arguments: &mut Arguments,
) -> anyhow::Result<String> {
    let command = arguments.text("a request")?;
    Ok(match command.as_str() {
        "write-lock" | "read-lock" | "write-locked" | "unlock" => {
            guards.answer(pool, &command, arguments)?
        }
        "alloc" => format!("{:x}", pool.alloc(arguments.number("BYTES")?)?.raw()),
        "free" => {
            pool.free(arguments.addr("ADDR")?)?;
            "ok".into()
        }
        "write" => {
            let (addr, bytes) = (arguments.addr("ADDR")?, arguments.number("BYTES")?);
            let tag = arguments.number("TAG")?;
            pool.write(addr, &contents::of(tag, usize::try_from(bytes)?))?;
            "ok".into()
        }
        "check" => {
            let (addr, bytes) = (arguments.addr("ADDR")?, arguments.number("BYTES")?);
            let tag = arguments.number("TAG")?;
            let mut found = vec![0; usize::try_from(bytes)?];
            pool.read(addr, &mut found)?;
            match contents::difference(tag, &found) {
                None => "ok".into(),
                Some(at) => format!("differs at {at}"),
            }
        }
        // Whether the object holds the last written value, or words of that and of values that may
        // have been written since.
        "among" => {
            let (addr, bytes) = (arguments.addr("ADDR")?, arguments.number("BYTES")?);
            let mut tags = vec![arguments.number("TAG")?];
            for tag in arguments.0.by_ref() {
                tags.push(tag.parse()?);
            }
            let mut found = vec![0; usize::try_from(bytes)?];
            pool.read(addr, &mut found)?;
            match contents::difference_from_all(&tags, &found) {
                None => "ok".into(),
                Some(at) => format!("differs at {at}"),
            }
        }
        // Allocates fixed objects that the program owns; answers with the last one.
        "own" => {
            let (count, bytes) = (arguments.number("COUNT")?, arguments.number("BYTES")?);
            let mut last = 0;
            for _ in 0..count {
                last = pool.alloc_fixed(bytes)?.raw();
            }
            format!("{last:x}")
        }
        "pin" => {
            pins.push(Pin::new(Arc::clone(pool), arguments.addr("ADDR")?)?);
            "ok".into()
        }
        "unpin" => {
            pins.clear();
            "ok".into()
        }
        "local" => pool.is_local(arguments.addr("ADDR")?)?.to_string(),
        "root" => {
            let name = arguments.text("NAME")?;
            pool.root(&name)?.map_or("none".into(), |addr| format!("{:x}", addr.raw()))
        }
        other => bail!("there is no request '{other}'"),
    })
}
