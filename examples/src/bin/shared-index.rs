//! Builds one index from two racks, in a hash table that lies in the pool.
//!
//! A client in each rack stores the text of each document under the document's name, and adds the
//! name to the list of each word of the text. One word is in all texts, so both racks change the
//! list of that word at the same time. Run each of these in a terminal of its own:
//!
//! ```sh
//! cargo run --release --bin rackpool -- up --racks 2
//! cargo run --release -p rackpool-examples --bin shared-index
//! ```
//! The table stays in the pool until `rackpool table rm example-index`.

use std::path::{Path, PathBuf};
use std::thread;

use anyhow::{Result, anyhow, ensure};
use clap::Parser;
use rackpool_client::{ClientOptions, Pool, RackId};
use rackpool_kv::{Handle, KvError, Table, TableOptions};

const TABLE: &str = "example-index";
const RACKS: [u16; 2] = [0, 1];

/// Build one index from two racks.
#[derive(Parser)]
struct Options {
    /// Folder of the pool.
    #[arg(long, value_name = "FOLDER", default_value = "/dev/shm/rackpool")]
    dir: PathBuf,
    /// Number of documents that each rack files.
    #[arg(long, default_value_t = 200)]
    documents: u32,
}

/// The text of a document; `memory` is the word that all texts have.
const fn text(number: u32) -> &'static str {
    if number.is_multiple_of(2) { "memory here" } else { "memory elsewhere" }
}

fn document(rack: u16, number: u32) -> String {
    format!("document-{rack}-{number}")
}

fn open(dir: &Path, rack: u16) -> Result<Table<Pool>> {
    let pool = Pool::open(ClientOptions::new(dir, RackId(rack)))?;
    let options = TableOptions::for_pages(pool.page_bytes());
    // The first call creates the table; concurrent and later calls open that one.
    Ok(Table::open_or_create(pool, TABLE, &options)?)
}

/// Files the documents of a rack; returns how often a list had to be read again.
fn file_documents(handle: &mut Handle<Pool>, rack: u16, documents: u32) -> Result<u32> {
    let mut repeats = 0;
    for number in 0..documents {
        let name = document(rack, number);
        // No other client uses this key, so there is nothing to compare.
        handle.put(name.as_bytes(), text(number).as_bytes())?;
        for word in text(number).split(' ') {
            repeats += add_to_list(handle, word, &name)?;
        }
    }
    Ok(repeats)
}

/// Adds a document to the list of a word, which other clients change at the same time.
fn add_to_list(handle: &mut Handle<Pool>, word: &str, name: &str) -> Result<u32> {
    let mut repeats = 0;
    loop {
        let list = list_of(handle, word)?;
        if list.iter().any(|listed| listed == name) {
            return Ok(repeats);
        }
        let old = list.join(" ");
        let new = [&list[..], &[name.to_owned()]].concat().join(" ");
        // Stores the longer list only if the list is still the one that was read.
        let expected = (!list.is_empty()).then_some(old.as_bytes());
        match handle.compare_and_put(word.as_bytes(), expected, new.as_bytes()) {
            Ok(true) => return Ok(repeats),
            // Another client changed the list first; or a daemon ended during the call, and only
            // the list tells whether the change was made. In both cases the list is read again.
            Ok(false) | Err(KvError::OutcomeUnknown) => repeats += 1,
            Err(error) => return Err(error.into()),
        }
    }
}

fn list_of(handle: &mut Handle<Pool>, word: &str) -> Result<Vec<String>> {
    let mut list = Vec::new();
    handle.get(word.as_bytes(), &mut list)?;
    Ok(String::from_utf8(list)?.split_whitespace().map(str::to_owned).collect())
}

/// Checks that a client finds what the clients of both racks filed.
fn check(handle: &mut Handle<Pool>, documents: u32) -> Result<()> {
    let list = list_of(handle, "memory")?;
    for (rack, number) in RACKS.iter().flat_map(|rack| (0..documents).map(move |n| (*rack, n))) {
        let (name, mut found) = (document(rack, number), Vec::new());
        ensure!(handle.get(name.as_bytes(), &mut found)?, "{name} is not there");
        ensure!(found == text(number).as_bytes(), "{name} has the text of another document");
        ensure!(list.contains(&name), "{name} is not in the list of its word");
    }
    Ok(())
}

fn main() -> Result<()> {
    let Options { dir, documents } = Options::parse();
    let [first, second] = [open(&dir, RACKS[0])?, open(&dir, RACKS[1])?];
    // Each thread takes a handle of its own.
    let file = |table: &Table<Pool>, rack| file_documents(&mut table.handle(), rack, documents);
    let repeats = thread::scope(|scope| -> Result<u32> {
        let other = scope.spawn(|| file(&second, RACKS[1]));
        let own = file(&first, RACKS[0])?;
        Ok(own + other.join().map_err(|_| anyhow!("the thread of rack 1 panicked"))??)
    })?;
    check(&mut first.handle(), documents)?;
    check(&mut second.handle(), documents)?;
    println!("both racks find {} documents; {repeats} changes were repeated", 2 * documents);
    Ok(())
}
