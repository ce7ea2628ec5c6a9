//! The memory of the frames: created, opened and lost together with the metadata.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, bail};
use rackpool_model::Incarnation;
use rackpool_shm::directory::RackDirectory;
use rackpool_shm::host::HostFiles;
use rackpool_shm::lock_words::LockWords;
use rackpool_shm::marks::Marks;
use rackpool_shm::memory::{FramesNode, MemoryKind, MemoryPlace, RackMemory, outside};
use rackpool_shm::metadata::{MetadataLayout, RackMetadata};
use rackpool_shm::superblock::{Geometry, Superblock, SuperblockError};
use rackpool_shm::{Mapping, file};
use rackpool_sync::atomic::Ordering;

/// Returns the size of all frames in bytes.
pub(crate) fn bytes(geometry: &Geometry) -> u64 {
    u64::from(geometry.frames) * geometry.page_size.bytes()
}

/// What the options say of the memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'a> {
    pub(crate) kind: &'a MemoryKind,
    pub(crate) node: FramesNode,
}

fn place<'a>(
    wanted: Wanted<'a>,
    directory: &'a RackDirectory,
    geometry: &Geometry,
    machine: &'a HostFiles,
) -> MemoryPlace<'a> {
    let Wanted { kind, node } = wanted;
    MemoryPlace { kind, directory, bytes: bytes(geometry), node, machine }
}

/// Creates the memory and stores its kind in the superblock. The superblock is formatted last, so
/// files without a formatted superblock are left by a daemon that was killed before. A page word
/// that is not 0 proves that the superblock was formatted and is damaged: the function refuses it.
pub(crate) fn make(
    memory: Wanted<'_>,
    directory: &RackDirectory,
    wanted: &Geometry,
    metadata: &File,
    block: &Superblock,
) -> anyhow::Result<RackMemory> {
    require_unused(&directory.metadata(), wanted, metadata)?;
    let is_new = !directory.frames().exists();
    let made = place(memory, directory, wanted, &HostFiles::here()).create(wanted.memory);
    if is_new && made.is_err() {
        // The metadata describes no memory, and its length would make the next start with less
        // memory fail.
        let _ = std::fs::remove_file(directory.metadata());
    }
    let made = made?;
    block.set_memory_kind(memory.kind.code());
    Ok(made)
}

/// Opens the memory that an earlier daemon created. Refuses memory of another kind.
pub(crate) fn open(
    memory: Wanted<'_>,
    directory: &RackDirectory,
    found: &Geometry,
    block: &Superblock,
) -> anyhow::Result<RackMemory> {
    let kind = memory.kind;
    if block.memory_kind() != kind.code() {
        bail!(SuperblockError::Mismatch {
            path: directory.metadata(),
            found: format!("--memory-kind {}", MemoryKind::describe_code(block.memory_kind())),
            wanted: format!("--memory-kind {kind}"),
        });
    }
    Ok(place(memory, directory, found, &HostFiles::here()).open(found.memory)?)
}

/// Creates the file of the marks, all of which say that programs hold the objects. An existing file
/// belongs to memory that was never formatted or is lost, and is removed.
pub(crate) fn make_marks(directory: &RackDirectory, wanted: &Geometry) -> anyhow::Result<()> {
    let path = directory.marks();
    remove_if_there(&path)?;
    file::create(&path, Marks::bytes(wanted.page_size, wanted.frames))?;
    Ok(())
}

/// The marks, and the file that holds them.
pub(crate) struct MarksFile {
    pub(crate) marks: Marks,
    pub(crate) file: File,
}

/// Opens the file of the marks.
pub(crate) fn open_marks(directory: &RackDirectory, found: &Geometry) -> anyhow::Result<MarksFile> {
    let path = directory.marks();
    let file = open_required(&path)?;
    let bytes = Marks::bytes(found.page_size, found.frames);
    file::check_len(&file, &path, bytes)?;
    let memory = Arc::new(Mapping::new(&file, bytes)?);
    Ok(MarksFile { marks: Marks::new(memory, found.page_size, found.frames)?, file })
}

/// Creates the file of the lock words, all of which are free.
pub(crate) fn make_locks(directory: &RackDirectory) -> anyhow::Result<()> {
    let path = directory.locks();
    remove_if_there(&path)?;
    file::create(&path, LockWords::BYTES)?;
    Ok(())
}

/// The lock words, and the file that holds them.
pub(crate) struct LocksFile {
    pub(crate) words: LockWords,
    pub(crate) file: File,
}

/// Opens the file of the lock words.
pub(crate) fn open_locks(directory: &RackDirectory) -> anyhow::Result<LocksFile> {
    let path = directory.locks();
    let file = open_required(&path)?;
    file::check_len(&file, &path, LockWords::BYTES)?;
    let memory = Arc::new(Mapping::new(&file, LockWords::BYTES)?);
    Ok(LocksFile { words: LockWords::new(&memory)?, file })
}

fn remove_if_there(path: &Path) -> anyhow::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("can't remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

fn open_required(path: &Path) -> anyhow::Result<File> {
    file::open(path)?.with_context(|| {
        format!(
            "{} is missing: remove the rack's folder to start with an empty rack",
            path.display()
        )
    })
}

/// The metadata file to use, locked.
pub(crate) struct MetadataFile {
    pub(crate) file: File,
    /// The incarnation whose memory was lost; `None` if the memory is there.
    pub(crate) lost: Option<Incarnation>,
}

/// If the memory that the metadata describes was lost with its daemon, starts a new incarnation of
/// the rack. Removes the old files but never truncates them, because clients may have mapped them.
/// The old daemon is dead: this process has its lock.
pub(crate) fn begin_anew_if_lost(
    metadata: File,
    directory: &RackDirectory,
    wanted: &Geometry,
) -> anyhow::Result<MetadataFile> {
    let path = directory.metadata();
    let layout = MetadataLayout::new(wanted.page_size, wanted.frames);
    if metadata.metadata()?.len() < 4096 {
        return Ok(MetadataFile { file: metadata, lost: None });
    }
    let first = Mapping::new(&metadata, 4096)?;
    let block = first.view::<Superblock>(0)?;
    let Ok(found) = block.read(&path) else {
        return Ok(MetadataFile { file: metadata, lost: None });
    };
    if !MemoryKind::is_gone(block.memory_kind()) || found.rack != wanted.rack {
        return Ok(MetadataFile { file: metadata, lost: None });
    }
    let life = block.incarnation(&path)?;
    tracing::warn!(
        "the memory of {} was of kind memfd and ended with its daemon: its pages are lost, and the rack starts empty",
        found.rack
    );
    for entry in std::fs::read_dir(directory.path())? {
        let entry = entry?;
        if entry.file_name().to_str().and_then(RackDirectory::client_of).is_some() {
            std::fs::remove_file(entry.path())?;
        }
    }
    std::fs::remove_file(&path)?;
    let fresh = file::create(&path, layout.bytes())?;
    file::lock(&fresh, &path)?;
    Ok(MetadataFile { file: fresh, lost: Some(life) })
}

/// If the metadata describes memory of another kind or geometry that never had page ids, a start
/// was killed before it finished. The memory holds no data and is removed. Returns the metadata
/// file to use, locked.
pub(crate) fn begin_anew_if_unused(
    metadata: File,
    directory: &RackDirectory,
    kind: &MemoryKind,
    wanted: &Geometry,
) -> anyhow::Result<File> {
    let path = directory.metadata();
    if metadata.metadata()?.len() < 4096 {
        return Ok(metadata);
    }
    let first = Mapping::new(&metadata, 4096)?;
    let block = first.view::<Superblock>(0)?;
    let Ok(found) = block.read(&path) else { return Ok(metadata) };
    let is_wanted =
        found == Geometry { memory: found.memory, ..*wanted } && block.memory_kind() == kind.code();
    let is_unused = matches!(block.first_page(&path), Ok(None)) && found.rack == wanted.rack;
    if is_wanted || !is_unused {
        return Ok(metadata);
    }
    remove(directory)?;
    let layout = MetadataLayout::new(wanted.page_size, wanted.frames);
    let fresh = file::create(&path, layout.bytes())?;
    file::lock(&fresh, &path)?;
    Ok(fresh)
}

/// Removes the files of a rack whose lock this process holds. The metadata file is removed last: a
/// kill before that leaves a rack that is still unused.
pub(crate) fn remove(directory: &RackDirectory) -> std::io::Result<()> {
    let is_there = |error: &std::io::Error| error.kind() != std::io::ErrorKind::NotFound;
    let outside = outside(directory);
    let files = [directory.locks(), directory.marks(), directory.frames(), directory.metadata()];
    for path in outside.into_iter().chain(files) {
        match std::fs::remove_file(&path) {
            Err(error) if is_there(&error) => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

fn require_unused(path: &Path, wanted: &Geometry, metadata: &File) -> anyhow::Result<()> {
    let layout = MetadataLayout::new(wanted.page_size, wanted.frames);
    let words = RackMetadata::new(Mapping::new(metadata, layout.bytes())?, layout)?;
    for frame in (0..wanted.frames).map(rackpool_model::FrameId) {
        if words.word(frame)?.load(Ordering::Relaxed) != 0 {
            bail!(SuperblockError::UnknownPages(path.to_path_buf()));
        }
    }
    Ok(())
}
