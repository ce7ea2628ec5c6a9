//! The object stores of a campaign: after each batch the objects in them are whole, everything that
//! they have in use can be reached from their tables, and nothing of them stays when their objects
//! are deleted. One of them moves its objects to files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rackpool_client::{GlobalAddr, Pool};
use rackpool_kv::{Table, TablePart};
use rackpool_objects::{EvictionPolicy, Store, StoreError, StoreOptions};
use rackpool_testing::wait::{TIMEOUT, wait_until};

use super::account::Account;
use super::finding::Finding;
use super::{Killed, Scene};
use crate::census;
use crate::pool::{PAGE, TestPool};
use crate::program::step::store::{SMALL, SPILLING, STORE, contents_of, id, put_in_rack_1};
use crate::steps::plan::Remains;

/// Bytes of the head of an object of [`SMALL`] bytes.
const HEAD: u64 = 256;
/// Pages of rack 1 that hold the heads of objects. A client allocates up to 64 ahead; a batch has
/// 16 clients with objects of rack 1.
const PAGES: u64 = 8;
/// Offsets of the words in a store's header that lead to its seat, to the object table and to the
/// replica tables of the racks 0 and 1: docs/design/objects.md.
const SEAT: u64 = 48;
const TABLES: [u64; 3] = [64, 128, 136];

/// Has rack 1 keep pages for the heads of objects: allocates an object in each page that stays. The
/// rest of the rack may then be filled. Returns the objects.
pub(super) fn keep_pages(pool: &TestPool, own: &Pool) -> Vec<GlobalAddr> {
    let heads = (0..PAGES * PAGE / HEAD).map(|_| own.alloc_fixed(HEAD).expect("an empty rack"));
    let mut kept = BTreeMap::new();
    for head in heads.collect::<Vec<_>>() {
        let first = *kept.entry(head.raw() / PAGE).or_insert(head);
        if first != head {
            own.free(head).expect("an object of this client");
        }
    }
    let kept: Vec<_> = kept.into_values().collect();
    kept.iter().for_each(|head| own.disown(*head).expect("an object of this client"));
    wait_until("what was freed may be used", TIMEOUT, || census::retired(pool) == 0);
    kept
}

impl Scene {
    /// Creates the stores with all of their tables.
    pub(super) fn make_stores(&self) {
        let own = Arc::new(self.ground.pool.open(0));
        let options = StoreOptions { policy: EvictionPolicy::Spill, ..StoreOptions::default() };
        Store::open_or_create_with(Arc::clone(&own), SPILLING, &options).expect("room for a store");
        let store = Store::open_or_create(own, STORE).expect("room for a store");
        let id = id(0, SMALL);
        put_in_rack_1(self.ground.pool.dir(), &id).expect("room for an object");
        drop(store.get(id.as_bytes()).expect("an object of rack 1"));
        assert!(store.delete(id.as_bytes()).expect("an object of rack 1"));
    }

    /// Checks the contents of all objects, and that none has gone that moved to a file or back.
    pub(super) fn check_stores(&self, killed: &[Killed]) -> Vec<Finding> {
        let (mut findings, _) = self.check_store(STORE);
        let (of_files, found) = self.check_store(SPILLING);
        findings.extend(of_files);
        let moved = killed.iter().filter(|client| client.remains == Remains::Moved).count();
        if found != moved {
            findings.push(Finding::Torn(format!("{found} of {moved} objects that moved")));
        }
        findings
    }

    /// Checks the contents of all objects of a store, and returns their number. A program that was
    /// killed in a delete may have left a registration, which the listing removes.
    fn check_store(&self, name: &str) -> (Vec<Finding>, usize) {
        let store = self.store(name);
        let refused = |error: StoreError| Finding::Refused(format!("the store: {error}"));
        let objects = match store.list(b"") {
            Ok(objects) => objects,
            Err(error) => return (vec![refused(error)], 0),
        };
        let check = |id: &[u8]| {
            let shown = id.escape_ascii();
            match store.get(id) {
                Ok(Some(view)) if contents_of(id).as_deref() == Some(&view) => None,
                Ok(Some(_)) => Some(Finding::Torn(format!("the object {shown}"))),
                Ok(None) => Some(Finding::Torn(format!("the object {shown} is only listed"))),
                Err(error) => Some(refused(error)),
            }
        };
        (objects.iter().filter_map(|object| check(&object.id)).collect(), objects.len())
    }

    /// Names everything that the tables of the stores lead to, and finds objects that must be among
    /// that and are not.
    pub(super) fn name_stores(&self, killed: &[Killed], account: &mut Account) {
        let own = Arc::new(self.ground.pool.open(0));
        for store in [STORE, SPILLING] {
            let header = header(&own, store);
            account.name(header, format!("the header of {store}"));
            account.name(word(&own, header, SEAT), format!("the seat of {store}"));
            for table in tables(&own, header) {
                let named = Table::walk(Arc::clone(&own), table, |part, addr, _| {
                    account.name(addr, format!("{store}, as {part:?}"));
                });
                match named {
                    Ok(walk) if walk.unread == 0 && walk.is_complete => {}
                    other => {
                        let torn = format!("a table of {store}: {other:?}");
                        account.findings.push(Finding::Torn(torn));
                    }
                }
            }
        }
        for client in killed.iter().filter(|client| client.remains == Remains::Stored) {
            for addr in &client.objects {
                if !account.is_named(*addr) {
                    let whose = format!("{client:?}");
                    account.findings.push(Finding::Free { addr: *addr, whose });
                }
            }
        }
    }

    /// Deletes all objects of the stores. Nothing may be left in their tables, and no file.
    pub(super) fn clear_stores(&self) -> Vec<Finding> {
        let mut findings = [STORE, SPILLING].map(|name| self.clear_store(name)).concat();
        let files = folders_in(self.ground.disk.path(), 3).into_iter();
        findings.extend(files.map(|file| Finding::Torn(format!("{} is left", file.display()))));
        findings
    }

    fn clear_store(&self, name: &str) -> Vec<Finding> {
        let store = self.store(name);
        let clear = || {
            for object in store.list(b"")? {
                store.delete(&object.id)?;
            }
            Ok::<_, StoreError>(())
        };
        if let Err(error) = clear() {
            return vec![Finding::Refused(format!("the store: {error}"))];
        }
        let own = store.pool();
        let mut findings = Vec::new();
        for table in tables(own, header(own, name)) {
            let walked = Table::walk(Arc::clone(own), table, |part, addr, _| {
                if part == TablePart::Entry {
                    findings.push(Finding::Stale { addr, table });
                }
            });
            findings.extend(walked.err().map(|error| Finding::Torn(format!("{table}: {error}"))));
        }
        findings
    }

    /// Removes the stores.
    pub(super) fn destroy_stores(&self) {
        for name in [STORE, SPILLING] {
            let own = Arc::new(self.ground.pool.open(0));
            assert!(Store::remove(own, name).expect("a store that nobody uses"));
        }
    }

    fn store(&self, name: &str) -> Store {
        let own = Arc::new(self.ground.pool.open(0));
        Store::open(own, name).expect("a store").expect("the store of the scene")
    }
}

/// What lies `depth` folders below a folder.
fn folders_in(folder: &Path, depth: usize) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    match depth {
        0 => paths.collect(),
        _ => paths.flat_map(|path| folders_in(&path, depth - 1)).collect(),
    }
}

fn header(own: &Pool, store: &str) -> GlobalAddr {
    own.root(store).expect("a pool that serves").expect("the store of the scene")
}

/// The tables of the store that were created.
fn tables(own: &Pool, header: GlobalAddr) -> Vec<GlobalAddr> {
    let tables = TABLES.map(|offset| word(own, header, offset));
    tables.into_iter().filter(|table| !table.is_null()).collect()
}

/// The address in a word of the header.
fn word(own: &Pool, header: GlobalAddr, offset: u64) -> GlobalAddr {
    let mut word = [0; 8];
    own.read(header.add(offset).expect("an address in the header"), &mut word)
        .expect("an object in use");
    GlobalAddr::from_raw(u64::from_le_bytes(word))
}
