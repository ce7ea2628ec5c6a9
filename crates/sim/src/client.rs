//! Clients: one operation at a time, in the steps of the client library.

use std::collections::{BTreeMap, BTreeSet};

use rackpool_model::{FrameId, FrameWord, PageId, PageState, PageWord};
use rackpool_proto::planted_bugs::{Bug, Bugs};
use rackpool_proto::share::CopyId;

use crate::calls::Request;
use crate::history::Kind;
use crate::memory::{Shown, Slot, Use};
use crate::message::Call;
use crate::roots::is_root;
use crate::rules::{CLIENT_TIMEOUT, MICRO, MILLI, STORM};
use crate::world::{Event, World};

#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) rack: usize,
    /// The translation cache.
    cache: BTreeMap<PageId, FrameWord>,
    /// Pages that other racks have, by the last answers.
    elsewhere: BTreeSet<PageId>,
    /// Known replicas of pages of other racks.
    copies: BTreeMap<PageId, (FrameId, CopyId)>,
    stage: Stage,
    deadline: u64,
    /// Counts steps; a wake-up for an earlier step is ignored.
    step: u64,
    /// Whether the client only asks for a page, which may not be allocated.
    probes: bool,
    /// Words still to be read at the end.
    pub(crate) errands: Vec<(PageId, usize)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Idle,
    /// The access slot names the frame.
    Published {
        operation: usize,
        frame: FrameId,
        word: PageWord,
    },
    /// The page word was as expected and dirty-logged: the client has to log the line before it
    /// writes.
    DirtyLogged {
        operation: usize,
        frame: FrameId,
    },
    /// The page word was as expected.
    Entered {
        operation: usize,
        frame: FrameId,
    },
    /// The replica's number was as expected.
    Looked {
        operation: usize,
        frame: FrameId,
        copy: CopyId,
    },
    /// The word was read. The value counts only if the replica is still published and its end time
    /// has not passed.
    Loaded {
        operation: usize,
        frame: FrameId,
        copy: CopyId,
        found: u64,
        /// Whether the page was shared at its home at the time of the load.
        shared: bool,
    },
    /// The access is done; the access slot has to be cleared.
    Leaving {
        operation: usize,
        found: u64,
    },
    /// The client waits for its daemon.
    Asked {
        operation: usize,
    },
}

/// A daemon's answer to its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Local(FrameWord),
    Copy(FrameId, CopyId),
    /// Another rack has the page.
    Remote,
    /// The client translates again.
    Moved,
    /// The operation was not executed.
    Refused,
    Done(u64),
    /// The operation may or may not have been executed.
    Failed,
}

impl Client {
    pub(crate) const fn new(rack: usize) -> Self {
        Self {
            rack,
            cache: BTreeMap::new(),
            elsewhere: BTreeSet::new(),
            copies: BTreeMap::new(),
            stage: Stage::Idle,
            deadline: 0,
            step: 0,
            probes: false,
            errands: Vec::new(),
        }
    }

    /// Describes what the client is doing.
    pub(crate) fn waits_for(&self) -> String {
        format!("{:?}", self.stage)
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.stage == Stage::Idle && self.errands.is_empty()
    }
}

impl<B: Bugs> World<B> {
    pub(crate) fn next_step(&mut self, client: usize, wait: u64) {
        self.clients[client].step += 1;
        let step = self.clients[client].step;
        self.after(wait, Event::Step { client, step });
    }

    /// Returns the time until the client's next step; the client may be stopped in between.
    fn a_moment(&mut self) -> u64 {
        if self.rng.percent(self.weather.stops) {
            self.rng.within(MICRO..self.weather.longest_stop)
        } else {
            self.rng.within(1..2 * MICRO)
        }
    }

    pub(crate) fn client_step(&mut self, client: usize, step: u64) {
        if self.clients[client].step != step {
            return;
        }
        let rack = self.clients[client].rack;
        match self.clients[client].stage {
            Stage::Idle => self.begin_operation(client),
            Stage::Published { operation, frame, word } => {
                let now = self.racks[rack].memory.frame(frame).word;
                let same = (now.page(), now.epoch()) == (word.page(), word.epoch());
                let ignored = self.bugs.has(Bug::IgnoreFrozenWord) && now.is_readable() && same;
                let writes = matches!(self.history.get(operation).kind, Kind::Write(_));
                let traces = writes && now.is_dirty_logged();
                let next = if now == word && traces {
                    Some(Stage::DirtyLogged { operation, frame })
                } else if same && traces {
                    let slot = Slot { frame, usage: Use::DirtyLogged };
                    self.racks[rack].memory.store_slot(client, slot);
                    Some(Stage::Published { operation, frame, word: now })
                } else if now == word || ignored {
                    Some(Stage::Entered { operation, frame })
                } else {
                    None
                };
                if let Some(next) = next {
                    self.set_stage(client, next);
                    let wait = self.a_moment();
                    self.next_step(client, wait);
                } else {
                    self.clear_slot(rack, client);
                    let page = self.history.get(operation).page;
                    self.clients[client].cache.remove(&page);
                    self.ask(client, operation);
                }
            }
            Stage::DirtyLogged { operation, frame } => {
                self.note_and_write(client, operation, frame)
            }
            Stage::Entered { operation, frame } => {
                if self.history.get(operation).kind != Kind::Read {
                    self.racks[rack].memory.drain_store_buffer(client);
                }
                let found = self.local_access(rack, operation, frame);
                self.set_stage(client, Stage::Leaving { operation, found });
                let wait = self.a_moment();
                self.next_step(client, wait);
            }
            Stage::Looked { .. } | Stage::Loaded { .. } => self.copy_step(client),
            Stage::Leaving { operation, found } => {
                if self.bugs.has(Bug::NoteAfterWriting) {
                    self.note_late(client, operation);
                }
                self.clear_slot(rack, client);
                self.history.acknowledge(operation, found);
                self.go_idle(client);
            }
            // Timeout: the operation may or may not have been executed, and may still be.
            Stage::Asked { operation } => {
                if self.clients[client].probes {
                    self.history.void(operation);
                } else {
                    self.repeat_errand(client, operation);
                }
                self.go_idle(client);
            }
        }
    }

    /// Logs the line to be written in a dirty-logged page. Without room in the log the client asks
    /// its daemon.
    fn note_and_write(&mut self, client: usize, operation: usize, frame: FrameId) {
        let rack = self.clients[client].rack;
        let one = self.history.get(operation);
        let is_late = self.bugs.has(Bug::NoteAfterWriting);
        if !is_late && !self.note_write(client, frame, one.word) {
            self.clear_slot(rack, client);
            return self.ask_for(client, operation, Request::Operate);
        }
        self.seen.dirty_logged += 1;
        self.set_stage(client, Stage::Entered { operation, frame });
        let wait = self.a_moment();
        self.next_step(client, wait);
    }

    fn set_stage(&mut self, client: usize, stage: Stage) {
        self.clients[client].stage = stage;
    }

    fn go_idle(&mut self, client: usize) {
        self.set_stage(client, Stage::Idle);
        self.clients[client].probes = false;
        let wait = self.rng.within(50 * MICRO..12 * MILLI);
        self.next_step(client, wait);
    }

    fn begin_operation(&mut self, client: usize) {
        if self.now < STORM
            && self.rng.percent(4)
            && let Some(page) = self.unallocated_page()
        {
            return self.probe(client, page);
        }
        let joined = self.racks[self.clients[client].rack].pages.is_some();
        let (page, word, kind) = if self.now < STORM {
            let chosen = if joined { self.choose(client) } else { None };
            let Some(chosen) = chosen else { return self.go_idle(client) };
            chosen
        } else {
            let Some((page, word)) = self.clients[client].errands.pop() else { return };
            (page, word, Kind::Read)
        };
        let operation = self.history.begin(page, word, kind);
        self.clients[client].deadline = self.now + CLIENT_TIMEOUT;
        if is_root(page) {
            return self.ask_about_root(client, operation);
        }
        self.enter(client, operation);
    }

    /// Asks where a page is that is not allocated.
    fn probe(&mut self, client: usize, page: PageId) {
        let operation = self.history.begin(page, 0, Kind::Read);
        self.clients[client].deadline = self.now + CLIENT_TIMEOUT;
        self.clients[client].probes = true;
        self.ask(client, operation);
    }

    /// Asks the metadata server through the daemon or, like the `rackpool` command, directly.
    fn ask_about_root(&mut self, client: usize, operation: usize) {
        if self.rng.percent(50) {
            return self.ask(client, operation);
        }
        self.set_stage(client, Stage::Asked { operation });
        self.next_step(client, CLIENT_TIMEOUT);
        self.ask_root_directly(Call { client, operation });
    }

    fn enter(&mut self, client: usize, operation: usize) {
        let one = self.history.get(operation);
        let writes = one.kind != Kind::Read;
        let traces = |word: PageWord| word.is_dirty_logged() && matches!(one.kind, Kind::Write(_));
        let rack = self.clients[client].rack;
        match self.clients[client].cache.get(&one.page).copied() {
            Some(FrameWord { frame, word }) if !writes || word.is_writable() || traces(word) => {
                let usage = match writes {
                    false => Use::Read,
                    true if word.is_dirty_logged() => Use::DirtyLogged,
                    true => Use::Write,
                };
                let slot = Slot { frame, usage };
                let is_fenced = usage == Use::DirtyLogged || self.rng.percent(60);
                let memory = &mut self.racks[rack].memory;
                if is_fenced {
                    memory.store_slot(client, slot);
                } else {
                    memory.buffer_slot(client, slot);
                }
                self.set_stage(client, Stage::Published { operation, frame, word });
                let wait = self.a_moment();
                self.next_step(client, wait);
            }
            _ if !writes && self.look_at_copy(client, operation) => {}
            _ => self.ask(client, operation),
        }
    }

    /// Begins to read a replica if one is known and still published. Returns false otherwise.
    fn look_at_copy(&mut self, client: usize, operation: usize) -> bool {
        let page = self.history.get(operation).page;
        let Some((frame, copy)) = self.clients[client].copies.get(&page).copied() else {
            return false;
        };
        let rack = self.clients[client].rack;
        let shown = *self.racks[rack].memory.shown(frame);
        if shown.copy != Some(copy) {
            self.clients[client].copies.remove(&page);
            return false;
        }
        self.set_stage(client, Stage::Looked { operation, frame, copy });
        let wait = self.a_moment();
        self.next_step(client, wait);
        true
    }

    fn copy_step(&mut self, client: usize) {
        let rack = self.clients[client].rack;
        match self.clients[client].stage {
            Stage::Looked { operation, frame, copy } => {
                let one = self.history.get(operation);
                let found = self.racks[rack].memory.frame(frame).bytes[one.word];
                let shared = self.is_shared_somewhere(one.page);
                let loaded = Stage::Loaded { operation, frame, copy, found, shared };
                self.set_stage(client, loaded);
                let wait = self.a_moment();
                self.next_step(client, wait);
            }
            Stage::Loaded { operation, frame, copy, found, shared } => {
                let now = self.local_time(rack);
                let Shown { copy: there, until } = *self.racks[rack].memory.shown(frame);
                let shown = there == Some(copy) || self.bugs.has(Bug::LookOnlyBefore);
                let page = self.history.get(operation).page;
                if !shown || (now >= until && !self.bugs.has(Bug::ReadAfterTheLease)) {
                    self.clients[client].copies.remove(&page);
                    return self.ask(client, operation);
                }
                if !shared {
                    self.breaks(|| {
                        format!("rack {rack} reads a copy of {page}, which is not shared")
                    });
                }
                self.seen.copies += 1;
                self.history.acknowledge(operation, found);
                self.go_idle(client);
                self.copy_used(rack, page);
            }
            _ => {}
        }
    }

    /// Asks the daemon where the page is, or to execute the operation in another rack.
    fn ask(&mut self, client: usize, operation: usize) {
        let is_elsewhere = |client: &Client| {
            client.elsewhere.contains(&self.history.get(operation).page) && !client.probes
        };
        let operates = is_elsewhere(&self.clients[client]);
        let request = if operates { Request::Operate } else { Request::Translate };
        self.ask_for(client, operation, request);
    }

    fn ask_for(&mut self, client: usize, operation: usize, request: Request) {
        self.set_stage(client, Stage::Asked { operation });
        let grace = self.clients[client].deadline.saturating_sub(self.now);
        self.next_step(client, grace);
        let rack = self.clients[client].rack;
        let (life, call) = (self.racks[rack].life, Call { client, operation });
        self.after(MICRO, Event::Asked { rack, life, call, request });
    }

    pub(crate) fn answer(&mut self, call: Call, answer: Answer) {
        let Call { client, operation } = call;
        if self.clients[client].stage != (Stage::Asked { operation }) {
            return;
        }
        let one = self.history.get(operation);
        if self.clients[client].probes {
            self.history.void(operation);
            return self.go_idle(client);
        }
        match answer {
            Answer::Local(found) => {
                // A client writes a page that moves itself, or has no room in its dirty log.
                let writes = one.kind != Kind::Read && !found.word.is_writable();
                if writes && (one.kind.is_atomic() || self.rng.percent(50)) {
                    return self.ask_for(client, operation, Request::Operate);
                }
                self.clients[client].elsewhere.remove(&one.page);
                self.clients[client].cache.insert(one.page, found);
                self.enter(client, operation);
            }
            Answer::Remote => {
                self.clients[client].elsewhere.insert(one.page);
                self.ask_for(client, operation, Request::Operate);
            }
            Answer::Moved => {
                self.clients[client].elsewhere.remove(&one.page);
                self.ask(client, operation);
            }
            Answer::Refused => {
                self.history.void(operation);
                self.repeat_errand(client, operation);
                self.go_idle(client);
            }
            Answer::Copy(frame, copy) => {
                self.clients[client].elsewhere.remove(&one.page);
                self.clients[client].copies.insert(one.page, (frame, copy));
                self.enter(client, operation);
            }
            Answer::Done(found) => {
                self.history.acknowledge(operation, found);
                self.go_idle(client);
            }
            Answer::Failed => self.go_idle(client),
        }
    }

    /// Repeats a read that has failed after all faults: each word must be readable in the end.
    fn repeat_errand(&mut self, client: usize, operation: usize) {
        let one = self.history.get(operation);
        if self.works && !self.is_stuck(one.page) && !is_root(one.page) {
            self.clients[client].errands.push((one.page, one.word));
        }
    }

    fn local_access(&mut self, rack: usize, operation: usize, frame: FrameId) -> u64 {
        let one = self.history.get(operation);
        self.check_use(rack, frame, one.page, one.kind, "a local access");
        let moves = self.racks[rack].memory.frame(frame).word.state() == Some(PageState::Frozen);
        if moves && one.kind != Kind::Read {
            self.check_forwarded(rack, one.page);
        }
        self.carry_out(rack, frame, one.word, one.kind)
    }

    /// Executes an atomic access on a processor of the rack.
    pub(crate) fn carry_out(
        &mut self,
        rack: usize,
        frame: FrameId,
        word: usize,
        kind: Kind,
    ) -> u64 {
        let cell = &mut self.racks[rack].memory.frame(frame).bytes[word];
        let before = *cell;
        *cell = kind.result(before);
        kind.shown(before)
    }

    /// Kills a client: its access slot counts as empty, and another client replaces it.
    pub(crate) fn crash_client(&mut self, client: usize) {
        self.seen.crashes += 1;
        let rack = self.clients[client].rack;
        self.clear_slot(rack, client);
        if self.bugs.has(Bug::ForgetLinesOfTheDead) {
            self.racks[rack].memory.noted[client].clear();
        }
        if let Stage::Published { operation, .. }
        | Stage::DirtyLogged { operation, .. }
        | Stage::Entered { operation, .. }
        | Stage::Looked { operation, .. }
        | Stage::Loaded { operation, .. } = self.clients[client].stage
        {
            self.history.void(operation);
        }
        self.clients[client].cache.clear();
        self.clients[client].copies.clear();
        self.crash_object_client(client);
        self.clients[client].elsewhere.clear();
        self.go_idle(client);
    }
}
