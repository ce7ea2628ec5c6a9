use std::io::{self, Write};
use std::time::Instant;

use rackpool_kv::Lookahead;

use super::arriving::Arriving;
use super::input::{Filled, Input};
use super::stream::Stream;
use crate::activity::OutputSpace;
use crate::client_memory::ClientMemory;
use crate::commands::{CommandOutcome, Context, execute, refuse_arrived};
use crate::memory_limit::Evictor;
use crate::resp::{
    Args, Parsed, Reply, RequestLimits, RequestParser, UNAUTHENTICATED_REQUEST, Views, first_key,
};
use crate::session::{Session, Transaction};
use crate::shared::ServiceState;
use crate::store::Store;

/// While more bytes of answers than this wait to be sent, no further command is executed.
const BACKLOG: usize = 1 << 20;
/// While more bytes of requests than this wait to be executed, nothing is read. Many clients write
/// all their requests before they read the first answer.
const UNDONE: usize = 256 << 20;
/// The same as [`BACKLOG`] for an unauthenticated peer.
const UNAUTHENTICATED_BACKLOG: usize = 2 << 10;
/// Waiting answers of at most this length are moved to a buffer of their own size.
const SMALL: usize = 16 << 10;
/// The most bytes of large strings that one connection is sent before others are served.
const TURN: usize = 4 << 20;
/// The most reads from a connection before other connections are served.
const ROUNDS: usize = 4;
/// The number of requests whose keys are prefetched before the first of them is executed.
pub(super) const AHEAD: usize = 32;

/// What a thread needs to serve its connections.
#[derive(Debug)]
pub(super) struct Desk {
    pub(super) store: Store,
    pub(super) evictor: Evictor,
    pub(super) thread: usize,
    /// Spare input buffers.
    pub(super) inputs: Vec<Vec<u8>>,
    pub(super) output: Vec<u8>,
    /// Keys of requests that have arrived and are not yet executed.
    pub(super) lookahead: Lookahead,
    /// The time at the beginning of the current round.
    pub(super) now: Instant,
}

/// A client's connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) stream: Stream,
    pub(super) session: Session,
    input: Input,
    parser: RequestParser,
    /// The long arguments of the request that is being parsed.
    arriving: Arriving,
    output: Vec<u8>,
    /// How much of `output` is sent.
    sent: usize,
    /// Large strings between the bytes of `output`.
    views: Views,
    /// The most bytes of answers that waited at once since the last turn.
    most: usize,
    /// How much of the input the lookahead has covered.
    looked: usize,
    /// The socket may have more to read.
    readable: bool,
    /// The client has closed its side: after the remaining bytes there is an end to read.
    ends: bool,
    /// The end was read.
    has_ended: bool,
    /// Whether the socket is registered for writability.
    pub(super) awaits_room: bool,
    /// The state of the connection's long command.
    long: LongCommand,
    /// The bytes that this connection contributes to [`ClientMemory`].
    held: usize,
}

/// The state of a connection's long command. Until it is done, the session is with the command, a
/// stand-in takes its place, and later requests of the connection wait.
#[derive(Debug)]
enum LongCommand {
    /// There is none.
    None,
    /// It is to be handed to a thread for long commands.
    Due(Box<(Session, Transaction)>),
    /// A thread for long commands executes it. Left when its result comes back.
    Away,
}

/// How far answers were sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sent {
    /// All, or what the socket accepts.
    Enough,
    /// As much as others can wait for: the socket may accept more.
    Turn,
}

/// What the event loop does with a connection next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Wait for the socket.
    Wait,
    /// Serve it again after the others.
    Again,
    /// Serve it again at this time.
    At(Instant),
    /// Close it.
    Close,
}

impl Connection {
    pub(super) fn new(stream: Stream, session: Session) -> Self {
        Self {
            stream,
            session,
            input: Input::default(),
            parser: RequestParser::default(),
            arriving: Arriving::default(),
            output: Vec::new(),
            sent: 0,
            views: Views::default(),
            most: 0,
            looked: 0,
            readable: true,
            ends: false,
            has_ended: false,
            awaits_room: false,
            long: LongCommand::None,
            held: 0,
        }
    }

    /// Takes a long command that is due, with its session, to hand it to another thread.
    pub(super) fn take_long(&mut self) -> Option<(Session, Transaction)> {
        match std::mem::replace(&mut self.long, LongCommand::None) {
            LongCommand::Due(long) => {
                self.long = LongCommand::Away;
                Some(*long)
            }
            other => {
                self.long = other;
                None
            }
        }
    }

    /// Takes back the session and the answer of a long command.
    pub(super) fn come_back(&mut self, session: Session, answer: Vec<u8>, views: Views) {
        self.session = session;
        self.long = LongCommand::None;
        self.views.append(self.output.len(), views);
        if self.output.is_empty() {
            self.output = answer;
        } else {
            self.output.extend_from_slice(&answer);
        }
    }

    const fn has_long(&self) -> bool {
        !matches!(self.long, LongCommand::None)
    }

    /// The socket has something to read; `ends`: also the end.
    pub(super) const fn set_readable(&mut self, ends: bool) {
        self.readable = true;
        self.ends |= ends;
    }

    /// Whether answers wait that the socket did not accept.
    pub(super) fn needs_room(&self) -> bool {
        self.waiting() > 0 && self.session.answers_at.is_none()
    }

    /// The most input bytes that may wait.
    const fn most_input(&self) -> usize {
        if self.session.is_known { usize::MAX } else { UNAUTHENTICATED_REQUEST }
    }

    /// As the free function [`backlog`].
    const fn backlog(&self) -> usize {
        backlog(&self.session)
    }

    /// Accounts for the bytes that the connection holds until its next turn.
    pub(super) fn hold(&mut self, bytes: usize, memory: &ClientMemory) {
        memory.change(self.held, bytes);
        self.held = bytes;
        self.session.activity.hold(bytes);
    }

    /// Reads what has arrived and prefetches its keys, before the connection is
    /// [served](Self::serve).
    pub(super) fn look_ahead(&mut self, desk: &mut Desk) {
        // Everything else, failures included, is left to `serve`.
        let is_quiet = self.input.bytes().is_empty() && self.waiting() == 0;
        if self.readable && is_quiet && self.session.answers_at.is_none() {
            let most = self.most_input();
            match self.input.fill(&mut self.stream, &mut desk.inputs, most) {
                Ok(Filled::All) => {}
                Ok(Filled::Rest) => self.readable = self.ends,
                Ok(Filled::Nothing) => self.readable = false,
                Ok(Filled::End) | Err(_) => return,
            }
            if self.session.is_known {
                self.looked = look(self.input.bytes(), &desk.store, &mut desk.lookahead);
            }
        }
    }

    /// Reads, executes requests and sends answers, as far as that is possible without blocking.
    pub(super) fn serve(&mut self, desk: &mut Desk, shared: &ServiceState) -> Next {
        if self.output.capacity() == 0 {
            self.output = std::mem::take(&mut desk.output);
        }
        let next = self.try_serve(desk, shared).unwrap_or(Next::Close);
        self.input.release(&mut desk.inputs);
        self.release_output(&mut desk.output);
        let buffer = self.output.capacity();
        let most = std::mem::take(&mut self.most);
        let output = OutputSpace { waiting: self.in_buffer(), buffer, most };
        self.session.activity.end(self.input.space(), output);
        let held = self.input.held() + buffer + self.parser.held() + self.session.held();
        self.hold(held, &shared.client_memory);
        next
    }

    /// Returns the output buffer to the thread if little waits in it.
    fn release_output(&mut self, spare: &mut Vec<u8>) {
        if self.waiting() > SMALL {
            return;
        }
        let rest = self.output[self.sent..].to_vec();
        let mut buffer = std::mem::replace(&mut self.output, rest);
        self.views.shift(self.sent);
        self.sent = 0;
        if buffer.capacity() <= BACKLOG && buffer.capacity() > spare.capacity() {
            buffer.clear();
            *spare = buffer;
        }
    }

    fn try_serve(&mut self, desk: &mut Desk, shared: &ServiceState) -> io::Result<Next> {
        match self.session.answers_at {
            // A timer will serve the connection.
            Some(at) if desk.now < at => return Ok(Next::Wait),
            _ => self.session.answers_at = None,
        }
        if self.send()? == Sent::Turn {
            return Ok(Next::Again);
        }
        if self.has_long() {
            return Ok(Next::Wait);
        }
        for _ in 0..ROUNDS {
            while self.waiting() < self.backlog() && !self.session.ends {
                let stopped = self.work(desk, shared);
                if let Some(at) = self.session.answers_at {
                    return Ok(Next::At(at));
                }
                if self.send()? == Sent::Turn {
                    return Ok(Next::Again);
                }
                if self.has_long() {
                    return Ok(Next::Wait);
                }
                if !stopped {
                    break;
                }
            }
            let is_behind = self.waiting() >= self.backlog();
            // Requests that arrived before the end are answered.
            self.session.ends |= self.has_ended && !is_behind;
            if self.session.ends {
                return Ok(if self.waiting() == 0 { Next::Close } else { Next::Wait });
            }
            let reads_ahead = self.session.is_known
                && self.input.bytes().len() < UNDONE
                && !shared.client_memory.is_exceeded();
            if !self.readable || (is_behind && !reads_ahead) || self.has_ended {
                return Ok(Next::Wait);
            }
            let most = self.most_input();
            match self.input.fill(&mut self.stream, &mut desk.inputs, most)? {
                Filled::All => {}
                // The socket reports the end only once, with the last bytes before it.
                Filled::Rest => self.readable = self.ends,
                Filled::Nothing => self.readable = false,
                Filled::End => self.has_ended = true,
            }
        }
        Ok(Next::Again)
    }

    /// The bytes that wait to be sent.
    fn waiting(&self) -> usize {
        waiting(&self.output, self.sent, &self.views)
    }

    /// Those of them that are in the buffer.
    const fn in_buffer(&self) -> usize {
        self.output.len() - self.sent
    }

    /// Executes the requests that have arrived, until too many answers wait. Returns whether there
    /// may be more requests.
    fn work(&mut self, desk: &mut Desk, shared: &ServiceState) -> bool {
        if self.input.bytes().is_empty() {
            return false;
        }
        self.session.activity.begin(desk.now, self.input.space());
        let Self { session, input, parser, arriving, output, sent, views, looked, .. } = self;
        let mut context = Context {
            store: &mut desk.store,
            evictor: &mut desk.evictor,
            session,
            shared,
            thread: desk.thread,
            others_wait: true,
        };
        let mut long = None;
        let mut used = 0;
        let mut more = true;
        while waiting(output, *sent, views) < backlog(context.session)
            && !context.session.ends
            && context.session.answers_at.is_none()
        {
            let limits = RequestLimits {
                kept_bytes: shared.longest_entry,
                is_unauthenticated_peer: !context.session.is_known,
            };
            let bytes = input.bytes().get(used..).unwrap_or_default();
            if used >= *looked && context.session.is_known {
                *looked = used + look(bytes, context.store, &mut desk.lookahead).max(1);
                context.store.keys.prefetch(&mut desk.lookahead);
            }
            let mut reply = Reply::new(output, views, context.session.resp3);
            match parser.parse(bytes, limits) {
                Ok(Parsed::More) => {
                    more = false;
                    break;
                }
                Ok(Parsed::Part { at, len }) => {
                    let part = bytes.get(at..at + len).unwrap_or_default();
                    arriving.take(&mut context, parser.args(bytes), parser.long(), part);
                    input.cut(used + at, len);
                }
                Ok(Parsed::Whole { end }) => {
                    long = finish(&mut context, parser.args(bytes), arriving, &mut reply);
                    parser.reset();
                    used += end;
                    if long.is_some() {
                        break;
                    }
                }
                Err(error) => {
                    reply.error(&format!("ERR {error}"));
                    context.session.ends = true;
                    *parser = RequestParser::default();
                    *arriving = Arriving::default();
                }
            }
        }
        *looked = looked.saturating_sub(used);
        self.input.consume(used);
        if let Some(request) = long {
            let stand_in = self.session.stand_in();
            let session = std::mem::replace(&mut self.session, stand_in);
            self.long = LongCommand::Due(Box::new((session, request)));
        }
        more
    }

    /// Sends as much as the socket accepts, of large strings at most [`TURN`].
    fn send(&mut self) -> io::Result<Sent> {
        self.most = self.most.max(self.in_buffer());
        let mut turn = TURN;
        loop {
            let end = self.views.first_at().unwrap_or(self.output.len());
            let written = if self.sent < end {
                self.stream.write(&self.output[self.sent..end])
            } else if self.views.is_empty() {
                break;
            } else if turn == 0 {
                return Ok(Sent::Turn);
            } else {
                self.views.send(&mut self.stream, turn)
            };
            match written {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) if self.sent < end => self.sent += written,
                Ok(written) => turn = turn.saturating_sub(written),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    // Never copies more bytes than were sent.
                    if self.sent >= self.in_buffer() {
                        self.output.drain(..self.sent);
                        self.views.shift(self.sent);
                        self.sent = 0;
                    }
                    return Ok(Sent::Enough);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.output.clear();
        self.sent = 0;
        Ok(Sent::Enough)
    }
}

/// The bytes that wait to be sent.
#[inline]
fn waiting(output: &[u8], sent: usize, views: &Views) -> usize {
    let in_buffer = output.len() - sent;
    if views.is_empty() { in_buffer } else { in_buffer.saturating_add(views.waiting()) }
}

/// Executes a request that has arrived; returns it if a thread for long commands must do that.
fn finish(
    context: &mut Context<'_>,
    args: Args<'_>,
    arriving: &mut Arriving,
    reply: &mut Reply<'_>,
) -> Option<Transaction> {
    let large = if arriving.is_empty() { Ok(Vec::new()) } else { arriving.end() };
    let large = match large {
        Ok(large) => large,
        Err(failure) => {
            refuse_arrived(context, &failure, reply);
            return None;
        }
    };
    let args = args.with_large(&large);
    let is_long = !args.is_empty() && execute(context, args, reply) == CommandOutcome::TakesLong;
    is_long.then(|| Transaction::of(args))
}

/// The bytes of waiting answers from which on a connection's next command is not executed.
const fn backlog(session: &Session) -> usize {
    if session.is_known { BACKLOG } else { UNAUTHENTICATED_BACKLOG }
}

/// Prefetches the keys of the requests in `bytes`; returns the number of bytes covered.
fn look(bytes: &[u8], store: &Store, lookahead: &mut Lookahead) -> usize {
    let mut at = 0;
    for _ in 0..AHEAD {
        let Some((key, end)) = first_key(bytes.get(at..).unwrap_or_default()) else { break };
        store.keys.look_ahead(key, lookahead);
        at += end;
    }
    at
}
