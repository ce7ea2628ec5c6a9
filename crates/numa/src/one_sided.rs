//! The drivers of one-sided operations: closed and open loop.

use std::time::Instant;

use rackpool_fabric::{Operation, WorkRequest};

use crate::connection::{Arrival, Connection};
use crate::measurement::Recorder;
use crate::memory::{LINE, Slice};
use crate::{LoopKind, StudyError, Workload};

/// Keeps one connection busy.
pub(crate) trait Driver: Send {
    /// Issues the first operations.
    fn start(&mut self, connection: &mut Connection) -> Result<(), StudyError>;

    /// Polls, records what completed and issues what comes next.
    fn advance(
        &mut self,
        connection: &mut Connection,
        recorder: &mut Recorder,
    ) -> Result<(), StudyError>;
}

/// Issues one-sided operations on one slice of the server's memory.
#[derive(Debug)]
pub(crate) struct OneSided {
    is_read: bool,
    slice: Slice,
    loop_kind: LoopKind,
    /// Operations that may be outstanding.
    window: usize,
    outstanding: usize,
    next: u64,
    posted: Instant,
    arrivals: Vec<Arrival>,
    list: Vec<WorkRequest>,
}

impl OneSided {
    pub(crate) fn new(workload: Workload, slice: Slice, loop_kind: LoopKind, window: u32) -> Self {
        let window = match loop_kind {
            LoopKind::Closed => 1,
            LoopKind::Open => usize::try_from(window).unwrap_or(usize::MAX),
        };
        Self {
            is_read: workload != Workload::Write,
            slice,
            loop_kind,
            window,
            outstanding: 0,
            next: 0,
            posted: Instant::now(),
            arrivals: Vec::new(),
            list: Vec::new(),
        }
    }

    /// The bytes of the client's buffer: a place, which starts a cache line, for each operation
    /// that may be outstanding.
    pub(crate) fn buffer_bytes(len: u32, loop_kind: LoopKind, window: u32) -> u64 {
        let places = if loop_kind == LoopKind::Open { u64::from(window) } else { 1 };
        places * place_bytes(len)
    }

    /// Posts as many operations as the window has room for, with one doorbell.
    fn fill(&mut self, connection: &mut Connection) -> Result<(), StudyError> {
        let Slice { offset, len } = self.slice;
        self.list.clear();
        while self.outstanding < self.window {
            let place = self.next % self.window as u64;
            let transfer = connection.transfer(place * place_bytes(len), offset, len);
            let operation =
                if self.is_read { Operation::Read(transfer) } else { Operation::Write(transfer) };
            self.list.push(WorkRequest { id: self.next, operation });
            self.next += 1;
            self.outstanding += 1;
        }
        if self.list.is_empty() {
            return Ok(());
        }
        self.posted = Instant::now();
        connection.post(&self.list)
    }
}

/// Bytes between the places of two operations in the client's buffer.
fn place_bytes(len: u32) -> u64 {
    u64::from(len).next_multiple_of(LINE)
}

impl Driver for OneSided {
    fn start(&mut self, connection: &mut Connection) -> Result<(), StudyError> {
        self.window = self.window.min(connection.queue_depth());
        self.fill(connection)
    }

    fn advance(
        &mut self,
        connection: &mut Connection,
        recorder: &mut Recorder,
    ) -> Result<(), StudyError> {
        connection.poll(&mut self.arrivals)?;
        if self.arrivals.is_empty() {
            return Ok(());
        }
        let latency_ns = (self.loop_kind == LoopKind::Closed).then(|| elapsed_ns(self.posted));
        for arrival in self.arrivals.drain(..) {
            let Arrival::Completed(_) = arrival else {
                return Err(StudyError::Protocol("a message to a client of one-sided operations"));
            };
            self.outstanding -= 1;
            recorder.complete(latency_ns);
        }
        self.fill(connection)
    }
}

/// Nanoseconds since `start`.
pub(crate) fn elapsed_ns(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)
}
