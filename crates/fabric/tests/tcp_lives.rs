//! A daemon that was killed and restarted, over a network that still carries bytes of its earlier
//! incarnation.
#![allow(clippy::unwrap_used, reason = "a panic is the failure of the test")]

mod common;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use common::Tcp;
use rackpool_fabric::conformance::memory::FileMemory;
use rackpool_fabric::conformance::pair::{
    End, FRAMES_LEN, bytes_of, memory_of, ok, transfer, write,
};
use rackpool_fabric::conformance::{Factory, Hardware, Node};
use rackpool_fabric::tcp::TcpFabric;
use rackpool_fabric::{DisconnectReason, Event, MemoryRegion};
use rackpool_model::{Incarnation, RackId};

const WAIT: Duration = Duration::from_secs(30);

/// One incarnation of rack 1.
fn life(incarnation: u64) -> End {
    let frames: Arc<dyn MemoryRegion> = Arc::new(FileMemory::anonymous(FRAMES_LEN));
    let mut options = Tcp::default().options(RackId(1), Arc::clone(&frames));
    options.incarnation = Incarnation(incarnation);
    End::alone(Node { fabric: Box::new(TcpFabric::new(options).unwrap()), frames })
}

/// A proxy between a rack and its peer that can hold back the rack's bytes.
struct Network {
    address: String,
    holds: Arc<AtomicBool>,
    /// Notified when bytes are held back.
    held: mpsc::Receiver<()>,
    /// Notified when the peer has closed a connection.
    closed: mpsc::Receiver<()>,
}

impl Network {
    fn to(peer: &str) -> Self {
        let peer = peer.strip_prefix("tcp:").unwrap().to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("tcp:{}", listener.local_addr().unwrap());
        let holds = Arc::new(AtomicBool::new(false));
        let ((holding, held), (closing, closed)) = (mpsc::channel(), mpsc::channel());
        let is_held = Arc::clone(&holds);
        thread::spawn(move || {
            for rack in listener.incoming() {
                let (rack, peer) = (rack.unwrap(), TcpStream::connect(&peer).unwrap());
                let (back, forth) = (rack.try_clone().unwrap(), peer.try_clone().unwrap());
                let (is_held, holding) = (Arc::clone(&is_held), holding.clone());
                thread::spawn(move || carry(rack, forth, &is_held, &holding));
                let closing = closing.clone();
                thread::spawn(move || {
                    carry(peer, back, &AtomicBool::new(false), &mpsc::channel().0);
                    let _ = closing.send(());
                });
            }
        });
        Self { address, holds, held, closed }
    }
}

/// Forwards bytes until the end of the stream.
fn carry(mut from: TcpStream, mut to: TcpStream, holds: &AtomicBool, holding: &mpsc::Sender<()>) {
    let mut bytes = [0; 4096];
    loop {
        let count = from.read(&mut bytes).unwrap_or(0);
        if holds.load(Ordering::SeqCst) {
            let _ = holding.send(());
        }
        while holds.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_millis(1));
        }
        if count == 0 || to.write_all(&bytes[..count]).is_err() {
            let _ = to.shutdown(Shutdown::Write);
            return;
        }
    }
}

#[test]
fn what_an_earlier_life_of_a_rack_sent_does_not_land_after_what_the_later_one_sent() {
    let test = Tcp::default();
    let mut peer = End::alone(test.start(RackId(2), FRAMES_LEN, Hardware::FAST));
    let accepted = |event: &Event| matches!(event, Event::Accepted { .. });
    let network = Network::to(&peer.node.fabric.address());
    let connected = |event: &Event| matches!(event, Event::Connected { .. });

    let mut earlier = life(1);
    earlier.endpoint = ok(earlier.node.fabric.connect(&network.address));
    earlier.wait("the connection", connected);
    let Event::Accepted { endpoint, .. } = peer.wait("the earlier life", accepted) else {
        panic!()
    };
    peer.endpoint = endpoint;
    let region = earlier.register(&memory_of(&test, &[1; 8]));
    ok(earlier.post(&[write(1, transfer(region, 0, 0, 8))]));
    ok(earlier.completed(1));
    network.holds.store(true, Ordering::SeqCst);
    ok(earlier.post(&[write(2, transfer(region, 0, 0, 8))]));
    network.held.recv_timeout(WAIT).unwrap();
    drop(earlier);

    let mut later = life(2);
    later.endpoint = ok(later.node.fabric.connect(&peer.node.fabric.address()));
    later.wait("the connection", connected);
    peer.wait("the later life", accepted);
    let region = later.register(&memory_of(&test, &[2; 8]));
    ok(later.post(&[write(1, transfer(region, 0, 0, 8))]));
    ok(later.completed(1));

    network.holds.store(false, Ordering::SeqCst);
    // The channel has ended: every byte sent on it has landed by now, or never will.
    network.closed.recv_timeout(WAIT).unwrap();
    assert_eq!(bytes_of(&peer.node.frames, 0, 8), [2; 8], "a write of the earlier life landed");
    let ends = |event: &Event| matches!(event, Event::Disconnected { .. });
    let Event::Disconnected { endpoint, reason } = peer.wait("the end", ends) else { panic!() };
    assert_eq!((endpoint, reason), (peer.endpoint, DisconnectReason::PeerGone));
    // The later incarnation is still served.
    ok(later.post(&[write(3, transfer(region, 0, 8, 8))]));
    ok(later.completed(3));
}
