//! A client: locks lines, adds 1 to their counters or reads them, and unlocks. Each access to a
//! word is a step of its own.

use std::collections::BTreeMap;

use rackpool_model::{ClaimId, LockClaim, LockMode, LockWord, LockWordIndex, PageState};
use rackpool_proto::exchange::Caller;
use rackpool_proto::lock::{LockEvent, LockRequester};
use rackpool_wire::lock::{LockEnd, LockOutcome};

use super::rack::{Answer, Cache};
use super::{Counter, Faults, SHORT, TIMEOUT, Work, World};

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
    /// The daemon reads the lines from another rack, for this part of the work.
    Fetching(usize),
    /// The counter that was written as this one is written back next.
    WritingBack(usize),
    /// The daemon writes it back.
    PostedBack(usize),
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
    /// The daemon's number of the lock if its lines are in another rack, else 0.
    number: u64,
    /// The lines as they were fetched, and until when they can be read.
    pub(super) fetched: BTreeMap<Counter, u64>,
    pub(super) fresh_until: u64,
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
            number: 0,
            fetched: BTreeMap::new(),
            fresh_until: 0,
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

    /// All counters of the lines.
    pub(super) fn counters(&self) -> impl Iterator<Item = Counter> {
        (0..self.parts()).map(|part| self.line(part))
    }

    fn line(&self, part: usize) -> Counter {
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
            Stage::Held(part) if part == client.parts() => {
                let dirty = self.racks[rack].memory.caches.get(&id);
                let is_dirty = client.number != 0
                    && dirty.is_some_and(|cache| {
                        cache.number == client.number && !cache.written.is_empty()
                    });
                match is_dirty {
                    true => self.clients[index].stage = Stage::WritingBack(0),
                    false => self.leave(index)?,
                }
            }
            Stage::Held(part) if client.number != 0 => self.hold_cached(index, part)?,
            Stage::Held(part) => {
                let memory = &mut self.racks[rack].memory;
                if memory.pages.contains_key(&client.claim.page()) {
                    memory.accesses.insert(id);
                    self.clients[index].stage = Stage::Entered(part);
                } else if memory.lost.contains(&id) {
                    self.give_up(index);
                } else {
                    return Err("the page of a held lock has moved".into());
                }
            }
            Stage::WritingBack(_) if self.racks[rack].memory.lost.contains(&id) => {
                self.give_up(index);
            }
            Stage::WritingBack(which) => self.post(index, Work::WriteBack(which))?,
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
                match client.number {
                    0 => self.access(index, part)?,
                    _ => self.write_cached(index, part),
                }
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
            // The request timeout: the operation may be executed later.
            Stage::PostedBack(_) if self.faults == Faults::Some && self.chance(50) => {
                self.give_write_back_up(index);
            }
            Stage::Asking(_) | Stage::Fetching(_) | Stage::PostedBack(_) | Stage::Telling(_) => {}
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
            return self.hold(index, false, None);
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

    pub(super) fn answered(&mut self, index: usize, answer: &Answer) -> Result<(), String> {
        if self.clients[index].stage != Stage::Asking(answer.caller.call) {
            return Ok(());
        }
        match answer.outcome {
            LockOutcome::Granted { recovered } => {
                return self.hold(index, recovered, answer.number);
            }
            LockOutcome::TimedOut if self.clients[index].hurries => self.withdraw(index),
            LockOutcome::TimedOut => return Err("a request has waited for too long".into()),
            LockOutcome::Moved | LockOutcome::Queued => self.clients[index].stage = Stage::Idle,
        }
        Ok(())
    }

    fn hold(&mut self, index: usize, recovered: bool, number: Option<u64>) -> Result<(), String> {
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
        client.number = number.unwrap_or(0);
        client.fresh_until = 0;
        let (rack, id) = (client.rack, client.id);
        if let Some(number) = number {
            let cache = Cache { number, written: BTreeMap::new() };
            self.racks[rack].memory.caches.insert(id, cache);
        }
        Ok(())
    }

    /// The next part of the work under a lock of another rack's lines.
    fn hold_cached(&mut self, index: usize, part: usize) -> Result<(), String> {
        let client = &self.clients[index];
        let (rack, id, number) = (client.rack, client.id, client.number);
        if self.racks[rack].memory.lost.contains(&id) {
            self.give_up(index);
            return Ok(());
        }
        if self.now >= client.fresh_until {
            return self.post(index, Work::Fetch(part));
        }
        let (line, counter) = client.line(part);
        let written = self.racks[rack].memory.caches.get(&id).map(|cache| &cache.written);
        let value = |which| match written.and_then(|written| written.get(&(line, which))) {
            Some(written) => *written,
            None => client.fetched.get(&(line, which)).copied().unwrap_or(0),
        };
        let found = [value(0), value(1)];
        let truth = self.data.get(&line).copied().unwrap_or_default();
        let own = written.is_some_and(|written| !written.is_empty());
        if !own && found != truth {
            return Err(format!("stale: {found:?} were read, and {truth:?} are there"));
        }
        let is_half = counter == 0 && found[0] != found[1];
        if is_half && !client.recovered {
            return Err(format!("not exclusive: lock {number} finds {found:?}"));
        }
        let mode = client.claim.mode();
        let client = &mut self.clients[index];
        client.found = found;
        if mode == LockMode::Read {
            client.stage = Stage::Held(part + 1);
        } else {
            client.stage = Stage::Entered(part);
            self.racks[rack].memory.accesses.insert(id);
        }
        Ok(())
    }

    /// Writes a counter into the cache. From then on it is there for the next holder, unless the
    /// lock is lost with a daemon.
    fn write_cached(&mut self, index: usize, part: usize) {
        let client = &mut self.clients[index];
        let (rack, id, number, counter) =
            (client.rack, client.id, client.number, client.line(part));
        let new = if counter.1 == 0 { client.found[0] + 1 } else { client.found[0] };
        client.stage = Stage::Held(part + 1);
        let cache = self.racks[rack].memory.caches.entry(id).or_default();
        cache.written.insert(counter, new);
        self.owed.entry((rack, number)).or_default().insert(counter, new);
    }

    /// A counter was written back.
    pub(super) fn written_back(&mut self, index: usize, which: usize) {
        let (rack, id) = (self.clients[index].rack, self.clients[index].id);
        let caches = &mut self.racks[rack].memory.caches;
        let written = caches.get(&id).map_or(0, |cache| cache.written.len());
        let is_last = which + 1 >= written;
        if is_last {
            caches.remove(&id);
        }
        let client = &mut self.clients[index];
        client.stage = match is_last {
            true => Stage::Held(client.parts()),
            false => Stage::WritingBack(which + 1),
        };
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

    /// Unlocks, and leaves to the daemon what is not written back.
    fn give_write_back_up(&mut self, index: usize) {
        self.seen.given_up += 1;
        let client = &mut self.clients[index];
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
