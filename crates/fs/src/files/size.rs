//! Changing the length of files, punching holes, allocating memory in advance.
//!
//! The mount that releases memory holds a *claim* in the inode: other mounts neither open nor
//! extend the file until the claim is cleared. If its mount is gone, another mount takes the claim
//! over and finishes the work.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::Ordering;

use rackpool_client::GlobalAddr;

use crate::attr::{AllocateMode, Ino, Timestamp};
use crate::error::FsError;
use crate::files::contents::MAX_SIZE;
use crate::format::inode::Inode;
use crate::format::word::{BLOCK_BYTES, CLUSTER_BYTES, WordKind};
use crate::tree::link::{InitialContents, LinkOutcome};
use crate::volume::open_file::OpenFile;
use crate::volume::transaction::Updated;
use crate::volume::{Volume, lock};
use crate::volume_memory::VolumeMemory;

impl<M: VolumeMemory> Volume<M> {
    /// Finishes the release of memory that a mount, now gone, has begun in a file.
    pub(crate) fn mend(&self, ino: Ino) -> Result<(), FsError> {
        let Some(file) = self.opened(ino) else { return Ok(()) };
        let _alone = file.exclude();
        self.waiting(|| self.mend_held(&file))
    }

    /// Finishes the release of memory that this mount has begun in a file and that has failed.
    pub(crate) fn mend_own(&self, file: &OpenFile) -> Result<(), FsError> {
        if !file.claimed.load(Ordering::Relaxed) {
            return Ok(());
        }
        let _alone = file.exclude();
        match self.mend_held(file) {
            Err(FsError::NotFound) => Ok(()),
            mended => mended,
        }
    }

    /// As `mend`; the caller has locked the gate exclusively.
    fn mend_held(&self, file: &OpenFile) -> Result<(), FsError> {
        self.settle_marks()?;
        let updated = self.update(file.ino, |inode| {
            if inode.claim.is_none() {
                return Ok(false);
            }
            self.check_claim(inode.claim)?;
            inode.claim = Some(self.session);
            Ok(true)
        });
        let Updated { value: claimed, inode } = self.note_claim(file, updated)?;
        if claimed { self.end_claim(file, inode, None) } else { Ok(()) }
    }

    /// Records after a change of an inode whether it may hold a claim of this mount.
    fn note_claim<T>(
        &self,
        file: &OpenFile,
        updated: Result<Updated<T>, FsError>,
    ) -> Result<Updated<T>, FsError> {
        match &updated {
            Ok(Updated { inode, .. }) => {
                file.claimed.store(inode.claim == Some(self.session), Ordering::Relaxed);
            }
            Err(FsError::NotFound) => file.claimed.store(false, Ordering::Relaxed),
            // The change may have been made.
            Err(FsError::Io(_)) => file.claimed.store(true, Ordering::Relaxed),
            Err(_) => {}
        }
        updated
    }

    /// Clears `range` and all bytes behind the end, then clears the claim. The caller holds the
    /// claim.
    fn end_claim(
        &self,
        file: &OpenFile,
        mut inode: Inode,
        range: Option<Range<u64>>,
    ) -> Result<(), FsError> {
        let alone = self.is_ours_alone(&mut inode.opens);
        let head = GlobalAddr::from_raw(inode.head);
        let mut freed = 0;
        if let Some(Range { start, end }) = range {
            freed += self.clear(file.ino, head, start, Some(end), alone)?;
        }
        freed += self.clear(file.ino, head, inode.size, None, alone)?;
        file.forget();
        let updated = self.update(file.ino, |inode| {
            inode.claim = None;
            inode.allocated = inode.allocated.saturating_sub(freed);
            Ok(())
        });
        self.note_claim(file, updated).map(drop)
    }

    /// Changes an inode once no mount holds a claim. The caller has locked the gate exclusively.
    fn update_unclaimed<T>(
        &self,
        file: &OpenFile,
        mut change: impl FnMut(&mut Inode) -> Result<T, FsError>,
    ) -> Result<Updated<T>, FsError> {
        self.waiting(|| {
            let updated = self.update_with_lazy(file, |inode| {
                inode.expect_file()?;
                if inode.claim.is_some() {
                    return Err(FsError::Busy);
                }
                change(inode)
            });
            if matches!(updated, Err(FsError::Busy)) {
                self.mend_held(file)?;
            }
            self.note_claim(file, updated)
        })
    }

    /// Takes back an extension for which a write found no memory. `reserved` is the inode after the
    /// extension. The file keeps its length if any other write may have stored bytes there
    /// meanwhile.
    pub(crate) fn cut_back(
        &self,
        file: &OpenFile,
        reserved: &Inode,
        size: u64,
        writes: u64,
    ) -> Result<(), FsError> {
        let _alone = file.exclude();
        if file.writes.load(Ordering::Relaxed) != writes {
            return Ok(());
        }
        let updated = self.update_with_lazy(file, |inode| {
            // Another mount that has written still has the file open, or has changed the inode.
            let is_untouched = (inode.size, inode.change) == (reserved.size, reserved.change);
            if !is_untouched || inode.claim.is_some() || !self.is_ours_alone(&mut inode.opens) {
                return Ok(false);
            }
            inode.size = size;
            inode.claim = Some(self.session);
            Ok(true)
        });
        let Updated { value: claimed, inode } = self.note_claim(file, updated)?;
        if claimed { self.end_claim(file, inode, None) } else { Ok(()) }
    }

    /// Sets the length of a file.
    pub(crate) fn set_size(&self, ino: Ino, size: u64) -> Result<(), FsError> {
        if size > MAX_SIZE {
            return Err(FsError::TooLarge);
        }
        let entered = self.enter(ino)?;
        let file = &*entered.file;
        let _alone = file.exclude();
        let now = Timestamp::now();
        let Updated { value: shrinks, inode } = self.update_unclaimed(file, |inode| {
            let shrinks = size < inode.size && inode.head != 0;
            inode.size = size;
            inode.touch(now);
            if shrinks {
                inode.claim = Some(self.session);
            }
            Ok(shrinks)
        })?;
        if shrinks { self.end_claim(file, inode, None) } else { Ok(()) }
    }

    /// Allocates memory for a range of a file in advance, or makes the range a hole or zeros.
    pub fn allocate(
        &self,
        ino: Ino,
        mode: AllocateMode,
        offset: u64,
        len: u64,
    ) -> Result<(), FsError> {
        let end =
            offset.checked_add(len).filter(|end| *end <= MAX_SIZE).ok_or(FsError::TooLarge)?;
        if len == 0 {
            return Err(FsError::InvalidArgument);
        }
        let entered = self.enter(ino)?;
        let file = &*entered.file;
        match mode {
            AllocateMode::Allocate => self.fill_in(file, offset, end, true),
            AllocateMode::AllocateKeepSize => self.fill_in(file, offset, end, false),
            AllocateMode::PunchHole | AllocateMode::ZeroRangeKeepSize => {
                self.clear_range(file, offset, end, false)
            }
            AllocateMode::ZeroRange => self.clear_range(file, offset, end, true),
        }
    }

    fn clear_range(
        &self,
        file: &OpenFile,
        start: u64,
        end: u64,
        extend: bool,
    ) -> Result<(), FsError> {
        let _alone = file.exclude();
        let now = Timestamp::now();
        let Updated { value: claimed, inode } = self.update_unclaimed(file, |inode| {
            if extend {
                inode.size = inode.size.max(end);
            }
            inode.touch(now);
            let claimed = inode.head != 0;
            if claimed {
                inode.claim = Some(self.session);
            }
            Ok(claimed)
        })?;
        if claimed { self.end_claim(file, inode, Some(start..end)) } else { Ok(()) }
    }

    /// Creates all missing memory in a range.
    fn fill_in(&self, file: &OpenFile, start: u64, end: u64, extend: bool) -> Result<(), FsError> {
        let capacity = self.memory.capacity().map_err(FsError::of_memory::<M>)?;
        let _alone = file.exclude();
        let inode = self.inode(file.ino)?;
        inode.expect_file()?;
        if end - start > capacity.free.saturating_add(inode.allocated).min(capacity.total) {
            return Err(FsError::NoSpace);
        }
        let head = match inode.head {
            0 => self.new_head(file.ino)?.raw(),
            head => head,
        };
        let now = Timestamp::now();
        let updated = self.update_unclaimed(file, |inode| {
            if inode.head == 0 {
                inode.head = head;
            }
            inode.ctime = now;
            Ok(inode.head)
        });
        if inode.head == 0 {
            self.give_back_head(head, file.ino, &updated);
        }
        let head_now = updated?.value;
        let mut allocated = 0;
        let mut result = Ok(());
        for cluster in start / CLUSTER_BYTES..=(end - 1) / CLUSTER_BYTES {
            match self.fill_cluster(file, GlobalAddr::from_raw(head_now), cluster, start, end) {
                Ok(bytes) => allocated += bytes,
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        {
            let mut lazy = lock(&file.lazy);
            lazy.allocated = lazy.allocated.saturating_add_unsigned(allocated);
        }
        result?;
        if extend {
            // The mount that shortens the file first clears the bytes behind the new end.
            self.update_unclaimed(file, |inode| {
                if inode.size < end {
                    inode.size = end;
                    inode.touch(now);
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    fn fill_cluster(
        &self,
        file: &OpenFile,
        head: GlobalAddr,
        cluster: u64,
        start: u64,
        end: u64,
    ) -> Result<u64, FsError> {
        let damaged = FsError::Damaged("the words of a file");
        let mut word = self.cluster(file, head, cluster)?;
        let mut allocated = 0;
        let first = cluster * CLUSTER_BYTES;
        let (from, to) = (start.max(first), end.min(first + CLUSTER_BYTES));
        if word.is_hole() {
            let at = self.cluster_word(file, head, cluster, true)?.ok_or(damaged)?;
            let whole = (to - from) * 2 >= CLUSTER_BYTES;
            let kind = if whole { WordKind::Run } else { WordKind::Split };
            let made = self.link_word(at, kind, InitialContents::Zeros)?;
            if whole && matches!(made, LinkOutcome::New(_)) {
                allocated += CLUSTER_BYTES;
            }
            word = self.see_cluster(file, cluster, made.word())?;
        }
        if word.kind() == Some(WordKind::Split) {
            for block in from / BLOCK_BYTES..=(to - 1) / BLOCK_BYTES {
                if !self.block(file, word, block)?.is_hole() {
                    continue;
                }
                let at = Self::block_word(word, block);
                let made = self.link_word(at, WordKind::Block, InitialContents::Zeros)?;
                self.see_block(file, block, made.word())?;
                if matches!(made, LinkOutcome::New(_)) {
                    allocated += BLOCK_BYTES;
                }
            }
        }
        Ok(allocated)
    }

    /// Returns the first offset at or after `offset` that is not in a hole.
    ///
    /// # Errors
    /// [`FsError::NoSuchOffset`] if no data follows, or `offset` is not before the end.
    pub fn seek_data(&self, ino: Ino, offset: u64) -> Result<u64, FsError> {
        self.seek(ino, offset, true)
    }

    /// Returns the first offset at or after `offset` that is in a hole; the end of the file counts
    /// as one.
    ///
    /// # Errors
    /// [`FsError::NoSuchOffset`] if `offset` is not before the end.
    pub fn seek_hole(&self, ino: Ino, offset: u64) -> Result<u64, FsError> {
        self.seek(ino, offset, false)
    }

    fn seek(&self, ino: Ino, offset: u64, data: bool) -> Result<u64, FsError> {
        let entered = self.enter(ino)?;
        let file = &*entered.file;
        let _shared = file.share();
        let inode = self.inode(ino)?;
        inode.expect_file()?;
        if offset >= inode.size {
            return Err(FsError::NoSuchOffset);
        }
        let head = GlobalAddr::from_raw(inode.head);
        let (mut at, mut met) = (offset, HashMap::new());
        while at < inode.size && !head.is_null() {
            let extent = self.extent(file, head, at, &mut met)?;
            if extent.is_data == data {
                return Ok(at);
            }
            at = extent.end;
        }
        match data {
            true => Err(FsError::NoSuchOffset),
            // A file without a head is one hole.
            false => Ok(if head.is_null() { offset } else { inode.size }),
        }
    }
}
