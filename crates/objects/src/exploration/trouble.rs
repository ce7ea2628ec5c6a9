//! Racks that are away or have lost their memory: entries that can't be read.

use super::world::{RACKS, World};
use crate::layout::registration::Registration;
use crate::protocol::Source;

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
                new = new.with(rackpool_client::RackId(u16::try_from(rack).unwrap()));
            }
            self.set_registration(Some(new.encode()));
            self.set_registration_trouble(None);
        }
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
