//! Bytes that a peer of the emulated fabric writes.

use std::sync::Arc;

use rackpool_fabric::emulated::fuzzing::{LINK_BYTES, Messages};
use rackpool_fabric::{FabricError, MAX_MESSAGE, MemoryRegion, OutOfRange};
use rackpool_shm::Mapping;
use rackpool_sync::atomic::{AtomicU64, Ordering};

use crate::Input;
use crate::memory::zeroes;

/// Memory that a peer may read and write.
pub(crate) struct Words(pub(crate) Mapping);

impl Words {
    fn word(&self, offset: u64) -> Result<&AtomicU64, OutOfRange> {
        self.0.view(offset).map_err(|_| self.outside(offset, 8))
    }

    fn outside(&self, offset: u64, len: u64) -> OutOfRange {
        OutOfRange { offset, len, region_len: self.len() }
    }
}

impl MemoryRegion for Words {
    fn len(&self) -> u64 {
        self.0.len()
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), OutOfRange> {
        let len = into.len() as u64;
        self.0.read(offset, into).map_err(|_| self.outside(offset, len))
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), OutOfRange> {
        self.0.write(offset, from).map_err(|_| self.outside(offset, from.len() as u64))
    }

    fn load(&self, offset: u64) -> Result<u64, OutOfRange> {
        Ok(self.word(offset)?.load(Ordering::Relaxed))
    }

    fn store(&self, offset: u64, value: u64) -> Result<(), OutOfRange> {
        self.word(offset)?.store(value, Ordering::Relaxed);
        Ok(())
    }

    fn compare_exchange(&self, offset: u64, current: u64, new: u64) -> Result<u64, OutOfRange> {
        let cell = self.word(offset)?;
        let found = cell.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire);
        Ok(found.unwrap_or_else(|other| other))
    }

    /// One thread plays both ends, so no fence is needed.
    fn full_fence(&self) {}
}

/// A link between an honest sender and a receiver, into whose memory arbitrary bytes are written.
/// Without such bytes every message arrives once, in order and unchanged. With them every received
/// message has a valid length; the receiver either reports that the peer misbehaves or keeps
/// waiting; and it never does more work than the ring holds.
pub fn link(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let memory: Arc<dyn MemoryRegion> = Arc::new(Words(zeroes(LINK_BYTES)));
    let Ok(mut messages) = Messages::new(Arc::clone(&memory)) else { panic!("no link") };
    let (mut is_honest, mut sent, mut now_ns) = (true, Vec::new(), 1_u64 << 40);
    while !input.is_empty() {
        match input.below(6) {
            0..=2 => {
                let len = usize::from(input.short()).clamp(1, MAX_MESSAGE);
                let message = vec![input.byte(); len];
                let due = now_ns + u64::from(input.half());
                match messages.push(due, &message) {
                    Ok(true) => sent.push(message),
                    Ok(false) => {}
                    Err(error) => {
                        assert!(!is_honest, "{error}");
                        return;
                    }
                }
            }
            3 => {
                is_honest = false;
                let at = u64::from(input.half()) % LINK_BYTES;
                let word = input.number();
                let _ = memory.store(at & !7, word);
            }
            4 => {
                // The words and the beginnings of the rings, where damage matters most.
                is_honest = false;
                let at = 0x1000 + u64::from(input.short() % 0x2100);
                let _ = memory.write(at, input.bytes(8));
            }
            _ => {
                now_ns += u64::from(input.half());
                for _ in 0..=LINK_BYTES / 16 {
                    match messages.pop(now_ns) {
                        Ok(Some(message)) => {
                            assert!((1..=MAX_MESSAGE).contains(&message.len()));
                            if is_honest {
                                assert_eq!(message, sent.remove(0));
                            }
                        }
                        Ok(None) => break,
                        Err(error) => {
                            assert!(!is_honest, "{error}");
                            assert!(matches!(error, FabricError::Misbehaved { .. }), "{error}");
                            return;
                        }
                    }
                }
            }
        }
    }
}
