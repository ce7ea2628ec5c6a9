use rackpool_client::{GlobalAddr, RackId};
use rackpool_kv::{EntryPlace, Version};

use super::files::SpillFile;
use super::trouble::Troubles;
use super::witness::{Outcome, Witness};
use crate::layout::head::{FileNumber, Head};
use crate::layout::registration::Registration;
use crate::protocol::{CHAIN_BYTES, Source};
use crate::store::PlacedHead;

pub(super) const RACKS: usize = 3;
/// The pieces in which an object is brought.
pub(super) const PIECES: usize = 2;
/// The bytes of memory that no object has.
pub(super) const GARBAGE: u64 = 63;

pub(super) type RegistrationBytes = [u8; Registration::VALUE];

/// Three racks with the tables of one id. Objects are told apart by their bytes, which are a
/// number.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct World {
    /// In seconds.
    now: u32,
    pub(super) object: Option<Entry>,
    registration: Option<RegistrationBytes>,
    replicas: [Option<ReplicaEntry>; RACKS],
    pub(super) cells: Vec<Cell>,
    pins: Vec<Pin>,
    pub(super) files: Vec<SpillFile>,
    /// How often each table has published: the replica tables, then the object table.
    pub(super) versions: [u32; RACKS + 1],
    calls: Vec<Witness>,
    pub(super) troubles: Troubles,
    /// Whether the model's objects have at least `CHAIN_BYTES`, so that a get joins a chain.
    pub(super) has_chains: bool,
    /// Whether the page of freed memory is gone, so that accesses to it fail.
    pub(super) forgets_pages: bool,
    /// Whether memory is reused although it is pinned.
    pub(super) ignores_pins: bool,
    /// What is wrong.
    pub(super) violation: Option<String>,
}

/// What a search finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Entry {
    pub(super) cell: usize,
    pub(super) version: u32,
    pub(super) bytes: u64,
    pub(super) rack: u16,
    pub(super) is_long: bool,
    /// The file of a spilled object, which has no cell; else 0.
    pub(super) file: usize,
}

#[derive(Clone, Copy, Debug, Hash)]
struct ReplicaEntry {
    entry: Entry,
    /// When its memory was allocated.
    made: u32,
    by: usize,
}

/// Memory for a head and its bytes.
#[derive(Clone, Debug, Hash)]
pub(super) struct Cell {
    pub(super) rack: usize,
    pub(super) state: CellState,
    /// How often it was allocated.
    life: u32,
    pieces: [u64; PIECES],
    used: u32,
    is_ready: bool,
    /// The file that has the same bytes, or 0.
    pub(super) file: usize,
    /// How many pieces were written since a program began to fill it, and how many its head counts.
    written: usize,
    counted: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum CellState {
    Free,
    /// By a program.
    Owned(usize),
    Linked,
    /// Freed, and pinned.
    Retired,
}

/// Each has one program and one cell; `life` is that of the cell when it was pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Pin {
    program: usize,
    cell: usize,
    life: u32,
}

impl Entry {
    pub(super) fn placed(&self) -> PlacedHead {
        let head = Head {
            bytes: if self.is_long { CHAIN_BYTES } else { 1 },
            metadata: 0,
            layout_tag: 0,
            checksum: self.bytes,
            created_ms: 0,
            rack: RackId(self.rack),
            extents: 0,
            file: FileNumber::new(self.file as u64),
        };
        PlacedHead { place: self.place(), head }
    }

    fn place(&self) -> EntryPlace {
        EntryPlace { addr: addr_of(self.cell), version: version(self.version) }
    }
}

fn version(number: u32) -> Version {
    let mut bytes = [0; 12];
    bytes[..4].copy_from_slice(&number.to_le_bytes());
    Version::from_bytes(bytes)
}

pub(super) fn addr_of(cell: usize) -> GlobalAddr {
    GlobalAddr::from_raw(64 * (cell as u64 + 1))
}

pub(super) fn cell_of(addr: GlobalAddr) -> usize {
    usize::try_from(addr.raw() / 64 - 1).unwrap()
}

impl World {
    pub(super) fn new(programs: usize) -> Self {
        Self { calls: vec![Witness::default(); programs], ..Self::default() }
    }

    pub(super) fn violate(&mut self, what: impl Into<String>) {
        self.violation.get_or_insert(what.into());
    }

    // Time and calls.

    pub(super) fn tick(&mut self) {
        self.now += 2;
    }

    /// Called before each step of a program.
    pub(super) fn begin_step(&mut self, program: usize) {
        if !self.calls[program].is_begun {
            self.calls[program] = Witness { is_begun: true, ..Witness::default() };
            self.witness();
        }
    }

    /// Notes for each call which object is linked now.
    pub(super) fn witness(&mut self) {
        for call in self.calls.iter_mut().filter(|call| call.is_begun) {
            call.has_trouble |= self.troubles.are_any();
            call.has_lost |= self.troubles.is_object_lost;
            call.was_spilled |= self.object.is_some_and(|object| object.file > 0);
            match self.object {
                Some(object) => call.linked |= 1 << object.bytes,
                None => call.was_absent = true,
            }
        }
    }

    /// To be called when troubles have changed.
    pub(super) fn note_troubles(&mut self) {
        self.troubles.were_any = true;
        self.witness();
    }

    /// Checks that a call could have taken effect at one time between its first and last step.
    pub(super) fn end_call(&mut self, program: usize, outcome: Outcome) {
        let call = std::mem::take(&mut self.calls[program]);
        if !call.allows(outcome) {
            self.violate(format!("{outcome:?} is wrong during a call with {call:?}"));
        }
    }

    /// Ends a program: its pins and its memory are taken back.
    pub(super) fn kill(&mut self, program: usize) {
        self.calls[program] = Witness::default();
        self.pins.retain(|pin| pin.program != program);
        self.unlock_all(program);
        for cell in 0..self.cells.len() {
            if self.cells[cell].state == CellState::Owned(program) {
                self.retire(cell);
            }
        }
        self.reuse();
    }

    /// Checks what holds after each step.
    pub(super) fn check(&mut self) {
        for ReplicaEntry { entry, .. } in self.replicas.into_iter().flatten() {
            let is_linked = self.object.is_some_and(|object| object.bytes == entry.bytes);
            let Cell { is_ready, pieces, written, counted, .. } = self.cells[entry.cell];
            if is_ready && self.is_spilled() {
                self.violate("a replica is ready whose object is in a file");
            }
            if is_ready && !is_linked {
                self.violate("a replica is ready whose object is not linked");
            }
            if is_ready && pieces != [entry.bytes; PIECES] {
                self.violate("a replica is ready without its bytes");
            }
            if counted > written {
                self.violate("a replica counts a piece that it does not have");
            }
        }
    }

    // Tables.

    pub(super) fn find(&self, source: Source, rack: usize) -> Option<Entry> {
        match source {
            Source::Objects => self.object,
            Source::Replicas => self.replicas[rack].map(|replica| replica.entry),
        }
    }

    /// Publishes memory of a program for an object with these bytes, or frees it if there is an
    /// entry.
    pub(super) fn insert(&mut self, source: Source, cell: usize, bytes: u64, by: usize) -> bool {
        let Cell { rack, used: made, .. } = self.cells[cell];
        if self.find(source, rack).is_some() {
            self.free(cell, by);
            return false;
        }
        let version = &mut self.versions[if source == Source::Replicas { rack } else { RACKS }];
        *version += 1;
        let (version, rack_id) = (*version, u16::try_from(rack).unwrap());
        let entry =
            Entry { cell, version, bytes, rack: rack_id, is_long: self.has_chains, file: 0 };
        if self.cells[cell].state != CellState::Owned(by) {
            self.violate("memory is published that its program does not have");
        }
        self.cells[cell].state = CellState::Linked;
        match source {
            Source::Objects => self.object = Some(entry),
            Source::Replicas => self.replicas[rack] = Some(ReplicaEntry { entry, made, by }),
        }
        self.witness();
        true
    }

    /// Removes the entry of a table if it is at `place`, for a program.
    pub(super) fn remove(
        &mut self,
        source: Source,
        rack: usize,
        place: &EntryPlace,
        program: usize,
    ) -> bool {
        let Some(entry) = self.find(source, rack).filter(|entry| entry.place() == *place) else {
            return false;
        };
        match source {
            Source::Objects => {
                self.object = None;
                self.calls[program].removed += 1;
                self.witness();
                if entry.file == 0 {
                    self.retire(entry.cell);
                }
            }
            Source::Replicas => self.clean_replica(rack, program),
        }
        true
    }

    /// Removes the replica of a rack for a program that removes what killed ones left.
    pub(super) fn clean_replica(&mut self, rack: usize, program: usize) {
        if let Some(replica) = self.replicas[rack]
            && replica.by != program
            && replica.made == self.now
        {
            self.violate("a clean-up removes a replica that another program has just made");
        }
        self.remove_replica(rack);
    }

    pub(super) fn remove_replica(&mut self, rack: usize) {
        if let Some(replica) = self.replicas[rack].take() {
            self.retire(replica.entry.cell);
        }
    }

    pub(super) const fn registration(&self) -> Option<RegistrationBytes> {
        self.registration
    }

    pub(super) const fn set_registration(&mut self, new: Option<RegistrationBytes>) {
        self.registration = new;
    }

    // Memory.

    /// Memory of a rack for a program: the first free cell, so that memory is reused as soon as it
    /// can be.
    pub(super) fn allocate(&mut self, rack: usize, program: usize) -> usize {
        let is_free = |cell: &Cell| cell.rack == rack && cell.state == CellState::Free;
        let cell = self.cells.iter().position(is_free).unwrap_or_else(|| {
            let state = CellState::Free;
            let (life, used, is_ready, file, written, counted) = (0, 0, false, 0, 0, 0);
            let pieces = [GARBAGE; PIECES];
            self.cells.push(Cell {
                rack,
                state,
                life,
                pieces,
                used,
                is_ready,
                file,
                written,
                counted,
            });
            self.cells.len() - 1
        });
        self.cells[cell].state = CellState::Owned(program);
        self.cells[cell].life += 1;
        cell
    }

    /// The bytes of an object that is published next.
    pub(super) fn new_bytes(&self) -> u64 {
        u64::from(self.versions[RACKS]) + 1
    }

    pub(super) fn write(&mut self, cell: usize, bytes: u64, is_ready: bool) {
        let (pieces, used, file, written, counted) = ([bytes; PIECES], self.now, 0, 0, 0);
        self.cells[cell] =
            Cell { pieces, used, is_ready, file, written, counted, ..self.cells[cell] };
    }

    /// Writes the next piece of another rack into memory that a program has pinned.
    pub(super) fn fill(&mut self, addr: GlobalAddr, piece: usize, bytes: u64, program: usize) {
        let (at, now) = (cell_of(addr), self.now);
        self.check_pinned(at, program);
        let cell = &mut self.cells[at];
        (cell.pieces[piece], cell.written, cell.used) = (bytes, piece + 1, now);
    }

    /// Stores how many pieces of a replica are there, for a program that fills it.
    pub(super) fn count(&mut self, addr: GlobalAddr, pieces: usize, program: usize) {
        self.check_pinned(cell_of(addr), program);
        self.cells[cell_of(addr)].counted = pieces;
    }

    /// How many pieces the replica of a rack has that is at `place`; `None` if it is not there.
    pub(super) fn counted(&self, rack: usize, place: &PlacedHead) -> Option<usize> {
        let entry = self.find(Source::Replicas, rack).filter(|entry| entry.placed() == *place)?;
        let Cell { is_ready, counted, .. } = self.cells[entry.cell];
        Some(if is_ready { PIECES } else { counted })
    }

    /// Frees memory that a program has.
    pub(super) fn free(&mut self, cell: usize, program: usize) {
        if self.cells[cell].state != CellState::Owned(program) {
            self.violate("memory is freed by a program that does not have it");
        }
        self.retire(cell);
    }

    pub(super) fn retire(&mut self, cell: usize) {
        if matches!(self.cells[cell].state, CellState::Free | CellState::Retired) {
            self.violate("memory is freed twice");
        }
        self.cells[cell].state = CellState::Retired;
        self.reuse();
    }

    /// Frees the retired memory that is not pinned, as a scan of the daemon does.
    fn reuse(&mut self) {
        for at in 0..self.cells.len() {
            let is_pinned = self.pins.iter().any(|pin| pin.cell == at) && !self.ignores_pins;
            if self.cells[at].state == CellState::Retired && !is_pinned {
                self.cells[at].state = CellState::Free;
            }
        }
    }

    pub(super) fn is_owned(&self, addr: GlobalAddr, program: usize) -> bool {
        self.cells[cell_of(addr)].state == CellState::Owned(program)
    }

    /// Whether an access to this address fails.
    pub(super) fn is_gone(&self, addr: GlobalAddr) -> bool {
        let cell = cell_of(addr);
        let is_lost =
            self.troubles.is_object_lost && self.object.is_some_and(|object| object.cell == cell);
        is_lost || self.forgets_pages && self.cells[cell].state == CellState::Free
    }

    pub(super) fn rack_of(&self, addr: GlobalAddr) -> usize {
        self.cells[cell_of(addr)].rack
    }

    pub(super) fn pin(&mut self, addr: GlobalAddr, program: usize) {
        let cell = cell_of(addr);
        self.pins.push(Pin { program, cell, life: self.cells[cell].life });
    }

    pub(super) fn unpin(&mut self, addr: GlobalAddr, program: usize) {
        let cell = cell_of(addr);
        let at = self.pins.iter().position(|pin| pin.program == program && pin.cell == cell);
        self.pins.remove(at.unwrap());
        self.reuse();
    }

    /// Checks that memory which a program uses is what the program has pinned.
    pub(super) fn check_pinned(&mut self, cell: usize, program: usize) {
        let Cell { life, state, .. } = self.cells[cell];
        let is_pinned = self.pins.contains(&Pin { program, cell, life });
        if !is_pinned || state == CellState::Free {
            self.violate("a program uses memory that was reused or freed");
        }
    }

    pub(super) fn read(&self, addr: GlobalAddr, piece: usize) -> u64 {
        self.cells[cell_of(addr)].pieces[piece]
    }

    /// Reads pinned memory, which must have these bytes.
    pub(super) fn read_pinned(&mut self, addr: GlobalAddr, bytes: u64, program: usize) {
        self.check_pinned(cell_of(addr), program);
        if self.cells[cell_of(addr)].pieces != [bytes; PIECES] {
            self.violate("the bytes of a pinned object are others");
        }
    }

    /// The time since the last use, in seconds, and whether the head is ready.
    pub(super) fn words(&self, addr: GlobalAddr) -> (u32, bool) {
        let cell = &self.cells[cell_of(addr)];
        (self.now - cell.used, cell.is_ready)
    }

    pub(super) fn set_used(&mut self, addr: GlobalAddr, program: usize) {
        self.check_pinned(cell_of(addr), program);
        self.cells[cell_of(addr)].used = self.now;
    }

    pub(super) fn set_ready(&mut self, addr: GlobalAddr, program: usize) {
        self.check_pinned(cell_of(addr), program);
        self.cells[cell_of(addr)].is_ready = true;
    }

    // What is left when all programs have ended and were cleaned up after.

    /// Checks that only the object, its registered replicas and its registration are left.
    pub(super) fn check_rest(&mut self) {
        let registration = self.registration.map(|bytes| Registration::decode(&bytes).unwrap());
        let object = self.object;
        let is_its =
            |now: Registration| object.is_some_and(|object| version(object.version) == now.version);
        if registration.is_some_and(|now| !is_its(now)) {
            self.violate("a registration has no object");
        }
        for (rack, replica) in self.replicas.into_iter().enumerate() {
            let Some(replica) = replica else { continue };
            let has_bit = |now: Registration| now.racks().any(|bit| usize::from(bit.0) == rack);
            if !self.cells[replica.entry.cell].is_ready {
                self.violate("a replica that is not ready stays");
            } else if !registration.is_some_and(has_bit) {
                self.violate("a replica is not registered");
            }
        }
        let objects = self.object.iter().filter(|object| object.file == 0);
        let linked = objects.count() + self.replicas.iter().flatten().count();
        let kept = self.cells.iter().filter(|cell| cell.state != CellState::Free);
        if kept.count() != linked || !self.pins.is_empty() {
            self.violate("memory or a pin was left behind");
        }
    }

    /// Checks that nothing is left at all.
    pub(super) fn check_empty(&mut self) {
        self.check_rest();
        let replicas = self.replicas.iter().flatten().count();
        if self.object.is_some() || replicas > 0 || self.registration.is_some() {
            self.violate("a delete has left something");
        }
    }

    pub(super) fn has_object(&self) -> bool {
        self.object.is_some()
    }
}
