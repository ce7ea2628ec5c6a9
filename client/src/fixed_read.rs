//! Reads into fixed memory that the program owns. Bytes of another rack go straight to their place:
//! the daemon reads them one-sided, and this program copies nothing.

use std::borrow::Borrow;
use std::collections::VecDeque;
use std::time::Duration;

use rackpool_model::GlobalAddr;
use rackpool_ring::client_file::{CELLS_PER_THREAD, RingKind};
use rackpool_shm::access::AccessIntent;
use rackpool_shm::frame_bytes::FrameChunkMut;
use rackpool_wire::rack::{RackAnswer, RackRequest};

use crate::calls::{Ended, Outcome, PostedCall};
use crate::deadline::Deadline;
use crate::remote::{PIECE, SLOWEST};
use crate::thread::{Thread, access_error};
use crate::transfer::Bytes;
use crate::translation::Place;
use crate::{AccessError, Extent, Pin, PinnedBytesMut, Pool};

/// The most pieces in flight. The thread's other cells serve a piece that has to be read otherwise.
const IN_FLIGHT: usize = CELLS_PER_THREAD / 2;

/// A part of a read that lies within one page, at its source and at its destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    from: GlobalAddr,
    into: GlobalAddr,
    /// Offset of the destination in the bytes of the object.
    at: usize,
    len: usize,
}

/// A piece of which the daemon was asked, or will be.
struct PieceInFlight {
    piece: Piece,
    state: PieceState,
    /// Whether its page was looked up again after a refusal.
    is_repeated: bool,
}

enum PieceState {
    Posted(PostedCall),
    Read,
    /// The page has moved or its lease has ended, or it is in this rack.
    Refused,
}

impl<P: Borrow<Pool>> PinnedBytesMut<P> {
    /// Reads `len` bytes at `from`, in any rack, into these bytes from offset `at` on, and calls
    /// `on_read` with one piece after the other, in their order, while later ones are on their way.
    /// Bytes of another rack are not copied on their way by this program.
    ///
    /// ```no_run
    /// # use rackpool_client::{ClientOptions, Pool, RackId};
    /// # let pool = Pool::open(ClientOptions::new("/dev/shm/rackpool", RackId(0)))?;
    /// # let (from, len) = (pool.alloc(64)?, 100 << 20);
    /// let head = pool.alloc_fixed(64)?;
    /// let extents = pool.alloc_extents(head, len as u64)?;
    /// let mut bytes = pool.pin(head)?.map_extents_mut(&extents, len as u64)?;
    /// let mut zeros = 0;
    /// bytes.read_from(0, from, len, |piece| {
    ///     zeros += piece.iter().filter(|byte| **byte == 0).count();
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`AccessError`], as [`Pool::read`]; [`AccessError::BeyondObject`] if these bytes end before
    /// `at + len`. Any part of the range may have changed then, and after [`AccessError::Daemon`]
    /// it may go on changing as long as the object is pinned.
    ///
    /// # Panics
    /// If `on_read` uses a pool. It may store [words](PinnedBytesMut::words) of the object.
    pub fn read_from(
        &mut self,
        at: usize,
        from: GlobalAddr,
        len: usize,
        on_read: impl FnMut(&[u8]),
    ) -> Result<(), AccessError> {
        self.whole().read_from(at, from, len, on_read)
    }

    /// These bytes in chunks of `chunk_bytes` bytes, the last one of the rest, into which several
    /// threads may read at the same time. If there are no bytes, that is one empty chunk.
    ///
    /// # Panics
    /// If `chunk_bytes` is 0.
    pub fn chunks_mut(&mut self, chunk_bytes: usize) -> Vec<PinnedChunkMut<'_, P>> {
        assert!(chunk_bytes > 0, "chunks have bytes");
        let PinnedChunkMut { pin, memory, mut bytes, .. } = self.whole();
        let mut chunks = Vec::new();
        loop {
            let at = chunks.len() * chunk_bytes;
            chunks.push(PinnedChunkMut { pin, memory, at, bytes: bytes.cut_off(chunk_bytes) });
            if bytes.is_empty() {
                return chunks;
            }
        }
    }

    fn whole(&mut self) -> PinnedChunkMut<'_, P> {
        let Self { pin, bytes, memory, .. } = self;
        PinnedChunkMut { pin, memory, at: 0, bytes: bytes.whole() }
    }
}

/// Some consecutive bytes of a [`PinnedBytesMut`], into which other memory of the pool is read.
#[derive(Debug)]
pub struct PinnedChunkMut<'a, P: Borrow<Pool>> {
    pin: &'a Pin<P>,
    memory: &'a [Extent],
    /// Offset of the first one in all bytes.
    at: usize,
    bytes: FrameChunkMut<'a>,
}

impl<P: Borrow<Pool>> PinnedChunkMut<'_, P> {
    /// The number of bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether there are no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The bytes. After [`AccessError::Daemon`] of a read they may still change.
    pub fn bytes(&mut self) -> &mut [u8] {
        self.bytes.part(0..self.bytes.len())
    }

    /// As [`PinnedBytesMut::read_from`], with `at` from the start of the chunk on.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Panics
    /// As there.
    pub fn read_from(
        &mut self,
        at: usize,
        from: GlobalAddr,
        len: usize,
        mut on_read: impl FnMut(&[u8]),
    ) -> Result<(), AccessError> {
        if len == 0 {
            return Err(AccessError::Empty);
        }
        let Self { pin, memory, at: begin, bytes } = self;
        let (head, available) = (pin.addr(), bytes.len().saturating_sub(at));
        if len > available {
            let (len, available) = (len as u64, available as u64);
            return Err(AccessError::BeyondObject { addr: head, len, available });
        }
        pin.pool().with(|thread| {
            thread.check(from, len)?;
            let page_bytes = thread.connection.page_size.bytes();
            let pieces = pieces(memory, page_bytes, *begin + at, from, len)?;
            thread.read_pieces(head, (bytes, *begin), pieces, &mut on_read)
        })?
    }
}

/// Cuts a read into pieces. `memory` is where the destination's bytes lie, one after the other.
fn pieces(
    memory: &[Extent],
    page_bytes: u64,
    at: usize,
    from: GlobalAddr,
    len: usize,
) -> Result<VecDeque<Piece>, AccessError> {
    let (mut pieces, mut done, mut skipped) = (VecDeque::new(), 0, 0);
    for extent in memory {
        let start = skipped;
        skipped += extent.bytes;
        while done < len && ((at + done) as u64) < skipped {
            let beyond = |addr| move |_| AccessError::InvalidAddress(addr);
            let here = from.add(done as u64).map_err(beyond(from))?;
            let offset = (at + done) as u64 - start;
            let into = extent.addr.add(offset).map_err(beyond(extent.addr))?;
            let to_page_end = |addr: GlobalAddr| page_bytes - addr.raw() % page_bytes;
            let most = to_page_end(here).min(to_page_end(into)).min(extent.bytes - offset);
            let piece = usize::try_from(most).unwrap_or(usize::MAX).min(PIECE).min(len - done);
            pieces.push_back(Piece { from: here, into, at: at + done, len: piece });
            done += piece;
        }
    }
    Ok(pieces)
}

impl Thread {
    /// `bytes` are those of the object from offset `begin` on.
    fn read_pieces(
        &mut self,
        head: GlobalAddr,
        (bytes, begin): (&mut FrameChunkMut<'_>, usize),
        mut pieces: VecDeque<Piece>,
        on_read: &mut impl FnMut(&[u8]),
    ) -> Result<(), AccessError> {
        let len: usize = pieces.iter().map(|piece| piece.len).sum();
        let copying = Duration::from_secs((len / SLOWEST) as u64);
        let deadline = Deadline::after(self.connection.request_timeout() + copying);
        let mut in_flight = VecDeque::with_capacity(IN_FLIGHT);
        let mut done = loop {
            if let Err(error) = self.post_pieces(head, &mut pieces, &mut in_flight, &deadline) {
                break Err(error);
            }
            let Some(oldest) = in_flight.front_mut() else { break Ok(()) };
            if let Err(error) = self.collect_piece(oldest, &deadline) {
                break Err(error);
            }
            if matches!(oldest.state, PieceState::Refused) && !oldest.is_repeated {
                if let Err(error) = self.repeat_pieces(head, &mut in_flight, &deadline) {
                    break Err(error);
                }
                continue;
            }
            let Some(PieceInFlight { piece, state, .. }) = in_flight.pop_front() else { continue };
            let at = piece.at - begin;
            let range = at..at + piece.len;
            if matches!(state, PieceState::Refused) {
                let into = Bytes::Read(bytes.part(range.clone()));
                if let Err(error) = self.transfer(piece.from, into) {
                    break Err(error);
                }
            }
            on_read(bytes.part(range));
        };
        for one in &mut in_flight {
            // The error that ended the read counts, unless a piece may still land.
            if let Err(error @ AccessError::Daemon(_)) = self.collect_piece(one, &deadline) {
                done = Err(error);
            }
        }
        done
    }

    /// Posts the next pieces. After an error those that were posted are in flight.
    fn post_pieces(
        &mut self,
        head: GlobalAddr,
        pieces: &mut VecDeque<Piece>,
        in_flight: &mut VecDeque<PieceInFlight>,
        deadline: &Deadline<'_>,
    ) -> Result<(), AccessError> {
        let before = in_flight.len();
        while in_flight.len() < IN_FLIGHT
            && let Some(piece) = pieces.pop_front()
        {
            let state = PieceState::Refused;
            in_flight.push_back(PieceInFlight { piece, state, is_repeated: false });
        }
        self.batch += 1;
        self.stage_pieces(head, in_flight, before, deadline)
    }

    /// Looks up the pages of refused pieces again, and posts these pieces once more: all at once,
    /// since the daemon refuses what follows a refused request of a batch.
    fn repeat_pieces(
        &mut self,
        head: GlobalAddr,
        in_flight: &mut VecDeque<PieceInFlight>,
        deadline: &Deadline<'_>,
    ) -> Result<(), AccessError> {
        for one in in_flight.iter_mut() {
            self.collect_piece(one, deadline)?;
        }
        for one in in_flight.iter_mut().filter(|one| matches!(one.state, PieceState::Refused)) {
            let target = self.target(one.piece.from, one.piece.len)?;
            self.forget(target.page);
            one.is_repeated = true;
        }
        self.batch += 1;
        self.stage_pieces(head, in_flight, 0, deadline)
    }

    /// Stages and posts the refused pieces from the given one on, if their pages are in another
    /// rack.
    fn stage_pieces(
        &mut self,
        head: GlobalAddr,
        in_flight: &mut VecDeque<PieceInFlight>,
        from: usize,
        deadline: &Deadline<'_>,
    ) -> Result<(), AccessError> {
        let (mut staged, mut failed) = (Vec::new(), None);
        for (index, one) in in_flight.iter_mut().enumerate().skip(from) {
            if !matches!(one.state, PieceState::Refused)
                || !self.calls.is_available(&self.connection)
            {
                continue;
            }
            match self.stage_piece_of(head, one.piece, deadline) {
                Ok(Some(posted)) => {
                    one.state = PieceState::Posted(posted);
                    staged.push(index);
                }
                Ok(None) => one.is_repeated = true,
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
        }
        if !staged.is_empty()
            && let Err(error) = self.calls.flush(&self.connection, RingKind::Remote, deadline)
        {
            for index in staged {
                let one = &mut in_flight[index];
                let state = std::mem::replace(&mut one.state, PieceState::Refused);
                if let PieceState::Posted(posted) = state {
                    self.calls.unstage(&self.connection, posted);
                }
            }
            return Err(error.into());
        }
        failed.map_or(Ok(()), Err)
    }

    /// Stages the call for a piece; `None` if its page is not in another rack.
    fn stage_piece_of(
        &mut self,
        head: GlobalAddr,
        piece: Piece,
        deadline: &Deadline<'_>,
    ) -> Result<Option<PostedCall>, AccessError> {
        let target = self.target(piece.from, piece.len)?;
        let translation = self.translate(&target, AccessIntent::Read)?;
        let (Place::Remote { .. } | Place::Sibling { .. }) = translation.place else {
            return Ok(None);
        };
        let (len, batch) = (piece.len as u64, self.batch);
        let request =
            RackRequest::ReadInto { addr: piece.from, len, head, into: piece.into, batch };
        let posted =
            self.calls.stage(&self.connection, request, RingKind::Remote, None, deadline)?;
        Ok(Some(posted))
    }

    /// Waits for a piece if it was posted.
    fn collect_piece(
        &mut self,
        one: &mut PieceInFlight,
        deadline: &Deadline<'_>,
    ) -> Result<(), AccessError> {
        let posted = match std::mem::replace(&mut one.state, PieceState::Refused) {
            PieceState::Posted(posted) => posted,
            state => {
                one.state = state;
                return Ok(());
            }
        };
        let Ended { outcome, .. } = self.calls.wait(&self.connection, posted, deadline)?;
        match outcome {
            Outcome::Answered(RackAnswer::Done(_) | RackAnswer::DoneAt(_)) => {
                one.state = PieceState::Read;
                Ok(())
            }
            Outcome::Answered(RackAnswer::Moved) | Outcome::Lost => Ok(()),
            Outcome::Answered(refusal) => Err(access_error(refusal, one.piece.from)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rackpool_model::{PageSize, RackId};
    use rackpool_shm::frame_bytes::FrameBytesMut;
    use rackpool_shm::metadata::PageUse;

    use super::*;
    use crate::testing::Bench;

    const PAGE: u64 = PageSize::DEFAULT.bytes();
    const KIB: usize = 1 << 10;

    const fn addr(raw: u64) -> GlobalAddr {
        GlobalAddr::from_raw(raw)
    }

    #[test]
    fn a_read_is_cut_where_pages_and_extents_end() {
        let memory = [
            Extent { addr: addr(8 * PAGE), bytes: PAGE },
            Extent { addr: addr(20 * PAGE), bytes: 2 * PAGE },
        ];
        let from = addr(3 * PAGE - 100);
        let start = usize::try_from(PAGE).unwrap() - 40 * KIB;
        let cut = pieces(&memory, PAGE, start, from, 300 * KIB).unwrap();
        let piece = |from, into, at, len| Piece { from: addr(from), into: addr(into), at, len };
        let first = [
            piece(3 * PAGE - 100, 9 * PAGE - 40 * 1024, start, 100),
            piece(3 * PAGE, 9 * PAGE - 40 * 1024 + 100, start + 100, 40 * KIB - 100),
            piece(3 * PAGE + 40 * 1024 - 100, 20 * PAGE, start + 40 * KIB, PIECE),
        ];
        assert_eq!(cut.range(..3).copied().collect::<Vec<_>>(), first);
        let mut at = start;
        for piece in &cut {
            assert_eq!((piece.at, piece.from), (at, from.add((at - start) as u64).unwrap()));
            assert!((1..=PIECE).contains(&piece.len));
            at += piece.len;
        }
        assert_eq!(at, start + 300 * KIB);
    }

    #[test]
    fn pieces_are_passed_on_in_order_and_one_that_is_refused_is_read_otherwise() {
        let mut bench = Bench::new();
        let len = 20 * PIECE;
        let connection = Arc::clone(&bench.connection);
        let mut asked = 0;
        bench.serve(move |_, request| match request {
            RackRequest::Translate { .. } => {
                let usage = PageUse::Run { index: 0, pages: 1 }.to_raw();
                Some(RackAnswer::Remote { home: RackId(1), usage })
            }
            RackRequest::ReadInto { addr, len, into, .. } => {
                asked += 1;
                // The fifth piece is refused twice, then it is read otherwise.
                if asked == 5 || addr.raw() == 3 * PAGE + 4 * PIECE as u64 {
                    return Some(RackAnswer::Moved);
                }
                // Each byte is the number of its piece, here and below.
                let number = (addr.raw() - 3 * PAGE) / PIECE as u64;
                let bytes = vec![u8::try_from(number).unwrap(); usize::try_from(len).unwrap()];
                connection.frames.write(into.raw() - PAGE, &bytes).unwrap();
                Some(RackAnswer::DoneAt(RackId(1)))
            }
            RackRequest::Read { addr, len, data, .. } => {
                let number = (addr.raw() - 3 * PAGE) / PIECE as u64;
                let bytes = vec![u8::try_from(number).unwrap(); usize::try_from(len).unwrap()];
                let file = &connection.file;
                file.memory().write(file.data_offset() + data, &bytes).unwrap();
                Some(RackAnswer::Done(0))
            }
            _ => None,
        });
        let mut thread = bench.thread();
        let memory = [Extent { addr: addr(PAGE), bytes: PAGE }];
        let cut = pieces(&memory, PAGE, 0, addr(3 * PAGE), len).unwrap();
        let mut bytes = FrameBytesMut::within(&bench.connection.frames, 0, len).unwrap();
        let mut read = Vec::new();
        let on_read = &mut |piece: &[u8]| {
            assert!(piece.iter().all(|byte| *byte == piece[0]), "a piece is mixed");
            read.push((piece[0], piece.len()));
        };
        thread.read_pieces(addr(PAGE), (&mut bytes.whole(), 0), cut, on_read).unwrap();
        assert_eq!(read, (0..20).map(|number| (number, PIECE)).collect::<Vec<_>>());
    }

    #[test]
    fn after_an_error_the_pieces_in_flight_are_waited_for() {
        let mut bench = Bench::new();
        let mut asked = 0;
        bench.serve(move |_, request| match request {
            RackRequest::Translate { .. } => {
                let usage = PageUse::Run { index: 0, pages: 1 }.to_raw();
                Some(RackAnswer::Remote { home: RackId(1), usage })
            }
            RackRequest::ReadInto { .. } => {
                asked += 1;
                let is_lost = asked == 2;
                Some(if is_lost { RackAnswer::PageLost } else { RackAnswer::DoneAt(RackId(1)) })
            }
            RackRequest::Ping => Some(RackAnswer::Done(asked)),
            _ => None,
        });
        let mut thread = bench.thread();
        let memory = [Extent { addr: addr(PAGE), bytes: PAGE }];
        let cut = pieces(&memory, PAGE, 0, addr(3 * PAGE), 20 * PIECE).unwrap();
        let mut bytes = FrameBytesMut::within(&bench.connection.frames, 0, 20 * PIECE).unwrap();
        let mut read = 0;
        let failed =
            thread.read_pieces(addr(PAGE), (&mut bytes.whole(), 0), cut, &mut |_| read += 1);
        assert_eq!(failed, Err(AccessError::PageLost(addr(3 * PAGE + PIECE as u64))));
        assert_eq!(read, 1);
        assert!(thread.calls.settle(&bench.connection), "no call is abandoned");
        let cells = (0..CELLS_PER_THREAD).map(|_| thread.calls.reserve(&bench.connection));
        assert_eq!(cells.filter(Result::is_ok).count(), CELLS_PER_THREAD);
    }
}
