//! Requests with fields outside their bounds, from clients that do not check them. Each causes an
//! error of that call only; no other client of the rack is affected.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use rackpool_client::{GlobalAddr, OutOfBounds, Pool, RootError, RootUpdate};
use rackpool_testing::wait::{TIMEOUT, wait_until};
use rackpool_tests::pool::TestPool;
use rackpool_wire::bounds::MAX_NAME_BYTES;
use rackpool_wire::control::{ControlRefusal, ControlReply, ControlRequest};
use rackpool_wire::metadata::{MetadataReply, MetadataRequest, Refusal, Tagged};
use rackpool_wire::{FRAME_HEADER_BYTES, FrameReader, encode};

/// Bytes of invalid names of roots: up to as many as a frame can hold.
const LENGTHS: [usize; 6] = [0, 256, 5_000, 20_000, 200_000, 1_000_000];

/// A client of a protocol that does not use the library.
struct Raw<S, R> {
    stream: S,
    frames: FrameReader,
    next: fn(&mut FrameReader) -> Option<Tagged<R>>,
}

impl<S: Read + Write, R> Raw<S, R> {
    /// Sends a frame and waits for the answer with its tag.
    fn ask(&mut self, tag: u64, frame: &[u8]) -> R {
        self.stream.write_all(frame).unwrap();
        loop {
            while let Some(Tagged { tag: answered, message }) = (self.next)(&mut self.frames) {
                if answered == tag {
                    return message;
                }
            }
            let mut bytes = [0; 4096];
            let count = self.stream.read(&mut bytes).unwrap();
            assert!(count > 0, "the connection was closed");
            self.frames.extend(&bytes[..count]);
        }
    }
}

/// The request as a broken program would send it: with an unknown kind, or with a name that is not
/// UTF-8.
fn broken(frame: Vec<u8>, name: &str) -> [Vec<u8>; 2] {
    let mut kind = frame.clone();
    kind[FRAME_HEADER_BYTES + size_of::<u64>()] = 0xee;
    let mut text = frame;
    let at = text.windows(name.len()).position(|bytes| bytes == name.as_bytes()).unwrap();
    text[at] = 0xff;
    [kind, text]
}

/// Another client of the rack looks names up, sets them and allocates, in both racks, until `stop`.
/// Every call succeeds.
fn work(pool: &Pool, stop: &AtomicBool, turns: &AtomicU32) {
    let addr = pool.alloc(64).unwrap();
    while !stop.load(Ordering::Relaxed) {
        assert_eq!(
            pool.set_root("other", None, Some(addr)).unwrap(),
            RootUpdate { addr: Some(addr), changed: true }
        );
        assert_eq!(pool.root("other").unwrap(), Some(addr));
        assert_eq!(
            pool.set_root("other", Some(addr), None).unwrap(),
            RootUpdate { addr: None, changed: true }
        );
        let large = pool.alloc(100_000).unwrap();
        pool.write(large, &[7; 64]).unwrap();
        pool.free(large).unwrap();
        turns.fetch_add(1, Ordering::Relaxed);
    }
    pool.free(addr).unwrap();
}

fn while_another_works(pool: &TestPool, strange: impl FnOnce()) {
    pool.wait_until_racks_meet();
    let (stop, turns) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| work(&pool.open(0), &stop, &turns));
        let done = |turns: &AtomicU32| turns.load(Ordering::Relaxed);
        wait_until("the other client works", TIMEOUT, || done(&turns) > 0 || worker.is_finished());
        strange();
        let then = done(&turns);
        wait_until("the other client goes on", TIMEOUT, || {
            done(&turns) > then + 1 || worker.is_finished()
        });
        stop.store(true, Ordering::Relaxed);
        worker.join().unwrap();
    });
}

#[test]
fn names_out_of_bounds_are_errors_of_the_call_before_anybody_is_asked() {
    let mut pool = TestPool::small();
    let client = pool.open(0);
    let longest = "x".repeat(MAX_NAME_BYTES);
    let addr = Some(client.alloc(64).unwrap());
    assert_eq!(client.set_root(&longest, None, addr), Ok(RootUpdate { addr, changed: true }));
    assert_eq!(client.root(&longest), Ok(addr));
    // No daemon answers: the library itself refuses these requests.
    pool.stop_daemon(0);
    for bytes in LENGTHS.into_iter().chain([3 << 20]) {
        let (name, bytes) = ("x".repeat(bytes), bytes as u64);
        let error = RootError::OutOfBounds(OutOfBounds::Name { bytes });
        assert_eq!(client.root(&name), Err(error.clone()));
        assert_eq!(client.set_root(&name, None, addr), Err(error));
    }
    pool.resume_daemon(0);
}

#[test]
fn a_client_that_checks_nothing_gets_an_error_for_each_call_that_is_wrong() {
    let pool = TestPool::small();
    while_another_works(&pool, || {
        let stream = UnixStream::connect(pool.rack_dir(0).join("daemon.sock")).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let next = |frames: &mut FrameReader| frames.next().unwrap();
        let mut raw = Raw { stream, frames: FrameReader::new(), next };
        let good = encode(&Tagged { tag: 1, message: ControlRequest::RackStatus }).unwrap();
        let well = |raw: &mut Raw<UnixStream, ControlReply>| {
            let answer = raw.ask(1, &good);
            assert!(matches!(answer, ControlReply::RackStatus(_)), "{answer:?}");
        };
        well(&mut raw);
        for (bytes, tag) in LENGTHS.into_iter().zip(2..) {
            let name = "x".repeat(bytes);
            let addr = Some(GlobalAddr::from_raw(1 << 20));
            let get = ControlRequest::GetRoot { name: name.clone() };
            let put = ControlRequest::PutRoot { name, expected: addr, new: addr };
            for message in [get, put] {
                let answer = raw.ask(tag, &encode(&Tagged { tag, message }).unwrap());
                let refused = matches!(
                    answer,
                    ControlReply::Refused(ControlRefusal::OutOfBounds(
                        OutOfBounds::Name { .. } | OutOfBounds::Request { .. }
                    ))
                );
                assert!(refused, "{bytes} B: {answer:?}");
                well(&mut raw);
            }
        }
        let get = ControlRequest::GetRoot { name: "name".into() };
        for frame in broken(encode(&Tagged { tag: 90, message: get }).unwrap(), "name") {
            let answer = raw.ask(90, &frame);
            let refused = matches!(
                answer,
                ControlReply::Refused(ControlRefusal::OutOfBounds(OutOfBounds::Meaningless(_)))
            );
            assert!(refused, "{answer:?}");
            well(&mut raw);
        }
    });
}

#[test]
fn the_metadata_server_refuses_a_request_and_not_its_connection() {
    let pool = TestPool::small();
    while_another_works(&pool, || {
        let stream = TcpStream::connect(pool.cluster.metadata_address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let next = |frames: &mut FrameReader| frames.next().unwrap();
        let mut raw = Raw { stream, frames: FrameReader::new(), next };
        let name = || "x".repeat(MAX_NAME_BYTES);
        let good = encode(&Tagged { tag: 1, message: MetadataRequest::GetRoot { name: name() } });
        let good = good.unwrap();
        let well = |raw: &mut Raw<TcpStream, MetadataReply>| {
            let root = MetadataReply::Root { addr: None, changed: false };
            assert_eq!(raw.ask(1, &good), root);
        };
        well(&mut raw);
        for (bytes, tag) in LENGTHS.into_iter().zip(2..) {
            let name = "x".repeat(bytes);
            let get = MetadataRequest::GetRoot { name: name.clone() };
            let put = MetadataRequest::PutRoot { name, expected: None, new: None };
            for message in [get, put] {
                let answer = raw.ask(tag, &encode(&Tagged { tag, message }).unwrap());
                let refused = matches!(
                    answer,
                    MetadataReply::Refused(Refusal::OutOfBounds(
                        OutOfBounds::Name { .. } | OutOfBounds::Request { .. }
                    ))
                );
                assert!(refused, "{bytes} B: {answer:?}");
                well(&mut raw);
            }
        }
        let get = MetadataRequest::GetRoot { name: "name".into() };
        for frame in broken(encode(&Tagged { tag: 90, message: get }).unwrap(), "name") {
            let answer = raw.ask(90, &frame);
            let refused = matches!(
                answer,
                MetadataReply::Refused(Refusal::OutOfBounds(OutOfBounds::Meaningless(_)))
            );
            assert!(refused, "{answer:?}");
            well(&mut raw);
        }
    });
}
