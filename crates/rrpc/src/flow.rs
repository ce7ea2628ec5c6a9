use std::collections::VecDeque;

use rackpool_fabric::{EndpointId, WorkRequest};

use crate::budget::{Budget, Charge, ReadBudget, Turn};

/// The queue to one peer: one-sided requests and messages that the fabric has not accepted yet.
#[derive(Debug)]
pub(crate) struct Flow {
    to_post: VecDeque<Unposted>,
    /// The requests of the list that is being offered to the fabric.
    posting: Vec<Unposted>,
    /// An empty list, reused for the next offer.
    list: Vec<WorkRequest>,
    messages: VecDeque<Vec<u8>>,
    in_flight: usize,
    depth: usize,
    /// Bytes of this endpoint's reads in flight, taken from the budget of all endpoints.
    reads: u64,
    /// True if the next read waits for the reads of other endpoints.
    waits_for_reads: bool,
    /// The bytes that the peer lets this side write.
    window: Budget,
    /// The window that is confirmed to the peer once no more is in flight.
    unconfirmed: Option<u64>,
    /// Maximum length of the next list; reduced after the fabric had no room for a longer one.
    most: usize,
    /// The number of requests to be posted one by one, because one of them is invalid.
    one_by_one: usize,
    /// Set when the fabric refused something in this round: nothing more is offered before the
    /// next.
    waits: bool,
    /// Accepted by the fabric since the last flush: whether there was a list, and the number of
    /// messages.
    unrung_list: bool,
    unrung_messages: u64,
}

#[derive(Debug)]
struct Unposted {
    request: WorkRequest,
    charge: Charge,
    /// A message to be sent as soon as the request is posted.
    then: Option<Vec<u8>>,
}

/// The next call to the fabric.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Offer {
    /// Post a list.
    Post(Vec<WorkRequest>),
    /// Send a message.
    Send(Vec<u8>),
    /// Flush everything that was accepted, including `messages` messages.
    Flush { messages: u64 },
}

impl Flow {
    /// The queue of an endpoint whose fabric queue has this depth.
    pub(crate) fn new(depth: usize) -> Self {
        let depth = depth.max(1);
        Self {
            to_post: VecDeque::new(),
            posting: Vec::new(),
            list: Vec::new(),
            messages: VecDeque::new(),
            in_flight: 0,
            depth,
            reads: 0,
            waits_for_reads: false,
            window: Budget::new(0),
            unconfirmed: None,
            most: depth,
            one_by_one: 0,
            waits: false,
            unrung_list: false,
            unrung_messages: 0,
        }
    }

    pub(crate) fn post(&mut self, request: WorkRequest, charge: Charge, then: Option<Vec<u8>>) {
        self.to_post.push_back(Unposted { request, charge, then });
    }

    pub(crate) fn send(&mut self, message: Vec<u8>) {
        self.messages.push_back(message);
    }

    /// The number of requests that wait to be posted.
    pub(crate) fn unposted(&self) -> usize {
        self.to_post.len()
    }

    /// The number of messages that wait to be sent.
    pub(crate) fn unsent(&self) -> usize {
        self.messages.len()
    }

    /// The next offer, or a final `Flush` if anything was accepted. The caller must report the
    /// result of a list by `posted`, `post_later` or `post_refused` before the next call.
    pub(crate) fn next(&mut self, endpoint: EndpointId, reads: &mut ReadBudget) -> Option<Offer> {
        if !self.posting.is_empty() {
            return None;
        }
        self.next_to_give(endpoint, reads).or_else(|| {
            let messages = std::mem::take(&mut self.unrung_messages);
            let rings = std::mem::take(&mut self.unrung_list) || messages > 0;
            rings.then_some(Offer::Flush { messages })
        })
    }

    fn next_to_give(&mut self, endpoint: EndpointId, reads: &mut ReadBudget) -> Option<Offer> {
        self.waits_for_reads = false;
        if self.waits {
            return None;
        }
        let most = if self.one_by_one > 0 { 1 } else { self.most };
        let most = self.to_post.len().min(self.depth.saturating_sub(self.in_flight)).min(most);
        let count = (0..most).take_while(|at| self.take(*at, endpoint, reads)).count();
        if count > 0 {
            self.posting.extend(self.to_post.drain(..count));
            let mut list = std::mem::take(&mut self.list);
            list.extend(self.posting.iter().map(|item| item.request));
            return Some(Offer::Post(list));
        }
        let message = self.messages.pop_front()?;
        self.unrung_messages += 1;
        Some(Offer::Send(message))
    }

    /// Takes the bytes of a request from its budget. Returns false if they do not fit.
    fn take(&mut self, at: usize, endpoint: EndpointId, reads: &mut ReadBudget) -> bool {
        match self.to_post.get(at).map_or(Charge::None, |item| item.charge) {
            Charge::None => true,
            Charge::Read(bytes) => {
                let turn = reads.take(endpoint, self.reads, bytes);
                self.reads += if turn == Turn::Now { bytes } else { 0 };
                self.waits_for_reads = turn == Turn::Waits;
                turn == Turn::Now
            }
            // Nothing more before the peer knows that its window holds.
            Charge::Write(bytes) => self.unconfirmed.is_none() && self.window.take(bytes),
        }
    }

    /// Returns the bytes of a request to its budget.
    fn give_back(&mut self, charge: Charge, reads: &mut ReadBudget) {
        match charge {
            Charge::None => {}
            Charge::Read(bytes) => {
                self.reads = self.reads.saturating_sub(bytes);
                reads.give_back(bytes);
            }
            Charge::Write(bytes) => self.window.give_back(bytes),
        }
    }

    /// Returns true if the next read waits for the reads of other endpoints.
    pub(crate) const fn waits_for_reads(&self) -> bool {
        self.waits_for_reads
    }

    /// Returns true if nothing is in flight because the next read waits until reads have ended.
    pub(crate) const fn is_held_up(&self) -> bool {
        self.waits_for_reads && self.in_flight == 0
    }

    /// The bytes of reads in flight, which end with the endpoint.
    pub(crate) const fn reads(&self) -> u64 {
        self.reads
    }

    /// The peer lets this side write so many bytes. Returns false if the last window is not
    /// confirmed yet: the peer must wait for that.
    pub(crate) fn set_window(&mut self, bytes: u64) -> bool {
        self.window.set_limit(bytes);
        self.unconfirmed.replace(bytes).is_none()
    }

    /// The window to confirm, once it holds.
    pub(crate) fn confirm_window(&mut self) -> Option<u64> {
        if self.window.holds() { self.unconfirmed.take() } else { None }
    }

    /// The fabric has accepted the list. Returns the number of its requests.
    pub(crate) fn posted(&mut self, mut list: Vec<WorkRequest>) -> usize {
        list.clear();
        self.list = list;
        let count = self.posting.len();
        self.in_flight += count;
        self.unrung_list = true;
        self.one_by_one = self.one_by_one.saturating_sub(count);
        self.most = (self.most * 2).min(self.depth);
        self.messages.extend(self.posting.drain(..).filter_map(|item| item.then));
        count
    }

    /// The fabric has no room for the list now.
    pub(crate) fn post_later(&mut self, reads: &mut ReadBudget) {
        self.waits = true;
        self.most = (self.posting.len() / 2).max(1);
        self.put_back(reads);
    }

    fn put_back(&mut self, reads: &mut ReadBudget) {
        while let Some(item) = self.posting.pop() {
            self.give_back(item.charge, reads);
            self.to_post.push_front(item);
        }
    }

    /// The fabric rejects the list as invalid. Returns the id of the invalid request if the list
    /// had only this one; otherwise the requests are offered again one by one.
    pub(crate) fn post_refused(&mut self, reads: &mut ReadBudget) -> Option<u64> {
        if let [item] = self.posting.as_slice() {
            let (id, charge) = (item.request.id, item.charge);
            self.posting.clear();
            self.give_back(charge, reads);
            self.one_by_one = self.one_by_one.saturating_sub(1);
            return Some(id);
        }
        self.one_by_one = self.posting.len();
        self.put_back(reads);
        None
    }

    /// The fabric has no room for the message now.
    pub(crate) fn send_later(&mut self, message: Vec<u8>) {
        self.messages.push_front(message);
        self.unrung_messages -= 1;
        self.waits = true;
    }

    /// A posted request has completed.
    pub(crate) fn completed(&mut self, charge: Charge, reads: &mut ReadBudget) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.give_back(charge, reads);
    }

    /// Begins a new round. Returns true if the fabric refused something in the last one.
    pub(crate) fn new_round(&mut self) -> bool {
        std::mem::take(&mut self.waits)
    }

    /// Removes every request that is not posted and meets the condition. Returns their ids.
    pub(crate) fn withdraw(&mut self, mut which: impl FnMut(u64) -> bool) -> Vec<u64> {
        let mut taken = Vec::new();
        self.to_post.retain(|item| {
            let goes = which(item.request.id);
            if goes {
                taken.push(item.request.id);
            }
            !goes
        });
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rackpool_fabric::{Operation, RegionId, RemoteRegion, Transfer};

    fn request(id: u64) -> WorkRequest {
        let (local, remote) = (RegionId(0), RemoteRegion(0));
        let transfer = Transfer { local, local_offset: 0, remote, remote_offset: 0, len: 1 };
        WorkRequest { id, operation: Operation::Write(transfer) }
    }

    fn next(flow: &mut Flow) -> Option<Offer> {
        flow.next(EndpointId(0), &mut ReadBudget::new(0))
    }

    fn ids(offer: Option<Offer>) -> Vec<u64> {
        match offer {
            Some(Offer::Post(list)) => list.iter().map(|request| request.id).collect(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_round_is_one_list_as_far_as_there_is_room() {
        let mut flow = Flow::new(4);
        (0..6).for_each(|id| flow.post(request(id), Charge::None, None));
        assert_eq!(ids(next(&mut flow)), [0, 1, 2, 3]);
        assert_eq!(flow.posted(Vec::new()), 4);
        assert_eq!(next(&mut flow), Some(Offer::Flush { messages: 0 }));
        assert_eq!(next(&mut flow), None);
        flow.completed(Charge::None, &mut ReadBudget::new(0));
        assert_eq!(ids(next(&mut flow)), [4]);
        assert_eq!((flow.posted(Vec::new()), flow.unposted()), (1, 1));
    }

    #[test]
    fn a_message_follows_the_write_it_tells_of() {
        let mut flow = Flow::new(1);
        flow.post(request(1), Charge::None, Some(vec![1]));
        flow.post(request(2), Charge::None, Some(vec![2]));
        flow.send(vec![0]);
        assert_eq!(ids(next(&mut flow)), [1]);
        flow.posted(Vec::new());
        let sent: Vec<_> = std::iter::from_fn(|| next(&mut flow)).collect();
        let messages = 2;
        assert_eq!(sent, [Offer::Send(vec![0]), Offer::Send(vec![1]), Offer::Flush { messages }]);
        flow.completed(Charge::None, &mut ReadBudget::new(0));
        assert_eq!(ids(next(&mut flow)), [2]);
    }

    #[test]
    fn what_has_no_room_comes_again_in_the_next_round_in_its_order() {
        let mut flow = Flow::new(8);
        (0..4).for_each(|id| flow.post(request(id), Charge::None, None));
        assert_eq!(ids(next(&mut flow)), [0, 1, 2, 3]);
        flow.post_later(&mut ReadBudget::new(0));
        assert_eq!(next(&mut flow), None, "nothing was taken, so nobody is rung");
        assert!(flow.new_round());
        assert_eq!(ids(next(&mut flow)), [0, 1]);
        flow.posted(Vec::new());
        assert_eq!(ids(next(&mut flow)), [2, 3]);
        flow.posted(Vec::new());
        flow.send(vec![7]);
        flow.send(vec![8]);
        let Some(Offer::Send(first)) = next(&mut flow) else { panic!("a message") };
        flow.send_later(first);
        assert_eq!(next(&mut flow), Some(Offer::Flush { messages: 0 }), "for the lists before it");
        assert_eq!(next(&mut flow), None);
        assert!(flow.new_round() && !flow.new_round());
        let Some(Offer::Send(first)) = next(&mut flow) else { panic!("a message") };
        assert_eq!(first, [7]);
        flow.send_later(first);
        assert_eq!(next(&mut flow), None, "nothing was taken, so nobody is rung");
        assert!(flow.new_round());
        let given: Vec<_> = std::iter::from_fn(|| next(&mut flow)).collect();
        let messages = 2;
        assert_eq!(given, [Offer::Send(vec![7]), Offer::Send(vec![8]), Offer::Flush { messages }]);
    }

    #[test]
    fn only_the_bad_request_of_a_list_fails() {
        let mut flow = Flow::new(8);
        (0..3).for_each(|id| flow.post(request(id), Charge::None, None));
        assert_eq!(ids(next(&mut flow)).len(), 3);
        assert_eq!(flow.post_refused(&mut ReadBudget::new(0)), None);
        assert_eq!(ids(next(&mut flow)), [0]);
        flow.posted(Vec::new());
        assert_eq!(ids(next(&mut flow)), [1]);
        assert_eq!(flow.post_refused(&mut ReadBudget::new(0)), Some(1));
        assert_eq!(ids(next(&mut flow)), [2]);
        flow.posted(Vec::new());
        (3..5).for_each(|id| flow.post(request(id), Charge::None, None));
        assert_eq!(ids(next(&mut flow)), [3, 4], "lists again");
    }

    #[test]
    fn a_list_is_as_long_as_its_bytes_fit() {
        let (endpoint, mut reads) = (EndpointId(0), ReadBudget::new(100));
        let mut flow = Flow::new(8);
        for (id, bytes) in [(0, 30), (1, 30), (2, 30)] {
            flow.post(request(id), Charge::Read(bytes), None);
        }
        flow.send(vec![7]);
        assert_eq!(ids(flow.next(endpoint, &mut reads)), [0, 1], "its share is half");
        assert!(!flow.waits_for_reads(), "it waits for its own reads");
        flow.posted(Vec::new());
        assert_eq!(flow.next(endpoint, &mut reads), Some(Offer::Send(vec![7])), "messages pass");
        assert_eq!(flow.next(endpoint, &mut reads), Some(Offer::Flush { messages: 1 }));
        flow.completed(Charge::Read(30), &mut reads);
        assert_eq!(flow.reads(), 30);
        assert_eq!(ids(flow.next(endpoint, &mut reads)), [2]);
        flow.post_later(&mut reads);
        assert_eq!(flow.reads(), 30, "what the fabric does not take is not in flight");
        let mut other = Flow::new(8);
        other.post(request(9), Charge::Read(80), None);
        assert_eq!(other.next(EndpointId(1), &mut reads), None);
        assert!(other.waits_for_reads() && other.is_held_up());
    }

    #[test]
    fn writes_wait_for_the_peers_window() {
        let (endpoint, mut reads) = (EndpointId(0), ReadBudget::new(0));
        let mut flow = Flow::new(8);
        (0..3).for_each(|id| flow.post(request(id), Charge::Write(50), None));
        assert_eq!(flow.next(endpoint, &mut reads), None, "the peer has granted nothing");
        assert!(flow.set_window(100));
        assert_eq!(flow.next(endpoint, &mut reads), None, "not before it is confirmed");
        assert_eq!(flow.confirm_window(), Some(100));
        assert_eq!(ids(flow.next(endpoint, &mut reads)), [0, 1]);
        flow.posted(Vec::new());
        assert!(flow.set_window(60) && flow.confirm_window().is_none());
        assert!(!flow.set_window(10), "the peer has to wait for the confirmation");
        flow.completed(Charge::Write(50), &mut reads);
        flow.completed(Charge::Write(50), &mut reads);
        assert_eq!(flow.confirm_window(), Some(10));
        assert_eq!(ids(flow.next(endpoint, &mut reads)), [2], "a larger one goes alone");
    }

    #[test]
    fn requests_are_withdrawn_before_they_are_posted() {
        let mut flow = Flow::new(1);
        (0..4).for_each(|id| flow.post(request(id), Charge::None, None));
        assert_eq!(ids(next(&mut flow)), [0]);
        assert_eq!(flow.withdraw(|id| id % 2 == 1), [1, 3]);
        flow.posted(Vec::new());
        flow.completed(Charge::None, &mut ReadBudget::new(0));
        assert_eq!(ids(next(&mut flow)), [2]);
    }
}
