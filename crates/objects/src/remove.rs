//! Removal of a whole store: docs/design/objects.md, "Removal of a store".

use std::sync::Arc;
use std::time::{Duration, Instant};

use rackpool_client::{
    AccessError, GlobalAddr, Pool, PublishCas, PublishMode, RackId, Reservation,
};
use rackpool_kv::{KvError, PoolError, Table};

use crate::error::StoreError;
use crate::layout::header::{RACKS, StoreHeader, StorePhase, StorePrefix};
use crate::layout::keys::Keys;
use crate::protocol;
use crate::spill;
use crate::steps::Entries;
use crate::store::{OPTIONS_AGE, Purpose, Store, read_prefix};

/// After this time no operation of a store uses its tables any more: each program has noticed the
/// removal, and what it had begun before is over.
const GRACE: Duration = OPTIONS_AGE.saturating_mul(3);
/// What killed programs were doing in the tables is resolved within this time, if all daemons run.
const RESOLVED_WITHIN: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(20);
/// About the number of objects that are deleted between two steps of a scan.
const STEP: usize = 256;

impl Store {
    /// Removes the store of this name: deletes its objects in all racks, frees its tables, and
    /// removes the root. Returns whether there was one. The call takes three seconds, and the time
    /// of a [`delete`](Self::delete) for each object.
    ///
    /// From the begin of the call on the store can't be opened, and within a second all operations
    /// of programs that have it open fail with [`StoreError::Removed`]. Their views stay valid. A
    /// program that is stopped in the middle of an operation for longer than two seconds, by
    /// `SIGSTOP` for example, must be ended, not continued: it would write to memory of others.
    ///
    /// After a kill, or an error, call again: the call continues, and nothing leaks. A kill between
    /// the removal of the root and the end of the call leaks the header, which takes 4 KiB.
    ///
    /// ```no_run
    /// # use std::sync::Arc;
    /// # use rackpool_client::{ClientOptions, Pool, RackId};
    /// # use rackpool_objects::Store;
    /// # let pool = Arc::new(Pool::open(ClientOptions::new("/dev/shm/rackpool", RackId(0)))?);
    /// drop(Store::open_or_create(Arc::clone(&pool), "images")?);
    /// assert!(Store::remove(Arc::clone(&pool), "images")?);
    /// assert!(Store::open(pool, "images")?.is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`StoreError::NotAStore`], [`StoreError::Version`], [`StoreError::RemovalUnderWay`], or that
    /// of the pool: a rack with a replica of an object does not answer, for example.
    pub fn remove(pool: Arc<Pool>, name: &str) -> Result<bool, StoreError> {
        let Some(header) = pool.root(name)? else { return Ok(false) };
        let prefix = read_prefix(&pool, header)?;
        let prefix = prefix.ok_or_else(|| StoreError::NotAStore { name: name.into() })?;
        if prefix.version != StoreHeader::VERSION {
            let (found, supported) = (prefix.version, StoreHeader::VERSION);
            return Err(StoreError::Version { found, supported });
        }
        let seat = take_seat(&pool, header, &prefix)?;
        let addr = seat.addr();
        // Another program may have removed it before the seat was taken.
        let removed = match pool.root(name) {
            Ok(Some(found)) if found == header => {
                remove_parts(&pool, header, &prefix).and_then(|()| {
                    pool.set_root(name, Some(header), None)?;
                    spill::remove_all_files(&pool, header, prefix.stamp);
                    Ok(true)
                })
            }
            Ok(_) => Ok(false),
            Err(error) => Err(error.into()),
        };
        let given_back = pool.finish(seat);
        if !removed? {
            return Ok(false);
        }
        given_back?;
        // Another program that found the root before takes the seat, and gives it back at once.
        while !free_seat(&pool, header, addr)? {
            std::thread::sleep(PAUSE);
        }
        pool.free(header)?;
        Ok(true)
    }
}

/// Excludes other programs that remove the store, until this one has ended the reservation or was
/// killed.
fn take_seat(
    pool: &Pool,
    header: GlobalAddr,
    prefix: &StorePrefix,
) -> Result<Reservation, StoreError> {
    // An address is below 2^48, a token of another program above.
    if prefix.seat >> 48 != 0 {
        return Err(StoreError::RemovalUnderWay);
    }
    let seat = GlobalAddr::from_raw(prefix.seat);
    pool.borrow(StoreHeader::seat_at(header), seat)?.ok_or(StoreError::RemovalUnderWay)
}

/// Takes the seat out of its word and frees it, if it is there. Returns whether it did.
fn free_seat(pool: &Pool, header: GlobalAddr, seat: GlobalAddr) -> Result<bool, StoreError> {
    let mut tombstone = pool.tombstone()?;
    let link = PublishCas {
        addr: StoreHeader::seat_at(header),
        expected: seat.raw(),
        new: tombstone.token(),
        mask: u64::MAX,
        replaced: Some(seat),
        mode: PublishMode::Settle(0),
    };
    let found = pool.publish(&mut tombstone, &link);
    pool.finish(tombstone)?;
    Ok(found? == seat.raw())
}

/// Deletes the objects of a store, and removes its tables.
fn remove_parts(
    pool: &Arc<Pool>,
    header: GlobalAddr,
    prefix: &StorePrefix,
) -> Result<(), StoreError> {
    let set = |phase: StorePhase| {
        pool.write(StoreHeader::phase_at(header), &phase.to_word().to_le_bytes())
    };
    if prefix.phase != Some(StorePhase::Empty) {
        set(StorePhase::Emptying)?;
        std::thread::sleep(GRACE);
        let store = Store::with_prefix(Arc::clone(pool), header, prefix, Purpose::Removal)?;
        store.repair()?;
        store.delete_all()?;
        set(StorePhase::Empty)?;
    }
    let replicas = (0..RACKS).map(|rack| StoreHeader::replicas_at(header, RackId(rack)));
    replicas.chain([StoreHeader::objects_at(header)]).try_for_each(|at| remove_table(pool, at))
}

fn remove_table(pool: &Arc<Pool>, at: GlobalAddr) -> Result<(), StoreError> {
    let begin = Instant::now();
    loop {
        match Table::remove_at(Arc::clone(pool), at) {
            Err(KvError::<PoolError>::InUse { .. }) if begin.elapsed() < RESOLVED_WITHIN => {
                std::thread::sleep(PAUSE);
            }
            // Its rack has lost its memory. What it had in other racks is lost with it.
            Err(KvError::Memory(PoolError::Access(AccessError::PageLost(_)))) => {
                return Ok(pool.write(at, &[0; 8])?);
            }
            removed => return Ok(removed?),
        }
    }
}

impl Store {
    /// Deletes all objects, and the registrations that are left.
    fn delete_all(&self) -> Result<(), StoreError> {
        self.with(|handles| {
            let mut cursor = 0;
            loop {
                let mut found: Vec<(Keys, bool)> = Vec::new();
                cursor = handles.objects.scan(cursor, STEP, |key, _| {
                    let object = Keys::id_in(key).and_then(|id| Keys::of(id).ok());
                    found.extend(object.map(|keys| (keys, true)));
                    found.extend(Keys::registered_in(key).map(|keys| (keys, false)));
                })?;
                for (keys, is_object) in found {
                    let mut entries = Entries::new(self, handles, &keys);
                    if is_object {
                        protocol::delete(&mut entries)?;
                    } else {
                        protocol::remove_orphan(&mut entries)?;
                    }
                }
                if cursor == 0 {
                    return Ok(());
                }
            }
        })
    }
}
