//! Messages through a group of a root and two members, against casts of the same bytes.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use rackpool_client::{Pool, RackId};
use rackpool_cluster::{Cluster, ClusterOptions};
use rackpool_objects::{
    CastAgent, CastOptions, CreateOptions, GroupMember, GroupOptions, GroupOutcome, GroupRoot,
    Received, Store,
};
use rackpool_testing::StopAtEnd;

use crate::casts::open;
use crate::measure::median;
use crate::table::Table;

const MEMBERS: [u16; 2] = [1, 2];
const BYTES: usize = 1 << 10;
const MESSAGES: u64 = 1_000_000;
const CASTS: u64 = 200;
const ROUNDS: usize = 3;
/// Longer than programs pause while seven share two cores.
const GRACE: Duration = Duration::from_secs(60);

/// Runs the section.
pub fn run(table: &mut Table) -> anyhow::Result<()> {
    let mut options = ClusterOptions::ephemeral()?;
    (options.racks, options.memory) = (3, 256 << 20);
    options.daemon_arguments = vec![("--swap", "off".into())];
    let cluster = Cluster::start(options)?;
    let open = |rack, threads| open(&cluster, rack, threads);
    let (mut rates, mut ratios) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let casts = casts(&open)?;
        let messages = messages(&open)?;
        rates.push(messages);
        ratios.push(messages / casts);
    }
    table.section("messages of 1 KiB from a root to two members, against casts of such objects");
    let rate = median(rates);
    let detail =
        format!("{:.0} thousand a second, {:.2} GB/s to each", rate / 1e3, rate * 1024.0 / 1e9);
    table.at_least("messages, against casts", median(ratios), 5.0, "x", &detail);
    cluster.stop()
}

type Open<'a> = &'a dyn Fn(u16, u16) -> anyhow::Result<Arc<Pool>>;

/// The messages a second that both members take.
fn messages(open: Open<'_>) -> anyhow::Result<f64> {
    let members = MEMBERS.map(|rack| open(rack, 2));
    let root = open(0, 2)?;
    std::thread::scope(|scope| {
        let receives = members.map(|pool| scope.spawn(|| receive(pool?)));
        let options = GroupOptions { grace: GRACE, ..GroupOptions::default() };
        let mut root = GroupRoot::create(root, "bench", &MEMBERS.map(RackId), &options)?;
        let (begin, message) = (Instant::now(), vec![7; BYTES]);
        for _ in 0..MESSAGES {
            root.send(&message)?;
        }
        let report = root.close()?;
        let took = begin.elapsed().as_secs_f64();
        ensure!(report.is_complete(), "a member is lost: {report:?}");
        for receive in receives {
            receive.join().map_err(|_| anyhow::anyhow!("a member has panicked"))??;
        }
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        Ok(MESSAGES as f64 / took)
    })
}

fn receive(pool: Arc<Pool>) -> anyhow::Result<()> {
    let mut member = GroupMember::join(pool, "bench", GRACE)?;
    let mut count = 0;
    loop {
        match member.receive(GRACE)? {
            Received::Message(message) => {
                ensure!(message.len() == BYTES && message[0] == 7, "other bytes came");
                count += 1;
            }
            Received::Ended(GroupOutcome::Closed) if count == MESSAGES => return Ok(()),
            other => bail!("after {count} messages: {other:?}"),
        }
    }
}

/// The objects a second that casts bring to both racks.
fn casts(open: Open<'_>) -> anyhow::Result<f64> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = StopAtEnd(&stop);
        for rack in MEMBERS {
            let agent = CastAgent::new(open(rack, CastAgent::THREADS)?);
            let stop = &stop;
            scope.spawn(move || agent.serve(stop, |_| ()));
        }
        let store = Store::open_or_create(open(0, 2)?, "bench")?;
        while store.cast_racks()?.len() < MEMBERS.len() {
            std::thread::sleep(Duration::from_millis(10));
        }
        let options = CastOptions { grace: GRACE, ..CastOptions::default() };
        let (begin, bytes) = (Instant::now(), vec![7; BYTES]);
        for _ in 0..CASTS {
            store.put(b"object", &bytes, &CreateOptions::default())?;
            let report = store.cast(b"object", &MEMBERS.map(RackId), &options, |_| ())?;
            let report = report.context("the object is in the store")?;
            ensure!(report.is_complete(), "not all racks have the object: {report:?}");
            store.delete(b"object")?;
        }
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        Ok(CASTS as f64 / begin.elapsed().as_secs_f64())
    })
}
