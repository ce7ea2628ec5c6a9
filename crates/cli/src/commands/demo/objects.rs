//! Objects of several sizes: put in one rack, read in place there and in another rack.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, ensure};
use rackpool_client::{AllocError, ClientOptions, Pool};
use rackpool_cluster::Cluster;
use rackpool_model::{ByteSize, RackId};
use rackpool_objects::{CreateOptions, Store, StoreError};
use rackpool_report::{ObjectTimes, Objects};

/// Sizes in bytes, and number of objects of each.
const SIZES: [(usize, usize); 4] = [(1 << 10, 127), (64 << 10, 63), (1 << 20, 15), (16 << 20, 5)];
/// The least number of gets of each size in a rack, but for first gets.
const GETS: usize = 250;
/// The distance of the beginnings of two objects in the bytes that all objects of a size are cut
/// from.
const SHIFT: usize = 8;

/// Puts and gets objects. The pool has at least two racks. Sizes for which it has no room are added
/// to `left_out`.
pub(super) fn run(cluster: &Cluster, left_out: &mut Vec<String>) -> anyhow::Result<Objects> {
    let options = cluster.options();
    let (owner, reader) = (RackId(0), RackId(options.racks.saturating_sub(1)));
    let open = |rack| -> anyhow::Result<Store> {
        let pool = Pool::open(ClientOptions::new(&options.dir, rack))?;
        Ok(Store::open_or_create(Arc::new(pool), "demo-objects")?)
    };
    let (own, far) = (open(owner)?, open(reader)?);
    let mut sizes = Vec::new();
    for (bytes, count) in SIZES {
        match times(&own, &far, bytes, count) {
            Ok(times) => sizes.push(times),
            Err(error) if is_no_room(&error) => {
                let size = ByteSize(bytes as u64);
                left_out.push(format!("objects of {size} and more: {error:#}"));
                break;
            }
            Err(error) => return Err(error.context("objects")),
        }
    }
    let setting = format!(
        "{owner} puts the objects; {reader} gets them: first with a transfer and a check of the \
         checksum, later from its replica"
    );
    Ok(Objects { setting, sizes })
}

/// Measures the objects of one size, and deletes them.
fn times(own: &Store, far: &Store, bytes: usize, count: usize) -> anyhow::Result<ObjectTimes> {
    let source = source(bytes + count * SHIFT);
    let objects: Vec<(String, &[u8])> = (0..count)
        .map(|number| (format!("{bytes}-{number}"), &source[number * SHIFT..][..bytes]))
        .collect();
    let mut puts = Vec::new();
    for (id, contents) in &objects {
        let began = Instant::now();
        own.put(id.as_bytes(), contents, &CreateOptions::default())?;
        puts.push(since(began));
    }
    let rounds = GETS.div_ceil(count);
    let gets = gets(own, &objects, rounds)?;
    check(own, &objects)?;
    let first_gets = self::gets(far, &objects, 1)?;
    check(far, &objects)?;
    let later_gets = self::gets(far, &objects, rounds)?;
    for (id, _) in &objects {
        ensure!(own.delete(id.as_bytes())?, "the object {id} is gone");
    }
    Ok(ObjectTimes {
        bytes: bytes as u64,
        objects: count as u64,
        put_ns: median(puts),
        get_ns: median(gets),
        first_get_ns: median(first_gets),
        later_get_ns: median(later_gets),
    })
}

/// The times of gets of all objects, in nanoseconds.
fn gets(store: &Store, objects: &[(String, &[u8])], rounds: usize) -> anyhow::Result<Vec<u64>> {
    let mut times = Vec::new();
    for (id, contents) in (0..rounds).flat_map(|_| objects) {
        let began = Instant::now();
        let view = store.get(id.as_bytes())?;
        times.push(since(began));
        let view = view.with_context(|| format!("the object {id} is gone"))?;
        ensure!(view.len() == contents.len(), "the object {id} has {} B", view.len());
    }
    Ok(times)
}

/// Compares every byte of all objects.
fn check(store: &Store, objects: &[(String, &[u8])]) -> anyhow::Result<()> {
    for (id, contents) in objects {
        let view = store.get(id.as_bytes())?;
        let view = view.with_context(|| format!("the object {id} is gone"))?;
        ensure!(view[..] == **contents, "wrong bytes in the object {id}");
    }
    Ok(())
}

/// Whether the racks have too little memory.
fn is_no_room(error: &anyhow::Error) -> bool {
    matches!(
        error.downcast_ref::<StoreError>(),
        Some(
            StoreError::Alloc(AllocError::RackFull { .. } | AllocError::OutOfMemory(_))
                | StoreError::Fragmented { .. }
                | StoreError::TooLarge { .. }
        )
    )
}

/// Bytes that differ from place to place.
fn source(bytes: usize) -> Vec<u8> {
    let mut word = 1_u64;
    let mut next = || {
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        word
    };
    (0..bytes.div_ceil(8)).flat_map(|_| next().to_le_bytes()).take(bytes).collect()
}

fn since(began: Instant) -> u64 {
    u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

fn median(mut times: Vec<u64>) -> u64 {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_of_the_sorted_times() {
        assert_eq!([median(vec![9, 1, 5]), median(vec![7]), median(Vec::new())], [5, 7, 0]);
    }

    #[test]
    fn objects_of_a_size_differ() {
        let bytes = source(1024 + SHIFT);
        assert_eq!(bytes.len(), 1024 + SHIFT);
        let same = bytes.iter().zip(&bytes[SHIFT..]).filter(|(one, other)| one == other).count();
        assert!(same < 64, "{same} of 1024 bytes are the same");
    }

    #[test]
    fn only_too_little_memory_leaves_a_size_out() {
        let full = StoreError::Fragmented { bytes: 1, most: 1 };
        assert!(is_no_room(&full.into()));
        assert!(!is_no_room(&StoreError::Removed.into()));
        assert!(!is_no_room(&anyhow::anyhow!("wrong bytes in the object 1024-0")));
    }
}
