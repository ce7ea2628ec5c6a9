//! The state of a connection that commands use.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use crate::activity::Activity;
use crate::resp::{Args, LargeArgument};
use crate::store::WatchedState;
use crate::watches::Watches;

/// The state of a connection between two of its commands.
#[derive(Debug)]
pub struct Session {
    /// The connection's id, which is never reused.
    pub id: u64,
    /// Whether it speaks version 3 of the protocol.
    pub resp3: bool,
    /// Whether the client is authenticated, or no password is needed.
    pub is_known: bool,
    /// The commands queued since `MULTI`; `None` outside.
    pub transaction: Option<Transaction>,
    /// The watched keys and their states at `WATCH`.
    pub watched: Vec<(Vec<u8>, WatchedState)>,
    /// The total length of the watched keys, in bytes.
    pub watched_bytes: usize,
    /// Wrong passwords since the last right one.
    pub auth_failures: u32,
    /// The connection is not served and its answers are not sent before this time.
    pub answers_at: Option<Instant>,
    /// Whether the connection closes once its answers are sent.
    pub ends: bool,
    /// Which answers are sent (`CLIENT REPLY`).
    pub replies: Replies,
    /// The fields that `CLIENT LIST` reads.
    pub activity: Arc<Activity>,
}

/// Which answers are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replies {
    /// All.
    On,
    /// None.
    Off,
    /// All but that of the next command.
    SkipNext,
    /// All but that of the current command.
    Skip,
}

/// Commands that are queued for `EXEC`.
#[derive(Debug, Default)]
pub struct Transaction {
    bytes: Vec<u8>,
    args: Vec<Range<usize>>,
    /// The end of each command in `args`.
    ends: Vec<usize>,
    /// The arguments that are in the pool, by the number of their command.
    large: BTreeMap<usize, Vec<LargeArgument>>,
    /// A queued command fails when there is no memory.
    pub needs_memory: bool,
    /// A command was refused, so `EXEC` will execute none.
    pub is_broken: bool,
}

impl Session {
    /// The session of a new connection.
    #[must_use]
    pub fn new(id: u64, is_known: bool) -> Self {
        Self {
            id,
            resp3: false,
            is_known,
            transaction: None,
            watched: Vec::new(),
            watched_bytes: 0,
            auth_failures: 0,
            answers_at: None,
            ends: false,
            replies: Replies::On,
            activity: Arc::default(),
        }
    }

    /// The session that takes this one's place while this one is with a thread for long commands.
    #[must_use]
    pub fn stand_in(&self) -> Self {
        Self {
            id: self.id,
            resp3: self.resp3,
            is_known: self.is_known,
            transaction: None,
            watched: Vec::new(),
            watched_bytes: 0,
            auth_failures: self.auth_failures,
            answers_at: None,
            ends: false,
            replies: self.replies,
            activity: Arc::clone(&self.activity),
        }
    }

    /// The memory that the session holds without buffers, in bytes.
    #[must_use]
    pub fn held(&self) -> usize {
        let transaction = self.transaction.as_ref().map_or(0, Transaction::bytes);
        transaction
            + self.watched_bytes
            + self.watched.capacity() * size_of::<(Vec<u8>, WatchedState)>()
    }

    /// Adds a watched key.
    pub fn watch(&mut self, key: &[u8], seen: WatchedState) {
        self.watched_bytes += key.len();
        self.watched.push((key.to_vec(), seen));
    }

    /// Removes all watched keys.
    pub fn forget_watched(&mut self, watches: &Watches) {
        self.watched_bytes = 0;
        for (key, _) in self.watched.drain(..) {
            watches.end(&key);
        }
    }

    /// Marks the transaction, if there is one, as broken because a command was refused.
    pub fn break_transaction(&mut self) {
        if let Some(transaction) = &mut self.transaction {
            transaction.is_broken = true;
        }
    }
}

impl Transaction {
    /// A transaction of one command.
    #[must_use]
    pub fn of(args: Args<'_>) -> Self {
        let mut one = Self::default();
        one.push(args);
        one
    }

    /// Appends a command.
    pub fn push(&mut self, args: Args<'_>) {
        for argument in args.from(0) {
            let begin = self.bytes.len();
            self.bytes.extend_from_slice(argument);
            self.args.push(begin..self.bytes.len());
        }
        if !args.large().is_empty() {
            self.large.insert(self.ends.len(), args.large().to_vec());
        }
        self.ends.push(self.args.len());
    }

    /// The number of commands.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether it has no commands.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The memory of this process that the commands take, in bytes.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes.len() + self.args.len() * size_of::<Range<usize>>()
    }

    /// The commands in their order.
    pub fn commands(&self) -> impl Iterator<Item = Args<'_>> {
        let begins = std::iter::once(0).chain(self.ends.iter().copied());
        begins.zip(&self.ends).enumerate().map(|(number, (begin, end))| {
            let large = self.large.get(&number).map_or(&[][..], Vec::as_slice);
            let ranges = self.args.get(begin..*end).unwrap_or_default();
            Args::new(&self.bytes, ranges).with_large(large)
        })
    }
}
