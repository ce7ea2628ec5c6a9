//! Linking and unlinking the objects of a tree. After a kill each object belongs either to the tree
//! or to its reservation.

use rackpool_client::{GlobalAddr, PublishCas, PublishMode, WriteRequest};
use rackpool_kv::{CasError, ReadRequest, ReservedObject};

use crate::error::FsError;
use crate::format::word::{CLUSTER_LEN, TreeWord, WordKind, plus};
use crate::volume::{Volume, lock};
use crate::volume_memory::VolumeMemory;

/// The initial contents of a new object.
#[derive(Clone, Copy, Debug)]
pub(crate) enum InitialContents<'a> {
    Zeros,
    /// These bytes at this offset, and zeros around them.
    Bytes(u64, &'a [u8]),
}

/// The result of linking an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkOutcome {
    /// The new object is linked.
    New(TreeWord),
    /// Another thread or mount has linked an object first.
    Found(TreeWord),
}

impl LinkOutcome {
    pub(crate) const fn word(self) -> TreeWord {
        match self {
            Self::New(word) | Self::Found(word) => word,
        }
    }
}

/// Zeros to write from, as many as the largest object has.
pub(crate) static ZEROS: [u8; CLUSTER_LEN] = [0; CLUSTER_LEN];

const TOKEN_BYTES: u64 = 8;

fn zeros(len: u64) -> &'static [u8] {
    &ZEROS[..usize::try_from(len).unwrap_or(0).min(ZEROS.len())]
}

impl<M: VolumeMemory> Volume<M> {
    /// Compare-and-swap; returns whether the word was as expected. If the outcome is indeterminate,
    /// the swap counts as made if the word now holds `new`.
    pub(crate) fn swap(&self, addr: GlobalAddr, expected: u64, new: u64) -> Result<bool, FsError> {
        match self.memory.compare_and_swap(addr, expected, new) {
            Ok(found) => Ok(found == expected),
            Err(CasError::Indeterminate) => Ok(self.raw_word(addr)? == new),
            Err(CasError::GivenUp(error) | CasError::Failed(error)) => {
                Err(FsError::of_memory::<M>(error))
            }
        }
    }

    /// Swaps a word from a value that never comes back, and repeats until the word holds another
    /// value.
    fn swap_away(&self, addr: GlobalAddr, from: u64, to: u64) -> Result<(), FsError> {
        while !self.swap(addr, from, to)? && self.raw_word(addr)? == from {}
        Ok(())
    }

    pub(crate) fn raw_word(&self, addr: GlobalAddr) -> Result<u64, FsError> {
        let mut word = [0; 8];
        let read = self.memory.read_batch(&mut [ReadRequest { addr, into: &mut word }]);
        read.map_err(FsError::of_memory::<M>)?;
        Ok(u64::from_le_bytes(word))
    }

    /// Reads a word, and settles it if it is fresh: the linked object then holds no token.
    pub(crate) fn word(&self, at: GlobalAddr) -> Result<TreeWord, FsError> {
        let word = TreeWord(self.raw_word(at)?);
        if word.is_fresh() { self.settle(at, word) } else { Ok(word) }
    }

    /// Clears the token in the object of a fresh word, then the word's fresh mark. Any mount may do
    /// so.
    fn settle(&self, at: GlobalAddr, fresh: TreeWord) -> Result<TreeWord, FsError> {
        let token = self.raw_word(fresh.addr())?;
        // The file's bytes are written there only after the word is no longer fresh.
        if self.raw_word(at)? == fresh.0 {
            if token != 0 {
                self.swap_away(fresh.addr(), token, 0)?;
            }
            self.swap_away(at, fresh.0, fresh.settled().0)?;
        }
        Ok(TreeWord(self.raw_word(at)?).settled())
    }

    /// Allocates an object and makes the hole at `at` lead to it. After a kill the object is either
    /// linked or free.
    pub(crate) fn link_word(
        &self,
        at: GlobalAddr,
        kind: WordKind,
        fill: InitialContents<'_>,
    ) -> Result<LinkOutcome, FsError> {
        loop {
            if let Some(word) = self.try_link(at, kind, fill)? {
                return Ok(LinkOutcome::New(word));
            }
            let word = self.word(at)?;
            if !word.is_hole() {
                return Ok(LinkOutcome::Found(word));
            }
        }
    }

    /// One attempt of [`link_word`](Self::link_word). Returns the new word, or `None` if `at` was
    /// no hole.
    fn try_link(
        &self,
        at: GlobalAddr,
        kind: WordKind,
        fill: InitialContents<'_>,
    ) -> Result<Option<TreeWord>, FsError> {
        self.expect_room()?;
        let reservation = self.memory.reserve(kind.bytes());
        let mut reservation = reservation.map_err(FsError::of_memory::<M>)?;
        let linked = self.link_reservation(&mut reservation, at, kind, fill);
        // If this fails, an object that was not linked goes back when the program ends.
        let _ = self.memory.finish(reservation);
        linked
    }

    fn link_reservation(
        &self,
        reservation: &mut M::Reservation,
        at: GlobalAddr,
        kind: WordKind,
        fill: InitialContents<'_>,
    ) -> Result<Option<TreeWord>, FsError> {
        let (addr, token) = (reservation.addr(), reservation.token());
        if addr.raw() & TreeWord::TAGS != 0 {
            return Err(FsError::Damaged("the pool gave memory that is not aligned"));
        }
        let settled = TreeWord::new(addr, kind);
        let first = self.fill(addr, token, kind, fill)?;
        if !self.publish_word(reservation, at, settled)? {
            return Ok(None);
        }
        // Publishing clears the token, but does not report whether that failed.
        self.swap_away(addr, token, 0)?;
        self.swap_away(at, settled.0 | TreeWord::FRESH, settled.0)?;
        if !first.from.is_empty() {
            self.memory.write_batch(&[first]).map_err(FsError::of_memory::<M>)?;
        }
        Ok(Some(settled))
    }

    /// Publishes a reservation as the fresh word at `at`. Returns whether `at` was a hole.
    fn publish_word(
        &self,
        reservation: &mut M::Reservation,
        at: GlobalAddr,
        settled: TreeWord,
    ) -> Result<bool, FsError> {
        let link = PublishCas {
            addr: at,
            expected: 0,
            new: settled.0 | TreeWord::FRESH,
            mask: !TreeWord::FRESH,
            replaced: None,
            mode: PublishMode::Plain,
        };
        match self.memory.publish(reservation, &link) {
            Ok(found) => Ok(found == 0),
            Err(CasError::Indeterminate) => {
                let done = TreeWord(self.raw_word(at)?).settled() == settled;
                self.memory.resolve(reservation, done);
                Ok(done)
            }
            Err(CasError::GivenUp(error) | CasError::Failed(error)) => {
                Err(FsError::of_memory::<M>(error))
            }
        }
    }

    /// Writes the contents of a new object, with the token in the first 8 bytes. Returns the write
    /// of the bytes that belong there.
    fn fill<'a>(
        &self,
        addr: GlobalAddr,
        token: u64,
        kind: WordKind,
        fill: InitialContents<'a>,
    ) -> Result<WriteRequest<'a>, FsError> {
        let token = token.to_le_bytes();
        let (from, bytes) = match fill {
            InitialContents::Zeros => (TOKEN_BYTES, &[][..]),
            InitialContents::Bytes(from, bytes) => (from, bytes),
        };
        // Bytes that overlap the token are written after the token is cleared.
        let early = usize::try_from(TOKEN_BYTES.saturating_sub(from)).unwrap_or(0);
        let (first, rest) = bytes.split_at(early.min(bytes.len()));
        let begin = from.max(TOKEN_BYTES);
        let end = begin + rest.len() as u64;
        let mut writes = vec![WriteRequest { addr, from: &token }];
        let parts = [
            (TOKEN_BYTES, zeros(begin - TOKEN_BYTES)),
            (begin, rest),
            (end, zeros(kind.bytes().saturating_sub(end))),
        ];
        let parts = parts.iter().filter(|(_, part)| !part.is_empty());
        writes.extend(parts.map(|(at, from)| WriteRequest { addr: plus(addr, *at), from }));
        self.memory.write_batch(&writes).map_err(FsError::of_memory::<M>)?;
        Ok(WriteRequest { addr: plus(addr, from), from: first })
    }

    /// Makes a word a hole and frees the object it leads to, which must lead to nothing itself. The
    /// caller must make sure that nothing else uses the file meanwhile.
    pub(crate) fn unlink_word(&self, at: GlobalAddr, word: TreeWord) -> Result<(), FsError> {
        while !self.try_unlink(at, word)? {
            match TreeWord(self.raw_word(at)?) {
                now if now.is_hole() => return Ok(()),
                now if now == word => {}
                // The mark of a mount that is gone; its daemon settles it.
                _ => return Err(FsError::Busy),
            }
        }
        Ok(())
    }

    /// One attempt of `unlink_word`. Returns whether the word was as expected.
    fn try_unlink(&self, at: GlobalAddr, word: TreeWord) -> Result<bool, FsError> {
        let mut reservation = self.memory.tombstone().map_err(FsError::of_memory::<M>)?;
        let mark = TreeWord::mark(reservation.token()).0;
        let link = PublishCas {
            addr: at,
            expected: word.0,
            new: mark,
            mask: u64::MAX,
            replaced: Some(word.addr()),
            mode: PublishMode::Settle(0),
        };
        let made = match self.memory.publish(&mut reservation, &link) {
            Ok(found) => Ok(found == word.0),
            Err(CasError::Indeterminate) => {
                let found = self.raw_word(at);
                if let Ok(found) = found {
                    self.memory.resolve(&mut reservation, found == mark);
                }
                found.map(|found| found == mark)
            }
            Err(CasError::GivenUp(error) | CasError::Failed(error)) => {
                Err(FsError::of_memory::<M>(error))
            }
        };
        let finished = self.memory.finish(reservation).map_err(FsError::of_memory::<M>);
        if made.is_err() || finished.is_err() {
            // The mark may be stored. This mount has to settle it; the object goes back when the
            // program ends.
            lock(&self.marks).push((at, mark));
            self.settle_marks()?;
        }
        made
    }

    /// Makes holes of the words that this mount has marked and could not settle.
    pub(crate) fn settle_marks(&self) -> Result<(), FsError> {
        let mut marks = lock(&self.marks);
        while let Some((at, mark)) = marks.last() {
            self.swap_away(*at, *mark, 0)?;
            marks.pop();
        }
        Ok(())
    }
}
