//! Properties of the machine over random accesses.

use super::*;
use crate::rng::Rng;

/// A small machine: an LLC of 64 sets of 11 ways, an L2 of 4 sets of 2 ways for each core.
fn small(replacement: Replacement, seed: u64) -> MachineOptions {
    MachineOptions {
        llc_bytes: 64 * 11 * LINE_BYTES,
        l2_bytes: 4 * 2 * LINE_BYTES,
        l2_ways: 2,
        replacement,
        seed,
        ..MachineOptions::default()
    }
}

const CORES: usize = 3;
const ACCESSES: u64 = 20_000;

/// Makes one random access and returns its level.
fn random_access(machine: &mut Machine, rng: &mut Rng) -> Level {
    let line = rng.below(3000);
    let core = crate::cache::index(rng.below(CORES as u64));
    match rng.below(6) {
        0 => machine.device_write(line, 0, DmaPath::Ddio),
        1 => machine.device_read(line, 0),
        2 => machine.core_access(core, line, false, 0),
        3 => machine.core_access(core, line, true, 0),
        4 => machine.core_prefetch(core, line, 0),
        _ => machine.device_write(line, 0, DmaPath::OtherSocket),
    }
}

#[test]
fn device_writes_hit_in_any_way_and_allocate_only_in_the_ddio_ways() {
    for replacement in [Replacement::Random, Replacement::LeastRecentlyUsed] {
        let masks = [WayMask::all(11); CORES];
        let mut machine = Machine::new(&small(replacement, 1), &masks, 1).unwrap();
        let mut rng = Rng::new(1, 9);
        let mut hits_outside = 0;
        for _ in 0..ACCESSES {
            random_access(&mut machine, &mut rng);
            let line = rng.below(3000);
            let before = machine.llc.way_of(line);
            let level = machine.device_write(line, 0, DmaPath::Ddio);
            let after = machine.llc.way_of(line).unwrap();
            if let Some(way) = before {
                assert_eq!((level, after), (Level::Llc, way));
                hits_outside += u32::from(!WayMask::DDIO_DEFAULT.contains(way));
            } else {
                assert!(WayMask::DDIO_DEFAULT.contains(after));
            }
        }
        assert!(hits_outside > 100, "{hits_outside} hits outside the DDIO ways");
    }
}

#[test]
fn device_reads_and_bypassing_writes_never_allocate() {
    let masks = [WayMask::all(11); CORES];
    let mut machine = Machine::new(&small(Replacement::Random, 1), &masks, 1).unwrap();
    let mut rng = Rng::new(2, 9);
    for _ in 0..ACCESSES {
        random_access(&mut machine, &mut rng);
        let line = rng.below(3000);
        let before = machine.llc.way_of(line);
        machine.device_read(line, 0);
        assert_eq!(machine.llc.way_of(line), before);
        machine.device_write(line, 0, DmaPath::DdioDisabled);
        assert_eq!((machine.llc.way_of(line), machine.l2_holder(line)), (None, None));
        assert_eq!(machine.device_read(line, 0), Level::Memory);
    }
}

#[test]
fn l2_victims_go_into_the_ways_of_the_cat_mask() {
    let masks = [WayMask(0x003), WayMask(0x0c0), WayMask(0x400)];
    let mut machine = Machine::new(&small(Replacement::Random, 1), &masks, 1).unwrap();
    let mut rng = Rng::new(3, 9);
    for step in 0..ACCESSES {
        // Each core has its own addresses, so that the address names the mask.
        let core = crate::cache::index(step % CORES as u64);
        let line = rng.below(1000) * CORES as u64 + core as u64;
        machine.core_access(core, line, rng.below(2) == 0, 0);
        machine.core_prefetch(core, line + 3000, 0);
        machine.core_eviction(core, line + 6000, 0);
    }
    let mut found = 0;
    for line in 0..9000_u64 {
        let mask = masks[crate::cache::index(line % CORES as u64)];
        if let Some(way) = machine.llc.way_of(line) {
            assert!(mask.contains(way), "line {line} is in way {way}, not in {mask}");
            found += 1;
        }
    }
    assert!(found > 100);
}

#[test]
fn counters_add_up_and_no_line_is_cached_twice() {
    let masks = [WayMask::all(11); CORES];
    let mut machine = Machine::new(&small(Replacement::Random, 1), &masks, 1).unwrap();
    let mut rng = Rng::new(4, 9);
    let mut from_memory = 0;
    for _ in 0..ACCESSES {
        let level = random_access(&mut machine, &mut rng);
        from_memory += u64::from(level == Level::Memory);
    }
    let counters = machine.counters(0);
    let counted = counters.device_writes() + counters.device_reads() + counters.core_accesses();
    // A prefetch of a line that an L2 holds is no access.
    assert!(counted <= ACCESSES && counted > ACCESSES * 9 / 10, "{counted}");
    let reads = counters.device_read_misses + counters.core_misses;
    assert_eq!(counters.memory_read_bytes, reads * LINE_BYTES);
    let misses = reads + counters.device_write_misses + counters.device_writes_bypassed;
    assert_eq!(misses, from_memory);
    assert!(counters.leaked_lines <= counters.device_writes());
    for line in 0..3000 {
        let holders = machine.l2s.iter().filter(|l2| l2.contains(line)).count();
        assert!(holders + usize::from(machine.llc.find(line).is_some()) <= 1);
        assert!(holders == 0 || machine.snoop_filter.may_contain(line));
    }
}

#[test]
fn equal_seeds_give_equal_results() {
    let run = |seed| {
        let masks = [WayMask::all(11); CORES];
        let mut machine = Machine::new(&small(Replacement::Random, seed), &masks, 1).unwrap();
        let mut rng = Rng::new(5, 9);
        for _ in 0..ACCESSES {
            random_access(&mut machine, &mut rng);
        }
        machine.counters(0)
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

#[test]
fn an_evicted_unread_line_is_leaked_and_a_dirty_one_is_written_back() {
    let options = MachineOptions {
        llc_bytes: 11 * LINE_BYTES,
        ddio_ways: WayMask(0x400),
        ..small(Replacement::Random, 1)
    };
    let mut machine = Machine::new(&options, &[WayMask::all(11)], 2).unwrap();
    machine.device_write(1, 0, DmaPath::Ddio);
    machine.device_write(2, 1, DmaPath::Ddio);
    assert_eq!(machine.counters(0).leaked_lines, 1);
    assert_eq!(machine.counters(1).memory_write_bytes, LINE_BYTES);
    machine.device_read(2, 1);
    machine.device_write(3, 1, DmaPath::Ddio);
    assert_eq!(machine.counters(1).leaked_lines, 0);
    assert_eq!(machine.core_access(0, 3, false, 1), Level::Llc);
    assert_eq!(machine.llc.way_of(3), None);
    assert_eq!(machine.device_write(3, 1, DmaPath::Ddio), Level::Llc);
}

#[test]
fn options_that_make_no_cache_are_rejected() {
    let default = MachineOptions::default();
    assert_eq!(default.llc_sets(), Ok(36_864));
    let bad = [
        MachineOptions { llc_ways: 0, ..default.clone() },
        MachineOptions { llc_ways: 33, ..default.clone() },
        MachineOptions { llc_bytes: 1000, ..default.clone() },
        MachineOptions { llc_bytes: 0, ..default.clone() },
        MachineOptions { l2_bytes: u64::MAX, ..default.clone() },
        MachineOptions { ddio_ways: WayMask(0), ..default.clone() },
        MachineOptions { ddio_ways: WayMask(0x800), ..default },
    ];
    for options in bad {
        assert!(Machine::new(&options, &[WayMask(1)], 1).is_err(), "{options:?}");
    }
}
