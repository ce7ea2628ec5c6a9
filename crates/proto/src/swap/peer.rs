use alloc::collections::{BTreeMap, VecDeque};

use rackpool_model::{Incarnation, PageId, RackId};
use rackpool_wire::swap::{Between, FromServer, SwapId, SwapMessage, ToServer};

use super::in_flight::{Finish, Leaving, Stage, Step, UnderWay};
use super::{
    Frames, PeerAction, PeerEvent, Phase, Quiesce, RECORD_WORDS, RECORDS, Record, Role, SwapEvent,
    SwapRules,
};
use crate::Time;
use crate::planted_bugs::{Bug, Bugs, Sound};

/// The number of finished swaps that are remembered. While a record is damaged, any other unknown
/// swap may be that of the damaged record.
const REMEMBERED: usize = 64;

#[derive(Clone, Copy, Debug)]
pub(super) struct SwapRequest {
    pub(super) offered: PageId,
    pub(super) nonce: u64,
    pub(super) milli: u64,
    pub(super) read_hot: bool,
    pub(super) send_again: Time,
    pub(super) until: Time,
}

/// The machine of a rack for all of its swaps, as requester and as home.
#[derive(Debug)]
pub struct SwapPeer<B = Sound> {
    pub(super) now: Time,
    pub(super) rules: SwapRules,
    pub(super) bugs: B,
    /// The next nonce or ticket; unique across incarnations.
    next_number: u64,
    pub(super) requests: BTreeMap<PageId, SwapRequest>,
    pub(super) paused: BTreeMap<PageId, Time>,
    /// The swap of each record: the first half as requester, the second as home.
    pub(super) slots: [Option<UnderWay>; RECORDS],
    damaged: [bool; RECORDS],
    /// The last finished swaps of this incarnation.
    over: VecDeque<SwapId>,
    pub(super) actions: VecDeque<PeerAction>,
}

impl<B: Bugs> SwapPeer<B> {
    /// Restores the machine from its records. `incarnation` must be above all nonces and tickets of
    /// earlier incarnations: it grows faster than they are drawn, like a clock in nanoseconds. The
    /// shell must pass [`PeerEvent::DeadlinePassed`] at once.
    pub fn restore(
        now: Time,
        rules: SwapRules,
        incarnation: Incarnation,
        records: &[[u64; RECORD_WORDS]; RECORDS],
        bugs: B,
    ) -> Self {
        let mut rack = Self {
            now,
            rules,
            bugs,
            next_number: incarnation.0,
            requests: BTreeMap::new(),
            paused: BTreeMap::new(),
            slots: [None; RECORDS],
            damaged: [false; RECORDS],
            over: VecDeque::new(),
            actions: VecDeque::new(),
        };
        for (slot, words) in records.iter().enumerate() {
            match Record::from_words(words) {
                Ok(None) => {}
                Ok(Some(record)) => rack.adopt(slot, record),
                Err(error) => {
                    rack.damaged[slot] = !bugs.has(Bug::ReuseDamagedRecord);
                    rack.actions.push_back(PeerAction::Record(SwapEvent::Damaged(slot, error)));
                }
            }
        }
        rack
    }

    fn adopt(&mut self, slot: usize, mut record: Record) {
        let forgets = self.bugs.has(Bug::ForgetDoubt) && record.phase == Phase::InDoubt;
        if record.phase == Phase::Open || forgets {
            record.phase = Phase::GivenUp;
            self.note(slot, &record);
        }
        let step = match record.phase {
            Phase::InDoubt => Step::InDoubt,
            _ => Step::Finish(Finish::default()),
        };
        let stage = Stage::Noted { record, step };
        self.slots[slot] = Some(UnderWay {
            lease_prefetched: true,
            restarted: true,
            ..UnderWay::new(record.swap, record.peer, stage, self.now)
        });
    }

    /// Handles an event.
    pub fn handle(&mut self, now: Time, frames: &impl Frames, event: PeerEvent) {
        self.now = self.now.max(now);
        match event {
            PeerEvent::Heated { page, milli, read_hot } => {
                self.heated(frames, page, milli, read_hot);
            }
            PeerEvent::ServerSent(message) => self.server_sent(frames, message),
            PeerEvent::RackSent(rack, between) => self.rack_sent(frames, rack, between),
            PeerEvent::Quiesced(swap, who) => self.quiesced(frames, swap, who),
            PeerEvent::Copied { swap, whole } => self.copied(swap, whole),
            PeerEvent::LeasePrefetched(page) => self.lease_prefetched(page),
            PeerEvent::WriteWanted(page) => self.write_wanted(frames, page),
            PeerEvent::DirtyLinesReceived { from, swap, theirs, known } => {
                self.dirty_lines_received(frames, from, swap, theirs, known);
            }
            PeerEvent::DeadlinePassed => {}
        }
        self.drive(frames);
    }

    /// Returns the next action.
    pub fn poll(&mut self) -> Option<PeerAction> {
        self.actions.pop_front()
    }

    /// Returns the time when [`PeerEvent::DeadlinePassed`] is due.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        let swaps = self.slots.iter().flatten().filter_map(|swap| match swap.stage {
            Stage::Noted { step: Step::InDoubt, .. } => Some(swap.send_again),
            Stage::Noted { record, step: Step::Finish(finish) } => match finish {
                Finish { out: Leaving::Unknown, .. } => Some(swap.leaves_at()),
                Finish { settled: false, .. } if record.phase == Phase::Committed => {
                    (!swap.lost).then_some(swap.send_again)
                }
                _ => None,
            },
            _ => Some(swap.deadline.min(swap.send_again)),
        });
        let notes = self.slots.iter().flatten().filter_map(UnderWay::asks_to_note_at);
        let swaps = swaps.chain(notes);
        let wants = self.requests.values().map(|want| want.until.min(want.send_again));
        swaps.chain(wants).min()
    }

    /// Returns the number of requested pages whose swap has not begun.
    #[must_use]
    pub fn wants(&self) -> usize {
        self.requests.len()
    }

    /// Returns the number of swaps under way.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.slots.iter().flatten().count()
    }

    fn server_sent(&mut self, frames: &impl Frames, message: FromServer) {
        match message {
            FromServer::Granted { swap, nonce, home } => self.begun(frames, swap, nonce, home),
            FromServer::Refused { nonce, reason } => self.request_refused(nonce, reason),
            FromServer::Decision { swap, committed } => {
                let Some(slot) = self.slot_of(swap) else { return };
                let Some(under_way) = self.slots[slot] else { return };
                if under_way.is_in_doubt() {
                    if committed {
                        self.tell_peer(slot, SwapMessage::Committed);
                    }
                    self.decided(slot, if committed { Phase::Committed } else { Phase::GivenUp });
                } else if !committed {
                    self.give_up(slot);
                }
            }
        }
    }

    fn rack_sent(&mut self, frames: &impl Frames, rack: RackId, between: Between) {
        let Between { swap, message } = between;
        match message {
            SwapMessage::Prepare { .. } => return self.offered(frames, rack, between),
            SwapMessage::IsQuiesced => return self.asked_whether_quiesced(rack, swap),
            SwapMessage::Quiesced => return self.peer_left(rack, swap),
            _ => {}
        }
        let Some(slot) = self
            .slot_of(swap)
            .filter(|slot| self.slots[*slot].is_some_and(|under_way| under_way.peer == rack))
        else {
            // Never in answer to `Aborted`, or two racks would answer each other for ever; and not
            // about a swap that is over.
            if !matches!(
                message,
                SwapMessage::Aborted | SwapMessage::Committed | SwapMessage::DirtyLinesApplied
            ) {
                self.tell(rack, swap, SwapMessage::Aborted);
            }
            return;
        };
        match message {
            SwapMessage::Aborted => self.peer_gave_up(slot),
            SwapMessage::Copy { ticket, frame, stale } => {
                self.peer_asks_to_copy(slot, ticket, frame, stale)
            }
            SwapMessage::Prepared { ticket, frame, epoch, stale } => {
                self.ready(frames, slot, ticket, frame, epoch, stale);
            }
            SwapMessage::Copied => self.peer_copied(slot),
            SwapMessage::Committed => self.peer_heard(slot),
            SwapMessage::DirtyLinesApplied => self.peer_applied(slot),
            SwapMessage::CopyIncomplete => self.copy_is_incomplete(slot),
            SwapMessage::IncompleteNoted => self.incomplete_is_noted(frames, slot),
            SwapMessage::Refused(reason) => self.prepare_refused(slot, reason),
            SwapMessage::Prepare { .. } | SwapMessage::IsQuiesced | SwapMessage::Quiesced => {}
        }
    }

    /// The peer knows that the swap is committed: it says so, or acts on it.
    pub(super) fn peer_heard(&mut self, slot: usize) {
        if self.slots[slot].is_some_and(|under_way| under_way.is_in_doubt()) {
            self.decided(slot, Phase::Committed);
        }
    }

    fn peer_gave_up(&mut self, slot: usize) {
        let now = self.now;
        match &mut self.slots[slot] {
            // The home asks for the outcome at once. A requester that repeats `Commit` must not:
            // that would end the swap.
            Some(one) if one.is_in_doubt() && one.role() == Role::Home => {
                (one.deadline, one.send_again) = (now, now);
            }
            _ => self.give_up(slot),
        }
    }

    fn quiesced(&mut self, frames: &impl Frames, swap: SwapId, who: Quiesce) {
        let Some(slot) = self.slot_of(swap) else { return };
        let Some(UnderWay { stage: Stage::Noted { record, step }, .. }) = &mut self.slots[slot]
        else {
            return;
        };
        match (step, who) {
            (Step::Prepare(prepared), Quiesce::Writers) => {
                prepared.quiesced = true;
                match record.role {
                    Role::Requester => self.send_copy(frames, slot),
                    Role::Home => self.send_prepared(frames, slot),
                }
            }
            (Step::Finish(_), Quiesce::DirtyLoggers) => self.closed(slot),
            (Step::Finish(_), _) => self.left_by(frames, slot, who),
            _ => {}
        }
    }

    fn copied(&mut self, swap: SwapId, whole: bool) {
        let Some(slot) = self.slot_of(swap) else { return };
        let Some(under_way) = &mut self.slots[slot] else { return };
        under_way.copying = false;
        let role = under_way.role();
        let Stage::Noted { step: Step::Prepare(prepared), .. } = &mut under_way.stage else {
            // This was the second copy, after the commit. If it failed, the old home repeats that
            // the lines are not known.
            under_way.caught_up |= whole;
            return;
        };
        match role {
            Role::Requester if !whole => self.give_up(slot),
            Role::Requester => {
                prepared.copied = true;
                self.commit_when_copied(slot);
            }
            // A failed copy is repeated when the requester repeats `Copy`.
            Role::Home if whole => self.copied_here(slot),
            Role::Home => {}
        }
    }

    /// Executes what is due, and advances decided swaps.
    fn drive(&mut self, frames: &impl Frames) {
        self.drive_requests();
        for slot in 0..RECORDS {
            let Some(under_way) = self.slots[slot] else { continue };
            if !under_way.is_finishing()
                && !under_way.is_in_doubt()
                && self.now >= under_way.deadline
            {
                self.give_up(slot);
            } else if under_way.is_in_doubt()
                && self.now >= under_way.deadline
                && under_way.role() == Role::Requester
                && self.bugs.has(Bug::ThawInDoubt)
            {
                self.decided(slot, Phase::GivenUp);
            } else if !under_way.is_finishing() && self.now >= under_way.send_again {
                self.send_again(frames, slot);
            }
            self.ask_to_note_again(slot);
            self.finish(frames, slot);
        }
    }

    fn send_again(&mut self, frames: &impl Frames, slot: usize) {
        let Some(under_way) = &mut self.slots[slot] else { return };
        under_way.send_again = self.now.after(self.rules.retry);
        let UnderWay { id: swap, deadline, .. } = *under_way;
        let asks = self.now >= deadline;
        match under_way.stage {
            Stage::Noted { record, step: Step::InDoubt } => match record.role {
                _ if asks => {
                    let page = record.incoming.page;
                    self.actions
                        .push_back(PeerAction::TellServer(ToServer::Outcome { swap, page }));
                }
                Role::Requester => self.send_commit(slot),
                // The metadata server sends the decision to both sides. The home asks only past its
                // deadline.
                Role::Home => {}
            },
            Stage::Noted { record, .. } if record.role == Role::Home => {}
            _ => self.ask_again(frames, slot),
        }
    }

    /// Returns true if the deadline of an open swap has passed. Callers check it before they store
    /// words, since later steps expect the words as they are.
    pub(super) fn is_due(&self, slot: usize) -> bool {
        self.slots[slot].is_some_and(|under_way| self.now >= under_way.deadline)
    }

    /// Aborts a swap if it is still open.
    pub(super) fn give_up(&mut self, slot: usize) {
        let Some(under_way) = &self.slots[slot] else { return };
        if under_way.is_in_doubt() || under_way.is_finishing() {
            return;
        }
        let (swap, role) = (under_way.id, under_way.role());
        self.tell_peer(slot, SwapMessage::Aborted);
        if role == Role::Requester {
            self.actions.push_back(PeerAction::TellServer(ToServer::Abort { swap }));
        }
        self.decided(slot, Phase::GivenUp);
    }

    fn decided(&mut self, slot: usize, phase: Phase) {
        let Some(under_way) = &mut self.slots[slot] else { return };
        let swap = under_way.id;
        if phase == Phase::GivenUp {
            self.actions.push_back(PeerAction::Record(SwapEvent::Aborted(swap)));
        }
        let until = self.now.after(self.rules.pause);
        match &mut under_way.stage {
            Stage::Offering(offering) => {
                self.paused.insert(offering.wanted, until);
                self.slots[slot] = None;
            }
            Stage::Noted { record, step } => {
                record.phase = phase;
                *step = Step::Finish(Finish::default());
                let again = self.now.after(self.rules.retry);
                (under_way.send_again, under_way.deadline) = (again, again);
                let record = *record;
                if record.role == Role::Requester && phase == Phase::GivenUp {
                    self.paused.insert(record.incoming.page, until);
                }
                self.note(slot, &record);
                self.actions.push_back(PeerAction::CancelQuiesce(swap, record.out.page));
            }
        }
    }

    pub(super) fn note(&mut self, slot: usize, record: &Record) {
        self.actions.push_back(PeerAction::StoreRecord { slot, words: record.to_words() });
    }

    /// Stores the record as in doubt: from here on only the metadata server decides.
    pub(super) fn enter_doubt(&mut self, slot: usize, mut record: Record) {
        record.phase = Phase::InDoubt;
        self.note(slot, &record);
        if let Some(under_way) = &mut self.slots[slot] {
            under_way.stage = Stage::Noted { record, step: Step::InDoubt };
            under_way.send_again = self.now.after(self.rules.retry);
        }
    }

    /// Requests a lease at the new home of the page that goes, for this rack's readers after the
    /// commit.
    pub(super) fn prefetch_lease(&mut self, record: &Record) {
        if record.out_frame.is_some() {
            let (page, to) = (record.out.page, record.peer);
            self.actions.push_back(PeerAction::PrefetchLease { page, to });
        }
    }

    pub(super) fn slot_of(&self, swap: SwapId) -> Option<usize> {
        self.slots.iter().position(|slot| slot.is_some_and(|under_way| under_way.id == swap))
    }

    /// Returns a free record for a swap of this role.
    pub(super) fn empty_slot(&self, role: Role) -> Option<usize> {
        let half = RECORDS / 2;
        let mut slots = if role == Role::Requester { 0..half } else { half..RECORDS };
        slots.find(|slot| self.slots[*slot].is_none() && !self.damaged[*slot])
    }

    /// Drops a finished swap and erases its record.
    pub(super) fn forget(&mut self, slot: usize) {
        let Some(under_way) = self.slots[slot].take() else { return };
        self.actions.push_back(PeerAction::EraseRecord { slot });
        if self.over.len() == REMEMBERED {
            self.over.pop_front();
        }
        self.over.push_back(under_way.id);
    }

    /// Returns true if no record, damaged ones included, can be that of this swap, which is not
    /// under way.
    pub(super) fn has_no_record_of(&self, swap: SwapId) -> bool {
        !self.damaged.contains(&true) || self.over.contains(&swap)
    }

    pub(super) fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    pub(super) fn tell_peer(&mut self, slot: usize, message: SwapMessage) {
        if let Some(UnderWay { id, peer, .. }) = self.slots[slot] {
            self.tell(peer, id, message);
        }
    }

    pub(super) fn tell(&mut self, rack: RackId, swap: SwapId, message: SwapMessage) {
        self.actions.push_back(PeerAction::TellRack(rack, Between { swap, message }));
    }
}
