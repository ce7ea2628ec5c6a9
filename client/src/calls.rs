//! One thread's calls to the daemon: posting, waiting, giving up.

use std::time::Instant;

use rackpool_ring::call::{Answer, CallCell};
use rackpool_ring::client_file::{CELLS_PER_THREAD, Route};
use rackpool_ring::request::Request;
use rackpool_sync::{Spin, Turn, futex};
use rackpool_wire::rack::{RackAnswer, RackRequest};

use crate::DaemonError;
use crate::connection::{Connection, Link};

/// How long a sleeping thread goes without looking at the link: its answer wakes it, the death of
/// the daemon does not.
const DOZE: std::time::Duration = std::time::Duration::from_millis(20);
/// Looks before sleeping: about 20 us, the cost of one sleep.
const PAUSES: u32 = 400;
const YIELDS: u32 = 12;

/// A call that was posted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Posted {
    cell: u8,
    life: u64,
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
}

impl Calls {
    pub(crate) fn new(thread: u16) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "16 cells")]
        let free = (0..CELLS_PER_THREAD as u8).rev().collect();
        Self { thread, free, abandoned: Vec::new() }
    }

    /// Cells that can take a call now.
    pub(crate) fn available(&self) -> usize {
        self.free.len()
    }

    /// Whether a call that was given up may still be carried out.
    pub(crate) fn has_abandoned(&self) -> bool {
        !self.abandoned.is_empty()
    }

    fn cell<'a>(&self, connection: &'a Connection, cell: u8) -> Result<&'a CallCell, DaemonError> {
        let cells = connection.file.cells(self.thread).map_err(|_| DaemonError::Protocol)?;
        cells.get(usize::from(cell)).ok_or(DaemonError::Protocol)
    }

    /// Takes a free cell, whose number also names the call's part of the data area.
    pub(crate) fn reserve(&mut self, connection: &Connection) -> Result<u8, DaemonError> {
        if self.free.is_empty() {
            self.collect_abandoned(connection);
        }
        self.free.pop().ok_or(DaemonError::Unavailable)
    }

    /// Gives a cell back that no call was posted with.
    pub(crate) fn unreserve(&mut self, cell: u8) {
        self.free.push(cell);
    }

    /// Whether no call that was given up can still be carried out.
    pub(crate) fn settle_abandoned(&mut self, connection: &Connection) -> bool {
        if self.has_abandoned() {
            self.collect_abandoned(connection);
        }
        !self.has_abandoned()
    }

    fn collect_abandoned(&mut self, connection: &Connection) {
        let life = connection.life();
        let mut waiting = std::mem::take(&mut self.abandoned);
        waiting.retain(|posted| {
            let Ok(cell) = self.cell(connection, posted.cell) else { return true };
            let answered = cell.answer().is_some();
            // A daemon of an earlier life is dead and writes no more; its successor may still find
            // the request in the ring, and shall not take it for one that somebody waits for.
            let lost = !answered && posted.life != life;
            if lost {
                cell.begin();
            }
            let settled = answered || lost;
            if settled {
                self.free.push(posted.cell);
            }
            !settled
        });
        self.abandoned = waiting;
    }

    /// Posts a request with a reserved cell. Waits, bounded, while the ring is full.
    pub(crate) fn post(
        &mut self,
        connection: &Connection,
        cell: u8,
        request: RackRequest,
        route: Route,
    ) -> Result<Posted, DaemonError> {
        let life = connection.life();
        let call = self.cell(connection, cell)?.begin();
        let (code, arguments) = request.to_words();
        let entry = Request { code, cell, thread: self.thread, call, arguments };
        let ring = connection.file.ring(route).map_err(|_| DaemonError::Protocol)?;
        let mut deadline = None;
        while ring.push(&entry).is_err() {
            connection.ring_doorbell();
            connection.check_link()?;
            let deadline =
                *deadline.get_or_insert_with(|| Instant::now() + connection.request_timeout());
            if Instant::now() > deadline {
                return Err(DaemonError::Unavailable);
            }
            std::thread::yield_now();
        }
        Ok(Posted { cell, life })
    }

    /// Waits for the outcome of a call and frees its cell.
    pub(crate) fn wait(
        &mut self,
        connection: &Connection,
        posted: Posted,
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
        let deadline = Instant::now() + connection.request_timeout();
        loop {
            if cell.will_sleep() {
                let (word, expected) = cell.sleep_word();
                futex::wait(word, expected, DOZE);
            }
            if let Some(answer) = cell.answer() {
                return self.answered(posted, answer);
            }
            if connection.life() != posted.life {
                self.free.push(posted.cell);
                return Ok(Outcome::Lost);
            }
            let gone = connection.check_link();
            if gone.is_err() || Instant::now() > deadline {
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

    /// Asks and waits; asks again when the daemon died, until it has come back or is overdue.
    /// Only for requests that may be carried out twice.
    pub(crate) fn ask(
        &mut self,
        connection: &Connection,
        request: RackRequest,
        route: Route,
    ) -> Result<RackAnswer, DaemonError> {
        loop {
            let cell = self.reserve(connection)?;
            let posted = match self.post(connection, cell, request, route) {
                Ok(posted) => posted,
                Err(error) => {
                    self.unreserve(cell);
                    return Err(error);
                }
            };
            connection.ring_doorbell();
            if let Outcome::Answered(answer) = self.wait(connection, posted)? {
                return Ok(answer);
            }
        }
    }
}
