//! Runs every target over its corpus and over some thousand mutations of it. A failing input is
//! written to `fuzz/artifacts/<target>`: name it, move it into the corpus, and write a test of the
//! bug in the crate that had it.

use rackpool_fuzz::campaign::{Mutations, corpus, run};
use rackpool_fuzz::{TARGETS, target};

const SEED: u64 = 0x7261_636b;

fn replay(name: &str, mutated: usize) {
    let target = target(name).expect("a target of this name");
    let inputs = corpus(name).expect("a corpus of this name");
    assert!(!inputs.is_empty(), "the corpus of {name} is empty");
    for (_, input) in &inputs {
        run(target, input);
    }
    let mut mutations = Mutations::new(inputs.into_iter().map(|(_, input)| input).collect(), SEED);
    for _ in 0..mutated {
        run(target, &mutations.input());
    }
}

macro_rules! replays {
    ($($name:ident: $mutated:expr,)*) => {
        $(
            #[test]
            fn $name() {
                replay(stringify!($name), $mutated);
            }
        )*

        #[test]
        fn every_target_is_replayed() {
            let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
            assert_eq!(names, [$(stringify!($name)),*]);
        }
    };
}

replays! {
    messages: 20_000,
    frames: 20_000,
    words: 10_000,
    geometry: 10_000,
    slab: 2_000,
    plane: 1_000,
    hello: 20_000,
    verbs: 20_000,
    link: 1_000,
    offer: 20_000,
    channel: 10_000,
    answers: 10_000,
    rrpc: 20_000,
    table: 1_000,
    ordered: 1_000,
    volume: 20_000,
    objects: 20_000,
    trace: 2_000,
    resp: 20_000,
    plasma: 20_000,
    replies: 20_000,
    scrape: 20_000,
}
