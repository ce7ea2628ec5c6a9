use rackpool_client::{GlobalAddr, RackId};

use super::model::Model;
use super::planted::Bug;
use super::run::{Answer, Failure};
use super::world::{PIECES, World};
use crate::chain::Transfer;
use crate::protocol::Source;
use crate::store::PlacedHead;

/// A transfer into a replica of the model.
#[derive(Debug)]
pub(super) struct ModelTransfer<'m, 'a> {
    model: &'m mut Model<'a>,
    into: GlobalAddr,
    object: PlacedHead,
    /// The rack of the source, and its replica.
    source: Option<(usize, PlacedHead)>,
    brought: Vec<u64>,
    has_followed: bool,
}

impl<'m, 'a> ModelTransfer<'m, 'a> {
    pub(super) const fn new(
        model: &'m mut Model<'a>,
        into: GlobalAddr,
        object: &PlacedHead,
    ) -> Self {
        let brought = Vec::new();
        Self { model, into, object: *object, source: None, brought, has_followed: false }
    }

    /// Searches the replica of a rack.
    pub(super) fn open(&mut self, rack: RackId) -> Result<(), Failure> {
        let rack = usize::from(rack.0);
        let search = |world: &mut World, _| Answer::Entry(world.find(Source::Replicas, rack));
        let answer = self.model.step("search the replicas of the source", search)?;
        let Answer::Entry(found) = answer else { unreachable!("{answer:?}") };
        let is_its = |found: &PlacedHead| found.head.checksum == self.object.head.checksum;
        let found = found.map(|entry| entry.placed()).filter(is_its);
        self.source = found.map(|found| (rack, found));
        Ok(())
    }

    /// Counts the first `pieces` pieces. Nobody looks at the count of an object that is brought
    /// without a chain.
    fn count(&mut self, pieces: usize) -> Result<(), Failure> {
        if !self.model.run.borrow().world.has_chains {
            return Ok(());
        }
        let into = self.into;
        self.model.done("count a piece", |world, by| world.count(into, pieces, by))
    }

    /// Brings the next piece of a head. Returns false if its page is gone.
    fn bring_piece(&mut self, from: GlobalAddr) -> Result<bool, Failure> {
        let (into, piece) = (self.into, self.brought.len());
        let is_early = self.model.has(Bug::CountBeforeBytes);
        if is_early {
            self.count(piece + 1)?;
        }
        let name = ["read the first piece", "read the last piece"][piece];
        // A piece is read and written in one step: no step of another program concerns both.
        let answer = self.model.run.borrow_mut().step(name, false, |world, by| {
            if world.is_gone(from) {
                return Answer::Gone;
            }
            let bytes = world.read(from, piece);
            world.fill(into, piece, bytes, by);
            Answer::Bytes(bytes)
        })?;
        let Answer::Bytes(bytes) = answer else { return Ok(false) };
        self.brought.push(bytes);
        if !is_early {
            self.count(piece + 1)?;
        }
        Ok(true)
    }
}

impl Transfer for ModelTransfer<'_, '_> {
    type Error = Failure;

    /// A program that finds no new piece leaves the source at once. One that waits does the same as
    /// one that looks later, until it leaves.
    fn follow(&mut self) -> Result<bool, Failure> {
        let Some((rack, replica)) = self.source else { return Ok(false) };
        let done = self.brought.len();
        if done == PIECES {
            return Ok(false);
        }
        if self.model.has(Bug::WaitForSource) {
            self.model.run.borrow_mut().wait("wait for the source", |world| {
                world.counted(rack, &replica).is_none_or(|pieces| pieces > done)
            })?;
        }
        let look = |world: &mut World, _| Answer::Pieces(world.counted(rack, &replica));
        let answer = self.model.step("look at the source", look)?;
        let is_there = matches!(answer, Answer::Pieces(Some(pieces)) if pieces > done);
        if !is_there || !self.bring_piece(replica.place.addr)? {
            self.source = None;
            return Ok(false);
        }
        self.has_followed = true;
        Ok(true)
    }

    fn has_followed(&self) -> bool {
        self.has_followed && !self.model.has(Bug::TrustReplica)
    }

    fn finish(&mut self) -> Result<(), Failure> {
        while self.brought.len() < PIECES {
            if !self.bring_piece(self.object.place.addr)? {
                return Err(Failure::Gone);
            }
        }
        Ok(())
    }

    fn is_right(&self) -> bool {
        self.brought == [self.object.head.checksum; PIECES] || self.model.has(Bug::IgnoreChecksum)
    }

    fn restart(&mut self) -> Result<(), Failure> {
        (self.source, self.has_followed) = (None, false);
        self.brought.clear();
        self.count(0)
    }
}
