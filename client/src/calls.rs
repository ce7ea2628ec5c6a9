//! One thread's calls to the daemon: posting, waiting, giving up.

use std::time::Duration;

use rackpool_ring::call::{Answer, CallCell};
use rackpool_ring::client_file::{CELLS_PER_THREAD, Route};
use rackpool_ring::data::Block;
use rackpool_ring::request::{Request, RequestRing};
use rackpool_sync::{AdaptiveSpin, Turn, futex};
use rackpool_wire::rack::{RackAnswer, RackRequest};

use crate::DaemonError;
use crate::connection::{Connection, DaemonLink, lock};
use crate::deadline::{Deadline, Pauses};

/// How long a sleeping thread goes without looking at the link: its answer wakes it, the death of
/// the daemon does not.
const DOZE: Duration = Duration::from_millis(20);
/// Looks before anything is made of how long answers take: most come within the first ones.
const PROMPT: u32 = 64;
/// How long it looks before sleeping after those, at least and at most: what one sleep costs both
/// sides. Less would not even wait for a daemon that looks at somebody else just now, or is
/// interrupted.
const LEAST: Duration = Duration::from_micros(10);
const LONGEST: Duration = Duration::from_micros(15);
const YIELDS: u32 = 12;

/// A call under way.
#[derive(Debug)]
pub(crate) struct Posted {
    cell: u8,
    route: Route,
    call: u32,
    /// The life of the daemon it was posted to.
    life: u64,
    /// Where its bytes are; given back when the daemon can't touch them any more.
    block: Option<Block>,
}

/// The bytes of a call that was given up: its daemon may still be moving them. They are the
/// client's, not the thread's, so that they come back whatever the thread does.
#[derive(Debug)]
pub(crate) struct Stray {
    thread: u16,
    cell: u8,
    call: u32,
    life: u64,
    block: Block,
}

impl Stray {
    /// Whether the call was answered, or lost with its daemon.
    fn is_settled(&self, connection: &Connection) -> bool {
        let cells = connection.file.cells(self.thread).unwrap_or_default();
        // A cell is used again only after its call was answered, so this one was if a later was.
        let is_answered = |cell: &CallCell| cell.answered().wrapping_sub(self.call) < 1 << 31;
        self.life != connection.life() || cells.get(usize::from(self.cell)).is_some_and(is_answered)
    }
}

/// Gives those bytes of given-up calls back that nobody can touch any more.
pub(crate) fn collect_strays(connection: &Connection) {
    lock(&connection.strays).retain_mut(|stray| match stray {
        Some(found) if found.is_settled(connection) => {
            connection.give_back(stray.take().map(|stray| stray.block));
            false
        }
        _ => true,
    });
}

/// What became of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The daemon answered.
    Answered(RackAnswer),
    /// The daemon died before it answered; the request may or may not have been carried out.
    Lost,
}

/// A call that ended, with the bytes that it brought.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) outcome: Outcome,
    pub(crate) block: Option<Block>,
}

/// The call cells of one thread slot.
#[derive(Debug)]
pub(crate) struct Calls {
    thread: u16,
    free: Vec<u8>,
    /// The number of the last call in each cell.
    begun: [u32; CELLS_PER_THREAD],
    /// Entries to be pushed together.
    staged: Vec<Request>,
    /// Calls that were given up. A living daemon may still answer them.
    abandoned: Vec<Posted>,
    /// The thread ends: it waits for a daemon that lives, and for none that has to come back.
    is_ending: bool,
    /// The daemon slept and was woken for what has not been waited for yet.
    has_woken: bool,
    spin: AdaptiveSpin,
}

impl Calls {
    pub(crate) fn new(thread: u16) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "16 cells")]
        let free = (0..CELLS_PER_THREAD as u8).rev().collect();
        Self { free, ..Self::none(thread) }
    }

    /// No cells: what stands in the place of calls that were taken away.
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

    /// From now on calls fail at once when the daemon is away.
    pub(crate) const fn end(&mut self) {
        self.is_ending = true;
    }

    /// Another thread uses them now.
    pub(crate) const fn begin_anew(&mut self) {
        self.is_ending = false;
    }

    fn waits_in_vain(&self, connection: &Connection) -> bool {
        self.is_ending && connection.link() != DaemonLink::Up
    }

    /// The thread slot these calls are made from.
    pub(crate) const fn thread(&self) -> u16 {
        self.thread
    }

    /// Whether a cell can take a call now.
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

    /// Whether no call that was given up can still be carried out.
    pub(crate) fn settle(&mut self, connection: &Connection) -> bool {
        self.collect_abandoned(connection);
        self.abandoned.is_empty()
    }

    /// Whether the daemon no longer writes to the thread's inbox and outbox for a call that was
    /// given up.
    pub(crate) fn settle_exchanges(&mut self, connection: &Connection) -> bool {
        self.collect_abandoned(connection);
        self.abandoned.iter().all(|posted| posted.route != Route::Rack)
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

    /// Prepares a call, to be posted by [`Self::flush`]. The block goes with it. Waits while the
    /// daemon is away: what is prepared is for the one that serves now.
    pub(crate) fn stage(
        &mut self,
        connection: &Connection,
        request: RackRequest,
        route: Route,
        block: Option<Block>,
        deadline: &Deadline<'_>,
    ) -> Result<Posted, DaemonError> {
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

    /// Numbers a call.
    #[inline]
    fn begin(
        &mut self,
        connection: &Connection,
        cell: u8,
        request: RackRequest,
        route: Route,
        block: Option<Block>,
    ) -> (Posted, Request) {
        let begun = &mut self.begun[usize::from(cell)];
        // 0 is the number of no call: it is what a new cell says.
        *begun = begun.wrapping_add(1).max(1);
        let (code, arguments) = request.to_words();
        let (call, life) = (*begun, connection.life());
        let entry = Request { code, cell, thread: self.thread, call, life, arguments };
        (Posted { cell, route, call, life, block }, entry)
    }

    /// Posts what is staged and wakes the daemon. Waits while the ring is full. After an error
    /// none of it was posted.
    pub(crate) fn flush(
        &mut self,
        connection: &Connection,
        route: Route,
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
        route: Route,
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

    /// Takes a call back that was staged and not posted.
    pub(crate) fn unstage(&mut self, connection: &Connection, mut posted: Posted) {
        connection.give_back(posted.block.take());
        self.free.push(posted.cell);
    }

    /// Posts one request.
    #[inline]
    pub(crate) fn post(
        &mut self,
        connection: &Connection,
        request: RackRequest,
        route: Route,
        deadline: &Deadline<'_>,
    ) -> Result<Posted, DaemonError> {
        // First: the entry is for the daemon that serves now.
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

    /// Waits for the outcome of a call and frees its cell, or gives the call up.
    #[inline]
    pub(crate) fn wait(
        &mut self,
        connection: &Connection,
        posted: Posted,
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
        posted: Posted,
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
        posted: Posted,
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

    fn give_up(&mut self, connection: &Connection, mut posted: Posted) {
        if connection.link() == DaemonLink::Closed {
            self.free.push(posted.cell);
            return;
        }
        if let Some(block) = posted.block.take() {
            let Posted { cell, call, life, .. } = posted;
            let stray = Stray { thread: self.thread, cell, call, life, block };
            lock(&connection.strays).push(Some(stray));
        }
        self.abandoned.push(posted);
    }

    /// Asks once. All tries of one operation end at `overdue`.
    #[inline]
    pub(crate) fn ask_once(
        &mut self,
        connection: &Connection,
        request: RackRequest,
        route: Route,
        overdue: &Deadline<'_>,
    ) -> Result<Outcome, DaemonError> {
        if overdue.is_known_to_have_passed() {
            return Err(DaemonError::Unavailable);
        }
        let deadline = overdue.within(connection.request_timeout());
        let posted = self.post(connection, request, route, &deadline)?;
        let outcome = self.wait(connection, posted, &deadline)?.outcome;
        // Daemons that die one after the other answer nothing, and use up the time all the same.
        if outcome == Outcome::Lost && overdue.has_passed() {
            return Err(DaemonError::Unavailable);
        }
        Ok(outcome)
    }

    /// Asks and waits; asks again when the daemon died, until it has come back or is overdue.
    /// Only for requests that may be carried out twice.
    pub(crate) fn ask(
        &mut self,
        connection: &Connection,
        request: RackRequest,
        route: Route,
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
