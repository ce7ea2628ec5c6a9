use std::cell::RefCell;

use rackpool_client::{GlobalAddr, RackId};
use rackpool_kv::{EntryPlace, Version};

use super::files::number;
use super::held::{ModelFile, ModelMemory, ModelPin};
use super::planted::Bug;
use super::run::{Answer, Failure, Run};
use super::transfer::ModelTransfer;
use super::trouble::Trouble;
use super::world::{GARBAGE, RegistrationBytes, World, addr_of};
use crate::chain;
use crate::layout::head::FileNumber;
use crate::layout::registration::Registration;
use crate::protocol::{Loaded, Replica, Saved, Source, Steps, Words};
use crate::store::PlacedHead;

/// A program of a rack, as the protocol sees it.
#[derive(Debug)]
pub(super) struct Model<'a> {
    pub(super) run: &'a RefCell<Run>,
    rack: usize,
    bug: Option<Bug>,
    // What a program with a bug knows.
    /// Whether a search of the object table, and of the replica table, is left out if it is next.
    skips: [bool; 2],
    /// What the last search has found in the object table, and in the replica table.
    found: [Option<PlacedHead>; 2],
    /// The registration that was read or stored last.
    registered: Option<RegistrationBytes>,
    /// What it has pinned last.
    pinned: Option<GlobalAddr>,
    /// Memory for a copy that is not published, and the bytes of the object.
    allocated: Option<(usize, u64)>,
    has_published: bool,
    /// Whether the search after a copy is left out when it is next.
    skips_link: bool,
    /// Whether a delete has removed the object, if it did so before its replicas.
    removed_first: Option<bool>,
    /// A file that is written after the stub is published.
    pub(super) unwritten: Option<(usize, u64)>,
}

impl<'a> Model<'a> {
    pub(super) const fn new(run: &'a RefCell<Run>, rack: usize, bug: Option<Bug>) -> Self {
        let (skips, found, registered) = ([false; 2], [None; 2], None);
        let (pinned, allocated, has_published, removed_first) = (None, None, false, None);
        Self {
            run,
            rack,
            bug,
            skips,
            pinned,
            found,
            registered,
            allocated,
            has_published,
            skips_link: false,
            removed_first,
            unwritten: None,
        }
    }

    pub(super) fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    /// A program with this bug leaves out the next search of the object table.
    pub(super) fn skip_search(&mut self, bug: Bug) {
        self.skips[0] = self.has(bug);
    }

    /// A search is left out only if it is next.
    pub(super) fn begin_step(&mut self) {
        self.skips = [false; 2];
    }

    pub(super) fn step(
        &mut self,
        name: &'static str,
        work: impl FnOnce(&mut World, usize) -> Answer,
    ) -> Result<Answer, Failure> {
        self.begin_step();
        match self.run.borrow_mut().step(name, false, work)? {
            Answer::Gone => Err(Failure::Gone),
            Answer::Unreadable(trouble) => Err(Failure::Unreadable(trouble)),
            answer => Ok(answer),
        }
    }

    pub(super) fn flag(
        &mut self,
        name: &'static str,
        work: impl FnOnce(&mut World, usize) -> bool,
    ) -> Result<bool, Failure> {
        let answer = self.step(name, |world, program| Answer::Flag(work(world, program)))?;
        Ok(answer == Answer::Flag(true))
    }

    pub(super) fn done(
        &mut self,
        name: &'static str,
        work: impl FnOnce(&mut World, usize),
    ) -> Result<(), Failure> {
        self.step(name, |world, program| {
            work(world, program);
            Answer::Done
        })?;
        Ok(())
    }

    /// Allocates memory, whose contents are what they were.
    pub(super) fn take_memory(&mut self) -> Result<ModelMemory<'a>, Failure> {
        let rack = self.rack;
        let answer = self.step("allocate", |world, by| Answer::Cell(world.allocate(rack, by)))?;
        let Answer::Cell(cell) = answer else { unreachable!("{answer:?}") };
        Ok(ModelMemory { run: self.run, rack, cell, is_owned: true })
    }

    /// Publishes a new object in memory of this program.
    pub(super) fn seal(&mut self, mut memory: ModelMemory<'a>) -> Result<bool, Failure> {
        let cell = memory.cell;
        let answer = self.step("publish an object", |world, by| {
            if let Some(trouble) = world.trouble_of(Source::Objects) {
                return Answer::Unreadable(trouble);
            }
            let bytes = world.new_bytes();
            world.write(cell, bytes, false);
            Answer::Flag(world.insert(Source::Objects, cell, bytes, by))
        })?;
        memory.is_owned = false;
        Ok(answer == Answer::Flag(true))
    }

    /// Writes something into memory that is no object, such as a head that looks ready.
    pub(super) fn scribble(&mut self, memory: &ModelMemory<'a>) -> Result<(), Failure> {
        self.done("scribble", |world, _| world.write(memory.cell, GARBAGE, true))
    }

    pub(super) fn tick(&mut self) -> Result<(), Failure> {
        self.done("two seconds pass", |world, _| world.tick())
    }

    /// The registration as a program stores it: one with `LeaveOpen` does not close it.
    fn stored(&self, registration: &Registration) -> RegistrationBytes {
        let mut stored = *registration;
        stored.is_closed &= !self.has(Bug::LeaveOpen);
        stored.encode()
    }
}

impl<'a> Steps for Model<'a> {
    type Error = Failure;
    type Pin = ModelPin<'a>;
    type Memory = ModelMemory<'a>;
    type File = ModelFile<'a>;

    fn rack(&self) -> RackId {
        RackId(u16::try_from(self.rack).unwrap())
    }

    fn is_local(&self, head: &PlacedHead) -> Result<bool, Failure> {
        Ok(self.run.borrow().world.rack_of(head.place.addr) == self.rack)
    }

    fn find(&mut self, source: Source) -> Result<Option<PlacedHead>, Failure> {
        let (rack, last) = (self.rack, source as usize);
        let skips_link = source == Source::Objects && std::mem::take(&mut self.skips_link);
        if std::mem::take(&mut self.skips[last]) || skips_link {
            return Ok(self.found[last]);
        }
        let name = ["search the object table", "search the replica table"][last];
        let answer = self.step(name, |world, _| match world.trouble_of(source) {
            Some(trouble) => Answer::Unreadable(trouble),
            None => Answer::Entry(world.find(source, rack)),
        })?;
        let Answer::Entry(found) = answer else { unreachable!("{answer:?}") };
        self.found[last] = found.map(|entry| entry.placed());
        Ok(self.found[last])
    }

    fn remove(&mut self, source: Source, place: &EntryPlace) -> Result<bool, Failure> {
        let rack = self.rack;
        if source == Source::Replicas && self.has(Bug::LeaveUnready) && self.has_published {
            return Ok(false);
        }
        if source == Source::Replicas {
            let is_any = self.has(Bug::RemoveAnyReplica);
            return self.flag("remove a replica", |world, by| {
                let place = match world.find(source, rack) {
                    Some(entry) if is_any => entry.placed().place,
                    _ => *place,
                };
                world.remove(source, rack, &place, by)
            });
        }
        if let Some(removed) = self.removed_first.take() {
            return Ok(removed);
        }
        if self.has(Bug::RemoveRegistrationFirst) {
            let found = self.registered;
            self.done("remove the registration", |world, _| {
                if world.registration() == found {
                    world.set_registration(None);
                }
            })?;
        }
        let is_any = self.has(Bug::RemoveAnyObject);
        self.flag("remove the object", |world, by| {
            let place = match world.find(source, rack) {
                Some(entry) if is_any => entry.placed().place,
                _ => *place,
            };
            world.remove(source, rack, &place, by)
        })
    }

    fn open_replicas(&mut self) -> Result<bool, Failure> {
        Ok(false)
    }

    fn allocate(&mut self, object: &PlacedHead) -> Result<Replica<ModelMemory<'a>>, Failure> {
        let (rack, is_stale) = (self.rack, self.has(Bug::LeaveWords));
        let answer = self.step("allocate", |world, by| {
            let cell = world.allocate(rack, by);
            if !is_stale {
                world.write(cell, GARBAGE, false);
            }
            Answer::Cell(cell)
        })?;
        let Answer::Cell(cell) = answer else { unreachable!("{answer:?}") };
        let memory = ModelMemory { run: self.run, rack, cell, is_owned: true };
        self.allocated = Some((cell, object.head.checksum));
        Ok(Replica { addr: addr_of(cell), memory, head: object.head })
    }

    fn insert_replica(&mut self, replica: &mut Replica<ModelMemory<'a>>) -> Result<bool, Failure> {
        let (memory, bytes) = (&mut replica.memory, replica.head.checksum);
        let early = self.run.borrow_mut().early.take();
        let is_inserted = match early {
            Some(inserted) => inserted,
            None => self.flag("publish a replica", |world, by| {
                world.insert(Source::Replicas, memory.cell, bytes, by)
            })?,
        };
        memory.is_owned = false;
        self.has_published = is_inserted;
        if is_inserted && self.has(Bug::ReadyBeforeFilled) {
            self.set_ready(replica)?;
        }
        Ok(is_inserted)
    }

    fn remove_replica_of(&mut self, rack: RackId) -> Result<(), Failure> {
        if self.has(Bug::RemoveObjectFirst)
            && self.removed_first.is_none()
            && let Some(object) = self.found[Source::Objects as usize]
        {
            self.removed_first = Some(self.remove(Source::Objects, &object.place)?);
        }
        if self.has(Bug::SpillKeepsReplicas) {
            return Ok(());
        }
        self.done("remove the replica of a rack", |world, _| {
            world.remove_replica(usize::from(rack.0));
        })
    }

    fn registration(&mut self) -> Result<Option<Vec<u8>>, Failure> {
        if self.has_published
            && let Some(object) = self.found[Source::Objects as usize]
            && (self.has(Bug::ReadyWithoutCheck) || self.has(Bug::ReadyWithoutRegistration))
        {
            self.skips[0] = self.has(Bug::ReadyWithoutCheck);
            return Ok(Some(Registration::new(object.place.version).encode().to_vec()));
        }
        if self.has(Bug::PublishBeforeRegister)
            && let Some((cell, bytes)) = self.allocated.take()
        {
            let inserted = self.flag("publish a ready replica", |world, by| {
                world.write(cell, bytes, true);
                world.insert(Source::Replicas, cell, bytes, by)
            })?;
            self.run.borrow_mut().early = Some(inserted);
        }
        let takes_lost_for_absent = self.has(Bug::TakeLostForAbsent);
        let read = |world: &mut World, _| match world.troubles.registration {
            Some(Trouble::Lost) if takes_lost_for_absent => Answer::Registration(None),
            Some(trouble) => Answer::Unreadable(trouble),
            None => Answer::Registration(world.registration()),
        };
        let answer = self.step("read the registration", read)?;
        let Answer::Registration(found) = answer else { unreachable!("{answer:?}") };
        self.registered = found;
        self.skips[0] = self.has_published && self.has(Bug::ReadyWithoutSearch);
        Ok(found.map(|bytes| bytes.to_vec()))
    }

    fn replace_registration(
        &mut self,
        found: Option<&[u8]>,
        new: &Registration,
    ) -> Result<bool, Failure> {
        let is_any = self.has(Bug::ReplaceAnyRegistration);
        let bytes = self.stored(new);
        let takes_lost_for_absent = self.has(Bug::TakeLostForAbsent);
        let answer = self.step("store the registration", |world, _| {
            let now = match world.troubles.registration {
                Some(Trouble::Lost) if takes_lost_for_absent => None,
                Some(trouble) => return Answer::Unreadable(trouble),
                None => world.registration(),
            };
            let is_it = is_any || now.as_ref().map(|now| &now[..]) == found;
            if is_it {
                world.set_registration(Some(bytes));
                world.troubles.registration = None;
            }
            Answer::Flag(is_it)
        })?;
        let is_stored = answer == Answer::Flag(true);
        self.registered = Some(bytes);
        self.skips[0] = is_stored && !new.is_closed && self.has(Bug::RegisterWithoutSearch);
        Ok(is_stored)
    }

    fn remove_registration(&mut self, found: &Registration) -> Result<(), Failure> {
        let is_any = self.has(Bug::RemoveAnyRegistration);
        let found = self.stored(found);
        self.step("remove the registration", |world, _| {
            if let Some(trouble) = world.troubles.registration {
                return Answer::Unreadable(trouble);
            }
            if is_any || world.registration() == Some(found) {
                world.set_registration(None);
            }
            Answer::Done
        })?;
        Ok(())
    }

    fn is_lost(error: &Failure) -> bool {
        *error == Failure::Unreadable(Trouble::Lost)
    }

    fn replace_lost_registration(&mut self, version: Version) -> Result<(), Failure> {
        let is_open = self.has(Bug::RepairReopens);
        self.done("replace the lost registration", |world, _| {
            let new = Registration::new(version);
            world.replace_lost_registration(if is_open { new } else { new.closed() });
        })
    }

    fn pin(&mut self, addr: GlobalAddr) -> Result<ModelPin<'a>, Failure> {
        let own = self.allocated.map(|(cell, _)| addr_of(cell));
        let is_left_out = self.has(Bug::FillWithoutPin) && own == Some(addr);
        let pin = |world: &mut World, by| {
            if world.is_gone(addr) {
                return Answer::Gone;
            }
            if !is_left_out {
                world.pin(addr, by);
            }
            Answer::Done
        };
        let mut run = self.run.borrow_mut();
        // Nobody but its program knows memory that it owns.
        let is_local = run.world.is_owned(addr, run.program);
        if run.step("pin", is_local, pin)? == Answer::Gone {
            return Err(Failure::Gone);
        }
        drop(run);
        self.skips = [self.has(Bug::PinWithoutSearch); 2];
        self.pinned = Some(addr);
        Ok(ModelPin { run: self.run, addr, bytes: None, is_left_out })
    }

    fn words(&mut self, addr: GlobalAddr) -> Result<Words, Failure> {
        let read = |world: &mut World, _| match world.is_gone(addr) {
            true => Answer::Gone,
            false => {
                let (idle, is_ready) = world.words(addr);
                Answer::Words(idle, is_ready)
            }
        };
        let answer = self.step("read the words", read);
        self.skips = [answer.is_err() && self.has(Bug::FailWithoutSearch); 2];
        let answer = answer?;
        let Answer::Words(idle, is_ready) = answer else { unreachable!("{answer:?}") };
        let idle = if self.has(Bug::KeepAbandoned) { 0 } else { idle };
        let is_ready = is_ready || (self.has(Bug::UseUnready) && self.pinned == Some(addr));
        let (last_use_ms, idle_ms) = (0, 1000 * u64::from(idle));
        Ok(Words { last_use_ms, idle_ms, ready: is_ready.then_some(0) })
    }

    fn set_used(&mut self, addr: GlobalAddr) -> Result<(), Failure> {
        self.done("store the last use", |world, by| world.set_used(addr, by))
    }

    fn set_ready(&mut self, replica: &Replica<ModelMemory<'a>>) -> Result<(), Failure> {
        self.done("ready", |world, by| world.set_ready(replica.addr, by))
    }

    fn fill(
        &mut self,
        replica: &mut Replica<ModelMemory<'a>>,
        object: &PlacedHead,
        source: Option<RackId>,
    ) -> Result<(), Failure> {
        let mut transfer = ModelTransfer::new(self, replica.addr, object);
        if let Some(rack) = source {
            transfer.open(rack)?;
        }
        let is_right = chain::bring(&mut transfer);
        self.skips_link = self.has(Bug::CopyWithoutSearch);
        if is_right? { Ok(()) } else { Err(Failure::Damaged) }
    }

    fn save(
        &mut self,
        pin: ModelPin<'a>,
        object: &PlacedHead,
    ) -> Result<Option<Saved<ModelFile<'a>>>, Failure> {
        self.save_to_file(&pin, object).map(Some)
    }

    fn replace_by_stub(&mut self, object: &PlacedHead, file: FileNumber) -> Result<bool, Failure> {
        self.publish_stub(object, file)
    }

    fn load(&mut self, stub: &PlacedHead) -> Result<Option<Loaded<Self>>, Failure> {
        self.load_from_file(stub)
    }

    fn replace_by_copy(
        &mut self,
        found: &PlacedHead,
        copy: &mut Replica<ModelMemory<'a>>,
    ) -> Result<bool, Failure> {
        self.publish_copy(found, &mut copy.memory)
    }

    /// Nobody restores it: a get of its rack is another call.
    fn ask_to_restore(&mut self, stub: &PlacedHead) -> Result<(), Failure> {
        let is_waiting = self.flag("ask for the object", |world, _| {
            world.find(Source::Objects, 0).is_some_and(|entry| entry.placed() == *stub)
        })?;
        if is_waiting { Err(Failure::Spilled) } else { Ok(()) }
    }

    fn file_of(&mut self, found: &PlacedHead) -> Result<Option<FileNumber>, Failure> {
        self.file_named_by(found)
    }

    fn lock_unused(&mut self, file: FileNumber) -> Result<Option<ModelFile<'a>>, Failure> {
        self.try_lock(file)
    }

    fn delete_file(&mut self, file: FileNumber) {
        let _ = self.done("remove the file", |world, _| world.delete_file(number(file)));
    }

    fn check_in_use(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    fn wait(&mut self, replica: &PlacedHead) -> Result<(), Failure> {
        let (rack, waits_forever) = (self.rack, self.has(Bug::WaitForKilled));
        self.skips = [false; 2];
        self.run.borrow_mut().wait("wait for a replica", |world| {
            let found = world.find(Source::Replicas, rack).map(|entry| entry.placed());
            let (idle, is_ready) = world.words(replica.place.addr);
            found != Some(*replica) || is_ready || (idle > 1 && !waits_forever)
        })
    }
}
