use super::calls::Call::{
    Adopt, Away, Back, Delete, Evict, Get, List, LoseObject, LoseRegistration, Put, Repair,
    Scribble, Spill, Sweep, Tick,
};
use super::explorer::{Program, Scenario};
use super::planted::Bug;

/// An object of rack 0.
const PUT: &[Program] = &[(0, &[Put])];
/// The same, with a replica in rack 1.
const BROUGHT: &[Program] = &[(0, &[Put]), (1, &[Get])];

const fn scenario(before: &'static [Program], programs: &'static [Program]) -> Scenario {
    Scenario { before, programs, kills: 1, forgets_pages: false, has_chains: false }
}

/// The same with an object that is brought along a chain.
const fn chained(before: &'static [Program], programs: &'static [Program]) -> Scenario {
    Scenario { has_chains: true, ..scenario(before, programs) }
}

const BRING: Scenario = scenario(PUT, &[(1, &[Get]), (0, &[Delete]), (0, &[Tick])]);
const SLOW_BRING: Scenario = scenario(PUT, &[(1, &[Get]), (0, &[Delete, Put]), (0, &[Tick])]);
const LIST: Scenario = scenario(PUT, &[(1, &[Get]), (0, &[Delete]), (1, &[List]), (0, &[Tick])]);
const READ: Scenario = scenario(PUT, &[(0, &[Get]), (0, &[Delete]), (0, &[Scribble, Put])]);
const READ_REPLICA: Scenario =
    scenario(BROUGHT, &[(1, &[Get]), (0, &[Delete]), (1, &[Scribble, Put])]);
const TWO_DELETES: Scenario = scenario(BROUGHT, &[(0, &[Delete]), (1, &[Delete]), (0, &[Put])]);
const OTHER_RACK: Scenario = scenario(PUT, &[(0, &[Get]), (1, &[Get]), (1, &[Delete, Put])]);
const SLOW_DELETE: Scenario = scenario(PUT, &[(1, &[Get]), (0, &[Delete, Put]), (0, &[Delete])]);
const REUSE: Scenario = scenario(PUT, &[(1, &[Scribble]), (1, &[Get]), (0, &[Delete])]);
const TWO_BRING: Scenario = scenario(PUT, &[(1, &[Get]), (1, &[Get]), (0, &[Delete])]);
const CHAIN: Scenario = chained(PUT, &[(1, &[Get]), (2, &[Get])]);
const CHAIN_DELETE: Scenario =
    chained(BROUGHT, &[(2, &[Get]), (0, &[Delete, Put]), (1, &[Scribble])]);
/// As [`BROUGHT`], two seconds ago: a replica that was made just now is not evicted.
const BROUGHT_BEFORE: &[Program] = &[(0, &[Put]), (1, &[Get]), (0, &[Tick])];
const EVICTED_SOURCE: Scenario =
    chained(BROUGHT_BEFORE, &[(2, &[Get]), (1, &[Evict]), (1, &[Scribble])]);

const AWAY: Scenario = scenario(BROUGHT, &[(2, &[Get]), (0, &[Delete]), (1, &[Away, Back])]);
const LOST_REGISTRATION: Scenario =
    scenario(BROUGHT, &[(2, &[Get]), (0, &[Delete]), (1, &[LoseRegistration, Repair])]);
const LOST_OBJECT: Scenario =
    scenario(BROUGHT, &[(1, &[Get]), (0, &[LoseObject]), (2, &[Repair, Put]), (1, &[Delete])]);

/// An object of rack 0 that is in a file, and one that was brought back from it.
const SPILLED: &[Program] = &[(0, &[Put, Spill])];
const RESTORED: &[Program] = &[(0, &[Put, Spill, Get])];
const SPILL: Scenario = scenario(PUT, &[(0, &[Spill]), (0, &[Get]), (0, &[Sweep])]);
const SPILL_BROUGHT: Scenario = scenario(BROUGHT, &[(0, &[Spill]), (1, &[Get]), (0, &[Get])]);
const SPILL_DELETE: Scenario = scenario(PUT, &[(0, &[Spill]), (0, &[Get]), (1, &[Delete, Put])]);
const RESTORE_DELETE: Scenario = scenario(SPILLED, &[(0, &[Get]), (0, &[Delete, Put])]);
const SPILL_AGAIN: Scenario = scenario(RESTORED, &[(0, &[Sweep]), (0, &[Spill]), (0, &[Scribble])]);

const ADOPT: Scenario = scenario(PUT, &[(1, &[Adopt]), (0, &[Get]), (0, &[Delete, Put])]);

/// Explores a scenario whose programs make no mistake, and checks that it has at least `least`
/// schedules: far fewer mean that programs stop early.
#[track_caller]
fn is_sound(scenario: Scenario, least: u128) {
    match scenario.explore(None) {
        Ok(explored) => assert!(explored.schedules >= least, "only {explored:?}"),
        Err(violation) => panic!("{violation}"),
    }
}

/// The same, where freed memory can still be accessed, and where its page is gone.
#[track_caller]
fn is_sound_with_and_without_pages(scenario: Scenario, least: u128) {
    is_sound(scenario, least);
    is_sound(Scenario { forgets_pages: true, ..scenario }, least);
}

#[test]
fn schedules_are_counted() {
    let programs: &[Program] = &[(0, &[Tick, Tick, Tick]), (1, &[Tick, Tick])];
    let scenario = Scenario { kills: 0, ..scenario(&[], programs) };
    let explored = scenario.explore(None).unwrap();
    // Two ticks among five; each pair of positions is one state.
    assert_eq!((explored.schedules, explored.states), (10, 12));
}

#[test]
fn a_program_brings_an_object_while_another_deletes_it() {
    is_sound_with_and_without_pages(BRING, 1_000_000);
}

#[test]
fn two_programs_bring_an_object_while_another_deletes_it() {
    is_sound(TWO_BRING, 1_000_000_000_000);
}

#[test]
fn an_object_is_made_again_while_a_slow_program_brings_the_first() {
    is_sound_with_and_without_pages(SLOW_BRING, 1_000_000);
}

#[test]
fn an_object_is_made_again_while_a_slow_program_deletes_the_first() {
    is_sound(SLOW_DELETE, 1_000_000_000_000);
}

#[test]
fn an_object_is_made_again_in_the_other_rack() {
    is_sound_with_and_without_pages(OTHER_RACK, 1_000_000_000_000);
}

#[test]
fn two_programs_delete_an_object() {
    is_sound_with_and_without_pages(TWO_DELETES, 1_000_000);
}

#[test]
fn a_list_runs_beside_a_get_and_a_delete() {
    is_sound(LIST, 1_000_000_000);
}

/// A list failed if it met a replica that was not ready, and that was removed before its words were
/// read.
#[test]
fn a_replica_that_goes_meanwhile_fails_no_list() {
    let forgets = Scenario { forgets_pages: true, ..LIST };
    is_sound(forgets, 1_000_000_000);
    assert!(forgets.explore(Some(Bug::FailWithoutSearch)).is_err());
}

#[test]
fn an_object_is_read_while_its_memory_is_freed_and_used_again() {
    is_sound_with_and_without_pages(READ, 1_000_000);
}

#[test]
fn a_replica_is_read_while_its_memory_is_freed_and_used_again() {
    is_sound_with_and_without_pages(READ_REPLICA, 1_000_000);
}

#[test]
fn a_list_runs_while_an_object_is_made_again() {
    let programs: &[Program] = &[(1, &[Get]), (0, &[Delete, Put]), (1, &[List]), (0, &[Tick])];
    is_sound(scenario(PUT, programs), 1_000_000_000);
}

#[test]
fn a_list_takes_the_replica_of_a_slow_program_for_abandoned() {
    let programs: &[Program] = &[(1, &[Get]), (1, &[Get]), (1, &[List]), (0, &[Tick])];
    is_sound(scenario(PUT, programs), 1_000_000_000);
}

#[test]
fn a_replica_is_evicted_while_it_is_read_and_its_object_deleted() {
    let programs: &[Program] = &[(1, &[Get]), (1, &[Evict]), (0, &[Delete]), (1, &[Scribble])];
    is_sound_with_and_without_pages(scenario(BROUGHT_BEFORE, programs), 1_000_000);
}

#[test]
fn two_racks_bring_an_object_along_a_chain() {
    is_sound(CHAIN, 1_000_000);
}

#[test]
fn an_object_is_made_again_while_a_rack_brings_the_first_along_a_chain() {
    is_sound_with_and_without_pages(CHAIN_DELETE, 1_000_000);
}

#[test]
fn the_source_of_a_rack_is_evicted_and_its_memory_used_again() {
    is_sound_with_and_without_pages(EVICTED_SOURCE, 1_000_000);
}

#[test]
fn two_racks_are_the_sources_of_each_other() {
    is_sound(chained(BROUGHT_BEFORE, &[(2, &[Get]), (1, &[Evict, Get])]), 1_000_000);
}

/// The registration lies in the rack that stored it last. While that one was away, nobody in a rack
/// without replica could get the object.
#[test]
fn a_get_needs_no_registration() {
    is_sound(AWAY, 1_000_000);
}

#[test]
fn a_registration_is_lost_while_a_rack_brings_the_object() {
    is_sound(LOST_REGISTRATION, 1_000_000);
    let repairs: &[Program] = &[(2, &[Get]), (0, &[LoseRegistration, Repair]), (1, &[Repair])];
    is_sound(scenario(BROUGHT, repairs), 1_000_000);
}

#[test]
fn an_object_is_lost_and_made_again() {
    is_sound(LOST_OBJECT, 1_000_000);
    let both: &[Program] = &[(2, &[Get]), (0, &[LoseRegistration, LoseObject, Repair, Put])];
    is_sound(scenario(BROUGHT, both), 10_000);
}

#[test]
fn an_object_is_read_while_it_moves_to_a_file() {
    is_sound_with_and_without_pages(SPILL, 1_000_000);
    is_sound_with_and_without_pages(SPILL_AGAIN, 1_000);
    let two: &[Program] = &[(0, &[Spill]), (0, &[Spill, Get])];
    is_sound(scenario(PUT, two), 1_000_000);
}

#[test]
fn an_object_with_replicas_moves_to_a_file() {
    is_sound_with_and_without_pages(SPILL_BROUGHT, 1_000_000);
    let in_both: &[Program] = &[(0, &[Spill]), (1, &[Get]), (2, &[Get])];
    is_sound(scenario(PUT, in_both), 1_000_000);
}

#[test]
fn an_object_is_deleted_while_it_moves_to_a_file_or_back() {
    is_sound_with_and_without_pages(SPILL_DELETE, 1_000_000);
    is_sound_with_and_without_pages(RESTORE_DELETE, 1_000);
    let far: &[Program] = &[(0, &[Get]), (1, &[Delete, Put]), (0, &[Sweep])];
    is_sound(scenario(SPILLED, far), 1_000_000);
}

#[test]
fn programs_bring_an_object_back_at_the_same_time() {
    let programs: &[Program] = &[(0, &[Get]), (0, &[Get]), (0, &[Spill]), (1, &[Get])];
    is_sound(scenario(SPILLED, programs), 1_000_000);
}

#[test]
fn an_object_moves_to_another_rack() {
    is_sound_with_and_without_pages(ADOPT, 1_000_000);
    let with_replicas: &[Program] = &[(1, &[Adopt]), (1, &[Get]), (2, &[Get])];
    is_sound_with_and_without_pages(scenario(BROUGHT, with_replicas), 1_000_000);
    let two: &[Program] = &[(1, &[Adopt]), (2, &[Adopt]), (0, &[Get, Scribble])];
    is_sound_with_and_without_pages(scenario(PUT, two), 1_000_000);
    let with_file: &[Program] = &[(1, &[Adopt]), (0, &[Spill]), (0, &[Sweep])];
    is_sound(scenario(RESTORED, with_file), 1_000_000);
}

#[test]
fn planted_bugs_are_found() {
    let planted = [
        (Bug::RegisterWithoutSearch, BRING, "a registration has no object"),
        (Bug::PublishBeforeRegister, BRING, "a replica is ready whose object is not linked"),
        (Bug::ReadyWithoutCheck, BRING, "a replica is ready whose object is not linked"),
        (Bug::ReadyWithoutRegistration, BRING, "a replica is ready whose object is not linked"),
        (Bug::ReadyWithoutSearch, TWO_BRING, "a replica is ready whose object is not linked"),
        (Bug::ReplaceAnyRegistration, BRING, "a replica is ready whose object is not linked"),
        (Bug::LeaveWords, REUSE, "a replica is ready without its bytes"),
        (Bug::ReadyBeforeFilled, BRING, "a replica is ready without its bytes"),
        (Bug::FillWithoutPin, BRING, "a program uses memory that was reused or freed"),
        (Bug::LeaveUnready, SLOW_BRING, "a replica that is not ready stays"),
        (Bug::WaitForKilled, TWO_BRING, "programs wait for ever"),
        (Bug::RemoveAnyReplica, TWO_BRING, "removes a replica that another program has just made"),
        (Bug::KeepAbandoned, BRING, "a replica that is not ready stays"),
        (Bug::UseUnready, TWO_BRING, "the bytes of a pinned object are others"),
        (Bug::RemoveObjectFirst, BRING, "a replica is ready whose object is not linked"),
        (Bug::LeaveOpen, BRING, "a replica is ready whose object is not linked"),
        (Bug::RemoveRegistrationFirst, BRING, "a replica is ready whose object is not linked"),
        (Bug::RemoveAnyObject, SLOW_DELETE, "a registration has no object"),
        (Bug::RemoveAnyRegistration, OTHER_RACK, "a replica is not registered"),
        (Bug::PinWithoutSearch, READ, "a program uses memory that was reused or freed"),
        (Bug::CopyWithoutSearch, SLOW_BRING, "Get fails: Damaged"),
        (Bug::CountBeforeBytes, CHAIN, "a replica counts a piece that it does not have"),
        (Bug::TrustReplica, EVICTED_SOURCE, "Get fails: Damaged"),
        (Bug::TakeLostForAbsent, LOST_REGISTRATION, "a replica is not registered"),
        (Bug::RepairKeepsReplicas, LOST_OBJECT, "a replica is ready whose object is not linked"),
        (Bug::RepairDropsRegistration, LOST_REGISTRATION, "a replica is not registered"),
        (Bug::RepairReopens, LOST_REGISTRATION, "a replica is ready whose object is not linked"),
        (Bug::IgnoreChecksum, EVICTED_SOURCE, "a replica is ready without its bytes"),
        (Bug::WaitForSource, CHAIN, "programs wait for ever"),
        (Bug::SpillKeepsReplicas, SPILL_BROUGHT, "a replica is ready whose object is in a file"),
        (Bug::StubBeforeFile, SPILL, "Get fails: Damaged"),
        (Bug::RestoreAnyVersion, RESTORE_DELETE, "an object is replaced by another one"),
        (Bug::RestoreAnyVersion, ADOPT, "an object is replaced by another one"),
        (Bug::SweepWithoutLock, SPILL, "the file of a spilled object is removed"),
        (Bug::SweepWithoutSearch, SPILL_AGAIN, "the file of a spilled object is removed"),
        (Bug::IgnorePins, BRING, "a program uses memory that was reused or freed"),
    ];
    for (bug, scenario, what) in planted {
        match scenario.explore(Some(bug)) {
            Ok(explored) => panic!("{bug:?} is not found in {explored:?}"),
            Err(violation) => {
                let violation = violation.to_string();
                assert!(violation.contains(what), "{bug:?} is found by another check: {violation}");
            }
        }
    }
}
