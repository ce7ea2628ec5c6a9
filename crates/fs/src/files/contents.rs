//! Reading and writing files.

use std::sync::atomic::Ordering;

use rackpool_client::{GlobalAddr, WriteRequest};
use rackpool_kv::ReadRequest;

use crate::attr::{Ino, Timestamp};
use crate::error::FsError;
use crate::format::inode::Inode;
use crate::format::word::{BLOCK_BYTES, CLUSTER_BYTES, TreeWord, WordKind, plus};
use crate::tree::link::{InitialContents, LinkOutcome};
use crate::volume::open_file::OpenFile;
use crate::volume::transaction::Updated;
use crate::volume::{Volume, lock};
use crate::volume_memory::VolumeMemory;

/// The largest length of a file in bytes.
pub(crate) const MAX_SIZE: u64 = i64::MAX as u64;
/// As with `relatime`, a read renews an access time older than this.
const ATIME_SECONDS: i64 = 24 * 60 * 60;

/// A part of a request that lies within one unit (cluster or block).
struct RequestPart {
    offset: u64,
    len: usize,
}

/// Splits `len` bytes from `offset` at multiples of `unit`.
fn parts(offset: u64, len: usize, unit: u64) -> impl Iterator<Item = RequestPart> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let left = len.checked_sub(at).filter(|left| *left > 0)?;
        let offset = offset + at as u64;
        let room = usize::try_from(unit - offset % unit).unwrap_or(left);
        let len = left.min(room);
        at += len;
        Some(RequestPart { offset, len })
    })
}

/// What a write at the end of a file did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// The offset of the first byte.
    pub offset: u64,
    /// The number of bytes written, as [`Volume::write`] returns it.
    pub bytes: usize,
}

/// A file that is long enough for a write.
struct Reserved {
    /// Where the write begins.
    offset: u64,
    /// The length of the file before.
    before: u64,
    inode: Inode,
}

/// The progress of a write, and the error that ended it.
struct Written<'a> {
    /// Writes to existing memory, still to be done.
    writes: Vec<WriteRequest<'a>>,
    bytes: usize,
    allocated: u64,
    error: Option<FsError>,
}

/// Where a write begins.
#[derive(Clone, Copy)]
enum Start {
    At(u64),
    /// At the end of the file.
    End,
}

/// How to write.
#[derive(Clone, Copy)]
struct How {
    start: Start,
    keeps_capability: bool,
}

/// The attribute with the capabilities that a program gets by executing the file.
const CAPABILITY: &[u8] = b"security.capability";

fn has_capability(inode: &Inode) -> bool {
    inode.xattrs.iter().any(|xattr| xattr.name == CAPABILITY)
}

impl<M: VolumeMemory> Volume<M> {
    /// Reads from `offset` and returns the number of bytes, which is smaller than `into` only at
    /// the end of the file.
    pub fn read(&self, ino: Ino, offset: u64, into: &mut [u8]) -> Result<usize, FsError> {
        let entered = self.enter(ino)?;
        let file = &*entered.file;
        let _shared = file.share();
        let inode = self.contents_inode(ino)?;
        inode.expect_file()?;
        let len = inode.size.saturating_sub(offset).min(into.len() as u64);
        let into = &mut into[..usize::try_from(len).unwrap_or(0)];
        if into.is_empty() {
            return Ok(0);
        }
        self.note_read(file, &inode);
        let len = into.len();
        let mut requests = Vec::with_capacity(len / 4096 + 2);
        let mut rest = into;
        for part in parts(offset, len, CLUSTER_BYTES) {
            let (bytes, next) = rest.split_at_mut(part.len);
            rest = next;
            self.read_cluster(file, GlobalAddr::from_raw(inode.head), &part, bytes, &mut requests)?;
        }
        self.memory.read_batch(&mut requests).map_err(FsError::of_memory::<M>)?;
        Ok(len)
    }

    /// Adds the reads of one cluster to `requests`, and fills holes with zeros.
    fn read_cluster<'a>(
        &self,
        file: &OpenFile,
        head: GlobalAddr,
        part: &RequestPart,
        into: &'a mut [u8],
        requests: &mut Vec<ReadRequest<'a>>,
    ) -> Result<(), FsError> {
        let word = match head.is_null() {
            true => TreeWord(0),
            false => self.cluster(file, head, part.offset / CLUSTER_BYTES)?,
        };
        match word.kind() {
            Some(WordKind::Run) => {
                let addr = plus(word.addr(), part.offset % CLUSTER_BYTES);
                requests.push(ReadRequest { addr, into });
            }
            Some(_) => {
                let mut rest = into;
                for part in parts(part.offset, part.len, BLOCK_BYTES) {
                    let (into, next) = rest.split_at_mut(part.len);
                    rest = next;
                    let block = self.block(file, word, part.offset / BLOCK_BYTES)?;
                    if block.is_hole() {
                        into.fill(0);
                        continue;
                    }
                    let addr = plus(block.addr(), part.offset % BLOCK_BYTES);
                    requests.push(ReadRequest { addr, into });
                }
            }
            None => into.fill(0),
        }
        Ok(())
    }

    fn note_read(&self, file: &OpenFile, inode: &Inode) {
        let mut lazy = lock(&file.lazy);
        let atime = lazy.atime.unwrap_or(inode.atime);
        let mtime = lazy.mtime().unwrap_or(inode.mtime);
        let now = Timestamp::now();
        let age = now.seconds.saturating_sub(atime.seconds);
        if atime <= mtime || atime <= inode.ctime || age > ATIME_SECONDS {
            lazy.atime = Some(now);
        }
    }

    /// Writes at `offset` and returns the number of bytes, which is smaller than `from` only when
    /// no memory is left. Extends the file if needed. The bytes are visible to other mounts when
    /// this returns.
    ///
    /// # Errors
    /// [`FsError::NoSpace`] if no byte could be written. After [`FsError::Io`] any part of the
    /// bytes may be stored, and the file may be longer.
    pub fn write(&self, ino: Ino, offset: u64, from: &[u8]) -> Result<usize, FsError> {
        let how = How { start: Start::At(offset), keeps_capability: false };
        self.write_from(ino, how, from).map(|appended| appended.bytes)
    }

    /// As [`write`](Self::write), for bytes that a program wrote earlier and a cache held: it keeps
    /// a `security.capability` of the file, which [`write`](Self::write) removes.
    pub fn write_back(&self, ino: Ino, offset: u64, from: &[u8]) -> Result<usize, FsError> {
        let how = How { start: Start::At(offset), keeps_capability: true };
        self.write_from(ino, how, from).map(|appended| appended.bytes)
    }

    /// Writes at the end of the file. Ranges of concurrent appends, from any mount, never overlap.
    pub fn append(&self, ino: Ino, from: &[u8]) -> Result<Appended, FsError> {
        self.write_from(ino, How { start: Start::End, keeps_capability: false }, from)
    }

    fn write_from(&self, ino: Ino, how: How, from: &[u8]) -> Result<Appended, FsError> {
        let entered = self.enter(ino)?;
        let file = &*entered.file;
        if from.is_empty() {
            let inode = self.contents_inode(ino)?;
            inode.expect_file()?;
            return Ok(Appended { offset: inode.size, bytes: 0 });
        }
        let reserved = self.waiting(|| {
            let shared = file.share();
            let writes = file.writes.load(Ordering::Relaxed);
            match self.reserve(file, how, from.len() as u64) {
                Ok(reserved) => Ok((reserved, writes, shared)),
                Err(FsError::Busy) => {
                    drop(shared);
                    self.mend(ino)?;
                    Err(FsError::Busy)
                }
                Err(error) => Err(error),
            }
        });
        let (Reserved { offset, before, inode }, mut writes, shared) = reserved?;
        // A write at or before the old end leaves no gap: it continues the file behind that end.
        let goes_on_from = if offset <= before { before } else { u64::MAX };
        let written = self.place(file, &inode, offset, goes_on_from, from);
        {
            let mut lazy = lock(&file.lazy);
            lazy.allocated = lazy.allocated.saturating_add_unsigned(written.allocated);
            // Set after the bytes are stored, so that a mount that read the old bytes sees a
            // change.
            if written.bytes > 0 {
                lazy.note_write(&inode, Timestamp::now());
                file.writes.fetch_add(1, Ordering::Relaxed);
                writes += 1;
            }
        }
        drop(shared);
        if matches!(written.error, Some(FsError::NoSpace)) && before < inode.size {
            let end = if written.bytes > 0 { offset + written.bytes as u64 } else { 0 };
            // If this fails the file keeps the new length, as after a kill.
            let _ = self.cut_back(file, &inode, before.max(end), writes);
        }
        match written.error {
            Some(error) if written.bytes == 0 => Err(error),
            _ => Ok(Appended { offset, bytes: written.bytes }),
        }
    }

    /// Extends the file for a write, before any byte is stored: so all bytes behind the end are
    /// zeros.
    fn reserve(
        &self,
        file: &OpenFile,
        How { start, keeps_capability }: How,
        len: u64,
    ) -> Result<Reserved, FsError> {
        let inode = self.contents_inode(file.ino)?;
        inode.expect_file()?;
        let place = |inode: &Inode| {
            let offset = match start {
                Start::At(offset) => offset,
                Start::End => inode.size,
            };
            let end = offset.checked_add(len).filter(|end| *end <= MAX_SIZE);
            end.map(|end| (offset, end)).ok_or(FsError::TooLarge)
        };
        let (offset, end) = place(&inode)?;
        let drops = |inode: &Inode| !keeps_capability && has_capability(inode);
        let in_place = matches!(start, Start::At(_)) && end <= inode.size && inode.head != 0;
        if in_place && !drops(&inode) {
            return Ok(Reserved { offset, before: inode.size, inode });
        }
        let head = match inode.head {
            0 => self.new_head(file.ino)?.raw(),
            head => head,
        };
        let now = Timestamp::now();
        let updated = self.update_with_lazy(file, |inode| {
            if inode.claim.is_some() {
                // The mount that shortens the file first clears the bytes behind the new end.
                return Err(FsError::Busy);
            }
            let before = inode.size;
            let (offset, end) = place(inode)?;
            inode.size = before.max(end);
            inode.touch(now);
            if drops(inode) {
                inode.xattrs.retain(|xattr| xattr.name != CAPABILITY);
            }
            if inode.head == 0 {
                inode.head = head;
            }
            Ok((offset, before))
        });
        if inode.head == 0 {
            self.give_back_head(head, file.ino, &updated);
        }
        let Updated { value: (offset, before), inode } = updated?;
        Ok(Reserved { offset, before, inode })
    }

    /// Stores bytes in a file that is long enough. From `goes_on_from` on they continue the file.
    fn place<'a>(
        &self,
        file: &OpenFile,
        inode: &Inode,
        offset: u64,
        goes_on_from: u64,
        from: &'a [u8],
    ) -> Written<'a> {
        let head = GlobalAddr::from_raw(inode.head);
        let writes = Vec::with_capacity(from.len() / 4096 + 2);
        let mut written = Written { writes, bytes: 0, allocated: 0, error: None };
        for part in parts(offset, from.len(), CLUSTER_BYTES) {
            let bytes = &from[written.bytes..written.bytes + part.len];
            let goes_on = part.offset >= goes_on_from;
            let placed = self.place_in_cluster(file, head, &part, goes_on, bytes, &mut written);
            if let Err(error) = placed {
                written.error = Some(error);
                break;
            }
        }
        if let Err(error) = self.memory.write_batch(&written.writes) {
            written.bytes = 0;
            written.error = Some(FsError::of_memory::<M>(error));
        }
        written
    }

    /// Adds the writes to one cluster to `written`, and creates missing memory with its bytes.
    fn place_in_cluster<'a>(
        &self,
        file: &OpenFile,
        head: GlobalAddr,
        part: &RequestPart,
        goes_on: bool,
        from: &'a [u8],
        written: &mut Written<'a>,
    ) -> Result<(), FsError> {
        let cluster = part.offset / CLUSTER_BYTES;
        let mut word = self.cluster(file, head, cluster)?;
        if word.is_hole() {
            let at = self.cluster_word(file, head, cluster, true)?;
            let at = at.ok_or(FsError::Damaged("the words of a file"))?;
            match self.make_cluster(at, part, goes_on, from)? {
                LinkOutcome::New(run) if run.kind() == Some(WordKind::Run) => {
                    written.allocated += CLUSTER_BYTES;
                    written.bytes += part.len;
                    return self.see_cluster(file, cluster, run).map(drop);
                }
                made => word = self.see_cluster(file, cluster, made.word())?,
            }
        }
        if word.kind() == Some(WordKind::Run) {
            let addr = plus(word.addr(), part.offset % CLUSTER_BYTES);
            written.writes.push(WriteRequest { addr, from });
            written.bytes += part.len;
            return Ok(());
        }
        let mut rest = from;
        for part in parts(part.offset, part.len, BLOCK_BYTES) {
            let (from, next) = rest.split_at(part.len);
            rest = next;
            let (number, within) = (part.offset / BLOCK_BYTES, part.offset % BLOCK_BYTES);
            let mut block = self.block(file, word, number)?;
            if block.is_hole() {
                let fill = InitialContents::Bytes(within, from);
                let made = self.link_word(Self::block_word(word, number), WordKind::Block, fill)?;
                block = self.see_block(file, number, made.word())?;
                if matches!(made, LinkOutcome::New(_)) {
                    written.allocated += BLOCK_BYTES;
                    written.bytes += part.len;
                    continue;
                }
            }
            written.writes.push(WriteRequest { addr: plus(block.addr(), within), from });
            written.bytes += part.len;
        }
        Ok(())
    }

    /// Creates a cluster: a run with its bytes if the write covers at least half of it or continues
    /// the file at the cluster's beginning, else a split cluster without blocks.
    fn make_cluster(
        &self,
        at: GlobalAddr,
        part: &RequestPart,
        goes_on: bool,
        from: &[u8],
    ) -> Result<LinkOutcome, FsError> {
        let within = part.offset % CLUSTER_BYTES;
        // The file continues into the next cluster, so the rest of that cluster is likely to
        // follow. A write elsewhere may stay alone between holes.
        let is_next = goes_on && within == 0 && part.offset > 0;
        if part.len as u64 * 2 >= CLUSTER_BYTES || is_next {
            match self.link_word(at, WordKind::Run, InitialContents::Bytes(within, from)) {
                // A block may still fit.
                Err(FsError::NoSpace) => {}
                made => return made,
            }
        }
        self.link_word(at, WordKind::Split, InitialContents::Zeros)
    }
}
