//! Threads of the server that use memory while clients are measured.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use rackpool_sync::SplitMix64;

use crate::memory::Memory;
use crate::pinned::pin_to_node;

/// Bytes of the private buffer of a load thread: more than caches hold.
pub(crate) const LOAD_BYTES: u64 = 64 << 20;

/// Threads that access memory at random until they are dropped.
pub(crate) struct Background {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Background {
    pub(crate) fn new() -> Self {
        Self { stop: Arc::new(AtomicBool::new(false)), threads: Vec::new() }
    }

    /// Adds a thread on the node's processors. `writes` percent of its accesses write, each into a
    /// word of the first `bytes` bytes.
    pub(crate) fn add(
        &mut self,
        memory: Arc<Memory>,
        bytes: u64,
        node: Option<u32>,
        writes: u8,
    ) -> anyhow::Result<()> {
        let stop = Arc::clone(&self.stop);
        let seed = self.threads.len() as u64;
        let (ready, is_ready) = std::sync::mpsc::channel();
        let thread = std::thread::Builder::new().name("load".into()).spawn(move || {
            // The receiver waits for it.
            let _ = ready.send(pin_to_node(node));
            let mut random = SplitMix64::new(seed);
            while !stop.load(Ordering::Relaxed) {
                for _ in 0..1024 {
                    access(&memory, bytes, random.draw(), writes);
                }
            }
        })?;
        self.threads.push(thread);
        is_ready.recv()?
    }
}

fn access(memory: &Memory, bytes: u64, random: u64, writes: u8) {
    let words = (bytes / 8).max(1);
    let Some(word) = memory.word(random % words * 8) else { return };
    if (random >> 32) % 100 < u64::from(writes) {
        word.store(random, Ordering::Relaxed);
    } else {
        std::hint::black_box(word.load(Ordering::Relaxed));
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A panic of the thread has been printed.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writers_write_within_their_bytes_only() {
        let memory = Memory::new(4096, None).unwrap();
        let mut background = Background::new();
        background.add(Arc::clone(&memory), 64, None, 100).unwrap();
        background.add(Arc::clone(&memory), 64, None, 0).unwrap();
        let first = || memory.word(0).unwrap().load(Ordering::Relaxed);
        while first() == 0 {
            std::thread::yield_now();
        }
        drop(background);
        let beyond = (64..4096)
            .step_by(8)
            .all(|offset| memory.word(offset).unwrap().load(Ordering::Relaxed) == 0);
        assert!(beyond);
        let (stopped, later) = (first(), first());
        assert_eq!(stopped, later);
    }
}
