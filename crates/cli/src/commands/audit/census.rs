//! The objects in use in a rack, read from its daemon's files: docs/design/rack-memory.md. It only
//! reads.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::Path;

use anyhow::Context;
use rackpool_client::{GlobalAddr, PageSize, RackId};
use rackpool_model::{FrameId, MAX_RACKS, PageState, PageWord, SizeClass};
use rackpool_ring::client_file::{ArrayKind, ClientFile, MAX_THREADS, ThreadSlot};
use rackpool_ring::pins;
use rackpool_shm::directory::RackDirectory;
use rackpool_shm::metadata::{MetadataLayout, PageUse, RackMetadata};
use rackpool_shm::superblock::{Geometry, Superblock};
use rackpool_shm::{Mapping, file};
use rackpool_sync::atomic::{AtomicU64, Ordering};

/// The state of a peer record without an exchange.
const NOTHING_ASKED: u64 = 0;
/// Length of a file's superblock in bytes.
const SUPERBLOCK: usize = 4096;

/// The files of a rack on this host.
pub(in crate::commands) struct RackFiles {
    rack: RackId,
    directory: RackDirectory,
    metadata: RackMetadata,
    page_size: PageSize,
}

impl RackFiles {
    /// Opens the files in the folder of the daemon's socket.
    pub(in crate::commands) fn open(rack: RackId, control_path: &str) -> anyhow::Result<Self> {
        let pool =
            Path::new(control_path).ancestors().nth(2).context("a socket without a folder")?;
        let directory = RackDirectory::new(pool, rack);
        let path = directory.metadata();
        let geometry = geometry(&path)?;
        let layout = MetadataLayout::new(geometry.page_size, geometry.frames);
        let mapping = map(&path, layout.bytes())?;
        let metadata = RackMetadata::new(mapping, layout)?;
        Ok(Self { rack, directory, metadata, page_size: geometry.page_size })
    }

    /// Appends the objects in use, with the size of each in bytes. An object with extents has
    /// their bytes too.
    pub(super) fn add_objects(&self, objects: &mut Vec<(GlobalAddr, u64)>) -> anyhow::Result<()> {
        let (first, mut extents) = (objects.len(), BTreeMap::<GlobalAddr, u64>::new());
        for frame in (0..self.metadata.frames()).map(FrameId) {
            let word = PageWord::from_raw(self.metadata.word(frame)?.load(Ordering::Acquire));
            // A page that is being swapped counts at its old home until the swap is complete.
            let is_here = matches!(
                word.state(),
                Some(PageState::Live | PageState::Shared | PageState::Frozen)
            );
            if !is_here {
                continue;
            }
            let addr = |offset| GlobalAddr::new(word.page(), offset, self.page_size);
            match PageUse::from_raw(self.metadata.header(frame)?.kind(), self.page_size) {
                PageUse::Run { index: 0, pages } => {
                    let bytes = u64::from(pages) * self.page_size.bytes();
                    match self.metadata.header(frame)?.owner() {
                        Some(owner) => {
                            *extents.entry(self.head_at(owner.head())?).or_default() += bytes;
                        }
                        None => objects.push((addr(0)?, bytes)),
                    }
                }
                PageUse::Slab(class) | PageUse::Fixed(class) => {
                    for index in self.used(frame, class)? {
                        objects.push((addr(index * class.bytes())?, class.bytes()));
                    }
                }
                PageUse::Run { .. } | PageUse::Unused => {}
            }
        }
        for (addr, bytes) in objects.iter_mut().skip(first) {
            *bytes += extents.remove(addr).unwrap_or(0);
        }
        Ok(())
    }

    /// Returns the address of a head, from its offset in the frames.
    fn head_at(&self, place: u64) -> anyhow::Result<GlobalAddr> {
        let frame = FrameId(u32::try_from(place / self.page_size.bytes())?);
        let word = PageWord::from_raw(self.metadata.word(frame)?.load(Ordering::Acquire));
        Ok(GlobalAddr::new(word.page(), place % self.page_size.bytes(), self.page_size)?)
    }

    /// Returns for each of these fixed objects that programs of the rack pin the pids of these
    /// programs.
    pub(in crate::commands) fn pins_of(
        &self,
        objects: &BTreeSet<GlobalAddr>,
    ) -> anyhow::Result<BTreeMap<GlobalAddr, BTreeSet<u64>>> {
        let mut pinned = BTreeMap::<GlobalAddr, BTreeSet<u64>>::new();
        for client in self.client_files()? {
            let Ok(superblock) = client.superblock() else { continue };
            let pid = superblock.owner().pid;
            for object in pins::pinned(&client.array(ArrayKind::Pins)).map(GlobalAddr::from_raw) {
                if objects.contains(&object) {
                    pinned.entry(object).or_default().insert(pid);
                }
            }
        }
        Ok(pinned)
    }

    /// Maps the files of the rack's clients.
    fn client_files(&self) -> anyhow::Result<Vec<ClientFile>> {
        let entries = std::fs::read_dir(self.directory.path())
            .with_context(|| self.directory.path().display().to_string())?;
        let is_client = |name: &std::ffi::OsStr| {
            name.to_str().is_some_and(|name| RackDirectory::client_of(name).is_some())
        };
        let entries = entries.flatten().filter(|entry| is_client(&entry.file_name()));
        // A client, and its file, may go at any time.
        Ok(entries.filter_map(|entry| client_file(&entry.path()).ok()).collect())
    }

    fn used(&self, frame: FrameId, class: SizeClass) -> anyhow::Result<impl Iterator<Item = u64>> {
        let words = self.metadata.bitmap(frame, class)?;
        let words: Vec<u64> = words.iter().map(|word| word.load(Ordering::Relaxed)).collect();
        let objects = self.page_size.bytes() >> class.bits();
        Ok((0_u64..)
            .zip(words)
            .flat_map(|(index, word)| {
                (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| index * 64 + bit)
            })
            .filter(move |index| *index < objects))
    }

    /// Adds the addresses that clients of the rack hold in caches and reservations, and those in
    /// exchanges between this rack and others. Returns the number of clients.
    pub(super) fn add_notes(&self, notes: &mut BTreeSet<GlobalAddr>) -> anyhow::Result<u64> {
        for other in 0..MAX_RACKS {
            let record = self.metadata.peer(RackId(other))?;
            if record.asked.state.load(Ordering::Acquire) != NOTHING_ASKED {
                add(notes, &record.asked.addrs);
            }
        }
        let mut clients = 0;
        for client in self.client_files()? {
            clients += 1;
            let slots = (0..client.threads()).filter_map(|thread| client.thread(thread).ok());
            slots.for_each(|slot| add_slot(notes, slot));
            add(notes, client.array(ArrayKind::Owned).in_use());
        }
        Ok(clients)
    }

    /// The rack of these files.
    pub(super) const fn rack(&self) -> RackId {
        self.rack
    }
}

/// Reads the geometry in a file's superblock.
fn geometry(path: &Path) -> anyhow::Result<Geometry> {
    let mut first = vec![0; SUPERBLOCK];
    file::open_read_only(path)?
        .read_exact(&mut first)
        .with_context(|| path.display().to_string())?;
    Ok(Superblock::parse(&first, path)?)
}

fn map(path: &Path, bytes: u64) -> anyhow::Result<Mapping> {
    let found = file::open(path)?.with_context(|| format!("{} is gone", path.display()))?;
    file::check_len(&found, path, bytes)?;
    Mapping::new(&found, bytes).with_context(|| path.display().to_string())
}

fn client_file(path: &Path) -> anyhow::Result<ClientFile> {
    let threads = u16::try_from(geometry(path)?.threads)?.min(MAX_THREADS);
    Ok(ClientFile::new(map(path, ClientFile::bytes(threads))?, threads)?)
}

fn add_slot(notes: &mut BTreeSet<GlobalAddr>, slot: &ThreadSlot) {
    add(notes, &slot.inbox);
    add(notes, &slot.outbox);
    slot.magazines.iter().for_each(|magazine| add(notes, magazine));
    for reservation in &slot.reservations {
        let armed = reservation.armed().or_else(|| reservation.to_settle());
        let armed = armed.into_iter().flat_map(|armed| [armed.object, armed.replaced]);
        let borrowed = reservation.borrowed().map(|borrowed| borrowed.object);
        let noted = reservation.noted().map(|noted| noted.load(Ordering::Relaxed));
        let all = armed.chain(borrowed).chain(noted);
        notes.extend(all.filter(|addr| *addr != 0).map(GlobalAddr::from_raw));
    }
}

fn add(notes: &mut BTreeSet<GlobalAddr>, cells: &[AtomicU64]) {
    let addrs = cells.iter().map(|cell| cell.load(Ordering::Relaxed));
    notes.extend(addrs.filter(|addr| *addr != 0).map(GlobalAddr::from_raw));
}
