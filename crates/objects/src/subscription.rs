//! Subscriptions: what is sealed and deleted under a prefix.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use rackpool_kv::Version;

use crate::error::StoreError;
use crate::layout::head::Head;
use crate::layout::keys::Keys;
use crate::list::ObjectInfo;
use crate::options::EvictionPolicy;
use crate::store::Store;
use crate::wait::Pauses;

/// A change of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreEvent {
    /// The object is sealed.
    Sealed(ObjectInfo),
    /// The object of this id was deleted or evicted, or has expired.
    Deleted(Vec<u8>),
}

/// Tells which objects a store has under a prefix: first those that are there, then each change.
///
/// A subscription compares the entries of the object table with those that it has reported. So a
/// kill of any program loses no change, and a subscription leaves nothing in the store. An object
/// that is sealed and deleted between two looks is not reported. One that was deleted and made
/// again is reported as both. One that moves to a file or back is not reported.
#[derive(Debug)]
pub struct Subscription {
    store: Store,
    prefix: Vec<u8>,
    /// The objects that it has told of.
    told: BTreeMap<Vec<u8>, Told>,
    events: VecDeque<StoreEvent>,
}

/// What tells an object from the next one of its id.
#[derive(Clone, Copy, Debug)]
struct Told {
    version: Version,
    created_ms: u64,
    checksum: u64,
}

impl Told {
    /// Whether the entries are of one object, in a store whose objects move to files or not: each
    /// move makes another entry.
    fn is_same(&self, other: &Self, moves: bool) -> bool {
        let sealed = |told: &Self| (told.created_ms, told.checksum);
        self.version == other.version || moves && sealed(self) == sealed(other)
    }
}

type Found = BTreeMap<Vec<u8>, (Told, ObjectInfo)>;

impl Store {
    /// Subscribes to the objects whose ids begin with `prefix`.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use rackpool_objects::{Store, StoreError, StoreEvent};
    /// fn consume(store: &Store) -> Result<(), StoreError> {
    ///     let mut results = store.subscribe(b"result/");
    ///     while let Some(event) = results.next(Duration::from_secs(60))? {
    ///         if let StoreEvent::Sealed(object) = event {
    ///             println!("{} B", object.bytes);
    ///         }
    ///     }
    ///     Ok(())
    /// }
    /// ```
    #[must_use]
    pub fn subscribe(&self, prefix: &[u8]) -> Subscription {
        let (store, prefix) = (self.clone(), prefix.to_vec());
        Subscription { store, prefix, told: BTreeMap::new(), events: VecDeque::new() }
    }

    fn found_under(&self, prefix: &[u8]) -> Result<Found, StoreError> {
        let oldest = self.oldest_alive()?;
        self.with(|handles| {
            let mut found = Found::new();
            handles.objects.for_each_placed(
                |_| true,
                |key, value, place| {
                    let id = Keys::id_in(key).filter(|id| id.starts_with(prefix));
                    let head = Head::decode(value).filter(|head| head.created_ms >= oldest);
                    if let (Some(id), Some(head)) = (id, head) {
                        let Head { created_ms, checksum, .. } = head;
                        let told = Told { version: place.version, created_ms, checksum };
                        found.insert(id.to_vec(), (told, ObjectInfo::of(id, &head)));
                    }
                },
            )?;
            Ok(found)
        })
    }
}

impl Subscription {
    /// Returns the next change; `None` when none was found for `timeout`. Waits as [`Store::wait`]
    /// does: each look walks the store's table, and looks take at most a tenth of a core. So a
    /// change is told of about a millisecond after it in a store of a few thousand objects, and
    /// after ten times the duration of a walk in a large one.
    ///
    /// # Errors
    /// That of the pool, or of a damaged table. The subscription stays as it was.
    pub fn next(&mut self, timeout: Duration) -> Result<Option<StoreEvent>, StoreError> {
        let deadline = Instant::now().checked_add(timeout);
        let mut pauses = Pauses::default();
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(Some(event));
            }
            let begin = Instant::now();
            self.look()?;
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if self.events.is_empty() {
                if left.is_some_and(|left| left.is_zero()) {
                    return Ok(None);
                }
                let rest = pauses.next(begin.elapsed());
                std::thread::sleep(left.map_or(rest, |left| left.min(rest)));
            }
        }
    }

    /// Queues what has changed since the last look: what is gone, then what is new.
    fn look(&mut self) -> Result<(), StoreError> {
        let found = self.store.found_under(&self.prefix)?;
        let moves = self.store.options()?.policy == EvictionPolicy::Spill;
        let is_as_told = |id: &Vec<u8>, told: &Told| {
            found.get(id).is_some_and(|(now, _)| now.is_same(told, moves))
        };
        let gone = self.told.extract_if(.., |id, told| !is_as_told(id, told));
        self.events.extend(gone.map(|(id, _)| StoreEvent::Deleted(id)));
        for (id, (told, info)) in found {
            if self.told.insert(id, told).is_none() {
                self.events.push_back(StoreEvent::Sealed(info));
            }
        }
        Ok(())
    }
}
