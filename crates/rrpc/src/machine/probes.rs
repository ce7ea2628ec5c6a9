use std::time::Duration;

use rackpool_fabric::EndpointId;

use super::RpcMachine;
use super::peer::{Buffer, Due, Open, Purpose, State};
use crate::calibration::{Calibration, LONGEST};
use crate::{CallEvent, Mode, Overdue, message};

/// Delay before the next calibration after one that measured too little; doubled each time.
const AGAIN: Duration = Duration::from_secs(4);
/// The number of such repetitions; the last begins about four minutes after the first.
const MOST_VAIN: u32 = 6;
/// The number of times that the duration of a calibration is doubled, up to 8 s: the network may be
/// slow, and not the peer busy.
const MOST_DOUBLED: u32 = 3;

/// Calibration of the modes.
impl RpcMachine {
    /// Begins a calibration.
    pub(super) fn calibrate(&mut self, endpoint: EndpointId) {
        let Some(peer) = self.peers.get_mut(&endpoint) else { return };
        // Probes must leave room for requests.
        let most = u32::try_from(self.arena.bytes() / 2).unwrap_or(u32::MAX);
        let longest = LONGEST * 2_u32.pow(peer.vain.min(MOST_DOUBLED));
        peer.calibration = Some(Calibration::new(self.now + longest, most));
        peer.again = None;
        self.probe(endpoint);
    }

    /// Sends the next probe, or ends the calibration.
    pub(super) fn probe(&mut self, endpoint: EndpointId) {
        loop {
            let Some(peer) = self.peers.get_mut(&endpoint) else { return };
            let Some(calibration) = &mut peer.calibration else { return };
            let deadline = calibration.until();
            let Some(probe) = calibration.next(self.now) else { return self.calibrated(endpoint) };
            let buffer = match probe.mode {
                // The block for data to be read is taken when the answer has arrived.
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

    /// A probe has been answered.
    pub(super) fn measured(&mut self, endpoint: EndpointId) {
        let Some(peer) = self.peers.get_mut(&endpoint) else { return };
        if let Some(calibration) = &mut peer.calibration {
            calibration.measured(self.now);
        }
        self.probe(endpoint);
    }

    /// The peer has no room for the answer to a probe.
    pub(super) fn probe_refused(&mut self, endpoint: EndpointId) {
        let peer = self.peers.get_mut(&endpoint);
        if let Some(calibration) = peer.and_then(|peer| peer.calibration.as_mut()) {
            calibration.refused();
        }
        self.probe(endpoint);
    }

    /// Ends a calibration: sets the thresholds, or schedules the next attempt.
    pub(super) fn calibrated(&mut self, endpoint: EndpointId) {
        let Some(peer) = self.peers.get_mut(&endpoint) else { return };
        let Some(calibration) = peer.calibration.take() else { return };
        if let Some(thresholds) = calibration.thresholds() {
            peer.thresholds = thresholds;
            self.tell(CallEvent::Calibrated { endpoint, thresholds });
        } else if !peer.is_ending && peer.vain < MOST_VAIN {
            let at = self.now + AGAIN * 2_u32.pow(peer.vain);
            peer.vain += 1;
            peer.again = Some(at);
            self.deadlines.insert((at, Due::Measure(endpoint)));
        }
    }
}
