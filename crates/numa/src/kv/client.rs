//! The client of the key-value workload.

use std::time::Instant;

use rackpool_fabric::Operation;
use rackpool_sync::SplitMix64;

use super::message::{Reply, Request};
use super::store::VALUE;
use super::{GET_PERCENT, KEYS, VALUE_BYTES, Value, first_value, key, value};
use crate::StudyError;
use crate::connection::{Arrival, Connection};
use crate::measurement::Recorder;
use crate::one_sided::{Driver, elapsed_ns};

/// Offsets in the connection's buffer: of the value that was read, and of the one to be stored.
const READ_AT: u64 = 0;
const STORED_AT: u64 = VALUE;

/// What the client waits for. One request is outstanding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waiting {
    /// The reply to a get.
    Place,
    /// The one-sided read of the value.
    Value,
    /// The reply to a set.
    Stored,
}

/// Sends requests for the keys of one connection, and checks each value.
#[derive(Debug)]
pub(crate) struct KeyValueClient {
    /// The number of the connection's first key.
    first_key: u32,
    /// The value that each key must have.
    values: Vec<Value>,
    random: SplitMix64,
    waiting: Waiting,
    /// The key of the outstanding request, from `first_key`.
    current: u32,
    sent: Instant,
    arrivals: Vec<Arrival>,
}

impl KeyValueClient {
    /// The client of a connection, counted from 0, that accesses the first `keys` of its keys.
    pub(crate) fn new(connection: u32, keys: u32) -> Self {
        let first_key = connection * KEYS;
        Self {
            first_key,
            values: (0..keys.min(KEYS)).map(|at| first_value(first_key + at)).collect(),
            random: SplitMix64::new(u64::from(connection)),
            waiting: Waiting::Place,
            current: 0,
            sent: Instant::now(),
            arrivals: Vec::new(),
        }
    }

    /// The numbers of the keys, and the value that each must have.
    #[cfg(test)]
    pub(super) fn values(&self) -> impl Iterator<Item = (u32, &Value)> {
        (self.first_key..).zip(&self.values)
    }

    /// The number of the key of the outstanding request.
    #[cfg(test)]
    pub(super) const fn current_key(&self) -> u32 {
        self.first_key + self.current
    }

    /// Bytes of a connection's buffer.
    pub(crate) const fn buffer_bytes() -> u64 {
        2 * VALUE
    }

    fn request(&mut self, connection: &mut Connection) -> Result<(), StudyError> {
        let number = self.random.draw();
        let keys = self.values.len() as u64;
        self.current = u32::try_from(number % keys).unwrap_or(0);
        let key = key(self.first_key + self.current);
        let request = if (number >> 32) % 100 < GET_PERCENT {
            self.waiting = Waiting::Place;
            Request::Get(key)
        } else {
            let new = value(&mut self.random);
            write(connection, &new)?;
            self.values[self.current as usize] = new;
            self.waiting = Waiting::Stored;
            Request::Set(key, STORED_AT)
        };
        self.sent = Instant::now();
        connection.send(request.encode())
    }

    /// Handles an arrival. Returns true if the request is done.
    fn take_in(
        &mut self,
        arrival: Arrival,
        connection: &mut Connection,
    ) -> Result<bool, StudyError> {
        match (self.waiting, arrival) {
            (Waiting::Place, Arrival::Message(message)) => match Reply::decode(&message)? {
                Reply::Found(offset) => {
                    let transfer = connection.transfer(READ_AT, offset, VALUE_BYTES);
                    self.waiting = Waiting::Value;
                    connection.post_one(0, Operation::Read(transfer))?;
                    Ok(false)
                }
                Reply::Missing => Err(self.wrong_value()),
                Reply::Stored => Err(StudyError::Protocol("stored, in reply to a get")),
            },
            (Waiting::Value, Arrival::Completed(_)) => {
                let mut found = Value::from([0; VALUE_BYTES as usize]);
                let read = connection.memory.mapping.read(READ_AT, &mut found);
                let is_right = read.is_ok() && found == self.values[self.current as usize];
                if is_right { Ok(true) } else { Err(self.wrong_value()) }
            }
            (Waiting::Stored, Arrival::Message(message)) => match Reply::decode(&message)? {
                Reply::Stored => Ok(true),
                Reply::Missing => Err(self.wrong_value()),
                Reply::Found(_) => Err(StudyError::Protocol("a place, in reply to a set")),
            },
            _ => Err(StudyError::Protocol("an event that no request waits for")),
        }
    }

    fn wrong_value(&self) -> StudyError {
        let key = key(self.first_key + self.current);
        StudyError::WrongValue { key: String::from_utf8_lossy(&key).into_owned() }
    }
}

/// Writes the value to be stored into the connection's buffer.
fn write(connection: &Connection, value: &Value) -> Result<(), StudyError> {
    let written = connection.memory.mapping.write(STORED_AT, value);
    written.map_err(std::io::Error::other).map_err(StudyError::system("write the client's value"))
}

impl Driver for KeyValueClient {
    fn start(&mut self, connection: &mut Connection) -> Result<(), StudyError> {
        self.request(connection)
    }

    fn advance(
        &mut self,
        connection: &mut Connection,
        recorder: &mut Recorder,
    ) -> Result<(), StudyError> {
        let mut arrivals = std::mem::take(&mut self.arrivals);
        connection.poll(&mut arrivals)?;
        for arrival in arrivals.drain(..) {
            if self.take_in(arrival, connection)? {
                recorder.complete(Some(elapsed_ns(self.sent)));
                self.request(connection)?;
            }
        }
        self.arrivals = arrivals;
        Ok(())
    }
}
