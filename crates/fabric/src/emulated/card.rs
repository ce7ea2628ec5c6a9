//! The modelled network card of a rack: two budgets of time on the wire, one for each direction,
//! and with a [`NumaModel`] one for the execution of operations and one for each of their lines.
//!
//! The card lies in memory that every peer of the rack maps, because the poster of an operation
//! charges both cards: a read takes transmit time of the rack that is read, though that rack's
//! processor takes no part.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::model::{passed_by, transfer_ns};
use super::numa::{LINES, lines_of};
use super::peer::map;
use super::{Mapper, NumaModel, memfd, model};
use crate::{FabricError, MemoryRegion, Operation, OutOfRange};

const CARD_BYTES: u64 = 4096;
const MAGIC: u64 = u64::from_le_bytes(*b"rackcard");
const PS_PER_BYTE_AT: u64 = 8;
/// The words of the [`NumaModel`].
const NUMA_AT: [u64; 3] = [0x10, 0x18, 0x20];
/// Time until which the card executes operations (NUMA model).
const EXECUTION_AT: u64 = 0x180;
/// Times until which lines are occupied (NUMA model), to the end of the card.
const LINES_AT: u64 = CARD_BYTES - 8 * LINES;
/// Bytes of a packet, the largest of RoCE.
const PACKET_BYTES: u64 = 4096;

/// A direction of a card. Its value is the offset of two words, each a time in ns of
/// CLOCK_MONOTONIC: until when all bytes charged so far occupy the direction, and until when those
/// of short operations alone would. Directions are two cache lines apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(super) enum Direction {
    Transmit = 0x080,
    Receive = 0x100,
}

impl Direction {
    /// The word of all bytes.
    const fn all(self) -> u64 {
        self as u64
    }

    /// The word of the bytes of short operations.
    const fn short(self) -> u64 {
        self as u64 + 8
    }
}

/// The card of this rack or of a peer.
pub(super) struct Card {
    memory: Arc<dyn MemoryRegion>,
    ps_per_byte: u64,
    numa: Option<NumaModel>,
}

impl Card {
    /// Creates the card of this rack. The descriptor is for its peers.
    pub(super) fn create(
        mapper: &dyn Mapper,
        ps_per_byte: u64,
        numa: Option<NumaModel>,
    ) -> io::Result<(OwnedFd, Self)> {
        let fd = memfd::create("rackpool-card", CARD_BYTES)?;
        let memory = mapper.map(fd.try_clone()?, CARD_BYTES)?;
        let numa_words = numa.map_or([0; 3], NumaModel::to_words);
        let header = [(0, MAGIC), (PS_PER_BYTE_AT, ps_per_byte)];
        for (offset, value) in header.into_iter().chain(NUMA_AT.into_iter().zip(numa_words)) {
            memory.store(offset, value).map_err(io::Error::other)?;
        }
        Ok((fd, Self { memory, ps_per_byte, numa }))
    }

    /// Checks and maps the card of a peer.
    pub(super) fn of_peer(mapper: &dyn Mapper, fd: OwnedFd) -> Result<Self, FabricError> {
        memfd::check(&fd, "card", CARD_BYTES)?;
        let memory = map(mapper, fd, CARD_BYTES)?;
        if memory.load(0)? != MAGIC {
            return Err(FabricError::misbehaved("its card has no header"));
        }
        let ps_per_byte = memory.load(PS_PER_BYTE_AT)?;
        if ps_per_byte > model::MAX_PS_PER_BYTE {
            return Err(FabricError::misbehaved("its card is slower than any"));
        }
        let [dilation, is_remote, writers] = NUMA_AT.map(|at| memory.load(at));
        let numa = NumaModel::from_words([dilation?, is_remote?, writers?])?;
        Ok(Self { memory, ps_per_byte, numa })
    }

    pub(super) const fn ps_per_byte(&self) -> u64 {
        self.ps_per_byte
    }

    /// Charges bytes to a direction. Returns the time, in ns, by which the direction has passed
    /// them. Packets of different queue pairs take turns: an operation of at most a packet waits
    /// for others of this kind and for one packet, longer ones wait for all that came before.
    ///
    /// The words only ever name times, so a process that is killed after its charge leaves nothing
    /// to undo: the time passes.
    pub(super) fn charge(&self, direction: Direction, now_ns: u64, bytes: u64) -> u64 {
        // Cannot fail, because the card was accessible when the endpoint was created.
        self.try_charge(direction, now_ns, bytes).unwrap_or(now_ns)
    }

    fn try_charge(&self, direction: Direction, now_ns: u64, bytes: u64) -> Result<u64, OutOfRange> {
        let cost_ns = transfer_ns(bytes, self.ps_per_byte);
        let after_all_ns = self.add(direction.all(), now_ns, cost_ns)?;
        let is_idle = after_all_ns == now_ns.saturating_add(cost_ns);
        if bytes > PACKET_BYTES || is_idle {
            // One short operation that the second word lacks is shorter than the packet below.
            return Ok(after_all_ns);
        }
        let packet_ns = transfer_ns(PACKET_BYTES, self.ps_per_byte);
        let after_short_ns = self.add(direction.short(), now_ns, cost_ns)?;
        Ok(after_all_ns.min(after_short_ns.saturating_add(packet_ns)))
    }

    /// Charges an operation that this card executes for a peer. Returns the time, in ns, until
    /// which its bytes need no longer wait for the host's memory; `now_ns` without a NUMA model.
    pub(super) fn execute(&self, now_ns: u64, operation: &Operation) -> u64 {
        let Some(numa) = &self.numa else { return now_ns };
        self.try_execute(numa, now_ns, operation).unwrap_or(now_ns)
    }

    fn try_execute(
        &self,
        numa: &NumaModel,
        now_ns: u64,
        operation: &Operation,
    ) -> Result<u64, OutOfRange> {
        let cost = numa.cost(operation);
        let mut end_ns = self.add(EXECUTION_AT, now_ns, cost.card_ns)?;
        if cost.line_ns > 0 {
            for line in lines_of(operation) {
                end_ns = end_ns.max(self.add(LINES_AT + 8 * line, now_ns, cost.line_ns)?);
            }
        }
        Ok(end_ns.saturating_add(cost.latency_ns))
    }

    /// Adds to the time until which a direction is occupied, and returns that time.
    fn add(&self, at: u64, now_ns: u64, cost_ns: u64) -> Result<u64, OutOfRange> {
        let mut busy_until_ns = self.memory.load(at)?;
        loop {
            let end_ns = passed_by(busy_until_ns, now_ns, cost_ns);
            let found = self.memory.compare_exchange(at, busy_until_ns, end_ns)?;
            if found == busy_until_ns {
                return Ok(end_ns);
            }
            busy_until_ns = found;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::memory::FileMapper;

    /// 100 Gbit/s: 1250 B take 100 ns.
    const PS_PER_BYTE: u64 = 80;

    fn card() -> (OwnedFd, Card) {
        Card::create(&FileMapper, PS_PER_BYTE, None).unwrap()
    }

    #[test]
    fn all_that_map_a_card_share_each_direction() {
        let (fd, own) = card();
        let peers = [0; 7].map(|_| Card::of_peer(&FileMapper, fd.try_clone().unwrap()).unwrap());
        for (served, peer) in (1..).zip(&peers) {
            assert_eq!(peer.charge(Direction::Transmit, 1000, 1250), 1000 + served * 100);
        }
        assert_eq!(own.charge(Direction::Transmit, 1000, 1250), 1000 + 800);
        assert_eq!(own.charge(Direction::Receive, 1000, 1250), 1100, "full duplex");
        assert_eq!(peers[0].charge(Direction::Transmit, 9000, 1250), 9100, "nothing is saved up");
    }

    #[test]
    fn a_short_operation_waits_for_one_packet_of_longer_ones() {
        let (_fd, card) = card();
        let packet_ns = transfer_ns(PACKET_BYTES, PS_PER_BYTE);
        let long_ns = card.charge(Direction::Transmit, 0, 1 << 20);
        assert_eq!(card.charge(Direction::Transmit, 0, 1250), packet_ns + 100);
        assert_eq!(card.charge(Direction::Transmit, 0, 1250), packet_ns + 200);
        let after_all_ns = card.charge(Direction::Transmit, 0, PACKET_BYTES + 1);
        let own_ns = transfer_ns(PACKET_BYTES + 1, PS_PER_BYTE);
        assert_eq!(after_all_ns, long_ns + 200 + own_ns, "the longer ones make room for them");
    }

    #[test]
    fn short_operations_alone_do_not_exceed_the_bandwidth() {
        let (_fd, card) = card();
        let ends = (0..1000).map(|_| card.charge(Direction::Receive, 0, 1250));
        assert!(ends.eq((1..=1000).map(|count| count * 100)));
    }

    #[test]
    fn charges_of_several_threads_are_all_counted() {
        let (fd, own) = card();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                let peer = Card::of_peer(&FileMapper, fd.try_clone().unwrap()).unwrap();
                scope.spawn(move || {
                    for _ in 0..500 {
                        peer.charge(Direction::Transmit, 0, 1250);
                    }
                });
            }
        });
        assert_eq!(own.charge(Direction::Transmit, 0, 0), 2000 * 100);
    }

    #[test]
    fn a_card_that_cannot_be_is_refused() {
        let (fd, own) = card();
        let check = || Card::of_peer(&FileMapper, fd.try_clone().unwrap()).map(|_| ());
        check().unwrap();
        own.memory.store(NUMA_AT[0], 1001).unwrap();
        assert!(check().unwrap_err().to_string().contains("NUMA"));
        own.memory.store(PS_PER_BYTE_AT, u64::MAX).unwrap();
        assert!(check().unwrap_err().to_string().contains("slower"));
        own.memory.store(0, 0).unwrap();
        assert!(check().unwrap_err().to_string().contains("no header"));
        let link = memfd::create("rackpool-test", 2 * CARD_BYTES).unwrap();
        assert!(Card::of_peer(&FileMapper, link).is_err());
    }
}
