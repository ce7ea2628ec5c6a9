//! The hash table in the pool compared with a concurrent hash map in private memory.

use std::hint::black_box;
use std::sync::Arc;

use dashmap::DashMap;
use rackpool_client::{ClientOptions, Pool, RackId};
use rackpool_cluster::{Cluster, ClusterOptions};
use rackpool_kv::{Table as KvTable, TableOptions};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;

use crate::cpu::pin_self;
use crate::measure::{in_turn, time_each};
use crate::table::Table;

const RECORDS: u64 = 1_000_000;
const GETS: usize = 200_000;

/// Runs the section.
pub fn run(table: &mut Table) -> anyhow::Result<()> {
    let mut options = ClusterOptions::ephemeral()?;
    // Swaps would make remote objects local.
    options.daemon_arguments = vec![("--swap", "off".into())];
    options.racks = 1;
    let cluster = Cluster::start(options)?;
    let pool = Arc::new(Pool::open(ClientOptions::new(&cluster.options().dir, RackId(0)))?);
    pin_self(0)?;
    let kv = KvTable::create(Arc::clone(&pool), &TableOptions::default())?;
    let mut handle = kv.handle();
    let map: DashMap<Vec<u8>, Vec<u8>> = DashMap::new();
    let value = vec![3; 64];
    let mut keys: Vec<Vec<u8>> = (0..RECORDS)
        .map(|number| {
            format!("user{:020}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15)).into_bytes()
        })
        .collect();
    for key in &keys {
        handle.put(key, &value)?;
        map.insert(key.clone(), value.clone());
    }
    keys.shuffle(&mut SmallRng::seed_from_u64(3));
    let keys = &keys[..GETS];
    let mut found = Vec::with_capacity(64);
    let mut copied = Vec::with_capacity(64);
    let get = in_turn(
        || {
            time_each(keys.len(), || {
                for key in keys {
                    assert!(handle.get(key, &mut found).is_ok_and(|there| there), "a key is lost");
                    black_box(&found);
                }
            })
        },
        || {
            time_each(keys.len(), || {
                for key in keys {
                    copied.clear();
                    copied.extend_from_slice(&map.get(key).expect("it was put there"));
                    black_box(&copied);
                }
            })
        },
    );
    table.section("kv, all local, 1 M records of 64 B, against DashMap on the same keys");
    let detail = format!("{:.0} ns against {:.0} ns", get.ours, get.peer);
    table.at_least("rate of get", 1.0 / get.ratio, 0.5, "x", &detail);
    let used = pool.rack_status()?.allocated_bytes;
    #[expect(clippy::cast_precision_loss, reason = "bytes far below 2^52")]
    let per_record = used as f64 / RECORDS as f64;
    table.figure("pool memory per record", per_record, "B", "64 B value, 24 B key");
    drop(handle);
    drop(kv);
    drop(pool);
    cluster.stop()
}
