//! Kinds of failures of operations, and when each is allowed. A failure that no promise allows in a
//! round is a violation.

use rackpool_client::{AccessError, DaemonError, RackId};

/// How an operation has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trouble {
    /// The rack does not answer.
    Unavailable(u16),
    /// The rack's daemon died during an atomic operation, which may or may not have been executed.
    Indeterminate(u16),
    /// The metadata server does not answer.
    Metadata,
    /// Any other error. This includes a busy page and an own daemon that does not answer: both are
    /// reported after half a minute at the earliest, which is longer than any round.
    Other,
}

/// All kinds in a pool of two racks.
pub const TROUBLES: [Trouble; 6] = [
    Trouble::Unavailable(0),
    Trouble::Unavailable(1),
    Trouble::Indeterminate(0),
    Trouble::Indeterminate(1),
    Trouble::Metadata,
    Trouble::Other,
];

impl From<&AccessError> for Trouble {
    fn from(error: &AccessError) -> Self {
        match error {
            AccessError::RackUnavailable(RackId(rack @ 0..2)) => Self::Unavailable(*rack),
            AccessError::Indeterminate(RackId(rack @ 0..2)) => Self::Indeterminate(*rack),
            AccessError::Daemon(DaemonError::MetadataUnreachable) => Self::Metadata,
            _ => Self::Other,
        }
    }
}

/// Processes whose absence exceeded the time after which others may notice it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Absent {
    /// The daemons of the racks.
    pub racks: [bool; 2],
    /// The metadata server.
    pub metadata: bool,
}

impl Absent {
    /// Returns true if the promises allow an operation of a client of rack `own` to fail like this:
    /// only an absent process may fail to answer. An atomic operation may also be indeterminate if
    /// its own rack was absent until the other rack cut it off.
    #[must_use]
    pub fn allows(self, own: u16, trouble: Trouble) -> bool {
        let is_away = |rack: u16| self.racks.get(usize::from(rack)).is_some_and(|away| *away);
        match trouble {
            Trouble::Unavailable(rack) => is_away(rack),
            Trouble::Indeterminate(rack) => is_away(rack) || is_away(own),
            Trouble::Metadata => self.metadata,
            Trouble::Other => false,
        }
    }
}

/// The racks that the metadata server's log reports dead because their heartbeats did not come,
/// whether they were hit or not.
#[must_use]
pub fn taken_for_dead(log: &str) -> [bool; 2] {
    [0, 1].map(|rack| {
        let said = format!("{} sent no heartbeat within its lease", RackId(rack));
        log.lines().any(|line| line.contains(&said))
    })
}

/// Returns true if each rack that was taken for dead has joined since.
#[must_use]
pub fn are_back(log: &str) -> bool {
    [0, 1].into_iter().map(RackId).all(|rack| {
        let [dead, joined] = ["sent no heartbeat within its lease", "joined"]
            .map(|what| log.rfind(&format!("{rack} {what}")));
        dead.is_none() || joined > dead
    })
}

#[cfg(test)]
mod tests {
    use rackpool_client::GlobalAddr;

    use super::*;

    #[test]
    fn only_who_is_away_may_fail_to_answer() {
        let one = Absent { racks: [false, true], metadata: false };
        let allowed = |own| TROUBLES.map(|trouble| one.allows(own, trouble));
        assert_eq!(allowed(0), [false, true, false, true, false, false]);
        assert_eq!(allowed(1), [false, true, true, true, false, false]);
        let all = Absent { racks: [true; 2], metadata: true };
        assert_eq!(
            TROUBLES.map(|trouble| all.allows(0, trouble)),
            [true, true, true, true, true, false]
        );
        assert!(TROUBLES.iter().all(|trouble| !Absent::default().allows(1, *trouble)));
    }

    #[test]
    fn errors_are_told_apart() {
        let of = |error: AccessError| Trouble::from(&error);
        assert_eq!(of(AccessError::RackUnavailable(RackId(1))), Trouble::Unavailable(1));
        assert_eq!(of(AccessError::Indeterminate(RackId(0))), Trouble::Indeterminate(0));
        assert_eq!(of(DaemonError::MetadataUnreachable.into()), Trouble::Metadata);
        for other in [
            AccessError::RackUnavailable(RackId(7)),
            AccessError::PageBusy(GlobalAddr::NULL, RackId(0)),
            AccessError::PageLost(GlobalAddr::NULL),
            DaemonError::Unavailable.into(),
            DaemonError::Forgotten.into(),
        ] {
            assert_eq!(of(other), Trouble::Other);
        }
    }

    #[test]
    fn the_metadata_server_says_whose_lease_has_run_out() {
        let log = "INFO rack 0 joined\nWARN rack 1 sent no heartbeat within its lease: its lease has expired\n";
        assert_eq!(taken_for_dead(log), [false, true]);
        assert_eq!(taken_for_dead(""), [false, false]);
        assert!(!are_back(log), "rack 1 is not");
        assert!(are_back(&format!("{log}INFO rack 1 joined: incarnation 3\n")));
        assert!(are_back(""));
    }
}
