//! Schedules of a multicast: what holds for each, whatever the number of members and blocks.

use std::collections::BTreeMap;

use rackpool_proto::multicast::Block;
use rackpool_proto::multicast::block_map::BlockMap;
use rackpool_proto::multicast::schedule::{Schedule, Shape, Transfer};

const FLAT: [Schedule; 5] = [
    Schedule::Sequential,
    Schedule::Chain,
    Schedule::BinomialTree,
    Schedule::BinomialPipeline,
    Schedule::InterleavedPipelines,
];

/// Numbers of blocks: all small ones, and some larger around powers of two.
fn block_counts() -> impl Iterator<Item = u32> {
    (1..=18).chain([31, 32, 33, 63, 64, 65, 100])
}

/// Every transfer is of a block that its sender has got in an earlier step, and that its receiver
/// lacks. In a step a member receives at most one block, and sends at most `sends`. In the end
/// everybody has everything, after exactly the steps that the schedule claims.
fn check(shape: &Shape, sends: usize) {
    let mut by_step: BTreeMap<u64, Vec<Transfer>> = BTreeMap::new();
    for transfer in shape.transfers() {
        by_step.entry(transfer.step).or_default().push(transfer);
    }
    let mut maps = vec![BlockMap::empty(shape.blocks()); usize::from(shape.members())];
    maps[0] = BlockMap::full(shape.blocks());
    for (step, transfers) in &by_step {
        let (mut sent, mut received) = (BTreeMap::new(), BTreeMap::new());
        for Transfer { from, to, block, .. } in transfers {
            assert!(maps[usize::from(*from)].has(*block), "{shape:?}: {from} lacks it at {step}");
            assert!(!maps[usize::from(*to)].has(*block), "{shape:?}: {to} has it at {step}");
            *sent.entry(from).or_insert(0) += 1;
            *received.entry(to).or_insert(0) += 1;
        }
        assert!(sent.values().all(|count| *count <= sends), "{shape:?} at {step}: {transfers:?}");
        assert!(received.values().all(|count| *count == 1), "{shape:?} at {step}: {transfers:?}");
        transfers.iter().for_each(|one| maps[usize::from(one.to)].add(one.block));
    }
    assert!(maps.iter().all(BlockMap::is_full), "{shape:?}");
    let last = by_step.last_key_value().map_or(0, |(step, _)| step + 1);
    assert_eq!(last, shape.steps(), "{shape:?}");
}

#[test]
fn schedules_are_causal_and_complete_and_send_nothing_twice() {
    for schedule in FLAT {
        for members in 2..=64 {
            block_counts().for_each(|blocks| check(&Shape::new(schedule, members, blocks), 1));
        }
    }
}

#[test]
fn schedules_hold_for_many_members() {
    for schedule in FLAT {
        for members in [65, 127, 128, 129, 255, 256, 300, 511, 512] {
            for blocks in [1, 2, 9, 64] {
                check(&Shape::new(schedule, members, blocks), 1);
            }
        }
    }
}

#[test]
fn pods_get_the_object_once_from_outside() {
    let pods: [&[u16]; 12] = [
        &[2],
        &[5],
        &[1, 1],
        &[2, 2],
        &[4, 4],
        &[1, 3],
        &[3, 1, 2],
        &[8, 8, 8],
        &[4, 4, 4, 4],
        &[5, 6, 7, 1],
        &[3, 3, 3, 3, 3, 3],
        &[16, 16, 16, 16, 16, 16, 16, 16],
    ];
    for sizes in pods {
        for blocks in block_counts() {
            let shape = Shape::in_pods(Schedule::Hybrid, sizes, blocks);
            check(&shape, 2);
            let pod_of: Vec<_> =
                (0..).zip(sizes).flat_map(|(pod, size)| vec![pod; usize::from(*size)]).collect();
            let mut entered = vec![0; sizes.len()];
            for Transfer { from, to, .. } in shape.transfers() {
                let (from, to): (usize, usize) =
                    (pod_of[usize::from(from)], pod_of[usize::from(to)]);
                entered[to] += u32::from(from != to);
            }
            assert_eq!(entered[0], 0);
            assert!(entered[1..].iter().all(|count| *count == blocks), "{sizes:?}: {entered:?}");
        }
    }
}

#[test]
fn a_group_of_one_and_an_empty_object_need_no_step() {
    for schedule in Schedule::ALL {
        for (members, blocks) in [(0, 5), (1, 5), (5, 0), (0, 0)] {
            let shape = Shape::new(schedule, members, blocks);
            assert_eq!((shape.steps(), shape.transfers()), (0, vec![]), "{schedule:?}");
            assert_eq!(shape.receives(7), []);
        }
    }
}

/// The steps that the RDMC paper's figures imply for 256 blocks, and those of two pipelines.
#[test]
fn steps_are_those_of_the_table() {
    let table = [
        (4, [768, 258, 512, 257, 258]),
        (8, [1792, 262, 768, 258, 260]),
        (16, [3840, 270, 1024, 259, 262]),
        (512, [130_816, 766, 2304, 264, 272]),
    ];
    for (members, steps) in table {
        for (schedule, steps) in FLAT.into_iter().zip(steps) {
            assert_eq!(Shape::new(schedule, members, 256).steps(), steps, "{schedule:?}");
        }
    }
    assert_eq!(Shape::new(Schedule::BinomialPipeline, 9, 256).steps(), 256 + 3);
}

/// A member has a step of time before it sends on what it has received.
#[test]
fn interleaved_pipelines_wait_a_step() {
    for members in [4, 5, 8, 13, 16, 64] {
        let transfers = Shape::new(Schedule::InterleavedPipelines, members, 40).transfers();
        let arrived: BTreeMap<_, _> =
            transfers.iter().map(|one| ((one.to, one.block), one.step)).collect();
        let passed_on = transfers.iter().filter(|one| one.from != 0);
        let waits = passed_on.map(|one| one.step - arrived[&(one.from, one.block)]);
        assert_eq!(waits.min(), Some(2), "{members} members");
    }
}

/// The first block arrives at vertex v of a pipeline at step floor(log2 v), and is block
/// min(tz(v), B - 1). All receivers end in the same step.
#[test]
fn a_pipeline_fills_and_ends_as_the_formulas_say() {
    for members in [2_u16, 4, 8, 16, 32, 64, 256] {
        for blocks in [1, 2, 3, 7, 40] {
            let shape = Shape::new(Schedule::BinomialPipeline, members, blocks);
            for v in 1..members {
                let receives = shape.receives(v);
                let (first, last) = (receives.first().unwrap(), receives.last().unwrap());
                assert_eq!(first.step, u64::from(v.ilog2()));
                assert_eq!(first.block, Block(v.trailing_zeros().min(blocks - 1)));
                if blocks > 1 {
                    assert_eq!(last.step, shape.steps() - 1, "{v} of {members}, {blocks} blocks");
                }
            }
        }
    }
}

/// In the steady state a block waits on average 2 (1 - (l - 1) / (n - 2)) steps before it is sent
/// on.
#[test]
fn the_slack_of_a_pipeline_is_that_of_the_paper() {
    let blocks = 200;
    for members in [4_u16, 8, 16, 32, 64] {
        let transfers = Shape::new(Schedule::BinomialPipeline, members, blocks).transfers();
        let arrived: BTreeMap<_, _> =
            transfers.iter().map(|one| ((one.to, one.block), one.step)).collect();
        let l = u64::from(members.ilog2());
        let steady = (l + 3)..u64::from(blocks - 3);
        let waits = transfers.iter().filter(|one| one.from != 0 && steady.contains(&one.step));
        let waits: Vec<_> = waits.map(|one| one.step - arrived[&(one.from, one.block)]).collect();
        // Both sides times (n - 2) and the number of sends.
        let (sum, count) = (waits.iter().sum::<u64>(), waits.len() as u64);
        let n = u64::from(members);
        let expected = 2 * (n - 2 - (l - 1)) * count;
        assert!(
            (sum * (n - 2)).abs_diff(expected) * 100 <= expected,
            "{members}: {sum} of {count}"
        );
    }
}
