//! Copies under way when the other side closes the endpoint.

#![allow(clippy::unwrap_used, reason = "a panic is the failure of the test")]

mod common;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use common::Emulated;
use rackpool_fabric::conformance::Node;
use rackpool_fabric::conformance::memory::FileMemory;
use rackpool_fabric::conformance::pair::{End, bytes_of, memory_of, transfer, write};
use rackpool_fabric::emulated::{EmulatedFabric, Mapper};
use rackpool_fabric::{DisconnectReason, ErrorClass, Event, MemoryRegion, OutOfRange};
use rackpool_model::RackId;
use rustix::event::{PollFd, PollFlags, Timespec};

const FRAMES_LEN: u64 = 1 << 20;

/// Peer memory in which every write blocks until the test releases it.
struct Gated {
    inner: FileMemory,
    entered: Sender<()>,
    go_on: Mutex<Receiver<()>>,
}

struct GatedMapper(Mutex<Option<(Sender<()>, Receiver<()>)>>);

impl MemoryRegion for Gated {
    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), OutOfRange> {
        self.inner.read(offset, into)
    }
    fn write(&self, offset: u64, from: &[u8]) -> Result<(), OutOfRange> {
        self.entered.send(()).unwrap();
        self.go_on.lock().unwrap().recv().unwrap();
        self.inner.write(offset, from)
    }
    fn load(&self, offset: u64) -> Result<u64, OutOfRange> {
        self.inner.load(offset)
    }
    fn store(&self, offset: u64, value: u64) -> Result<(), OutOfRange> {
        self.inner.store(offset, value)
    }
    fn compare_exchange(&self, offset: u64, current: u64, new: u64) -> Result<u64, OutOfRange> {
        self.inner.compare_exchange(offset, current, new)
    }
    fn full_fence(&self) {
        self.inner.full_fence();
    }
}

impl Mapper for GatedMapper {
    fn map(&self, fd: OwnedFd, len: u64) -> io::Result<Arc<dyn MemoryRegion>> {
        let inner = FileMemory::new(fd, len);
        if len != FRAMES_LEN {
            return Ok(Arc::new(inner));
        }
        let (entered, go_on) = self.0.lock().unwrap().take().unwrap();
        Ok(Arc::new(Gated { inner, entered, go_on: Mutex::new(go_on) }))
    }
}

fn rack(test: &Emulated, id: u16, mapper: Option<GatedMapper>) -> End {
    let frames = FileMemory::anonymous(FRAMES_LEN);
    let mut options = test.options(RackId(id), &frames);
    options.latency = Duration::ZERO;
    if let Some(mapper) = mapper {
        options.mapper = Arc::new(mapper);
    }
    let fabric = Box::new(EmulatedFabric::new(options).unwrap());
    End::alone(Node { fabric, frames: Arc::new(frames) })
}

fn wakes(end: &End, timeout: Duration) -> bool {
    let timeout = Timespec::try_from(timeout).unwrap();
    let fd = PollFd::from_borrowed_fd(end.node.fabric.wake_fd(), PollFlags::IN);
    rustix::event::poll(&mut [fd], Some(&timeout)).unwrap() > 0
}

#[test]
fn disconnected_waits_for_a_copy_under_way() {
    let test = Emulated::new();
    let (entered_in, entered) = channel();
    let (go_on, go_on_out) = channel();
    let mapper = GatedMapper(Mutex::new(Some((entered_in, go_on_out))));
    let mut a = rack(&test, 1, Some(mapper));
    let mut b = rack(&test, 2, None);
    a.endpoint = a.node.fabric.connect(&b.node.fabric.address()).unwrap();
    a.wait("the connection", |event| matches!(event, Event::Connected { .. }));
    let accepted = |event: &Event| matches!(event, Event::Accepted { .. });
    let Event::Accepted { endpoint, .. } = b.wait("the peer", accepted) else { panic!() };

    // Two requests: the first is stopped in the middle, the second must never begin.
    let source = memory_of(&test, &[7; 16_384]);
    let region = a.register(&source);
    a.post(&[write(1, transfer(region, 0, 0, 8192)), write(2, transfer(region, 0, 8192, 8192))])
        .unwrap();
    let poster = thread::spawn(move || {
        let is_end = |event: &Event| matches!(event, Event::Disconnected { .. });
        let end = a.wait("the end", is_end);
        (a.events, end)
    });
    entered.recv().unwrap();

    b.node.fabric.disconnect(endpoint);
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(50) {
        b.poll();
        assert_eq!(b.events, [], "it was reported while the peer can still write");
    }
    b.node.fabric.disarm();
    assert!(b.node.fabric.arm(), "there is nothing to do");
    assert!(!wakes(&b, Duration::from_millis(20)));
    // Releases the writes of the first request, 4 KiB each.
    go_on.send(()).unwrap();
    go_on.send(()).unwrap();
    assert!(wakes(&b, Duration::from_secs(30)), "the end of the copy does not wake");
    b.wait("the end", |event| matches!(event, Event::Disconnected { .. }));
    drop(go_on);

    let (events, end) = poster.join().unwrap();
    let Event::Disconnected { reason, .. } = end else { panic!() };
    assert_eq!(reason, DisconnectReason::Peer);
    let [
        Event::Completed { id: 1, result: Ok(()), .. },
        Event::Completed { id: 2, result: Err(error), .. },
    ] = &events[..]
    else {
        panic!("{events:?}")
    };
    assert_eq!(error.class(), ErrorClass::Fenced);
    assert!(bytes_of(&b.node.frames, 0, 8192) == [7; 8192]);
    assert!(bytes_of(&b.node.frames, 8192, 8192) == [0; 8192]);
}
