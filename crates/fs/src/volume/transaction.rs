//! Transactions on a volume's table: read keys, set new values, commit.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use rackpool_kv::{KeyChange, Transactor};

use crate::attr::Ino;
use crate::error::FsError;
use crate::format::inode::Inode;
use crate::format::keys;
use crate::volume::{Volume, lock};
use crate::volume_memory::VolumeMemory;

/// A key that a transaction depends on or changes.
struct Item {
    expected: Option<Vec<u8>>,
    new: Option<Vec<u8>>,
}

/// A transaction in progress. Its reads see its own writes.
pub(crate) struct FsTransaction<'a, M: VolumeMemory> {
    pub(crate) volume: &'a Volume<M>,
    access: &'a mut Transactor<M>,
    items: BTreeMap<Vec<u8>, Item>,
    /// Set when values that were read cannot be of one point in time.
    torn: bool,
}

/// After this many attempts the transaction fails: the other mounts are too busy.
const MAX_TRIES: u32 = 10_000;
/// After this many attempts inconsistent values are damage, not values of different points in time.
const MAX_TORN: u32 = 200;

impl<M: VolumeMemory> FsTransaction<'_, M> {
    /// Reads a key without making the transaction depend on it.
    pub(crate) fn peek(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, FsError> {
        if let Some(item) = self.items.get(key) {
            return Ok(item.new.clone());
        }
        let mut value = Vec::new();
        let found = self.access.get(key, &mut value).map_err(FsError::of_table::<M>)?;
        Ok(found.then_some(value))
    }

    /// Whether the transaction changes the key.
    pub(crate) fn is_set(&self, key: &[u8]) -> bool {
        self.items.get(key).is_some_and(|item| item.expected != item.new)
    }

    /// Makes the transaction depend on a key whose value is known.
    pub(crate) fn depend(&mut self, key: &[u8], value: Option<&[u8]>) {
        let item = || Item { expected: value.map(<[u8]>::to_vec), new: value.map(<[u8]>::to_vec) };
        self.items.entry(key.to_vec()).or_insert_with(item);
    }

    /// Reads a key and makes the transaction depend on it.
    pub(crate) fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, FsError> {
        let value = self.peek(key)?;
        self.depend(key, value.as_deref());
        Ok(value)
    }

    /// Sets the value of a key; `None` deletes it. A key that was not read must not exist.
    pub(crate) fn set(&mut self, key: &[u8], new: Option<Vec<u8>>) {
        match self.items.get_mut(key) {
            Some(item) => item.new = new,
            None => drop(self.items.insert(key.to_vec(), Item { expected: None, new })),
        }
    }

    /// Marks the values read as inconsistent, so that the transaction starts again. Returns the
    /// error to return from the body.
    pub(crate) fn torn(&mut self, what: &'static str) -> FsError {
        self.torn = true;
        FsError::Damaged(what)
    }

    /// Reads an inode.
    ///
    /// # Errors
    /// [`FsError::NotFound`] if it does not exist.
    pub(crate) fn inode(&mut self, ino: Ino) -> Result<Inode, FsError> {
        let value = self.get(&keys::inode(ino))?.ok_or(FsError::NotFound)?;
        Inode::decode(&value)
    }

    /// Reads the inode that an entry refers to. If it does not exist, the transaction starts again.
    pub(crate) fn named(&mut self, ino: Ino) -> Result<Inode, FsError> {
        match self.inode(ino) {
            Err(FsError::NotFound) => Err(self.torn("an entry names no inode")),
            found => found,
        }
    }

    /// Stores an inode that was read, or a new one, and increments its change counter.
    pub(crate) fn set_inode(&mut self, ino: Ino, inode: &mut Inode) {
        inode.change = inode.change.wrapping_add(1);
        self.set_opens(ino, inode);
    }

    /// Stores an inode whose list of sessions alone has changed; the change counter stays.
    fn set_opens(&mut self, ino: Ino, inode: &Inode) {
        self.set(&keys::inode(ino), Some(inode.encode()));
    }

    /// Whether the transaction adds more keys than it removes. Lists of orphans do not count: their
    /// inodes will give memory back.
    fn adds_keys(&self) -> bool {
        let counted = self.items.iter().filter(|(key, _)| !keys::is_orphan_list(key));
        let (mut added, mut removed) = (0_usize, 0_usize);
        for (_, item) in counted {
            added += usize::from(item.expected.is_none() && item.new.is_some());
            removed += usize::from(item.expected.is_some() && item.new.is_none());
        }
        added > removed
    }

    fn commit(&mut self) -> Result<bool, FsError> {
        if self.items.values().all(|item| item.expected == item.new) {
            // A transaction that changes nothing: each value was there when it was read.
            return Ok(true);
        }
        let changes: Vec<KeyChange<'_>> = self
            .items
            .iter()
            .map(|(key, item)| KeyChange {
                key,
                expected: item.expected.as_deref(),
                new: item.new.as_deref(),
            })
            .collect();
        self.access.commit(&changes).map_err(FsError::of_table::<M>)
    }
}

/// An inode that was changed.
pub(crate) struct Updated<T> {
    /// What the change returned.
    pub(crate) value: T,
    /// The new inode.
    pub(crate) inode: Inode,
}

impl<M: VolumeMemory> Volume<M> {
    /// Calls `work` with a transactor; the volume has one for each thread that is in an operation.
    pub(crate) fn with_access<T>(
        &self,
        work: impl FnOnce(&mut Transactor<M>) -> Result<T, FsError>,
    ) -> Result<T, FsError> {
        let kept = lock(&self.idle).pop();
        let mut access = match kept {
            Some(access) => access,
            None => self.new_access()?,
        };
        let result = work(&mut access);
        lock(&self.idle).push(access);
        result
    }

    /// Runs `body` as one transaction, and again whenever a key that it has read has changed. If
    /// memory runs out and the transaction does not add keys, it releases the reserve.
    pub(crate) fn transact<T>(
        &self,
        body: impl FnMut(&mut FsTransaction<'_, M>) -> Result<T, FsError>,
    ) -> Result<T, FsError> {
        self.try_transact(body, true)
    }

    /// As [`transact`](Self::transact), for a transaction that needs more memory afterwards than
    /// before: it does not use the reserve.
    ///
    /// # Errors
    /// [`FsError::NoSpace`] while the reserve is not whole.
    pub(crate) fn transact_growing<T>(
        &self,
        body: impl FnMut(&mut FsTransaction<'_, M>) -> Result<T, FsError>,
    ) -> Result<T, FsError> {
        self.expect_room()?;
        self.try_transact(body, false)
    }

    fn try_transact<T>(
        &self,
        mut body: impl FnMut(&mut FsTransaction<'_, M>) -> Result<T, FsError>,
        may_use_reserve: bool,
    ) -> Result<T, FsError> {
        self.with_access(|access| {
            for tried in 0..MAX_TRIES {
                let access = &mut *access;
                let mut work =
                    FsTransaction { volume: self, access, items: BTreeMap::new(), torn: false };
                match body(&mut work) {
                    Err(_) if work.torn && tried < MAX_TORN => {}
                    Err(error) => return Err(error),
                    Ok(value) => match work.commit() {
                        Ok(true) => return Ok(value),
                        Ok(false) => {}
                        Err(FsError::NoSpace)
                            if may_use_reserve && !work.adds_keys() && self.release_reserve() => {}
                        Err(error) => return Err(error),
                    },
                }
                if tried > 2 && !self.lock_wait.is_zero() {
                    std::thread::sleep(Duration::from_micros(u64::from(tried.min(100)) * 5));
                }
            }
            Err(FsError::Busy)
        })
    }

    /// Changes one inode.
    pub(crate) fn update<T>(
        &self,
        ino: Ino,
        mut change: impl FnMut(&mut Inode) -> Result<T, FsError>,
    ) -> Result<Updated<T>, FsError> {
        self.transact(|work| {
            let mut inode = work.inode(ino)?;
            let mut before = inode.clone();
            let value = change(&mut inode)?;
            if inode == before {
                return Ok(Updated { value, inode });
            }
            before.opens.clone_from(&inode.opens);
            if inode == before {
                work.set_opens(ino, &inode);
            } else {
                work.set_inode(ino, &mut inode);
            }
            Ok(Updated { value, inode })
        })
    }

    /// Reads one inode.
    pub(crate) fn inode(&self, ino: Ino) -> Result<Inode, FsError> {
        self.with_access(|access| {
            let mut value = Vec::new();
            let found = access.get(&keys::inode(ino), &mut value);
            match found.map_err(FsError::of_table::<M>)? {
                true => Inode::decode(&value),
                false => Err(FsError::NotFound),
            }
        })
    }

    /// Reads an inode for a read or write of its contents: without the list of sessions. Normally
    /// it allocates nothing.
    pub(crate) fn contents_inode(&self, ino: Ino) -> Result<Inode, FsError> {
        thread_local! {
            static VALUE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
        }
        VALUE.with_borrow_mut(|value| {
            let key = keys::inode(ino);
            match self
                .with_access(|access| access.get(&key, value).map_err(FsError::of_table::<M>))?
            {
                true => Inode::decode_contents(value),
                false => Err(FsError::NotFound),
            }
        })
    }

    /// Reads one key.
    pub(crate) fn value(&self, key: &[u8]) -> Result<Option<Vec<u8>>, FsError> {
        self.with_access(|access| {
            let mut value = Vec::new();
            let found = access.get(key, &mut value).map_err(FsError::of_table::<M>)?;
            Ok(found.then_some(value))
        })
    }
}
