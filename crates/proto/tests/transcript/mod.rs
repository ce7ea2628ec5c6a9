//! The driver: it owns the clock, the store and every connection.

mod command;
mod show;

use std::fmt::Write;
use std::time::Duration;

use rackpool_proto::Time;
use rackpool_proto::metadata::{Action, BatchId, Change, ConnectionToken, Event, MetadataMachine};

use command::Command;

const LEASE: Duration = Duration::from_millis(2000);

/// A machine and everything around it.
pub(crate) struct World {
    machine: MetadataMachine,
    now: Time,
    last_tag: u64,
    stored: Vec<Change>,
    in_flight: Option<(BatchId, Vec<Change>)>,
    /// Whether the store commits at once, without printing it.
    commits_at_once: bool,
    output: String,
}

impl World {
    /// A new pool whose machine has started, with a store that commits at once.
    pub(crate) fn new() -> Self {
        let mut world = Self {
            machine: MetadataMachine::restore(Time::ZERO, LEASE, 1, []).unwrap(),
            now: Time::ZERO,
            last_tag: 0,
            stored: Vec::new(),
            in_flight: None,
            commits_at_once: true,
            output: String::new(),
        };
        world.settle();
        world
    }

    /// Returns the output since the last call.
    pub(crate) fn take_output(&mut self) -> String {
        self.settle();
        if self.output.is_empty() {
            self.output.push_str("nothing\n");
        }
        std::mem::take(&mut self.output)
    }

    /// Executes one line.
    pub(crate) fn command(&mut self, line: &str) {
        match Command::parse(line) {
            Command::At(now) => {
                self.settle();
                self.now = now;
                self.machine.handle(now, Event::DeadlinePassed);
            }
            Command::CommitsByHand => {
                self.settle();
                self.commits_at_once = false;
            }
            Command::Ask { from, request } => {
                self.last_tag += 1;
                let from = ConnectionToken(from);
                self.machine
                    .handle(self.now, Event::Requested { from, tag: self.last_tag, request });
            }
            Command::Commit => {
                self.settle();
                self.commit();
            }
            Command::Fail(reason) => {
                self.settle();
                let (batch, _) = self.in_flight.take().expect("a batch is under way");
                self.machine.handle(self.now, Event::CommitFailed { batch, reason });
            }
            Command::Restart => {
                self.settle();
                self.in_flight = None;
                let server = self.stored.len() as u64 + 1;
                self.machine =
                    MetadataMachine::restore(self.now, LEASE, server, self.stored.clone()).unwrap();
            }
            Command::Deadline => {
                let deadline = self.machine.deadline();
                let deadline = deadline.map_or("none".into(), |time| time.to_string());
                writeln!(self.output, "deadline {deadline}").unwrap();
            }
        }
        if self.commits_at_once {
            self.settle();
        }
    }

    fn commit(&mut self) {
        let (batch, changes) = self.in_flight.take().expect("a batch is under way");
        self.stored.extend(changes);
        self.machine.handle(self.now, Event::Committed { batch });
    }

    /// Polls until there is nothing left to do.
    fn settle(&mut self) {
        while let Some(action) = self.machine.poll() {
            if let Action::Persist { batch, changes } = &action {
                assert_eq!(self.in_flight.replace((*batch, changes.clone())), None);
                if self.commits_at_once {
                    self.commit();
                    continue;
                }
            }
            show::action(&mut self.output, &action);
        }
    }
}
