//! The metadata server and its disk.

use std::collections::BTreeMap;

use rackpool_model::PageId;
use rackpool_proto::directory::{Directory, Moved};
use rackpool_proto::planted::Bugs;
use rackpool_proto::swap::{Server, ServerEvent, SwapBatch};

use crate::message::{Message, Node};
use crate::rules::{MICRO, MILLI, SWAP};
use crate::world::{Clock, Event, World};

#[derive(Debug)]
pub(crate) struct ServerNode<B> {
    machine: Option<Server<B>>,
    /// What the machine goes by: what the disk has.
    pub(crate) directory: Directory,
    /// What the disk has, synced.
    moved: BTreeMap<PageId, Moved>,
    /// Written, but not synced: a crash keeps or forgets it.
    unsynced: Option<Vec<Moved>>,
    pub(crate) life: u64,
    pub(crate) clock: Clock,
    pub(crate) paused_until: u64,
    pub(crate) wake_at: u64,
    /// The next transaction fails.
    pub(crate) disk_fails: bool,
}

impl<B: Bugs> ServerNode<B> {
    pub(crate) fn new(clock: Clock) -> Self {
        Self {
            machine: None,
            directory: Directory::default(),
            moved: BTreeMap::new(),
            unsynced: None,
            life: 0,
            clock,
            paused_until: 0,
            wake_at: 0,
            disk_fails: false,
        }
    }
}

impl<B: Bugs> World<B> {
    pub(crate) fn start_server(&mut self) {
        if self.server.machine.is_some() {
            return;
        }
        self.server.life += 1;
        self.server.wake_at = 0;
        let boot = u32::try_from(self.server.life).unwrap_or(u32::MAX);
        let now = self.server.clock.read(self.now);
        self.server.directory.clone_from(&self.directory);
        for moved in self.server.moved.values() {
            if let Err(error) = self.server.directory.place(*moved) {
                return self.breaks(|| format!("the disk has what can't be: {error}"));
            }
        }
        self.server.machine = Some(Server::new(now, SWAP, boot, self.bugs));
    }

    pub(crate) fn crash_server(&mut self) {
        if self.server.machine.take().is_none() {
            return;
        }
        self.seen.crashes += 1;
        let unsynced = self.server.unsynced.take();
        if let Some(moved) = unsynced.filter(|_| self.rng.percent(50)) {
            self.server.write(moved);
        }
        let longest = if self.rng.percent(50) { 10 } else { 200 };
        let wait = self.rng.within(MILLI..longest * MILLI);
        self.after(wait, Event::Restart(Node::Server));
    }

    /// Where the metadata server says a page is, as far as that is durable.
    pub(crate) fn settled_home(&self, page: PageId) -> Option<usize> {
        self.server.machine.as_ref()?;
        self.server.directory.home(page).map(|rack| usize::from(rack.0))
    }

    pub(crate) fn server_got(&mut self, from: Node, message: Message) {
        let Node::Rack(rack) = from else { return };
        match message {
            Message::ToServer(message) => {
                let from = crate::world::rack_id(rack);
                self.feed_server(ServerEvent::RackSent(from, message));
            }
            Message::Locate(page) => {
                if let Some(home) = self.settled_home(page) {
                    self.send(Node::Server, from, Message::Located(page, home));
                }
            }
            _ => {}
        }
    }

    pub(crate) fn server_woke(&mut self, life: u64) {
        if life == self.server.life {
            self.feed_server(ServerEvent::DeadlinePassed);
        }
    }

    fn feed_server(&mut self, event: ServerEvent) {
        let now = self.server.clock.read(self.now);
        let ServerNode { machine: Some(machine), directory, .. } = &mut self.server else { return };
        machine.handle(now, directory, event);
        let batch = machine.next_batch(directory);
        while let Some((rack, message)) = self.server.machine.as_mut().and_then(Server::poll) {
            let to = Node::Rack(usize::from(rack.0));
            self.send(Node::Server, to, Message::FromServer(message));
        }
        if let Some(SwapBatch { id: batch, moved }) = batch {
            let life = self.server.life;
            let fails = std::mem::take(&mut self.server.disk_fails);
            self.server.unsynced = Some(moved.clone());
            let wait = self.rng.within(200 * MICRO..3 * MILLI);
            self.after(wait, Event::Persisted { life, batch, moved, fails });
        }
        let deadline = self.server.machine.as_ref().and_then(Server::deadline);
        self.wake(Node::Server, deadline, None);
    }

    pub(crate) fn persisted(&mut self, life: u64, batch: u64, moved: Vec<Moved>, fails: bool) {
        if life != self.server.life || self.server.machine.is_none() {
            return;
        }
        if fails {
            self.feed_server(ServerEvent::CommitFailed);
            if !self.server.machine.as_ref().is_some_and(Server::is_halted) {
                self.breaks(|| "the metadata server goes on although its disk has failed".into());
            }
            // Its shell ends; what is in the file shows after the restart.
            return self.crash_server();
        }
        self.server.unsynced = None;
        self.seen.moved += moved.len() as u64 / 2;
        for moved in &moved {
            if let Err(error) = self.server.directory.place(*moved) {
                return self.breaks(|| format!("a commit that can't be: {error}"));
            }
        }
        self.server.write(moved);
        self.feed_server(ServerEvent::Committed(batch));
    }
}

impl<B> ServerNode<B> {
    fn write(&mut self, moved: Vec<Moved>) {
        self.moved.extend(moved.into_iter().map(|moved| (moved.page, moved)));
    }

    pub(crate) const fn is_up(&self) -> bool {
        self.machine.is_some()
    }
}
