//! Objects of a store, created and read at the requests of the standard input.

use std::collections::HashMap;
use std::io::BufRead;
use std::sync::Arc;

use anyhow::{Context, bail};
use rackpool_client::Pool;
use rackpool_objects::{CreateOptions, Store, StoreError, UnsealedObject, View};

use super::{Arguments, say};
use crate::contents;

/// What the program has of the store.
struct Held {
    store: Store,
    unsealed: HashMap<String, UnsealedObject>,
    views: HashMap<String, View>,
}

/// `objects NAME`: answers each line of the standard input with one line, until the input ends.
pub(super) fn objects(pool: &Arc<Pool>, arguments: &mut Arguments) -> anyhow::Result<()> {
    let store = Store::open_or_create(Arc::clone(pool), &arguments.text("NAME")?)?;
    let mut held = Held { store, unsealed: HashMap::new(), views: HashMap::new() };
    for line in std::io::stdin().lock().lines() {
        let words: Vec<String> = line?.split_whitespace().map(str::to_owned).collect();
        let answer = held.answer(&mut Arguments(words.into_iter()));
        say(&answer.unwrap_or_else(|error| format!("error: {error:#}")))?;
    }
    Ok(())
}

/// `remove-store NAME`: removes a store, and says a line before it begins and one when it is done.
pub(super) fn remove(pool: &Arc<Pool>, arguments: &mut Arguments) -> anyhow::Result<()> {
    say("begins")?;
    say(&Store::remove(Arc::clone(pool), &arguments.text("NAME")?)?.to_string())
}

impl Held {
    fn answer(&mut self, arguments: &mut Arguments) -> anyhow::Result<String> {
        let command = arguments.text("a request")?;
        let id = arguments.text("ID")?;
        Ok(match command.as_str() {
            // Creates an object and writes it, without sealing it.
            "create" => {
                let (bytes, tag) = (arguments.number("BYTES")?, arguments.number("TAG")?);
                let options = CreateOptions::default();
                let mut object = self.store.create(id.as_bytes(), bytes, &options)?;
                object.copy_from_slice(&contents::of(tag, usize::try_from(bytes)?));
                self.unsealed.insert(id, object);
                "ok".into()
            }
            "seal" => {
                self.unsealed.remove(&id).context("it was not created here")?.seal()?;
                "ok".into()
            }
            // Puts, gets and deletes objects until the program is killed, and says a line before
            // each step. Others do the same with the same ids.
            "churn" => {
                say("ok")?;
                for number in 0_u64.. {
                    say(&number.to_string())?;
                    let name = format!("{id}-{}", number % 16);
                    let bytes = contents::of(number, 64 << (number % 12));
                    match self.store.put(name.as_bytes(), &bytes, &CreateOptions::default()) {
                        Ok(()) | Err(StoreError::Exists) => {}
                        Err(error) => return Err(error.into()),
                    }
                    let other = format!("{id}-{}", number.wrapping_mul(7) % 16);
                    if let Some(view) = self.store.get(other.as_bytes())? {
                        view.verify()?;
                    }
                    if number % 3 == 0 {
                        self.store.delete(other.as_bytes())?;
                    }
                }
                "ok".into()
            }
            // Whether the object has these contents; the view stays.
            "get" => {
                let tag = arguments.number("TAG")?;
                let Some(view) = self.store.get(id.as_bytes())? else { return Ok("none".into()) };
                let answer = compare(&view, tag);
                self.views.insert(id, view);
                answer
            }
            // Whether a view that was got before still has these contents.
            "check" => {
                let tag = arguments.number("TAG")?;
                compare(self.views.get(&id).context("there is no view of it")?, tag)
            }
            "release" => {
                self.views.remove(&id).context("there is no view of it")?;
                "ok".into()
            }
            "delete" => self.store.delete(id.as_bytes())?.to_string(),
            other => bail!("there is no request '{other}'"),
        })
    }
}

fn compare(view: &View, tag: u64) -> String {
    match contents::difference(tag, view) {
        None => "ok".into(),
        Some(at) => format!("differs at {at}"),
    }
}
