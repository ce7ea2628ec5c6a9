//! The activity of a connection, as `CLIENT LIST` shows it.

use std::time::Instant;

use rackpool_sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use crate::commands::{Command, Subcommand, name_at};
use crate::session::Transaction;

/// The activity of a connection. Only its own thread writes it; `CLIENT LIST` reads it from any
/// thread. It has cache lines of its own, since threads write it with each command.
#[derive(Debug)]
#[repr(align(128))]
pub struct Activity {
    since: Instant,
    /// The time of the last input, in milliseconds since `since`.
    last: AtomicU64,
    /// The address of the last command in the command tables; 0 if it was unknown.
    command: AtomicUsize,
    /// The number of queued commands plus 1; 0 outside of `MULTI`.
    queued: AtomicUsize,
    /// The bytes of the queued commands.
    queued_bytes: AtomicUsize,
    /// Received bytes that are not yet executed.
    input: AtomicUsize,
    /// The free space of the input buffer, in bytes.
    input_room: AtomicUsize,
    /// Bytes of answers that wait to be sent.
    output: AtomicUsize,
    /// The size of the answer buffer, in bytes.
    output_buffer: AtomicUsize,
    /// The most bytes of answers in the buffer during the last turn.
    output_most: AtomicUsize,
    /// All bytes that the connection holds between two turns.
    held: AtomicUsize,
}

/// The use of a connection's input buffer.
#[derive(Clone, Copy, Debug)]
pub struct InputSpace {
    /// Received bytes that are not yet executed.
    pub bytes: usize,
    /// The free space behind them, in bytes.
    pub room: usize,
}

/// The use of a connection's answer buffer.
#[derive(Clone, Copy, Debug)]
pub struct OutputSpace {
    /// Bytes that wait to be sent.
    pub waiting: usize,
    /// The size of the buffer, in bytes.
    pub buffer: usize,
    /// The most bytes that were in it during the turn.
    pub most: usize,
}

impl Activity {
    /// The activity of a new connection.
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

    /// Notes that requests have arrived.
    pub fn begin(&self, now: Instant, input: InputSpace) {
        let last = now.saturating_duration_since(self.since).as_millis();
        self.last.store(u64::try_from(last).unwrap_or(u64::MAX), Relaxed);
        self.input.store(input.bytes, Relaxed);
        self.input_room.store(input.room, Relaxed);
    }

    /// Notes the end of a turn: the input left, and the answers.
    pub fn end(&self, input: InputSpace, output: OutputSpace) {
        self.input.store(input.bytes, Relaxed);
        self.input_room.store(input.room, Relaxed);
        self.output.store(output.waiting, Relaxed);
        self.output_buffer.store(output.buffer, Relaxed);
        self.output_most.store(output.most, Relaxed);
    }

    /// Notes the `bytes` that the connection holds until it is served again.
    pub fn hold(&self, bytes: usize) {
        self.held.store(bytes, Relaxed);
    }

    /// The bytes that the connection holds.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held.load(Relaxed)
    }

    /// Notes the command that is executed.
    #[inline]
    pub fn command(&self, command: &'static Command) {
        self.command.store(std::ptr::from_ref(command).addr(), Relaxed);
    }

    /// Notes the subcommand that is executed.
    pub fn subcommand(&self, subcommand: &'static Subcommand) {
        self.command.store(std::ptr::from_ref(subcommand).addr(), Relaxed);
    }

    /// Notes an unknown command.
    pub fn unknown(&self) {
        self.command.store(0, Relaxed);
    }

    /// Notes the transaction that is being queued.
    pub fn transaction(&self, transaction: Option<&Transaction>) {
        self.queued.store(transaction.map_or(0, |all| all.len() + 1), Relaxed);
        self.queued_bytes.store(transaction.map_or(0, Transaction::bytes), Relaxed);
    }

    /// The age of the connection in whole seconds.
    #[must_use]
    pub fn age(&self) -> u64 {
        self.since.elapsed().as_secs()
    }

    /// The connection's fields in `CLIENT LIST` from `idle` to `cmd`, in the format of Redis 7.0.
    /// `own_bytes` is the connection's memory without buffers; `kind` is the flag of its socket.
    ///
    /// Some fields are always 0: there is one database and no subscriptions, arguments stay in the
    /// input until a request is complete, and answers are in one buffer instead of a list.
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
