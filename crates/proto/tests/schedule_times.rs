//! Schedules in virtual time: slow links, slow members, and the size of blocks.

use std::collections::BTreeMap;
use std::time::Duration;

use rackpool_proto::multicast::block_size::{self, LARGEST, SMALLEST};
use rackpool_proto::multicast::model::{TimedTransfer, end_ns, run};
use rackpool_proto::multicast::schedule::{Schedule, Shape, Transfer};

/// The time of a block on a link.
const T: u64 = 1000;

fn pipeline(members: u16, blocks: u32) -> Shape {
    Shape::new(Schedule::BinomialPipeline, members, blocks)
}

#[test]
fn a_transfer_takes_a_step_when_all_are_alike() {
    let flat =
        [Schedule::Sequential, Schedule::Chain, Schedule::BinomialTree, Schedule::BinomialPipeline];
    for schedule in flat {
        for (members, blocks) in [(2, 5), (4, 9), (8, 1), (8, 64), (11, 30), (64, 40)] {
            let shape = Shape::new(schedule, members, blocks);
            let end = end_ns(&run(&shape, |_, _| T));
            assert!(end <= shape.steps() * T, "{shape:?}: {end}");
            assert!(end >= (shape.steps() - 1) * T, "{shape:?}: {end}");
        }
    }
}

/// One link of half the bandwidth: the pipeline keeps l T' / (T + (l - 1) T') of its speed.
#[test]
fn a_slow_link_costs_a_pipeline_little_and_a_chain_half() {
    let blocks = 1000;
    let is_slow = |one: &Transfer| matches!((one.from, one.to), (2, 3) | (3, 2));
    let share = |shape: &Shape| {
        let slow = end_ns(&run(shape, |one, _| if is_slow(one) { 2 * T } else { T }));
        end_ns(&run(shape, |_, _| T)) * 1000 / slow
    };
    for (members, kept) in [(4, 667), (8, 750), (16, 800), (32, 833), (64, 857)] {
        let share = share(&pipeline(members, blocks));
        assert!(share.abs_diff(kept) <= 5, "{members} members keep {share} / 1000");
    }
    let chain = share(&Shape::new(Schedule::Chain, 8, blocks));
    assert!(chain.abs_diff(500) <= 5, "{chain}");
}

#[test]
fn a_member_that_pauses_costs_at_most_its_pause() {
    let blocks = 48;
    for members in [4, 6, 8, 9, 16, 23] {
        let shape = pipeline(members, blocks);
        let undisturbed = end_ns(&run(&shape, |_, _| T));
        for member in 1..members {
            for (at, pause) in [(0, 300), (7 * T, 900), (20 * T + 500, 900), (30 * T, 5 * T)] {
                let pauses = |one: &Transfer, begin: u64| {
                    let is_hit =
                        (one.to == member || one.from == member) && begin <= at && at < begin + T;
                    T + if is_hit { pause } else { 0 }
                };
                // A pause hits what the member sends and what it receives at the same time.
                let end = end_ns(&run(&shape, pauses));
                assert!(end <= undisturbed + pause, "{member} of {members}: {end} {undisturbed}");
            }
        }
    }
}

/// The end of a schedule whose members can send a block on only some time after it has come, and
/// receive another one meanwhile.
fn end_with_delay_ns(shape: &Shape, delay_ns: u64) -> u64 {
    let members = usize::from(shape.members());
    let (mut receiving_until, mut sending_until) = (vec![0; members], vec![0; members]);
    let mut usable_at = BTreeMap::new();
    let mut end = 0;
    for Transfer { from, to, block, .. } in shape.transfers() {
        let usable = usable_at.get(&(from, block)).copied().unwrap_or(0);
        let (sending, receiving) =
            (&mut sending_until[usize::from(from)], &mut receiving_until[usize::from(to)]);
        let ends_at: u64 = usable.max(*sending).max(*receiving) + T;
        (*sending, *receiving) = (ends_at, ends_at);
        usable_at.insert((to, block), ends_at + delay_ns);
        end = end.max(ends_at);
    }
    end
}

#[test]
fn a_delay_before_each_block_is_sent_on_costs_interleaved_pipelines_little() {
    let (blocks, delay_ns) = (200, T / 2);
    for members in [4, 8, 16] {
        let ratio_percent = |schedule| {
            let shape = Shape::new(schedule, members, blocks);
            end_with_delay_ns(&shape, delay_ns) * 100 / (u64::from(blocks) * T)
        };
        let [one, two] =
            [Schedule::BinomialPipeline, Schedule::InterleavedPipelines].map(ratio_percent);
        assert!((130..=155).contains(&one), "{members} members: a pipeline takes {one} %");
        assert!(two <= 105, "{members} members: interleaved pipelines take {two} %");
    }
}

#[test]
fn a_pipeline_beats_every_other_schedule() {
    let end = |schedule, members| end_ns(&run(&Shape::new(schedule, members, 256), |_, _| T));
    for members in [4, 8, 16, 32] {
        let of_pipeline = end(Schedule::BinomialPipeline, members);
        let others = [Schedule::Sequential, Schedule::Chain, Schedule::BinomialTree];
        assert!(others.iter().all(|schedule| end(*schedule, members) > of_pipeline));
    }
}

#[test]
fn times_name_each_transfer_once_and_in_causal_order() {
    let shape = pipeline(11, 20);
    let timed = run(&shape, |one, _| T + u64::from(one.from) * 100);
    assert_eq!(timed.len(), 10 * 20);
    for TimedTransfer { transfer, begin_ns, .. } in &timed {
        let source = timed.iter().find(|earlier| {
            (earlier.transfer.to, earlier.transfer.block) == (transfer.from, transfer.block)
        });
        assert!(source.map_or(transfer.from == 0, |source| source.end_ns <= *begin_ns));
    }
}

#[test]
fn a_block_is_as_large_as_latency_and_bandwidth_demand() {
    let size = |members, message, latency_us, gbps: u64| {
        let latency = Duration::from_micros(latency_us);
        block_size::block_bytes(&pipeline(members, 64), message, latency, gbps * 125_000_000)
    };
    // 256 MB, 2 us, 100 Gbit/s, 64 racks: sqrt(256e6 * 25000 / 5) = 1.13 MB.
    let best = size(64, 256_000_000, 2, 100);
    assert!((1_130_000..1_200_000).contains(&best), "{best}");
    let longer = size(64, 256_000_000, 3, 100);
    assert!(longer > best, "a longer latency, larger blocks");
    assert!(size(512, 256_000_000, 2, 100) < best, "more members, smaller blocks");
    // 256e6 / (32 * 5) = 1.6 MB.
    let largest = size(64, 256_000_000, 1_000_000, 100);
    assert!((1_600_000..1_640_000 + SMALLEST).contains(&largest), "{largest}");
    assert_eq!(size(64, 1000, 1, 1), SMALLEST);
    assert_eq!(size(2, 1 << 40, 1, 1), LARGEST, "two racks do not wait for each other");
    assert_eq!(size(64, u64::MAX, 1_000_000, 400), LARGEST);
    assert_eq!(size(64, u64::MAX, 0, 0) % SMALLEST, 0);
    assert_eq!(block_size::blocks(0, 10), 1);
    assert_eq!(block_size::blocks(21, 10), 3);
    assert_eq!(block_size::blocks(u64::MAX, 0), u32::MAX);
}
