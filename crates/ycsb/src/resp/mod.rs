//! Records in a server that speaks Redis' protocol, stored as YCSB's own Redis binding does: each
//! in a hash, and all keys in a sorted set whose scores are hashes of the keys.

mod answer;
mod connection;
mod error;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;

use super::fields::Layout;
use super::plan::Plan;
use super::store::{FieldStore, Fields, Pairs, Store, StoreError, StoreFactory};
use super::target::Server;
use answer::Answer;
use connection::Connection;

/// The sorted set of all keys (YCSB: `RedisClient.INDEX_KEY`).
const INDEX: &[u8] = b"_indices";

/// Opens a connection for each thread.
#[derive(Debug)]
pub struct RespStores {
    servers: Vec<Server>,
    layout: Layout,
    /// The names of the fields.
    names: Vec<Vec<u8>>,
}

impl RespStores {
    /// For a plan's records, which all servers share. Threads are assigned to the servers in turn.
    #[must_use]
    pub fn new(servers: Vec<Server>, plan: &Plan) -> Self {
        let name = |field| format!("{}{field}", plan.field_prefix).into_bytes();
        let names = (0..plan.layout.field_count).map(name).collect();
        Self { servers, layout: plan.layout, names }
    }

    /// Returns the index of a thread's server.
    fn turn(&self, thread: usize) -> usize {
        thread % self.servers.len().max(1)
    }
}

impl StoreFactory for RespStores {
    fn open(&self, thread: usize) -> Result<Box<dyn Store + '_>, StoreError> {
        let server = self.servers.get(self.turn(thread));
        let server = server.ok_or_else(|| StoreError::new("there is no server to ask"))?;
        let connection = Connection::open(server).map_err(StoreError::new)?;
        Ok(Box::new(RespStore { stores: self, connection }))
    }

    fn label(&self) -> String {
        self.servers.iter().map(Server::to_string).collect::<Vec<_>>().join(", ")
    }

    /// A server's rack is unknown; its index stands for it.
    fn rack_of(&self, thread: usize) -> u16 {
        u16::try_from(self.turn(thread)).unwrap_or(u16::MAX)
    }
}

struct RespStore<'a> {
    stores: &'a RespStores,
    connection: Connection,
}

impl RespStore<'_> {
    fn ask(&mut self, words: &[&[u8]]) -> Result<Answer, StoreError> {
        self.connection.ask(words).map_err(StoreError::new)
    }

    /// Reads a record into a value of the layout.
    fn read_record(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, StoreError> {
        value.clear();
        let Answer::List(items) = self.ask(&[b"HGETALL", key])? else {
            return Err(unexpected("HGETALL"));
        };
        if items.is_empty() {
            return Ok(false);
        }
        let pairs = items.as_chunks::<2>().0;
        for wanted in &self.stores.names {
            let field = pairs.iter().find_map(|pair| match pair {
                [Answer::Bytes(name), Answer::Bytes(bytes)] if name == wanted => Some(bytes),
                _ => None,
            });
            // A missing field makes a value of another layout, which the check detects.
            if let Some(field) = field {
                self.stores.layout.push(value, field);
            }
        }
        Ok(true)
    }

    fn write_record(&mut self, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        let fields = self.stores.layout.split(value).ok_or_else(|| {
            StoreError::new("a value to be written does not have the fields of this run")
        })?;
        let mut words: Vec<&[u8]> = vec![b"HSET", key];
        for (name, field) in self.stores.names.iter().zip(fields) {
            words.extend([&name[..], field]);
        }
        match self.ask(&words)? {
            Answer::Integer(_) => Ok(()),
            _ => Err(unexpected("HSET")),
        }
    }
}

impl Store for RespStore<'_> {
    fn read(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, StoreError> {
        self.read_record(key, value)
    }

    /// As with YCSB's binding, the server does not report whether the record existed.
    fn update(&mut self, key: &[u8], value: &[u8]) -> Result<bool, StoreError> {
        self.write_record(key, value).map(|()| true)
    }

    fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        self.write_record(key, value)?;
        let score = java_hash(key).to_string();
        match self.ask(&[b"ZADD", INDEX, score.as_bytes(), key])? {
            Answer::Integer(_) => Ok(()),
            _ => Err(unexpected("ZADD")),
        }
    }

    fn scan(&mut self, start: &[u8], count: u64, pairs: &mut Pairs) -> Result<bool, StoreError> {
        pairs.clear();
        let (from, count) = (java_hash(start).to_string(), count.to_string());
        let (from, count) = (from.as_bytes(), count.as_bytes());
        let words: [&[u8]; 7] = [b"ZRANGEBYSCORE", INDEX, from, b"inf", b"LIMIT", b"0", count];
        let Answer::List(keys) = self.ask(&words)? else {
            return Err(unexpected("ZRANGEBYSCORE"));
        };
        for key in keys {
            let Answer::Bytes(key) = key else { return Err(unexpected("ZRANGEBYSCORE")) };
            pairs.push().0.extend_from_slice(&key);
        }
        pairs.retain_found(|keys, found| {
            let mut value = Vec::new();
            for (index, key) in keys.iter().enumerate() {
                let is_found = self.read_record(key, &mut value)?;
                found(index, is_found.then_some(&value));
            }
            Ok::<_, StoreError>(())
        })?;
        // Other keys with the same hash may come before it.
        let first = pairs.iter().next();
        Ok(first.is_some_and(|(key, _)| java_hash(key) == java_hash(start)))
    }

    fn fields(&mut self) -> Fields<'_> {
        Fields::Apart(self)
    }
}

impl FieldStore for RespStore<'_> {
    fn read_field(
        &mut self,
        key: &[u8],
        field: usize,
        bytes: &mut Vec<u8>,
    ) -> Result<bool, StoreError> {
        let stores = self.stores;
        let Answer::List(items) = self.ask(&[b"HMGET", key, &stores.names[field]])? else {
            return Err(unexpected("HMGET"));
        };
        match &items[..] {
            [Answer::Bytes(found)] => {
                found.clone_into(bytes);
                Ok(true)
            }
            [Answer::Nothing] => Ok(false),
            _ => Err(unexpected("HMGET")),
        }
    }

    fn write_field(&mut self, key: &[u8], field: usize, bytes: &[u8]) -> Result<(), StoreError> {
        let stores = self.stores;
        match self.ask(&[b"HSET", key, &stores.names[field], bytes])? {
            Answer::Integer(_) => Ok(()),
            _ => Err(unexpected("HSET")),
        }
    }
}

fn unexpected(command: &str) -> StoreError {
    StoreError::new(format!(
        "the server's answer to {command} has an unexpected type: use a Redis server or rackpool-kv"
    ))
}

/// Returns the score of a key: Java's `String.hashCode`, as in YCSB's binding.
fn java_hash(key: &[u8]) -> i32 {
    key.iter().fold(0_i32, |hash, byte| hash.wrapping_mul(31).wrapping_add(i32::from(*byte)))
}

#[cfg(test)]
mod tests;
