//! The rack's memory: formatted by the first daemon, adopted by later ones.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::{Context, bail};
use rackpool_model::{
    ClientId, FrameId, Incarnation, MAX_RACKS, MemoryId, PageId, PageRange, PageSize, PageWord,
    RackId,
};
use rackpool_output::UsageError;
use rackpool_shm::directory::{MAX_DAEMONS, RackDirectory};
use rackpool_shm::lock_words::LockWords;
use rackpool_shm::marks::Marks;
use rackpool_shm::memory::{FramesNode, KernelPages, MemoryLock};
use rackpool_shm::metadata::{MetadataLayout, RackMetadata};
use rackpool_shm::superblock::{FileKind, Geometry, Superblock, SuperblockError};
use rackpool_shm::{Mapping, PopulateError, file, folder};
use rackpool_sync::atomic::{AtomicBool, Ordering};
use rustix::fs::FallocateFlags;

use crate::client_host::{ClientHost, SameHost};
use crate::frames::{LocksFile, MarksFile, MetadataFile};
use crate::{DaemonOptions, frames};

/// A rack's memory, locked for this process.
#[derive(Debug)]
pub(crate) struct Rack {
    pub(crate) directory: RackDirectory,
    pub(crate) geometry: Geometry,
    pub(crate) incarnation: Incarnation,
    pub(crate) frames: Arc<Mapping>,
    pub(crate) frames_file: File,
    pub(crate) metadata: Arc<RackMetadata>,
    pub(crate) marks: Marks,
    pub(crate) marks_file: File,
    pub(crate) lock_words: LockWords,
    pub(crate) locks_file: File,
    /// Where the rack's clients run.
    pub(crate) client_host: Box<dyn ClientHost>,
    /// Description of the kind of memory and its pages, for operators.
    pub(crate) memory: String,
    /// The size of the kernel's pages of the frames in bytes; 0 if it is unknown.
    pub(crate) kernel_page_bytes: u64,
    /// The NUMA node that the pages of the frames come from, if one was chosen.
    pub(crate) frames_node: Option<u32>,
    /// The incarnation of the previous daemon, if the rack's memory was lost with that daemon.
    pub(crate) lost: Option<Incarnation>,
    /// The other daemons of the rack.
    pub(crate) siblings: Vec<RackId>,
    /// Set when the metadata server may know the memory; `give_up_unused` then keeps the files.
    is_kept: AtomicBool,
    _frames_lock: MemoryLock,
    /// Holds the lock on the metadata file.
    _metadata_file: File,
}

impl Rack {
    /// Adopts the rack's files, or creates them if there are none. The frames come from `node`.
    pub(crate) fn open(options: &DaemonOptions, node: FramesNode) -> anyhow::Result<Self> {
        let wanted = geometry(options)?;
        let mut daemons = rack_daemons(options)?;
        folder::require_text(&options.dir).map_err(UsageError::new)?;
        let pool = folder::create(&options.dir)?;
        folder::require_text(&pool)?;
        let directory = RackDirectory::new(&pool, options.rack);
        folder::create(directory.path())?;
        folder::require_private(directory.path())?;
        let folder = directory.path().to_path_buf();
        let memory = frames::Wanted { kind: &options.memory_kind, node };
        let opened = Self::open_in(directory, wanted, options, memory);
        let opened = opened.inspect_err(|_| {
            // Only an empty folder is removed: this start has created it, or could have.
            let _ = std::fs::remove_dir(folder);
        })?;
        let noted = opened.directory.note_daemons(&daemons);
        noted.context("can't note which daemons the rack has")?;
        daemons.retain(|daemon| *daemon != options.rack);
        Ok(Self { siblings: daemons, ..opened })
    }

    fn open_in(
        directory: RackDirectory,
        wanted: Geometry,
        options: &DaemonOptions,
        memory: frames::Wanted<'_>,
    ) -> anyhow::Result<Self> {
        let layout = MetadataLayout::new(wanted.page_size, wanted.frames);
        let path = directory.metadata();
        let metadata_file = match file::open(&path)? {
            Some(found) => found,
            None => file::create(&path, layout.bytes())?,
        };
        file::lock(&metadata_file, &path)?;
        let MetadataFile { file: metadata_file, lost } =
            frames::begin_anew_if_lost(metadata_file, &directory, &wanted)?;
        let metadata_file =
            frames::begin_anew_if_unused(metadata_file, &directory, &options.memory_kind, &wanted)?;
        if metadata_file.metadata()?.len() == 0 && !directory.frames().exists() {
            // A daemon was killed just after it created the file.
            metadata_file.set_len(layout.bytes())?;
        }
        let superblock_only = Mapping::new(&metadata_file, 4096)?;
        if metadata_file.metadata()?.len() < 4096 {
            bail!(SuperblockError::Foreign(path));
        }
        let block = superblock_only.view::<Superblock>(0)?;
        let made = if Superblock::is_unformatted(&superblock_only)? {
            file::check_len(&metadata_file, &path, layout.bytes())?;
            let made = frames::make(memory, &directory, &wanted, &metadata_file, block)?;
            frames::make_marks(&directory, &wanted)?;
            frames::make_locks(&directory)?;
            block.format(&wanted);
            Some(made)
        } else {
            None
        };
        let found = block.read(&path)?;
        // Validate everything before changing anything: a damaged file stays as it was found.
        let (_, last) = (block.first_page(&path)?, block.incarnation(&path)?);
        block.seen(&path)?;
        found.require(&Geometry { memory: found.memory, ..wanted }, &path)?;
        file::check_len(&metadata_file, &path, layout.bytes())?;
        let memory = match made {
            Some(made) => made,
            None => frames::open(memory, &directory, &found, block)?,
        };
        for warning in &memory.warnings {
            tracing::warn!("{}: {warning}", options.rack);
        }
        let MarksFile { marks, file: marks_file } = frames::open_marks(&directory, &found)?;
        let LocksFile { words: lock_words, file: locks_file } = frames::open_locks(&directory)?;
        block.set_extra_latency_ns(options.cxl_latency_ns);
        let metadata = RackMetadata::new(Mapping::new(&metadata_file, layout.bytes())?, layout)?;
        let last = last.max(lost.unwrap_or(Incarnation(0)));
        let incarnation = next_incarnation(last, SystemTime::now());
        metadata.superblock()?.set_incarnation(incarnation);
        metadata.superblock()?.set_heavy_barrier(rackpool_sync::barrier::is_supported());
        Ok(Self {
            client_host: Box::new(SameHost),
            directory,
            geometry: found,
            incarnation,
            frames: Arc::new(memory.mapping),
            frames_file: memory.file,
            memory: describe_memory(options, &memory.pages),
            kernel_page_bytes: memory.pages.bytes,
            frames_node: memory.node,
            lost,
            siblings: Vec::new(),
            is_kept: AtomicBool::new(false),
            _frames_lock: memory.lock,
            metadata: Arc::new(metadata),
            marks,
            marks_file,
            lock_words,
            locks_file,
            _metadata_file: metadata_file,
        })
    }

    /// Allocates the memory of a frame and of its metadata. May block for long.
    pub(crate) fn reserve(&self, frame: FrameId) -> std::io::Result<()> {
        let bytes = self.geometry.page_size.bytes();
        let offset = u64::from(frame.0) * bytes;
        let populated =
            self.frames.populate_part(offset, bytes).and_then(|()| self.metadata.reserve(frame));
        match populated.map_err(system) {
            // Kernels before 5.14 lack `MADV_POPULATE_WRITE`.
            Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => {
                rustix::fs::fallocate(&self.frames_file, FallocateFlags::empty(), offset, bytes)?;
                Ok(())
            }
            // The kernel reports a full file system as `EFAULT`.
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::FAULT.raw_os_error()) => {
                Err(rustix::io::Errno::NOSPC.into())
            }
            other => other,
        }
    }

    /// Returns the memory of a frame and of its marks to the file system. Both read as 0
    /// afterwards.
    pub(crate) fn release(&self, frame: FrameId) -> std::io::Result<()> {
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let page_size = self.geometry.page_size;
        let parts = [
            (&self.frames_file, page_size.bytes()),
            (&self.marks_file, Marks::frame_bytes(page_size)),
        ];
        for (file, bytes) in parts {
            rustix::fs::fallocate(file, punch, u64::from(frame.0) * bytes, bytes)?;
        }
        Ok(())
    }

    /// Returns the rack's page ids; `None` until the metadata server has assigned them.
    pub(crate) fn pages(&self) -> anyhow::Result<Option<PageRange>> {
        let first = self.metadata.superblock()?.first_page(&self.directory.metadata())?;
        Ok(first.map(|first| PageRange { first, count: self.geometry.frames }))
    }

    /// Makes `give_up_unused` keep the files, because the metadata server may know the memory.
    pub(crate) fn keep(&self) {
        self.is_kept.store(true, Ordering::Relaxed);
    }

    /// Removes the files of a rack whose start is refused, if the memory never had page ids and so
    /// holds no data. The next start may then use another size, and no process takes the files for
    /// a rack.
    pub(crate) fn give_up_unused(&self) {
        if self.is_kept.load(Ordering::Relaxed) || !matches!(self.pages(), Ok(None)) {
            return;
        }
        let removed = self.directory.note_daemons(&[]);
        if let Err(error) = removed.and_then(|()| frames::remove(&self.directory)) {
            tracing::warn!("{}: can't remove its unused files: {error}", self.geometry.rack);
        }
        // Fails if other files are in the folder.
        let _ = std::fs::remove_dir(self.directory.path());
    }

    /// Binds the page ids to the frames, once in the lifetime of the memory. The superblock gets
    /// the first id last: after a crash before that, the next start binds again.
    pub(crate) fn bind_pages(&self, first: PageId) -> anyhow::Result<()> {
        bind_pages(&self.metadata, first, &self.directory.metadata())
    }
}

fn system(error: PopulateError) -> std::io::Error {
    match error {
        PopulateError::System(error) => error,
        error => std::io::Error::other(error),
    }
}

/// Distance to the previous incarnation if the clock was set back. Leases, tickets, sharings and
/// copies are numbered starting at the incarnation, a time in nanoseconds. An incarnation draws
/// fewer numbers than it lasts nanoseconds, so two incarnations never draw the same number unless
/// the clock was set back.
const NUMBERS_OF_A_LIFE: u64 = 1 << 40;

/// Returns the incarnation that follows `last`: the clock's time in nanoseconds, or `last` plus
/// [`NUMBERS_OF_A_LIFE`] if the clock was set back. In both cases the result is larger than `last`
/// and no number of `last` is drawn again. Otherwise incarnations never exceed the clock: a rack
/// with new memory, which knows no earlier incarnation, gets a larger one after any number of
/// restarts.
fn next_incarnation(last: Incarnation, now: SystemTime) -> Incarnation {
    let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let now_ns = u64::try_from(now.as_nanos()).unwrap_or(0);
    if now_ns > last.0 {
        Incarnation(now_ns)
    } else {
        Incarnation(last.0.saturating_add(NUMBERS_OF_A_LIFE))
    }
}

/// Describes the kind of memory, for operators.
fn describe_memory(options: &DaemonOptions, pages: &KernelPages) -> String {
    let latency = match options.cxl_latency_ns {
        0 => String::new(),
        ns => format!(", emulated as CXL memory that is {ns} ns further away"),
    };
    format!("{}{latency}, pages of {pages}", options.memory_kind)
}

/// Binds page ids to frames that have none, or the same ids from an earlier attempt that was
/// killed. If any page word holds another value, the function changes nothing and returns an error.
fn bind_pages(metadata: &RackMetadata, first: PageId, path: &Path) -> anyhow::Result<()> {
    let frames = || (0..metadata.frames()).map(FrameId);
    let born = |frame: FrameId| PageWord::free(PageId(first.0 + frame.0)).raw();
    for frame in frames() {
        let found = metadata.word(frame)?.load(Ordering::Relaxed);
        if found != 0 && found != born(frame) {
            bail!(SuperblockError::UnknownPages(path.to_path_buf()));
        }
    }
    for frame in frames() {
        metadata.word(frame)?.store(born(frame), Ordering::Release);
    }
    metadata.superblock()?.set_first_page(first);
    Ok(())
}

fn geometry(options: &DaemonOptions) -> anyhow::Result<Geometry> {
    let page_size = PageSize::from_bytes(options.page_size.0).map_err(UsageError::new)?;
    if options.rack.0 >= MAX_RACKS {
        let (rack, last) = (options.rack.0, MAX_RACKS - 1);
        bail!(UsageError::new(format!("rack {rack}: racks are numbered 0 to {last}")));
    }
    let memory = options.memory.0;
    if memory < page_size.bytes() || !memory.is_multiple_of(page_size.bytes()) {
        bail!(UsageError::new(format!(
            "--memory {}: it must be a whole number of pages of {page_size}, at least one",
            options.memory
        )));
    }
    let frames = u32::try_from(memory / page_size.bytes())
        .ok()
        .filter(|frames| *frames < 1 << 30)
        .context("--memory: a rack has at most 2^30 frames; use larger pages")?;
    Ok(Geometry {
        kind: FileKind::Metadata,
        rack: options.rack,
        memory: random_memory_id()?,
        page_size,
        frames,
        client: ClientId(0),
        threads: 0,
    })
}

/// The numbers of all daemons of the rack, in ascending order.
fn rack_daemons(options: &DaemonOptions) -> anyhow::Result<Vec<RackId>> {
    let mut daemons = options.rack_daemons.clone();
    daemons.sort_unstable();
    daemons.dedup();
    let own = options.rack;
    if daemons.is_empty() {
        return Ok(vec![own]);
    }
    if !daemons.contains(&own) || daemons.iter().any(|daemon| daemon.0 >= MAX_RACKS) {
        let last = MAX_RACKS - 1;
        bail!(UsageError::new(format!(
            "--rack-daemons: name the daemons of the rack by their numbers (0 to {last}), {} of this one among them",
            own.0
        )));
    }
    if daemons.len() > MAX_DAEMONS {
        bail!(UsageError::new(format!("--rack-daemons: a rack has at most {MAX_DAEMONS} daemons")));
    }
    Ok(daemons)
}

fn random_memory_id() -> anyhow::Result<MemoryId> {
    let bytes = rackpool_sync::random_bytes()
        .context("the system has no random numbers yet: start the daemon again in a moment")?;
    Ok(MemoryId(u128::from_le_bytes(bytes)))
}

/// Describes a rack and its folder, for errors.
pub(crate) fn describe(rack: RackId, directory: &Path) -> String {
    format!("{rack} in {}", directory.display())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_life_draws_no_number_of_the_one_before_although_the_clock_was_set_back() {
        let since = Duration::from_secs(1_800_000_000);
        let noon = SystemTime::UNIX_EPOCH + since;
        let first = next_incarnation(Incarnation(0), noon);
        assert_eq!(u128::from(first.0), since.as_nanos());
        // One number of each kind every microsecond, for a week.
        let drawn = 7 * 24 * 3600 * 1_000_000;
        for back in [0, 1, 3600, 7 * 24 * 3600] {
            let next = next_incarnation(first, noon - Duration::from_secs(back));
            assert!(next.0 > first.0 + drawn, "set back by {back} s");
        }
        assert_eq!(next_incarnation(Incarnation(u64::MAX), noon), Incarnation(u64::MAX));
    }

    /// Page size and number of frames of [`metadata`].
    const PAGE: PageSize = PageSize::DEFAULT;
    const FRAMES: u32 = 3;

    fn metadata() -> RackMetadata {
        let layout = MetadataLayout::new(PAGE, FRAMES);
        let file = tempfile::tempfile().unwrap();
        file.set_len(layout.bytes()).unwrap();
        RackMetadata::new(Mapping::new(&file, layout.bytes()).unwrap(), layout).unwrap()
    }

    fn words(metadata: &RackMetadata) -> Vec<u64> {
        let word = |frame| metadata.word(FrameId(frame)).unwrap().load(Ordering::Relaxed);
        (0..FRAMES).map(word).collect()
    }

    #[test]
    fn pages_are_bound_again_after_a_kill_before_any_of_the_stores() {
        let first = PageId(8);
        for bound in 0..=FRAMES {
            let metadata = metadata();
            for index in 0..bound {
                let word = PageWord::free(PageId(first.0 + index)).raw();
                metadata.word(FrameId(index)).unwrap().store(word, Ordering::Relaxed);
            }
            bind_pages(&metadata, first, Path::new("x")).unwrap();
            assert_eq!(words(&metadata), [8, 9, 10]);
            let block = metadata.superblock().unwrap();
            assert_eq!(block.first_page(Path::new("x")), Ok(Some(first)));
        }
    }

    #[test]
    fn pages_in_use_are_never_bound_anew() {
        let other = PageWord::free(PageId(9)).raw();
        let live = PageWord::free(PageId(8)).apply(rackpool_model::PageEvent::Allocated).unwrap();
        for (frame, word) in [(0, other), (2, other), (0, live.raw()), (1, 1 << 63)] {
            let metadata = metadata();
            metadata.word(FrameId(frame)).unwrap().store(word, Ordering::Relaxed);
            let before = words(&metadata);
            let error = bind_pages(&metadata, PageId(8), Path::new("x")).unwrap_err();
            let error = error.downcast_ref::<SuperblockError>();
            assert_eq!(error, Some(&SuperblockError::UnknownPages("x".into())));
            assert_eq!(words(&metadata), before);
        }
    }

    #[test]
    fn new_memory_begins_after_any_number_of_restarts() {
        let mut now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        let mut last = Incarnation(0);
        for _ in 0..100 {
            now += Duration::from_millis(10);
            last = next_incarnation(last, now);
        }
        assert!(next_incarnation(Incarnation(0), now + Duration::from_millis(10)) > last);
    }
}
