use std::io::{self, Write};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mio::{Events, Poll, Token};

use super::listeners::Listeners;
use super::mailbox::Mailbox;
use super::stream::Stream;
use crate::shared::ServiceState;

const TCP: Token = Token(0);
const UNIX: Token = Token(1);
/// The interval at which the thread checks whether the service ends, and retries after an error.
const TICK: Duration = Duration::from_millis(100);
/// The least time between two log lines about denied clients.
const QUIET: Duration = Duration::from_secs(1);

fn lock(shared: &ServiceState) -> MutexGuard<'_, Option<Listeners>> {
    shared.listeners.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The thread that accepts connections. It gives each to the thread with the fewest connections.
#[derive(Debug)]
pub struct Acceptor {
    poll: Poll,
    shared: Arc<ServiceState>,
    mailboxes: Arc<[Mailbox]>,
    /// The index of its metrics.
    thread: usize,
    /// The time of the last log line about a denied client.
    told: Option<Instant>,
}

impl Acceptor {
    /// Registers the listening sockets of the service.
    pub fn new(
        shared: Arc<ServiceState>,
        mailboxes: Arc<[Mailbox]>,
        thread: usize,
    ) -> io::Result<Self> {
        let poll = Poll::new()?;
        if let Some(listeners) = &mut *lock(&shared) {
            listeners.register(poll.registry(), [TCP, UNIX])?;
        }
        Ok(Self { poll, shared, mailboxes, thread, told: None })
    }

    /// Accepts connections until the service ends.
    pub fn run(mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(4);
        while !self.shared.has_to_end() {
            if let Err(error) = self.poll.poll(&mut events, Some(TICK))
                && error.kind() != io::ErrorKind::Interrupted
            {
                return Err(error);
            }
            self.let_in();
        }
        Ok(())
    }

    fn let_in(&mut self) {
        while !self.shared.has_to_end() {
            let accepted = match &*lock(&self.shared) {
                Some(listeners) => listeners.accept(),
                None => return,
            };
            match accepted {
                Ok(stream) => self.place(stream),
                Err(error) => {
                    // Other errors may be transient; the next poll retries.
                    if error.kind() != io::ErrorKind::WouldBlock {
                        tracing::warn!("can't admit a connection: {error}");
                    }
                    return;
                }
            }
        }
    }

    fn place(&mut self, mut stream: Stream) {
        let refusal = if self.is_full() {
            Some("-ERR max number of clients reached\r\n".to_owned())
        } else if self.shared.is_for_own_user() {
            stream.require_same_user().err().map(|why| self.denial(&why))
        } else {
            None
        };
        if let Some(refusal) = refusal {
            self.shared.stats(self.thread).rejected.add(1);
            // The client sees the reason if its socket accepts the bytes at once.
            let _ = stream.write(refusal.as_bytes());
            return;
        }
        self.shared.stats(self.thread).connections.add(1);
        let fewest = self.mailboxes.iter().min_by_key(|mailbox| mailbox.load());
        if let Some(mailbox) = fewest
            && let Err(error) = mailbox.post(stream)
        {
            tracing::warn!("a thread can't be woken: {error}");
        }
    }

    fn is_full(&self) -> bool {
        self.mailboxes.iter().map(Mailbox::load).sum::<usize>() >= self.shared.max_clients
    }

    /// The error for a client of another user, in the form of Redis's protected mode.
    fn denial(&mut self, why: &str) -> String {
        if self.told.is_none_or(|told| told.elapsed() >= QUIET) {
            tracing::warn!("a client was denied: {why}");
            self.told = Some(Instant::now());
        }
        format!(
            "-DENIED this rackpool-kv has no password and serves only the user that started it and root: connect as that user, or start it with --password-file, or with --any-user ({why})\r\n"
        )
    }
}
