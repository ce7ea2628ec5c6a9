//! Words of objects, and the links to objects: how clients and the recovery of reservations access
//! them, here and in other racks.

use rackpool_model::{Borrowed, ClientId, FrameId, GlobalAddr, PageState, ReservationState};
use rackpool_proto::exchange::ClientThread;
use rackpool_proto::planted_bugs::Bugs;
use rackpool_proto::publication::{
    Decision, RecordPlace, RecoveryAction, RecoveryEvent, WordAccess, WordAnswer,
};
use rackpool_proto::rack::{LeaseAnswer, RackEvent};

use super::{OBJECTS, Objects, PAGE, object_addr};
use crate::message::Message;
use crate::rules::{EARLIER_NS, MILLI};
use crate::world::{Event, World, rack_id};

/// The bits of a link that are not the address. A client may change them while it leaves the
/// address alone, once the object's owner word is 0.
pub(crate) const TAG: u64 = 0x1fff_ffff << 32;
/// The offset of the link of a page, and of the place for a borrowed object.
const LINK: u64 = 64;
const PLACE: u64 = 72;
/// Set in tokens.
const TOKEN: u64 = 1 << 62;

/// An access of a client to a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WordUse {
    Atomic(WordAccess),
    /// Writes a word of an object that the client has reserved.
    Write(u64),
}

/// The sender of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Requester {
    Recovery(u64),
    Client { client: usize, id: ClientId },
}

/// A request for a word that is in another rack, or its answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct WordParcel {
    lives: (u64, u64),
    number: u64,
    requester: Requester,
    body: WordBody,
}

#[derive(Clone, Copy, Debug)]
enum WordBody {
    Request(GlobalAddr, WordUse),
    Answer(WordAnswer),
}

/// Returns a token that was never drawn before.
pub(crate) const fn token(number: u64) -> u64 {
    TOKEN | number
}

/// Returns true if a word is a token or its complement.
pub(crate) const fn is_token(word: u64) -> bool {
    word & TOKEN != 0 && word >> 63 == 0
}

/// Returns the object that a link points to; `None` if it holds 0 or a token.
pub(crate) fn linked(word: u64) -> Option<GlobalAddr> {
    Some(GlobalAddr::from_raw(word & !TAG))
        .filter(|addr| word != 0 && !is_token(word) && !addr.is_null())
}

/// The words of the frame that has a page.
fn cell(objects: &mut Objects, offset: u64) -> Option<&mut u64> {
    let bytes = PAGE.bytes() / OBJECTS as u64;
    let index = usize::try_from(offset / bytes).ok()?;
    let word = usize::try_from(offset % bytes / 8).ok()?;
    match word {
        8.. if index == 0 => objects.links.get_mut(word - 8),
        _ => objects.words.get_mut(index)?.get_mut(word),
    }
}

impl<B: Bugs> World<B> {
    /// Returns a word of the frame where its page can be read, or of any frame of the page.
    pub(super) fn true_word(&self, addr: GlobalAddr) -> Option<u64> {
        let page = addr.page(PAGE)?;
        let frames = || {
            let frames = self.racks.iter().flat_map(|rack| &rack.memory.frames);
            frames.filter(move |frame| frame.word.page() == page)
        };
        let writable = frames().find(|frame| frame.word.is_writable());
        let readable = || frames().find(|frame| frame.word.is_readable());
        let mut objects = writable.or_else(readable).or_else(|| frames().next())?.objects;
        cell(&mut objects, addr.offset(PAGE)).copied()
    }

    /// Accesses a word of a page of this rack.
    pub(super) fn access_word(
        &mut self,
        rack: usize,
        addr: GlobalAddr,
        usage: WordUse,
        requester: Requester,
    ) -> WordAnswer {
        let Some(page) = addr.page(PAGE) else { return WordAnswer::Invalid };
        let node = &self.racks[rack];
        let Some(found) = node.memory.find(page) else {
            let mut daemons = node.daemon.iter();
            let arrives = daemons.any(|daemon| daemon.machine.swap().is_arriving(page));
            return if arrives { WordAnswer::Busy } else { WordAnswer::NotHere };
        };
        let reads = usage == WordUse::Atomic(WordAccess::Read);
        match found.word.state() {
            Some(PageState::Live) => self.access_cell(rack, found.frame, addr, usage, requester),
            Some(PageState::Frozen | PageState::Shared) if reads => {
                self.access_cell(rack, found.frame, addr, usage, requester)
            }
            Some(PageState::Free) | None => WordAnswer::NotAllocated,
            _ => {
                if let Some(daemon) = &mut self.racks[rack].daemon {
                    daemon.machine.handle(RackEvent::WriteNeeded(page));
                }
                WordAnswer::Busy
            }
        }
    }

    fn access_cell(
        &mut self,
        rack: usize,
        frame: FrameId,
        addr: GlobalAddr,
        usage: WordUse,
        requester: Requester,
    ) -> WordAnswer {
        let objects = &mut self.racks[rack].memory.frame(frame).objects;
        let Some(cell) = cell(objects, addr.offset(PAGE)) else { return WordAnswer::Invalid };
        let before = *cell;
        match usage {
            WordUse::Atomic(WordAccess::Read) => {}
            WordUse::Atomic(WordAccess::Swap { expected, new }) if expected == before => {
                *cell = new;
                self.check_swap(addr, before, new);
            }
            WordUse::Atomic(WordAccess::Swap { .. }) => {}
            WordUse::Write(new) => {
                *cell = new;
                self.check_write(addr, requester);
            }
        }
        WordAnswer::Value(before)
    }

    /// Sends a request for a word to another rack.
    pub(super) fn ask_word(
        &mut self,
        rack: usize,
        to: usize,
        addr: GlobalAddr,
        usage: WordUse,
        requester: Requester,
    ) -> u64 {
        let number = self.objects.number();
        let life = self.racks[rack].life;
        if let Some(daemon) = &mut self.racks[rack].daemon {
            daemon.exchange.words.insert(number, (requester, to));
        }
        self.send_word(rack, to, number, requester, WordBody::Request(addr, usage));
        let wait = self.objects.rng.within(30 * MILLI..120 * MILLI);
        self.after(wait, Event::WordLost { rack, life, number });
        number
    }

    fn send_word(
        &mut self,
        from: usize,
        to: usize,
        number: u64,
        requester: Requester,
        body: WordBody,
    ) {
        let lives = (self.racks[from].life, self.racks[to].life);
        let id = self.objects.number();
        self.objects.words.insert(id, WordParcel { lives, number, requester, body });
        self.send(from, to, Message::Word(id));
    }

    pub(crate) fn word_received(&mut self, rack: usize, from: usize, id: u64) {
        let Some(parcel) = self.objects.words.remove(&id) else { return };
        let WordParcel { lives, number, requester, body } = parcel;
        if lives.1 != self.racks[rack].life {
            return;
        }
        match body {
            WordBody::Request(addr, usage) => {
                if !self.is_executed(from, lives.0, number) {
                    return;
                }
                let answer = self.access_word(rack, addr, usage, requester);
                if lives.0 == self.racks[from].life {
                    self.send_word(rack, from, number, requester, WordBody::Answer(answer));
                }
                self.run_rack(rack);
            }
            WordBody::Answer(answer) => self.word_ended(rack, from, number, answer),
        }
    }

    /// Returns true if a rack executes a request now. It does not once the sender has cut it off.
    /// Requests of an ended daemon are executed until a time after the start of the next one.
    fn is_executed(&self, from: usize, life: u64, number: u64) -> bool {
        if self.objects.cut.contains(&number) {
            return false;
        }
        let node = &self.racks[from];
        if node.life == life
            && let Some(daemon) = &node.daemon
        {
            return daemon.exchange.words.contains_key(&number);
        }
        // The clock of that rack may be slow.
        let limit = EARLIER_NS - EARLIER_NS / 50;
        let next = self.objects.starts.range((from, life + 1)..(from + 1, 0)).next();
        next.is_none_or(|(_, start)| self.now < start + limit)
    }

    /// A request for a word was not answered in time: the endpoint is cut.
    pub(crate) fn word_lost(&mut self, rack: usize, life: u64, number: u64) {
        if self.racks[rack].life == life {
            let home = self.racks[rack].daemon.as_ref();
            let home = home.and_then(|daemon| daemon.exchange.words.get(&number));
            if let Some(home) = home.map(|(_, home)| *home) {
                self.objects.cut.insert(number);
                self.word_ended(rack, home, number, WordAnswer::Unanswered);
            }
        }
    }

    fn word_ended(&mut self, rack: usize, home: usize, number: u64, answer: WordAnswer) {
        let Some(daemon) = &mut self.racks[rack].daemon else { return };
        let Some((requester, _)) = daemon.exchange.words.remove(&number) else { return };
        match requester {
            Requester::Recovery(question) => self.word_answered(rack, question, answer),
            Requester::Client { client, id } => {
                self.client_word_ended(client, id, number, rack_id(home), answer);
            }
        }
        self.report_ended_operations(rack);
    }

    fn word_answered(&mut self, rack: usize, question: u64, answer: WordAnswer) {
        let event = RecoveryEvent::WordAnswered { question, answer };
        self.feed(rack, RackEvent::Recovery(event));
    }

    /// Reports the gone clients of which no operation is under way.
    pub(super) fn report_ended_operations(&mut self, rack: usize) {
        let Some(daemon) = &self.racks[rack].daemon else { return };
        let asks = |gone: ClientId| {
            let mut words = daemon.exchange.words.values();
            words.any(
                |(requester, _)| matches!(requester, Requester::Client { id, .. } if *id == gone),
            )
        };
        let ended = daemon.machine.unsettled_clients().filter(|client| !asks(*client));
        for client in ended.collect::<Vec<_>>() {
            let event = RecoveryEvent::OperationsEnded(client);
            self.feed(rack, RackEvent::Recovery(event));
        }
    }

    /// The page is not where a client's daemon has looked for it.
    pub(super) fn word_misplaced(&mut self, rack: usize, addr: GlobalAddr, home: Option<usize>) {
        let Some(page) = addr.page(PAGE) else { return };
        if let (Some(home), Some(daemon)) = (home, &mut self.racks[rack].daemon) {
            daemon.machine.note_refusal(page, rack_id(home), LeaseAnswer::NotHere, false);
        }
        self.ask_home(rack, page, 0);
        self.run_rack(rack);
    }

    pub(crate) fn recover(&mut self, rack: usize, action: RecoveryAction) {
        match action {
            RecoveryAction::AccessWord { question, rack: home, addr, access } => {
                let (home, usage) = (usize::from(home.0), WordUse::Atomic(access));
                let requester = Requester::Recovery(question);
                if home != rack {
                    self.ask_word(rack, home, addr, usage, requester);
                    return;
                }
                let answer = self.access_word(rack, addr, usage, requester);
                if let Some(daemon) = &mut self.racks[rack].daemon {
                    let event = RecoveryEvent::WordAnswered { question, answer };
                    daemon.machine.handle(RackEvent::Recovery(event));
                }
            }
            RecoveryAction::Locate(page) => self.ask_home(rack, page, 0),
            RecoveryAction::Decide(place, decision) => self.decide(rack, place, decision),
            RecoveryAction::ReportUnknown(client) => {
                self.breaks(|| format!("nothing is known of a record of client {}", client.0));
            }
            RecoveryAction::Resolved(client) => self.forget_file(rack, client),
            RecoveryAction::Return(..) | RecoveryAction::NeedPage(_) => {}
        }
    }

    fn decide(&mut self, rack: usize, place: RecordPlace, decision: Decision) {
        let files = &mut self.racks[rack].memory.files;
        let Some(file) = files.get_mut(&place.owner.client) else { return };
        file.record[0] = match (decision, file.record[0]) {
            (Decision::Free, _) => ReservationState::FREE,
            (Decision::Held, _) => ReservationState::HELD,
            (Decision::Replaced, ReservationState::SETTLE_ARMED) => {
                ReservationState::SETTLE_REPLACED
            }
            (Decision::Replaced, _) => ReservationState::REPLACED,
        };
        self.seen.resolved += 1;
    }

    /// Checks a change of a word.
    fn check_swap(&mut self, addr: GlobalAddr, before: u64, new: u64) {
        let is_link = [LINK, PLACE].contains(&addr.offset(PAGE));
        if is_link
            && let Some(object) = linked(new)
            && !self.is_used_somewhere(object)
        {
            self.breaks(|| format!("the link {addr} points to {object}, which is free"));
        }
        // The publication of an object that compares: it counts.
        let is_owner = addr.offset(PAGE).is_multiple_of(PAGE.bytes() / OBJECTS as u64);
        if is_owner && is_token(before) && new == 0 {
            let word = |at: GlobalAddr, index: u64| {
                self.true_word(GlobalAddr::from_raw(at.raw() + 8 * index))
            };
            if let (Some(replaced), stamp) = (word(addr, 2).and_then(linked), word(addr, 3))
                && word(replaced, 1) != stamp
            {
                self.breaks(|| format!("{addr} counts, and {replaced} is another object by now"));
            }
        }
    }

    /// Checks that a client writes only objects of its record, also after its death.
    fn check_write(&mut self, addr: GlobalAddr, requester: Requester) {
        let Requester::Client { client, id } = requester else { return };
        let bytes = PAGE.bytes() / OBJECTS as u64;
        let object = addr.raw() / bytes * bytes;
        let file = self.racks[self.clients[client].rack].memory.files.get(&id);
        let has = match file.map(|file| ReservationState::decode(file.record)) {
            Some(ReservationState::Held(held)) => held == object,
            Some(ReservationState::Borrowed(borrowed)) => borrowed.object == object,
            Some(ReservationState::Armed(armed)) => armed.object == object,
            _ => false,
        };
        if !has {
            self.breaks(|| format!("a late write of client {} lands in {addr}", id.0));
        }
    }

    /// Checks that an object which is freed can't be reached.
    pub(super) fn check_unreachable(&mut self, freed: GlobalAddr) {
        for link in self.link_words() {
            let Some(object) = self.true_word(link).and_then(linked) else { continue };
            let word = |index: u64| self.true_word(GlobalAddr::from_raw(object.raw() + 8 * index));
            let is_resolved = word(0) == Some(0);
            // The words of an object that waits to be borrowed mean nothing.
            let is_place = link.offset(PAGE) == PLACE;
            let stands_for = word(2).filter(|_| !is_resolved && !is_place).and_then(linked);
            if object == freed || stands_for == Some(freed) {
                return self.breaks(|| format!("{freed} is freed, and {link} leads to it"));
            }
        }
        let files = self.racks.iter().flat_map(|rack| rack.memory.files.values());
        let mut states = files.map(|file| (file.gone, ReservationState::decode(file.record)));
        let is_held = states.any(|(gone, state)| {
            let held = match state {
                ReservationState::Held(object) if !gone => object,
                // Before the swap of the place the object may be another client's.
                ReservationState::Borrowed(Borrowed { object, token, place })
                    if !gone && self.true_word(GlobalAddr::from_raw(place)) == Some(token) =>
                {
                    object
                }
                _ => 0,
            };
            held == freed.raw()
        });
        if is_held {
            self.breaks(|| format!("{freed} is freed, and is reserved or borrowed"));
        }
    }

    /// Returns the addresses of all links and places.
    pub(super) fn link_words(&self) -> Vec<GlobalAddr> {
        let pages = self.racks.iter().filter_map(|rack| Some(rack.pages?.first));
        let at = |page, offset| object_addr(page, 0).map(|addr| addr.raw() + offset);
        let words = pages.flat_map(|page| [LINK, PLACE].map(|offset| at(page, offset)));
        words.flatten().map(GlobalAddr::from_raw).collect()
    }

    /// Checks that at rest no link holds a token, and returns the objects that links point to.
    pub(super) fn check_links(&self) -> Result<Vec<GlobalAddr>, String> {
        let mut objects = Vec::new();
        for link in self.link_words() {
            let word = self.true_word(link).unwrap_or(0);
            if is_token(word) {
                return Err(format!("{link} holds the token {word:#x} of an ended client"));
            }
            objects.extend(linked(word));
        }
        Ok(objects)
    }
}

/// Returns the record of a client's thread.
pub(crate) const fn record_place(client: ClientId) -> RecordPlace {
    RecordPlace { owner: ClientThread { client, thread: 0 }, record: 0 }
}
