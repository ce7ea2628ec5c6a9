//! The bytes of objects: `rackpool objects get` and `put`.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;

use anyhow::{Context, bail};
use rackpool_model::ByteSize;
use rackpool_objects::{CreateOptions, Store, StoreError, View};
use rackpool_output::{UsageError, outln, print_bytes};

use super::id::Id;

/// The name that stands for standard input and standard output.
const STANDARD: &str = "-";

/// Writes a view to a file that does not exist yet, or to standard output.
pub(super) fn get(view: &View, into: &Path) -> anyhow::Result<()> {
    if into == Path::new(STANDARD) {
        return Ok(print_bytes(view)?);
    }
    let shown = into.display();
    let mut file = File::create_new(into).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => anyhow::Error::new(UsageError::new(format!(
            "{shown} exists already: remove it first, or choose another name"
        ))),
        _ => anyhow::Error::new(error).context(format!("can't create {shown}")),
    })?;
    if let Err(error) = file.write_all(view) {
        // A part of an object would look like one. Not being able to remove it changes no error.
        let _ = fs::remove_file(into);
        return Err(error).with_context(|| format!("can't write {shown}"));
    }
    Ok(())
}

/// Stores the bytes of a file or of standard input as an object.
pub(super) fn put(store: &Store, id: &Id, from: &Path) -> anyhow::Result<()> {
    let key = &id.0.0;
    // Before anything is read.
    if store.contains(key)? {
        return Err(StoreError::Exists.into());
    }
    let bytes = if from == Path::new(STANDARD) {
        put_stream(store, key, io::stdin().lock()).context("can't store standard input")
    } else {
        put_file(store, key, from).with_context(|| format!("can't store {}", from.display()))
    }?;
    outln!("put the object '{id}': {} in {}", ByteSize(bytes), store.pool().rack())?;
    Ok(())
}

fn put_file(store: &Store, key: &[u8], path: &Path) -> anyhow::Result<u64> {
    let mut file = File::open(path)?;
    let about = file.metadata()?;
    if !about.is_file() {
        return put_stream(store, key, file);
    }
    let bytes = about.len();
    let mut object = store.create(key, bytes, &CreateOptions::default())?;
    file.read_exact(&mut object).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => changed(),
        _ => error.into(),
    })?;
    if file.read(&mut [0])? > 0 {
        return Err(changed());
    }
    object.seal()?;
    Ok(bytes)
}

fn changed() -> anyhow::Error {
    anyhow::anyhow!("the file changed while it was read: nothing is stored, repeat the command")
}

/// The length of a stream is known at its end, so its bytes are collected in memory first.
fn put_stream(store: &Store, key: &[u8], stream: impl Read) -> anyhow::Result<u64> {
    let most = store.pool().frames_bytes();
    let mut bytes = Vec::new();
    stream.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    let len = bytes.len() as u64;
    if len > most {
        bail!("more than {}, which is all memory of the rack", ByteSize(most));
    }
    store.put(key, &bytes, &CreateOptions::default())?;
    Ok(len)
}
