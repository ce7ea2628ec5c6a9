use alloc::collections::BTreeMap;

use rackpool_model::{RackId, StorePosition};
use rackpool_wire::metadata::{MetadataReply, Refusal};

use super::{Action, ConnectionToken};
use crate::Time;
use crate::directory::Directory;
use crate::planted_bugs::{Bug, Bugs};
use crate::swap::{ServerEvent, SwapBatch, SwapRules, SwapServer};

/// The swaps of this boot, and the connections of their racks.
#[derive(Debug)]
pub(super) struct Swaps<B> {
    server: SwapServer<B>,
    bugs: B,
    /// The connection over which each rack registered last.
    connections: BTreeMap<RackId, ConnectionToken>,
}

impl<B: Bugs> Swaps<B> {
    /// Makes a machine without swaps. `boot` must be durable.
    pub(super) const fn new(now: Time, rules: SwapRules, boot: u32, bugs: B) -> Self {
        let server = SwapServer::new(now, rules, boot, bugs);
        Self { server, bugs, connections: BTreeMap::new() }
    }

    /// Returns the machine.
    pub(super) const fn server(&self) -> &SwapServer<B> {
        &self.server
    }

    /// Records the connection over which the rack has registered.
    pub(super) fn connect(&mut self, rack: RackId, connection: ConnectionToken) {
        if self.bugs.has(Bug::PushToFirstConnection) {
            self.connections.entry(rack).or_insert(connection);
            return;
        }
        self.connections.insert(rack, connection);
    }

    /// Checks that the rack's daemon registered over this connection.
    pub(super) fn check(&self, rack: RackId, from: ConnectionToken) -> Result<(), Refusal> {
        match self.connections.get(&rack) {
            Some(connection) if *connection == from || self.bugs.has(Bug::TakeAnyConnection) => {
                Ok(())
            }
            _ => Err(Refusal::NotMember(rack)),
        }
    }

    /// Handles an event. `settled` is the durable directory.
    pub(super) fn handle(&mut self, now: Time, settled: &Directory, event: ServerEvent) {
        self.server.handle(now, settled, event);
    }

    /// Returns the swap commits for the next batch. `ahead` is the directory with the other changes
    /// of that batch.
    pub(super) fn next_batch(&mut self, ahead: &Directory) -> Option<SwapBatch> {
        self.server.next_batch(ahead)
    }

    /// Returns the next message to a rack with a connection. `position` is the last durable commit.
    pub(super) fn poll(&mut self, position: StorePosition) -> Option<Action> {
        while let Some((rack, message)) = self.server.poll() {
            if let Some(&to) = self.connections.get(&rack) {
                return Some(Action::Push { to, reply: MetadataReply::Swap { message, position } });
            }
        }
        None
    }
}
