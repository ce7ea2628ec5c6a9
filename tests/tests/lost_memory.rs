//! A rack comes back without its memory. Tables and stores lose what was there, and nothing else.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::process::Command;
use std::sync::Arc;

use rackpool_admin::MetadataServer;
use rackpool_client::{AccessError, Pool, RackId};
use rackpool_kv::{Handle, KvError, PoolError, Table, TableOptions};
use rackpool_objects::{CreateOptions, Store, StoreError};
use rackpool_testing::wait::{TIMEOUT, wait_for, wait_until};
use rackpool_tests::client::program;
use rackpool_tests::contents;
use rackpool_tests::pool::TestPool;

const LEN: usize = 10_000;
/// The rack that loses its memory.
const LOST: u16 = 1;

fn pool() -> TestPool {
    let pool = TestPool::with(|options| {
        options.racks = 3;
        options.lease_ms = 2_000;
    });
    pool.wait_until_racks_meet();
    pool
}

/// Ends a rack and starts it again with an empty folder. The programs of the rack have ended.
fn lose_memory(pool: &mut TestPool, others: &[&Pool]) {
    pool.kill_daemon(LOST);
    std::fs::remove_dir_all(pool.rack_dir(LOST)).unwrap();
    let address = pool.cluster.metadata_address().to_owned();
    wait_until("the lease runs out", TIMEOUT, || {
        let status = MetadataServer::at(&address).status();
        status.is_ok_and(|pool| pool.members.iter().any(|member| !member.alive))
    });
    pool.restart_daemon(LOST);
    let fresh = pool.open(LOST).alloc(64).unwrap();
    for other in others {
        wait_until("the new memory is reached", TIMEOUT, || other.read(fresh, &mut [0; 8]).is_ok());
    }
}

/// What `rackpool` says.
#[track_caller]
fn rackpool(pool: &TestPool, arguments: &[&str]) -> String {
    let mut command = Command::new(program("rackpool"));
    let done = command.args(arguments).arg("--dir").arg(pool.dir()).output().unwrap();
    assert!(done.status.success(), "{done:?}");
    String::from_utf8(done.stdout).unwrap()
}

fn is_lost(error: &KvError<PoolError>) -> bool {
    matches!(error, KvError::Memory(PoolError::Access(AccessError::PageLost(_))))
}

fn get(table: &mut Handle<Arc<Pool>>, key: u64) -> Result<Option<u64>, KvError<PoolError>> {
    let mut value = Vec::new();
    let is_there = table.get(&key.to_le_bytes(), &mut value)?;
    Ok(is_there.then(|| u64::from_le_bytes(value[..].try_into().unwrap())))
}

fn put(table: &mut Handle<Arc<Pool>>, key: u64, value: u64) {
    table.put(&key.to_le_bytes(), &value.to_le_bytes()).unwrap();
}

/// Nobody could store or delete a lost key, and no segment with a lost entry could be split.
#[test]
fn a_table_loses_only_the_entries_of_the_rack() {
    let mut pool = pool();
    let here = Arc::new(pool.open(0));
    let table = {
        let options = TableOptions::for_pages(here.page_bytes());
        Table::open_or_create(Arc::clone(&here), "t", &options).unwrap()
    };
    let mut handle = table.handle();
    {
        let there = Arc::new(pool.open(LOST));
        let addr = there.root("t").unwrap().unwrap();
        let mut there = Table::open(there, addr).unwrap().handle();
        (0..2000).for_each(|key| put(&mut there, key, key));
    }
    (2000..4000).for_each(|key| put(&mut handle, key, key));
    lose_memory(&mut pool, &[&here]);
    for key in 0..4000 {
        match get(&mut handle, key) {
            Ok(found) => assert!(found == Some(key) && key >= 2000, "{key}: {found:?}"),
            Err(error) => assert!(is_lost(&error) && key < 2000, "{key}: {error}"),
        }
    }
    let mut seen = 0;
    let visited = handle.for_each(|_, _| seen += 1);
    assert!(is_lost(&visited.unwrap_err()));
    assert_eq!(seen, 2000);
    put(&mut handle, 7, 70);
    assert_eq!(get(&mut handle, 7).unwrap(), Some(70));
    assert!(handle.delete(&8_u64.to_le_bytes()).unwrap());
    assert_eq!(get(&mut handle, 8).unwrap(), None);
    // The table grows.
    (4000..40_000).for_each(|key| put(&mut handle, key, key));
    assert!((4000..40_000).all(|key| get(&mut handle, key).unwrap() == Some(key)));
    let lost = handle.lost_entries().unwrap().len();
    assert!((1..2000).contains(&lost), "{lost}");
    let said = rackpool(&pool, &["table", "repair", "t"]);
    let digits: String = said.chars().filter(char::is_ascii_digit).collect();
    assert!(digits == lost.to_string() && said.contains("lost entries of the table"), "{said}");
    let said = rackpool(&pool, &["table", "repair", "t"]);
    assert!(said.starts_with("the table 't' has no lost entries"), "{said}");
    assert!((9..2000).all(|key| get(&mut handle, key).unwrap().is_none()));
    assert_eq!(handle.count().unwrap(), 38_001);
    assert_eq!(handle.unreclaimed(), 0);
}

fn store(pool: &TestPool, rack: u16) -> Store {
    Store::open_or_create(Arc::new(pool.open(rack)), "store").unwrap()
}

fn put_object(store: &Store, id: &str, tag: u64) {
    store.put(id.as_bytes(), &contents::of(tag, LEN), &CreateOptions::default()).unwrap();
}

#[track_caller]
fn check_object(store: &Store, id: &str, tag: u64) {
    let view = store.get(id.as_bytes()).unwrap().unwrap();
    assert_eq!(contents::difference(tag, &view), None);
}

fn is_lost_object(store: &Store, id: &str) -> bool {
    let lost = |error: &AccessError| matches!(error, AccessError::PageLost(_));
    match store.get(id.as_bytes()) {
        Err(StoreError::Access(error)) => lost(&error),
        Err(StoreError::Table(KvError::Memory(PoolError::Access(error)))) => lost(&error),
        _ => false,
    }
}

#[test]
fn a_store_loses_only_the_objects_of_the_rack() {
    let mut pool = pool();
    let stores = [store(&pool, 0), store(&pool, 2)];
    let [here, other] = &stores;
    {
        let there = store(&pool, LOST);
        (0..20).for_each(|object| put_object(&there, &format!("lost-{object}"), object));
        put_object(here, "kept", 100);
        put_object(here, "brought", 101);
        // The rack stores the registration of this object last, and has a replica.
        check_object(other, "brought", 101);
        check_object(&there, "brought", 101);
        // The other rack has a replica of one that will be lost.
        check_object(other, "lost-0", 0);
    }
    lose_memory(&mut pool, &[here.pool(), other.pool()]);
    let ids = |store: &Store| -> Vec<Vec<u8>> {
        store.list(b"").unwrap().into_iter().map(|object| object.id).collect()
    };
    assert_eq!(ids(here), [&b"brought"[..], b"kept"]);
    assert!((0..20).all(|object| is_lost_object(here, &format!("lost-{object}"))));
    check_object(other, "lost-0", 0);
    // In the rack itself the replica table is made anew, and holds replicas.
    let there = store(&pool, LOST);
    check_object(&there, "kept", 100);
    assert_eq!(there.stat(b"kept").unwrap().unwrap().replicas, [RackId(LOST)]);
    // Nobody knows which racks have replicas of this one.
    check_object(&there, "brought", 101);

    put_object(here, "lost-0", 200);
    check_object(other, "lost-0", 200);
    check_object(&there, "lost-0", 200);
    assert!(
        (1..20).all(|object| matches!(here.get(format!("lost-{object}").as_bytes()), Ok(None)))
    );
    assert_eq!(here.repair().unwrap(), 0);
    assert!(here.delete(b"brought").unwrap());
    assert!(stores.iter().chain([&there]).all(|store| store.get(b"brought").unwrap().is_none()));
    put_object(&there, "brought", 201);
    stores.iter().chain([&there]).for_each(|store| check_object(store, "brought", 201));
    assert!(Store::remove(Arc::clone(here.pool()), "store").unwrap());
    assert!(here.pool().root("store").unwrap().is_none());
}

#[test]
fn a_store_with_lost_objects_can_be_removed() {
    let mut pool = pool();
    let here = store(&pool, 0);
    {
        let there = store(&pool, LOST);
        (0..20).for_each(|object| put_object(&there, &format!("lost-{object}"), object));
        put_object(&here, "kept", 100);
        check_object(&there, "kept", 100);
    }
    lose_memory(&mut pool, &[here.pool()]);
    let known = rackpool(&pool, &["objects", "explain", "lost-0", "--store", "store"]);
    assert!(known.contains("not read     the object: "), "{known}");
    let said = rackpool(&pool, &["objects", "repair", "--store", "store"]);
    // The objects, and the registration of the one that the rack had brought.
    assert!(said.starts_with("removed 21 lost entries of the store 'store'"), "{said}");
    assert!(here.get(b"lost-0").unwrap().is_none());
    check_object(&here, "kept", 100);
    lose_memory(&mut pool, &[here.pool()]);
    assert!(Store::remove(Arc::clone(here.pool()), "store").unwrap());
    assert!(here.pool().root("store").unwrap().is_none());
}

/// Racks without replica could not get an object while the rack was away that had stored the
/// object's registration last.
#[test]
fn a_get_does_not_need_the_rack_of_the_registration() {
    let mut pool = pool();
    let [here, there, other] = [0, LOST, 2].map(|rack| store(&pool, rack));
    put_object(&here, "object", 1);
    check_object(&there, "object", 1);
    pool.kill_daemon(LOST);
    wait_for("the lease runs out", TIMEOUT, || {
        let error = here.delete(b"object").unwrap_err();
        matches!(
            error,
            StoreError::Table(KvError::Memory(PoolError::Access(AccessError::RackUnavailable(
                RackId(LOST)
            ))))
        )
        .then_some(())
    });
    check_object(&other, "object", 1);
    // It is a copy for this program, since a delete may have begun.
    let known = other.explain(b"object").unwrap();
    assert!(known.object.is_some() && known.replicas.is_empty());
    assert!(known.unread[0].starts_with("the registration: "), "{:?}", known.unread);
    assert_eq!(known.unknown[0].0, RackId(LOST));
    pool.restart_daemon(LOST);
    wait_until("the object is deleted", TIMEOUT, || here.delete(b"object").unwrap_or(false));
    assert!([&here, &there, &other].iter().all(|store| store.get(b"object").unwrap().is_none()));
}
