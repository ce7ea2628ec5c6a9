//! Collections: a small one is one value, a large one is an ordered map.

use std::sync::Arc;
use std::time::Duration;

use rackpool_client::Pool;
use rackpool_kv::ordered::{MapId, OrderedMaps};
use rackpool_kv::{Entry, EntryChange, Form};
use rand::Rng;

use crate::failure::{DAMAGED, Failure};
use crate::store::Store;
use crate::values::{self, Body, Family, LargeMap};

/// The decision about a small collection.
#[derive(Debug)]
pub enum Small<R> {
    /// Leave it unchanged.
    Keep(R),
    /// Store the new elements; without elements, delete the key.
    Store(R),
    /// Convert it to a large collection first, then repeat the change.
    Grow,
}

/// A thread's access to the maps of large collections.
pub type LargeMaps = OrderedMaps<Arc<Pool>>;

/// Stores the elements of a small collection in a new map.
pub type Fill = fn(&mut LargeMaps, MapId, &[u8]) -> Result<(), Failure>;

/// A change of a collection, in both of its forms.
pub struct Edit<S, L> {
    /// The type of the collection.
    pub family: Family,
    /// Whether it changes several elements, which needs a transaction if the collection is large.
    pub several: bool,
    /// Computes the new elements from the old ones. It may be called again.
    pub small: S,
    /// Changes the map. It may be called again if the map was destroyed meanwhile.
    pub large: L,
    /// Stores the elements in a new map.
    pub fill: Fill,
}

/// The result of one attempt on the entry.
enum EditStep<R> {
    Done(R),
    /// The collection is in a map. An entry with an expiry must not stay if the map is empty.
    Large {
        id: MapId,
        may_stay: bool,
    },
    /// A large collection of another type, which counts only if it is not empty.
    Other {
        map: LargeMap,
        failure: Failure,
    },
    Grow,
}

impl Store {
    /// Reads a collection of this type: calls `small` with its elements (none if the key is
    /// absent), or `large` with its map.
    #[inline]
    pub fn look<R>(
        &mut self,
        key: &[u8],
        family: Family,
        small: impl FnOnce(&[u8]) -> Result<R, Failure>,
        mut large: impl FnMut(&mut LargeMaps, MapId) -> Result<R, Failure>,
    ) -> Result<R, Failure> {
        loop {
            let id = match self.keys.read(key)? {
                None => return small(&[]),
                Some(entry) => match family.body(entry.form.kind, entry.value) {
                    Ok(Body::Small(elements)) => return small(elements),
                    Ok(Body::Large(id)) => id,
                    // An empty large collection of another type counts as absent.
                    Err(failure) => match values::large_map(entry) {
                        Some(map) if self.is_empty(map)? => return small(&[]),
                        _ => return Err(failure),
                    },
                },
            };
            match large(&mut self.maps, id) {
                // The map was destroyed: the key names another one, or is gone.
                Err(failure) if failure.is_gone() => self.expect_change(key, id)?,
                result => return result,
            }
        }
    }

    /// Changes a collection; creates it if it is absent. [`Failure::Several`] if several elements
    /// of a large one are to be changed outside of a transaction.
    pub fn edit<R, S, L>(&mut self, key: &[u8], edit: &mut Edit<S, L>) -> Result<R, Failure>
    where
        S: FnMut(&[u8], &mut Vec<u8>) -> Result<Small<R>, Failure>,
        L: FnMut(&mut LargeMaps, MapId) -> Result<R, Failure>,
    {
        let mut has_grown = false;
        loop {
            let family = edit.family;
            let small = &mut edit.small;
            let step = self.change_entry(key, |entry, made| step(entry, family, small, made))?;
            let is_whole = !edit.several || self.is_in_transaction();
            match step {
                EditStep::Done(result) => return Ok(result),
                EditStep::Large { .. } | EditStep::Grow if !is_whole => {
                    return Err(Failure::Several);
                }
                EditStep::Large { id, may_stay }
                    if may_stay || !self.is_empty(family.map(id))? =>
                {
                    match (edit.large)(&mut self.maps, id) {
                        Err(failure) if failure.is_gone() => self.expect_change(key, id)?,
                        Err(failure) => {
                            if has_grown && self.is_empty(family.map(id))? {
                                // A refused change must not leave an empty key.
                                self.drop_map(key, family.map(id))?;
                            }
                            return Err(failure);
                        }
                        result => return result,
                    }
                }
                EditStep::Large { id, .. } => self.drop_map(key, family.map(id))?,
                EditStep::Other { map, failure } => {
                    if !self.is_empty(map)? {
                        return Err(failure);
                    }
                    self.drop_map(key, map)?;
                }
                EditStep::Grow => {
                    self.grow(key, family, edit.fill)?;
                    has_grown = true;
                }
            }
        }
    }

    /// After a map was found destroyed: an error if the key still names it.
    fn expect_change(&mut self, key: &[u8], gone: MapId) -> Result<(), Failure> {
        let names =
            |entry: Entry<'_>| crate::values::map_of(entry.form.kind, entry.value) == Some(gone);
        if self.keys.read(key)?.is_some_and(names) { Err(DAMAGED) } else { Ok(()) }
    }

    /// Converts a small collection to a large one. If another client changes the collection
    /// meanwhile, the new map is destroyed.
    fn grow(&mut self, key: &[u8], family: Family, fill: Fill) -> Result<(), Failure> {
        // The key names the map before the map exists, so the sweep does not delete it.
        let id = MapId::random();
        let elements = self.change_entry(key, |entry, made| {
            let (elements, expires_ms) = match entry {
                None => (&[][..], 0),
                Some(entry) => match family.body(entry.form.kind, entry.value)? {
                    Body::Small(elements) => (elements, entry.form.expires_ms),
                    Body::Large(_) => return Ok((EntryChange::Keep, None)),
                },
            };
            made.extend_from_slice(&id.to_bytes());
            made.extend_from_slice(elements);
            let form = Form { kind: family.growing, expires_ms };
            Ok((EntryChange::Put(form), Some(elements.to_vec())))
        })?;
        let Some(elements) = elements else { return Ok(()) };
        let filled = self.maps.create(id, key).map_err(Failure::from);
        let filled = filled.and_then(|_| fill(&mut self.maps, id, &elements));
        let done = filled.and_then(|()| self.commit_growth(key, family, id));
        let is_unknown = |failure: &Failure| failure.is_unknown();
        if !matches!(&done, Ok(true)) && !done.as_ref().is_err_and(is_unknown) {
            // The elements are still in the entry. If this fails, the sweep deletes the map.
            let _ = self.maps.map(id).destroy();
            // Lets the other client finish.
            let pause = rand::rng().random_range(0..500);
            std::thread::sleep(Duration::from_micros(pause));
        }
        // If the outcome of the commit is unknown, the map is kept: the sweep checks its name.
        match done {
            Err(failure) if !failure.is_gone() => {
                if elements.is_empty() && !failure.is_unknown() {
                    // A refused change must not leave an empty key. If this fails, the key counts
                    // as absent.
                    let _ = self.drop_map(key, family.map(id));
                }
                Err(failure)
            }
            _ => Ok(()),
        }
    }

    /// Commits the conversion: makes the entry *large* if it is unchanged since its elements were
    /// copied. Returns whether it did.
    fn commit_growth(&mut self, key: &[u8], family: Family, id: MapId) -> Result<bool, Failure> {
        self.change_entry(key, |entry, made| {
            let is_ours = |entry: &Entry<'_>| {
                entry.form.kind == family.growing && entry.value.starts_with(&id.to_bytes())
            };
            let Some(entry) = entry.filter(is_ours) else { return Ok((EntryChange::Keep, false)) };
            made.extend_from_slice(&id.to_bytes());
            let form = Form { kind: family.large, expires_ms: entry.form.expires_ms };
            Ok((EntryChange::Put(form), true))
        })
    }
}

fn step<R>(
    entry: Option<Entry<'_>>,
    family: Family,
    small: &mut impl FnMut(&[u8], &mut Vec<u8>) -> Result<Small<R>, Failure>,
    made: &mut Vec<u8>,
) -> Result<(EntryChange, EditStep<R>), Failure> {
    let (elements, expires_ms) = match entry {
        None => (&[][..], 0),
        Some(entry) => match family.body(entry.form.kind, entry.value) {
            Ok(Body::Small(elements)) => (elements, entry.form.expires_ms),
            Ok(Body::Large(id)) => {
                let may_stay = entry.form.expires_ms == 0;
                return Ok((EntryChange::Keep, EditStep::Large { id, may_stay }));
            }
            Err(failure) => match values::large_map(entry) {
                Some(map) => return Ok((EntryChange::Keep, EditStep::Other { map, failure })),
                None => return Err(failure),
            },
        },
    };
    Ok(match small(elements, made)? {
        Small::Keep(result) => (EntryChange::Keep, EditStep::Done(result)),
        Small::Grow => (EntryChange::Keep, EditStep::Grow),
        Small::Store(result) if made.is_empty() => (EntryChange::Delete, EditStep::Done(result)),
        Small::Store(result) => {
            (EntryChange::Put(Form { kind: family.small, expires_ms }), EditStep::Done(result))
        }
    })
}
