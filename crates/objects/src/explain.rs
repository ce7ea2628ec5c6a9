//! What is known of an id, for operators. It only reads.

use rackpool_client::{Extent, GlobalAddr, RackId};
use rackpool_kv::now_ms;

use crate::error::StoreError;
use crate::layout::head::{Head, HeadLayout};
use crate::layout::header::RACKS;
use crate::layout::keys::Keys;
use crate::layout::registration::Registration;
use crate::list::{ObjectInfo, ObjectStat};
use crate::options::StoreOptions;
use crate::store::{PlacedHead, Store};

/// What is known of an id: see [`Store::explain`].
#[derive(Clone, Debug)]
pub struct Explanation {
    /// The sealed object of this id, also if it has expired.
    pub object: Option<ExplainedObject>,
    /// The entry that names the racks with replicas, if there is one.
    pub registration: Option<ExplainedRegistration>,
    /// Why the object or the registration could not be looked for, if so: a rack is away, or has
    /// lost its memory.
    pub unread: Vec<String>,
    /// The replicas, by rack.
    pub replicas: Vec<ExplainedReplica>,
    /// Racks whose replicas could not be looked at, and why.
    pub unknown: Vec<(RackId, String)>,
    /// The options of the store.
    pub options: StoreOptions,
}

/// A sealed object.
#[derive(Clone, Debug)]
pub struct ExplainedObject {
    /// What [`Store::stat`] returns. The last use is 0 if the object's rack does not answer.
    pub stat: ObjectStat,
    /// Where the bytes lie; empty if they are in the head or in a file, or if its rack does not
    /// answer.
    pub extents: Vec<Extent>,
    /// The memory of the object, head and extents, in bytes; 0 if it is in a file.
    pub memory_bytes: u64,
    /// When the object expires or has expired, in milliseconds since 1970; `None` if it never does.
    pub expires_ms: Option<u64>,
    /// Why the head could not be read, if so.
    pub unread: Option<String>,
}

impl ExplainedObject {
    /// Whether the object has expired: it then counts as absent.
    #[must_use]
    pub fn has_expired(&self) -> bool {
        self.expires_ms.is_some_and(|expires_ms| expires_ms < now_ms())
    }
}

/// The registration of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExplainedRegistration {
    /// Whether racks may still register replicas. A delete closes the registration first, and never
    /// opens it again.
    pub is_open: bool,
    /// Whether it is of the object that is in the store; otherwise of one that is deleted.
    pub is_current: bool,
    /// The racks that may have replicas.
    pub racks: Vec<RackId>,
}

/// A replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExplainedReplica {
    /// The rack that has it.
    pub rack: RackId,
    /// The address of its head.
    pub addr: GlobalAddr,
    /// Whether readers use it. It is not ready while a program brings the bytes, or after such a
    /// program was killed.
    pub is_ready: bool,
    /// How many bytes of the object and its metadata it has, from the first one on.
    pub filled_bytes: u64,
    /// About when a program of its rack last got it, in milliseconds since 1970.
    pub last_use_ms: u64,
}

/// What was found; nothing, and why, if it could not be looked for.
fn or_unread<T>(
    what: &str,
    unread: &mut Vec<String>,
    found: Result<Option<T>, StoreError>,
) -> Result<Option<T>, StoreError> {
    match found {
        Ok(found) => Ok(found),
        Err(StoreError::Removed) => Err(StoreError::Removed),
        Err(error) => {
            unread.push(format!("{what}: {error}"));
            Ok(None)
        }
    }
}

impl Store {
    /// What is known of an id: where its object and its replicas are, and how far a delete has
    /// come. Changes that other programs make meanwhile may be seen in part.
    ///
    /// ```no_run
    /// # use rackpool_objects::{Store, StoreError};
    /// fn ready_replicas(store: &Store) -> Result<usize, StoreError> {
    ///     let known = store.explain(b"layer-1")?;
    ///     Ok(known.replicas.iter().filter(|replica| replica.is_ready).count())
    /// }
    /// ```
    ///
    /// # Errors
    /// [`StoreError::IdLength`], or that of the pool.
    pub fn explain(&self, id: &[u8]) -> Result<Explanation, StoreError> {
        let (keys, options) = (Keys::of(id)?, self.options()?);
        let layout = HeadLayout::of(id.len());
        let mut unread = Vec::new();
        let found = self.with(|handles| handles.find(keys.object()));
        let found = or_unread("the object", &mut unread, found)?;
        let registration = self.with(|handles| {
            let found = handles.value(keys.registration().object())?;
            Ok(found.and_then(Registration::decode))
        });
        let registration = or_unread("the registration", &mut unread, registration)?;
        let is_current =
            |now: &Registration| found.is_some_and(|object| object.place.version == now.version);
        let racks: Vec<RackId> = registration.iter().flat_map(Registration::racks).collect();
        let current = registration.filter(is_current).is_some();
        let object = found.map(|found| {
            let replicas = if current { racks.clone() } else { Vec::new() };
            self.explain_object(id, &found, replicas, &options)
        });
        let (mut replicas, mut unknown) = (Vec::new(), Vec::new());
        for rack in (0..RACKS).map(RackId) {
            match self.replica_in(rack, &keys, layout) {
                Ok(replica) => replicas.extend(replica),
                Err(StoreError::Removed) => return Err(StoreError::Removed),
                Err(error) => unknown.push((rack, error.to_string())),
            }
        }
        let registration = registration.map(|now| ExplainedRegistration {
            is_open: !now.is_closed,
            is_current: current,
            racks,
        });
        Ok(Explanation { object, registration, unread, replicas, unknown, options })
    }

    fn explain_object(
        &self,
        id: &[u8],
        found: &PlacedHead,
        replicas: Vec<RackId>,
        options: &StoreOptions,
    ) -> ExplainedObject {
        let PlacedHead { place, head } = *found;
        let layout = HeadLayout::of(id.len());
        let live = options.time_to_live.map(|live| u64::try_from(live.as_millis()));
        let expires = |live| head.created_ms.saturating_add(live);
        let last_use_ms = self.last_use_of(found, layout);
        let extents = self.extents_of(place.addr, &head, layout);
        let unread = last_use_ms.as_ref().err().or(extents.as_ref().err()).map(ToString::to_string);
        ExplainedObject {
            stat: ObjectStat {
                info: ObjectInfo::of(id, &head),
                addr: place.addr,
                pieces: head.pieces(),
                last_use_ms: last_use_ms.unwrap_or(0),
                replicas,
            },
            extents: extents.unwrap_or_default(),
            memory_bytes: head.memory(layout, self.pool().page_bytes()),
            expires_ms: live.map(|live| expires(live.unwrap_or(u64::MAX))),
            unread,
        }
    }

    fn extents_of(
        &self,
        addr: GlobalAddr,
        head: &Head,
        layout: HeadLayout,
    ) -> Result<Vec<Extent>, StoreError> {
        let has_none = head.extents == 0 || head.is_spilled();
        if has_none { Ok(Vec::new()) } else { self.read_extents(addr, head, layout) }
    }

    fn replica_in(
        &self,
        rack: RackId,
        keys: &Keys,
        layout: HeadLayout,
    ) -> Result<Option<ExplainedReplica>, StoreError> {
        let Some(mut table) = self.replica_table_if_any(rack)? else { return Ok(None) };
        let mut value = Vec::new();
        let Some(place) = table.get_placed(keys.object(), &mut value)? else { return Ok(None) };
        let (last_use_ms, filling) = self.filling_of(place.addr, layout)?;
        let filled_bytes = Head::decode(&value).map_or(0, |head| filling.bytes(head.len()));
        let (addr, is_ready) = (place.addr, filling.is_ready);
        Ok(Some(ExplainedReplica { rack, addr, is_ready, filled_bytes, last_use_ms }))
    }
}
