//! A daemon's link to the metadata server. It registers, sends heartbeats, sends requests of the
//! daemon and its clients, and registers again over a new connection when one has ended.

use std::collections::BTreeMap;

use rackpool_model::{Incarnation, PageId, PageRange, PageSize, PageState, StorePosition};
use rackpool_proto::Located;
use rackpool_proto::planted_bugs::Bugs;
use rackpool_proto::rack::RackEvent;
use rackpool_wire::metadata::{Member, MetadataReply, MetadataRequest, RackAnnouncement, Refusal};
use rackpool_wire::swap::ToServer;

use crate::client::Answer;
use crate::connection::Owner;
use crate::memory::Memory;
use crate::message::Call;
use crate::promises::memory_id;
use crate::roots::root_request;
use crate::rules::{FRAMES, LINK_RETRY, MEMBERSHIP_LEASE, USED};
use crate::world::{Event, RackNode, World, rack_id};

/// The most swap messages that wait for registration; more are dropped.
const MOST_WAITING: usize = 64;

#[derive(Debug)]
pub(crate) struct ServerLink {
    stage: Stage,
    /// Counts wake-ups; an earlier one is ignored.
    turn: u64,
    next_tag: u64,
    seen_version: u64,
    /// When the last message of the metadata server arrived.
    heard: u64,
    questions: BTreeMap<u64, Question>,
    /// Swap messages to be sent after registration.
    waiting: Vec<ToServer>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Away,
    /// Over this connection.
    Registering(usize),
    Serving(usize),
}

#[derive(Clone, Copy, Debug)]
enum Question {
    /// Of the rack's machine, with this number.
    Home(PageId, u64),
    Root(Call),
}

impl ServerLink {
    pub(crate) const fn new() -> Self {
        Self {
            stage: Stage::Away,
            turn: 0,
            next_tag: 0,
            seen_version: 0,
            heard: 0,
            questions: BTreeMap::new(),
            waiting: Vec::new(),
        }
    }

    pub(crate) const fn connection(&self) -> Option<usize> {
        match self.stage {
            Stage::Away => None,
            Stage::Registering(connection) | Stage::Serving(connection) => Some(connection),
        }
    }

    /// Returns true if the machine's question has no answer yet.
    pub(crate) fn asks(&self, number: u64) -> bool {
        let is_it =
            |question: &Question| matches!(question, Question::Home(_, of) if *of == number);
        self.questions.values().any(is_it)
    }

    pub(crate) const fn is_serving(&self) -> bool {
        matches!(self.stage, Stage::Serving(_))
    }
}

pub(crate) fn nanos(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl<B: Bugs> World<B> {
    fn is_at(&self, rack: usize, connection: usize) -> bool {
        let link = self.racks[rack].link.as_ref();
        link.is_some_and(|link| link.connection() == Some(connection))
    }

    fn appoint(&mut self, rack: usize, wait: u64) {
        let life = self.racks[rack].life;
        let Some(link) = &mut self.racks[rack].link else { return };
        link.turn += 1;
        let turn = link.turn;
        self.after(wait, Event::LinkDue { rack, life, turn });
    }

    pub(crate) fn link_due(&mut self, rack: usize, life: u64, turn: u64) {
        let lives = self.racks[rack].life == life;
        let Some(link) = &self.racks[rack].link else { return };
        if !lives || link.turn != turn {
            return;
        }
        let silent = self.now - link.heard > nanos(MEMBERSHIP_LEASE);
        match link.stage {
            Stage::Away => self.connect_link(rack),
            Stage::Serving(connection) if !silent => {
                self.beat(rack, connection);
                self.appoint(rack, nanos(MEMBERSHIP_LEASE) / 4);
            }
            Stage::Registering(_) | Stage::Serving(_) => self.lose_link(rack),
        }
    }

    pub(crate) fn connect_link(&mut self, rack: usize) {
        let life = self.racks[rack].life;
        let Some(connection) = self.connect(Owner::Rack { rack, life }) else {
            return self.appoint(rack, LINK_RETRY);
        };
        if let Some(link) = &mut self.racks[rack].link {
            link.stage = Stage::Registering(connection);
            link.seen_version = 0;
        }
        let announcement = RackAnnouncement {
            rack: rack_id(rack),
            memory: memory_id(rack),
            incarnation: Incarnation(life),
            frames: FRAMES,
            page_bytes: PageSize::DEFAULT.bytes(),
            seen: self.racks[rack].memory.seen,
            control_path: String::new(),
            fabric_address: String::new(),
        };
        self.ask_over(rack, connection, MetadataRequest::Register(announcement), None);
        self.appoint(rack, nanos(MEMBERSHIP_LEASE));
    }

    fn ask_over(
        &mut self,
        rack: usize,
        connection: usize,
        request: MetadataRequest,
        question: Option<Question>,
    ) {
        let Some(link) = &mut self.racks[rack].link else { return };
        link.next_tag += 1;
        let tag = link.next_tag;
        if let Some(question) = question {
            link.questions.insert(tag, question);
        }
        self.tell_server(connection, tag, request);
    }

    fn beat(&mut self, rack: usize, connection: usize) {
        let free = |state| state == Some(PageState::Free);
        let free = self.racks[rack].memory.all().filter(|found| free(found.word.state())).count();
        let Some(link) = &self.racks[rack].link else { return };
        let heartbeat = MetadataRequest::Heartbeat {
            rack: rack_id(rack),
            incarnation: Incarnation(self.racks[rack].life),
            free_frames: u32::try_from(free).unwrap_or(u32::MAX),
            seen_version: link.seen_version,
        };
        self.ask_over(rack, connection, heartbeat, None);
    }

    /// Drops the connection and all requests over it.
    fn lose_link(&mut self, rack: usize) {
        let Some(link) = &mut self.racks[rack].link else { return };
        let connection = link.connection();
        link.stage = Stage::Away;
        link.waiting.clear();
        let questions = std::mem::take(&mut link.questions);
        if let Some(connection) = connection {
            self.close(connection);
        }
        for question in questions.into_values() {
            match question {
                Question::Root(call) => self.answer(call, Answer::Failed),
                Question::Home(page, question) => {
                    let located = Located::Unreachable;
                    if let Some(daemon) = &mut self.racks[rack].daemon {
                        daemon.unreached = self.now;
                        daemon.machine.handle(RackEvent::PageLocated { page, question, located });
                    }
                }
            }
        }
        self.run_rack(rack);
        self.appoint(rack, LINK_RETRY);
    }

    /// Ends the link of a daemon that has died or, with `leaves`, stopped; it then sends `Leave`
    /// over another connection.
    pub(crate) fn end_link(&mut self, rack: usize, leaves: bool) {
        let link = self.racks[rack].link.take();
        if let Some(connection) = link.and_then(|link| link.connection()) {
            self.abort(connection);
        }
        if leaves && let Some(connection) = self.connect(Owner::Goodbye(rack)) {
            let (id, incarnation) = (rack_id(rack), Incarnation(self.racks[rack].life));
            self.tell_server(connection, 1, MetadataRequest::Leave { rack: id, incarnation });
        }
    }

    /// Sends a swap message; it is lost while the metadata server is away.
    pub(crate) fn tell_of_swap(&mut self, rack: usize, message: ToServer) {
        let (id, incarnation) = (rack_id(rack), Incarnation(self.racks[rack].life));
        let Some(link) = &mut self.racks[rack].link else { return };
        match link.stage {
            Stage::Serving(connection) => {
                let request = MetadataRequest::Swap { rack: id, incarnation, message };
                self.ask_over(rack, connection, request, None);
            }
            Stage::Registering(_) if link.waiting.len() < MOST_WAITING => {
                link.waiting.push(message);
            }
            Stage::Registering(_) | Stage::Away => {}
        }
    }

    /// Asks for a page's home.
    pub(crate) fn ask_home(&mut self, rack: usize, page: PageId, question: u64) {
        let RackNode { link, daemon, .. } = &mut self.racks[rack];
        match (link, daemon) {
            (Some(ServerLink { stage: Stage::Serving(connection), .. }), _) => {
                let (connection, question) = (*connection, Some(Question::Home(page, question)));
                self.ask_over(rack, connection, MetadataRequest::Locate { page }, question);
            }
            (_, Some(daemon)) => {
                let located = Located::Unreachable;
                daemon.unreached = self.now;
                daemon.machine.handle(RackEvent::PageLocated { page, question, located });
            }
            _ => {}
        }
    }

    /// Asks for the members: they come with the answer to a heartbeat.
    pub(crate) fn ask_for_members(&mut self, rack: usize) {
        let link = self.racks[rack].link.as_ref();
        if let Some(Stage::Serving(connection)) = link.map(|link| link.stage) {
            self.beat(rack, connection);
        }
    }

    /// Sends a client's request about a name.
    pub(crate) fn ask_root_over_link(&mut self, rack: usize, call: Call) {
        let Some(ServerLink { stage: Stage::Serving(connection), .. }) = self.racks[rack].link
        else {
            return self.answer(call, Answer::Failed);
        };
        let one = self.history.get(call.operation);
        if let Some(request) = root_request(one.page, one.kind) {
            self.ask_over(rack, connection, request, Some(Question::Root(call)));
        }
    }

    /// A message has arrived over a connection of a daemon; `None`: the connection has ended.
    pub(crate) fn link_heard(
        &mut self,
        rack: usize,
        life: u64,
        connection: usize,
        message: Option<(u64, MetadataReply)>,
    ) {
        if self.racks[rack].life != life || !self.is_at(rack, connection) {
            return;
        }
        let Some((tag, reply)) = message else { return self.lose_link(rack) };
        let Some(link) = &mut self.racks[rack].link else { return };
        link.heard = self.now;
        if let Some(question) = link.questions.remove(&tag) {
            return match (question, reply) {
                (Question::Home(page, question), reply) => {
                    let located = match reply {
                        MetadataReply::Located { home, .. } => Located::Home(home),
                        MetadataReply::NoSuchPage => Located::NoSuchPage,
                        MetadataReply::PageLost => Located::Lost,
                        _ => Located::Unreachable,
                    };
                    if let Some(daemon) = &mut self.racks[rack].daemon
                        && located == Located::Unreachable
                    {
                        daemon.unreached = self.now;
                    }
                    self.feed(rack, RackEvent::PageLocated { page, question, located });
                }
                (Question::Root(call), reply) => self.root_told(call, Some(reply)),
            };
        }
        match reply {
            MetadataReply::Registered { pages, position, .. } => {
                self.registered(rack, connection, pages);
                self.note_position(rack, position);
            }
            MetadataReply::Renewed { version, members, .. }
            | MetadataReply::Members { version, members } => {
                if !members.is_empty() {
                    link.seen_version = version;
                    self.members_named(rack, &members);
                }
            }
            MetadataReply::Swap { message, position } => {
                self.note_position(rack, position);
                self.feed(rack, RackEvent::ServerSent(message));
            }
            MetadataReply::Refused(Refusal::NotMember(_) | Refusal::Store(_)) => {
                self.lose_link(rack);
            }
            other => self.breaks(|| format!("rack {rack} is told {other:?}")),
        }
    }

    fn members_named(&mut self, rack: usize, members: &[Member]) {
        if let Some(daemon) = &mut self.racks[rack].daemon {
            daemon.machine.members_changed(members.to_vec());
            self.run_rack(rack);
        }
    }

    /// Records the position in the rack's memory, which survives its daemon.
    fn note_position(&mut self, rack: usize, position: StorePosition) {
        let seen = &mut self.racks[rack].memory.seen;
        *seen = (*seen).max(Some(position));
    }

    fn registered(&mut self, rack: usize, connection: usize, pages: PageRange) {
        let had = self.racks[rack].pages.replace(pages);
        if had.is_some_and(|had| had != pages) {
            return self.breaks(|| format!("rack {rack} had {had:?}, and is given {pages:?}"));
        }
        let Some(link) = &mut self.racks[rack].link else { return };
        link.stage = Stage::Serving(connection);
        let waiting = std::mem::take(&mut link.waiting);
        if had.is_none() {
            let files = std::mem::take(&mut self.racks[rack].memory.files);
            self.racks[rack].memory = Memory::new(pages.first);
            self.racks[rack].memory.files = files;
            let used = (pages.first.0..).take(USED as usize).map(PageId);
            self.allocated_since.extend(used.map(|page| (page, self.now)));
            self.start_daemon(rack);
        }
        for message in waiting {
            self.tell_of_swap(rack, message);
        }
        self.beat(rack, connection);
        self.appoint(rack, nanos(MEMBERSHIP_LEASE) / 4);
    }
}
