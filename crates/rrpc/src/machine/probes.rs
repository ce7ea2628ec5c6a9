use rackpool_fabric::EndpointId;

use super::Machine;
use super::peer::{Buffer, Open, Purpose, State};
use crate::{Mode, News, Overdue, message};

/// Measuring the modes.
impl Machine {
    /// Sends the next probe, or ends measuring.
    pub(super) fn probe(&mut self, endpoint: EndpointId) {
        loop {
            let Some(peer) = self.peers.get_mut(&endpoint) else { return };
            let Some(calibration) = &mut peer.calibration else { return };
            let deadline = calibration.until();
            let Some(probe) = calibration.next(self.now) else { return self.calibrated(endpoint) };
            let buffer = match probe.mode {
                // The block for what is read is taken when the answer is here.
                Mode::Pure | Mode::ThenOneSided => None,
                Mode::ZeroCopy => match self.arena.take(probe.len) {
                    Some(block) => Some(Buffer::Arena(block)),
                    None => continue,
                },
            };
            let open = Open {
                state: State::Waiting,
                purpose: Purpose::Probe,
                is_exposed: buffer.is_some(),
                buffer,
                most: probe.len,
                deadline,
                overdue: Overdue::GiveUp,
            };
            let inline = if probe.mode == Mode::Pure { probe.len } else { 0 };
            let sent = self.open(endpoint, open, |number, place| {
                message::probe(number, inline, place.as_ref(), probe.len)
            });
            if sent.is_err() {
                self.calibrated(endpoint);
            }
            return;
        }
    }

    /// A probe has its answer.
    pub(super) fn measured(&mut self, endpoint: EndpointId) {
        let Some(peer) = self.peers.get_mut(&endpoint) else { return };
        if let Some(calibration) = &mut peer.calibration {
            calibration.measured(self.now);
        }
        self.probe(endpoint);
    }

    /// The peer has no room for what a probe asks for.
    pub(super) fn probe_refused(&mut self, endpoint: EndpointId) {
        let peer = self.peers.get_mut(&endpoint);
        if let Some(calibration) = peer.and_then(|peer| peer.calibration.as_mut()) {
            calibration.refused();
        }
        self.probe(endpoint);
    }

    /// Measuring has ended.
    pub(super) fn calibrated(&mut self, endpoint: EndpointId) {
        let Some(peer) = self.peers.get_mut(&endpoint) else { return };
        let measured = peer.calibration.take().and_then(|calibration| calibration.thresholds());
        if let Some(thresholds) = measured {
            peer.thresholds = thresholds;
            self.tell(News::Calibrated { endpoint, thresholds });
        }
    }
}
