use std::sync::Arc;
use std::time::{Duration, Instant};

use rackpool_client::Pool;
use rackpool_kv::{Table, TablePart};

use super::{EvictionPolicy, Evictor, MemoryLimit};
use crate::shared::ServiceState;
use crate::store::Store;

/// The time between two looks.
const TICK: Duration = Duration::from_millis(100);
/// How long one look evicts: a quarter of the time.
const LONGEST: Duration = Duration::from_millis(25);
/// The least time between two counts.
const COUNT_EVERY: Duration = Duration::from_secs(1);
/// A count is repeated after this number of times its duration.
const REST: u32 = 20;

/// Counts the entries of the tables. Returns false if a part could not be read; the last count then
/// stays.
pub fn count(tables: &[Table<Arc<Pool>>], memory: &MemoryLimit) -> bool {
    let before = memory.growth();
    let (mut bytes, mut entries) = (0, 0);
    for table in tables {
        let walk = Table::walk(Arc::clone(table.memory()), table.addr(), |part, _, size| {
            if part == TablePart::Entry {
                // An object that was freed since its slot was read has no size.
                bytes += size.unwrap_or(0);
                entries += 1;
            }
        });
        match walk {
            Ok(walk) if walk.unread == 0 => {}
            Ok(walk) => {
                tracing::debug!(
                    "the entries can't be counted: {} parts can't be read",
                    walk.unread
                );
                return false;
            }
            Err(error) => {
                tracing::debug!("the entries can't be counted: {error}");
                return false;
            }
        }
    }
    let grown = memory.growth().wrapping_sub(before).cast_signed();
    memory.note_count(bytes, entries, before.wrapping_add((grown / 2).cast_unsigned()));
    true
}

/// Sets the time of uses, counts the entries, and evicts, until the service ends. `thread` is the
/// place of this thread's metrics.
pub fn watch_memory(
    mut store: Store,
    tables: &[Table<Arc<Pool>>],
    shared: &ServiceState,
    thread: usize,
) {
    let memory = &shared.memory;
    let mut evictor = Evictor::default();
    let mut count_at = Instant::now();
    while !shared.has_to_end() {
        set_time_of_uses(shared);
        if memory.limit() != 0 && Instant::now() >= count_at {
            let begin = Instant::now();
            count(tables, memory);
            count_at = Instant::now() + COUNT_EVERY.max(REST * begin.elapsed());
        }
        if memory.is_exceeded() {
            match evictor.evict(&mut store, memory, LONGEST) {
                Ok(evicted) => shared.stats(thread).note_evicted(evicted),
                Err(failure) if failure.is_forgotten() => shared.end(&failure.to_string()),
                Err(failure) => tracing::debug!("keys can't be evicted: {failure}"),
            }
        }
        std::thread::sleep(TICK);
    }
}

/// Uses are recorded in tenths of a second since the start, under the policy that needs them.
fn set_time_of_uses(shared: &ServiceState) {
    let memory = &shared.memory;
    let is_needed = memory.limit() != 0 && memory.policy() == EvictionPolicy::AllkeysLru;
    let tenths = shared.started.elapsed().as_millis() / TICK.as_millis() + 1;
    let now = u32::try_from(tenths).unwrap_or(u32::MAX);
    memory.uses.set_time(if is_needed { now } else { 0 });
}
