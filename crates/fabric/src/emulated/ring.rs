use super::link::{RING_BYTES, SharedLink, Word};
use super::model::LATEST_DUE_NS;
use crate::{FabricError, MAX_MESSAGE};

const HEADER_BYTES: u64 = 16;

/// The filling end of a ring, which owns this side's `tail`.
pub(super) struct Sender {
    tail: u64,
    /// The value of `tail` that the peer can see.
    published: u64,
    number: u32,
    /// Bytes reserved for messages that wait for earlier operations.
    reserved: u64,
}

/// The emptying end of a ring, which owns this side's `head`. Checks everything that it reads.
pub(super) struct Receiver {
    head: u64,
    number: u32,
    next_due_ns: Option<u64>,
}

/// Bytes that a message occupies in a ring.
pub(super) fn entry_bytes(message: &[u8]) -> u64 {
    HEADER_BYTES + (message.len() as u64).next_multiple_of(8)
}

impl Sender {
    pub(super) const fn new() -> Self {
        Self { tail: 0, published: 0, number: 0, reserved: 0 }
    }

    /// Bytes of room in the ring that are not reserved.
    pub(super) fn room(&self, link: &SharedLink) -> Result<u64, FabricError> {
        let used = self.tail.wrapping_sub(link.peer(Word::Head)?);
        if used > RING_BYTES {
            return Err(FabricError::misbehaved("it took messages that were never sent"));
        }
        Ok((RING_BYTES - used).saturating_sub(self.reserved))
    }

    /// Reserves room for a message that will be pushed later.
    pub(super) const fn reserve(&mut self, entry_bytes: u64) {
        self.reserved += entry_bytes;
    }

    /// Releases a reservation, immediately before the push.
    pub(super) const fn release(&mut self, entry_bytes: u64) {
        self.reserved = self.reserved.saturating_sub(entry_bytes);
    }

    /// Appends a message. The caller has checked that there is room. The peer does not see it yet.
    pub(super) fn push(
        &mut self,
        link: &SharedLink,
        due_ns: u64,
        message: &[u8],
    ) -> Result<(), FabricError> {
        let mut header = [0; 16];
        header[..4].copy_from_slice(&u32::try_from(message.len()).unwrap_or(0).to_le_bytes());
        header[4..8].copy_from_slice(&self.number.to_le_bytes());
        header[8..].copy_from_slice(&due_ns.to_le_bytes());
        link.put(self.tail, &header)?;
        link.put(self.tail + HEADER_BYTES, message)?;
        self.tail += entry_bytes(message);
        self.number = self.number.wrapping_add(1);
        Ok(())
    }

    /// Publishes the messages pushed since the last call to the peer. Returns false if there are
    /// none. The caller must then fence and wake the peer.
    pub(super) fn publish(&mut self, link: &SharedLink) -> Result<bool, FabricError> {
        if self.published == self.tail {
            return Ok(false);
        }
        link.store(Word::Tail, self.tail)?;
        self.published = self.tail;
        Ok(true)
    }
}

impl Receiver {
    pub(super) const fn new() -> Self {
        Self { head: 0, number: 0, next_due_ns: None }
    }

    /// Returns true if the ring holds a message, due or not.
    pub(super) fn has_message(&self, link: &SharedLink) -> Result<bool, FabricError> {
        Ok(link.peer(Word::Tail)? != self.head)
    }

    /// Due time of the next message in the ring, if `pop` found that it is not due yet.
    pub(super) const fn next_due_ns(&self) -> Option<u64> {
        self.next_due_ns
    }

    /// Takes the next message if it is due. The caller must then publish the new head.
    pub(super) fn pop(
        &mut self,
        link: &SharedLink,
        now_ns: impl FnOnce() -> u64,
    ) -> Result<Option<Vec<u8>>, FabricError> {
        let filled = link.peer(Word::Tail)?.wrapping_sub(self.head);
        if filled == 0 {
            self.next_due_ns = None;
            return Ok(None);
        }
        if filled > RING_BYTES || !filled.is_multiple_of(8) || filled < HEADER_BYTES {
            return Err(FabricError::misbehaved("its message ring has an impossible tail"));
        }
        let (len, due_ns) = self.header(link, filled)?;
        let now_ns = now_ns();
        if due_ns > now_ns {
            if due_ns - now_ns > LATEST_DUE_NS {
                return Err(FabricError::misbehaved("its message is due in the far future"));
            }
            self.next_due_ns = Some(due_ns);
            return Ok(None);
        }
        let mut message = vec![0; len];
        link.take(self.head + HEADER_BYTES, &mut message)?;
        self.head += entry_bytes(&message);
        self.number = self.number.wrapping_add(1);
        self.next_due_ns = None;
        Ok(Some(message))
    }

    /// Publishes the new head to the peer. The caller must then fence and wake the peer.
    pub(super) fn publish(&self, link: &SharedLink) -> Result<(), FabricError> {
        link.store(Word::Head, self.head)
    }

    /// Length and due time of the next message, checked against the bytes in the ring.
    fn header(&self, link: &SharedLink, filled: u64) -> Result<(usize, u64), FabricError> {
        let mut header = [0; 16];
        link.take(self.head, &mut header)?;
        let [l0, l1, l2, l3, n0, n1, n2, n3, due @ ..] = header;
        let len = u32::from_le_bytes([l0, l1, l2, l3]);
        let size = usize::try_from(len).unwrap_or(usize::MAX);
        if size == 0 || size > MAX_MESSAGE {
            return Err(FabricError::misbehaved(format!("its message claims {len} B")));
        }
        if HEADER_BYTES + u64::from(len).next_multiple_of(8) > filled {
            return Err(FabricError::misbehaved("its message ends behind the ring's tail"));
        }
        if u32::from_le_bytes([n0, n1, n2, n3]) != self.number {
            return Err(FabricError::misbehaved("its message has the wrong number"));
        }
        Ok((size, u64::from_le_bytes(due)))
    }
}
