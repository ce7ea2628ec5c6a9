use rackpool_fabric::{EndpointId, FabricError};

use super::RpcMachine;
use super::peer::{Due, ExposedBlock, Purpose, Role};
use crate::{CallEvent, CallId, Failure, Overdue};

/// Deadlines, and the end of endpoints.
impl RpcMachine {
    /// Handles the deadlines that have passed.
    pub(super) fn expire(&mut self) {
        while let Some((at, due)) = self.deadlines.first().copied()
            && at <= self.now
        {
            self.deadlines.remove(&(at, due));
            match due {
                Due::Call(call) => self.overdue(call),
                Due::ExposedBlock(ask) => {
                    let why = "it does not give back what it was exposed to read";
                    self.cut_off(ask.endpoint, why.into());
                }
                Due::Measure(endpoint) => self.calibrate(endpoint),
            }
        }
    }

    fn overdue(&mut self, call: CallId) {
        let Some(peer) = self.peers.get_mut(&call.endpoint) else { return };
        let Some(open) = peer.calls.get_mut(call.number) else { return };
        match (open.purpose, open.overdue) {
            (Purpose::Owner, Overdue::CutOff) => {
                self.cut_off(call.endpoint, "it does not answer in time".into());
            }
            (Purpose::Owner, Overdue::GiveUp) => {
                self.cancel(call);
                self.tell(CallEvent::Failed { call, failure: Failure::DeadlinePassed });
            }
            (Purpose::Probe, _) => {
                self.cancel(call);
                self.calibrated(call.endpoint);
            }
            (Purpose::GivenUp, _) => {}
        }
    }

    /// Ends everything that is open on an endpoint that has ended.
    pub(super) fn ended(&mut self, endpoint: EndpointId, error: &FabricError) {
        let Some(peer) = self.peers.get_mut(&endpoint) else { return };
        peer.is_ending = true;
        peer.calibration = None;
        // Prevents blocks freed below from going to requests that end too.
        self.starved.retain(|call| call.endpoint != endpoint);
        let calls: Vec<u64> = peer.calls.iter().map(|(number, _)| number).collect();
        let works: Vec<u64> = self
            .works
            .iter()
            .filter(|(_, work)| work.endpoint == endpoint)
            .map(|(id, _)| id)
            .collect();
        for id in works {
            match self.works.remove(id).map(|work| work.role) {
                Some(Role::Transfer { id }) => {
                    let result = Err(error.clone());
                    self.tell(CallEvent::Transferred { endpoint, id, result });
                }
                Some(Role::Write { block: Some(block) }) => self.give_back(block),
                _ => {}
            }
        }
        for number in calls {
            self.fail(CallId { endpoint, number }, Failure::Disconnected(error.clone()));
        }
        let Some(peer) = self.peers.remove(&endpoint) else { return };
        if let Some(at) = peer.again {
            self.deadlines.remove(&(at, Due::Measure(endpoint)));
        }
        self.ready.retain(|ready| *ready != endpoint);
        self.reads.give_back(peer.flow.reads());
        self.stop_waiting(endpoint);
        self.windows.ended(endpoint);
        self.tell_windows();
        self.queue_waiting();
        for (number, ask) in peer.asks {
            if let Some(ExposedBlock { block, until }) = ask.exposed {
                self.deadlines
                    .remove(&(until, Due::ExposedBlock(crate::RequestId { endpoint, number })));
                block.into_iter().for_each(|block| self.give_back(block));
            }
        }
        self.feed_starved();
    }
}
