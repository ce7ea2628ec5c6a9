//! The access path of CXL over Ethernet (Wang et al., FCCM 2023), as the Rcmp paper built it for
//! its comparison: nodes load and store a CXL window, behind which a proxy for each rack (an FPGA
//! there, a thread here) has a cache of pages; what is not there is transferred over the network.
//! A node waits for the proxy at each access, and the proxy completes one access before the next.
//! Proxies of two racks do not keep their caches coherent.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use anyhow::Context;

use super::cache::{BlockCache, Evicted};
use super::network::{Home, Idle, Network};
use super::parts::{Parts, part_bytes};
use super::{AccessPath, CACHED, Setting, System, pin_answering};

/// Bytes of a page of the proxy's cache.
const PAGE: usize = 4096;

/// States of the exchange between node and proxy.
const FREE: u32 = 0;
const REQUESTED: u32 = 1;
const DONE: u32 = 2;

/// Homes, and each rack's proxy.
pub(super) struct CxlOverEthernet {
    spins: bool,
    proxies: Vec<Proxy>,
    /// Dropped after the proxies, which are connected to them.
    _homes: Vec<Home>,
}

impl CxlOverEthernet {
    pub(super) fn start(setting: &Setting) -> anyhow::Result<Self> {
        // One-sided operations only: the homes answer nothing.
        let homes = Home::all(part_bytes(setting), setting, || Box::new(|_, _| Vec::new()))?;
        let proxy = |_| Proxy::start(setting, &homes);
        let proxies = (0..setting.racks).map(proxy).collect::<anyhow::Result<_>>()?;
        Ok(Self { spins: setting.spins, proxies, _homes: homes })
    }
}

impl System for CxlOverEthernet {
    fn client(&self, rack: usize) -> anyhow::Result<Box<dyn AccessPath>> {
        let shared = Arc::clone(&self.proxies.get(rack).context("no such rack")?.shared);
        let exchange = Arc::new(Exchange::default());
        shared.exchanges.lock().expect("the proxy does not panic").push(Arc::clone(&exchange));
        shared.changes.fetch_add(1, Ordering::Release);
        Ok(Box::new(Node { exchange, shared, spins: self.spins }))
    }
}

/// An access, and its bytes.
#[derive(Default)]
struct Access {
    offset: u64,
    is_read: bool,
    bytes: Vec<u8>,
    failure: Option<String>,
}

#[derive(Default)]
struct Exchange {
    state: AtomicU32,
    access: Mutex<Access>,
}

/// What a proxy shares with its nodes.
#[derive(Default)]
struct Shared {
    exchanges: Mutex<Vec<Arc<Exchange>>>,
    /// How often they have changed; [`STOP`] to end.
    changes: AtomicUsize,
}

const STOP: usize = usize::MAX;

struct Node {
    exchange: Arc<Exchange>,
    shared: Arc<Shared>,
    spins: bool,
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Ok(mut exchanges) = self.shared.exchanges.lock() {
            exchanges.retain(|exchange| !Arc::ptr_eq(exchange, &self.exchange));
        }
        // The proxy may have ended.
        let changes = &self.shared.changes;
        let _ = changes.fetch_update(Ordering::Release, Ordering::Relaxed, |changes| {
            (changes != STOP).then_some(changes + 1)
        });
    }
}

impl Node {
    fn access(&self, offset: u64, is_read: bool, bytes: Vec<u8>) -> anyhow::Result<Vec<u8>> {
        let mut access = self.exchange.access.lock().expect("the proxy does not panic");
        *access = Access { offset, is_read, bytes, failure: None };
        drop(access);
        self.exchange.state.store(REQUESTED, Ordering::Release);
        while self.exchange.state.load(Ordering::Acquire) != DONE {
            if self.spins {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
        self.exchange.state.store(FREE, Ordering::Relaxed);
        let mut access = self.exchange.access.lock().expect("the proxy does not panic");
        match access.failure.take() {
            Some(failure) => Err(anyhow::Error::msg(failure)),
            None => Ok(std::mem::take(&mut access.bytes)),
        }
    }
}

impl AccessPath for Node {
    fn read(&mut self, offset: u64, into: &mut [u8]) -> anyhow::Result<()> {
        let found = self.access(offset, true, vec![0; into.len()])?;
        into.copy_from_slice(&found);
        Ok(())
    }

    fn write(&mut self, offset: u64, from: &[u8]) -> anyhow::Result<()> {
        self.access(offset, false, from.to_vec()).map(drop)
    }
}

/// A rack's proxy.
struct Proxy {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    fn start(setting: &Setting, homes: &[Home]) -> anyhow::Result<Self> {
        let mut parts = Parts::new(setting, homes, |home| {
            let cache = BlockCache::new(part_bytes(setting) / CACHED, PAGE);
            Ok(Window { network: home.connect()?, cache })
        })?;
        let shared = Arc::new(Shared::default());
        let told = Arc::clone(&shared);
        let spins = setting.spins;
        let thread = std::thread::Builder::new().name("proxy".into()).spawn(move || {
            pin_answering(spins);
            serve(&mut parts, &told, spins);
        })?;
        Ok(Self { shared, thread: Some(thread) })
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.changes.store(STOP, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // A panic of the proxy has been printed.
            let _ = thread.join();
        }
    }
}

/// The proxy's loop.
fn serve(parts: &mut Parts<Window>, shared: &Shared, spins: bool) {
    let (mut exchanges, mut seen, mut idle) = (Vec::new(), 0, Idle::new(spins));
    loop {
        let changes = shared.changes.load(Ordering::Acquire);
        if changes == STOP {
            return;
        }
        if changes != seen {
            seen = changes;
            exchanges.clone_from(&shared.exchanges.lock().expect("no node panics"));
        }
        let mut has_worked = false;
        for exchange in &exchanges {
            if exchange.state.load(Ordering::Acquire) != REQUESTED {
                continue;
            }
            let mut access = exchange.access.lock().expect("no node panics");
            let Access { offset, is_read, ref mut bytes, .. } = *access;
            let done = if is_read { parts.read(offset, bytes) } else { parts.write(offset, bytes) };
            access.failure = done.err().map(|error| format!("{error:#}"));
            drop(access);
            exchange.state.store(DONE, Ordering::Release);
            has_worked = true;
        }
        if has_worked {
            idle.worked();
        } else {
            idle.wait();
        }
    }
}

/// The proxy's cache of a home's pages.
struct Window {
    network: Network,
    cache: BlockCache,
}

impl Window {
    /// Calls `each` with the pages of a range: the page's number, the start within it, and the
    /// range of the access. The pages are in the cache then; one that is written as a whole was
    /// not read.
    fn pages(
        &mut self,
        offset: u64,
        len: usize,
        is_write: bool,
        mut each: impl FnMut(&mut BlockCache, u64, usize, std::ops::Range<usize>),
    ) -> anyhow::Result<()> {
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let (page, start) = (at / PAGE as u64, usize::try_from(at % PAGE as u64)?);
            let part = (PAGE - start).min(len - done);
            if self.cache.get(page).is_none() {
                let mut found = vec![0; PAGE];
                if !is_write || part < PAGE {
                    self.network.read(page * PAGE as u64, &mut found)?;
                }
                if let Some(Evicted { number, bytes }) = self.cache.insert(page, found) {
                    self.network.post_write(number * PAGE as u64, &bytes)?;
                }
            }
            each(&mut self.cache, page, start, done..done + part);
            done += part;
        }
        Ok(())
    }
}

impl AccessPath for Window {
    fn read(&mut self, offset: u64, into: &mut [u8]) -> anyhow::Result<()> {
        self.pages(offset, into.len(), false, |cache, page, start, range| {
            if let Some(bytes) = cache.get(page) {
                let len = range.len();
                into[range].copy_from_slice(&bytes[start..start + len]);
            }
        })
    }

    fn write(&mut self, offset: u64, from: &[u8]) -> anyhow::Result<()> {
        self.pages(offset, from.len(), true, |cache, page, start, range| {
            if let Some(bytes) = cache.get_mut(page) {
                bytes[start..start + range.len()].copy_from_slice(&from[range]);
            }
        })
    }
}
