use crate::FabricError;
use crate::handshake::{Reader, encode_regions};

/// One of the two connections of an endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ChannelNumber {
    /// Channel 1: the initiator posts, the acceptor serves.
    #[default]
    First,
    /// Channel 2: the acceptor posts, the initiator serves.
    Second,
}

/// The content of an offer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Offer {
    pub(super) channel: ChannelNumber,
    /// Equal on both channels of an endpoint; chosen at random by the initiator.
    pub(super) session: [u8; 16],
    /// Length of each exported region, in bytes.
    pub(super) regions: Vec<u64>,
}

impl ChannelNumber {
    pub(super) const BOTH: [Self; 2] = [Self::First, Self::Second];
}

impl Offer {
    pub(super) fn encode(&self) -> Vec<u8> {
        let channel = match self.channel {
            ChannelNumber::First => 1,
            ChannelNumber::Second => 2,
        };
        [&[channel, 0, 0, 0][..], &self.session, &encode_regions(&self.regions)].concat()
    }

    pub(super) fn decode(content: &[u8]) -> Result<Self, FabricError> {
        let mut reader = Reader::new(content);
        let channel = match reader.take()? {
            [1] => ChannelNumber::First,
            [2] => ChannelNumber::Second,
            [number] => {
                return Err(FabricError::misbehaved(format!(
                    "it opens an unknown channel {number}"
                )));
            }
        };
        reader.zeroes::<3>()?;
        let offer = Self { channel, session: reader.take()?, regions: reader.regions()? };
        reader.end()?;
        Ok(offer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handshake::MAX_EXPORTS;

    #[test]
    fn offers_come_back_and_broken_ones_are_errors() {
        for regions in [vec![4096, 1 << 40], vec![u64::MAX; MAX_EXPORTS]] {
            let offer = Offer { channel: ChannelNumber::Second, session: [3; 16], regions };
            let good = offer.encode();
            assert_eq!(Offer::decode(&good), Ok(offer));
            for len in 0..good.len() {
                assert!(Offer::decode(&good[..len]).is_err());
            }
            assert!(Offer::decode(&[&good[..], &[0]].concat()).is_err());
            for (at, value) in [(0, 0), (0, 3), (1, 1), (20, 0), (20, 17), (23, 255)] {
                let mut bad = good.clone();
                bad[at] = value;
                assert!(Offer::decode(&bad).is_err(), "{value} at {at}");
            }
        }
    }
}
