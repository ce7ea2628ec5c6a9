//! A peer that is written with ibverbs, and a rack with the verbs fabric, on two hosts that share a
//! folder: they agree on the handshake, on every byte of each other's region, and on messages.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use common::Verbs as Fabric;
use rackpool_abi::handshake::{Connection, PairEnd, Window};
use rackpool_abi::verbs::{Action, Place, READS, Verbs};
use rackpool_fabric::conformance::pair::{
    End, bytes_of, memory_of, ok, pattern, read, transfer, write,
};
use rackpool_fabric::conformance::{Factory, Hardware};
use rackpool_fabric::{DisconnectReason, Event};
use rackpool_model::{FabricKey, RackId};
use rackpool_testing::skipped;

#[path = "../../../crates/fabric-verbs/tests/common/mod.rs"]
mod common;

/// The folder in which the rack publishes its address.
const FOLDER: &str = "RACKPOOL_RDMA_FOLDER";
const TIMEOUT: Duration = Duration::from_secs(180);
/// The peer's rack id.
const PEER: RackId = RackId(66);

/// Lengths of transfers, each larger than a word, a packet or a message's buffer at one side.
const SIZES: [usize; 8] = [1, 7, 64, 2048, 2049, 4097, 65_536, 300_000];
const ROUNDS: u8 = 4;
/// Where the transferred bytes begin in both regions.
const AT: usize = 13;
const REGION_LEN: usize = 1 << 20;
/// Added to the round in what the rack writes.
const OF_RACK: u8 = 100;

/// The largest message, the bytes of a receive buffer, and the least numbers of slots and of
/// receives, as in docs/design/verbs.md.
const MAX_MESSAGE: usize = 65_536;
const SMALL: usize = 2048;
const SLOTS: usize = 4;
const RECEIVES: usize = 32 + 9;
/// Work request ids of receives begin here.
const IS_RECEIVE: u64 = 1 << 32;

// The peer's memory: its region, its slots and receive buffers, what it sends, and what it reads.
const SLOTS_AT: usize = REGION_LEN;
const RECEIVES_AT: usize = SLOTS_AT + SLOTS * MAX_MESSAGE;
const SENT_AT: usize = RECEIVES_AT + RECEIVES * SMALL;
const BACK_AT: usize = SENT_AT + REGION_LEN;
const MEMORY_LEN: usize = BACK_AT + REGION_LEN;

fn folder() -> Option<PathBuf> {
    if !common::is_there() {
        return None;
    }
    let folder = std::env::var_os(FOLDER).map(PathBuf::from);
    if folder.is_none() {
        skipped(&format!("{FOLDER} names no folder that another host sees too"));
    }
    folder
}

fn told(len: usize) -> usize {
    len.min(MAX_MESSAGE)
}

/// The rack: checks what the peer wrote, and writes, reads and sends as it does.
#[test]
fn serve() {
    let Some(folder) = folder() else { return };
    let mut end = End::alone(Fabric.start(RackId(1), REGION_LEN as u64, Hardware::FAST));
    let unfinished = folder.join("peer.unfinished");
    std::fs::write(&unfinished, end.node.fabric.address()).unwrap();
    std::fs::rename(unfinished, folder.join("peer")).unwrap();
    let is_there = |event: &Event| matches!(event, Event::Accepted { .. });
    let Event::Accepted { endpoint, peer, .. } = end.wait("the peer", is_there) else { panic!() };
    assert_eq!(peer, PEER);
    end.endpoint = endpoint;
    for round in 0..ROUNDS {
        for len in SIZES {
            let is_message = |event: &Event| matches!(event, Event::Message { .. });
            let Event::Message { bytes, .. } = end.wait("a message", is_message) else { panic!() };
            assert!(bytes == pattern(told(len), round), "{len} B in round {round}");
            assert!(bytes_of(&end.node.frames, AT as u64, len) == pattern(len, round));
            let content = pattern(len, round + OF_RACK);
            let (size, at) = (u32::try_from(len).unwrap(), AT as u64);
            let back = Fabric.memory(len as u64);
            let from = end.register(&memory_of(&Fabric, &content));
            let to = end.register(&back);
            let list = [write(1, transfer(from, 0, at, size)), read(2, transfer(to, 0, at, size))];
            ok(end.post(&list));
            ok(end.completed(1));
            ok(end.completed(2));
            assert!(bytes_of(&back, 0, len) == content, "{len} B read in round {round}");
            ok(end.send(&content[..told(len)]));
            for region in [from, to] {
                end.fabric().unregister(region);
                end.wait("the region", |event| *event == Event::Unregistered { region });
            }
        }
    }
    let is_end = |event: &Event| matches!(event, Event::Disconnected { .. });
    let Event::Disconnected { reason, .. } = end.wait("the end", is_end) else { panic!() };
    assert_eq!(reason, DisconnectReason::Peer);
}

/// The peer: writes the rack's region, reads it back, sends a message, and checks what the rack
/// then wrote and sent.
#[test]
fn visit() {
    let Some(folder) = folder() else { return };
    let address = found(&folder.join("peer"));
    let mut peer = Peer::connect(&address);
    for round in 0..ROUNDS {
        for len in SIZES {
            let content = pattern(len, round);
            peer.verbs.put(SENT_AT, &content);
            let (at, key) = peer.remote(AT);
            peer.verbs.post(1, SENT_AT, len, Action::Write(at, key)).unwrap();
            peer.verbs.post(2, BACK_AT, len, Action::Read(at, key)).unwrap();
            peer.completed(2);
            assert!(peer.verbs.take(BACK_AT, len) == content, "{len} B read in round {round}");
            peer.send(told(len));
            let content = pattern(len, round + OF_RACK);
            assert!(peer.message() == content[..told(len)], "{len} B in round {round}");
            assert!(peer.verbs.take(AT, len) == content, "{len} B written in round {round}");
        }
    }
    peer.connection.goodbye().unwrap();
}

fn found(file: &Path) -> String {
    let start = Instant::now();
    loop {
        if let Ok(address) = std::fs::read_to_string(file) {
            return address;
        }
        assert!(start.elapsed() < TIMEOUT, "nobody serves");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// The peer's side of a connection.
struct Peer {
    verbs: Verbs,
    connection: Connection,
    theirs: PairEnd,
    /// Messages of the rack taken so far, and those of them that came through slots.
    taken: u16,
    freed: u16,
    /// Large messages sent so far.
    sent_large: usize,
    /// Sends that have completed.
    done: Vec<u64>,
    messages: Vec<Vec<u8>>,
}

impl Peer {
    fn connect(address: &str) -> Self {
        let IpAddr::V4(own) = Fabric::address() else { panic!("the lab has IPv4") };
        let place = Place::of(own).unwrap();
        let mut verbs = Verbs::new(&place, MEMORY_LEN).unwrap();
        for buffer in 0..RECEIVES {
            receive(&mut verbs, buffer);
        }
        let (base, key) = verbs.remote();
        let window =
            |at: usize, len: usize| Window { address: base + at as u64, len: len as u64, key };
        let own = PairEnd {
            number: verbs.number(),
            psn: verbs.psn(),
            lid: verbs.lid,
            mtu: verbs.mtu,
            reads_answered: READS,
            gid: place.gid,
            slots: window(SLOTS_AT, SLOTS * MAX_MESSAGE),
            exports: vec![window(0, REGION_LEN)],
        };
        let address = address.strip_prefix("verbs:").unwrap().parse().unwrap();
        // The key of the tests of the fabric.
        let key = FabricKey::new([7; 32]);
        let mut connection = Connection::open(address, PEER.0, &key).unwrap();
        let theirs = connection.exchange(&own).unwrap();
        assert_eq!((theirs.exports.len(), theirs.exports[0].len), (1, REGION_LEN as u64));
        verbs.connect(&theirs).unwrap();
        connection.ready().unwrap();
        let (done, messages) = (Vec::new(), Vec::new());
        Self { verbs, connection, theirs, taken: 0, freed: 0, sent_large: 0, done, messages }
    }

    /// Address and key of an offset in the rack's region.
    fn remote(&self, offset: usize) -> (u64, u32) {
        let export = self.theirs.exports[0];
        (export.address + offset as u64, export.key)
    }

    /// Sends the first bytes of what was written to the rack's region.
    fn send(&mut self, len: usize) {
        let immediate = u32::from(self.taken) << 16 | u32::from(self.freed);
        let action = if len <= SMALL {
            Action::SendWithImmediate(immediate)
        } else {
            let slots = self.theirs.slots;
            let count = slots.len / MAX_MESSAGE as u64;
            let slot = self.sent_large as u64 % count;
            self.sent_large += 1;
            let address = slots.address + slot * MAX_MESSAGE as u64;
            Action::WriteWithImmediate(address, slots.key, immediate)
        };
        self.verbs.post(3, SENT_AT, len, action).unwrap();
        self.completed(3);
    }

    /// Waits until the request has completed.
    fn completed(&mut self, id: u64) {
        self.until("a completion", |peer| {
            let at = peer.done.iter().position(|done| *done == id)?;
            peer.done.remove(at);
            Some(())
        });
    }

    /// Waits for the next message of the rack.
    fn message(&mut self) -> Vec<u8> {
        self.until("a message", |peer| (!peer.messages.is_empty()).then(|| peer.messages.remove(0)))
    }

    fn until<T>(&mut self, what: &str, mut found: impl FnMut(&mut Self) -> Option<T>) -> T {
        let start = Instant::now();
        loop {
            if let Some(found) = found(self) {
                return found;
            }
            assert!(start.elapsed() < TIMEOUT, "waited in vain for {what}");
            self.poll();
        }
    }

    fn poll(&mut self) {
        let Some(completion) = self.verbs.poll().unwrap() else { return };
        assert_eq!(completion.error(), None, "{completion:?}");
        let id = completion.wr_id();
        let Some(buffer) = id.checked_sub(IS_RECEIVE) else {
            self.done.push(id);
            return;
        };
        let (buffer, len) = (usize::try_from(buffer).unwrap(), completion.len());
        assert!(completion.imm_data().is_some(), "{completion:?}");
        if completion.opcode() == ibverbs::ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM {
            let slot = usize::from(self.freed) % SLOTS;
            self.messages.push(self.verbs.take(SLOTS_AT + slot * MAX_MESSAGE, len));
            self.freed += 1;
            self.taken += 1;
        } else if len > 0 {
            self.messages.push(self.verbs.take(RECEIVES_AT + buffer * SMALL, len));
            self.taken += 1;
        }
        receive(&mut self.verbs, buffer);
    }
}

/// Posts a receive into this buffer.
fn receive(verbs: &mut Verbs, buffer: usize) {
    verbs.receive(IS_RECEIVE + buffer as u64, RECEIVES_AT + buffer * SMALL, SMALL).unwrap();
}
