//! The conformance suite: the properties of every provider, as functions that panic on a violation.
//!
//! A provider's tests implement [`Factory`] and pass it to
//! [`conformance_tests!`](crate::conformance_tests).

pub mod decorated;
pub mod endings;
pub mod fault;
mod held;
pub mod losses;
pub mod memory;
pub mod messages;
pub mod pair;
pub mod peer;
pub mod rounds;
pub mod sleeping;
pub mod throttle;
pub mod transfers;

use std::sync::Arc;
use std::time::Duration;

use rackpool_model::{Incarnation, RackId};

use crate::{Fabric, MemoryRegion};

/// Creates the fabrics of one provider, all on this host.
pub trait Factory: Sync {
    /// Starts a fabric that exports `frames_len` zeroed bytes as its only region. A provider that
    /// models a network uses `hardware`; others ignore it.
    fn start(&self, rack: RackId, frames_len: u64, hardware: Hardware) -> Node {
        self.start_incarnation((rack, Incarnation(1)), frames_len, hardware)
    }

    /// As `start`, for one of several incarnations of a rack.
    fn start_incarnation(
        &self,
        rack: (RackId, Incarnation),
        frames_len: u64,
        hardware: Hardware,
    ) -> Node;

    /// Creates memory that can be registered.
    fn memory(&self, len: u64) -> Arc<dyn MemoryRegion>;

    /// An address of this provider without a listener.
    fn nowhere(&self) -> String;

    /// Returns true if operations take at least the time given by [`Hardware`].
    fn models_time(&self) -> bool;
}

/// The hardware to be modelled.
#[derive(Clone, Copy, Debug)]
pub struct Hardware {
    /// Time from the last byte on the wire to its arrival.
    pub latency: Duration,
    /// Bandwidth of each direction of a rack, in Gbit/s; greater than 0.
    pub bandwidth_gbps: f64,
}

impl Hardware {
    /// 2 us, 100 Gbit/s.
    pub const FAST: Self = Self { latency: Duration::from_micros(2), bandwidth_gbps: 100.0 };

    /// A latency longer than a test: posted operations stay in flight until it ends.
    pub const STUCK: Self = Self { latency: Duration::from_secs(10), bandwidth_gbps: 100.0 };
}

/// A rack of a test.
pub struct Node {
    /// Its fabric.
    pub fabric: Box<dyn Fabric>,
    /// The memory that it exports, in the rack's own mapping.
    pub frames: Arc<dyn MemoryRegion>,
}

/// Generates a test of every property for one provider: `conformance_tests!(factory expression);`,
/// or with `, if condition` if the provider needs hardware that a host may lack.
#[macro_export]
macro_rules! conformance_tests {
    ($factory:expr) => {
        $crate::conformance_tests!($factory, if true);
    };
    ($factory:expr, if $possible:expr) => {
        $crate::conformance_tests! { @each $factory, $possible,
            transfers: [
                sizes_and_offsets, empty_and_outside_are_refused, lists_are_executed_in_order,
                a_list_is_taken_whole_or_not_at_all, completions_come_exactly_once,
                a_full_queue_says_retry, words_are_moved_whole,
                words_between_ragged_ends_are_moved_whole, regions_leave_when_idle,
                time_is_at_least_what_the_model_says,
                racks_that_read_the_same_rack_share_its_card
            ],
            messages: [
                order_and_content, sizes_that_cannot_be, a_full_ring_says_retry_and_recovers,
                a_message_follows_the_writes_before_it
            ],
            endings: [
                death_of_the_peer_ends_everything, disconnect_tells_both_sides,
                disconnect_fences_the_peer, an_ended_endpoint_is_refused,
                connecting_to_nowhere_fails, addresses_of_others_are_refused,
                a_connect_can_be_given_up, both_sides_may_connect,
                another_incarnation_of_the_peer_ends_the_endpoint
            ],
            losses: [at_every_step, by_death_at_every_step],
            rounds: [
                a_round_rings_once, what_nobody_flushes_goes_with_the_next_poll,
                what_waits_for_a_flush_takes_room, an_end_before_the_flush_is_an_end,
                death_before_the_flush_fails_every_request
            ],
            sleeping: [
                no_wake_up_is_lost, a_full_ring_wakes_its_sender, idle_fabrics_sleep,
                nothing_stays_behind_when_its_sender_sleeps, a_sleeper_is_woken_when_a_round_is_flushed
            ]
        }
    };
    (@each $factory:expr, $possible:expr, $($module:ident: [$($property:ident),*]),*) => {
        $(mod $module {
            $(#[test]
            fn $property() {
                if !$possible {
                    return;
                }
                $crate::conformance::$module::$property(&$factory);
            })*
        })*
    };
}
