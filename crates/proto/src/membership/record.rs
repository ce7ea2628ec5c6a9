use alloc::format;
use alloc::string::String;
use core::time::Duration;

use rackpool_model::{Incarnation, MemoryId, RackId};
use rackpool_wire::metadata::{RackAnnouncement, Refusal};

/// What is known of a rack for good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RackRecord {
    /// The memory it serves.
    pub memory: MemoryId,
    /// The life of its daemon that registered last.
    pub incarnation: Incarnation,
    /// The path of the daemon's Unix socket.
    pub control_path: String,
    /// Where other racks find it.
    pub fabric_address: String,
    /// Whether that daemon has given its lease back.
    pub left: bool,
}

impl RackRecord {
    /// The record of a daemon that has just been admitted.
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

    /// Whether the daemon may take the rack over from the one this record is about, of whose lease
    /// `lease_left` is left. The same memory with a larger incarnation always may: a lock of the
    /// kernel on the memory makes sure that the older daemon is dead.
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

    /// Whether this life is the registered one.
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
