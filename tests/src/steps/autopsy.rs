//! The file of a killed client after its daemon has processed it: everything the client held was
//! reclaimed, and all ring entries are whole.

use std::collections::BTreeSet;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use rackpool_client::GlobalAddr;
use rackpool_ring::client_file::{ArrayKind, CELLS_PER_THREAD, ClientFile, RingKind};
use rackpool_ring::request::Request;
use rackpool_ring::reservation::ReservationRecord;
use rackpool_shm::superblock::Superblock;
use rackpool_shm::{Mapping, file};
use rackpool_wire::rack::{RackAnswer, RackRequest};

/// Bytes of the header of a file.
const SUPERBLOCK: usize = 4096;
/// Thread slots of which a killed client may have used any.
const USED: u16 = 4;

/// The files of a client, kept open after the client's end: the one of its own daemon, and those of
/// siblings.
#[derive(Debug)]
pub struct Body {
    own: ClientFile,
    siblings: Vec<ClientFile>,
}

fn open(path: &Path) -> Option<ClientFile> {
    let mut found = file::open(path).expect("a readable file")?;
    let mut first = vec![0; SUPERBLOCK];
    found.read_exact(&mut first).expect("a superblock");
    let threads = Superblock::parse(&first, path).expect("a client's file").threads;
    let threads = u16::try_from(threads).expect("as many as a client has");
    let mapping = Mapping::new(&found, ClientFile::bytes(threads)).expect("a client's file");
    Some(ClientFile::new(mapping, threads).expect("a whole file"))
}

/// Returns true for the file of a client, in the folder of this rack if one is given.
fn is_of_client(path: &Path, rack: Option<u16>) -> bool {
    let name = |path: &Path| path.file_name()?.to_str().map(str::to_owned);
    let folder = path.parent().and_then(name);
    let is_there = rack.is_none_or(|rack| folder == Some(format!("rack-{rack}")));
    is_there && name(path).is_some_and(|name| name.starts_with("client-"))
}

impl Body {
    /// Opens the file of a client of this rack among these paths.
    #[must_use]
    pub fn among(files: &[PathBuf], rack: u16) -> Option<Self> {
        let path = files.iter().find(|path| is_of_client(path, Some(rack)))?;
        Some(Self { own: open(path)?, siblings: Vec::new() })
    }

    /// Opens the files at siblings of this rack, too.
    pub fn add_siblings(&mut self, files: &[PathBuf], rack: u16) {
        let others =
            files.iter().filter(|path| is_of_client(path, None) && !is_of_client(path, Some(rack)));
        self.siblings = others.filter_map(|path| open(path)).collect();
    }

    /// The file of its own daemon.
    #[must_use]
    pub const fn file(&self) -> &ClientFile {
        &self.own
    }

    fn files(&self) -> impl Iterator<Item = &ClientFile> {
        std::iter::once(&self.own).chain(&self.siblings)
    }

    /// Thread slots that may have been used.
    pub(super) const fn threads(&self) -> std::ops::Range<u16> {
        let _ = self;
        0..USED
    }

    /// Every object that the file notes now and that the daemon reclaims when the client ends:
    /// objects in arrays, and objects of reservation records whose outcome is decided.
    #[must_use]
    pub fn noted(&self) -> BTreeSet<GlobalAddr> {
        self.files().flat_map(|file| self.noted_in(file)).collect()
    }

    fn noted_in(&self, file: &ClientFile) -> BTreeSet<GlobalAddr> {
        let slots = self.threads().map(|thread| file.thread(thread).expect("a slot"));
        let cells = slots.flat_map(|slot| {
            let arrays =
                slot.inbox.iter().chain(&slot.outbox).chain(slot.magazines.iter().flatten());
            arrays.chain(slot.reservations.iter().filter_map(ReservationRecord::noted))
        });
        let cells = cells.chain(file.array(ArrayKind::Owned).in_use());
        let objects = cells.map(|cell| cell.load(Ordering::Relaxed)).filter(|object| *object != 0);
        objects.map(GlobalAddr::from_raw).collect()
    }

    /// The faults of the files, once everything has been reclaimed.
    #[must_use]
    pub fn faults(&self) -> Vec<String> {
        self.files().flat_map(|file| self.faults_in(file)).collect()
    }

    fn faults_in(&self, file: &ClientFile) -> Vec<String> {
        let mut faults = Vec::new();
        for thread in self.threads() {
            let slot = file.thread(thread).expect("a slot");
            let arrays =
                slot.inbox.iter().chain(&slot.outbox).chain(slot.magazines.iter().flatten());
            let left =
                arrays.map(|cell| cell.load(Ordering::Relaxed)).filter(|object| *object != 0);
            faults.extend(left.map(|object| format!("thread {thread} still has {object:x}")));
            if let Some(announced) = slot.access.announced() {
                faults.push(format!("thread {thread} is still in {announced:?}"));
            }
            for record in &slot.reservations {
                let noted = record.noted().map_or(0, |cell| cell.load(Ordering::Relaxed));
                if noted != 0 || record.armed().is_some() {
                    faults.push(format!("thread {thread} still has a reservation: {record:?}"));
                }
            }
            for cell in file.cells(thread).expect("cells") {
                let answer = cell.answer(cell.answered()).filter(|_| cell.answered() != 0);
                let Some(answer) = answer else { continue };
                match RackAnswer::from_words(answer.status, answer.values) {
                    None | Some(RackAnswer::Invalid) => {
                        faults.push(format!("thread {thread} was answered {answer:?}"));
                    }
                    Some(_) => {}
                }
            }
        }
        let owned = file.array(ArrayKind::Owned).in_use().iter();
        let left = owned.map(|cell| cell.load(Ordering::Relaxed)).filter(|object| *object != 0);
        faults.extend(left.map(|object| format!("the owned array still has {object:x}")));
        for route in [RingKind::Rack, RingKind::Remote] {
            // Requests that the daemon had not taken; no other process reads them.
            file.ring(route).pop(usize::MAX, |request| {
                if !is_whole(&request, file.threads()) {
                    faults.push(format!("a torn entry: {request:?}"));
                }
            });
        }
        faults
    }
}

fn is_whole(request: &Request, threads: u16) -> bool {
    RackRequest::from_words(request.code, request.arguments).is_some()
        && request.thread < threads
        && usize::from(request.cell) < CELLS_PER_THREAD
        && request.call != 0
        && request.life != 0
}
