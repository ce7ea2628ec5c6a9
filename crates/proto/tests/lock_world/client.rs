//! A client: locks lines, adds 1 to their counters or reads them, and unlocks. Each access to a
//! word is a step of its own.

use rackpool_model::{ClaimId, LockClaim, LockMode, LockWord, LockWordIndex, PageState};
use rackpool_proto::exchange::Caller;
use rackpool_proto::lock::{LockEvent, LockRequester};
use rackpool_wire::lock::{LockEnd, LockOutcome};

use super::{Faults, Line, SHORT, TIMEOUT, World};

/// What a client does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Idle,
    /// The claim is stored: the lock word is next.
    Claimed,
    /// The word was shared: it is loaded again.
    Shared,
    /// The word was taken: the page word is next.
    Taken,
    /// The daemon is asked for the lock.
    Asking(u32),
    /// The lock is held: the next part of the work.
    Held(usize),
    /// The access is announced: whether the lock is lost is next.
    Entered(usize),
    /// The lock was not lost.
    Entitled(usize),
    /// The daemon executes the access in another rack.
    Posted(usize),
    /// The claim is cleared: the lock word is next.
    Leaving,
    /// The daemon is told of the unlock; `true`: to lock again.
    Telling(bool),
}

#[derive(Clone, Debug)]
pub(super) struct Client {
    pub(super) rack: usize,
    pub(super) id: ClaimId,
    pub(super) stage: Stage,
    pub(super) claim: LockClaim,
    /// Whether the lock was taken without the daemon.
    own: bool,
    pub(super) recovered: bool,
    /// Whether the client has noticed that the lock is lost.
    is_lost: bool,
    /// The counters that were read.
    found: [u64; 2],
    pub(super) calls: u32,
    pub(super) asked_at: u64,
    pub(super) stopped_until: u64,
    /// Whether its request has a short timeout.
    hurries: bool,
    /// Whether its request was refused.
    withdrawn: bool,
    /// Number of locks that it has held.
    pub(super) rounds: u32,
}

impl Client {
    pub(super) fn new(rack: usize, id: ClaimId, claim: LockClaim) -> Self {
        Self {
            rack,
            id,
            stage: Stage::Idle,
            claim,
            own: false,
            recovered: false,
            is_lost: false,
            found: [0; 2],
            calls: 0,
            asked_at: 0,
            stopped_until: 0,
            hurries: false,
            withdrawn: false,
            rounds: 0,
        }
    }

    fn caller(&self) -> Caller {
        Caller { client: self.id.client, thread: self.id.thread, cell: 0, call: self.calls }
    }

    /// The counters that are accessed one after the other: both of each line.
    fn parts(&self) -> usize {
        2 * self.claim.lines() as usize
    }

    fn line(&self, part: usize) -> (Line, usize) {
        let line = self.claim.first() + u32::try_from(part / 2).unwrap();
        ((self.claim.page(), line), part % 2)
    }
}

impl World {
    pub(super) fn client_step(&mut self, index: usize) -> Result<(), String> {
        let client = self.clients[index].clone();
        let (rack, id) = (client.rack, client.id);
        match client.stage {
            Stage::Idle => self.begin(index),
            Stage::Claimed => self.take(index),
            Stage::Shared => {
                let word = self.word_of(&client);
                let is_shared = word.is_some_and(|(_, word)| word == LockWord::SHARED);
                self.clients[index].stage = if is_shared { Stage::Taken } else { Stage::Claimed };
            }
            Stage::Taken => self.taken(index)?,
            Stage::Held(part) if part == client.parts() => self.leave(index)?,
            Stage::Held(part) => {
                let memory = &mut self.racks[rack].memory;
                if memory.pages.contains_key(&client.claim.page()) {
                    memory.accesses.insert(id);
                    self.clients[index].stage = Stage::Entered(part);
                } else if memory.lost.contains(&id) {
                    self.give_up(index);
                } else {
                    self.post(index, part)?;
                }
            }
            Stage::Entered(part) => {
                let memory = &mut self.racks[rack].memory;
                let is_lost = memory.lost.contains(&id);
                if is_lost {
                    memory.accesses.remove(&id);
                    self.give_up(index);
                } else {
                    self.clients[index].stage = Stage::Entitled(part);
                }
            }
            Stage::Entitled(part) => {
                self.access(index, part)?;
                self.racks[rack].memory.accesses.remove(&id);
            }
            Stage::Leaving => {
                let is_released = client.own && self.release(index);
                if is_released && !client.is_lost {
                    self.ended(index);
                } else {
                    self.tell_unlock(index, false);
                }
            }
            Stage::Asking(_) | Stage::Posted(_) | Stage::Telling(_) => {}
        }
        Ok(())
    }

    /// The word was taken: the lock is held if the page stays here.
    fn taken(&mut self, index: usize) -> Result<(), String> {
        let client = &self.clients[index];
        let (rack, id) = (client.rack, client.id);
        let page = self.racks[rack].memory.pages.get(&client.claim.page());
        let stays = page
            .is_some_and(|word| matches!(word.state(), Some(PageState::Live | PageState::Shared)));
        if stays {
            self.clients[index].own = true;
            return self.hold(index, false);
        }
        self.racks[rack].memory.buffered.insert(id, None);
        self.clients[index].is_lost = false;
        if self.release(index) {
            self.clients[index].stage = Stage::Idle;
        } else {
            self.tell_unlock(index, true);
        }
        Ok(())
    }

    /// The work is done: the claim is cleared.
    fn leave(&mut self, index: usize) -> Result<(), String> {
        let Client { rack, id, claim, is_lost, .. } = self.clients[index];
        let memory = &mut self.racks[rack].memory;
        memory.buffered.insert(id, None);
        let is_lost = is_lost || memory.lost.contains(&id);
        self.clients[index].is_lost = is_lost;
        self.clients[index].stage = Stage::Leaving;
        if !is_lost && claim.mode() == LockMode::Write {
            self.acknowledge(claim)?;
        }
        Ok(())
    }

    fn begin(&mut self, index: usize) {
        let client = &mut self.clients[index];
        client.own = false;
        client.asked_at = self.now;
        let (rack, id, claim) = (client.rack, client.id, client.claim);
        let memory = &mut self.racks[rack].memory;
        memory.buffered.insert(id, Some(claim));
        let here = memory.pages.contains_key(&claim.page());
        if here && claim.only_word().is_some() {
            self.clients[index].stage = Stage::Claimed;
        } else {
            self.ask(index);
        }
    }

    fn word_of(&self, client: &Client) -> Option<(LockWordIndex, LockWord)> {
        let index = client.claim.only_word()?;
        Some((index, self.racks[client.rack].memory.word(index)))
    }

    /// The steps of the client library's `LockCell::take`.
    fn take(&mut self, index: usize) {
        let client = &self.clients[index];
        let (rack, id, mode) = (client.rack, client.id, client.claim.mode());
        let Some((word, found)) = self.word_of(client) else { return self.ask(index) };
        let new = match mode {
            _ if found == LockWord::FREE => LockWord::named(id, mode),
            LockMode::Read if found == LockWord::SHARED => {
                self.clients[index].stage = Stage::Shared;
                return;
            }
            LockMode::Read if found.is_shared() && !found.is_managed() => LockWord::SHARED,
            _ => return self.ask(index),
        };
        if self.racks[rack].memory.exchange(id, word, found, new) {
            self.clients[index].stage = Stage::Taken;
        }
    }

    /// The steps of the client library's `LockCell::release`.
    fn release(&mut self, index: usize) -> bool {
        let client = &self.clients[index];
        let (rack, id, mode) = (client.rack, client.id, client.claim.mode());
        let Some(word) = client.claim.only_word() else { return false };
        let memory = &mut self.racks[rack].memory;
        let released = memory.exchange(id, word, LockWord::named(id, mode), LockWord::FREE);
        released || mode == LockMode::Read && !memory.word(word).is_managed()
    }

    /// Asks the daemon for the lock.
    pub(super) fn ask(&mut self, index: usize) {
        let hurries = self.faults == Faults::Some && self.chance(8);
        let home = self.home_of(self.clients[index].claim.page());
        let client = &mut self.clients[index];
        client.calls += 1;
        let (rack, id, claim, caller) = (client.rack, client.id, client.claim, client.caller());
        client.stage = Stage::Asking(client.calls);
        client.hurries = hurries;
        let at = &mut self.racks[rack];
        at.memory.buffered.insert(id, Some(claim));
        // The ring's entry is stored after the claim.
        at.memory.drain(id);
        let timeout = if hurries { SHORT } else { TIMEOUT };
        at.daemon.events.push_back(if at.memory.pages.contains_key(&claim.page()) {
            LockEvent::Requested { requester: LockRequester::Client(id, caller), claim, timeout }
        } else {
            LockEvent::RequestedElsewhere { id, caller, home, claim, timeout }
        });
    }

    pub(super) fn answered(
        &mut self,
        index: usize,
        call: u32,
        outcome: LockOutcome,
    ) -> Result<(), String> {
        if self.clients[index].stage != Stage::Asking(call) {
            return Ok(());
        }
        match outcome {
            LockOutcome::Granted { recovered } => return self.hold(index, recovered),
            LockOutcome::TimedOut if self.clients[index].hurries => self.withdraw(index),
            LockOutcome::TimedOut => return Err("a request has waited for too long".into()),
            LockOutcome::Moved | LockOutcome::Queued => self.clients[index].stage = Stage::Idle,
        }
        Ok(())
    }

    fn hold(&mut self, index: usize, recovered: bool) -> Result<(), String> {
        if self.clients[index].claim.mode() == LockMode::Write {
            let waited = self.now - self.clients[index].asked_at;
            self.seen.longest_wait = self.seen.longest_wait.max(waited);
        }
        self.seen.held += 1;
        self.seen.recovered += u32::from(recovered);
        let client = &mut self.clients[index];
        client.rounds += 1;
        client.recovered = recovered;
        client.is_lost = false;
        client.stage = Stage::Held(0);
        Ok(())
    }

    /// Accesses a counter under the guard.
    pub(super) fn access(&mut self, index: usize, part: usize) -> Result<(), String> {
        let client = &mut self.clients[index];
        let (line, counter) = client.line(part);
        let found = self.data.entry(line).or_default();
        match (client.claim.mode(), counter) {
            // The second counter is written from the first one's value.
            (LockMode::Write, 0) => {
                if found[0] != found[1] && !client.recovered {
                    return Err(format!(
                        "not exclusive: the counters are {found:?}, no writer has ended"
                    ));
                }
                client.found = *found;
                found[0] = client.found[0] + 1;
            }
            (LockMode::Write, _) => {
                if found[0] != client.found[0] + 1 {
                    return Err(format!(
                        "not exclusive: {found:?} under a writer of {:?}",
                        client.found
                    ));
                }
                found[1] = found[0];
            }
            (LockMode::Read, counter) => {
                client.found[counter] = found[counter];
                if counter == 1 && client.found[0] != found[1] && !client.recovered {
                    return Err(format!("not exclusive: a reader finds {:?}", client.found));
                }
            }
        }
        client.stage = Stage::Held(part + 1);
        Ok(())
    }

    /// Gives a request up: the daemon may have found the claim meanwhile.
    fn withdraw(&mut self, index: usize) {
        self.seen.withdrawn += 1;
        let client = &mut self.clients[index];
        client.withdrawn = true;
        client.own = false;
        client.stage = Stage::Leaving;
        let (rack, id) = (client.rack, client.id);
        self.racks[rack].memory.buffered.insert(id, None);
    }

    /// Unlocks after a loss.
    pub(super) fn give_up(&mut self, index: usize) {
        self.seen.lost += 1;
        let client = &mut self.clients[index];
        client.is_lost = true;
        client.stage = Stage::Leaving;
        let (rack, id) = (client.rack, client.id);
        self.racks[rack].memory.buffered.insert(id, None);
    }

    /// Tells the daemon of an unlock. `again`: then locks again.
    pub(super) fn tell_unlock(&mut self, index: usize, again: bool) {
        let (rack, id) = (self.clients[index].rack, self.clients[index].id);
        self.clients[index].stage = Stage::Telling(again);
        let at = &mut self.racks[rack];
        at.memory.drain(id);
        let was_lost = at.memory.lost.contains(&id);
        let end = match self.clients[index].withdrawn {
            _ if was_lost => LockEnd::Abandoned,
            true => LockEnd::Withdrawn,
            false => LockEnd::Unlocked,
        };
        at.daemon.events.push_back(LockEvent::Unlocked { id, end });
    }

    /// The daemon has handled an unlock.
    pub(super) fn told(&mut self, index: usize, again: bool) {
        let (rack, id) = (self.clients[index].rack, self.clients[index].id);
        self.racks[rack].memory.lost.remove(&id);
        if again {
            self.clients[index].stage = Stage::Idle;
        } else {
            self.ended(index);
        }
    }

    fn ended(&mut self, index: usize) {
        let claim = self.next_claim(index);
        let client = &mut self.clients[index];
        client.stage = Stage::Idle;
        client.withdrawn = false;
        client.claim = claim;
    }
}
