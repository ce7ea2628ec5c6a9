use std::sync::Arc;

use rackpool_client::{GlobalAddr, Pool, RackId};
use rackpool_kv::Handle;

use crate::error::{StoreError, but_lost};
use crate::layout::head::{Head, HeadLayout};
use crate::layout::keys::Keys;
use crate::layout::registration::Registration;
use crate::protocol;
use crate::steps::Entries;
use crate::store::{Store, lock};

/// An object of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectInfo {
    /// The id.
    pub id: Vec<u8>,
    /// The length of the bytes.
    pub bytes: u64,
    /// The length of the metadata in bytes.
    pub metadata_bytes: u64,
    /// The number that names the layout of the bytes.
    pub layout_tag: u64,
    /// The checksum; see [`View::checksum`](crate::View::checksum).
    pub checksum: u64,
    /// When the object was sealed, in milliseconds since 1970 by the creator's clock.
    pub created_ms: u64,
    /// The rack in which the object was created.
    pub rack: RackId,
    /// Whether its bytes are in a file of the rack. The next get brings them back.
    pub is_spilled: bool,
}

/// An object and where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectStat {
    /// What the store says of the object.
    pub info: ObjectInfo,
    /// The address of its head.
    pub addr: GlobalAddr,
    /// The number of pieces in which its bytes lie; 0 if they are in a file.
    pub pieces: u32,
    /// About when a program of its rack last got the object, in milliseconds since 1970; 0 if it is
    /// in a file.
    pub last_use_ms: u64,
    /// The other racks that have replicas.
    pub replicas: Vec<RackId>,
}

impl ObjectInfo {
    pub(crate) fn of(id: &[u8], head: &Head) -> Self {
        Self {
            id: id.to_vec(),
            bytes: head.bytes,
            metadata_bytes: head.metadata.into(),
            layout_tag: head.layout_tag,
            checksum: head.checksum,
            created_ms: head.created_ms,
            rack: head.rack,
            is_spilled: head.is_spilled(),
        }
    }
}

/// Calls `visit` with all entries of a table, but for those whose memory is lost.
fn visit_all(
    table: &mut Handle<Arc<Pool>>,
    visit: impl FnMut(&[u8], &[u8]),
) -> Result<(), StoreError> {
    let visited = table.for_each(visit).map_err(StoreError::from);
    match visited {
        // All others were visited, unless a part of the table itself is lost.
        Err(error) if error.is_lost() => Ok(table.lost_entries().map(drop)?),
        visited => visited,
    }
}

impl Store {
    /// The sealed objects whose ids begin with `prefix`, in the order of their ids. Objects that
    /// are sealed or deleted during the call may be missing, and those whose memory is lost are.
    /// The call also removes what killed programs left: registrations of deleted objects, and
    /// replicas of the own rack that were never registered.
    ///
    /// # Errors
    /// That of the pool, or of a damaged table.
    pub fn list(&self, prefix: &[u8]) -> Result<Vec<ObjectInfo>, StoreError> {
        let oldest = self.oldest_alive()?;
        if oldest > 0 {
            self.sweep()?;
        }
        self.sweep_files(&mut lock(&self.shared.survey))?;
        let mut objects = self.with(|handles| {
            let (mut objects, mut registered) = (Vec::new(), Vec::new());
            visit_all(&mut handles.objects, |key, value| {
                let id = Keys::id_in(key).filter(|id| id.starts_with(prefix));
                let head = Head::decode(value).filter(|head| head.created_ms >= oldest);
                if let (Some(id), Some(head)) = (id, head) {
                    objects.push(ObjectInfo::of(id, &head));
                }
                registered.extend(Keys::registered_in(key));
            })?;
            for keys in registered {
                self.check_in_use()?;
                but_lost(protocol::remove_orphan(&mut Entries::new(self, handles, &keys)))?;
            }
            let mut replicas = Vec::new();
            if let Some(table) = &mut handles.replicas {
                visit_all(table, |key, _| replicas.extend(Keys::id_in(key).map(Keys::of)))?;
            }
            for keys in replicas {
                self.check_in_use()?;
                but_lost(protocol::remove_abandoned(&mut Entries::new(self, handles, &keys?)))?;
            }
            Ok(objects)
        })?;
        objects.sort_unstable_by(|a, b| a.id.cmp(&b.id));
        Ok(objects)
    }

    /// What is known of an object; `None` if there is no sealed object of this id.
    ///
    /// # Errors
    /// [`StoreError::IdLength`], or that of the pool.
    pub fn stat(&self, id: &[u8]) -> Result<Option<ObjectStat>, StoreError> {
        let keys = Keys::of(id)?;
        let oldest = self.oldest_alive()?;
        self.with(|handles| {
            loop {
                let found = handles.find(keys.object())?;
                let Some(object) = found.filter(|found| found.head.created_ms >= oldest) else {
                    return Ok(None);
                };
                let last_use_ms = self.last_use_of(&object, HeadLayout::of(id.len()));
                let key = keys.registration();
                let registration = handles.value(key.object())?.and_then(Registration::decode);
                let registration = registration.filter(|now| now.version == object.place.version);
                if handles.find(keys.object())? != Some(object) {
                    continue;
                }
                return Ok(Some(ObjectStat {
                    info: ObjectInfo::of(id, &object.head),
                    addr: object.place.addr,
                    pieces: object.head.pieces(),
                    last_use_ms: last_use_ms?,
                    replicas: registration.iter().flat_map(Registration::racks).collect(),
                }));
            }
        })
    }
}
