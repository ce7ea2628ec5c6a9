use std::io::{self, Write};
use std::time::Instant;

use rackpool_kv::Ahead;

use super::input::{Filled, Input};
use super::stream::Stream;
use crate::commands::{Context, execute};
use crate::gate::Gate;
use crate::resp::{Limits, Parsed, Reply, RequestParser, first_key};
use crate::session::Session;
use crate::shared::Shared;
use crate::store::Store;

/// While more bytes of answers than this wait to go out, no further command is done.
const BACKLOG: usize = 1 << 20;
/// While more bytes of requests than this wait to be done, nothing is read. Many clients write all
/// that they want before they read the first answer.
const UNDONE: usize = 256 << 20;
/// A connection reads so many times before others get their turn.
const ROUNDS: usize = 4;
/// The keys of so many requests are looked at before the first of them is done.
pub(super) const AHEAD: usize = 32;

/// What a thread serves its connections with.
#[derive(Debug)]
pub(super) struct Desk {
    pub(super) store: Store,
    pub(super) thread: usize,
    /// Buffers that no connection needs now.
    pub(super) inputs: Vec<Vec<u8>>,
    pub(super) output: Vec<u8>,
    /// The keys of requests that have come and wait to be done.
    pub(super) ahead: Ahead,
    /// When it last began to serve some of them.
    pub(super) now: Instant,
}

/// A client's connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) stream: Stream,
    pub(super) session: Session,
    input: Input,
    parser: RequestParser,
    output: Vec<u8>,
    /// How much of it has gone out.
    sent: usize,
    /// Most bytes of answers that were there at once since it was last served.
    most: usize,
    /// How much of the input has been looked at ahead.
    looked: usize,
    /// There may be more to read.
    readable: bool,
    /// The client sends no more: there is an end to read.
    ends: bool,
    /// That end was read.
    has_ended: bool,
    /// Whether its socket tells when it takes bytes again.
    pub(super) awaits_room: bool,
}

/// What is to happen to a connection next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Wait for its socket.
    Wait,
    /// Serve it again when the others had their turn.
    Again,
    /// Drop it.
    Close,
}

impl Connection {
    pub(super) fn new(stream: Stream, session: Session) -> Self {
        Self {
            stream,
            session,
            input: Input::default(),
            parser: RequestParser::default(),
            output: Vec::new(),
            sent: 0,
            most: 0,
            looked: 0,
            readable: true,
            ends: false,
            has_ended: false,
            awaits_room: false,
        }
    }

    /// Its socket says that there is something to read, or the end.
    pub(super) const fn set_readable(&mut self, ends: bool) {
        self.readable = true;
        self.ends |= ends;
    }

    /// Whether it has something to say that its socket does not take now.
    pub(super) const fn needs_room(&self) -> bool {
        self.waiting() > 0
    }

    /// Reads what has come and looks at the keys in it, before it is [served](Self::serve) in its turn.
    pub(super) fn look_ahead(&mut self, desk: &mut Desk) {
        // Whatever else there is to do, a failure too, is done in its turn.
        if self.readable && self.input.bytes().is_empty() && self.waiting() == 0 {
            match self.input.fill(&mut self.stream, &mut desk.inputs) {
                Ok(Filled::All) => {}
                Ok(Filled::Rest) => self.readable = self.ends,
                Ok(Filled::Nothing) => self.readable = false,
                Ok(Filled::End) | Err(_) => return,
            }
            self.looked = look(self.input.bytes(), &desk.store, &mut desk.ahead);
        }
    }

    /// Reads, does what is asked, and answers, as far as that goes without waiting.
    pub(super) fn serve(&mut self, desk: &mut Desk, shared: &Shared, gate: &Gate) -> Next {
        if self.output.capacity() == 0 {
            self.output = std::mem::take(&mut desk.output);
        }
        let next = self.try_serve(desk, shared, gate).unwrap_or(Next::Close);
        self.input.release(&mut desk.inputs);
        if self.output.is_empty() && self.output.capacity() <= BACKLOG {
            desk.output = std::mem::take(&mut self.output);
        } else if self.output.is_empty() {
            self.output = Vec::new();
        }
        let output = [self.waiting(), self.output.capacity(), std::mem::take(&mut self.most)];
        self.session.activity.end(self.input.space(), output);
        next
    }

    fn try_serve(&mut self, desk: &mut Desk, shared: &Shared, gate: &Gate) -> io::Result<Next> {
        self.send()?;
        for _ in 0..ROUNDS {
            while self.waiting() < BACKLOG && !self.session.ends {
                let stopped = self.work(desk, shared, gate);
                self.send()?;
                if !stopped {
                    break;
                }
            }
            let is_behind = self.waiting() >= BACKLOG;
            // What it has asked for before its end is answered.
            self.session.ends |= self.has_ended && !is_behind;
            if self.session.ends {
                return Ok(if self.waiting() == 0 { Next::Close } else { Next::Wait });
            }
            let has_room = !is_behind || self.input.bytes().len() < UNDONE;
            if !self.readable || !has_room || self.has_ended {
                return Ok(Next::Wait);
            }
            match self.input.fill(&mut self.stream, &mut desk.inputs)? {
                Filled::All => {}
                // The socket says once that there is an end, with the last bytes before it.
                Filled::Rest => self.readable = self.ends,
                Filled::Nothing => self.readable = false,
                Filled::End => self.has_ended = true,
            }
        }
        Ok(Next::Again)
    }

    /// How many bytes have still to go out.
    const fn waiting(&self) -> usize {
        self.output.len() - self.sent
    }

    /// Does the requests that have come, as long as answers are not too many; whether there may be
    /// more requests.
    fn work(&mut self, desk: &mut Desk, shared: &Shared, gate: &Gate) -> bool {
        if self.input.bytes().is_empty() {
            return false;
        }
        let (came, room) = self.input.space();
        self.session.activity.begin(desk.now, came, room);
        let Self { session, input, parser, output, sent, looked, .. } = self;
        let mut context = Context {
            store: &mut desk.store,
            session,
            shared,
            turn: gate.turn(desk.thread),
            thread: desk.thread,
        };
        let mut used = 0;
        let mut more = true;
        while output.len() - *sent < BACKLOG && !context.session.ends {
            let limits =
                Limits { kept_bytes: shared.longest_entry, is_stranger: !context.session.is_known };
            let bytes = input.bytes().get(used..).unwrap_or_default();
            if used >= *looked {
                *looked = used + look(bytes, context.store, &mut desk.ahead).max(1);
                context.store.keys.prefetch(&mut desk.ahead);
            }
            let mut reply = Reply::new(output, context.session.resp3);
            match parser.parse(bytes, limits) {
                Ok(Parsed::More) => {
                    more = false;
                    break;
                }
                Ok(Parsed::Skip { at, len }) => input.cut(used + at, len),
                Ok(Parsed::Whole { end }) => {
                    if let Some(bytes) = parser.skipped() {
                        context.session.break_transaction();
                        reply.error(&too_long(bytes, shared.longest_entry));
                    } else {
                        let args = parser.args(bytes);
                        if !args.is_empty() {
                            execute(&mut context, args, &mut reply);
                        }
                    }
                    parser.reset();
                    used += end;
                }
                Err(error) => {
                    reply.error(&format!("ERR {error}"));
                    context.session.ends = true;
                }
            }
        }
        drop(context);
        *looked = looked.saturating_sub(used);
        self.input.consume(used);
        more
    }

    /// Writes what it can.
    fn send(&mut self) -> io::Result<()> {
        self.most = self.most.max(self.waiting());
        while self.waiting() > 0 {
            match self.stream.write(&self.output[self.sent..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => self.sent += written,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    // Nothing is copied that is longer than what has gone.
                    if self.sent >= self.waiting() {
                        self.output.drain(..self.sent);
                        self.sent = 0;
                    }
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.output.clear();
        self.sent = 0;
        Ok(())
    }
}

/// Begins to load what the requests in `bytes` ask for; how many bytes it has looked at.
fn look(bytes: &[u8], store: &Store, ahead: &mut Ahead) -> usize {
    let mut at = 0;
    for _ in 0..AHEAD {
        let Some((key, end)) = first_key(bytes.get(at..).unwrap_or_default()) else { break };
        store.keys.look_ahead(key, ahead);
        at += end;
    }
    at
}

fn too_long(bytes: usize, most: usize) -> String {
    format!(
        "ERR string exceeds maximum allowed size (proto-max-bulk-len): {bytes} B, a value may have \
         {most} B; a pool with larger pages allows more"
    )
}
