//! Plans of epochs, and the machine step by step where the world of faults does not go.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rackpool_model::RackId;
use rackpool_proto::Time;
use rackpool_proto::multicast::block_map::BlockMap;
use rackpool_proto::multicast::event::{
    Failure, MulticastAction, MulticastEvent, MulticastMessage, Status,
};
use rackpool_proto::multicast::member::Stored;
use rackpool_proto::multicast::participant::Participant;
use rackpool_proto::multicast::plan::{Plan, PlanError, Receive, Survivor};
use rackpool_proto::multicast::schedule::Schedule;
use rackpool_proto::multicast::{
    Block, Epoch, Group, GroupMember, MulticastRules, Version, Visibility,
};
use rackpool_proto::planted_bugs::Sound;

const RULES: MulticastRules = MulticastRules::DEFAULT;

fn member(rack: u16, pod: u16) -> GroupMember {
    GroupMember { rack: RackId(rack), pod }
}

/// A rack of pod 0 with these blocks of six.
fn survivor(rack: u16, blocks: &[u32]) -> Survivor {
    let mut map = BlockMap::empty(6);
    blocks.iter().for_each(|block| map.add(Block(*block)));
    Survivor { member: member(rack, 0), map }
}

/// Executes a plan: each receive when its source has the block. Returns the reads of each rack, or
/// panics if somebody waits for ever.
fn execute(plan: &Plan, survivors: &[Survivor]) -> BTreeMap<RackId, Vec<Receive>> {
    let racks = survivors.iter().map(|one| one.member.rack);
    let reads: BTreeMap<_, _> =
        racks.zip(survivors).map(|(rack, one)| (rack, plan.receives(rack, &one.map))).collect();
    let mut maps: BTreeMap<_, _> =
        survivors.iter().map(|one| (one.member.rack, one.map.clone())).collect();
    let mut next: BTreeMap<RackId, usize> = BTreeMap::new();
    loop {
        let mut has_read = false;
        for (rack, list) in &reads {
            let at = next.entry(*rack).or_insert(0);
            let Some(Receive { block, from }) = list.get(*at) else { continue };
            if maps[from].has(*block) {
                let map = maps.get_mut(rack).unwrap();
                assert!(!map.has(*block), "{rack:?} reads {block:?} although it has it");
                map.add(*block);
                *at += 1;
                has_read = true;
            }
        }
        if !has_read {
            break;
        }
    }
    assert!(maps.values().all(BlockMap::is_full), "{plan:?}: {maps:?}");
    reads
}

#[test]
fn a_later_epoch_reads_only_what_is_missing() {
    let survivors = [
        survivor(1, &[0, 1, 2]),
        survivor(2, &[0, 1, 2, 3, 4, 5]),
        survivor(4, &[5]),
        survivor(7, &[]),
    ];
    for schedule in Schedule::ALL {
        let plan = Plan::new(schedule, &survivors, &BTreeSet::new()).unwrap();
        assert_eq!(plan.members()[0].rack, RackId(2), "the lowest complete rack is the root");
        let reads = execute(&plan, &survivors);
        assert_eq!(reads.values().map(Vec::len).sum::<usize>(), 3 + 5 + 6);
    }
}

#[test]
fn the_survivors_complete_each_other() {
    let survivors = [survivor(3, &[0, 5]), survivor(5, &[1, 2, 3]), survivor(6, &[4])];
    for schedule in Schedule::ALL {
        let plan = Plan::new(schedule, &survivors, &BTreeSet::new()).unwrap();
        assert_eq!(plan.members()[0].rack, RackId(5), "the one with the most blocks is the root");
        execute(&plan, &survivors);
    }
}

#[test]
fn a_plan_needs_every_block() {
    let survivors = [survivor(1, &[0, 1, 2]), survivor(2, &[2, 3, 5])];
    let plan = |survivors| Plan::new(Schedule::Chain, survivors, &BTreeSet::new());
    assert_eq!(plan(&survivors).unwrap_err(), PlanError::BlockLost { block: Block(4) });
    assert_eq!(plan(&[]).unwrap_err(), PlanError::NobodyLeft);
}

#[test]
fn a_source_that_cannot_be_read_is_replaced() {
    let survivors =
        [survivor(0, &[0, 1, 2, 3, 4, 5]), survivor(1, &[]), survivor(2, &[]), survivor(3, &[])];
    for schedule in Schedule::ALL {
        let unreadable: BTreeSet<_> =
            [(2, 1), (3, 1), (3, 2)].map(|(reader, from)| (RackId(reader), RackId(from))).into();
        let plan = Plan::new(schedule, &survivors, &unreadable).unwrap();
        for (rack, reads) in execute(&plan, &survivors) {
            assert!(reads.iter().all(|read| !unreadable.contains(&(rack, read.from))));
        }
    }
}

#[test]
fn pods_stay_together_when_a_rack_is_gone() {
    let pods = [(0, 0), (1, 0), (2, 0), (4, 1), (5, 1), (6, 2)];
    let mut survivors: Vec<_> = pods
        .map(|(rack, pod)| Survivor { member: member(rack, pod), map: BlockMap::empty(6) })
        .into();
    survivors[3].map = BlockMap::full(6);
    let plan = Plan::new(Schedule::Hybrid, &survivors, &BTreeSet::new()).unwrap();
    let order: Vec<_> = plan.members().iter().map(|member| member.rack.0).collect();
    assert_eq!(order, [4, 5, 0, 1, 2, 6]);
    let pod_of = |rack: RackId| pods.iter().find(|(one, _)| *one == rack.0).unwrap().1;
    let reads = execute(&plan, &survivors);
    let inward = reads.iter().flat_map(|(rack, list)| {
        list.iter().filter(|read| pod_of(read.from) != pod_of(*rack)).map(|_| pod_of(*rack))
    });
    let inward: Vec<_> = inward.collect();
    assert_eq!(inward.iter().filter(|pod| **pod == 0).count(), 6);
    assert_eq!((inward.len(), inward.contains(&1)), (12, false));
}

fn group(racks: u16, visibility: Visibility) -> Group {
    let members = (0..racks).map(|rack| member(rack, 0)).collect();
    let (version, schedule) = (Version(9), Schedule::BinomialPipeline);
    Group { members, version, blocks: 2, schedule, visibility }
}

fn participant(own: u16, racks: u16, blocks: &[u32]) -> Participant {
    let mut map = BlockMap::empty(2);
    blocks.iter().for_each(|block| map.add(Block(*block)));
    let stored = Some(Stored { version: Version(9), map });
    let group = group(racks, Visibility::Each);
    Participant::new(Time::ZERO, RackId(own), group, stored, RULES, Sound)
}

fn at(ms: u64) -> Time {
    Time::ZERO.after(Duration::from_millis(ms))
}

fn actions(machine: &mut Participant) -> Vec<MulticastAction> {
    std::iter::from_fn(|| machine.poll()).collect()
}

fn step(machine: &mut Participant, ms: u64, event: MulticastEvent) -> Vec<MulticastAction> {
    machine.handle(at(ms), event);
    actions(machine)
}

fn from(rack: u16, message: MulticastMessage) -> MulticastEvent {
    MulticastEvent::Message(RackId(rack), message)
}

fn send(rack: u16, message: MulticastMessage) -> MulticastAction {
    MulticastAction::Send(RackId(rack), message)
}

const fn epoch(number: u32, coordinator: u16) -> Epoch {
    Epoch { number, coordinator: RackId(coordinator) }
}

/// The plan with which rack 0 begins, if the others have nothing.
fn plan_of(racks: u16) -> Plan {
    let full = |rack| if rack == 0 { BlockMap::full(2) } else { BlockMap::empty(2) };
    let survivors: Vec<_> =
        (0..racks).map(|rack| Survivor { member: member(rack, 0), map: full(rack) }).collect();
    Plan::new(Schedule::BinomialPipeline, &survivors, &BTreeSet::new()).unwrap()
}

#[test]
fn a_block_counts_when_its_bytes_are_there() {
    let mut machine = participant(1, 2, &[]);
    let wedged = Status::Wedged(BlockMap::empty(2));
    let report = |status| send(0, MulticastMessage::Report(epoch(1, 0), status));
    let wedge = MulticastMessage::Wedge(epoch(1, 0));
    assert_eq!(step(&mut machine, 0, from(0, wedge)), [report(wedged)]);
    let plan = from(0, MulticastMessage::Plan(epoch(1, 0), plan_of(2)));
    let look = MulticastAction::Look { from: RackId(0), word: 0 };
    assert_eq!(step(&mut machine, 0, plan), [look, report(Status::Receiving(0))]);
    let found = Some((Version(9), 3));
    let looked = MulticastEvent::Looked { from: RackId(0), word: 0, found };
    let read = |block| MulticastAction::Read { from: RackId(0), block: Block(block) };
    assert_eq!(step(&mut machine, 1, looked), [read(0), read(1)], "two at once");
    let block_read = |block| {
        let found = Some(Version(9));
        MulticastEvent::BlockRead { from: RackId(0), block: Block(block), found }
    };
    let mark = |block| MulticastAction::MarkReceived(Block(block));
    assert_eq!(step(&mut machine, 2, block_read(1)), [mark(1)], "in any order");
    let last = step(&mut machine, 3, block_read(0));
    assert_eq!(last, [mark(0), MulticastAction::Verify, report(Status::Receiving(2))]);
    let verified = step(&mut machine, 4, MulticastEvent::Verified(true));
    assert_eq!(verified, [MulticastAction::Show, report(Status::Complete)]);
    let end = from(0, MulticastMessage::End(epoch(1, 0), Ok(())));
    assert_eq!(step(&mut machine, 5, end), [MulticastAction::End(Ok(()))]);
    assert!(machine.has_ended());
    let call = from(0, MulticastMessage::Wedge(epoch(2, 0)));
    let answer = send(0, MulticastMessage::Report(epoch(2, 0), Status::Complete));
    assert_eq!(step(&mut machine, 6, call), [answer], "it says so to whoever coordinates");
}

#[test]
fn bytes_of_another_object_do_not_count() {
    let mut machine = participant(1, 2, &[]);
    step(&mut machine, 0, from(0, MulticastMessage::Wedge(epoch(1, 0))));
    step(&mut machine, 0, from(0, MulticastMessage::Plan(epoch(1, 0), plan_of(2))));
    let found = Some((Version(9), 3));
    step(&mut machine, 1, MulticastEvent::Looked { from: RackId(0), word: 0, found });
    let found = Some(Version(10));
    let read = MulticastEvent::BlockRead { from: RackId(0), block: Block(0), found };
    let stuck = MulticastMessage::Report(epoch(1, 0), Status::Stuck(RackId(0)));
    assert_eq!(step(&mut machine, 2, read), [send(0, stuck)]);
    assert_eq!(machine.map().count(), 0);
    // The other read ends well, and counts.
    let found = Some(Version(9));
    let read = MulticastEvent::BlockRead { from: RackId(0), block: Block(1), found };
    let mark = MulticastAction::MarkReceived(Block(1));
    assert_eq!(step(&mut machine, 3, read.clone()), [mark]);
    // Nobody has asked for it a second time.
    assert_eq!(step(&mut machine, 4, read), []);
}

#[test]
fn a_root_that_was_given_up_by_mistake_hears_so() {
    let mut root = participant(0, 3, &[0, 1]);
    actions(&mut root);
    let mut other = participant(1, 3, &[]);
    step(&mut other, 0, from(0, MulticastMessage::Wedge(epoch(1, 0))));
    let calls = step(&mut other, 1, MulticastEvent::RackLost(RackId(0)));
    assert_eq!(calls, [send(2, MulticastMessage::Wedge(epoch(2, 1)))], "rack 1 takes over");
    // Rack 2, which has followed, turns the root away.
    let overtaken = from(2, MulticastMessage::Overtaken(epoch(2, 1)));
    let reports = step(&mut root, 2, overtaken);
    let full = Status::Wedged(BlockMap::full(2));
    assert_eq!(reports, [send(1, MulticastMessage::Report(epoch(2, 1), full.clone()))]);
    let report = from(0, MulticastMessage::Report(epoch(2, 1), full));
    let lost = MulticastMessage::End(epoch(2, 1), Err(Failure::Lost));
    assert_eq!(step(&mut other, 3, report), [send(0, lost.clone())]);
    let ended = step(&mut root, 4, from(1, lost));
    assert_eq!(ended, [MulticastAction::End(Err(Failure::Lost))]);
}

#[test]
fn a_silent_rack_is_given_up_and_the_others_get_the_object() {
    let mut root = participant(0, 3, &[0, 1]);
    actions(&mut root);
    let wedged = Status::Wedged(BlockMap::empty(2));
    step(&mut root, 1, from(1, MulticastMessage::Report(epoch(1, 0), wedged)));
    let again = step(&mut root, 150, MulticastEvent::DeadlinePassed);
    assert!(again.contains(&send(2, MulticastMessage::Wedge(epoch(1, 0)))), "{again:?}");
    assert!(!again.contains(&send(1, MulticastMessage::Wedge(epoch(1, 0)))), "{again:?}");
    let grace = u64::try_from(RULES.grace.as_millis()).unwrap();
    let planned = step(&mut root, grace, MulticastEvent::DeadlinePassed);
    let is_plan = |action: &MulticastAction| {
        matches!(action, MulticastAction::Send(RackId(1), MulticastMessage::Plan(..)))
    };
    assert!(planned.iter().any(is_plan), "{planned:?}");
    step(&mut root, grace + 1, MulticastEvent::Verified(true));
    let complete = MulticastMessage::Report(epoch(1, 0), Status::Complete);
    let end = step(&mut root, grace + 2, from(1, complete));
    let results = [Ok(()), Ok(()), Err(Failure::Silent)];
    let results = (0..).map(RackId).zip(results).collect();
    assert!(end.contains(&MulticastAction::Report(results)), "{end:?}");
}

#[test]
fn nobody_speaks_for_a_coordinator() {
    let mut machine = participant(1, 3, &[]);
    step(&mut machine, 0, from(0, MulticastMessage::Wedge(epoch(1, 0))));
    let foreign = [
        MulticastMessage::Wedge(epoch(9, 0)),
        MulticastMessage::Plan(epoch(1, 0), plan_of(3)),
        MulticastMessage::End(epoch(9, 0), Ok(())),
    ];
    for message in foreign {
        assert_eq!(step(&mut machine, 1, from(2, message)), []);
    }
    assert_eq!(machine.epoch(), epoch(1, 0));
}

#[test]
fn a_plan_for_another_group_is_ignored() {
    let mut machine = participant(1, 3, &[]);
    step(&mut machine, 0, from(0, MulticastMessage::Wedge(epoch(1, 0))));
    let more_blocks = [survivor(0, &[0, 1, 2, 3, 4, 5]), survivor(1, &[])];
    let more_blocks = Plan::new(Schedule::Chain, &more_blocks, &BTreeSet::new()).unwrap();
    for plan in [more_blocks, plan_of(4)] {
        assert!(!plan.fits(&group(3, Visibility::Each)));
        let plan = MulticastMessage::Plan(epoch(1, 0), plan);
        assert_eq!(step(&mut machine, 1, from(0, plan)), []);
    }
    let plan = MulticastMessage::Plan(epoch(1, 0), plan_of(3));
    assert_ne!(step(&mut machine, 2, from(0, plan)), []);
}

#[test]
fn a_map_ignores_what_the_object_does_not_have() {
    let map = BlockMap::from_words(70, &[u64::MAX, u64::MAX, 7]);
    assert_eq!((map.count(), map.words()), (70, &[u64::MAX, 63][..]));
    assert!(map.is_full() && !map.has(Block(70)));
    let mut map = BlockMap::from_words(70, &[1]);
    map.add(Block(69));
    map.add(Block(70));
    map.add_word(9, 1);
    assert_eq!((map.count(), map.missing().count()), (2, 68));
}
