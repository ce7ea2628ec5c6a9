//! The calls of one thread to the daemon: posting, waiting, abandoning.

use std::time::Duration;

use rackpool_ring::call::{Answer, CallCell};
use rackpool_ring::client_file::{CELLS_PER_THREAD, RingKind};
use rackpool_ring::data::DataBlock;
use rackpool_ring::request::{Request, RequestRing};
use rackpool_sync::{AdaptiveSpin, Turn, futex};
use rackpool_wire::rack::{RackAnswer, RackRequest};

use crate::DaemonError;
use crate::connection::{Connection, DaemonLink, lock};
use crate::deadline::{Deadline, Pauses};

/// Longest sleep of a waiting thread before it checks the link. An answer wakes the thread; the
/// death of the daemon does not.
const DOZE: Duration = Duration::from_millis(20);
/// Polls before the adaptive spin measures time: most answers arrive within these.
const PROMPT: u32 = 64;
/// Limits of the spin after those polls, roughly the cost of one sleep for both sides. A shorter
/// spin would miss the answers of a daemon that is serving another client or is interrupted.
const LEAST: Duration = Duration::from_micros(10);
const LONGEST: Duration = Duration::from_micros(15);
const YIELDS: u32 = 12;

/// A call in flight.
#[derive(Debug)]
pub(crate) struct PostedCall {
    cell: u8,
    route: RingKind,
    call: u32,
    /// The incarnation of the daemon to which the call was posted.
    life: u64,
    /// The call's block of the data ring. It is returned once the daemon can no longer access it.
    block: Option<DataBlock>,
}

/// The block of an abandoned call, which the daemon may still access. The connection owns it, so
/// that the block is returned even if the thread has ended.
#[derive(Debug)]
pub(crate) struct Stray {
    thread: u16,
    cell: u8,
    call: u32,
    life: u64,
    block: DataBlock,
}

impl Stray {
    /// Returns true if the call was answered or lost with its daemon.
    fn is_settled(&self, connection: &Connection) -> bool {
        let cells = connection.file.cells(self.thread).unwrap_or_default();
        // A cell is reused only after an answer to its call, so a later answered number settles
        // this call as well.
        let is_answered = |cell: &CallCell| cell.answered().wrapping_sub(self.call) < 1 << 31;
        self.life != connection.life() || cells.get(usize::from(self.cell)).is_some_and(is_answered)
    }
}

/// Returns the blocks of abandoned calls that no daemon can access any more.
pub(crate) fn collect_strays(connection: &Connection) {
    lock(&connection.strays).retain_mut(|stray| match stray {
        Some(found) if found.is_settled(connection) => {
            connection.give_back(stray.take().map(|stray| stray.block));
            false
        }
        _ => true,
    });
}

/// The outcome of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The daemon answered.
    Answered(RackAnswer),
    /// The daemon died before it answered. The request may or may not have been executed.
    Lost,
}

/// A completed call and its block.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) outcome: Outcome,
    pub(crate) block: Option<DataBlock>,
}

/// The call cells of one thread slot.
#[derive(Debug)]
pub(crate) struct Calls {
    thread: u16,
    free: Vec<u8>,
    /// Number of the last call begun in each cell.
    begun: [u32; CELLS_PER_THREAD],
    /// Requests to be pushed together.
    staged: Vec<Request>,
    /// Abandoned calls. A living daemon may still answer them.
    abandoned: Vec<PostedCall>,
    /// Set when the thread ends: its calls then fail at once if no daemon serves the client.
    is_ending: bool,
    /// Set when a push found the daemon asleep and rang its doorbell, until the next wait.
    has_woken: bool,
    spin: AdaptiveSpin,
}

impl Calls {
    pub(crate) fn new(thread: u16) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "16 cells")]
        let free = (0..CELLS_PER_THREAD as u8).rev().collect();
        Self { free, ..Self::none(thread) }
    }

    /// Calls that own no cell, which remain in a thread whose calls were moved out.
    pub(crate) const fn none(thread: u16) -> Self {
        Self {
            thread,
            free: Vec::new(),
            begun: [0; CELLS_PER_THREAD],
            staged: Vec::new(),
            abandoned: Vec::new(),
            is_ending: false,
            has_woken: false,
            spin: AdaptiveSpin::new(LEAST, LONGEST, YIELDS),
        }
    }

    /// From now on calls fail at once if no daemon serves the client.
    pub(crate) const fn end(&mut self) {
        self.is_ending = true;
    }

    /// Prepares the calls for another thread.
    pub(crate) const fn begin_anew(&mut self) {
        self.is_ending = false;
    }

    fn waits_in_vain(&self, connection: &Connection) -> bool {
        self.is_ending && connection.link() != DaemonLink::Up
    }

    /// The index of the thread slot to which these cells belong.
    pub(crate) const fn thread(&self) -> u16 {
        self.thread
    }

    /// Returns true if a cell is free.
    pub(crate) fn is_available(&mut self, connection: &Connection) -> bool {
        if self.free.is_empty() {
            self.collect_abandoned(connection);
        }
        !self.free.is_empty()
    }

    fn cell<'a>(&self, connection: &'a Connection, cell: u8) -> Result<&'a CallCell, DaemonError> {
        let cells = connection.file.cells(self.thread).map_err(|_| DaemonError::Protocol)?;
        cells.get(usize::from(cell)).ok_or(DaemonError::Protocol)
    }

    /// Takes a free cell.
    #[inline]
    pub(crate) fn reserve(&mut self, connection: &Connection) -> Result<u8, DaemonError> {
        if !self.is_available(connection) {
            return Err(DaemonError::Unavailable);
        }
        self.free.pop().ok_or(DaemonError::Unavailable)
    }

    /// Returns true if no abandoned call can be executed any more.
    pub(crate) fn settle(&mut self, connection: &Connection) -> bool {
        self.collect_abandoned(connection);
        self.abandoned.is_empty()
    }

    /// Returns true if the daemon no longer writes to the thread's inbox and outbox for an
    /// abandoned call.
    pub(crate) fn settle_exchanges(&mut self, connection: &Connection) -> bool {
        self.collect_abandoned(connection);
        self.abandoned.iter().all(|posted| posted.route != RingKind::Rack)
    }

    fn collect_abandoned(&mut self, connection: &Connection) {
        if self.abandoned.is_empty() {
            return;
        }
        for posted in std::mem::take(&mut self.abandoned) {
            let answered = self
                .cell(connection, posted.cell)
                .is_ok_and(|cell| cell.answer(posted.call).is_some());
            if answered || posted.life != connection.life() {
                self.free.push(posted.cell);
            } else {
                self.abandoned.push(posted);
            }
        }
    }

    /// Stages a call that [`Self::flush`] will post with `block`. Waits while no daemon serves the
    /// client: a staged call names the incarnation that serves now.
    pub(crate) fn stage(
        &mut self,
        connection: &Connection,
        request: RackRequest,
        route: RingKind,
        block: Option<DataBlock>,
        deadline: &Deadline<'_>,
    ) -> Result<PostedCall, DaemonError> {
        let served = self.wait_for_daemon(connection, deadline);
        let cell = match served.and_then(|()| self.reserve(connection)) {
            Ok(cell) => cell,
            Err(error) => {
                connection.give_back(block);
                return Err(error);
            }
        };
        let (posted, entry) = self.begin(connection, cell, request, route, block);
        self.staged.push(entry);
        Ok(posted)
    }

    /// Gives a call the next number of its cell.
    #[inline]
    fn begin(
        &mut self,
        connection: &Connection,
        cell: u8,
        request: RackRequest,
        route: RingKind,
        block: Option<DataBlock>,
    ) -> (PostedCall, Request) {
        let begun = &mut self.begun[usize::from(cell)];
        // The number 0 is reserved: a new cell contains it.
        *begun = begun.wrapping_add(1).max(1);
        let (code, arguments) = request.to_words();
        let (call, life) = (*begun, connection.life());
        let entry = Request { code, cell, thread: self.thread, call, life, arguments };
        (PostedCall { cell, route, call, life, block }, entry)
    }

    /// Posts the staged calls and rings the daemon's doorbell if the daemon sleeps. Waits while the
    /// ring is full. After an error none of them was posted.
    pub(crate) fn flush(
        &mut self,
        connection: &Connection,
        route: RingKind,
        deadline: &Deadline<'_>,
    ) -> Result<(), DaemonError> {
        let flushed = self.push(connection, &self.staged, route, deadline);
        self.staged.clear();
        self.has_woken |= flushed?;
        Ok(())
    }

    #[inline]
    fn push(
        &self,
        connection: &Connection,
        entries: &[Request],
        route: RingKind,
        deadline: &Deadline<'_>,
    ) -> Result<bool, DaemonError> {
        self.wait_for_daemon(connection, deadline)?;
        let ring = connection.file.ring(route);
        if ring.push(entries).is_err() {
            Self::push_when_there_is_room(connection, &ring, entries, deadline)?;
        }
        Ok(connection.ring_doorbell())
    }

    #[cold]
    #[inline(never)]
    fn push_when_there_is_room(
        connection: &Connection,
        ring: &RequestRing<'_>,
        entries: &[Request],
        deadline: &Deadline<'_>,
    ) -> Result<(), DaemonError> {
        let mut pauses = Pauses::default();
        while ring.push(entries).is_err() {
            connection.ring_doorbell();
            connection.check_link()?;
            if deadline.has_passed() {
                return Err(DaemonError::Unavailable);
            }
            pauses.wait();
        }
        Ok(())
    }

    #[inline]
    fn wait_for_daemon(
        &self,
        connection: &Connection,
        deadline: &Deadline<'_>,
    ) -> Result<(), DaemonError> {
        if self.waits_in_vain(connection) {
            return Err(DaemonError::Unavailable);
        }
        connection.wait_for_daemon(deadline)
    }

    /// Withdraws a call that was staged and not posted.
    pub(crate) fn unstage(&mut self, connection: &Connection, mut posted: PostedCall) {
        connection.give_back(posted.block.take());
        self.free.push(posted.cell);
    }

    /// Posts one request.
    #[inline]
    pub(crate) fn post(
        &mut self,
        connection: &Connection,
        request: RackRequest,
        route: RingKind,
        deadline: &Deadline<'_>,
    ) -> Result<PostedCall, DaemonError> {
        // Waits before the entry is made, because the entry names the incarnation that serves then.
        self.wait_for_daemon(connection, deadline)?;
        let cell = self.reserve(connection)?;
        let (posted, entry) = self.begin(connection, cell, request, route, None);
        match self.push(connection, &[entry], route, deadline) {
            Ok(has_woken) => {
                self.has_woken |= has_woken;
                Ok(posted)
            }
            Err(error) => {
                self.unstage(connection, posted);
                Err(error)
            }
        }
    }

    /// Waits for the outcome of a call and frees its cell. Abandons the call at the deadline, or
    /// when no daemon is expected to answer it.
    #[inline]
    pub(crate) fn wait(
        &mut self,
        connection: &Connection,
        posted: PostedCall,
        deadline: &Deadline<'_>,
    ) -> Result<Ended, DaemonError> {
        let has_woken = std::mem::take(&mut self.has_woken);
        let cell = self.cell(connection, posted.cell)?;
        for _ in 0..PROMPT {
            if let Some(answer) = cell.answer(posted.call) {
                return self.answered(connection, posted, answer);
            }
        }
        self.spin.begin(has_woken);
        loop {
            if let Some(answer) = cell.answer(posted.call) {
                self.spin.end();
                return self.answered(connection, posted, answer);
            }
            if self.spin.turn() == Turn::Sleep {
                return self.wait_asleep(connection, cell, posted, deadline);
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn wait_asleep(
        &mut self,
        connection: &Connection,
        cell: &CallCell,
        posted: PostedCall,
        deadline: &Deadline<'_>,
    ) -> Result<Ended, DaemonError> {
        loop {
            if cell.will_sleep(posted.call) && posted.life == connection.life() {
                futex::wait(cell.sleep_word(), CallCell::ASLEEP, DOZE.min(deadline.left()));
            }
            cell.woke();
            if let Some(answer) = cell.answer(posted.call) {
                self.spin.end();
                return self.answered(connection, posted, answer);
            }
            if posted.life != connection.life() {
                self.free.push(posted.cell);
                return Ok(Ended { outcome: Outcome::Lost, block: posted.block });
            }
            let gone = connection.check_link();
            let in_vain = gone.is_err() || self.waits_in_vain(connection);
            if in_vain || deadline.has_passed() {
                self.give_up(connection, posted);
                gone?;
                return Err(DaemonError::Unavailable);
            }
        }
    }

    #[inline]
    fn answered(
        &mut self,
        connection: &Connection,
        posted: PostedCall,
        answer: Answer,
    ) -> Result<Ended, DaemonError> {
        self.free.push(posted.cell);
        match RackAnswer::from_words(answer.status, answer.values) {
            Some(answer) => Ok(Ended { outcome: Outcome::Answered(answer), block: posted.block }),
            None => {
                connection.give_back(posted.block);
                Err(DaemonError::Protocol)
            }
        }
    }

    fn give_up(&mut self, connection: &Connection, mut posted: PostedCall) {
        if connection.link() == DaemonLink::Closed {
            self.free.push(posted.cell);
            return;
        }
        if let Some(block) = posted.block.take() {
            let PostedCall { cell, call, life, .. } = posted;
            let stray = Stray { thread: self.thread, cell, call, life, block };
            lock(&connection.strays).push(Some(stray));
        }
        self.abandoned.push(posted);
    }

    /// Posts a request once and waits for the outcome. `overdue` bounds all attempts of one
    /// operation.
    #[inline]
    pub(crate) fn ask_once(
        &mut self,
        connection: &Connection,
        request: RackRequest,
        route: RingKind,
        overdue: &Deadline<'_>,
    ) -> Result<Outcome, DaemonError> {
        if overdue.is_known_to_have_passed() {
            return Err(DaemonError::Unavailable);
        }
        let deadline = overdue.within(connection.request_timeout());
        let posted = self.post(connection, request, route, &deadline)?;
        let outcome = self.wait(connection, posted, &deadline)?.outcome;
        // A sequence of daemons that die without an answer must not exceed the operation's time.
        if outcome == Outcome::Lost && overdue.has_passed() {
            return Err(DaemonError::Unavailable);
        }
        Ok(outcome)
    }

    /// Posts a request and waits for the answer. Repeats it after the death of a daemon, until a
    /// daemon answers or the operation is overdue. The request must be idempotent.
    pub(crate) fn ask(
        &mut self,
        connection: &Connection,
        request: RackRequest,
        route: RingKind,
    ) -> Result<RackAnswer, DaemonError> {
        let overdue = connection.overdue();
        loop {
            let outcome = self.ask_once(connection, request, route, &overdue)?;
            if let Outcome::Answered(answer) = outcome {
                return Ok(answer);
            }
        }
    }
}
