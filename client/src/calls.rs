//! One thread's calls to the daemon: posting, waiting, giving up.

use std::time::{Duration, Instant};

use rackpool_ring::call::{Answer, CallCell};
use rackpool_ring::client_file::{CELLS_PER_THREAD, Route};
use rackpool_ring::request::Request;
use rackpool_sync::{Spin, Turn, futex};
use rackpool_wire::rack::{RackAnswer, RackRequest};

use crate::DaemonError;
use crate::connection::{Connection, Link};

/// How long a sleeping thread goes without looking at the link: its answer wakes it, the death of
/// the daemon does not.
const DOZE: Duration = Duration::from_millis(20);
/// Looks before sleeping: about 20 us, the cost of one sleep.
const PAUSES: u32 = 400;
const YIELDS: u32 = 12;

/// A call that was posted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Posted {
    cell: u8,
    route: Route,
}

/// What became of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The daemon answered.
    Answered(RackAnswer),
    /// The daemon died before it answered; the request may or may not have been carried out.
    Lost,
}

/// The call cells of one thread.
#[derive(Debug)]
pub(crate) struct Calls {
    thread: u16,
    free: Vec<u8>,
    /// Cells of calls that were given up. A living daemon may still write to them.
    abandoned: Vec<Posted>,
    /// The thread ends: it waits for a daemon that lives, and for none that has to come back.
    is_ending: bool,
}

impl Calls {
    pub(crate) fn new(thread: u16) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "16 cells")]
        let free = (0..CELLS_PER_THREAD as u8).rev().collect();
        Self { thread, free, abandoned: Vec::new(), is_ending: false }
    }

    /// No cells: what stands in the place of calls that were taken away.
    pub(crate) const fn none(thread: u16) -> Self {
        Self { thread, free: Vec::new(), abandoned: Vec::new(), is_ending: true }
    }

    /// From now on calls fail at once when the daemon is away.
    pub(crate) const fn end(&mut self) {
        self.is_ending = true;
    }

    fn waits_in_vain(&self, connection: &Connection) -> bool {
        self.is_ending && connection.link() != Link::Up
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

    /// Takes a free cell, whose number also names the call's part of the data area.
    pub(crate) fn reserve(&mut self, connection: &Connection) -> Result<u8, DaemonError> {
        if !self.is_available(connection) {
            return Err(DaemonError::Unavailable);
        }
        self.free.pop().ok_or(DaemonError::Unavailable)
    }

    /// Gives a cell back that no call was posted with.
    pub(crate) fn unreserve(&mut self, cell: u8) {
        self.free.push(cell);
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
        let mut waiting = std::mem::take(&mut self.abandoned);
        waiting.retain(|posted| {
            let cell = self.cell(connection, posted.cell);
            let settled = cell.is_ok_and(|cell| cell.is_lost() || cell.answer().is_some());
            if settled {
                self.free.push(posted.cell);
            }
            !settled
        });
        self.abandoned = waiting;
    }

    /// Posts a request with a reserved cell. Waits while the ring is full.
    pub(crate) fn post(
        &mut self,
        connection: &Connection,
        cell: u8,
        request: RackRequest,
        route: Route,
        deadline: Instant,
    ) -> Result<Posted, DaemonError> {
        if self.waits_in_vain(connection) {
            return Err(DaemonError::Unavailable);
        }
        // What is posted between two daemons would be lost when the next one comes.
        connection.wait_for_daemon(deadline)?;
        let call = self.cell(connection, cell)?.begin();
        let (code, arguments) = request.to_words();
        let entry = Request { code, cell, thread: self.thread, call, arguments };
        let ring = connection.file.ring(route).map_err(|_| DaemonError::Protocol)?;
        while ring.push(&entry).is_err() {
            connection.ring_doorbell();
            connection.check_link()?;
            if Instant::now() > deadline {
                return Err(DaemonError::Unavailable);
            }
            std::thread::yield_now();
        }
        Ok(Posted { cell, route })
    }

    /// Waits for the outcome of a call and frees its cell, or gives the call up.
    pub(crate) fn wait(
        &mut self,
        connection: &Connection,
        posted: Posted,
        deadline: Instant,
    ) -> Result<Outcome, DaemonError> {
        let cell = self.cell(connection, posted.cell)?;
        let mut spin = Spin::new(PAUSES, YIELDS);
        loop {
            if let Some(answer) = cell.answer() {
                return self.answered(posted, answer);
            }
            if spin.turn() == Turn::Sleep {
                break;
            }
        }
        loop {
            let (word, seen) = cell.sleep_word();
            if cell.will_sleep() {
                futex::wait(word, seen, DOZE);
            }
            if let Some(answer) = cell.answer() {
                return self.answered(posted, answer);
            }
            if cell.is_lost() {
                self.free.push(posted.cell);
                return Ok(Outcome::Lost);
            }
            let gone = connection.check_link();
            let in_vain = gone.is_err() || self.waits_in_vain(connection);
            if in_vain || Instant::now() > deadline {
                self.give_up(connection, posted);
                gone?;
                return Err(DaemonError::Unavailable);
            }
        }
    }

    fn answered(&mut self, posted: Posted, answer: Answer) -> Result<Outcome, DaemonError> {
        self.free.push(posted.cell);
        RackAnswer::from_words(answer.status, answer.values)
            .map(Outcome::Answered)
            .ok_or(DaemonError::Protocol)
    }

    fn give_up(&mut self, connection: &Connection, posted: Posted) {
        if connection.link() == Link::Closed {
            self.free.push(posted.cell);
        } else {
            self.abandoned.push(posted);
        }
    }

    /// Asks once. All tries of one operation end at `overdue`.
    pub(crate) fn ask_once(
        &mut self,
        connection: &Connection,
        request: RackRequest,
        route: Route,
        overdue: Instant,
    ) -> Result<Outcome, DaemonError> {
        let now = Instant::now();
        if now > overdue {
            return Err(DaemonError::Unavailable);
        }
        let deadline = overdue.min(now + connection.request_timeout());
        let cell = self.reserve(connection)?;
        let posted = match self.post(connection, cell, request, route, deadline) {
            Ok(posted) => posted,
            Err(error) => {
                self.unreserve(cell);
                return Err(error);
            }
        };
        connection.ring_doorbell();
        self.wait(connection, posted, deadline)
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
            let outcome = self.ask_once(connection, request, route, overdue)?;
            if let Outcome::Answered(answer) = outcome {
                return Ok(answer);
            }
        }
    }
}
