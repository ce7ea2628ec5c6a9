use rackpool_fabric::{
    DisconnectReason, Event, FabricError, MAX_MESSAGE, Operation, Transfer, WorkRequest,
};

use super::{Endpoint, PostedWork, QUEUE_DEPTH, Work};
use crate::error::local;
use crate::intake::SMALL;
use crate::link::Staged;
use crate::regions::Regions;
use crate::verbs::{Action, Remote, Request, Slice};

/// One in this number of requests is signalled by its number alone.
const SIGNAL_EVERY: u64 = 32;
/// Limit of events that wait for the owner; above it, a sender without room does not process
/// completions in search of credits.
const MAX_WAITING: usize = 256;

/// Requests of the fabric's owner.
impl Endpoint {
    /// Queues a list of requests: all of them, or none if it returns an error.
    pub(crate) fn post(
        &mut self,
        list: &[WorkRequest],
        regions: &mut Regions,
    ) -> Result<(), FabricError> {
        self.check_open()?;
        if list.len() > QUEUE_DEPTH {
            return Err(FabricError::ListTooLong { len: list.len(), max: QUEUE_DEPTH });
        }
        if self.operations + list.len() > QUEUE_DEPTH {
            return Err(FabricError::QueueFull { in_flight: self.operations, asked: list.len() });
        }
        for request in list {
            self.check(request.operation.transfer(), regions)?;
        }
        for &WorkRequest { id, operation } in list {
            regions.begin(operation.transfer().local);
            self.queue.push_back(Work::Transfer { id, operation, done: 0 });
        }
        self.operations += list.len();
        Ok(())
    }

    /// Queues a message behind everything posted before it. Its bytes are copied to registered
    /// memory.
    pub(crate) fn send(
        &mut self,
        message: &[u8],
        regions: &mut Regions,
        events: &mut Vec<Event>,
    ) -> Result<(), FabricError> {
        self.check_open()?;
        let len = message.len();
        if len == 0 || len > MAX_MESSAGE {
            return Err(FabricError::MessageSize { len, max: MAX_MESSAGE });
        }
        let is_large = len > SMALL;
        // A completion may bring credits.
        while !self.credits.has_room(is_large) && events.len() < MAX_WAITING {
            match self.advance(regions, events) {
                Ok(0) => break,
                Ok(_) => {}
                Err(reason) => {
                    let error = reason.error();
                    self.failure = Some(reason);
                    return Err(error);
                }
            }
        }
        if !self.credits.has_room(is_large) {
            self.wanted_room = Some(is_large);
            return Err(FabricError::RingFull);
        }
        self.wanted_room = None;
        let Some(link) = &self.link else { return Err(FabricError::Closed) };
        let staged = Staged { place: self.credits.send(is_large), len };
        link.stage(staged, message);
        self.queue.push_back(Work::Message(staged));
        Ok(())
    }

    /// Posts queued work with one doorbell. An error ends the endpoint at the next poll.
    pub(crate) fn flush(&mut self, regions: &Regions) {
        if self.check_open().is_ok()
            && let Err(error) = self.post_queued(regions)
        {
            self.failure = Some(DisconnectReason::Failed(error));
        }
    }

    fn check(&self, transfer: &Transfer, regions: &Regions) -> Result<(), FabricError> {
        if transfer.len == 0 {
            return Err(FabricError::Empty);
        }
        regions.check(transfer.local, transfer.local_offset, transfer.len)?;
        match &self.link {
            Some(link) => link.offer.at(transfer).map(|_| ()),
            None => Err(FabricError::Closed),
        }
    }

    /// Posts as much queued work as the send queue has room for, with one doorbell.
    pub(super) fn post_queued(&mut self, regions: &Regions) -> Result<(), FabricError> {
        let Some(link) = &mut self.link else { return Ok(()) };
        if self.queue.is_empty() || self.posted.len() == link.sends() {
            return Ok(());
        }
        let (sends, cut) = (link.sends(), link.cut);
        let (pair, staging, offer) = link.posting();
        let mut batch = pair.batch();
        while self.posted.len() < sends
            && let Some(work) = self.queue.front_mut()
        {
            let id = self.first_posted + self.posted.len() as u64;
            let (action, bytes, posted) = match work {
                Work::Transfer { id: owners, operation, done } => {
                    let part = cut.part(operation.transfer(), *done);
                    let bytes = regions.slice(part.local, part.local_offset, part.len)?;
                    let action = one_sided(operation, &part, offer.at(&part)?, &self.reads);
                    if let Operation::Read(_) = operation {
                        self.reads.push_back((id, part));
                    }
                    *done += part.len;
                    let is_whole = *done == operation.transfer().len;
                    let whole = PostedWork::Transfer { id: *owners, local: part.local };
                    (action, Some(bytes), if is_whole { Some(whole) } else { None })
                }
                Work::Message(staged) => {
                    let immediate = self.credits.tell();
                    let action = if staged.is_large() {
                        Action::WriteWithImmediate { to: offer.slot(*staged), immediate }
                    } else {
                        Action::SendWithImmediate(immediate)
                    };
                    (action, staged.slice(staging), Some(PostedWork::Other))
                }
                Work::Credit => {
                    let action = Action::SendWithImmediate(self.credits.tell());
                    (action, None::<Slice<'_>>, Some(PostedWork::Other))
                }
            };
            batch.push(Request { id, action, local: bytes, signaled: completes_by_itself(id) });
            self.posted.push_back(posted.unwrap_or(PostedWork::Other));
            if posted.is_some() {
                self.queue.pop_front();
            }
        }
        let asked = batch.post().map_err(|error| local("post to a send queue", error))?;
        self.metrics += asked;
        Ok(())
    }
}

/// Returns true if the request with this number is signalled at any position of its list, so that a
/// long list frees send queue entries before all of it is done.
const fn completes_by_itself(number: u64) -> bool {
    number % SIGNAL_EVERY == SIGNAL_EVERY - 1
}

fn one_sided<'a>(
    operation: &Operation,
    part: &Transfer,
    remote: Remote,
    reads: impl IntoIterator<Item = &'a (u64, Transfer)>,
) -> Action {
    match operation {
        Operation::Read(_) => Action::Read(remote),
        Operation::Write(_) => {
            let after_reads = reads.into_iter().any(|(_, read)| overlap(read, part));
            Action::Write { to: remote, after_reads }
        }
    }
}

/// Returns true if the write could change bytes that the earlier read has yet to fetch, or send
/// bytes that the read has yet to deliver.
fn overlap(read: &Transfer, write: &Transfer) -> bool {
    let meets = |a: u64, b: u64| a < b + u64::from(write.len) && b < a + u64::from(read.len);
    read.remote == write.remote && meets(read.remote_offset, write.remote_offset)
        || read.local == write.local && meets(read.local_offset, write.local_offset)
}

#[cfg(test)]
mod tests {
    use rackpool_fabric::{RegionId, RemoteRegion};

    use super::*;

    const WHOLE: Transfer = Transfer {
        local: RegionId(1),
        local_offset: 100,
        remote: RemoteRegion(0),
        remote_offset: 1000,
        len: 50,
    };

    fn after_reads(read: Transfer, write: Transfer) -> bool {
        let remote = Remote { address: 0, key: 0 };
        let action = one_sided(&Operation::Write(write), &write, remote, &[(0, read)]);
        matches!(action, Action::Write { after_reads: true, .. })
    }

    #[test]
    fn one_in_thirty_two_completes_by_itself() {
        let own = |number: &u64| completes_by_itself(*number);
        assert_eq!((0..130).filter(own).collect::<Vec<_>>(), [31, 63, 95, 127]);
        // In any 32 consecutive requests, at least one is signalled.
        assert!((0..64).all(|first| (first..first + 32).any(|number| own(&number))));
    }

    #[test]
    fn a_write_waits_for_the_reads_that_it_touches_and_for_no_others() {
        let elsewhere = Transfer { local: RegionId(2), remote_offset: 1050, ..WHOLE };
        assert!(!after_reads(WHOLE, elsewhere), "it begins where the read ends");
        assert!(after_reads(WHOLE, Transfer { remote_offset: 1049, ..elsewhere }));
        assert!(after_reads(WHOLE, Transfer { remote_offset: 951, ..elsewhere }));
        assert!(!after_reads(WHOLE, Transfer { remote_offset: 950, ..elsewhere }));
        let same_bytes_sent_on = Transfer { remote_offset: 9000, local_offset: 120, ..WHOLE };
        assert!(after_reads(WHOLE, same_bytes_sent_on));
        assert!(!after_reads(WHOLE, Transfer { local_offset: 150, ..same_bytes_sent_on }));
        assert!(!after_reads(WHOLE, Transfer { remote: RemoteRegion(1), ..elsewhere }));
    }
}
