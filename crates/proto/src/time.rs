use core::fmt;
use core::time::Duration;

/// A moment on the clock of whoever drives a machine: nanoseconds since a start of its choice.
/// Times of one machine never run backwards; times of two machines can't be compared.
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

    /// The end of time, 584 years after its start.
    pub const END: Self = Self(u64::MAX);

    /// The moment `nanos` nanoseconds after the start.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the start.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The moment `wait` later; the end of time when that is past it (in 584 years).
    #[must_use]
    pub fn after(self, wait: Duration) -> Self {
        let nanos = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(nanos))
    }

    /// The time since `earlier`; zero when that lies ahead.
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
