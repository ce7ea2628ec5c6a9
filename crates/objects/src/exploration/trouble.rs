//! Racks that are away or have lost their memory: entries that can't be read.

use rackpool_client::RackId;

use super::model::Model;
use super::planted::Bug;
use super::run::{Answer, Failure};
use super::witness::Outcome;
use super::world::{CellState, RACKS, World};
use crate::layout::registration::Registration;
use crate::protocol::{Source, Steps, restore_registration};

/// Why an entry can't be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Trouble {
    /// Its rack is away.
    Away,
    /// Its rack has lost its memory.
    Lost,
}

/// What is wrong with the entries of the object table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Troubles {
    pub(super) registration: Option<Trouble>,
    pub(super) is_object_lost: bool,
    /// Whether there was any.
    pub(super) were_any: bool,
}

impl Troubles {
    pub(super) const fn are_any(self) -> bool {
        self.registration.is_some() || self.is_object_lost
    }
}

impl World {
    /// The rack of the registration goes away, if there is one.
    pub(super) fn go_away(&mut self) {
        if self.registration().is_some() && self.troubles.registration.is_none() {
            self.set_registration_trouble(Some(Trouble::Away));
        }
    }

    pub(super) fn come_back(&mut self) {
        if self.troubles.registration == Some(Trouble::Away) {
            self.set_registration_trouble(None);
        }
    }

    pub(super) fn lose_registration(&mut self) {
        if self.registration().is_some() {
            self.set_registration_trouble(Some(Trouble::Lost));
        }
    }

    pub(super) fn lose_object(&mut self) {
        self.troubles.is_object_lost = self.has_object();
        self.note_troubles();
    }

    fn set_registration_trouble(&mut self, trouble: Option<Trouble>) {
        self.troubles.registration = trouble;
        self.note_troubles();
    }

    /// Why a search of a table fails.
    pub(super) fn trouble_of(&self, source: Source) -> Option<Trouble> {
        (source == Source::Objects && self.troubles.is_object_lost).then_some(Trouble::Lost)
    }

    /// Stores a registration of all racks in the place of one that is lost.
    pub(super) fn replace_lost_registration(&mut self, mut new: Registration) {
        if self.troubles.registration == Some(Trouble::Lost) {
            for rack in 0..RACKS {
                new = new.with(RackId(u16::try_from(rack).unwrap()));
            }
            self.set_registration(Some(new.encode()));
            self.set_registration_trouble(None);
        }
    }

    /// Removes an object whose memory is lost.
    fn forget_object(&mut self) {
        if let Some(object) = self.object.take().filter(|object| object.file == 0) {
            self.cells[object.cell].state = CellState::Free;
        }
        self.witness();
    }

    /// Removes the entries that are lost, of those that a repair has noted.
    pub(super) fn remove_lost(&mut self, noted: Troubles) {
        if noted.registration == Some(Trouble::Lost)
            && self.troubles.registration == Some(Trouble::Lost)
        {
            self.set_registration(None);
            self.set_registration_trouble(None);
        }
        if noted.is_object_lost && self.troubles.is_object_lost {
            self.troubles.is_object_lost = false;
            self.forget_object();
        }
    }
}

impl Model<'_> {
    /// What a store does after a rack has lost its memory, for the id of the model.
    pub(super) fn repair(&mut self) -> Result<(), Failure> {
        let answer = self.step("look for lost entries", |world, _| {
            let Troubles { registration, is_object_lost, .. } = world.troubles;
            Answer::Words(u32::from(registration == Some(Trouble::Lost)), is_object_lost)
        })?;
        let Answer::Words(is_lost, is_object_lost) = answer else { unreachable!("{answer:?}") };
        let registration = (is_lost == 1).then_some(Trouble::Lost);
        let noted = Troubles { registration, is_object_lost, were_any: true };
        if !noted.are_any() {
            return Ok(());
        }
        if !self.has(Bug::RepairKeepsReplicas) {
            for rack in 0..RACKS {
                let is_absent = match self.find(Source::Objects) {
                    Ok(found) => found.is_none(),
                    Err(error) if Self::is_lost(&error) => true,
                    Err(error) => return Err(error),
                };
                if is_absent {
                    self.remove_replica_of(RackId(u16::try_from(rack).unwrap()))?;
                }
            }
        }
        if !self.has(Bug::RepairDropsRegistration) {
            restore_registration(self)?;
        }
        self.done("remove the lost entries", |world, _| world.remove_lost(noted))
    }

    pub(super) fn trouble(
        &mut self,
        name: &'static str,
        make: impl FnOnce(&mut World),
    ) -> Result<Outcome, Failure> {
        self.done(name, |world, _| make(world)).map(|()| Outcome::Nothing)
    }
}
