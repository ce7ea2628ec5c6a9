use rackpool_client::RackId;
use rackpool_kv::Version;

use crate::layout::header::RACKS;

/// The racks that have replicas of one version of an object: the value of its registration.
///
/// ```text
/// 0         12       14         16             48
/// +---------+--------+----------+--------------+
/// | version | closed | last + 1 | bits of the  |
/// |         |        | or 0     | racks        |
/// +---------+--------+----------+--------------+
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Registration {
    /// The version of the entry in the object table.
    pub(crate) version: Version,
    /// Set by a delete: no replica is registered any more.
    pub(crate) is_closed: bool,
    /// The last one of the racks that brought the object along a chain.
    pub(crate) last: Option<RackId>,
    racks: [u8; RACK_BYTES],
}

const RACK_BYTES: usize = RACKS as usize / 8;

impl Registration {
    pub(crate) const VALUE: usize = 16 + RACK_BYTES;

    /// A registration without replicas.
    pub(crate) const fn new(version: Version) -> Self {
        Self { version, is_closed: false, last: None, racks: [0; RACK_BYTES] }
    }

    pub(crate) fn with(mut self, rack: RackId) -> Self {
        if let Some(byte) = self.racks.get_mut(usize::from(rack.0 / 8)) {
            *byte |= 1 << (rack.0 % 8);
        }
        self
    }

    /// As [`with`](Self::with), for a rack that joins the chain.
    pub(crate) fn with_last(self, rack: RackId) -> Self {
        Self { last: Some(rack), ..self.with(rack) }
    }

    pub(crate) const fn closed(mut self) -> Self {
        self.is_closed = true;
        self
    }

    /// The racks that have replicas.
    pub(crate) fn racks(&self) -> impl Iterator<Item = RackId> {
        let bits = self.racks;
        let has = move |rack: &u16| bits[usize::from(rack / 8)] >> (rack % 8) & 1 == 1;
        (0..RACKS).filter(has).map(RackId)
    }

    pub(crate) fn encode(&self) -> [u8; Self::VALUE] {
        let mut value = [0; Self::VALUE];
        value[..12].copy_from_slice(&self.version.to_bytes());
        value[12] = self.is_closed.into();
        let last = self.last.map_or(0, |rack| rack.0.saturating_add(1));
        value[14..16].copy_from_slice(&last.to_le_bytes());
        value[16..].copy_from_slice(&self.racks);
        value
    }

    /// `None` for bytes that no release writes.
    pub(crate) fn decode(value: &[u8]) -> Option<Self> {
        let value: &[u8; Self::VALUE] = value.try_into().ok()?;
        let (version, rest) = value.split_first_chunk()?;
        let (flags, racks) = rest.split_first_chunk::<4>()?;
        let last = u16::from_le_bytes([flags[2], flags[3]]).checked_sub(1);
        Some(Self {
            version: Version::from_bytes(*version),
            is_closed: flags[0] == 1,
            last: last.filter(|rack| *rack < RACKS).map(RackId),
            racks: racks.try_into().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registration_comes_back_as_it_went() {
        let (racks, version) = ([0, 7, 8, 255].map(RackId), Version::from_bytes([9; 12]));
        let registration = racks.into_iter().fold(Registration::new(version), Registration::with);
        let ends = [RackId(0), RackId(255)].map(|rack| registration.with_last(rack));
        assert_eq!(ends.map(|last| last.last), [Some(RackId(0)), Some(RackId(255))]);
        for registration in [registration, registration.closed(), ends[0], ends[1].closed()] {
            assert_eq!(Registration::decode(&registration.encode()), Some(registration));
            assert_eq!(registration.racks().collect::<Vec<_>>(), racks);
        }
        assert_eq!(Registration::decode(&[0; 47]), None);
        let mut no_rack = registration.encode();
        no_rack[14..16].copy_from_slice(&257_u16.to_le_bytes());
        assert_eq!(Registration::decode(&no_rack), Some(registration));
    }
}
