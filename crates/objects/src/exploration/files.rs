//! The files of spilled objects.

use rackpool_client::GlobalAddr;

use super::held::{ModelFile, ModelMemory, ModelPin};
use super::model::Model;
use super::planted::Bug;
use super::run::{Answer, Failure};
use super::world::{CellState, Entry, GARBAGE, RACKS, World, addr_of, cell_of};
use crate::layout::head::{FileNumber, Head};
use crate::protocol::{Loaded, Replica, Saved, Source, Steps};
use crate::store::PlacedHead;

/// What a spilled object has instead of a cell.
const NO_CELL: usize = 1 << 20;

/// A file of the first rack.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct SpillFile {
    is_there: bool,
    /// The bytes of the object, once they are all written.
    bytes: Option<u64>,
    /// The program that has locked it.
    by: Option<usize>,
}

/// The number of a file as the model counts them.
pub(super) fn number(file: FileNumber) -> usize {
    usize::try_from(file.get()).unwrap()
}

impl World {
    fn file(&mut self, number: usize) -> &mut SpillFile {
        &mut self.files[number - 1]
    }

    fn create_file(&mut self, program: usize) -> usize {
        self.files.push(SpillFile { is_there: true, bytes: None, by: Some(program) });
        self.files.len()
    }

    fn is_locked(&self, number: usize, program: usize) -> bool {
        self.files[number - 1].by.is_some_and(|by| by != program)
    }

    pub(super) fn unlock(&mut self, number: usize, program: usize) {
        let file = self.file(number);
        file.by = file.by.filter(|by| *by != program);
    }

    /// The kernel unlocks the files of a program that is killed.
    pub(super) fn unlock_all(&mut self, program: usize) {
        (1..=self.files.len()).for_each(|number| self.unlock(number, program));
    }

    pub(super) fn delete_file(&mut self, number: usize) {
        let is_named = self.named_file() == number;
        if is_named && self.is_spilled() {
            self.violate("the file of a spilled object is removed");
        }
        *self.file(number) = SpillFile { by: self.file(number).by, ..SpillFile::default() };
    }

    /// The files that are there, as bits.
    fn files(&self) -> u64 {
        let there = self.files.iter().enumerate().filter(|(_, file)| file.is_there);
        there.fold(0, |bits, (at, _)| bits | 1 << (at + 1))
    }

    /// Checks that all files but that of the object were removed.
    pub(super) fn check_files(&mut self) {
        let named = 1 << self.named_file();
        if self.files() & !named != 0 {
            self.violate("a file is left behind");
        }
    }

    /// Replaces an object by a stub that names a file.
    pub(super) fn replace_by_stub(&mut self, object: &PlacedHead, file: usize) -> bool {
        let is_it = |entry: &Entry| entry.placed() == *object;
        let Some(entry) = self.object.filter(is_it) else { return false };
        let version = self.next_version();
        self.object = Some(Entry { cell: NO_CELL, version, file, ..entry });
        self.witness();
        self.retire(entry.cell);
        true
    }

    /// Replaces this entry, or any one, by memory of a program, or frees the memory.
    pub(super) fn replace_by_copy(
        &mut self,
        found: &PlacedHead,
        is_any: bool,
        (cell, bytes): (usize, u64),
        program: usize,
    ) -> bool {
        let is_it = |entry: &Entry| entry.placed() == *found || is_any;
        let Some(entry) = self.object.filter(is_it) else {
            self.free(cell, program);
            return false;
        };
        if entry.bytes != bytes {
            self.violate("an object is replaced by another one");
        }
        if entry.file == 0 {
            self.retire(entry.cell);
        }
        let version = self.next_version();
        self.cells[cell].state = CellState::Linked;
        let rack = u16::try_from(self.cells[cell].rack).unwrap();
        self.object = Some(Entry { cell, version, bytes, rack, file: 0, ..entry });
        self.witness();
        true
    }

    fn next_version(&mut self) -> u32 {
        self.versions[RACKS] += 1;
        self.versions[RACKS]
    }

    pub(super) fn is_spilled(&self) -> bool {
        self.object.is_some_and(|object| object.file > 0)
    }

    /// The file that the object's entry or head names, or 0.
    pub(super) fn named_file(&self) -> usize {
        let of_head = |object: Entry| self.cells.get(object.cell).map_or(0, |cell| cell.file);
        self.object.map_or(0, |object| object.file.max(of_head(object)))
    }

    pub(super) fn file_in(&self, addr: GlobalAddr) -> usize {
        self.cells[cell_of(addr)].file
    }

    /// Writes the bytes of a file into memory that a program has pinned.
    pub(super) fn write_restored(&mut self, cell: usize, bytes: u64, file: usize, program: usize) {
        self.check_pinned(cell, program);
        self.write(cell, bytes, false);
        self.cells[cell].file = file;
    }
}

impl<'a> Model<'a> {
    pub(super) fn save_to_file(
        &mut self,
        pin: &ModelPin<'a>,
        object: &PlacedHead,
    ) -> Result<Saved<ModelFile<'a>>, Failure> {
        if let Some(found) = self.file_of(object)?
            && self
                .flag("look for the file", |world, _| world.file(number(found)).bytes.is_some())?
        {
            return Ok(Saved { number: found, new_file: None });
        }
        let answer = self.step("create a file", |world, by| Answer::Cell(world.create_file(by)))?;
        let Answer::Cell(created) = answer else { unreachable!("{answer:?}") };
        let new_file = ModelFile { run: self.run, number: created, is_left_out: false };
        let (bytes, addr) = (object.head.checksum, object.place.addr);
        if self.has(Bug::StubBeforeFile) {
            self.unwritten = Some((created, bytes));
        } else {
            self.write_file(created, bytes, addr)?;
        }
        let _ = pin;
        let number = FileNumber::new(created as u64).unwrap();
        Ok(Saved { number, new_file: Some(new_file) })
    }

    fn write_file(&mut self, number: usize, bytes: u64, from: GlobalAddr) -> Result<(), Failure> {
        self.done("write the file", |world, by| {
            world.read_pinned(from, bytes, by);
            world.file(number).bytes = Some(bytes);
        })
    }

    pub(super) fn publish_stub(
        &mut self,
        object: &PlacedHead,
        file: FileNumber,
    ) -> Result<bool, Failure> {
        let named = number(file);
        let is_replaced = self.flag("replace the object by a stub", |world, _| {
            world.replace_by_stub(object, named)
        })?;
        if let Some((number, bytes)) = self.unwritten.take() {
            self.done("write the file", |world, _| world.file(number).bytes = Some(bytes))?;
        }
        Ok(is_replaced)
    }

    pub(super) fn load_from_file(
        &mut self,
        stub: &PlacedHead,
    ) -> Result<Option<Loaded<Self>>, Failure> {
        let number = number(stub.head.file.unwrap());
        let lock = |world: &mut World, by| {
            let file = world.file(number);
            if !file.is_there {
                return Answer::Gone;
            }
            file.by = Some(by);
            Answer::Done
        };
        let program = self.run.borrow().program;
        let is_free = |world: &World| !world.is_locked(number, program);
        self.begin_step();
        if self.run.borrow_mut().wait_for("lock the file", is_free, lock)? == Answer::Gone {
            return Err(Failure::Gone);
        }
        let file = ModelFile { run: self.run, number, is_left_out: false };
        if self.find(Source::Objects)? != Some(*stub) && !self.has(Bug::RestoreAnyVersion) {
            return Ok(None);
        }
        let memory = self.take_memory()?;
        let (cell, addr) = (memory.cell, addr_of(memory.cell));
        let pin = self.pin(addr)?;
        let answer = self.step("read the file", |world, by| {
            let bytes = world.file(number).bytes.unwrap_or(GARBAGE);
            world.write_restored(cell, bytes, number, by);
            Answer::Bytes(bytes)
        })?;
        if answer != Answer::Bytes(stub.head.checksum) {
            return Err(Failure::Damaged);
        }
        let head = Head { file: None, ..stub.head };
        Ok(Some(Loaded { object: Replica { memory, addr, head }, pin, file }))
    }

    pub(super) fn publish_copy(
        &mut self,
        found: &PlacedHead,
        memory: &mut ModelMemory<'a>,
    ) -> Result<bool, Failure> {
        let (cell, bytes) = (memory.cell, found.head.checksum);
        let is_any = self.has(Bug::RestoreAnyVersion);
        let is_replaced = self.flag("replace the entry by a copy", |world, by| {
            world.replace_by_copy(found, is_any, (cell, bytes), by)
        })?;
        memory.is_owned = false;
        Ok(is_replaced)
    }

    pub(super) fn file_named_by(
        &mut self,
        found: &PlacedHead,
    ) -> Result<Option<FileNumber>, Failure> {
        if found.head.is_spilled() {
            return Ok(found.head.file);
        }
        let addr = found.place.addr;
        let read = |world: &mut World, _| match world.is_gone(addr) {
            true => Answer::Gone,
            false => Answer::Cell(world.file_in(addr)),
        };
        // As long as there is no file, any other step may come before or after it.
        let mut run = self.run.borrow_mut();
        let is_local = run.world.files.is_empty();
        let answer = run.step("read the number of the file", is_local, read)?;
        drop(run);
        self.skip_search(Bug::SweepWithoutSearch);
        match answer {
            Answer::Cell(number) => Ok(FileNumber::new(number as u64)),
            _ => Err(Failure::Gone),
        }
    }

    pub(super) fn try_lock(&mut self, file: FileNumber) -> Result<Option<ModelFile<'a>>, Failure> {
        let (number, is_left_out) = (number(file), self.has(Bug::SweepWithoutLock));
        let is_mine = self.flag("try to lock the file", |world, by| {
            let is_free = !world.is_locked(number, by) || is_left_out;
            let file = world.file(number);
            if is_free && file.is_there && !is_left_out {
                file.by = Some(by);
            }
            is_free && file.is_there
        })?;
        Ok(is_mine.then_some(ModelFile { run: self.run, number, is_left_out }))
    }

    /// Removes files that no entry names, as a sweep does.
    pub(super) fn sweep_files(&mut self) -> Result<(), Failure> {
        let answer = self.step("list the files", |world, _| Answer::Bytes(world.files()))?;
        let Answer::Bytes(files) = answer else { unreachable!("{answer:?}") };
        for number in (1..64).filter(|number| files >> number & 1 == 1) {
            crate::protocol::remove_unused_file(self, FileNumber::new(number).unwrap())?;
        }
        Ok(())
    }
}
