//! What a connection does, for others to ask about.

use std::time::Instant;

use rackpool_sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use crate::commands::{Command, Subcommand, name_at};
use crate::session::Transaction;

/// What a connection does. Its thread alone writes it, `CLIENT LIST` reads it from any; on cache
/// lines of its own, since threads write theirs with each command.
#[derive(Debug)]
#[repr(align(128))]
pub struct Activity {
    since: Instant,
    /// When something last came from it, in milliseconds since `since`.
    last: AtomicU64,
    /// Where its last command stands in the tables of them; 0: none that is known.
    command: AtomicUsize,
    /// One more than how many commands wait for `EXEC`; 0: outside of `MULTI`.
    queued: AtomicUsize,
    /// How many bytes those take.
    queued_bytes: AtomicUsize,
    /// Bytes that have come and are not done.
    input: AtomicUsize,
    /// For how many more its buffer has room.
    input_room: AtomicUsize,
    /// Bytes of answers that wait for its socket.
    output: AtomicUsize,
    /// The size of the buffer they are in.
    output_buffer: AtomicUsize,
    /// Most bytes of answers that were together when it was last served.
    output_most: AtomicUsize,
    /// All bytes that it holds between two turns.
    held: AtomicUsize,
}

impl Activity {
    /// Of a connection that has just come.
    #[must_use]
    pub fn new() -> Self {
        let zero = AtomicUsize::default;
        Self {
            since: Instant::now(),
            last: AtomicU64::default(),
            command: zero(),
            queued: zero(),
            queued_bytes: zero(),
            input: zero(),
            input_room: zero(),
            output: zero(),
            output_buffer: zero(),
            output_most: zero(),
            held: zero(),
        }
    }

    /// Requests have come, of so many bytes, in a buffer with so much room behind them.
    pub fn begin(&self, now: Instant, input: usize, room: usize) {
        let last = now.saturating_duration_since(self.since).as_millis();
        self.last.store(u64::try_from(last).unwrap_or(u64::MAX), Relaxed);
        self.input.store(input, Relaxed);
        self.input_room.store(room, Relaxed);
    }

    /// It was served: so much is left of what came and has room, so many bytes of answers wait in a
    /// buffer of that size, and there were at most so many.
    pub fn end(&self, (input, room): (usize, usize), [output, buffer, most]: [usize; 3]) {
        self.input.store(input, Relaxed);
        self.input_room.store(room, Relaxed);
        self.output.store(output, Relaxed);
        self.output_buffer.store(buffer, Relaxed);
        self.output_most.store(most, Relaxed);
    }

    /// Notes the `bytes` that the connection holds until it is served again.
    pub fn hold(&self, bytes: usize) {
        self.held.store(bytes, Relaxed);
    }

    /// How many bytes it holds.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held.load(Relaxed)
    }

    /// It asks for this.
    #[inline]
    pub fn command(&self, command: &'static Command) {
        self.command.store(std::ptr::from_ref(command).addr(), Relaxed);
    }

    /// It asks for this.
    pub fn subcommand(&self, subcommand: &'static Subcommand) {
        self.command.store(std::ptr::from_ref(subcommand).addr(), Relaxed);
    }

    /// It asks for something that there is not.
    pub fn unknown(&self) {
        self.command.store(0, Relaxed);
    }

    /// It collects this transaction.
    pub fn transaction(&self, transaction: Option<&Transaction>) {
        self.queued.store(transaction.map_or(0, |all| all.len() + 1), Relaxed);
        self.queued_bytes.store(transaction.map_or(0, Transaction::bytes), Relaxed);
    }

    /// Since when there is the connection, in whole seconds.
    #[must_use]
    pub fn age(&self) -> u64 {
        self.since.elapsed().as_secs()
    }

    /// Its fields in `CLIENT LIST` from `idle` to `cmd`, as Redis 7.0 has them. `own_bytes` are
    /// what the connection takes beside its buffers; `kind` is its flag.
    ///
    /// There is one database, nobody subscribes, arguments stay in the input until a request is
    /// whole, and answers wait in one buffer, not in a list of them: so much is 0.
    #[must_use]
    pub fn fields(&self, kind: &str, own_bytes: usize) -> String {
        let of = |counter: &AtomicUsize| counter.load(Relaxed);
        let now = u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX);
        let idle = now.saturating_sub(self.last.load(Relaxed)) / 1000;
        let queued = i64::try_from(of(&self.queued)).map_or(i64::MAX, |queued| queued - 1);
        let flags = match (if queued < 0 { "" } else { "x" }, kind) {
            ("", "") => "N".to_owned(),
            (transaction, kind) => format!("{transaction}{kind}"),
        };
        let (input, room, queued_bytes) =
            (of(&self.input), of(&self.input_room), of(&self.queued_bytes));
        let (output, buffer, most) =
            (of(&self.output), of(&self.output_buffer), of(&self.output_most));
        let all = own_bytes + size_of::<Self>() + input + room + queued_bytes + buffer;
        let events = if output > 0 { "rw" } else { "r" };
        let command = name_at(of(&self.command));
        format!(
            "idle={idle} flags={flags} db=0 sub=0 psub=0 ssub=0 multi={queued} qbuf={input} \
             qbuf-free={room} argv-mem=0 multi-mem={queued_bytes} rbs={buffer} rbp={most} \
             obl={output} oll=0 omem={buffer} tot-mem={all} events={events} cmd={command}"
        )
    }
}

impl Default for Activity {
    fn default() -> Self {
        Self::new()
    }
}
