use alloc::format;
use alloc::string::String;
use core::time::Duration;

use rackpool_model::{Incarnation, MemoryId, RackId};
use rackpool_wire::metadata::{RackAnnouncement, Refusal};

/// The durable record of a rack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RackRecord {
    /// The memory it serves.
    pub memory: MemoryId,
    /// The incarnation of its daemon that registered last.
    pub incarnation: Incarnation,
    /// The path of the daemon's Unix socket.
    pub control_path: String,
    /// The daemon's address for other racks.
    pub fabric_address: String,
    /// Whether that daemon has stopped regularly.
    pub left: bool,
}

impl RackRecord {
    /// Returns the record of a daemon that has just been admitted.
    #[must_use]
    pub fn of(announced: &RackAnnouncement) -> Self {
        Self {
            memory: announced.memory,
            incarnation: announced.incarnation,
            control_path: announced.control_path.clone(),
            fabric_address: announced.fabric_address.clone(),
            left: false,
        }
    }

    /// Checks whether a daemon may take the rack over from the one in this record, the rest of
    /// whose lease is `lease_left`. The same memory with an incarnation that is not smaller is
    /// always admitted: the kernel's lock on the memory ensures that the older daemon is dead.
    ///
    /// # Errors
    /// The refusal for the daemon.
    pub fn admits(
        &self,
        announced: &RackAnnouncement,
        lease_left: Option<Duration>,
    ) -> Result<(), Refusal> {
        let rack = announced.rack;
        if announced.memory == self.memory {
            if announced.incarnation < self.incarnation {
                return Err(Refusal::Superseded { rack, current: self.incarnation });
            }
            return Ok(());
        }
        if let Some(left) = lease_left {
            let remaining_ms = u64::try_from(left.as_nanos().div_ceil(1_000_000));
            return Err(Refusal::RackTaken {
                rack,
                remaining_ms: remaining_ms.unwrap_or(u64::MAX),
            });
        }
        if announced.incarnation == self.incarnation {
            return Err(Refusal::Invalid(format!(
                "incarnation {} of {rack} was a daemon with other memory: start the daemon again, so that it gets another incarnation",
                announced.incarnation.0
            )));
        }
        Ok(())
    }

    /// Checks that `incarnation` is the registered one.
    ///
    /// # Errors
    /// [`Refusal::Superseded`] for an earlier one, [`Refusal::NotMember`] for a later one.
    pub fn check(&self, rack: RackId, incarnation: Incarnation) -> Result<(), Refusal> {
        match incarnation.cmp(&self.incarnation) {
            core::cmp::Ordering::Less => {
                Err(Refusal::Superseded { rack, current: self.incarnation })
            }
            core::cmp::Ordering::Greater => Err(Refusal::NotMember(rack)),
            core::cmp::Ordering::Equal => Ok(()),
        }
    }
}
