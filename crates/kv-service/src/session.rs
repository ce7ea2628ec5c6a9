//! What the service knows of a connection.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use crate::activity::Activity;
use crate::resp::Args;
use crate::store::Seen;
use crate::watches::Watches;

/// A connection's state between two of its commands.
#[derive(Debug)]
pub struct Session {
    /// Its number, which no other connection gets.
    pub id: u64,
    /// Whether it speaks version 3 of the protocol.
    pub resp3: bool,
    /// Whether it has said the password, or needs none.
    pub is_known: bool,
    /// The transaction that it collects.
    pub transaction: Option<Transaction>,
    /// The keys it watches, and what they were then.
    pub watched: Vec<(Vec<u8>, Seen)>,
    /// The bytes of those keys.
    pub watched_bytes: usize,
    /// How often it has said a wrong password since it last said the right one.
    pub auth_failures: u32,
    /// Its answers wait until then.
    pub answers_at: Option<Instant>,
    /// Whether it ends when its answers have gone out.
    pub ends: bool,
    /// Whether answers are to go out: on, off, or not that of the next command.
    pub replies: Replies,
    /// What others are told of it.
    pub activity: Arc<Activity>,
}

/// Which answers a client wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replies {
    /// All.
    On,
    /// None.
    Off,
    /// Not that of the next command.
    SkipNext,
    /// Not that of this command.
    Skip,
}

/// Commands that wait for `EXEC`.
#[derive(Debug, Default)]
pub struct Transaction {
    bytes: Vec<u8>,
    args: Vec<Range<usize>>,
    /// Where in `args` each command ends.
    ends: Vec<usize>,
    /// One of them was refused, so that none will be done.
    pub is_broken: bool,
}

impl Session {
    /// A connection that has just come.
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

    /// What stands in for it while it is with another thread.
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

    /// What it holds beside its buffers, in bytes.
    #[must_use]
    pub fn held(&self) -> usize {
        let transaction = self.transaction.as_ref().map_or(0, Transaction::bytes);
        transaction + self.watched_bytes + self.watched.capacity() * size_of::<(Vec<u8>, Seen)>()
    }

    /// Watches one more key.
    pub fn watch(&mut self, key: &[u8], seen: Seen) {
        self.watched_bytes += key.len();
        self.watched.push((key.to_vec(), seen));
    }

    /// Watches nothing any more.
    pub fn forget_watched(&mut self, watches: &Watches) {
        self.watched_bytes = 0;
        for (key, _) in self.watched.drain(..) {
            watches.end(&key);
        }
    }

    /// A command was refused: a transaction that it was to belong to will not be done.
    pub fn break_transaction(&mut self) {
        if let Some(transaction) = &mut self.transaction {
            transaction.is_broken = true;
        }
    }
}

impl Transaction {
    /// One command.
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
        self.ends.push(self.args.len());
    }

    /// How many commands there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// How many bytes they take.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes.len() + self.args.len() * size_of::<Range<usize>>()
    }

    /// The commands in their order.
    pub fn commands(&self) -> impl Iterator<Item = Args<'_>> {
        let begins = std::iter::once(0).chain(self.ends.iter().copied());
        begins.zip(&self.ends).map(|(begin, end)| {
            Args::new(&self.bytes, self.args.get(begin..*end).unwrap_or_default())
        })
    }
}
