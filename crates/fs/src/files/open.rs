//! Files that this mount has open.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::attr::{Attr, Ino};
use crate::error::FsError;
use crate::format::inode::Inode;
use crate::volume::number_map::Numbered;
use crate::volume::open_file::OpenFile;
use crate::volume::transaction::Updated;
use crate::volume::{FILE_SHARDS, Volume, lock};
use crate::volume_memory::VolumeMemory;

/// An open file for the duration of one operation; dropping it releases the file.
#[derive(Debug)]
pub(crate) struct OpenGuard<'a, M: VolumeMemory> {
    volume: &'a Volume<M>,
    pub(crate) file: Arc<OpenFile>,
}

impl<M: VolumeMemory> Drop for OpenGuard<'_, M> {
    fn drop(&mut self) {
        if self.file.leave() {
            return;
        }
        // The operation itself has succeeded; changes that could not be stored stay delayed.
        let _ = self.volume.release(self.file.ino);
    }
}

/// Pause between two attempts on a file that another mount holds.
const PAUSE: Duration = Duration::from_millis(1);

impl<M: VolumeMemory> Volume<M> {
    pub(crate) fn files_of(&self, ino: Ino) -> &Mutex<Numbered<Ino, Arc<OpenFile>>> {
        // In range for any number.
        &self.files[usize::try_from(ino.0 % FILE_SHARDS as u64).unwrap_or(0)]
    }

    /// Returns the file if this mount knows it.
    pub(crate) fn opened(&self, ino: Ino) -> Option<Arc<OpenFile>> {
        lock(self.files_of(ino)).get(&ino).cloned()
    }

    /// Repeats `attempt` while it fails with [`FsError::Busy`], for up to `lock_wait`.
    pub(crate) fn waiting<T>(
        &self,
        mut attempt: impl FnMut() -> Result<T, FsError>,
    ) -> Result<T, FsError> {
        // The clock is read only after a failed attempt.
        let mut began = None;
        loop {
            let result = attempt();
            if !matches!(result, Err(FsError::Busy))
                || began.get_or_insert_with(Instant::now).elapsed() >= self.lock_wait
            {
                return result;
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Registers this mount in the inode's list of mounts that have it open, so that the inode
    /// outlives its last name. Each open needs one [`release`](Self::release).
    pub fn open(&self, ino: Ino) -> Result<Attr, FsError> {
        let (inode, file) = self.waiting(|| self.try_open(ino))?;
        // A claim of this mount belongs to a thread that is working on it, unless that thread has
        // failed.
        let is_left = |claim| claim != self.session || file.claimed.load(Ordering::Relaxed);
        if inode.claim.is_some_and(is_left)
            && let Err(error) = self.mend(ino)
        {
            let _ = self.release(ino);
            return Err(error);
        }
        Ok(inode.attr(ino))
    }

    fn try_open(&self, ino: Ino) -> Result<(Inode, Arc<OpenFile>), FsError> {
        let mut files = lock(self.files_of(ino));
        let known = files.get(&ino).map(Arc::clone);
        if let Some(file) = known.as_ref().filter(|file| file.is_open()) {
            file.count.fetch_add(1, Ordering::Relaxed);
            drop(files);
            let inode = self.inode_of(file);
            if inode.is_err() {
                let _ = self.release(ino);
            }
            return Ok((inode?, Arc::clone(file)));
        }
        let updated = self.update(ino, |inode| {
            self.check_claim(inode.claim)?;
            // A session of this mount in the list is left from an earlier open.
            inode.opens.retain(|session| *session != self.session && self.is_alive(*session));
            if inode.nlink == 0 && inode.opens.is_empty() {
                return Err(FsError::NotFound);
            }
            inode.opens.push(self.session);
            Ok(())
        });
        let file = known.unwrap_or_else(|| Arc::new(OpenFile::new(ino, 0)));
        if matches!(updated, Err(FsError::Io(_))) {
            // The session may be listed in the inode; a sweep removes it.
            files.insert(ino, Arc::clone(&file));
        }
        let mut inode = updated?.inode;
        // Another mount may have released memory while the file was not open here.
        file.forget();
        file.count.store(1, Ordering::Relaxed);
        files.insert(ino, Arc::clone(&file));
        lock(&file.lazy).apply(&mut inode);
        Ok((inode, file))
    }

    /// Opens a file for the duration of one operation.
    pub(crate) fn enter(&self, ino: Ino) -> Result<OpenGuard<'_, M>, FsError> {
        if let Some(file) = lock(self.files_of(ino)).get(&ino).filter(|file| file.is_open()) {
            file.count.fetch_add(1, Ordering::Relaxed);
            return Ok(OpenGuard { volume: self, file: Arc::clone(file) });
        }
        self.open(ino)?;
        match self.opened(ino) {
            Some(file) => Ok(OpenGuard { volume: self, file }),
            None => Err(FsError::NotFound),
        }
    }

    /// Ends one [`open`](Self::open). The last release stores delayed times, and frees an inode
    /// without a name unless another mount has it open.
    ///
    /// # Errors
    /// The next [`sweep`](Self::sweep) stores what this call could not store.
    pub fn release(&self, ino: Ino) -> Result<(), FsError> {
        let files = lock(self.files_of(ino));
        let Some(file) = files.get(&ino).filter(|file| file.is_open()) else { return Ok(()) };
        if file.leave() {
            return Ok(());
        }
        file.count.store(0, Ordering::Relaxed);
        let file = Arc::clone(file);
        drop(files);
        self.let_go(&file)
    }

    /// Removes this mount's session from the inode of a file that is no longer open here.
    fn let_go(&self, file: &OpenFile) -> Result<(), FsError> {
        self.mend_own(file)?;
        let ino = file.ino;
        let mut files = lock(self.files_of(ino));
        // Another thread may have opened the file again, or released it already.
        let known = files.get(&ino).filter(|file| !file.is_open()).map(Arc::clone);
        let Some(file) = known else { return Ok(()) };
        self.leave_locks(&file)?;
        let released = self.update_with_lazy(&file, |inode| {
            inode.opens.retain(|session| *session != self.session);
            Ok(())
        });
        // On failure the file stays in the map, for the next sweep.
        if matches!(released, Ok(_) | Err(FsError::NotFound)) {
            files.remove(&ino);
        }
        drop(files);
        match released {
            Ok(updated) if updated.inode.nlink == 0 => self.purge(ino),
            Ok(_) | Err(FsError::NotFound) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Releases all open files, whatever their counts.
    pub(crate) fn release_all(&self) -> Result<(), FsError> {
        let open = self.files.iter().flat_map(|files| {
            let files = lock(files);
            files.values().map(Arc::clone).collect::<Vec<_>>()
        });
        let mut result = Ok(());
        for file in open {
            file.count.store(1, Ordering::Relaxed);
            result = result.and(self.release(file.ino));
        }
        result
    }

    /// Applies this mount's delayed changes to an inode that was just changed.
    pub(crate) fn with_lazy(&self, ino: Ino, mut inode: Inode) -> Inode {
        if let Some(file) = self.opened(ino) {
            lock(&file.lazy).apply(&mut inode);
        }
        inode
    }

    /// Reads the inode of an open file and applies the delayed changes.
    pub(crate) fn inode_of(&self, file: &OpenFile) -> Result<Inode, FsError> {
        let _quiet = lock(&file.writing_down);
        let mut inode = self.inode(file.ino)?;
        lock(&file.lazy).apply(&mut inode);
        Ok(inode)
    }

    /// Changes the inode of an open file and stores the delayed changes in the same transaction.
    pub(crate) fn update_with_lazy<T>(
        &self,
        file: &OpenFile,
        change: impl FnMut(&mut Inode) -> Result<T, FsError>,
    ) -> Result<Updated<T>, FsError> {
        let _quiet = lock(&file.writing_down);
        self.write_down(file, change)
    }

    /// As `update_with_lazy`; the caller holds `writing_down`.
    fn write_down<T>(
        &self,
        file: &OpenFile,
        mut change: impl FnMut(&mut Inode) -> Result<T, FsError>,
    ) -> Result<Updated<T>, FsError> {
        let lazy = std::mem::take(&mut *lock(&file.lazy));
        let updated = self.update(file.ino, |inode| {
            lazy.apply(inode);
            change(inode)
        });
        if updated.is_err() {
            let mut now = lock(&file.lazy);
            // A newer time stays.
            if now.mtime.is_none() {
                (now.mtime, now.mtime_before) = (lazy.mtime, lazy.mtime_before);
            }
            now.atime = now.atime.or(lazy.atime);
            now.allocated = now.allocated.saturating_add(lazy.allocated);
        }
        updated
    }

    /// Stores the delayed times of reads and overwrites; otherwise the next [`sweep`](Self::sweep)
    /// stores them. Contents are in the pool already.
    pub fn flush(&self, ino: Ino) -> Result<(), FsError> {
        let Some(file) = self.opened(ino) else { return Ok(()) };
        let _quiet = lock(&file.writing_down);
        if lock(&file.lazy).is_empty() {
            return Ok(());
        }
        match self.write_down(&file, |_| Ok(())) {
            Ok(_) | Err(FsError::NotFound) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The same as [`flush`](Self::flush): written contents are in the pool already.
    pub fn sync(&self, ino: Ino) -> Result<(), FsError> {
        self.flush(ino)
    }

    /// Stores the delayed changes of all files, releases files whose release has failed, and
    /// finishes claims and lock releases that have failed.
    pub(crate) fn flush_all(&self) -> Result<(), FsError> {
        let mut result = Ok(());
        for files in &self.files {
            let known: Vec<Arc<OpenFile>> = lock(files).values().map(Arc::clone).collect();
            for file in known {
                let mended = self.mend_own(&file).and(self.drop_due_locks(&file));
                let done = if file.is_open() { self.flush(file.ino) } else { self.let_go(&file) };
                for done in [mended, done] {
                    // Another mount holds the file.
                    if !matches!(done, Err(FsError::Busy)) {
                        result = result.and(done);
                    }
                }
            }
        }
        result
    }
}
