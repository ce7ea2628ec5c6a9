//! Requests of clients to their daemon, in the steps of the daemon's shell: who may do what is
//! decided by the rack's machine.

use rackpool_model::{Access, ClientId, PageId};
use rackpool_proto::exchange::Caller;
use rackpool_proto::planted_bugs::Bugs;
use rackpool_proto::rack::{Executor, LeaseAnswer, PageAccess, RackEvent};
use rackpool_proto::share::CopyId;
use rackpool_wire::rack::RackAnswer;

use crate::client::Answer;
use crate::history::Kind;
use crate::message::{Call, Message};
use crate::roots::is_root;
use crate::rules::LEASE_NS;
use crate::world::{World, rack_id};

/// A request of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Request {
    /// Where the page is.
    Translate,
    /// Execute the operation, in another rack or on this rack's processor.
    Operate,
}

/// A request that waits for a page of this rack, which moves or is shared.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    call: Call,
    request: Request,
    until: u64,
}

/// The call as the machine names it.
fn caller(call: Call) -> Caller {
    let number = |index: usize| u32::try_from(index).unwrap_or(u32::MAX);
    let (client, call) = (ClientId(number(call.client)), number(call.operation));
    Caller { client, thread: 0, cell: 0, call }
}

fn call(caller: Caller) -> Call {
    Call { client: caller.client.0 as usize, operation: caller.call as usize }
}

impl<B: Bugs> World<B> {
    /// Accepts a client's request.
    pub(crate) fn asked(&mut self, rack: usize, life: u64, call: Call, request: Request) {
        if self.racks[rack].life != life || self.racks[rack].daemon.is_none() {
            return;
        }
        let page = self.history.get(call.operation).page;
        if is_root(page) {
            return self.ask_root_over_link(rack, call);
        }
        self.count_access(rack, call);
        let until = self.now + LEASE_NS;
        self.serve(rack, Waiting { call, request, until });
        self.run_rack(rack);
    }

    fn count_access(&mut self, rack: usize, call: Call) {
        let one = self.history.get(call.operation);
        let now = self.local_time(rack);
        let here = self.racks[rack].memory.all().any(|found| found.word.page() == one.page);
        let Some(daemon) = &mut self.racks[rack].daemon else { return };
        let found = daemon.machine.heats_mut().accessed(now, one.page, one.kind.access(), 1);
        let kept = daemon.machine.copies().is_wanted(one.page);
        // In some worlds a replica is requested without a home that has refused to give its page.
        if found.read_hot && !here && self.weather.reads > 60 && self.rng.percent(50) {
            self.feed(rack, RackEvent::ReplicaWanted(one.page));
        } else if found.hot && !here && !kept {
            let (milli, read_hot) = (found.milli, found.read_hot);
            self.feed(rack, RackEvent::Heated { page: one.page, milli, read_hot });
        }
    }

    fn serve(&mut self, rack: usize, waiting: Waiting) {
        match waiting.request {
            Request::Translate => self.translate(rack, waiting),
            Request::Operate => self.operate(rack, waiting),
        }
    }

    fn translate(&mut self, rack: usize, waiting: Waiting) {
        let (now, call) = (self.local_time(rack), waiting.call);
        let one = self.history.get(call.operation);
        let access = one.kind.access();
        let found = self.racks[rack].memory.find(one.page);
        let Some(daemon) = &mut self.racks[rack].daemon else { return };
        let answer = match found.map(|found| daemon.machine.client_access(found, access)) {
            Some(PageAccess::Usable(found)) => return self.answer(call, Answer::Local(found)),
            Some(PageAccess::Forwarded(_)) => RackAnswer::Remote { home: rack_id(rack), usage: 0 },
            Some(PageAccess::Busy) => return self.wait_for_page(rack, one.page, waiting),
            Some(_) => RackAnswer::NotAllocated,
            None if daemon.machine.swap().is_lost(one.page) => RackAnswer::PageLost,
            None => match daemon.machine.known_access(now, one.page, access) {
                Some(answer) => answer,
                None => {
                    let (caller, page) = (caller(call), one.page);
                    self.search_begins(rack, call);
                    return self.feed(rack, RackEvent::AccessWanted { caller, page, access });
                }
            },
        };
        self.translated(rack, call, answer);
    }

    /// The machine has answered a client's call.
    pub(crate) fn search_answered(&mut self, rack: usize, caller: Caller, answer: RackAnswer) {
        self.check_search(rack, call(caller), answer);
        self.translated(rack, call(caller), answer);
    }

    fn translated(&mut self, rack: usize, call: Call, answer: RackAnswer) {
        let answer = match answer {
            RackAnswer::Remote { .. } => Answer::Remote,
            RackAnswer::Copied { frame, copy, .. } => {
                let (now, page) = (self.local_time(rack), self.history.get(call.operation).page);
                if let Some(daemon) = &mut self.racks[rack].daemon {
                    daemon.machine.used_by_copy(now, page);
                }
                Answer::Copy(frame, CopyId(copy))
            }
            RackAnswer::Moved => Answer::Moved,
            _ => Answer::Refused,
        };
        self.answer(call, answer);
    }

    fn operate(&mut self, rack: usize, waiting: Waiting) {
        let (now, call) = (self.local_time(rack), waiting.call);
        let one = self.history.get(call.operation);
        let (page, word, kind) = (one.page, one.word, one.kind);
        self.take_noted(rack);
        let node = &mut self.racks[rack];
        let Some(daemon) = &mut node.daemon else { return };
        let is_copied = kind == Kind::Read && daemon.machine.copies().find(now, page).is_some();
        if !kind.is_atomic()
            && !is_copied
            && let Some(lease) = daemon.machine.begin(now, page, kind.access())
        {
            return self.post_access(rack, call, lease);
        }
        let executor = match kind {
            Kind::Read => Executor::Unknown,
            _ => daemon.machine.executor(now, &node.memory, page, kind.is_atomic()),
        };
        match executor {
            Executor::ThisRack(_) => match self.write_for(rack, page, word, kind) {
                PageUse::Done { found, .. } => self.answer(call, Answer::Done(found)),
                PageUse::Refused(_) => self.answer(call, Answer::Moved),
            },
            Executor::Home(home) => {
                let message = Message::Operation { call, page, word, kind };
                self.send(rack, usize::from(home.0), message);
            }
            Executor::Later => self.wait_for_page(rack, page, waiting),
            Executor::Unknown => self.answer(call, Answer::Moved),
        }
    }

    fn wait_for_page(&mut self, rack: usize, page: PageId, waiting: Waiting) {
        let kind = self.history.get(waiting.call.operation).kind;
        let Some(daemon) = &mut self.racks[rack].daemon else { return };
        if kind.access() == Access::Write {
            daemon.machine.handle(RackEvent::WriteWanted(page));
        }
        daemon.waiting.push(waiting);
        self.feed(rack, RackEvent::WriteNeeded(page));
    }

    /// Continues the requests that wait for pages of this rack, or answers those that have waited
    /// long enough.
    pub(crate) fn wake_waiting(&mut self, rack: usize) {
        let Some(daemon) = &mut self.racks[rack].daemon else { return };
        for waiting in std::mem::take(&mut daemon.waiting) {
            if self.now < waiting.until {
                self.serve(rack, waiting);
                continue;
            }
            self.answer(
                waiting.call,
                match waiting.request {
                    Request::Translate => Answer::Refused,
                    Request::Operate => Answer::Moved,
                },
            );
        }
    }

    /// The home has executed a client's operation, or refused it and never will execute it.
    pub(crate) fn operation_answered(
        &mut self,
        rack: usize,
        home: usize,
        call: Call,
        outcome: PageUse,
    ) {
        let one = self.history.get(call.operation);
        let (page, home, is_forwarded) = (one.page, rack_id(home), !one.kind.is_atomic());
        let Some(daemon) = &mut self.racks[rack].daemon else { return };
        match outcome {
            PageUse::Done { found, moving } => {
                if is_forwarded && !moving {
                    self.feed(rack, RackEvent::WrittenByHome { page, home });
                }
                self.answer(call, Answer::Done(found));
            }
            PageUse::Refused(refusal) => {
                daemon.machine.note_refusal(page, home, refusal, is_forwarded);
                match refusal {
                    LeaseAnswer::NotAllocated => {
                        self.translated(rack, call, RackAnswer::NotAllocated)
                    }
                    LeaseAnswer::Lost => self.translated(rack, call, RackAnswer::PageLost),
                    _ => self.answer(call, Answer::Moved),
                }
            }
        }
    }
}

/// What became of an operation at the page's home.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum PageUse {
    /// It was executed, and returned `found`.
    Done {
        found: u64,
        moving: bool,
    },
    Refused(LeaseAnswer),
}

/// Returns the refusal of an operation on a page that does not permit it now.
pub(crate) const fn refusal(access: PageAccess) -> LeaseAnswer {
    match access {
        PageAccess::Usable(_) | PageAccess::Forwarded(_) | PageAccess::Busy => LeaseAnswer::Busy,
        PageAccess::Free => LeaseAnswer::NotAllocated,
        PageAccess::Lost => LeaseAnswer::Lost,
        PageAccess::Elsewhere => LeaseAnswer::NotHere,
    }
}
