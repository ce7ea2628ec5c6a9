//! Files that this mount has open.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use crate::attr::{Attr, Ino, Time};
use crate::error::FsError;
use crate::inode::Inode;
use crate::locks::OwnLocks;
use crate::numbered::Numbered;
use crate::volume::{FILE_SHARDS, Volume, lock};
use crate::volume_memory::VolumeMemory;

/// What is to be written into an inode at the next occasion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lazy {
    mtime: Option<Time>,
    /// What the inode's was when the last of those writes looked at it.
    mtime_before: Time,
    pub(crate) atime: Option<Time>,
    /// How many bytes more are allocated.
    pub(crate) allocated: i64,
}

impl Lazy {
    /// Notes a write to a file whose inode was just seen.
    pub(crate) fn note_write(&mut self, inode: &Inode, now: Time) {
        (self.mtime, self.mtime_before) = (Some(now), inode.mtime);
    }

    pub(crate) const fn mtime(&self) -> Option<Time> {
        self.mtime
    }

    fn is_empty(&self) -> bool {
        self.mtime.is_none() && self.atime.is_none() && self.allocated == 0
    }

    /// What a mount has set after the write or the read stays.
    pub(crate) fn apply(&self, inode: &mut Inode) {
        let changed = inode.ctime;
        if let Some(now) = self.mtime {
            if inode.mtime == self.mtime_before || changed <= now {
                inode.mtime = now;
            }
            inode.ctime = changed.max(now);
        }
        if let Some(now) = self.atime.filter(|now| changed <= *now) {
            inode.atime = now;
        }
        inode.allocated = inode.allocated.saturating_add_signed(self.allocated);
    }
}

/// Words of a file's tree that were seen; they stay as long as the file is open here.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// The lowest nodes, by level and number.
    pub(crate) nodes: Numbered<(u32, u64), u64>,
    pub(crate) clusters: Numbered<u64, u64>,
    pub(crate) blocks: Numbered<u64, u64>,
}

/// A file that is open here, once for all who have it open.
#[derive(Debug)]
pub(crate) struct OpenFile {
    pub(crate) ino: Ino,
    /// Raised, and lowered to 0, while its map is locked. 0: the session may still stand in the
    /// inode, until a sweep has taken it from there.
    pub(crate) count: AtomicU32,
    /// Held for writing by who makes it shorter.
    gate: RwLock<()>,
    pub(crate) seen: RwLock<Seen>,
    pub(crate) lazy: Mutex<Lazy>,
    /// Held by who writes down what was kept back, until that is in the pool.
    writing_down: Mutex<()>,
    /// Writes that stored anything. Counted before the gate is left.
    pub(crate) writes: AtomicU64,
    /// Whether a claim of this mount may stand in the inode.
    pub(crate) claimed: AtomicBool,
    /// Held by who changes the mount's locks of it, until that is in the pool.
    pub(crate) locks: Mutex<OwnLocks>,
}

impl OpenFile {
    /// Open so often.
    pub(crate) fn new(ino: Ino, count: u32) -> Self {
        Self {
            ino,
            count: AtomicU32::new(count),
            gate: RwLock::default(),
            seen: RwLock::default(),
            lazy: Mutex::default(),
            writing_down: Mutex::default(),
            writes: AtomicU64::new(0),
            claimed: AtomicBool::new(false),
            locks: Mutex::default(),
        }
    }

    /// Whether anybody of this mount has it open; for who has locked its map.
    pub(crate) fn is_open(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    /// Taken by who reads and writes.
    pub(crate) fn share(&self) -> RwLockReadGuard<'_, ()> {
        self.gate.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Taken by who takes memory away.
    pub(crate) fn exclude(&self) -> RwLockWriteGuard<'_, ()> {
        self.gate.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts one less, unless that was the last: then nothing is done, and said so.
    fn leave(&self) -> bool {
        let less = |count: u32| (count > 1).then(|| count - 1);
        self.count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }

    /// Forgets what was seen of the tree.
    pub(crate) fn forget(&self) {
        *self.seen.write().unwrap_or_else(PoisonError::into_inner) = Seen::default();
    }
}

/// An open file for as long as an operation takes.
#[derive(Debug)]
pub(crate) struct Entered<'a, M: VolumeMemory> {
    volume: &'a Volume<M>,
    pub(crate) file: Arc<OpenFile>,
}

impl<M: VolumeMemory> Drop for Entered<'_, M> {
    fn drop(&mut self) {
        if self.file.leave() {
            return;
        }
        // The operation is done; what could not be written down stays for later.
        let _ = self.volume.release(self.file.ino);
    }
}

/// How long to wait before a file that is in use is looked at again.
const PAUSE: Duration = Duration::from_millis(1);

impl<M: VolumeMemory> Volume<M> {
    pub(crate) fn files_of(&self, ino: Ino) -> &Mutex<Numbered<Ino, Arc<OpenFile>>> {
        // In range whatever the number is.
        &self.files[usize::try_from(ino.0 % FILE_SHARDS as u64).unwrap_or(0)]
    }

    /// The file, if it is open here.
    pub(crate) fn opened(&self, ino: Ino) -> Option<Arc<OpenFile>> {
        lock(self.files_of(ino)).get(&ino).cloned()
    }

    /// Does something again while another mount has the file in its hands.
    pub(crate) fn waiting<T>(
        &self,
        mut attempt: impl FnMut() -> Result<T, FsError>,
    ) -> Result<T, FsError> {
        // Only who waits looks at the clock.
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

    /// Registers that this mount has an inode open, so that it stays when its last name goes. Each
    /// open is ended by one [`release`](Self::release).
    pub fn open(&self, ino: Ino) -> Result<Attr, FsError> {
        let (inode, file) = self.waiting(|| self.try_open(ino))?;
        // An own claim is somebody's who works on it now, unless that one has failed.
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
            // An own session there is of an open that is over.
            inode.opens.retain(|session| *session != self.session && self.is_alive(*session));
            if inode.nlink == 0 && inode.opens.is_empty() {
                return Err(FsError::NotFound);
            }
            inode.opens.push(self.session);
            Ok(())
        });
        let file = known.unwrap_or_else(|| Arc::new(OpenFile::new(ino, 0)));
        if matches!(updated, Err(FsError::Io(_))) {
            // The session may stand there: a sweep sees to it.
            files.insert(ino, Arc::clone(&file));
        }
        let ((), mut inode) = updated?;
        // Another mount may have taken memory away while it was not open here.
        file.forget();
        file.count.store(1, Ordering::Relaxed);
        files.insert(ino, Arc::clone(&file));
        lock(&file.lazy).apply(&mut inode);
        Ok((inode, file))
    }

    /// Has a file open for one operation.
    pub(crate) fn enter(&self, ino: Ino) -> Result<Entered<'_, M>, FsError> {
        if let Some(file) = lock(self.files_of(ino)).get(&ino).filter(|file| file.is_open()) {
            file.count.fetch_add(1, Ordering::Relaxed);
            return Ok(Entered { volume: self, file: Arc::clone(file) });
        }
        self.open(ino)?;
        match self.opened(ino) {
            Some(file) => Ok(Entered { volume: self, file }),
            None => Err(FsError::NotFound),
        }
    }

    /// Ends an [`open`](Self::open). When it was the last one, times are written down; what has no
    /// name any more is freed unless another mount has it open.
    ///
    /// # Errors
    /// What could not be written down the next [`sweep`](Self::sweep) does.
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

    /// Takes the session from the inode of a file that nobody has open here any more.
    fn let_go(&self, file: &OpenFile) -> Result<(), FsError> {
        self.mend_own(file)?;
        let ino = file.ino;
        let mut files = lock(self.files_of(ino));
        // Somebody may have opened it again meanwhile, or been quicker.
        let known = files.get(&ino).filter(|file| !file.is_open()).map(Arc::clone);
        let Some(file) = known else { return Ok(()) };
        self.leave_locks(&file)?;
        let released = self.update_with_lazy(&file, |inode| {
            inode.opens.retain(|session| *session != self.session);
            Ok(())
        });
        // Else it stays, for the next sweep.
        if matches!(released, Ok(_) | Err(FsError::NotFound)) {
            files.remove(&ino);
        }
        drop(files);
        match released {
            Ok(((), inode)) if inode.nlink == 0 => self.purge(ino),
            Ok(_) | Err(FsError::NotFound) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Releases all that is open, however often.
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

    /// An inode that was just changed, with what is not written down yet.
    pub(crate) fn with_lazy(&self, ino: Ino, mut inode: Inode) -> Inode {
        if let Some(file) = self.opened(ino) {
            lock(&file.lazy).apply(&mut inode);
        }
        inode
    }

    /// The inode of an open file, with what is not written down yet.
    pub(crate) fn inode_of(&self, file: &OpenFile) -> Result<Inode, FsError> {
        let _quiet = lock(&file.writing_down);
        let mut inode = self.inode(file.ino)?;
        lock(&file.lazy).apply(&mut inode);
        Ok(inode)
    }

    /// Changes the inode of an open file, and writes down what was kept back before.
    pub(crate) fn update_with_lazy<T>(
        &self,
        file: &OpenFile,
        change: impl FnMut(&mut Inode) -> Result<T, FsError>,
    ) -> Result<(T, Inode), FsError> {
        let _quiet = lock(&file.writing_down);
        self.write_down(file, change)
    }

    /// The same for who has locked `writing_down`.
    fn write_down<T>(
        &self,
        file: &OpenFile,
        mut change: impl FnMut(&mut Inode) -> Result<T, FsError>,
    ) -> Result<(T, Inode), FsError> {
        let lazy = std::mem::take(&mut *lock(&file.lazy));
        let updated = self.update(file.ino, |inode| {
            lazy.apply(inode);
            change(inode)
        });
        if updated.is_err() {
            let mut now = lock(&file.lazy);
            // Unless there is something newer.
            if now.mtime.is_none() {
                (now.mtime, now.mtime_before) = (lazy.mtime, lazy.mtime_before);
            }
            now.atime = now.atime.or(lazy.atime);
            now.allocated = now.allocated.saturating_add(lazy.allocated);
        }
        updated
    }

    /// Writes down the times of reads and overwrites, which are kept back at most until the next
    /// [`sweep`](Self::sweep). Contents need no writing down.
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

    /// The same as [`flush`](Self::flush): what was written is in the pool already.
    pub fn sync(&self, ino: Ino) -> Result<(), FsError> {
        self.flush(ino)
    }

    /// Writes down what all open files have kept back, and finishes what has failed of others.
    pub(crate) fn flush_all(&self) -> Result<(), FsError> {
        let mut result = Ok(());
        for files in &self.files {
            let known: Vec<Arc<OpenFile>> = lock(files).values().map(Arc::clone).collect();
            for file in known {
                let mended = self.mend_own(&file).and(self.drop_due_locks(&file));
                let done = if file.is_open() { self.flush(file.ino) } else { self.let_go(&file) };
                for done in [mended, done] {
                    // In the hands of another mount.
                    if !matches!(done, Err(FsError::Busy)) {
                        result = result.and(done);
                    }
                }
            }
        }
        result
    }
}
