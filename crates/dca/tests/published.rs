//! The model beside the published figures. All runs are deterministic.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use rackpool_dca::published::{
    FIGURE_3_MISS_GROWTH, FIGURE_10, FIGURE_11, FIGURE_12, Point, one_core_points,
};
use rackpool_dca::{
    DmaPath, Forwarder, ForwarderOutcome, Indexing, MachineOptions, RandomReader, Replacement,
    SimulationOptions, WayMask, simulate, simulate_with_readers,
};

/// Largest accepted mean error of the one-core points (percentage points).
const MEAN_ERROR: f64 = 3.0;

/// Largest accepted error of a one-core point (percentage points).
const LARGEST_ERROR: f64 = 8.0;

fn options(ways: u32, warm_up_rounds: u32) -> SimulationOptions {
    let ddio_ways = WayMask::highest(ways, 11);
    let machine = MachineOptions { ddio_ways, ..MachineOptions::default() };
    SimulationOptions { machine, warm_up_rounds, rounds: 6 }
}

fn run(options: &SimulationOptions, forwarders: &[Forwarder]) -> ForwarderOutcome {
    simulate(options, forwarders).unwrap().forwarders.swap_remove(0)
}

fn hits(outcome: &ForwarderOutcome) -> f64 {
    outcome.counters.write_hit_percent().unwrap()
}

fn forwarder(cores: u32, descriptors: u32) -> Forwarder {
    Forwarder { cores, descriptors, ..Forwarder::default() }
}

/// Mean and largest error of the one-core points (percentage points). The three constants that are
/// calibrated on several cores are off.
fn one_core_errors(indexing: Indexing, replacement: Replacement) -> (f64, f64) {
    let errors: Vec<f64> = one_core_points()
        .into_iter()
        .map(|Point { cores, descriptors, packet_bytes, ways, write_hit_percent }| {
            let mut options = options(ways, 6);
            options.machine.indexing = indexing;
            options.machine.replacement = replacement;
            let load = Forwarder {
                packet_bytes,
                tx_descriptors: 16,
                read_ahead_lines: 0.0,
                background_lines_per_us: 0.0,
                ..forwarder(cores, descriptors)
            };
            let hits = hits(&run(&options, &[load]));
            println!(
                "{descriptors} x {packet_bytes} B, {ways} ways: {hits:.1}, paper {write_hit_percent}"
            );
            (hits - write_hit_percent).abs()
        })
        .collect();
    let largest = errors.iter().copied().fold(0.0, f64::max);
    let mean = errors.iter().sum::<f64>() / errors.len() as f64;
    println!("{indexing:?} {replacement:?}: mean error {mean:.2}, largest {largest:.2}");
    (mean, largest)
}

#[test]
fn one_core_write_hits_are_as_published() {
    let (mean, largest) = one_core_errors(Indexing::Hashed, Replacement::Random);
    assert!(mean <= MEAN_ERROR && largest <= LARGEST_ERROR, "mean {mean}, largest {largest}");
}

/// The constants that are calibrated on several cores hardly act on one core.
#[test]
fn one_core_does_not_depend_on_the_calibrated_constants() {
    let load = forwarder(1, 4096);
    let off = Forwarder {
        tx_descriptors: 16,
        read_ahead_lines: 0.0,
        background_lines_per_us: 0.0,
        ..load.clone()
    };
    let [on, off] = [load, off].map(|load| hits(&run(&options(2, 10), &[load])));
    assert!((on - off).abs() < 1.0, "{on} and {off}");
}

#[test]
fn least_recently_used_replacement_contradicts_the_published_figures() {
    let (mean, largest) = one_core_errors(Indexing::Hashed, Replacement::LeastRecentlyUsed);
    assert!(mean > MEAN_ERROR || largest > LARGEST_ERROR, "mean {mean}, largest {largest}");
}

#[test]
fn linear_indexing_contradicts_the_published_figures() {
    let (mean, largest) = one_core_errors(Indexing::Linear, Replacement::Random);
    assert!(mean > MEAN_ERROR || largest > LARGEST_ERROR, "mean {mean}, largest {largest}");
}

/// Figure 10: more cores help until four or six; then their buffers exceed the DDIO ways.
#[test]
fn write_hits_peak_at_four_or_six_cores_and_fall_after() {
    let hits: Vec<(u32, f64)> = FIGURE_10
        .into_iter()
        .map(|(cores, paper)| {
            // The more cores, the sooner the lines are spread over the LLC ways.
            let warm_up_rounds = if cores <= 6 { 60 } else { 25 };
            let hits = hits(&run(&options(2, warm_up_rounds), &[forwarder(cores, 256)]));
            println!("{cores} cores: {hits:.1}, paper {paper}");
            (cores, hits)
        })
        .collect();
    let peak = hits.iter().max_by(|a, b| a.1.total_cmp(&b.1)).unwrap().0;
    assert!(peak == 4 || peak == 6, "peak at {peak} cores");
    let after: Vec<f64> =
        hits.iter().filter(|(cores, _)| *cores >= peak).map(|(_, hits)| *hits).collect();
    assert!(after.is_sorted_by(|a, b| a > b), "{hits:?}");
    for ((cores, hits), (_, paper)) in hits.iter().zip(FIGURE_10) {
        assert!((hits - paper).abs() <= 10.0, "{cores} cores: {hits}, paper {paper}");
    }
}

/// Negative control for figure 10: without full TX queues and without lines that move through the
/// L2s, each additional core only adds buffers.
#[test]
fn without_the_effects_of_several_cores_one_core_is_best() {
    let hits = [1, 2, 4, 8].map(|cores| {
        let load = Forwarder {
            tx_descriptors: 16,
            read_ahead_lines: 0.0,
            background_lines_per_us: 0.0,
            ..forwarder(cores, 256)
        };
        hits(&run(&options(2, 10), &[load]))
    });
    assert!(hits.is_sorted_by(|a, b| a > b), "{hits:?}");
}

/// Figure 11: 2 cores with 4 ways (70.5 %) are about as good as 4 cores with 2 ways (72.9 %).
#[test]
fn more_ways_act_as_more_cores() {
    let hits = |cores: u32, ways| {
        let hits = hits(&run(&options(ways, 30), &[forwarder(cores, 4096 / cores)]));
        println!("{cores} cores, {ways} ways: {hits:.1}");
        hits
    };
    let mut rows = FIGURE_11.into_iter().filter(|(cores, _)| *cores > 1).map(|(cores, paper)| {
        let row = [2, 4, 6].map(|ways| hits(cores, ways));
        for (hits, paper) in row.iter().zip(paper) {
            assert!((hits - paper).abs() <= 10.0, "{cores} cores: {hits}, paper {paper}");
        }
        row
    });
    let (two_cores, four_cores) = (rows.next().unwrap(), rows.next().unwrap());
    assert!((two_cores[1] - four_cores[0]).abs() <= 10.0);
    assert!(two_cores[0] < two_cores[1].min(four_cores[0]) - 20.0);
}

/// Figure 14: a forwarder keeps its hit rate and latency when the other one bypasses the cache.
#[test]
fn bypassing_the_cache_isolates_the_other_forwarder() {
    let important = Forwarder { rate_gbps: 98.0, ..forwarder(4, 256) };
    let with = |ways, path| {
        let other = Forwarder { path, ..important.clone() };
        let outcome = run(&options(ways, 40), &[important.clone(), other]);
        println!(
            "{path:?}, {ways} ways: {:.1} %, p99 {} ns",
            hits(&outcome),
            outcome.latency_p99_ns
        );
        outcome
    };
    let alone = run(&options(2, 40), std::slice::from_ref(&important));
    println!("alone: {:.1} %, p99 {} ns", hits(&alone), alone.latency_p99_ns);
    let both = with(2, DmaPath::Ddio);
    let wide = with(4, DmaPath::Ddio);
    for path in [DmaPath::OtherSocket, DmaPath::DdioDisabled] {
        let bypassed = with(2, path);
        assert!((hits(&bypassed) - hits(&alone)).abs() <= 1.0);
        assert!((bypassed.latency_p99_ns / alone.latency_p99_ns - 1.0).abs() <= 0.02);
        assert!(hits(&wide) >= hits(&bypassed) - 1.0);
        assert!(hits(&both) <= hits(&bypassed) - 2.0);
    }
}

/// Figure 14, latency: with long rings and a card that is not saturated, the second forwarder
/// raises the 99th percentile, and bypassing or four ways undo most of it.
#[test]
fn two_forwarders_in_two_ways_raise_the_latency() {
    let important = Forwarder { rate_gbps: 98.0, ..forwarder(4, 1024) };
    let p99 = |ways, path| {
        let other = Forwarder { path, ..important.clone() };
        run(&options(ways, 20), &[important.clone(), other]).latency_p99_ns
    };
    let alone = run(&options(2, 20), std::slice::from_ref(&important)).latency_p99_ns;
    let (both, wide) = (p99(2, DmaPath::Ddio), p99(4, DmaPath::Ddio));
    let bypassed = p99(2, DmaPath::OtherSocket);
    println!("alone {alone} ns, both {both} ns, four ways {wide} ns, bypassed {bypassed} ns");
    assert!(both > alone * 1.05);
    assert!(bypassed - alone < (both - alone) / 2.0 && wide - alone < (both - alone) / 2.0);
}

/// Figure 3: a cache-hungry program whose CAT mask overlaps the DDIO ways.
#[test]
fn sharing_ways_with_ddio_at_least_doubles_the_misses() {
    let load = Forwarder {
        packet_bytes: 1024,
        rate_gbps: 82.0,
        cat_mask: WayMask(0x0c0),
        ..forwarder(1, 4096)
    };
    let misses = |cat_mask| {
        let reader = RandomReader { cat_mask, ..RandomReader::default() };
        let outcome =
            simulate_with_readers(&options(2, 6), std::slice::from_ref(&load), &[reader]).unwrap();
        assert!(outcome.readers[0].core_accesses() > 0);
        outcome.forwarders[0].counters.core_miss_percent().unwrap()
    };
    let (apart, shared) = (misses(WayMask(0x00c)), misses(WayMask(0x600)));
    println!("{apart:.1} % and {shared:.1} %: {:.2}, paper {FIGURE_3_MISS_GROWTH}", shared / apart);
    assert!(shared >= 2.0 * apart, "{apart} and {shared}");
}

/// Figure 12: eighteen cores with more processing for each packet; the busiest one receives
/// `imbalance` times the mean.
#[test]
fn wider_ddio_helps_more_when_the_load_is_imbalanced() {
    let gain_percent = |imbalance: f64| {
        let mut weights = vec![(18.0 - imbalance) / 17.0; 18];
        weights[0] = imbalance;
        let load = Forwarder { extra_cycles: 1800.0, weights, ..forwarder(18, 512) };
        let p99 = |ways| {
            let options = SimulationOptions { rounds: 16, ..options(ways, 8) };
            run(&options, std::slice::from_ref(&load)).latency_p99_ns
        };
        100.0 * (1.0 - p99(8) / p99(2))
    };
    let [low, high] = FIGURE_12.map(|(imbalance, paper)| {
        let gain = gain_percent(imbalance);
        println!("imbalance {imbalance}: 99th percentile {gain:.1} % lower, paper {paper}");
        gain
    });
    assert!(high > low && high > 1.0, "{high} and {low}");
}

#[test]
fn equal_seeds_give_equal_outcomes() {
    let load = [forwarder(4, 128), Forwarder { path: DmaPath::OtherSocket, ..forwarder(2, 128) }];
    let outcome = |seed| {
        let mut options = options(2, 4);
        options.machine.seed = seed;
        simulate(&options, &load).unwrap()
    };
    assert_eq!(outcome(1), outcome(1));
    assert_ne!(outcome(1), outcome(2));
}

/// A full ring drops packets, or pauses the sender instead.
#[test]
fn a_slow_core_drops_packets_or_pauses_the_sender() {
    let slow = Forwarder { extra_cycles: 1000.0, ..forwarder(1, 64) };
    let drops = run(&options(2, 20), std::slice::from_ref(&slow));
    let pauses = run(&options(2, 20), &[Forwarder { pause: true, ..slow.clone() }]);
    assert!(drops.drops > 0 && drops.pauses == 0 && drops.sent_gbps < 30.0);
    assert!(pauses.drops == 0 && pauses.pauses > 0 && pauses.paused_ns > 0.0);
    assert!(drops.latency_p50_ns <= drops.latency_p99_ns);
}

/// The smallest caches, rings and packets, and rates that caches and cores cannot follow.
#[test]
fn extreme_options_give_an_outcome() {
    let tiny = MachineOptions {
        llc_bytes: 64,
        llc_ways: 1,
        ddio_ways: WayMask(1),
        l2_bytes: 64,
        l2_ways: 1,
        ..MachineOptions::default()
    };
    let options = SimulationOptions { machine: tiny, warm_up_rounds: 0, rounds: 3 };
    let least = Forwarder {
        tx_descriptors: 1,
        packet_bytes: 64,
        cat_mask: WayMask(1),
        weights: vec![0.0, 1.0, 0.0],
        ..forwarder(3, 1)
    };
    for pause in [false, true] {
        for path in [DmaPath::Ddio, DmaPath::OtherSocket] {
            for gbps in [0.1, 100.0, 10_000.0] {
                let (rate_gbps, line_gbps) = (gbps, gbps);
                let least = Forwarder { pause, path, rate_gbps, line_gbps, ..least.clone() };
                let large = Forwarder { packet_bytes: 9216, buffer_stride_bytes: 9216, ..least };
                let small = Forwarder { packet_bytes: 64, ..large.clone() };
                let outcome = simulate(&options, &[small, large]).unwrap();
                assert!(outcome.forwarders.iter().all(|forwarder| forwarder.packets > 0));
                assert!(outcome.total.device_writes() >= outcome.forwarders[0].packets);
            }
        }
    }
}

#[test]
fn invalid_loads_are_rejected() {
    let options = options(2, 1);
    assert!(simulate(&options, &[]).is_err());
    let outside = Forwarder { cat_mask: WayMask(0x800), ..forwarder(1, 64) };
    let error = simulate(&options, &[outside]).unwrap_err();
    assert!(error.to_string().contains("cat_mask = 0x800 is not valid: set at least one bit"));
    let huge = forwarder(256, 65_536);
    assert!(simulate(&SimulationOptions { rounds: 1000, ..options }, &[huge]).is_err());
}
