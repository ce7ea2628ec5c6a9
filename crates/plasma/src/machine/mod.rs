//! The service without its sockets and its store: clients, objects, waiting gets, subscriptions.
//! Pure: requests, times and the outcome of look-ups come in, effects go out, and the store is an
//! [`ObjectMemory`].

mod creation;
mod gets;
mod memory;
mod session;
mod table;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};

pub use memory::{CreateError, Listed, ObjectMemory, Removal, SealError};

use crate::protocol::reply::PlasmaError;
use crate::protocol::reply::Size;
use crate::protocol::{Digest, ObjectId, ObjectInfo, Reply, Request};
use session::Session;
use table::ObjectTable;

/// A connection of a client. Numbers are not used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u64);

/// The time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Milliseconds of a clock that only grows.
    pub ms: u64,
    /// Seconds since 1970.
    pub unix_s: u64,
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The next request of the client may be executed, unless it waits for a get.
    Done,
    /// The same request is to be executed again then.
    Again {
        /// When.
        at_ms: u64,
    },
    /// A descriptor follows; then [`Machine::subscribe`] is to be called.
    NeedsDescriptor,
    /// The client is to be disconnected.
    Violation(&'static str),
    /// The client wants to be disconnected.
    Disconnect,
}

/// What the shell is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Send a reply, then the descriptor of the file if the client needs it.
    Reply {
        /// To whom.
        client: ClientId,
        /// What.
        reply: Reply,
        /// The client has not had the descriptor.
        sends_descriptor: bool,
    },
    /// Send a notification to a subscriber.
    Notify {
        /// To whom.
        client: ClientId,
        /// Of what.
        info: ObjectInfo,
    },
    /// Ask the pool for objects; each answer goes to [`Machine::looked_up`].
    LookUp {
        /// Their ids.
        ids: Vec<ObjectId>,
    },
}

/// What the pool has of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookedUp {
    /// Nothing.
    Absent,
    /// A sealed object; it can be pinned at once.
    Here,
    /// An object that was demoted, of this size.
    Demoted(Size),
}

/// The service.
#[derive(Debug)]
pub struct Machine {
    table: ObjectTable,
    clients: HashMap<ClientId, Session>,
    subscribers: BTreeSet<ClientId>,
    /// The clients that wait for an object.
    waiting: HashMap<ObjectId, BTreeSet<ClientId>>,
    /// The clients that wait for a get.
    getting: BTreeSet<ClientId>,
    /// The objects that the pool is asked for.
    looking: HashSet<ObjectId>,
    file_bytes: u64,
    effects: VecDeque<Effect>,
}

impl Machine {
    /// A service of `capacity` bytes that takes over what an earlier one has left in `memory`.
    #[must_use]
    pub fn new(capacity: u64, memory: &mut impl ObjectMemory) -> Self {
        Self {
            table: ObjectTable::new(capacity, memory),
            clients: HashMap::new(),
            subscribers: BTreeSet::new(),
            waiting: HashMap::new(),
            getting: BTreeSet::new(),
            looking: HashSet::new(),
            file_bytes: memory.file_bytes(),
            effects: VecDeque::new(),
        }
    }

    /// A client has connected.
    pub fn connect(&mut self, client: ClientId) {
        self.clients.insert(client, Session::default());
    }

    /// A client has gone. Its unsealed objects are freed, its references dropped.
    pub fn disconnect(&mut self, client: ClientId, memory: &mut impl ObjectMemory) {
        self.drop_get(client);
        self.subscribers.remove(&client);
        let Some(session) = self.clients.remove(&client) else { return };
        for id in session.uses {
            if self.is_unsealed_of(&id, client) {
                memory.abort(&id);
                self.table.aborted(&id);
            } else {
                self.table.release(&id, memory);
            }
        }
        self.notify();
    }

    /// Ends a subscription that the client does not read.
    pub fn unsubscribe(&mut self, client: ClientId) {
        self.subscribers.remove(&client);
    }

    /// Returns true if the client waits for a get, so that its next request has to wait.
    #[must_use]
    pub fn is_waiting(&self, client: ClientId) -> bool {
        self.getting.contains(&client)
    }

    /// The next effect.
    pub fn next_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// Executes a request.
    pub fn request(
        &mut self,
        client: ClientId,
        request: Request<'_>,
        now: Now,
        memory: &mut impl ObjectMemory,
    ) -> Progress {
        if !self.clients.contains_key(&client) {
            return Progress::Violation("it is not connected");
        }
        let progress = self.execute(client, request, now, memory);
        self.notify();
        progress
    }

    fn execute(
        &mut self,
        client: ClientId,
        request: Request<'_>,
        now: Now,
        memory: &mut impl ObjectMemory,
    ) -> Progress {
        match self.creation(client, &request, now, memory) {
            Err(at_ms) => return Progress::Again { at_ms },
            Ok(None) => {}
            Ok(Some(reply)) => {
                self.reply(client, reply);
                return Progress::Done;
            }
        }
        let reply = match request {
            Request::Create { .. }
            | Request::CreateAndSeal { .. }
            | Request::CreateAndSealBatch { .. } => return Progress::Done,
            Request::Disconnect => return Progress::Disconnect,
            Request::Subscribe => return Progress::NeedsDescriptor,
            Request::Get { ids, timeout_ms } => {
                self.get(client, ids, timeout_ms, now, memory);
                return Progress::Done;
            }
            Request::Release { id } => {
                self.release(client, &id, memory);
                return Progress::Done;
            }
            Request::Abort { id } => {
                if !self.is_unsealed_of(&id, client) {
                    return Progress::Violation("it aborts an object that it is not creating");
                }
                memory.abort(&id);
                self.table.aborted(&id);
                self.forget_use(client, &id);
                Reply::Abort { id }
            }
            Request::Seal { id, digest } => {
                Reply::Seal { id, error: self.seal(client, &id, digest, now, memory) }
            }
            Request::Delete { ids } => {
                let errors = ids.into_iter().map(|id| (id, self.delete(&id, memory)));
                Reply::Delete { errors: errors.collect() }
            }
            Request::Contains { id } => Reply::Contains { id, is_contained: memory.contains(&id) },
            Request::List => Reply::List { objects: self.list(memory) },
            Request::Connect => Reply::Connect { capacity: self.table.capacity() },
            Request::Evict { bytes } => Reply::Evict { bytes: self.table.evict(bytes, memory) },
            Request::SetOptions { name, quota } => {
                if let Some(session) = self.clients.get_mut(&client) {
                    session.name = String::from_utf8_lossy(name).into_owned();
                }
                // No memory is set aside for a client.
                let is_refused = quota > 0;
                let error = if is_refused { PlasmaError::OutOfMemory } else { PlasmaError::Ok };
                Reply::SetOptions { error }
            }
            Request::DebugString => {
                Reply::DebugString { text: self.table.debug_text(self.clients.len()) }
            }
            Request::RefreshLru { ids } => {
                ids.iter().for_each(|id| self.table.refresh(id));
                Reply::RefreshLru
            }
        };
        self.reply(client, reply);
        Progress::Done
    }

    /// The client's descriptor for notifications has arrived. Sends those of the sealed objects of
    /// this rack.
    pub fn subscribe(&mut self, client: ClientId, memory: &mut impl ObjectMemory) {
        if !self.clients.contains_key(&client) {
            return;
        }
        self.subscribers.insert(client);
        for listed in memory.list().into_iter().filter(|listed| listed.is_here) {
            let info = self.info(&listed);
            self.effects.push_back(Effect::Notify { client, info });
        }
    }

    /// Replies to the gets whose time is over, and asks again for what others miss.
    pub fn advance(&mut self, now: Now) {
        for client in self.getting.clone() {
            self.advance_get(client, now);
        }
    }

    /// When [`Self::advance`] is to be called.
    #[must_use]
    pub fn wakes_ms(&self) -> Option<u64> {
        let gets = self.getting.iter().filter_map(|client| self.clients.get(client)?.get.as_ref());
        gets.filter_map(session::PendingGet::wakes_ms).min()
    }

    fn reply(&mut self, client: ClientId, reply: Reply) {
        let Some(session) = self.clients.get_mut(&client) else { return };
        let sends_descriptor = reply.has_place() && !session.has_descriptor;
        session.has_descriptor |= sends_descriptor;
        self.effects.push_back(Effect::Reply { client, reply, sends_descriptor });
    }

    /// Tells the subscribers what has changed.
    fn notify(&mut self) {
        for info in self.table.take_changes() {
            for client in &self.subscribers {
                self.effects.push_back(Effect::Notify { client: *client, info });
            }
        }
    }

    fn is_unsealed_of(&self, id: &ObjectId, client: ClientId) -> bool {
        self.table.get(id).is_some_and(|object| object.creator == Some(client))
    }

    /// Notes that a client does not use an object any more.
    fn forget_use(&mut self, client: ClientId, id: &ObjectId) -> bool {
        self.clients.get_mut(&client).is_some_and(|session| session.uses.remove(id))
    }

    /// An unsealed object stays in use until it is sealed or aborted.
    fn release(&mut self, client: ClientId, id: &ObjectId, memory: &mut impl ObjectMemory) {
        if !self.is_unsealed_of(id, client) && self.forget_use(client, id) {
            self.table.release(id, memory);
        }
    }

    fn delete(&mut self, id: &ObjectId, memory: &mut impl ObjectMemory) -> PlasmaError {
        let deferred = self.table.get(id).and_then(|object| match object {
            object if !object.is_sealed() => Some(PlasmaError::ObjectNotSealed),
            object if object.users > 0 => Some(PlasmaError::ObjectInUse),
            _ => None,
        });
        if let Some(error) = deferred {
            self.table.delete_later(id);
            return error;
        }
        match memory.delete(id) {
            Removal::Refused => PlasmaError::ObjectInUse,
            Removal::Removed => {
                self.table.forget(id);
                PlasmaError::Ok
            }
            Removal::Absent => {
                if self.table.get(id).is_some() {
                    self.table.forget(id);
                }
                PlasmaError::ObjectNonexistent
            }
        }
    }

    /// The sealed objects of the store and the unsealed ones of this service.
    fn list(&self, memory: &mut impl ObjectMemory) -> Vec<ObjectInfo> {
        let sealed = memory.list();
        let unsealed = self.table.iter().filter(|(_, object)| !object.is_sealed());
        let unsealed = unsealed.map(|(id, object)| object.info(*id));
        sealed.iter().map(|listed| self.info(listed)).chain(unsealed).collect()
    }

    /// What is known here of an object, or else what the store knows.
    fn info(&self, listed: &Listed) -> ObjectInfo {
        if let Some(object) = self.table.get(&listed.id).filter(|object| object.is_ours) {
            return object.info(listed.id);
        }
        let signed = |bytes| i64::try_from(bytes).unwrap_or(i64::MAX);
        let users = self.table.get(&listed.id).map_or(0, |object| object.users);
        ObjectInfo {
            id: listed.id,
            data: signed(listed.size.data),
            metadata: signed(listed.size.metadata),
            users: i32::try_from(users).unwrap_or(i32::MAX),
            created_s: signed(listed.created_s),
            construction_s: 0,
            digest: None,
            is_deletion: false,
        }
    }

    fn seal(
        &mut self,
        client: ClientId,
        id: &ObjectId,
        digest: Digest,
        now: Now,
        memory: &mut impl ObjectMemory,
    ) -> PlasmaError {
        if !self.is_unsealed_of(id, client) {
            return PlasmaError::ObjectNonexistent;
        }
        if let Err(error) = memory.seal(id) {
            self.table.aborted(id);
            self.forget_use(client, id);
            return match error {
                SealError::Exists => PlasmaError::ObjectExists,
                SealError::Failed => PlasmaError::ObjectNonexistent,
            };
        }
        self.table.sealed(id, Some(digest), now);
        self.found(id, now, memory);
        PlasmaError::Ok
    }
}
