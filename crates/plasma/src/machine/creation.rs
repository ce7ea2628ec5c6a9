//! Creates, which may have to wait for memory.

use std::iter;

use super::memory::{CreateError, ObjectMemory};
use super::session::{Attempt, PendingCreate};
use super::table::bytes_of;
use super::{ClientId, Machine, Now};
use crate::protocol::reply::{Place, PlasmaError, Size};
use crate::protocol::{NewObject, ObjectId, Reply, Request};

/// An object that a client creates.
#[derive(Clone, Copy)]
struct Wanted {
    client: ClientId,
    id: ObjectId,
    size: Size,
    /// Other objects may be evicted for it.
    evicts: bool,
}

/// The outcome of a request, or the time at which the request is to be executed again.
type Outcome<T> = Result<T, u64>;

impl Machine {
    /// Executes a request that creates objects.
    pub(super) fn creation(
        &mut self,
        client: ClientId,
        request: &Request<'_>,
        now: Now,
        memory: &mut impl ObjectMemory,
    ) -> Outcome<Option<Reply>> {
        Ok(Some(match *request {
            Request::Create { id, evicts, data, metadata, device } => {
                // The rack has no memory of other devices.
                let place = if device == 0 {
                    let size = Size { data, metadata };
                    self.create(Wanted { client, id, size, evicts }, now, memory)?
                } else {
                    Err(PlasmaError::OutOfMemory)
                };
                Reply::Create { id, place, file_bytes: self.file_bytes }
            }
            Request::CreateAndSeal { ref object, evicts } => {
                let error = self.create_and_seal(client, object, evicts, now, memory)?;
                Reply::CreateAndSeal { error }
            }
            Request::CreateAndSealBatch { ref objects, evicts } => {
                let error = self.create_and_seal_batch(client, objects, evicts, now, memory)?;
                Reply::CreateAndSealBatch { error }
            }
            _ => return Ok(None),
        }))
    }

    /// Begins an object, which the client uses then.
    fn create(
        &mut self,
        wanted: Wanted,
        now: Now,
        memory: &mut impl ObjectMemory,
    ) -> Outcome<Result<Place, PlasmaError>> {
        let created = self.try_create(wanted, now, memory);
        if created.is_ok()
            && let Some(session) = self.clients.get_mut(&wanted.client)
        {
            session.create = None;
        }
        created
    }

    fn try_create(
        &mut self,
        wanted: Wanted,
        now: Now,
        memory: &mut impl ObjectMemory,
    ) -> Outcome<Result<Place, PlasmaError>> {
        let Wanted { client, id, size, evicts } = wanted;
        if self.table.get(&id).is_some() || memory.contains(&id) {
            return Ok(Err(PlasmaError::ObjectExists));
        }
        let bytes = bytes_of(size);
        if !self.table.make_room(bytes, evicts, memory) {
            return Ok(Err(PlasmaError::OutOfMemory));
        }
        match memory.create(&id, size, now.unix_s) {
            Ok(offset) => {
                let place = Place { offset, size };
                self.table.begin(id, place, client, now);
                if let Some(session) = self.clients.get_mut(&client) {
                    session.uses.insert(id);
                }
                Ok(Ok(place))
            }
            Err(CreateError::Exists) => Ok(Err(PlasmaError::ObjectExists)),
            Err(CreateError::Failed) => Ok(Err(PlasmaError::OutOfMemory)),
            Err(CreateError::Full) => {
                let Some(session) = self.clients.get_mut(&client) else {
                    return Ok(Err(PlasmaError::OutOfMemory));
                };
                let pending = session.create.get_or_insert_with(|| PendingCreate::new(now));
                let Attempt::Again { evicts: evicts_now, at_ms } = pending.failed(now) else {
                    return Ok(Err(PlasmaError::OutOfMemory));
                };
                if evicts && evicts_now {
                    self.table.evict(bytes, memory);
                }
                Err(at_ms)
            }
        }
    }

    /// Creates, fills, seals and releases an object.
    fn create_and_seal(
        &mut self,
        client: ClientId,
        object: &NewObject<'_>,
        evicts: bool,
        now: Now,
        memory: &mut impl ObjectMemory,
    ) -> Outcome<PlasmaError> {
        let NewObject { id, data, metadata, digest } = *object;
        let size = Size { data: data.len() as u64, metadata: metadata.len() as u64 };
        if let Err(error) = self.create(Wanted { client, id, size, evicts }, now, memory)? {
            return Ok(error);
        }
        memory.fill(&id, data, metadata);
        let error = self.seal(client, &id, digest, now, memory);
        self.release(client, &id, memory);
        Ok(error)
    }

    /// As many of a batch as succeed, in order.
    fn create_and_seal_batch(
        &mut self,
        client: ClientId,
        objects: &[NewObject<'_>],
        evicts: bool,
        now: Now,
        memory: &mut impl ObjectMemory,
    ) -> Outcome<PlasmaError> {
        let sealed = self.clients.get(&client).map_or(0, |session| session.batch_sealed);
        let mut error = PlasmaError::Ok;
        for (number, object) in iter::zip(0.., objects).skip(sealed) {
            error = self.create_and_seal(client, object, evicts, now, memory)?;
            let is_last = error != PlasmaError::Ok || number + 1 == objects.len();
            if let Some(session) = self.clients.get_mut(&client) {
                session.batch_sealed = if is_last { 0 } else { number + 1 };
            }
            if is_last {
                break;
            }
        }
        Ok(error)
    }

    /// Brings a demoted object back. Returns false if there is no room for it.
    pub(super) fn promote(
        &mut self,
        id: &ObjectId,
        size: Size,
        now: Now,
        memory: &mut impl ObjectMemory,
    ) -> bool {
        // No client creates it.
        const NOBODY: ClientId = ClientId(u64::MAX);

        if self.table.get(id).is_some() || !self.table.make_room(bytes_of(size), true, memory) {
            return false;
        }
        let Ok(offset) = memory.create(id, size, now.unix_s) else { return false };
        if !memory.fill_demoted(id) {
            memory.abort(id);
            return false;
        }
        if memory.seal(id).is_err() {
            return false;
        }
        self.table.begin(*id, Place { offset, size }, NOBODY, now);
        self.table.sealed(id, None, now);
        true
    }
}
