//! GAM's access path (Cai et al., VLDB 2018): cache lines of 512 B that a directory at the home
//! keeps coherent. Each access takes the lock of the line's bucket in the node; a line that is
//! missing, or that the node may only read, is requested from the home by a message, whose answer
//! has the bytes. Writes are asynchronous: a write posts the request for its line and returns, up
//! to [`PENDING`] are under way, and reads of other lines overtake them. (The messages to the
//! other nodes that have a line are left out, as is the wait until an evicted line is back at its
//! home: they cost more.)

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use anyhow::Context;
use rackpool_fabric::MemoryRegion;

use super::cache::{BlockCache, Evicted};
use super::network::{Handler, Home, Network, parse_request, request};
use super::parts::part_bytes;
use super::{AccessPath, CACHED, Setting, System};

/// Bytes of a line.
const LINE: usize = 512;
/// Requests of a client that are under way.
const PENDING: usize = 16;
/// Buckets of a node's cache, each with a lock.
const BUCKETS: usize = 64;

/// Kinds of requests.
const SHARE: u8 = 0;
const OWN: u8 = 1;
const WRITE_BACK: u8 = 2;

/// Homes, and a node for each rack.
pub(super) struct Gam {
    homes: Vec<Home>,
    nodes: Vec<Arc<Node>>,
    /// Bytes of a home.
    part: u64,
}

impl Gam {
    pub(super) fn start(setting: &Setting) -> anyhow::Result<Self> {
        let part = part_bytes(setting);
        let homes = Home::all(part, setting, handler)?;
        let node = |_| Arc::new(Node::new(setting.bytes / CACHED));
        Ok(Self { homes, nodes: (0..setting.racks).map(node).collect(), part })
    }
}

impl System for Gam {
    fn client(&self, rack: usize) -> anyhow::Result<Box<dyn AccessPath>> {
        let networks = self.homes.iter().map(Home::connect).collect::<anyhow::Result<_>>()?;
        let node = Arc::clone(self.nodes.get(rack).context("no such rack")?);
        let homes = Homes { networks, part: self.part };
        Ok(Box::new(Client { homes, node, pending: VecDeque::new() }))
    }
}

/// A client's connections to the homes.
struct Homes {
    networks: Vec<Network>,
    part: u64,
}

impl Homes {
    fn of(&mut self, line: u64) -> &mut Network {
        let home = usize::try_from(line * LINE as u64 / self.part).unwrap_or(usize::MAX);
        let last = self.networks.len() - 1;
        &mut self.networks[home.min(last)]
    }

    /// Sends a request for a line, or its bytes.
    fn send(&mut self, kind: u8, line: u64, bytes: &[u8]) -> anyhow::Result<()> {
        let offset = line * LINE as u64 % self.part;
        self.of(line).send(request(kind, offset, LINE, bytes))
    }
}

/// A node's cache, which its clients share.
struct Node(Vec<Mutex<Bucket>>);

struct Bucket {
    cache: BlockCache,
    /// Lines that this node may write.
    owned: HashSet<u64>,
    /// Lines that a client has requested.
    requested: HashSet<u64>,
}

impl Node {
    fn new(bytes: u64) -> Self {
        let bucket = || {
            let cache = BlockCache::new(bytes / BUCKETS as u64, LINE);
            Mutex::new(Bucket { cache, owned: HashSet::new(), requested: HashSet::new() })
        };
        Self((0..BUCKETS).map(|_| bucket()).collect())
    }

    fn lock(&self, line: u64) -> MutexGuard<'_, Bucket> {
        let bucket = usize::try_from(line % BUCKETS as u64).unwrap_or(0);
        self.0[bucket].lock().expect("no client panics")
    }
}

struct Client {
    homes: Homes,
    node: Arc<Node>,
    /// Requests under way, in their order.
    pending: VecDeque<Pending>,
}

/// A request for a line, and what is to be written once it is there.
struct Pending {
    line: u64,
    write: Option<(usize, Vec<u8>)>,
}

impl Client {
    /// Locks the bucket of a line that no client has requested.
    fn lock<'n>(&mut self, node: &'n Node, line: u64) -> anyhow::Result<MutexGuard<'n, Bucket>> {
        loop {
            let bucket = node.lock(line);
            if !bucket.requested.contains(&line) {
                return Ok(bucket);
            }
            drop(bucket);
            // The other client may wait for a line that this one has requested.
            self.drain()?;
            std::thread::yield_now();
        }
    }

    /// Requests a line, whose bucket is locked.
    fn request(
        &mut self,
        mut bucket: MutexGuard<'_, Bucket>,
        kind: u8,
        pending: Pending,
    ) -> anyhow::Result<()> {
        self.homes.send(kind, pending.line, &[])?;
        bucket.requested.insert(pending.line);
        self.pending.push_back(pending);
        Ok(())
    }

    /// Completes the oldest request.
    fn complete(&mut self) -> anyhow::Result<()> {
        let Some(Pending { line, write }) = self.pending.pop_front() else {
            return Ok(());
        };
        let reply = self.homes.of(line).reply();
        let mut bucket = self.node.lock(line);
        // Also after a failure: others wait for it.
        bucket.requested.remove(&line);
        let found = reply?;
        if bucket.cache.get(line).is_none()
            && let Some(Evicted { number, bytes }) = bucket.cache.insert(line, found)
        {
            bucket.owned.remove(&number);
            self.homes.send(WRITE_BACK, number, &bytes)?;
        }
        if let Some((start, bytes)) = write {
            bucket.owned.insert(line);
            if let Some(into) = bucket.cache.get_mut(line) {
                into[start..start + bytes.len()].copy_from_slice(&bytes);
            }
        }
        Ok(())
    }

    /// Completes all requests, also after a failure, and returns the first one.
    fn drain(&mut self) -> anyhow::Result<()> {
        let mut done = Ok(());
        while !self.pending.is_empty() {
            done = done.and(self.complete());
        }
        done
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // Other clients wait for the lines that this one has requested. Nobody is left to be told
        // of a failure.
        let _ = self.drain();
    }
}

/// The home. A write back has no reply. (The directory itself is left out, since no other node's
/// copies are invalidated.)
fn handler() -> Handler {
    Box::new(|frames: &dyn MemoryRegion, message| {
        let (kind, offset, len, bytes) = parse_request(message).expect("a request of this program");
        if kind == WRITE_BACK {
            frames.write(offset, bytes).expect("a line");
            return Vec::new();
        }
        let mut line = vec![0; len];
        frames.read(offset, &mut line).expect("a line");
        line
    })
}

/// The lines of an access: number, start within it, and the range of the access.
fn pieces(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let at = offset + done as u64;
        #[expect(clippy::cast_possible_truncation, reason = "less than a line")]
        let start = (at % LINE as u64) as usize;
        let part = (LINE - start).min(len - done);
        let range = done..done + part;
        done += part;
        Some((at / LINE as u64, start, range))
    })
}

impl AccessPath for Client {
    fn finish(&mut self) -> anyhow::Result<()> {
        self.drain()
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) -> anyhow::Result<()> {
        let node = Arc::clone(&self.node);
        for (line, start, range) in pieces(offset, into.len()) {
            let into = &mut into[range];
            loop {
                let mut bucket = self.lock(&node, line)?;
                if let Some(bytes) = bucket.cache.get(line) {
                    into.copy_from_slice(&bytes[start..start + into.len()]);
                    break;
                }
                self.request(bucket, SHARE, Pending { line, write: None })?;
                // Its answer comes after those of earlier requests.
                self.drain()?;
            }
        }
        Ok(())
    }

    fn write(&mut self, offset: u64, from: &[u8]) -> anyhow::Result<()> {
        let node = Arc::clone(&self.node);
        for (line, start, range) in pieces(offset, from.len()) {
            let bytes = &from[range];
            if self.pending.len() == PENDING {
                self.complete()?;
            }
            let mut bucket = self.lock(&node, line)?;
            if bucket.owned.contains(&line)
                && let Some(into) = bucket.cache.get_mut(line)
            {
                into[start..start + bytes.len()].copy_from_slice(bytes);
                continue;
            }
            let write = Some((start, bytes.to_vec()));
            self.request(bucket, OWN, Pending { line, write })?;
        }
        Ok(())
    }
}
