use core::fmt;
use core::time::Duration;

/// A point in time on the clock of a machine's shell, in nanoseconds since a start that the shell
/// chooses. Times of one machine never run backwards; times of two machines can't be compared.
///
/// ```
/// use core::time::Duration;
/// use rackpool_proto::Time;
/// let later = Time::ZERO.after(Duration::from_millis(3));
/// assert_eq!(later.since(Time::ZERO), Duration::from_millis(3));
/// assert_eq!(Time::ZERO.since(later), Duration::ZERO);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

impl Time {
    /// The start of the clock.
    pub const ZERO: Self = Self(0);

    /// The latest time, 584 years after the start.
    pub const END: Self = Self(u64::MAX);

    /// Returns the time `nanos` nanoseconds after the start.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Returns the nanoseconds since the start.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the time `wait` later, at most [`Time::END`].
    #[must_use]
    pub fn after(self, wait: Duration) -> Self {
        let nanos = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(nanos))
    }

    /// Returns the time since `earlier`; zero if `earlier` is later than `self`.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", Duration::from_nanos(self.0))
    }
}
