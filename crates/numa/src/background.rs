//! Threads that access memory while a measurement runs: load on private memory, and workers on the
//! registered memory.

use std::sync::Arc;
use std::thread::JoinHandle;

use rackpool_shm::Mapping;
use rackpool_shm::memory::scratch;
use rackpool_sync::SplitMix64;
use rackpool_sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::threads::run_on;
use crate::topology::StudyNode;
use crate::{Load, StudyError, Workers};

/// Accesses between two looks at the signal to stop.
const BURST: u32 = 1024;

/// Threads that run until this is dropped.
#[derive(Debug)]
pub(crate) struct Background {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Result<(), StudyError>>>,
}

impl Background {
    pub(crate) fn new() -> Self {
        Self { stop: Arc::new(AtomicBool::new(false)), threads: Vec::new() }
    }

    /// Starts the load on new memory of its node.
    pub(crate) fn load(&mut self, load: &Load, node: Option<&StudyNode>) -> Result<(), StudyError> {
        if load.threads == 0 {
            return Ok(());
        }
        let memory =
            scratch(load.buffer_bytes, None, node.map(|node| node.id)).map_err(|error| {
                StudyError::system("allocate the load's memory")(std::io::Error::other(error))
            })?;
        let cpus = node.map_or(&[][..], |node| &node.cpus);
        let bytes = load.buffer_bytes;
        self.start(load.threads, load.write_percent, cpus, &Arc::new(memory), bytes)
    }

    /// Starts the workers on the first `bytes` bytes of the registered memory.
    pub(crate) fn workers(
        &mut self,
        workers: &Workers,
        node: Option<&StudyNode>,
        memory: &Arc<Mapping>,
        bytes: u64,
    ) -> Result<(), StudyError> {
        let cpus = node.map_or(&[][..], |node| &node.cpus);
        self.start(workers.threads, workers.write_percent, cpus, memory, bytes)
    }

    fn start(
        &mut self,
        threads: u32,
        write_percent: u8,
        cpus: &[u32],
        memory: &Arc<Mapping>,
        bytes: u64,
    ) -> Result<(), StudyError> {
        for seed in 0..threads {
            let (stop, memory, cpus) = (Arc::clone(&self.stop), Arc::clone(memory), cpus.to_vec());
            let random = SplitMix64::new(u64::from(seed));
            let access = move || {
                run_on(&cpus)?;
                access(&memory, bytes, write_percent, random, &stop);
                Ok(())
            };
            let thread = std::thread::Builder::new().name("numa-load".into()).spawn(access);
            self.threads.push(thread.map_err(StudyError::system("start a thread"))?);
        }
        Ok(())
    }

    /// Stops the threads. Returns the first error of one of them.
    pub(crate) fn finish(mut self) -> Result<(), StudyError> {
        self.join()
    }

    fn join(&mut self) -> Result<(), StudyError> {
        self.stop.store(true, Ordering::Relaxed);
        let join = |thread: JoinHandle<_>| {
            thread.join().unwrap_or(Err(StudyError::Thread("the one that accesses memory")))
        };
        let results: Vec<Result<(), StudyError>> = self.threads.drain(..).map(join).collect();
        results.into_iter().collect()
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        // After an error elsewhere, which is reported.
        let _ = self.join();
    }
}

/// Reads and writes random words until told to stop.
fn access(
    memory: &Mapping,
    bytes: u64,
    write_percent: u8,
    mut random: SplitMix64,
    stop: &AtomicBool,
) {
    let words = (bytes.min(memory.len()) / 8).max(1);
    let mut sum = 0_u64;
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..BURST {
            let number = random.draw();
            let Ok(word) = memory.view::<AtomicU64>(number % words * 8) else { return };
            if (number >> 32) % 100 < u64::from(write_percent) {
                word.store(number, Ordering::Relaxed);
            } else {
                sum = sum.wrapping_add(word.load(Ordering::Relaxed));
            }
        }
    }
    std::hint::black_box(sum);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NodeChoice;
    use crate::memory::Buffer;

    #[test]
    fn workers_write_the_given_bytes_and_stop() {
        let buffer = Buffer::new(8192, None).unwrap();
        {
            let mut background = Background::new();
            let workers = Workers { threads: 2, write_percent: 100 };
            background.workers(&workers, None, &buffer.mapping, 64).unwrap();
            let is_written = || {
                let mut bytes = [0; 64];
                buffer.mapping.read(0, &mut bytes).unwrap();
                bytes.chunks(8).all(|word| word.iter().any(|byte| *byte != 0))
            };
            rackpool_testing::wait::wait_until("writes", crate::threads::TIMEOUT, is_written);
            background.finish().unwrap();
        }
        let mut rest = [0; 128];
        buffer.mapping.read(64, &mut rest).unwrap();
        assert_eq!(rest, [0; 128]);
    }

    #[test]
    fn no_threads_are_no_load() {
        let load = Load { threads: 0, node: NodeChoice::Any, buffer_bytes: 0, write_percent: 50 };
        let mut background = Background::new();
        background.load(&load, None).unwrap();
        assert!(background.threads.is_empty());
    }

    #[test]
    fn a_thread_that_cannot_run_on_its_node_is_an_error() {
        let node = StudyNode { id: 0, cpus: vec![100_000] };
        let buffer = Buffer::new(64, None).unwrap();
        let mut background = Background::new();
        let workers = Workers { threads: 1, write_percent: 90 };
        background.workers(&workers, Some(&node), &buffer.mapping, 64).unwrap();
        assert!(background.finish().is_err());
    }
}
