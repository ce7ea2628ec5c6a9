//! Unauthenticated peers send garbage to every socket: all other clients are served.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, connect, send, socket,
};
use rackpool_admin::MetadataServer;
use rackpool_client::Pool;
use rackpool_model::FabricKind;
use rackpool_shm::{Mapping, file};
use rackpool_tests::contents;
use rackpool_tests::pool::TestPool;
use rackpool_wire::{FRAME_HEADER_BYTES, MAX_FRAME_BYTES, encode};
use rand::rngs::SmallRng;
use rand::{Rng, RngCore, SeedableRng};

/// The most time that any turn of a client's work may take.
const SLOWEST: Duration = Duration::from_secs(5);

/// Clients of both racks use both racks, including names, while unauthenticated peers send garbage.
fn while_others_work(pool: &TestPool, unauthenticated_peers: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let workers: Vec<_> = [0, 1]
            .map(|rack| {
                let (racks, stop) = ([pool.open(rack), pool.open(1 - rack)], &stop);
                scope.spawn(move || work_on(&racks, rack, stop))
            })
            .into();
        unauthenticated_peers();
        stop.store(true, Ordering::Relaxed);
        for worker in workers {
            let slowest = worker.join().unwrap();
            assert!(slowest < SLOWEST, "a client had to wait for {slowest:?}");
        }
    });
    // New clients are served too.
    for rack in [0, 1] {
        let newcomer = pool.open(rack);
        let addr = newcomer.alloc(100).unwrap();
        newcomer.free(addr).unwrap();
        assert!(newcomer.root("none").unwrap().is_none());
    }
}

fn work_on(racks: &[Pool; 2], rack: u16, stop: &AtomicBool) -> Duration {
    let objects = [0, 1].map(|home: usize| racks[home].alloc(500).unwrap());
    let (name, mut slowest) = (format!("rack {rack}"), Duration::ZERO);
    for tag in 1_u64.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let began = Instant::now();
        for addr in objects {
            racks[0].write(addr, &contents::of(tag, 500)).unwrap();
            let mut found = [0; 500];
            racks[0].read(addr, &mut found).unwrap();
            assert_eq!(contents::difference(tag, &found), None);
        }
        racks[0].set_root(&name, None, Some(objects[0])).unwrap();
        racks[0].set_root(&name, Some(objects[0]), None).unwrap();
        slowest = slowest.max(began.elapsed());
    }
    slowest
}

/// Bytes that an unauthenticated peer may send: random ones, half a frame, a frame of nonsense, a
/// frame that is too large, another version.
fn nonsense(random: &mut SmallRng) -> Vec<Vec<u8>> {
    let mut bytes = vec![0; random.random_range(1..5000)];
    random.fill_bytes(&mut bytes);
    let mut frame = encode(&vec![7_u8; 100]).unwrap();
    let half = frame[..frame.len() / 2].to_vec();
    let mut huge = frame[..FRAME_HEADER_BYTES].to_vec();
    // The header: whichever of its bytes hold the length, it is too large.
    huge.fill(0xff);
    let long = vec![0xaa; MAX_FRAME_BYTES + 100];
    let nonsense = frame.clone();
    frame[FRAME_HEADER_BYTES - 1] ^= 0x55;
    vec![bytes, half, huge, long, nonsense, frame]
}

#[test]
fn garbage_at_the_control_socket_disturbs_nobody() {
    let pool = TestPool::small();
    pool.wait_until_racks_meet();
    let mut random = SmallRng::seed_from_u64(1);
    while_others_work(&pool, || {
        let mut silent = Vec::new();
        for round in 0..30 {
            let door = pool.rack_dir(round % 2).join("daemon.sock");
            silent.push(UnixStream::connect(&door).unwrap());
            for bytes in nonsense(&mut random) {
                let mut unauthenticated_peer = UnixStream::connect(&door).unwrap();
                unauthenticated_peer.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
                // The server may close the connection in the middle.
                let _ = unauthenticated_peer.write_all(&bytes);
                silent.push(unauthenticated_peer);
            }
        }
        // A peer that sends nothing sensible is disconnected.
        for mut unauthenticated_peer in silent {
            unauthenticated_peer.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            let end = unauthenticated_peer.read(&mut [0; 64]);
            let refused = end.as_ref().is_ok_and(|count| *count == 0)
                || end.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset);
            assert!(refused, "an unauthenticated peer was answered or left waiting");
        }
    });
}

#[test]
fn garbage_at_the_metadata_server_disturbs_nobody() {
    let pool = TestPool::small();
    pool.wait_until_racks_meet();
    let mut random = SmallRng::seed_from_u64(2);
    while_others_work(&pool, || {
        let mut silent = Vec::new();
        for _ in 0..30 {
            silent.push(TcpStream::connect(pool.cluster.metadata_address()).unwrap());
            for bytes in nonsense(&mut random) {
                let mut unauthenticated_peer =
                    TcpStream::connect(pool.cluster.metadata_address()).unwrap();
                unauthenticated_peer.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
                // The server may close the connection in the middle.
                let _ = unauthenticated_peer.write_all(&bytes);
                silent.push(unauthenticated_peer);
            }
        }
    });
}

#[test]
fn garbage_at_the_fabric_socket_disturbs_nobody() {
    let pool = TestPool::small();
    pool.wait_until_racks_meet();
    let mut random = SmallRng::seed_from_u64(3);
    while_others_work(&pool, || {
        let mut silent = Vec::new();
        for round in 0..40 {
            let door = UnixAddr::new(&pool.rack_dir(round % 2).join("fabric.sock")).unwrap();
            for len in [0, 1, 15, 16, 100, 300] {
                let kind = SockType::Stream;
                let unauthenticated_peer =
                    socket(AddressFamily::Unix, kind, SockFlag::SOCK_CLOEXEC, None).unwrap();
                connect(unauthenticated_peer.as_raw_fd(), &door).unwrap();
                let mut bytes = vec![0; len];
                random.fill_bytes(&mut bytes);
                if round % 3 == 0 && len >= 16 {
                    bytes[..8].copy_from_slice(b"rackfab\0");
                    bytes[8..16].copy_from_slice(&[2, 0, 0, 0, 1, 0, 0, 0]);
                }
                if len > 0 {
                    // The peer may have been disconnected already.
                    let _ = send(unauthenticated_peer.as_raw_fd(), &bytes, MsgFlags::MSG_NOSIGNAL);
                }
                if round % 4 == 0 {
                    silent.push(unauthenticated_peer);
                }
            }
        }
    });
}

#[test]
fn garbage_at_the_port_of_the_fabric_disturbs_nobody() {
    let pool = TestPool::over(FabricKind::Tcp);
    pool.wait_until_racks_meet();
    let members = MetadataServer::at(pool.cluster.metadata_address()).status().unwrap().members;
    let doors: Vec<String> = members
        .iter()
        .map(|member| member.fabric_address.strip_prefix("tcp:").unwrap().to_owned())
        .collect();
    let mut random = SmallRng::seed_from_u64(5);
    while_others_work(&pool, || {
        let mut silent = Vec::new();
        for round in 0..100 {
            for len in [0, 1, 15, 16, 100, 70_000] {
                let mut unauthenticated_peer = TcpStream::connect(&doors[round % 2]).unwrap();
                let mut bytes = vec![0; len];
                random.fill_bytes(&mut bytes);
                if round % 3 == 0 && len >= 16 {
                    bytes[..8].copy_from_slice(b"racktcp\0");
                    bytes[8..16].copy_from_slice(&[2, 0, 0, 0, 1, 0, 0, 0]);
                }
                // The peer may have been disconnected already.
                let _ = unauthenticated_peer.write_all(&bytes);
                if round % 4 == 0 {
                    silent.push(unauthenticated_peer);
                }
            }
        }
    });
}

#[test]
fn a_client_that_scribbles_over_its_own_file_harms_nobody() {
    let pool = TestPool::small();
    pool.wait_until_racks_meet();
    let mut random = SmallRng::seed_from_u64(4);
    while_others_work(&pool, || {
        for round in 0..20 {
            let folder = pool.rack_dir(round % 2);
            let known = client_files(&folder);
            let mut client = pool.client(round % 2, &["serve"]);
            client.alloc(100);
            let own = client_files(&folder).into_iter().find(|path| !known.contains(path)).unwrap();
            let found = file::open(&own).unwrap().unwrap();
            let len = found.metadata().unwrap().len();
            let mapping = Mapping::new(&found, len).unwrap();
            // Everything but the superblock; rings and call cells are in use meanwhile.
            for _ in 0..2000 {
                let mut bytes = vec![0; random.random_range(1..200)];
                random.fill_bytes(&mut bytes);
                let end = if random.random_bool(0.5) { len } else { len.min(1 << 21) };
                let at = random.random_range(4096..end - 200);
                mapping.write(at, &bytes).unwrap();
            }
            client.kill();
        }
    });
}

#[test]
fn a_client_that_destroys_its_superblock_keeps_no_daemon_from_starting() {
    let mut pool = TestPool::small();
    pool.wait_until_racks_meet();
    let folder = pool.rack_dir(0);
    // This client's file has a lower number; without it the next daemons would not see these files.
    let _earlier = pool.open(0);
    // Magic, version, page size, threads, checksum; another kind with everything else valid.
    for at in [0, 12, 16, 28, 56, 8] {
        let known = client_files(&folder);
        let mut client = pool.client(0, &["serve"]);
        client.alloc(100);
        let own = client_files(&folder).into_iter().find(|path| !known.contains(path)).unwrap();
        let found = file::open(&own).unwrap().unwrap();
        let mapping = Mapping::new(&found, 4096).unwrap();
        let mut byte = [0];
        mapping.read(at, &mut byte).unwrap();
        mapping.write(at, &[!byte[0]]).unwrap();
        pool.kill_daemon(0);
        pool.restart_daemon(0);
        let newcomer = pool.open(0);
        let addr = newcomer.alloc(100).unwrap();
        newcomer.free(addr).unwrap();
        assert!(!own.exists(), "it is of no use to anybody");
        client.kill();
    }
}

fn client_files(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let is_client = |path: &std::path::PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.and_then(rackpool_shm::directory::RackDirectory::client_of).is_some()
    };
    entries.filter(is_client).collect()
}
