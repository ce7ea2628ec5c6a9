use rackpool_client::GlobalAddr;

use crate::handle::Handle;
use crate::layout::bucket::{BUCKET_BYTES, BUCKET_SLOTS, slot_addr, slots_in};
use crate::layout::hash::KeyHash;
use crate::layout::object::EntryObject;
use crate::memory::Memory;

/// The bytes of an object that are prefetched. The processor's own prefetcher fetches the rest.
const BEGIN_BYTES: usize = 256;

/// The keys of upcoming operations.
///
/// An operation incurs two dependent cache misses: the bucket, then the object that a slot points
/// to. With a lookahead the misses of several operations overlap: call
/// [`look_ahead`](Handle::look_ahead) for each key, then [`prefetch`](Handle::prefetch) for the
/// objects that the slots point to.
#[derive(Debug, Default)]
pub struct Lookahead {
    /// The first two buckets of each key.
    keys: Vec<(KeyHash, [GlobalAddr; 2])>,
}

impl Lookahead {
    /// The number of keys.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether it has no keys.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }
}

impl<M: Memory> Handle<M> {
    /// Prefetches the buckets of a key and notes the key in `lookahead`. This is only a hint: the
    /// operation's result does not depend on it.
    #[inline]
    pub fn look_ahead(&self, key: &[u8], lookahead: &mut Lookahead) {
        let Ok(hash) = Self::hash(key) else { return };
        let segment = self.cache.get(hash);
        if segment.is_none() {
            return;
        }
        let path = self.shared.layout.shape.path(hash);
        let [first, second, ..] = path.buckets() else { return };
        let buckets = [*first, *second]
            .map(|bucket| slot_addr(segment.addr(), bucket as usize * BUCKET_SLOTS));
        for bucket in buckets {
            self.shared.memory.prefetch(bucket, BUCKET_BYTES);
        }
        lookahead.keys.push((hash, buckets));
    }

    /// Prefetches the objects of the noted keys, and forgets the keys.
    pub fn prefetch(&self, lookahead: &mut Lookahead) {
        // A single key would wait here as long as its operation would.
        if lookahead.keys.len() == 1 {
            lookahead.keys.clear();
        }
        let memory = &self.shared.memory;
        for (hash, buckets) in lookahead.keys.drain(..) {
            for bucket in buckets {
                let mut line = [0; BUCKET_BYTES];
                // Reading a far bucket would block here.
                if !memory.is_near(bucket) || memory.read(bucket, &mut line).is_err() {
                    break;
                }
                if let Some(slot) = slots_in(&line).find(|slot| slot.may_hold(hash)) {
                    let object = slot.object();
                    let bytes = object.whole_bytes().unwrap_or(EntryObject::HEADER);
                    memory.prefetch(object.addr, bytes.min(BEGIN_BYTES));
                    break;
                }
            }
        }
    }
}
