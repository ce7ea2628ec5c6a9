//! A daemon returns with other memory: every process that still maps the old one stops using it.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use rackpool_client::{
    AccessError, AllocError, DaemonError, FreeError, GlobalAddr, Pool, ReadRequest, RootError,
    WriteRequest,
};
use rackpool_testing::wait::{TIMEOUT, wait_until};
use rackpool_tests::mount::{TestMount, why_not};
use rackpool_tests::pool::TestPool;
use rackpool_tests::service::{Answer, Service, Wire};

/// Two racks whose memory ends with their daemon.
fn volatile_pool() -> TestPool {
    let pool = TestPool::with(|options| options.memory_kind = "memfd".parse().unwrap());
    pool.wait_until_racks_meet();
    pool
}

fn wait_until_forgotten(client: &Pool) {
    wait_until("the daemon says that it does not know the client", TIMEOUT, || {
        client.ping() == Err(DaemonError::Forgotten)
    });
}

/// Checks every operation of a pool, in a thread that has used it before.
fn everything_is_forgotten(client: &Pool, addr: GlobalAddr) {
    let access = Err(AccessError::Daemon(DaemonError::Forgotten));
    let mut bytes = [0; 8];
    assert_eq!(client.read(addr, &mut bytes), access);
    assert_eq!(client.write(addr, &bytes), access);
    assert_eq!(client.read_batch(&mut [ReadRequest { addr, into: &mut bytes }]), access);
    assert_eq!(client.write_batch(&[WriteRequest { addr, from: &[1; 8] }]), access);
    assert_eq!(client.read_many(std::iter::once((addr, &mut bytes[..]))), access);
    assert_eq!(client.fetch_and_add(addr, 1).map(drop), access);
    assert_eq!(client.compare_and_swap(addr, 0, 1).map(drop), access);
    assert_eq!(client.is_local(addr).map(drop), access);
    let none = Err(AllocError::Daemon(DaemonError::Forgotten));
    assert_eq!(client.alloc(64).map(drop), none);
    assert_eq!(client.reserve(64).map(drop), none);
    assert_eq!(
        client.free(addr),
        Err(FreeError::Access(AccessError::Daemon(DaemonError::Forgotten)))
    );
    assert_eq!(client.root("name"), Err(RootError::Daemon(DaemonError::Forgotten)));
    assert_eq!(client.rack_status().map(drop), Err(DaemonError::Forgotten));
}

#[test]
fn nothing_is_acknowledged_into_memory_that_ended_with_its_daemon() {
    let mut pool = volatile_pool();
    let client = pool.open(0);
    let (addr, spare) = (client.alloc(64).unwrap(), client.alloc(64).unwrap());
    client.write(addr, &[7; 8]).unwrap();
    // The thread caches this object, so its next allocation would need no daemon.
    client.free(spare).unwrap();
    pool.kill_daemon(0);
    pool.restart_daemon(0);
    wait_until_forgotten(&client);
    everything_is_forgotten(&client, addr);
    // A newly opened client works.
    let again = pool.open(0);
    let addr = again.alloc(64).unwrap();
    again.write(addr, &[8; 8]).unwrap();
}

#[test]
fn nothing_is_acknowledged_into_memory_whose_folder_was_made_again() {
    let mut pool = TestPool::small();
    let client = pool.open(0);
    let addr = client.alloc(64).unwrap();
    client.write(addr, &[7; 8]).unwrap();
    pool.kill_daemon(0);
    std::fs::remove_dir_all(pool.rack_dir(0)).unwrap();
    // The rack gets other memory once the lease of the old one has expired.
    std::thread::sleep(std::time::Duration::from_millis(pool.cluster.options().lease_ms * 5 / 4));
    pool.restart_daemon(0);
    wait_until_forgotten(&client);
    everything_is_forgotten(&client, addr);
}

#[test]
fn a_service_acknowledges_nothing_into_memory_that_is_gone() {
    let mut pool = volatile_pool();
    let service = Service::start(&pool, 0, &[]);
    let mut wire = service.wire();
    assert_eq!(wire.ask(&["SET", "key", "value"]), Answer::ok());
    let client = pool.open(0);
    pool.kill_daemon(0);
    pool.restart_daemon(0);
    wait_until_forgotten(&client);
    // The service learns of it by itself and ends; its supervisor restarts it.
    wait_until("the service has ended", TIMEOUT, || {
        let answer = wire.try_ask(&["SET", "key", "other"]);
        answer.is_err()
    });
    assert!(Wire::try_open(&service.socket).is_err(), "it still serves");
}

#[test]
fn a_mount_acknowledges_nothing_into_memory_that_is_gone() {
    if let Some(reason) = why_not() {
        return rackpool_testing::skipped(reason);
    }
    let mut pool = volatile_pool();
    let mount = TestMount::start(&pool, 0);
    let file = mount.path("file");
    std::fs::write(&file, "contents").unwrap();
    let client = pool.open(0);
    pool.kill_daemon(0);
    pool.restart_daemon(0);
    wait_until_forgotten(&client);
    wait_until("the mount knows it", TIMEOUT, || std::fs::write(mount.path("new"), "x").is_err());
    assert!(std::fs::read(&file).is_err());
    assert!(std::fs::write(&file, "more").is_err());
    assert!(std::fs::read_dir(mount.root()).is_err());
}
