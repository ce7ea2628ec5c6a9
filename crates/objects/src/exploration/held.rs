//! What a program holds: a drop is a step of it.

use std::cell::RefCell;

use rackpool_client::GlobalAddr;

use super::run::{Answer, Run};
use super::world::{World, addr_of};
use crate::protocol::Source;

/// Memory of a program, which it frees.
#[derive(Debug)]
pub(super) struct ModelMemory<'a> {
    pub(super) run: &'a RefCell<Run>,
    pub(super) rack: usize,
    pub(super) cell: usize,
    pub(super) is_owned: bool,
}

#[derive(Debug)]
pub(super) struct ModelPin<'a> {
    pub(super) run: &'a RefCell<Run>,
    pub(super) addr: GlobalAddr,
    /// The bytes of the object, if its program has a view of it.
    pub(super) bytes: Option<u64>,
    /// Whether its program has a bug and did not pin.
    pub(super) is_left_out: bool,
}

/// A file that a program has locked.
#[derive(Debug)]
pub(super) struct ModelFile<'a> {
    pub(super) run: &'a RefCell<Run>,
    pub(super) number: usize,
    /// Whether its program has a bug and did not lock it.
    pub(super) is_left_out: bool,
}

impl Drop for ModelFile<'_> {
    fn drop(&mut self) {
        if self.is_left_out {
            return;
        }
        let number = self.number;
        let _ = self.run.borrow_mut().step("unlock the file", false, |world, by| {
            world.unlock(number, by);
            Answer::Done
        });
    }
}

impl ModelPin<'_> {
    fn unpin(&self) {
        if self.is_left_out {
            return;
        }
        let unpin = |world: &mut World, by| {
            // A view is read as long as it is pinned. Memory that was reused does not get its bytes
            // back, so it is enough to look at them in the end.
            if let Some(bytes) = self.bytes {
                world.read_pinned(self.addr, bytes, by);
            }
            world.unpin(self.addr, by);
            Answer::Done
        };
        // A drop has no result; a program that is stopped here is stopped at its next step too.
        let _ = self.run.borrow_mut().step("unpin", false, unpin);
    }
}

impl Drop for ModelPin<'_> {
    fn drop(&mut self) {
        self.unpin();
    }
}

impl Drop for ModelMemory<'_> {
    fn drop(&mut self) {
        let mut run = self.run.borrow_mut();
        let (cell, rack, early) = (self.cell, self.rack, run.early.take());
        let place = addr_of(cell);
        let _ = match early {
            Some(true) => run.step("remove the replica", false, |world, by| {
                let own = world.find(Source::Replicas, rack).map(|entry| entry.placed().place);
                if let Some(own) = own.filter(|own| own.addr == place) {
                    world.remove(Source::Replicas, rack, &own, by);
                }
                Answer::Done
            }),
            None if self.is_owned => run.step("free", false, |world, by| {
                world.free(cell, by);
                Answer::Done
            }),
            _ => Ok(Answer::Done),
        };
    }
}
