//! Gets: what is here is replied at once, what is not is asked for in the pool and waited for.

use std::collections::HashSet;

use super::memory::ObjectMemory;
use super::session::PendingGet;
use super::{ClientId, Effect, LookedUp, Machine, Now};
use crate::protocol::{ObjectId, Reply};

impl Machine {
    pub(super) fn get(
        &mut self,
        client: ClientId,
        ids: Vec<ObjectId>,
        timeout_ms: i64,
        now: Now,
        memory: &mut impl ObjectMemory,
    ) {
        let mut missing = HashSet::new();
        for id in &ids {
            if !missing.contains(id) && !self.acquire(client, id, false, memory) {
                missing.insert(*id);
            }
        }
        for id in &missing {
            self.waiting.entry(*id).or_default().insert(client);
        }
        self.look_up(missing.iter().copied());
        let Some(session) = self.clients.get_mut(&client) else { return };
        session.get = Some(PendingGet::new(ids, missing, timeout_ms, now));
        self.getting.insert(client);
        self.advance_get(client, now);
    }

    /// The pool has been asked for an object.
    pub fn looked_up(
        &mut self,
        id: &ObjectId,
        found: LookedUp,
        now: Now,
        memory: &mut impl ObjectMemory,
    ) {
        self.looking.remove(id);
        let clients = self.waiting.get(id).cloned().unwrap_or_default();
        for client in &clients {
            if let Some(get) = self.clients.get_mut(client).and_then(|s| s.get.as_mut()) {
                get.looking.remove(id);
            }
        }
        match found {
            LookedUp::Absent => {}
            LookedUp::Here => self.found(id, now, memory),
            LookedUp::Demoted(size) => {
                if !clients.is_empty() && self.promote(id, size, now, memory) {
                    self.found(id, now, memory);
                    // The use that the promotion began with.
                    self.table.release(id, memory);
                }
            }
        }
        for client in clients {
            self.advance_get(client, now);
        }
        self.notify();
    }

    /// Lets the clients that wait for an object use it.
    pub(super) fn found(&mut self, id: &ObjectId, now: Now, memory: &mut impl ObjectMemory) {
        for client in self.waiting.get(id).cloned().unwrap_or_default() {
            if !self.acquire(client, id, true, memory) {
                // It is gone again; the get asks for it later.
                return;
            }
            self.stop_waiting(client, id);
            if let Some(get) = self.clients.get_mut(&client).and_then(|s| s.get.as_mut()) {
                get.missing.remove(id);
                get.looking.remove(id);
            }
            self.advance_get(client, now);
        }
    }

    /// Lets a client use a sealed object; one that is not known here only if it `may_be_guest`.
    fn acquire(
        &mut self,
        client: ClientId,
        id: &ObjectId,
        may_be_guest: bool,
        memory: &mut impl ObjectMemory,
    ) -> bool {
        let Some(session) = self.clients.get_mut(&client) else { return false };
        if session.uses.contains(id) {
            return self.table.get(id).is_some_and(super::table::Object::is_sealed);
        }
        let is_acquired = if may_be_guest {
            self.table.acquire_guest(id, memory)
        } else {
            self.table.acquire(id, memory)
        };
        if is_acquired {
            session.uses.insert(*id);
        }
        is_acquired
    }

    /// Asks the pool for objects, unless it is asked for them already.
    fn look_up(&mut self, ids: impl Iterator<Item = ObjectId>) {
        let ids: Vec<_> = ids.filter(|id| self.looking.insert(*id)).collect();
        if !ids.is_empty() {
            self.effects.push_back(Effect::LookUp { ids });
        }
    }

    /// Replies to a client's get if it is over, or asks again for what it misses.
    pub(super) fn advance_get(&mut self, client: ClientId, now: Now) {
        let Some(session) = self.clients.get_mut(&client) else { return };
        let Some(get) = &mut session.get else { return };
        if !get.is_over(now) {
            if get.looks_again(now) {
                let missing = get.missing.clone();
                self.look_up(missing.into_iter());
            }
            return;
        }
        let Some(get) = self.drop_get(client) else { return };
        let place = |id: &ObjectId| {
            let object = self.table.get(id)?;
            (!get.missing.contains(id) && object.is_sealed()).then_some(object.place)
        };
        let objects = get.ids.iter().map(|id| (*id, place(id))).collect();
        self.reply(client, Reply::Get { objects, file_bytes: self.file_bytes });
    }

    /// Ends a client's get without a reply.
    pub(super) fn drop_get(&mut self, client: ClientId) -> Option<PendingGet> {
        self.getting.remove(&client);
        let get = self.clients.get_mut(&client)?.get.take()?;
        for id in &get.missing {
            self.stop_waiting(client, id);
        }
        Some(get)
    }

    fn stop_waiting(&mut self, client: ClientId, id: &ObjectId) {
        if let Some(clients) = self.waiting.get_mut(id) {
            clients.remove(&client);
            if clients.is_empty() {
                self.waiting.remove(id);
            }
        }
    }
}
