//! Transfers to and from another rack, through the daemon's remote ring: up to 16 pieces of up to
//! 16 KiB on the way at a time, each with its own part of the thread's data area.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use rackpool_model::RackId;
use rackpool_ring::client_file::{CELLS_PER_THREAD, DATA_BYTES, Route};
use rackpool_wire::rack::{RackAnswer, RackRequest};

use crate::calls::{Outcome, Posted};
use crate::thread::{Thread, access_error};
use crate::transfer::Bytes;
use crate::translation::Place;
use crate::{AccessError, DaemonError, GlobalAddr};

/// Bytes of one piece.
#[expect(clippy::cast_possible_truncation, reason = "16 KiB")]
const PIECE: usize = DATA_BYTES as usize / CELLS_PER_THREAD;

/// Bytes a second below which a transfer counts as stuck: large ones get more time than small ones.
const SLOWEST: usize = 16 << 20;

/// A transfer within one page of another rack.
#[derive(Debug)]
pub(crate) struct RemoteTransfer<'a> {
    pub(crate) addr: GlobalAddr,
    pub(crate) home: RackId,
    pub(crate) bytes: Bytes<'a>,
}

/// A part of a transfer that goes in one request.
#[derive(Clone, Copy, Debug)]
struct Piece {
    transfer: usize,
    start: usize,
    len: usize,
}

#[derive(Clone, Copy, Debug)]
struct OnTheWay {
    piece: Piece,
    cell: u8,
    posted: Posted,
}

/// Why a round stopped at a piece.
enum Stop {
    /// Start again with this piece: the page moved or the daemon died.
    Again(Piece),
    Failed(AccessError),
}

impl Thread {
    /// Carries the transfers out in their order: all of them to one rack.
    pub(crate) fn transfer_remote(
        &mut self,
        transfers: &mut [RemoteTransfer<'_>],
    ) -> Result<(), AccessError> {
        let mut next = Some(Piece { transfer: 0, start: 0, len: 0 });
        let bytes: usize = transfers.iter().map(|transfer| transfer.bytes.len()).sum();
        let copying = Duration::from_secs((bytes / SLOWEST) as u64);
        let deadline = Instant::now() + self.connection.request_timeout() + copying;
        while let Some(piece) = next {
            next = match self.round(transfers, piece, deadline) {
                Ok(()) => None,
                Err(Stop::Failed(error)) => return Err(error),
                Err(Stop::Again(piece)) => {
                    if Instant::now() > deadline {
                        return Err(DaemonError::Unavailable.into());
                    }
                    self.find_again(transfers, piece)?
                }
            };
        }
        Ok(())
    }

    /// The page of a piece was not where it was thought to be. If it is in this rack now, the
    /// rest of its transfer is done here. Returns where to go on.
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
        self.translations.remove(target.page);
        let found = self.translate(&target)?;
        let Place::Local { .. } = found.place else { return Ok(Some(piece)) };
        self.transfer(addr, transfer.bytes.part(piece.start, rest))?;
        let transfer = piece.transfer + 1;
        Ok((transfer < transfers.len()).then_some(Piece { transfer, start: 0, len: 0 }))
    }

    /// Posts from a piece on and waits for all that was posted, in all until the deadline.
    fn round(
        &mut self,
        transfers: &mut [RemoteTransfer<'_>],
        from: Piece,
        deadline: Instant,
    ) -> Result<(), Stop> {
        self.batch += 1;
        let mut on_the_way: VecDeque<OnTheWay> = VecDeque::with_capacity(CELLS_PER_THREAD);
        let mut stopped: Option<Stop> = None;
        let mut pieces = pieces(transfers, from).into_iter().peekable();
        loop {
            let mut posted_any = false;
            while stopped.is_none() && self.calls.is_available(&self.connection) {
                let Some(piece) = pieces.next() else { break };
                match self.post_piece(transfers, piece, deadline) {
                    Ok(posted) => on_the_way.push_back(posted),
                    Err(error) => stopped = Some(Stop::Failed(error)),
                }
                posted_any = true;
            }
            if posted_any {
                self.connection.ring_doorbell();
            }
            let Some(oldest) = on_the_way.pop_front() else {
                match (stopped, pieces.peek()) {
                    (Some(stop), _) => return Err(stop),
                    (None, None) => return Ok(()),
                    // Every cell of this thread waits for an answer that does not come.
                    (None, Some(_)) => return Err(Stop::Failed(DaemonError::Unavailable.into())),
                }
            };
            let outcome = self.collect(transfers, oldest, deadline);
            if let (Err(stop), None) = (outcome, &stopped) {
                stopped = Some(stop);
            }
        }
    }

    fn post_piece(
        &mut self,
        transfers: &mut [RemoteTransfer<'_>],
        piece: Piece,
        deadline: Instant,
    ) -> Result<OnTheWay, AccessError> {
        let cell = self.calls.reserve(&self.connection)?;
        let transfer = &mut transfers[piece.transfer];
        let posted = (|| {
            let addr = transfer.addr.add(piece.start as u64).map_err(|_| DaemonError::Protocol)?;
            let data = u64::from(cell) * PIECE as u64;
            let len = piece.len as u64;
            let batch = self.batch;
            let request = match transfer.bytes.part(piece.start, piece.len) {
                Bytes::Read(_) => RackRequest::Read { addr, len, data, batch },
                Bytes::Write(from) => {
                    let area = self.connection.file.data_offset(self.index);
                    area.and_then(|area| self.connection.file.memory().write(area + data, from))
                        .map_err(|_| DaemonError::Protocol)?;
                    RackRequest::Write { addr, len, data, batch }
                }
            };
            self.calls.post(&self.connection, cell, request, Route::Remote, deadline)
        })();
        match posted {
            Ok(posted) => Ok(OnTheWay { piece, cell, posted }),
            Err(error) => {
                self.calls.unreserve(cell);
                Err(error.into())
            }
        }
    }

    fn collect(
        &mut self,
        transfers: &mut [RemoteTransfer<'_>],
        on_the_way: OnTheWay,
        deadline: Instant,
    ) -> Result<(), Stop> {
        let OnTheWay { piece, cell, posted } = on_the_way;
        let outcome = self.calls.wait(&self.connection, posted, deadline);
        let transfer = &mut transfers[piece.transfer];
        match outcome.map_err(|error| Stop::Failed(error.into()))? {
            Outcome::Answered(RackAnswer::Done(_)) => {
                if let Bytes::Read(into) = transfer.bytes.part(piece.start, piece.len) {
                    let data = u64::from(cell) * PIECE as u64;
                    let area = self.connection.file.data_offset(self.index);
                    area.and_then(|area| self.connection.file.memory().read(area + data, into))
                        .map_err(|_| Stop::Failed(DaemonError::Protocol.into()))?;
                }
                Ok(())
            }
            Outcome::Answered(RackAnswer::Moved) | Outcome::Lost => Err(Stop::Again(piece)),
            Outcome::Answered(refusal) => Err(Stop::Failed(access_error(refusal, transfer.addr))),
        }
    }
}

/// The transfers from `from` on, cut into pieces.
fn pieces(transfers: &[RemoteTransfer<'_>], from: Piece) -> Vec<Piece> {
    let mut pieces = Vec::new();
    for (index, transfer) in transfers.iter().enumerate().skip(from.transfer) {
        let mut start = if index == from.transfer { from.start } else { 0 };
        while start < transfer.bytes.len() {
            let len = PIECE.min(transfer.bytes.len() - start);
            pieces.push(Piece { transfer: index, start, len });
            start += len;
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

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
            pieces(&transfers, from)
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
