use std::time::Duration;

use rackpool_fabric::EndpointId;

use super::RpcMachine;
use super::peer::{Buffer, Due, Open, Purpose, State};
use crate::calibration::{Calibration, LONGEST};
use crate::{CallEvent, Mode, Overdue, message};

/// A peer whose probes took too long is measured again after this, and after twice as long each
/// time,
const AGAIN: Duration = Duration::from_secs(4);
/// so often: in four minutes, then.
const MOST_VAIN: u32 = 6;
/// Each time it may take twice as long as before, up to 2^3 s: the peer may not have been busy, but
/// the way to it slow.
const MOST_DOUBLED: u32 = 3;

/// Measuring the modes.
impl RpcMachine {
    /// Begins to measure.
    pub(super) fn calibrate(&mut self, endpoint: EndpointId) {
        let Some(peer) = self.peers.get_mut(&endpoint) else { return };
        // What is probed must not take the room of what is asked for.
        let most = u32::try_from(self.arena.bytes() / 2).unwrap_or(u32::MAX);
        let longest = LONGEST * 2_u32.pow(peer.vain.min(MOST_DOUBLED));
        peer.calibration = Some(Calibration::new(self.now + longest, most));
        peer.again = None;
        self.probe(endpoint);
    }

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
