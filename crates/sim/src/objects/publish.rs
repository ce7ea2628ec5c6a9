//! Clients that reserve, borrow and publish objects, in the steps of the client library and of a
//! program that follows the rules of docs/design/publication.md. Each step is one access to a word,
//! or one store in the client's file; the client may die after any of them.

use rackpool_model::{ClientId, GlobalAddr, RackId, ReservationState};
use rackpool_proto::planted_bugs::Bugs;
use rackpool_proto::publication::WordAnswer;

use super::PAGE;
use super::publication::{
    Kind, Outcome, Publication, Stage, access, after_made, arm, made, outcome,
};
use super::words::{Requester, TAG, is_token, linked, token};
use crate::rules::{MICRO, MILLI, STORM};
use crate::world::World;

impl<B: Bugs> World<B> {
    /// Returns true if the client is in a publication.
    pub(super) fn is_publishing(&self, client: usize) -> bool {
        self.objects.publications[client].is_some()
    }

    /// Returns the time until a client's next step. Before a swap that compares it is often long:
    /// the link may change, and point to other contents of the same memory.
    pub(super) fn publishing_pause(&mut self, client: usize) -> u64 {
        let one = &self.objects.publications[client];
        let compares = one.is_some_and(|one| one.compares() && one.stage == Stage::Publish);
        if compares && self.objects.rng.percent(50) {
            return self.objects.rng.within(MILLI..90 * MILLI);
        }
        let longest = if self.objects.rng.percent(10) { 12 * MILLI } else { MILLI };
        self.objects.rng.within(20 * MICRO..longest)
    }

    /// Begins a publication, if the client has what it takes.
    pub(super) fn begin_publication(&mut self, client: usize) -> bool {
        let links = self.link_words();
        if links.is_empty() {
            return false;
        }
        let calm = self.now >= STORM;
        let [kind, pair] = [self.objects.rng.below(100), self.objects.rng.below(links.len() / 2)];
        let (link, place) =
            (links[2 * pair], links[2 * self.objects.rng.below(links.len() / 2) + 1]);
        let file = self.file(client);
        // A magazine is a stack: memory that was just freed is used again.
        let object = file.magazine.last().copied();
        let (kind, stage) = match kind {
            _ if calm => (Kind::Help, Stage::ReadLink),
            0..30 => (Kind::Plain, Stage::RemoveFromMagazine),
            30..55 => (Kind::Compare, Stage::RemoveFromMagazine),
            55..67 => (Kind::Give, Stage::RemoveFromMagazine),
            67..82 => (Kind::Borrow { publishes: kind < 76 }, Stage::ReadPlace),
            82..94 => (Kind::Unlink, Stage::ReadLink),
            _ => (Kind::Help, Stage::ReadLink),
        };
        let takes = stage == Stage::RemoveFromMagazine;
        if takes && object.is_none() {
            return false;
        }
        let object = object.filter(|_| takes).unwrap_or(GlobalAddr::NULL);
        if takes {
            file.record = [0; 8];
            file.record[1] = object.raw();
            file.record[0] = ReservationState::HELD;
            self.take_mark(client, object);
        }
        let number = self.objects.number();
        self.objects.publications[client] = Some(Publication {
            kind,
            stage,
            token: token(number),
            object,
            link: if kind == Kind::Give { place } else { link },
            place,
            expected: 0,
            word: object.raw() | number << TAG.trailing_zeros() & TAG,
            stamp: number,
            is_published: false,
            asked_before: false,
            waits: None,
            outcome: None,
        });
        true
    }

    /// The program has the object now.
    fn take_mark(&mut self, client: usize, object: GlobalAddr) {
        let rack = self.clients[client].rack;
        let memory = &mut self.racks[rack].memory;
        if let Some((page, index)) = super::object_at(object)
            && let Some(found) = memory.find(page)
        {
            memory.frame(found.frame).objects.marks[index] = None;
        }
    }

    /// Does a client's next step.
    pub(super) fn publication_step(&mut self, client: usize) {
        let Some(mut one) = self.objects.publications[client] else { return };
        let rack = self.clients[client].rack;
        if let Some((_, life)) = one.waits {
            if life == self.racks[rack].life && self.racks[rack].daemon.is_some() {
                return;
            }
            (one.waits, one.outcome) = (None, Some(Outcome::Orphaned));
        }
        if let Some(outcome) = one.outcome.take() {
            let next = self.after_access(client, &mut one, outcome);
            return self.go_on(client, one, next);
        }
        let Some((addr, usage)) = access(&one) else {
            let next = self.file_step(client, &mut one);
            return self.go_on(client, one, next);
        };
        let id = self.objects.clients[client].id;
        let Some(page) = addr.page(PAGE) else { return };
        if self.racks[rack].memory.find(page).is_some() {
            let answer = self.access_word(rack, addr, usage, Requester::Client { client, id });
            one.outcome = Some(outcome(answer));
            self.objects.publications[client] = Some(one);
            return self.run_rack(rack);
        }
        self.objects.publications[client] = Some(one);
        let node = &self.racks[rack];
        let Some(daemon) = node.daemon.as_ref().filter(|_| node.paused_until <= self.now) else {
            return;
        };
        let home = daemon.machine.home_of(&node.memory, page);
        match home.filter(|home| !daemon.machine.is_dead(*home)) {
            Some(home) => {
                let requester = Requester::Client { client, id };
                let number = self.ask_word(rack, usize::from(home.0), addr, usage, requester);
                one.waits = Some((number, self.racks[rack].life));
                self.objects.publications[client] = Some(one);
            }
            None => self.word_misplaced(rack, addr, None),
        }
    }

    /// Continues with a stage; without one the publication has ended, or the client ends.
    fn go_on(&mut self, client: usize, mut one: Publication, next: Option<Stage>) {
        if self.objects.publications[client].is_none() {
            return;
        }
        self.objects.publications[client] = next.map(|stage| {
            one.stage = stage;
            one
        });
    }

    pub(super) fn client_word_ended(
        &mut self,
        client: usize,
        id: ClientId,
        number: u64,
        home: RackId,
        answer: WordAnswer,
    ) {
        if self.objects.clients[client].id != id {
            return;
        }
        let Some(one) = &mut self.objects.publications[client] else { return };
        if one.waits.is_some_and(|(waits, _)| waits == number) {
            (one.waits, one.outcome) = (None, Some(outcome(answer)));
            if answer == WordAnswer::NotHere
                && let Some((addr, _)) = access(one)
            {
                let rack = self.clients[client].rack;
                self.word_misplaced(rack, addr, Some(usize::from(home.0)));
            }
        }
    }

    /// The program can't continue safely: it ends, and its daemon resolves what it has left.
    fn end_client(&mut self, client: usize) -> Option<Stage> {
        self.seen.crashes += 1;
        self.crash_object_client(client);
        None
    }

    fn after_access(
        &mut self,
        client: usize,
        one: &mut Publication,
        outcome: Outcome,
    ) -> Option<Stage> {
        let found = match (one.stage, outcome) {
            (stage, Outcome::Refused) => return Some(stage),
            (_, Outcome::Found(found)) => found,
            (Stage::Publish, Outcome::Unanswered) => return Some(Stage::LookAtLink),
            // An earlier request may still take the object out again.
            (
                Stage::Publish
                | Stage::BorrowObject
                | Stage::WriteOwner
                | Stage::WriteStamp
                | Stage::WriteReplaced
                | Stage::WriteExpectedStamp,
                Outcome::Orphaned,
            ) => return self.end_client(client),
            (stage, _) => {
                one.asked_before = true;
                return Some(stage);
            }
        };
        let asked_before = std::mem::replace(&mut one.asked_before, false);
        match one.stage {
            Stage::ReadPlace | Stage::BorrowObject => {
                self.borrowed(client, one, found, asked_before)
            }
            Stage::WriteOwner => Some(Stage::WriteStamp),
            Stage::WriteStamp => Some(Stage::ReadLink),
            Stage::ReadStamp => {
                one.stamp = found;
                Some(Stage::WriteReplaced)
            }
            Stage::WriteReplaced if one.compares() => Some(Stage::WriteExpectedStamp),
            Stage::WriteReplaced | Stage::WriteExpectedStamp => Some(Stage::Arm),
            Stage::Publish => self.swapped(client, one, found),
            // Only a made swap can be proved.
            Stage::LookAtLink if (found ^ one.word) & one.armed().mask == 0 => made(one),
            Stage::LookAtLink => self.end_client(client),
            Stage::ClearOwnOwner => Some(after_made(one)),
            Stage::ReadStampAgain => Some(Stage::ResolveOwn(found == one.stamp)),
            Stage::ResolveOwn(counts) => {
                let aborted = if found == one.token { !counts } else { found == !one.token };
                one.is_published = !aborted;
                Some(if aborted { Stage::Unlink } else { Stage::Note })
            }
            Stage::Unlink if found != one.word && (found ^ one.word) & !TAG == 0 => {
                one.word = found;
                Some(Stage::Unlink)
            }
            Stage::Unlink => self.disarm(client, one),
            Stage::Settle => Some(Stage::Note),
            Stage::PutBack => Some(Stage::ClearRecord),
            _ => self.link_read(client, one, found),
        }
    }

    /// Continues the steps that make a link ready to be changed: its object's owner word is 0.
    fn link_read(&mut self, client: usize, one: &mut Publication, found: u64) -> Option<Stage> {
        match one.stage {
            Stage::ReadLink => {
                one.expected = found;
                match linked(found) {
                    Some(_) if one.kind == Kind::Give => self.give_up(client, one),
                    Some(_) => Some(Stage::ReadOwner),
                    None if found != 0 => self.give_up(client, one),
                    None if matches!(one.kind, Kind::Unlink | Kind::Help) => None,
                    None => Some(Stage::WriteReplaced),
                }
            }
            Stage::ReadOwner if found == 0 => match one.kind {
                _ if one.expected & TAG != 0 && self.objects.rng.percent(40) => {
                    Some(Stage::RemoveTag)
                }
                Kind::Help => None,
                Kind::Unlink => Some(Stage::Arm),
                Kind::Compare => Some(Stage::ReadStamp),
                _ => Some(Stage::WriteReplaced),
            },
            Stage::ReadOwner if is_token(found) => Some(Stage::ConfirmLink(found)),
            Stage::ConfirmLink(owner) if found == one.expected => Some(Stage::ReadReplaced(owner)),
            Stage::ReadOwner if is_token(!found) => Some(Stage::ReadStandIn),
            // The object was unlinked, and has other contents.
            Stage::ReadOwner => Some(Stage::ReadLink),
            Stage::ReadReplaced(owner) => Some(match linked(found) {
                Some(replaced) => Stage::ReadExpectedStamp { owner, replaced },
                None => Stage::ClearOwner(owner),
            }),
            Stage::ReadExpectedStamp { owner, replaced } => {
                Some(Stage::ReadRealStamp { owner, replaced, stamp: found })
            }
            Stage::ReadRealStamp { owner, stamp, .. } => {
                Some(Stage::ResolveOther { owner, counts: stamp == found })
            }
            Stage::ReadStandIn => Some(Stage::Restore(found)),
            _ => Some(Stage::ReadLink),
        }
    }

    fn borrowed(
        &mut self,
        client: usize,
        one: &mut Publication,
        found: u64,
        asked_before: bool,
    ) -> Option<Stage> {
        if one.stage == Stage::ReadPlace {
            let object = linked(found)?;
            if found & TAG != 0 {
                // Makes the place ready: its object's owner word is cleared, then its tag.
                (one.kind, one.link, one.expected) = (Kind::Help, one.place, found);
                return Some(Stage::ReadOwner);
            }
            one.object = object;
            one.word |= object.raw();
            let record = &mut self.file(client).record;
            *record = [0; 8];
            (record[1], record[2], record[7]) = (object.raw(), one.token, one.place.raw());
            record[0] = ReservationState::BORROWED;
            return Some(Stage::BorrowObject);
        }
        if found != one.object.raw() && !(asked_before && found == one.token) {
            self.file(client).record[0] = ReservationState::FREE;
            return None;
        }
        let publishes = matches!(one.kind, Kind::Borrow { publishes: true });
        Some(if publishes { Stage::WriteOwner } else { Stage::PutBack })
    }

    /// The link can't be changed by this client: the reservation ends without publication.
    fn give_up(&mut self, client: usize, one: &Publication) -> Option<Stage> {
        match one.kind {
            Kind::Unlink | Kind::Help => None,
            Kind::Borrow { .. } => Some(Stage::PutBack),
            _ if self.file(client).record[0] == ReservationState::HELD => Some(Stage::Note),
            _ => self.end_client(client),
        }
    }

    fn swapped(&mut self, client: usize, one: &mut Publication, found: u64) -> Option<Stage> {
        if found == one.expected { made(one) } else { self.disarm(client, one) }
    }

    /// The swap was certainly not made, or does not count.
    fn disarm(&mut self, client: usize, one: &Publication) -> Option<Stage> {
        let record = &mut self.file(client).record;
        match one.kind {
            Kind::Unlink => {
                record[0] = ReservationState::FREE;
                None
            }
            Kind::Borrow { .. } => {
                record[0] = ReservationState::BORROWED;
                Some(Stage::PutBack)
            }
            _ => {
                record[0] = ReservationState::HELD;
                Some(Stage::Note)
            }
        }
    }

    /// Does a step that stores in the client's file.
    fn file_step(&mut self, client: usize, one: &mut Publication) -> Option<Stage> {
        let file = self.file(client);
        match one.stage {
            Stage::RemoveFromMagazine => {
                file.magazine.retain(|addr| *addr != one.object);
                Some(Stage::WriteOwner)
            }
            Stage::Arm => {
                if one.kind == Kind::Unlink {
                    one.word = one.token;
                }
                arm(file, &one.armed());
                Some(Stage::Publish)
            }
            Stage::MarkReplaced => {
                file.record[0] = ReservationState::SETTLE_REPLACED;
                Some(Stage::Settle)
            }
            Stage::Note => {
                let unwanted = if one.is_published { one.replaced() } else { one.object };
                if !unwanted.is_null() {
                    file.magazine.push(unwanted);
                }
                self.seen.published += u64::from(one.is_published);
                Some(Stage::ClearRecord)
            }
            _ => {
                file.record[0] = ReservationState::FREE;
                None
            }
        }
    }
}
