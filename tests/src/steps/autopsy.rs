//! The file of a killed client after its daemon has processed it: everything the client held was
//! reclaimed, and all ring entries are whole.

use std::collections::BTreeSet;
use std::io::Read;
use std::path::PathBuf;
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

/// The file of a client, kept open after the client's end.
#[derive(Debug)]
pub struct Body(ClientFile);

impl Body {
    /// Opens the client file among these paths.
    #[must_use]
    pub fn among(files: &[PathBuf]) -> Option<Self> {
        let is_client = |path: &&PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str());
            name.is_some_and(|name| name.starts_with("client-"))
        };
        let path = files.iter().find(is_client)?;
        let mut found = file::open(path).expect("a readable file")?;
        let mut first = vec![0; SUPERBLOCK];
        found.read_exact(&mut first).expect("a superblock");
        let threads = Superblock::parse(&first, path).expect("a client's file").threads;
        let threads = u16::try_from(threads).expect("as many as a client has");
        let mapping = Mapping::new(&found, ClientFile::bytes(threads)).expect("a client's file");
        Some(Self(ClientFile::new(mapping, threads).expect("a whole file")))
    }

    /// The file itself.
    #[must_use]
    pub const fn file(&self) -> &ClientFile {
        &self.0
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
        let slots = self.threads().map(|thread| self.0.thread(thread).expect("a slot"));
        let cells = slots.flat_map(|slot| {
            let arrays =
                slot.inbox.iter().chain(&slot.outbox).chain(slot.magazines.iter().flatten());
            arrays.chain(slot.reservations.iter().filter_map(ReservationRecord::noted))
        });
        let cells = cells.chain(self.0.array(ArrayKind::Owned).in_use());
        let objects = cells.map(|cell| cell.load(Ordering::Relaxed)).filter(|object| *object != 0);
        objects.map(GlobalAddr::from_raw).collect()
    }

    /// The faults of the file, once everything has been reclaimed.
    #[must_use]
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        for thread in self.threads() {
            let slot = self.0.thread(thread).expect("a slot");
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
            for cell in self.0.cells(thread).expect("cells") {
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
        let owned = self.0.array(ArrayKind::Owned).in_use().iter();
        let left = owned.map(|cell| cell.load(Ordering::Relaxed)).filter(|object| *object != 0);
        faults.extend(left.map(|object| format!("the owned array still has {object:x}")));
        for route in [RingKind::Rack, RingKind::Remote] {
            // Requests that the daemon had not taken; no other process reads them.
            self.0.ring(route).pop(usize::MAX, |request| {
                if !is_whole(&request, self.0.threads()) {
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
