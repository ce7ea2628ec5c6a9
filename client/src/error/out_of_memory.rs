use std::fmt;

use rackpool_model::RackId;

/// The memory found when no rack had room for an object. Each rack's counts were taken when that
/// rack was asked for this object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutOfMemory {
    /// Requested bytes.
    pub bytes: u64,
    /// Adjacent frames that the object needs in one rack.
    pub frames: u64,
    /// The own rack.
    pub rack: RackId,
    /// Frames of the own rack.
    pub rack_frames: u32,
    /// Free frames of the own rack.
    pub rack_free: u32,
    /// Number of other racks that were asked and have no room.
    pub asked: u16,
    /// Frames of those other racks, in sum.
    pub other_frames: u64,
    /// Free frames of those other racks, in sum.
    pub other_free: u64,
    /// Number of other racks that are down or did not answer.
    pub unreachable: u16,
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bytes, frames, rack, rack_frames, rack_free, .. } = self;
        write!(f, "out of memory: no rack has room for {bytes} B")?;
        if *frames > 1 {
            write!(f, ", {frames} frames side by side")?;
        }
        write!(f, "; {rack} has {rack_free} of {rack_frames} frames free")?;
        let racks = |count: u16| if count == 1 { "rack" } else { "racks" };
        if self.asked > 0 {
            let Self { asked, other_frames, other_free, .. } = self;
            let racks = racks(*asked);
            write!(f, ", the {asked} other {racks} asked {other_free} of {other_frames}")?;
        }
        if self.unreachable > 0 {
            let Self { unreachable, .. } = self;
            write!(f, ", {unreachable} {} can't be reached", racks(*unreachable))?;
        }
        f.write_str(": free objects, or add a rack or memory")
    }
}
