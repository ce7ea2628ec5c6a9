//! The rack's memory: formatted at first, adopted afterwards.

use std::fs::File;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::{Context, bail};
use rackpool_model::{
    ClientId, Incarnation, MemoryId, PageId, PageRange, PageSize, PageWord, RackId,
};
use rackpool_shm::directory::RackDirectory;
use rackpool_shm::metadata::{MAX_RACKS, MetadataLayout, RackMetadata};
use rackpool_shm::superblock::{FileKind, Geometry};
use rackpool_shm::{Mapping, file};
use rackpool_sync::atomic::Ordering;

use crate::Options;

/// A rack's memory, locked for this process.
#[derive(Debug)]
pub(crate) struct Rack {
    pub(crate) directory: RackDirectory,
    pub(crate) geometry: Geometry,
    pub(crate) incarnation: Incarnation,
    pub(crate) frames: Arc<Mapping>,
    pub(crate) frames_file: File,
    pub(crate) metadata: Arc<RackMetadata>,
    /// Holds the lock.
    _metadata_file: File,
}

impl Rack {
    /// Adopts the rack's files, or makes them when there are none.
    pub(crate) fn open(options: &Options) -> anyhow::Result<Self> {
        let directory = RackDirectory::new(&options.dir, options.rack);
        let wanted = geometry(options)?;
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory.path())
            .with_context(|| format!("can't create {}", directory.path().display()))?;
        let layout = MetadataLayout::new(wanted.page_size, wanted.frames);
        let path = directory.metadata();
        let metadata_file = match file::open(&path)? {
            Some(found) => found,
            None => file::create(&path, layout.bytes())?,
        };
        file::lock(&metadata_file, &path)?;
        if metadata_file.metadata()?.len() == 0 && !directory.frames().exists() {
            // A daemon was killed when it had just created the file.
            metadata_file.set_len(layout.bytes())?;
        }
        let superblock_only = Mapping::new(&metadata_file, 4096)?;
        if metadata_file.metadata()?.len() < 4096 {
            bail!(rackpool_shm::superblock::SuperblockError::Foreign(path));
        }
        let block = superblock_only.view::<rackpool_shm::superblock::Superblock>(0)?;
        if is_blank(&superblock_only)? {
            file::check_len(&metadata_file, &path, layout.bytes())?;
            make_frames(&directory.frames(), &wanted, &metadata_file)?;
            block.format(&wanted);
        }
        let found = block.read(&path)?;
        found.require(&Geometry { memory: found.memory, ..wanted }, &path)?;
        file::check_len(&metadata_file, &path, layout.bytes())?;
        let frames_path = directory.frames();
        let Some(frames_file) = file::open(&frames_path)? else {
            bail!(
                "{} is missing: remove {} to give the rack's contents up",
                frames_path.display(),
                directory.path().display()
            );
        };
        file::check_len(&frames_file, &frames_path, frames_bytes(&found))?;
        let frames = Mapping::new(&frames_file, frames_bytes(&found))
            .context("can't map the frames: is there enough address space?")?;
        frames.advise_huge();
        let metadata = RackMetadata::new(Mapping::new(&metadata_file, layout.bytes())?, layout)?;
        let incarnation = next_incarnation(metadata.superblock()?.incarnation());
        metadata.superblock()?.set_incarnation(incarnation);
        metadata.superblock()?.set_heavy_barrier(rackpool_sync::barrier::is_supported());
        Ok(Self {
            directory,
            geometry: found,
            incarnation,
            frames: Arc::new(frames),
            frames_file,
            metadata: Arc::new(metadata),
            _metadata_file: metadata_file,
        })
    }

    /// The rack's page ids, once the metadata server has given them.
    pub(crate) fn pages(&self) -> anyhow::Result<Option<PageRange>> {
        let first = self.metadata.superblock()?.first_page();
        Ok(first.map(|first| PageRange { first, count: self.geometry.frames }))
    }

    /// Binds the page ids to the frames: done once in the life of the memory. The superblock gets
    /// the first id last, so that a crash before starts over.
    pub(crate) fn bind_pages(&self, first: PageId) -> anyhow::Result<()> {
        for index in 0..self.geometry.frames {
            let frame = rackpool_model::FrameId(index);
            let word = PageWord::free(PageId(first.0 + index));
            self.metadata.word(frame)?.store(word.raw(), Ordering::Release);
        }
        self.metadata.superblock()?.set_first_page(first);
        Ok(())
    }
}

/// Larger than the life before, also than lives of the same rack with other memory: those began
/// earlier.
fn next_incarnation(last: Incarnation) -> Incarnation {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let now_ns = u64::try_from(now.as_nanos()).unwrap_or(0);
    Incarnation(now_ns.max(last.0 + 1))
}

fn frames_bytes(geometry: &Geometry) -> u64 {
    u64::from(geometry.frames) * geometry.page_size.bytes()
}

/// Makes the file of the frames. The superblock says last that it is there, so one may be found
/// that a daemon made which was killed before; but not if any page word was ever set.
fn make_frames(path: &Path, wanted: &Geometry, metadata: &File) -> anyhow::Result<()> {
    let Some(found) = file::open(path)? else {
        file::create(path, frames_bytes(wanted))?;
        return Ok(());
    };
    let layout = MetadataLayout::new(wanted.page_size, wanted.frames);
    let words = RackMetadata::new(Mapping::new(metadata, layout.bytes())?, layout)?;
    for frame in (0..wanted.frames).map(rackpool_model::FrameId) {
        if words.word(frame)?.load(Ordering::Relaxed) != 0 {
            bail!(rackpool_shm::superblock::SuperblockError::Corrupt(path.to_path_buf()));
        }
    }
    if found.metadata()?.len() == 0 {
        found.set_len(frames_bytes(wanted))?;
    }
    Ok(file::check_len(&found, path, frames_bytes(wanted))?)
}

fn is_blank(block: &Mapping) -> anyhow::Result<bool> {
    let mut bytes = [0; 4096];
    block.read(0, &mut bytes)?;
    Ok(bytes.iter().all(|byte| *byte == 0))
}

fn geometry(options: &Options) -> anyhow::Result<Geometry> {
    let page_size = PageSize::from_bytes(options.page_size.0)?;
    if options.rack.0 >= MAX_RACKS {
        bail!("rack {}: racks are numbered 0 to {}", options.rack.0, MAX_RACKS - 1);
    }
    let memory = options.memory.0;
    if memory < page_size.bytes() || !memory.is_multiple_of(page_size.bytes()) {
        bail!(
            "--memory {}: it must be a whole number of pages of {page_size}, at least one",
            options.memory
        );
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

fn random_memory_id() -> anyhow::Result<MemoryId> {
    let mut bytes = [0; 16];
    let count = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    if count != bytes.len() {
        bail!("the system has no random numbers yet");
    }
    Ok(MemoryId(u128::from_le_bytes(bytes)))
}

/// The rack a folder was formatted for; used to name it in errors.
pub(crate) fn describe(rack: RackId, directory: &Path) -> String {
    format!("{rack} in {}", directory.display())
}
