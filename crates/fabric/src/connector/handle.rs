use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;

use rackpool_sync::eventfd;

use super::{Command, Connector, Outcome, Transport};
use crate::refusals::Refusals;
use crate::{EndpointId, FabricError};

/// The number of polls between two checks for reports. Connections change rarely, whereas
/// completions are frequent.
const REPORTS_EVERY: u32 = 16;

/// The fabric's end of its connector. Dropping it ends the thread.
pub struct ConnectorHandle<T: Transport> {
    commands: Sender<Command<T>>,
    /// Wakes the connector.
    control: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl<T: Transport> ConnectorHandle<T> {
    /// Starts the thread, which accepts connections from now on.
    pub fn start(transport: T, listener: OwnedFd) -> io::Result<Self> {
        let control = Arc::new(eventfd::new()?);
        let (commands, receiver) = channel();
        let connector = Connector {
            transport,
            listener,
            control: Arc::clone(&control),
            commands: receiver,
            connections: Vec::new(),
            refusals: Refusals::default(),
            watched: Vec::new(),
            next_watch: 0,
            accept_again_at: None,
        };
        let thread = std::thread::Builder::new().name("fabric-connector".into());
        let thread = Some(thread.spawn(|| connector.run())?);
        Ok(Self { commands, control, thread })
    }

    /// Queues a command.
    pub fn command(&self, command: Command<T>) -> Result<(), FabricError> {
        let sent = self.commands.send(command);
        eventfd::signal(&*self.control);
        sent.map_err(|_| FabricError::local("reach the connector", "its thread has ended"))
    }
}

impl<T: Transport> Drop for ConnectorHandle<T> {
    fn drop(&mut self) {
        // Fails only if the connector has already ended.
        let _ = self.command(Command::Stop);
        if let Some(thread) = self.thread.take() {
            // A panic of the connector has been printed; nothing else is to be done here.
            let _ = thread.join();
        }
    }
}

/// The reports of a connector, read by the thread that polls the fabric.
pub struct Outcomes<T: Transport> {
    receiver: Receiver<Outcome<T>>,
    /// A report that `arm` found.
    found: Option<Outcome<T>>,
    polls: u32,
}

impl<T: Transport> Outcomes<T> {
    /// Reads the reports from a channel.
    #[must_use]
    pub const fn new(receiver: Receiver<Outcome<T>>) -> Self {
        Self { receiver, found: None, polls: 0 }
    }

    /// Counts a poll. Returns true if it has to look for reports.
    pub const fn is_due(&mut self) -> bool {
        self.polls = self.polls.wrapping_add(1);
        self.polls.is_multiple_of(REPORTS_EVERY) || self.found.is_some()
    }

    /// The next report. `connecting` is an endpoint that waits for one: if the thread has ended,
    /// its connection has failed.
    pub fn next(&mut self, connecting: Option<EndpointId>) -> Option<Outcome<T>> {
        if let Some(found) = self.found.take() {
            return Some(found);
        }
        match self.receiver.try_recv() {
            Ok(outcome) => Some(outcome),
            Err(TryRecvError::Empty) => None,
            // Only a bug in the connector can cause that.
            Err(TryRecvError::Disconnected) => Some(Outcome::Failed {
                endpoint: connecting?,
                error: FabricError::local("reach the connector", "its thread has ended"),
            }),
        }
    }

    /// Returns true if there is no report, so that the owner may sleep.
    pub fn arm(&mut self, connecting: Option<EndpointId>) -> bool {
        self.found = self.next(connecting);
        self.found.is_none()
    }
}
