//! Simulation of synthetic load: options, limits, entry points.

use crate::OptionsError;
use crate::event_loop::EventLoop;
use crate::forwarder::{Forwarder, RandomReader, within};
use crate::machine::MachineOptions;
use crate::outcome::Outcome;

/// The most forwarders, and the most cache-hungry programs, of one simulation.
const MAX_PROGRAMS: usize = 100;

/// The most cores of all programs of one simulation.
const MAX_CORES: u64 = 512;

/// The most rounds of the rings before the measurement, and in it.
const MAX_ROUNDS: u32 = 1000;

/// The most packets that `cores * descriptors * rounds` of one forwarder may ask for.
const MAX_PACKETS: u64 = 20_000_000;

/// A machine and the length of a simulation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimulationOptions {
    /// The caches.
    pub machine: MachineOptions,
    /// Times that each forwarder uses all its buffers before the measurement, 0 to 1000. One core
    /// needs about 6, several cores about 60 until their lines are spread over the LLC ways.
    pub warm_up_rounds: u32,
    /// Times that each forwarder uses all its buffers in the measurement, 1 to 1000.
    pub rounds: u32,
}

impl Default for SimulationOptions {
    fn default() -> Self {
        Self { machine: MachineOptions::default(), warm_up_rounds: 60, rounds: 6 }
    }
}

/// Simulates forwarders that share one socket.
///
/// # Errors
/// Returns an error if an option is not valid, or if there is no forwarder.
pub fn simulate(
    options: &SimulationOptions,
    forwarders: &[Forwarder],
) -> Result<Outcome, OptionsError> {
    simulate_with_readers(options, forwarders, &[])
}

/// Simulates forwarders and cache-hungry programs that share one socket.
///
/// # Errors
/// Returns an error if an option is not valid, or if there is no forwarder.
pub fn simulate_with_readers(
    options: &SimulationOptions,
    forwarders: &[Forwarder],
    readers: &[RandomReader],
) -> Result<Outcome, OptionsError> {
    check(options, forwarders, readers)?;
    let mut simulation = EventLoop::new(&options.machine, forwarders, readers)?;
    simulation.run_rounds(options.warm_up_rounds);
    simulation.start_measurement();
    simulation.run_rounds(options.rounds);
    Ok(simulation.outcome())
}

fn check(
    options: &SimulationOptions,
    forwarders: &[Forwarder],
    readers: &[RandomReader],
) -> Result<(), OptionsError> {
    within("warm_up_rounds", options.warm_up_rounds, 0, MAX_ROUNDS)?;
    within("rounds", options.rounds, 1, MAX_ROUNDS)?;
    within("number of forwarders", forwarders.len(), 1, MAX_PROGRAMS)?;
    within("number of readers", readers.len(), 0, MAX_PROGRAMS)?;
    let cores = forwarders.iter().map(|forwarder| u64::from(forwarder.cores)).sum::<u64>();
    within("cores of all programs", cores + readers.len() as u64, 1, MAX_CORES)?;
    readers.iter().try_for_each(RandomReader::check)?;
    forwarders.iter().try_for_each(|forwarder| {
        forwarder.check()?;
        let rounds = u64::from(options.warm_up_rounds) + u64::from(options.rounds);
        let packets = u64::from(forwarder.cores) * u64::from(forwarder.descriptors) * rounds;
        let advice =
            format_args!("lower cores, descriptors or rounds to at most {MAX_PACKETS} packets");
        OptionsError::check(packets <= MAX_PACKETS, "packets", &packets, &advice)
    })
}
