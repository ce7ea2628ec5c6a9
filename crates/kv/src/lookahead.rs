use rackpool_client::GlobalAddr;

use crate::bucket::{BUCKET_BYTES, BUCKET_SLOTS, slot_addr, slots_in};
use crate::handle::Handle;
use crate::hash::KeyHash;
use crate::memory::Memory;
use crate::object::Object;

/// So much of an object is fetched ahead: of what is longer, the processor fetches the rest itself.
const BEGIN_BYTES: usize = 256;

/// Keys that operations are about to ask for.
///
/// An operation waits for two cache misses, one after the other: the bucket, and the object that a
/// slot there points to. Those of several operations are waited for at once if their keys are known
/// before: [look ahead](Handle::look_ahead) to all of them, then [prefetch](Handle::prefetch) what
/// their slots point to.
#[derive(Debug, Default)]
pub struct Lookahead {
    /// The first two buckets of each key.
    keys: Vec<(KeyHash, [GlobalAddr; 2])>,
}

impl Lookahead {
    /// How many keys there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }
}

impl<M: Memory> Handle<M> {
    /// Takes in a key that will be asked for, perhaps. It changes nothing that the operation does.
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

    /// Goes on with the keys that were taken in, and forgets them.
    pub fn prefetch(&self, lookahead: &mut Lookahead) {
        // One alone would be waited for here as it is later.
        if lookahead.keys.len() == 1 {
            lookahead.keys.clear();
        }
        let memory = &self.shared.memory;
        for (hash, buckets) in lookahead.keys.drain(..) {
            for bucket in buckets {
                let mut line = [0; BUCKET_BYTES];
                // What is far is not waited for here.
                if !memory.is_near(bucket) || memory.read(bucket, &mut line).is_err() {
                    break;
                }
                if let Some(slot) = slots_in(&line).find(|slot| slot.may_hold(hash)) {
                    let object = slot.object();
                    let bytes = object.whole_bytes().unwrap_or(Object::HEADER);
                    memory.prefetch(object.addr, bytes.min(BEGIN_BYTES));
                    break;
                }
            }
        }
    }
}
