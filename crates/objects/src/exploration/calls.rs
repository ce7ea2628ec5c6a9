use std::cell::RefCell;

use super::model::Model;
use super::planted::Bug;
use super::run::{Failure, Run};
use super::witness::Outcome;
use super::world::World;
use crate::protocol::{self, Source, Steps};

/// What a program can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Call {
    /// Gets the object, reads it in place, and drops the view.
    Get,
    /// Puts an object into the own rack.
    Put,
    Delete,
    /// Removes what killed programs left, as a list does.
    List,
    /// Evicts the replica of the own rack.
    Evict,
    /// Moves the object to a file, if it is in this rack.
    Spill,
    /// Moves the object of another rack into this one.
    Adopt,
    /// Removes files that no entry names.
    Sweep,
    /// Uses memory of the own rack for something else.
    Scribble,
    /// Lets two seconds pass.
    Tick,
    /// The rack of the registration goes away, and comes back.
    Away,
    Back,
    /// The memory of the registration is lost with that of its rack, or that of the object.
    LoseRegistration,
    LoseObject,
    /// Removes what is left of lost entries.
    Repair,
}

impl Call {
    /// Makes the call's steps that the run allows.
    pub(super) fn execute(
        self,
        run: &RefCell<Run>,
        rack: usize,
        bug: Option<Bug>,
    ) -> Result<Outcome, Failure> {
        let mut model = Model::new(run, rack, bug);
        match self.steps(&mut model) {
            Err(Failure::Spilled) => Ok(Outcome::NotRestored),
            Err(Failure::Unreadable(_)) => Ok(Outcome::Failed { is_get: self == Self::Get }),
            made => made,
        }
    }

    fn steps(self, model: &mut Model<'_>) -> Result<Outcome, Failure> {
        Ok(match self {
            Self::Get => {
                let mut got = protocol::get(model)?;
                if let Some(got) = &mut got {
                    got.pin.bytes = Some(got.head.checksum);
                }
                Outcome::Got(got.map(|got| got.head.checksum))
            }
            Self::Put => {
                let memory = model.take_memory()?;
                Outcome::Put(model.seal(memory)?)
            }
            Self::Delete => Outcome::Deleted(protocol::delete(model)?.is_some()),
            Self::List => {
                protocol::remove_orphan(model)?;
                protocol::remove_abandoned(model)?;
                Outcome::Nothing
            }
            Self::Evict => {
                if let Some(replica) = model.find(Source::Replicas)? {
                    model.remove(Source::Replicas, &replica.place)?;
                }
                Outcome::Nothing
            }
            Self::Spill => {
                if let Some(object) = model.find(Source::Objects)?
                    && !object.head.is_spilled()
                    && model.is_local(&object)?
                {
                    protocol::spill(model, &object)?;
                }
                Outcome::Nothing
            }
            Self::Adopt => {
                if let Some(object) = model.find(Source::Objects)?
                    && !object.head.is_spilled()
                    && !model.is_local(&object)?
                {
                    protocol::adopt(model, &object)?;
                }
                Outcome::Nothing
            }
            Self::Sweep => {
                model.sweep_files()?;
                Outcome::Nothing
            }
            Self::Scribble => {
                let memory = model.take_memory()?;
                model.scribble(&memory)?;
                Outcome::Nothing
            }
            Self::Tick => {
                model.tick()?;
                Outcome::Nothing
            }
            Self::Away => model.trouble("the rack goes away", World::go_away)?,
            Self::Back => model.trouble("the rack comes back", World::come_back)?,
            Self::LoseRegistration => {
                model.trouble("the registration is lost", World::lose_registration)?
            }
            Self::LoseObject => model.trouble("the object is lost", World::lose_object)?,
            Self::Repair => {
                model.repair()?;
                Outcome::Nothing
            }
        })
    }
}
