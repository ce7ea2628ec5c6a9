//! Transfers to and from another rack over the second request ring: up to 16 pieces of up to 64 KiB
//! are in flight at a time, each with its own block of the data ring.

use std::collections::VecDeque;
use std::time::Duration;

use rackpool_model::RackId;
use rackpool_ring::client_file::{CELLS_PER_THREAD, RingKind};
use rackpool_shm::access::AccessIntent;
use rackpool_wire::rack::{LONGEST_FORWARDED, RackAnswer, RackRequest};

use crate::calls::{Ended, Outcome, PostedCall};
use crate::deadline::{Deadline, Pauses, Retries};
use crate::thread::{Thread, access_error};
use crate::transfer::Bytes;
use crate::translation::Place;
use crate::{AccessError, DaemonError, GlobalAddr};

/// Largest piece in bytes: long enough that the cost of its request is small in comparison.
pub(crate) const PIECE: usize = 64 << 10;

/// Pieces that find no room in the data ring are halved down to this size (bytes). Writes in a page
/// that moves use pieces of this size from the start.
const SHORT_PIECE: usize = LONGEST_FORWARDED as usize;

/// Unit in bytes that every fabric transfers atomically if it is aligned. Some fabrics (soft-RoCE)
/// copy shorter transfers byte by byte.
const WORD: u64 = 8;

/// Rate in bytes per second below which a transfer counts as stuck. It extends the timeout of large
/// transfers.
pub(crate) const SLOWEST: usize = 16 << 20;

/// A transfer within one page of another rack.
#[derive(Debug)]
pub(crate) struct RemoteTransfer<'a> {
    pub(crate) addr: GlobalAddr,
    pub(crate) home: RackId,
    pub(crate) bytes: Bytes<'a>,
}

/// A part of a transfer that is sent as one request.
#[derive(Clone, Copy, Debug)]
struct Piece {
    transfer: usize,
    start: usize,
    len: usize,
}

impl Piece {
    const fn halves(self) -> (Self, Self) {
        let len = self.len / 2;
        (Self { len, ..self }, Self { start: self.start + len, len: self.len - len, ..self })
    }
}

/// The bytes that a request transfers.
#[derive(Clone, Copy, Debug)]
struct Brought {
    /// The number of bytes before the requested ones.
    before: u64,
    /// The total length.
    len: u64,
}

/// What the daemon executed of a transfer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DaemonTransfer {
    /// The length of the completed prefix.
    pub(crate) done: usize,
    /// The page's home; this rack if the home is not known.
    pub(crate) home: RackId,
}

#[derive(Debug)]
struct PieceInFlight {
    piece: Piece,
    posted: PostedCall,
}

/// The reason why a round stopped at a piece.
enum Stop {
    /// The page moved or the daemon died: the transfer continues with this piece.
    Again(Piece),
    Failed(AccessError),
}

impl Thread {
    /// Executes the transfers in order. All must be to one rack.
    pub(crate) fn transfer_remote(
        &mut self,
        transfers: &mut [RemoteTransfer<'_>],
    ) -> Result<(), AccessError> {
        let mut next = Some(Piece { transfer: 0, start: 0, len: 0 });
        let bytes: usize = transfers.iter().map(|transfer| transfer.bytes.len()).sum();
        let copying = Duration::from_secs((bytes / SLOWEST) as u64);
        let timeout = self.connection.request_timeout() + copying;
        let (deadline, mut retries) = (Deadline::after(timeout), Retries::within(timeout));
        let (mut longest, mut tried) = (PIECE, None);
        while let Some(piece) = next {
            next = match self.round(transfers, piece, longest, &deadline) {
                Ok(()) => None,
                Err(Stop::Failed(error)) => return Err(error),
                Err(Stop::Again(piece)) => {
                    let at = Some((piece.transfer, piece.start));
                    if std::mem::replace(&mut tried, at) != at {
                        // The transfer progresses, if only by one piece.
                        retries = Retries::within(timeout);
                    }
                    if !retries.pause() {
                        return Err(self.page_busy(transfers[piece.transfer].addr));
                    }
                    if transfers[piece.transfer].bytes.intent() == AccessIntent::Write {
                        longest = SHORT_PIECE;
                    }
                    self.find_again(transfers, piece)?
                }
            };
        }
        Ok(())
    }

    /// Lets the daemon execute a transfer in a page that is moving or has just left this rack. For
    /// the remaining bytes the caller must look the page up again.
    pub(crate) fn have_done(
        &mut self,
        addr: GlobalAddr,
        bytes: Bytes<'_>,
    ) -> Result<DaemonTransfer, AccessError> {
        let (len, home) = (bytes.len(), self.connection.rack);
        let longest = if bytes.intent() == AccessIntent::Write { SHORT_PIECE } else { PIECE };
        let deadline = Deadline::after(self.connection.request_timeout());
        let piece = Piece { transfer: 0, start: 0, len: 0 };
        let transfers = &mut [RemoteTransfer { addr, home, bytes }];
        let done = match self.round(transfers, piece, longest, &deadline) {
            Ok(()) => len,
            Err(Stop::Again(piece)) => piece.start,
            Err(Stop::Failed(error)) => return Err(error),
        };
        Ok(DaemonTransfer { done, home: transfers[0].home })
    }

    /// Looks the page of a piece up again after it was not found where expected. If the page, or a
    /// copy that can be read, is in this rack now, executes the rest of the transfer here. Returns
    /// the piece to continue with.
    fn find_again(
        &mut self,
        transfers: &mut [RemoteTransfer<'_>],
        piece: Piece,
    ) -> Result<Option<Piece>, AccessError> {
        let transfer = &mut transfers[piece.transfer];
        let addr = transfer
            .addr
            .add(piece.start as u64)
            .map_err(|_| AccessError::InvalidAddress(transfer.addr))?;
        let rest = transfer.bytes.len() - piece.start;
        let target = self.target(addr, rest)?;
        self.forget(target.page);
        let found = self.translate(&target, transfer.bytes.intent())?;
        let here = match found.place {
            Place::Local { .. } => true,
            Place::Copied { .. } => transfer.bytes.intent() == AccessIntent::Read,
            // The own daemon goes on with it as with another rack's page.
            Place::Sibling { .. } | Place::Remote { .. } => false,
        };
        if !here {
            return Ok(Some(piece));
        }
        self.transfer(addr, transfer.bytes.part(piece.start, rest))?;
        let transfer = piece.transfer + 1;
        Ok((transfer < transfers.len()).then_some(Piece { transfer, start: 0, len: 0 }))
    }

    /// Posts the transfers from `from` on, in pieces of at most `longest` bytes, and waits for all
    /// that were posted, until the deadline.
    fn round(
        &mut self,
        transfers: &mut [RemoteTransfer<'_>],
        from: Piece,
        longest: usize,
        deadline: &Deadline<'_>,
    ) -> Result<(), Stop> {
        self.batch += 1;
        let mut in_flight: VecDeque<PieceInFlight> = VecDeque::with_capacity(CELLS_PER_THREAD);
        let mut stopped: Option<Stop> = None;
        let mut pieces = VecDeque::from(pieces(transfers, from, longest));
        let mut pauses = Pauses::default();
        loop {
            let before = in_flight.len();
            while stopped.is_none() && self.calls.is_available(&self.connection) {
                let Some(piece) = pieces.front().copied() else { break };
                match self.stage_piece(transfers, piece, deadline) {
                    Ok(Some(posted)) => in_flight.push_back(PieceInFlight { piece, posted }),
                    Ok(None) => break,
                    Err(error) => stopped = Some(Stop::Failed(error)),
                }
                pieces.pop_front();
            }
            if in_flight.len() > before
                && let Err(error) = self.calls.flush(&self.connection, RingKind::Remote, deadline)
            {
                for staged in in_flight.drain(before..) {
                    self.calls.unstage(&self.connection, staged.posted);
                }
                stopped.get_or_insert(Stop::Failed(error.into()));
            }
            if !in_flight.is_empty() {
                pauses = Pauses::default();
            }
            let Some(oldest) = in_flight.pop_front() else {
                match (stopped.take(), pieces.front().copied()) {
                    (Some(stop), _) => return Err(stop),
                    (None, None) => return Ok(()),
                    // Other threads use the data ring, in which a shorter block is found sooner; or
                    // all cells of this thread belong to abandoned calls.
                    (None, Some(piece)) if !deadline.has_passed() => {
                        if piece.len > SHORT_PIECE {
                            let (first, second) = piece.halves();
                            pieces[0] = second;
                            pieces.push_front(first);
                        }
                        pauses.wait();
                    }
                    (None, Some(_)) => {
                        return Err(Stop::Failed(DaemonError::Unavailable.into()));
                    }
                }
                continue;
            };
            let outcome = self.collect(transfers, oldest, deadline);
            if let (Err(stop), None) = (outcome, &stopped) {
                stopped = Some(stop);
            }
        }
    }

    /// Stages a piece. Returns `None` if the data ring has no room for it now.
    fn stage_piece(
        &mut self,
        transfers: &mut [RemoteTransfer<'_>],
        piece: Piece,
        deadline: &Deadline<'_>,
    ) -> Result<Option<PostedCall>, AccessError> {
        let transfer = &mut transfers[piece.transfer];
        let addr = transfer.addr.add(piece.start as u64).map_err(|_| DaemonError::Protocol)?;
        let batch = self.batch;
        let Brought { before, len } = match transfer.bytes {
            Bytes::Read(_) => brought(addr, piece.len as u64),
            Bytes::Write(_) => Brought { before: 0, len: piece.len as u64 },
        };
        let Some(block) = self.connection.take_block(len) else { return Ok(None) };
        let data = block.offset();
        let request = match transfer.bytes.part(piece.start, piece.len) {
            Bytes::Read(_) => {
                // The word begins in the same page, because a page consists of whole words.
                let addr = GlobalAddr::from_raw(addr.raw() - before);
                RackRequest::Read { addr, len, data, batch }
            }
            Bytes::Write(from) => {
                let file = &self.connection.file;
                if file.memory().write(file.data_offset() + data, from).is_err() {
                    self.connection.give_back(Some(block));
                    return Err(DaemonError::Protocol.into());
                }
                RackRequest::Write { addr, len, data, batch }
            }
        };
        Ok(Some(self.calls.stage(
            &self.connection,
            request,
            RingKind::Remote,
            Some(block),
            deadline,
        )?))
    }

    fn collect(
        &mut self,
        transfers: &mut [RemoteTransfer<'_>],
        in_flight: PieceInFlight,
        deadline: &Deadline<'_>,
    ) -> Result<(), Stop> {
        let PieceInFlight { piece, posted } = in_flight;
        let transfer = &mut transfers[piece.transfer];
        let ended = self.calls.wait(&self.connection, posted, deadline);
        let Ended { outcome, block } = ended.map_err(|error| Stop::Failed(error.into()))?;
        if let Outcome::Answered(RackAnswer::DoneAt(home)) = outcome {
            transfer.home = home;
        }
        let done = match outcome {
            Outcome::Answered(RackAnswer::Done(_) | RackAnswer::DoneAt(_)) => {
                match (transfer.bytes.part(piece.start, piece.len), &block) {
                    (Bytes::Read(into), Some(block)) => {
                        let file = &self.connection.file;
                        let from = transfer.addr.raw() + piece.start as u64;
                        let Brought { before, .. } =
                            brought(GlobalAddr::from_raw(from), into.len() as u64);
                        file.memory()
                            .read(file.data_offset() + block.offset() + before, into)
                            .map_err(|_| Stop::Failed(DaemonError::Protocol.into()))
                    }
                    _ => Ok(()),
                }
            }
            Outcome::Answered(RackAnswer::Moved) | Outcome::Lost => Err(Stop::Again(piece)),
            Outcome::Answered(refusal) => Err(Stop::Failed(access_error(refusal, transfer.addr))),
        };
        self.connection.give_back(block);
        done
    }
}

/// Returns what a read request transfers. A read within one aligned word transfers the whole word,
/// so that it is atomic; a block has room for it.
const fn brought(addr: GlobalAddr, len: u64) -> Brought {
    let before = addr.raw() % WORD;
    if before + len <= WORD { Brought { before, len: WORD } } else { Brought { before: 0, len } }
}

/// Cuts the transfers from `from` on into pieces of at most `longest` bytes.
fn pieces(transfers: &[RemoteTransfer<'_>], from: Piece, longest: usize) -> Vec<Piece> {
    let mut pieces = Vec::new();
    for (index, transfer) in transfers.iter().enumerate().skip(from.transfer) {
        let mut start = if index == from.transfer { from.start } else { 0 };
        while start < transfer.bytes.len() {
            let len = longest.min(transfer.bytes.len() - start);
            pieces.push(Piece { transfer: index, start, len });
            start += len;
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, mpsc};

    use rackpool_model::PageSize;
    use rackpool_shm::metadata::PageUse;

    use super::*;
    use crate::testing::Bench;

    #[test]
    fn few_bytes_of_another_rack_are_read_whole_whatever_stands_around_them() {
        let mut bench = Bench::new();
        let page = PageSize::DEFAULT.bytes();
        let (asked, asks) = mpsc::channel();
        let connection = Arc::clone(&bench.connection);
        bench.serve(move |_, request| match request {
            RackRequest::Translate { .. } => {
                let usage = PageUse::Run { index: 0, pages: 1 }.to_raw();
                Some(RackAnswer::Remote { home: RackId(1), usage })
            }
            RackRequest::Read { addr, len, data, .. } => {
                asked.send((addr.raw() - page, len)).unwrap();
                // Each byte is the low byte of its address.
                let bytes: Vec<u8> = (0..len).map(|i| (addr.raw() + i).to_le_bytes()[0]).collect();
                let file = &connection.file;
                file.memory().write(file.data_offset() + data, &bytes).unwrap();
                Some(RackAnswer::Done(0))
            }
            _ => None,
        });
        let mut thread = bench.thread();
        let last = page - 8;
        for (offset, len, expected) in [
            (0, 2, (0, 8)),
            (20, 4, (16, 8)),
            (15, 1, (8, 8)),
            (last + 6, 2, (last, 8)),
            (21, 4, (21, 4)),
            (3, 64, (3, 64)),
        ] {
            let mut bytes = vec![0; len];
            let addr = GlobalAddr::from_raw(page + offset);
            thread.transfer(addr, Bytes::Read(&mut bytes)).unwrap();
            let wanted: Vec<u8> = (offset..).take(len).map(|i| i.to_le_bytes()[0]).collect();
            assert_eq!(bytes, wanted, "{len} B at {offset}");
            assert_eq!(asks.try_iter().collect::<Vec<_>>(), [expected]);
        }
    }

    #[test]
    fn transfers_are_cut_into_pieces_from_the_given_one_on() {
        let (small, large) = (vec![0; 10], vec![0; PIECE * 2 + 1]);
        let transfer = |bytes| RemoteTransfer {
            addr: GlobalAddr::NULL,
            home: RackId(1),
            bytes: Bytes::Write(bytes),
        };
        let transfers = [transfer(&small), transfer(&large)];
        let cut = |transfer, start| {
            let from = Piece { transfer, start, len: 0 };
            pieces(&transfers, from, PIECE)
                .iter()
                .map(|p| (p.transfer, p.start, p.len))
                .collect::<Vec<_>>()
        };
        let tail = [(1, PIECE, PIECE), (1, PIECE * 2, 1)];
        assert_eq!(cut(1, PIECE), tail);
        assert_eq!(cut(0, 0)[..2], [(0, 0, 10), (1, 0, PIECE)]);
        assert_eq!(cut(0, 0)[2..], tail);
    }
}
