use rackpool_fabric::{DisconnectReason, Event, FabricError, MAX_MESSAGE};

use super::{Endpoint, PostedWork, Work};
use crate::error::{local, misbehaved};
use crate::intake::SMALL;
use crate::link::IS_RECEIVE;
use crate::regions::Regions;
use crate::verbs::{Completion, Status};

/// Progress of an open endpoint.
impl Endpoint {
    /// Processes completions, then posts the work for which there is room, flushed or not. Returns
    /// the number of completions. The error is the reason for which the endpoint has to end.
    pub(super) fn advance(
        &mut self,
        regions: &mut Regions,
        events: &mut Vec<Event>,
    ) -> Result<usize, DisconnectReason> {
        let count = self.take_completions(regions, events)?;
        if count > 0 {
            self.receive_again().map_err(DisconnectReason::Failed)?;
            if self.credits.owes() && !matches!(self.queue.front(), Some(Work::Credit)) {
                self.queue.push_front(Work::Credit);
            }
        }
        self.post_queued(regions).map_err(DisconnectReason::Failed)?;
        Ok(count)
    }

    pub(super) fn take_completions(
        &mut self,
        regions: &mut Regions,
        events: &mut Vec<Event>,
    ) -> Result<usize, DisconnectReason> {
        let Some(link) = &self.link else { return Ok(0) };
        let mut completions = std::mem::take(&mut self.completions);
        completions.clear();
        let polled = link.queue().poll(&mut completions);
        let count = polled.map_err(|error| {
            DisconnectReason::Failed(local("look at the completion queue", error))
        })?;
        let mut result = Ok(count);
        for completion in &completions {
            result = match completion.status {
                Status::Done if completion.id & IS_RECEIVE != 0 => {
                    self.received(completion, events).map_err(DisconnectReason::Failed)
                }
                Status::Done => {
                    self.metrics.completions += 1;
                    self.sent(completion.id, regions, events)
                }
                status => Err(why(status)),
            }
            .and(result);
            if result.is_err() {
                break;
            }
        }
        self.completions = completions;
        result
    }

    /// A request has completed, and with it all requests before it.
    fn sent(
        &mut self,
        id: u64,
        regions: &mut Regions,
        events: &mut Vec<Event>,
    ) -> Result<(), DisconnectReason> {
        while self.first_posted <= id {
            let Some(posted) = self.posted.pop_front() else {
                let error = local("use the completion queue", "it has what was never posted");
                return Err(DisconnectReason::Failed(error));
            };
            self.first_posted += 1;
            if let PostedWork::Transfer { id, local } = posted {
                self.operations -= 1;
                events.push(Event::Completed { endpoint: self.id, id, result: Ok(()) });
                regions.end(local, events);
            }
        }
        while self.reads.front().is_some_and(|(read, _)| *read < self.first_posted) {
            self.reads.pop_front();
        }
        Ok(())
    }

    /// Processes a receive completion: a message, or credits only.
    fn received(
        &mut self,
        completion: &Completion,
        events: &mut Vec<Event>,
    ) -> Result<(), FabricError> {
        let Some(link) = &self.link else { return Ok(()) };
        let Some(immediate) = completion.immediate else {
            return Err(misbehaved("it sent something without a number"));
        };
        self.credits.told(immediate)?;
        let buffer = usize::try_from(completion.id & !IS_RECEIVE).unwrap_or(usize::MAX);
        if buffer >= link.intake().receives() {
            return Err(local("use the completion queue", "it has what was never posted"));
        }
        self.emptied.push(buffer);
        let len = usize::try_from(completion.len).unwrap_or(usize::MAX);
        let bytes = if completion.written {
            if len <= SMALL || len > MAX_MESSAGE {
                return Err(misbehaved(format!("it wrote {len} B as a message")));
            }
            link.large(self.credits.take(true), len)
        } else {
            if len == 0 {
                return Ok(());
            }
            self.credits.take(false);
            link.small(buffer, len)
        };
        events.push(Event::Message { endpoint: self.id, bytes });
        Ok(())
    }

    fn receive_again(&mut self) -> Result<(), FabricError> {
        let Some(link) = &mut self.link else { return Ok(()) };
        link.receive_again(&self.emptied).map_err(|error| local("post a receive", error))?;
        self.emptied.clear();
        Ok(())
    }
}

/// The reason for the end of an endpoint with a failed request.
fn why(status: Status) -> DisconnectReason {
    // Numbers of `ibv_wc_status`; the other numbers have no helpful explanation.
    let cause = match status {
        Status::Done | Status::NoAnswer => return DisconnectReason::PeerGone,
        Status::Flushed => "the peer made the queue pair fail".into(),
        Status::Failed(4) => "local protection error: was the memory unmapped?".into(),
        Status::Failed(9 | 11) => "the peer can't carry out the request".into(),
        Status::Failed(10) => "the peer does not allow the access".into(),
        Status::Failed(number) => format!("work completion status {number}"),
    };
    DisconnectReason::Failed(local("go on with RDMA", cause))
}
