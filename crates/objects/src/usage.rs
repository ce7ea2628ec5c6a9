//! The memory of a store in all racks, for operators. It only reads.

use std::collections::BTreeMap;

use rackpool_client::RackId;
use rackpool_kv::EntryPlace;

use crate::error::StoreError;
use crate::layout::head::{Head, HeadLayout};
use crate::layout::header::RACKS;
use crate::layout::keys::Keys;
use crate::list::ObjectInfo;
use crate::store::{PlacedHead, Store};

/// What a store takes in all racks: see [`Store::usage`].
#[derive(Clone, Debug, Default)]
pub struct StoreUsage {
    /// The racks that have objects or replicas of the store.
    pub racks: BTreeMap<RackId, RackUsage>,
    /// The first objects in the order that was asked for.
    pub first: Vec<UsedObject>,
    /// Racks whose replicas could not be looked at, and why.
    pub unknown: Vec<(RackId, String)>,
}

/// What a store takes in one rack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RackUsage {
    /// Objects that were created in the rack, expired ones included.
    pub objects: u64,
    /// Their memory, heads and extents, in bytes.
    pub object_bytes: u64,
    /// Those of the objects that are in files, and take no memory.
    pub spilled: u64,
    /// The length of their files in bytes.
    pub spilled_bytes: u64,
    /// Replicas of objects of other racks.
    pub replicas: u64,
    /// Their memory in bytes.
    pub replica_bytes: u64,
}

/// An object and its last use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsedObject {
    /// What the store says of the object.
    pub info: ObjectInfo,
    /// About when a program of its rack last got it, in milliseconds since 1970; 0 if its rack does
    /// not answer.
    pub last_use_ms: u64,
}

/// The order of objects in [`StoreUsage::first`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsageOrder {
    /// The largest first.
    Size,
    /// The one that was used last first.
    LastUse,
    /// The one that was unused for longest first.
    Unused,
}

impl Store {
    /// What the store takes in each rack, and its first `most` objects in an order. Reads the entry
    /// of every object and replica, and the last use of each object: about 2 us for each, or two
    /// round trips if it lies in another rack.
    ///
    /// ```no_run
    /// # use rackpool_objects::{Store, StoreError, UsageOrder};
    /// fn largest(store: &Store) -> Result<Option<u64>, StoreError> {
    ///     let usage = store.usage(1, UsageOrder::Size)?;
    ///     Ok(usage.first.first().map(|object| object.info.bytes))
    /// }
    /// ```
    ///
    /// # Errors
    /// That of the pool.
    pub fn usage(&self, most: usize, order: UsageOrder) -> Result<StoreUsage, StoreError> {
        self.check_in_use()?;
        let page_bytes = self.pool().page_bytes();
        let (mut usage, mut first) = (StoreUsage::default(), BTreeMap::new());
        let mut visit = |key: &[u8], value: &[u8], place: EntryPlace| {
            let (Some(id), Some(head)) = (Keys::id_in(key), Head::decode(value)) else { return };
            let layout = HeadLayout::of(id.len());
            let rack = usage.racks.entry(head.rack).or_default();
            rack.objects += 1;
            rack.object_bytes += head.memory(layout, page_bytes);
            if head.is_spilled() {
                rack.spilled += 1;
                rack.spilled_bytes += head.len();
            }
            // Its page may have been freed since, and its rack may be away.
            let last_use_ms = self.last_use_of(&PlacedHead { place, head }, layout).unwrap_or(0);
            let rank = match order {
                UsageOrder::Size => u64::MAX - head.len(),
                UsageOrder::LastUse => u64::MAX - last_use_ms,
                UsageOrder::Unused => last_use_ms,
            };
            first.insert((rank, id.to_vec()), (head, last_use_ms));
            if first.len() > most {
                first.pop_last();
            }
        };
        self.with(|handles| {
            let objects = &mut handles.objects;
            Ok(objects.for_each_placed(|_| true, &mut visit)?)
        })?;
        let object = |((_, id), (head, last_use_ms)): ((u64, Vec<u8>), (Head, u64))| UsedObject {
            info: ObjectInfo::of(&id, &head),
            last_use_ms,
        };
        usage.first = first.into_iter().map(object).collect();
        for rack in (0..RACKS).map(RackId) {
            match self.replicas_in(rack) {
                Ok(None) => {}
                Ok(Some((replicas, replica_bytes))) => {
                    let rack = usage.racks.entry(rack).or_default();
                    (rack.replicas, rack.replica_bytes) = (replicas, replica_bytes);
                }
                Err(StoreError::Removed) => return Err(StoreError::Removed),
                Err(error) => usage.unknown.push((rack, error.to_string())),
            }
        }
        Ok(usage)
    }

    /// The number of replicas in a rack, and their memory.
    fn replicas_in(&self, rack: RackId) -> Result<Option<(u64, u64)>, StoreError> {
        let Some(mut table) = self.replica_table_if_any(rack)? else { return Ok(None) };
        let (mut replicas, mut bytes) = (0, 0);
        table.for_each(|key, value| {
            let (Some(id), Some(head)) = (Keys::id_in(key), Head::decode(value)) else { return };
            replicas += 1;
            bytes += HeadLayout::of(id.len()).memory_for(head.len(), self.pool().page_bytes());
        })?;
        Ok(Some((replicas, bytes)))
    }
}
