//! Operations of an object store between two marks.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use rackpool_client::{ClientOptions, GlobalAddr, Pool, RackId};
use rackpool_objects::{CreateOptions, Store, StoreError};
use rackpool_testing::wait::TIMEOUT;

use super::{Prepared, Scene, Work, kept};
use crate::contents;
use crate::pool::PAGE;

/// The store's name.
pub const STORE: &str = "objects";
/// The name of the store whose objects move to files.
pub const SPILLING: &str = "spilling";
/// Bytes of objects without extents. Those of the other rack have no others, since it has no free
/// page.
pub const SMALL: u64 = 40;
/// Bytes of objects with an extent.
pub const LARGE: u64 = PAGE + 100;

/// The id of an object with `bytes` bytes. The number names its contents.
#[must_use]
pub fn id(number: u64, bytes: u64) -> String {
    format!("{number}-{bytes}")
}

/// The bytes of the object of this id; `None` if it is not an id that [`id`] makes.
#[must_use]
pub fn contents_of(id: &[u8]) -> Option<Vec<u8>> {
    let (number, bytes) = str::from_utf8(id).ok()?.split_once('-')?;
    Some(contents::of(number.parse().ok()?, bytes.parse().ok()?))
}

/// Stores an object as a client of rack 1, and closes that client.
///
/// # Errors
/// That of the store. What killed programs had comes back after some time, so a lack of room is an
/// error only after that.
pub fn put_in_rack_1(dir: &Path, id: &str) -> anyhow::Result<GlobalAddr> {
    let pool = Arc::new(Pool::open(ClientOptions::new(dir, RackId(1)).exact_daemon(true))?);
    let store = Store::open(Arc::clone(&pool), STORE)?.context("there is no store")?;
    let began = Instant::now();
    loop {
        match put(&store, id) {
            Err(StoreError::Alloc(_)) if began.elapsed() < TIMEOUT => {
                std::thread::sleep(Duration::from_millis(10));
            }
            done => {
                done?;
                break;
            }
        }
    }
    addr_of(&store, id)
}

fn put(store: &Store, id: &str) -> Result<(), StoreError> {
    let bytes = contents_of(id.as_bytes()).unwrap_or_default();
    store.put(id.as_bytes(), &bytes, &CreateOptions::default())
}

fn addr_of(store: &Store, id: &str) -> anyhow::Result<GlobalAddr> {
    Ok(store.stat(id.as_bytes())?.context("it was stored")?.addr)
}

impl Scene {
    pub(super) fn store(self, operation: &str) -> anyhow::Result<Prepared> {
        let moves = ["store-spill", "store-restore-large"].contains(&operation);
        let name = if moves { SPILLING } else { STORE };
        let store = Store::open(Arc::clone(&self.pool), name)?.context("there is no store")?;
        let is_large = operation.ends_with("-large");
        let bytes = if is_large { LARGE } else { SMALL };
        let id = id(std::process::id().into(), bytes);
        let mut objects = Vec::new();
        let work: Work = match operation {
            // Nobody seals it. An object with this id would be found, since it has no contents.
            "store-create" | "store-create-large" => Box::new(move || {
                let id = format!("unsealed-{id}");
                let object = store.create(id.as_bytes(), bytes, &CreateOptions::default())?;
                kept((object, store))
            }),
            "store-seal" | "store-seal-large" => {
                let mut object = store.create(id.as_bytes(), bytes, &CreateOptions::default())?;
                let contents = contents_of(id.as_bytes()).context("an id of this program")?;
                object.copy_from_slice(&contents);
                Box::new(move || {
                    object.seal()?;
                    kept(store)
                })
            }
            // All objects that other clients do not use at the moment move too.
            "store-spill" => {
                put(&store, &id)?;
                Box::new(move || {
                    store.evict(u64::MAX)?;
                    kept(store)
                })
            }
            "store-restore-large" => {
                put(&store, &id)?;
                store.evict(u64::MAX)?;
                Box::new(move || {
                    drop(store.get(id.as_bytes())?.context("it was stored")?);
                    kept(store)
                })
            }
            _ => {
                if operation.starts_with("store-far") {
                    objects.push(put_in_rack_1(&self.dir, &id)?);
                } else {
                    put(&store, &id)?;
                    objects.push(addr_of(&store, &id)?);
                }
                if operation == "store-far-delete" {
                    store.get(id.as_bytes())?.context("it was stored")?;
                }
                let is_delete = operation.contains("delete");
                Box::new(move || {
                    if is_delete {
                        anyhow::ensure!(store.delete(id.as_bytes())?, "it was stored");
                    } else {
                        drop(store.get(id.as_bytes())?.context("it was stored")?);
                    }
                    kept(store)
                })
            }
        };
        Ok(Prepared { objects, work })
    }
}
