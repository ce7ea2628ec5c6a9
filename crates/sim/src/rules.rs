//! The size of the world, and the parameters of its machines.

use std::time::Duration;

use rackpool_model::{HeatRules, PageSize};
use rackpool_proto::exchange::ExchangeRules;
use rackpool_proto::lease::LeaseRules;
use rackpool_proto::lock::LockRules;
use rackpool_proto::publication::RecoveryRules;
use rackpool_proto::rack::{LineRules, RackRules};
use rackpool_proto::share::ShareRules;
use rackpool_proto::swap::SwapRules;

pub(crate) const RACKS: usize = 3;
pub(crate) const FRAMES: u32 = 6;
/// Frames of each rack with pages that clients use; the others begin free.
pub(crate) const USED: u32 = 3;
/// Words in a page.
pub(crate) const WORDS: usize = 2;
pub(crate) const CLIENTS: usize = 6;

pub(crate) const MICRO: u64 = 1_000;
pub(crate) const MILLI: u64 = 1_000_000;

/// Clients and faults stop after this.
pub(crate) const STORM: u64 = 3_400 * MILLI;
/// After that the world must be at rest within this time.
pub(crate) const CALM: u64 = 4_000 * MILLI;
/// The limit of events, which shows message storms: the busiest worlds need a fifth of it.
pub(crate) const MOST_EVENTS: u64 = 200_000;
/// The timeout of a client's operation.
pub(crate) const CLIENT_TIMEOUT: u64 = 500 * MILLI;
/// The length of a lease on a true clock.
pub(crate) const LEASE_NS: u64 = 150 * MILLI;
/// How long requests of an ended daemon may be executed after the start of the next one, on any
/// rack's clock.
pub(crate) const EARLIER_NS: u64 = LEASE_NS;
/// How long a request of another rack waits for a page that moves.
pub(crate) const LOOKUP_TIMEOUT: u64 = 37 * MILLI;
/// The most by which a clock differs from true time, in millionths.
pub(crate) const SKEW_PPM: u64 = 5_000;
/// The longest flight of a one-sided operation.
pub(crate) const FLIGHT: u64 = 60 * MILLI;

/// The time between two attempts of a daemon to reach the metadata server.
pub(crate) const LINK_RETRY: u64 = 20 * MILLI;
/// The length of a membership without a heartbeat. It expires for dead and disconnected racks, and
/// seldom for others.
pub(crate) const MEMBERSHIP_LEASE: Duration = ms(400);

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

pub(crate) const RACK: RackRules = RackRules {
    swap: SWAP,
    lease: LEASE,
    share: SHARE,
    shares: true,
    heat: HEAT,
    lines: LINES,
    barrier_delay: ms(1),
    exchange: EXCHANGE,
    recovery: RECOVERY,
    lock: LockRules::DEFAULT,
};

const EXCHANGE: ExchangeRules =
    ExchangeRules { page_size: PageSize::DEFAULT, timeout: ms(150), defer: ms(37), again: ms(8) };

const RECOVERY: RecoveryRules = RecoveryRules {
    page_size: PageSize::DEFAULT,
    again: ms(12),
    earlier_requests: Duration::from_nanos(EARLIER_NS),
};

/// A line is a word. The limit of forwarded writes is reached now and then.
const LINES: LineRules = LineRules { in_page: 2, forwarded: 2, sent: WORDS };
const _: () = assert!(LINES.in_page as usize == WORDS);

pub(crate) const SWAP: SwapRules = SwapRules {
    grace: ms(60),
    server_grace: ms(150),
    retry: ms(5),
    pause: ms(30),
    want: ms(200),
    parallel: 4,
    wants: 16,
};

const LEASE: LeaseRules = LeaseRules {
    lease: Duration::from_nanos(LEASE_NS),
    copy: ms(80),
    // Two clocks differ most if one is fast and the other slow.
    drift_ppm: 10_200,
    copy_drift_ppm: 10_200,
    flight: ms(62),
    grace: ms(25),
    retry: ms(4),
};

const SHARE: ShareRules = ShareRules {
    rest: ms(10),
    longest_rest: ms(100),
    worth: ms(60),
    idle: ms(120),
    shared: 2,
    copies: 2,
    pause: ms(40),
    retry: ms(2),
};

const HEAT: HeatRules = HeatRules {
    lifetime: Duration::from_secs(1),
    decay: 2.0,
    hot: 3.0,
    read_hot: 0.9,
    rest: ms(40),
};
