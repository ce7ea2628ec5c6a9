//! Agents: programs that do something for others in their racks: they take part in casts, bring
//! objects back from files, and take objects for which other racks have no memory.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rackpool_client::{GlobalAddr, Pool};
use rackpool_kv::now_ms;

use super::board::{Boards, Key, is_of_another_rack};
use super::link::{Link, LinkMeter};
use super::options::CastFailure;
use super::reads::{self, Receiving};
use super::records::{
    AgentRecord, CastNumber, CastRecord, Invitation, ObjectRequest, Outcome, Request,
};
use super::session::{Has, Session};
use crate::error::StoreError;
use crate::layout::head::Head;
use crate::layout::keys::Keys;
use crate::steps::{Fill, ReplicaMemory};
use crate::store::{PlacedHead, Purpose, Store, lock};
use crate::view::View;
use crate::wait::Pauses;

/// The pause between two records that say that the agent lives.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// The pause between two looks for casts that have been given up.
const SWEEP: Duration = Duration::from_secs(10);
/// The most requests that an agent works on at the same time. The others wait.
const MOST_REQUESTS: u16 = 16;

/// Takes part in casts for the rack of its pool: receives objects, and passes their blocks on. It
/// also brings objects of the rack back from files that programs of other racks get, and takes
/// objects for which other racks have no memory, as long as a quarter of the rack is free.
///
/// One agent in each rack is enough. If there are several, any of them takes a request.
///
/// ```no_run
/// # use std::sync::Arc;
/// # use std::sync::atomic::AtomicBool;
/// # use rackpool_client::{ClientOptions, Pool, RackId};
/// use rackpool_objects::CastAgent;
/// let pool = Arc::new(Pool::open(ClientOptions::new("/dev/shm/rackpool", RackId(1)))?);
/// let is_stopped = AtomicBool::new(false);
/// CastAgent::new(pool).serve(&is_stopped, |event| println!("{event:?}"))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct CastAgent {
    pool: Arc<Pool>,
    /// The stores of requests for single objects.
    stores: Mutex<HashMap<Opened, Store>>,
    meter: Mutex<LinkMeter>,
}

/// The header of a store, its stamp, and what it was opened for.
type Opened = (GlobalAddr, u64, Purpose);

/// What an agent has done.
#[derive(Debug)]
pub enum AgentEvent {
    /// The rack has an object that was cast.
    Received {
        /// The id of the object.
        id: Vec<u8>,
        /// Its length in bytes, with its metadata.
        bytes: u64,
        /// The time from the invitation.
        took: Duration,
    },
    /// An object was brought back from a file, for a program of another rack.
    Restored {
        /// The id of the object.
        id: Vec<u8>,
        /// Its length in bytes, with its metadata.
        bytes: u64,
        /// The time from the request.
        took: Duration,
    },
    /// An object has moved into this rack.
    Adopted {
        /// The id of the object.
        id: Vec<u8>,
        /// The time from the request.
        took: Duration,
    },
    /// The rack did not get an object, or could not bring it back.
    Failed {
        /// The id of the object, if it is known.
        id: Option<Vec<u8>>,
        /// The reason.
        error: StoreError,
    },
}

impl CastAgent {
    /// The threads that use an agent's pool at the same time, for
    /// [`ClientOptions::threads`](rackpool_client::ClientOptions::threads).
    pub const THREADS: u16 = 1 + MOST_REQUESTS * (1 + reads::THREADS);

    /// An agent for the rack of this pool.
    #[must_use]
    pub fn new(pool: Arc<Pool>) -> Self {
        Self { pool, stores: Mutex::default(), meter: Mutex::default() }
    }

    /// Serves until `is_stopped`, and until what has begun is over. Several casts run at the same
    /// time. `told` is called with what became of each, and with errors, such as a rack
    /// that is away, after which the agent tries again.
    ///
    /// # Errors
    /// That of a pool that can't be used any more.
    pub fn serve(
        &self,
        is_stopped: &AtomicBool,
        told: impl Fn(AgentEvent) + Sync,
    ) -> Result<(), StoreError> {
        let (rack, running, told) = (self.pool.rack(), &AtomicUsize::new(0), &told);
        let mut boards = Boards::open(&self.pool)?;
        // Casts may still invite an agent that was killed: its invitations are this one's.
        let inbox = boards.inbox_left(rack).unwrap_or(Key::Inbox(rack, rand::random()));
        let served = std::thread::scope(|scope| {
            let (mut pauses, begin) = (Pauses::busy(), Instant::now());
            let mut rounds = Rounds { inbox, record_at: begin, sweep_at: begin };
            while !is_stopped.load(Ordering::Relaxed) {
                let look = Instant::now();
                let running_now = running.load(Ordering::Relaxed);
                let most = usize::from(MOST_REQUESTS).saturating_sub(running_now);
                let requests =
                    match rounds.begin(&self.pool, &mut boards, lock(&self.meter).link(), most) {
                        Ok(requests) => requests,
                        Err(error) => {
                            self.pool.check_served()?;
                            told(AgentEvent::Failed { id: None, error });
                            std::thread::sleep(HEARTBEAT);
                            continue;
                        }
                    };
                if requests.is_empty() {
                    std::thread::sleep(pauses.next(look.elapsed()));
                    continue;
                }
                pauses = Pauses::busy();
                for request in requests {
                    running.fetch_add(1, Ordering::Relaxed);
                    let boards = boards.clone();
                    scope.spawn(move || {
                        match request {
                            Request::Join(invitation) => self.join(boards, invitation).map(told),
                            Request::Restore(request) => self.restore(boards, request).map(told),
                            Request::Adopt(request) => self.adopt(boards, request).map(told),
                        };
                        running.fetch_sub(1, Ordering::Relaxed);
                    });
                }
            }
            Ok(())
        });
        // Nobody waits for this rack from now on.
        served.and(boards.remove(Key::Agent(rack)))
    }

    /// Brings an object back from a file. `None` if there is no such object any more.
    fn restore(&self, boards: Boards, request: ObjectRequest) -> Option<AgentEvent> {
        let begin = Instant::now();
        let got = self.store(&request, Purpose::Agent).and_then(|store| store.get(&request.id));
        let bytes = |view: View| view.len() as u64;
        self.answer(boards, request, got.map(|view| view.map(bytes)), |id, bytes| {
            AgentEvent::Restored { id, bytes, took: begin.elapsed() }
        })
    }

    /// Moves an object into this rack. `None` if there is no such object in another rack any more.
    fn adopt(&self, boards: Boards, request: ObjectRequest) -> Option<AgentEvent> {
        let begin = Instant::now();
        let moved =
            self.store(&request, Purpose::Lender).and_then(|store| store.adopt(&request.id));
        let moved = moved.map(|is_moved| is_moved.then_some(()));
        self.answer(boards, request, moved, |id, ()| AgentEvent::Adopted {
            id,
            took: begin.elapsed(),
        })
    }

    /// The store of a request. It stays open, since it knows how much memory it takes.
    fn store(&self, request: &ObjectRequest, purpose: Purpose) -> Result<Store, StoreError> {
        let ObjectRequest { store, stamp, .. } = *request;
        let mut stores = lock(&self.stores);
        stores.retain(|_, store| store.check_in_use().is_ok());
        if let Some(store) = stores.get(&(store, stamp, purpose)) {
            return Ok(store.clone());
        }
        let opened = Store::at_header(Arc::clone(&self.pool), store, stamp, purpose)?;
        stores.insert((store, stamp, purpose), opened.clone());
        Ok(opened)
    }

    /// Answers a request that was done; `None` if there was nothing to do.
    fn answer<T>(
        &self,
        mut boards: Boards,
        request: ObjectRequest,
        done: Result<Option<T>, StoreError>,
        event: impl FnOnce(Vec<u8>, T) -> AgentEvent,
    ) -> Option<AgentEvent> {
        let ObjectRequest { number, from, id, .. } = request;
        let outcome = match &done {
            Ok(Some(_)) => Outcome::Shown,
            Ok(None) => Outcome::Deleted,
            Err(error) => Outcome::Refused(error.to_string()),
        };
        let answer = Key::Outcome { cast: number, of: self.pool.rack(), root: from };
        let told = boards.write(answer, &outcome);
        match done.and_then(|done| told.map(|()| done)) {
            Ok(done) => Some(event(id, done?)),
            Err(error) => Some(AgentEvent::Failed { id: Some(id), error }),
        }
    }

    /// Takes part in a cast, to its end. `None` if it is over already.
    fn join(&self, mut boards: Boards, invitation: Invitation) -> Option<AgentEvent> {
        let (begin, Invitation { cast, root }) = (Instant::now(), invitation);
        let record = match boards.read::<CastRecord>(Key::Cast { cast, root }) {
            Ok(Some(Ok(record))) if record.is_valid() && record.root() == Some(root) => record,
            Ok(None | Some(Ok(_))) => return None,
            // Another release: the root sees that nobody answers for this rack.
            Ok(Some(Err(error))) => {
                return Some(AgentEvent::Failed { id: None, error: error.into() });
            }
            Err(error) => return Some(AgentEvent::Failed { id: None, error }),
        };
        let id = record.id.clone();
        Some(match self.receive(boards, invitation, record) {
            Ok(bytes) => AgentEvent::Received { id, bytes, took: begin.elapsed() },
            Err(error) => AgentEvent::Failed { id: Some(id), error },
        })
    }

    /// Receives an object, passes it on until the cast is over, and returns its length.
    fn receive(
        &self,
        mut boards: Boards,
        Invitation { cast, root }: Invitation,
        record: CastRecord,
    ) -> Result<u64, StoreError> {
        let mut member =
            Member { cast, record, boards: boards.clone(), store: None, session: None };
        let received = member.receive(&self.pool);
        if let Some(meter) = member.session.as_ref().map(Session::meter)
            && meter.link().is_some()
        {
            *lock(&self.meter) = meter;
        }
        // If the multicast has failed here, its coordinator knows it.
        let has_failed =
            member.session.as_ref().and_then(Session::result).is_some_and(|result| result.is_err());
        if let Err(error) = &received
            && !has_failed
        {
            let outcome = match error {
                StoreError::Cast(CastFailure::Deleted) => Outcome::Deleted,
                error => Outcome::Refused(error.to_string()),
            };
            boards.write(Key::Outcome { cast, of: self.pool.rack(), root }, &outcome)?;
        }
        received
    }
}

/// The memory in bytes that a rack has for objects of others: what is free above a quarter.
fn lends(pool: &Pool) -> Result<u64, StoreError> {
    let status = pool.rack_status()?;
    let lent = status.free_frames.saturating_sub(status.frames / 4);
    Ok(u64::from(lent) * pool.page_bytes())
}

/// What an agent does now and then.
struct Rounds {
    inbox: Key,
    record_at: Instant,
    sweep_at: Instant,
}

impl Rounds {
    /// Writes that the agent lives, and returns up to `most` requests.
    fn begin(
        &mut self,
        pool: &Pool,
        boards: &mut Boards,
        link: Option<Link>,
        most: usize,
    ) -> Result<Vec<Request>, StoreError> {
        let rack = pool.rack();
        let now = Instant::now();
        let Key::Inbox(_, inbox) = self.inbox else { return Ok(Vec::new()) };
        if now >= self.record_at {
            let lends_bytes = lends(pool)?;
            let record = AgentRecord { seen_ms: now_ms(), inbox, lends_bytes, link };
            boards.write(Key::Agent(rack), &record)?;
            self.record_at = now + HEARTBEAT;
        }
        if now >= self.sweep_at {
            boards.sweep()?;
            self.sweep_at = now + SWEEP;
        }
        let taken = boards.take_requests(self.inbox, most);
        if taken.as_ref().is_err_and(is_of_another_rack) {
            (self.inbox, self.record_at) = (Key::Inbox(rack, rand::random()), now);
        }
        taken
    }
}

/// This rack's part in a cast.
struct Member {
    cast: CastNumber,
    record: CastRecord,
    boards: Boards,
    store: Option<Store>,
    session: Option<Session>,
}

impl Member {
    /// Gets the object as any program does, but for the way its bytes come.
    fn receive(&mut self, pool: &Arc<Pool>) -> Result<u64, StoreError> {
        let deleted = StoreError::Cast(CastFailure::Deleted);
        let store = Store::at_header(
            Arc::clone(pool),
            self.record.store,
            self.record.stamp,
            Purpose::Agent,
        )?;
        self.store = Some(store.clone());
        let Some(head) = Head::decode(&self.record.head) else { return Err(deleted) };
        let id = self.record.id.clone();
        let keys = Keys::of(&id)?;
        let Some(view) = store.get_filled(&keys, Some(self))? else { return Err(deleted) };
        if self.session.is_none() {
            // It was in this rack already.
            if !view.is_copy_of(&head) {
                return Err(deleted);
            }
            self.begin(view.head(), view.extents(), Has::Everything)?;
        }
        if let Some(session) = &mut self.session
            && session.result().is_none()
        {
            // The view keeps the bytes while others read them.
            session.serve(&mut |_| ())?;
        }
        if !store.is_shared(&keys, view.head())? {
            return Err(StoreError::NotShared);
        }
        if let Some(session) = &mut self.session {
            session.tell_shown()?;
        }
        Ok(head.len())
    }

    fn begin(
        &mut self,
        head: GlobalAddr,
        extents: u32,
        has: Has,
    ) -> Result<&mut Session, StoreError> {
        let deleted = StoreError::Cast(CastFailure::Deleted);
        let store = self.store.as_ref().ok_or(deleted)?;
        let (boards, record) = (self.boards.clone(), self.record.clone());
        let session = Session::new(store, boards, self.cast, record, (head, extents), has)?;
        Ok(self.session.insert(session))
    }
}

impl Fill for Member {
    fn fill(&mut self, object: &PlacedHead, into: ReplicaMemory<'_>) -> Result<bool, StoreError> {
        if object.place.version.to_bytes() != self.record.version {
            return Err(StoreError::Cast(CastFailure::Deleted));
        }
        let ReplicaMemory { addr, extents, bytes, grown } = into;
        let session = self.begin(addr, extents, Has::Nothing)?;
        session.receive(Receiving { bytes, grown })?;
        match session.result() {
            Some(Err(failure)) => Err(StoreError::Cast(failure.into())),
            // The machine has compared the checksum.
            Some(Ok(())) | None => Ok(true),
        }
    }
}
