//! The reference for requests: the fewest fabric operations that transfer the bytes.

use rackpool_fabric::{EndpointId, Event, Operation, RemoteRegion, Transfer, WorkRequest};
use rackpool_rrpc::Mode;

use super::end::{Caller, End};
use crate::measure::time_each;

/// Bytes of the shortest message that specifies a request.
const REQUEST: usize = 24;
/// Bytes that identify the request to which the following data belongs. With them a message has the
/// length of one of `rackpool-rrpc`. Over TCP the receiver acknowledges at once a segment that is
/// longer than the two before, which costs 1 us, so with alternating lengths one side would pay for
/// the other.
const REPLY_HEADER: usize = 16;

/// The first byte of such a message; no message of `rackpool-rrpc` begins with it.
const RAW: u8 = 0xff;

/// The mode of a message without an answer.
const RELEASE: u8 = 3;
/// The mode of a request whose answer comes in packets.
const PACKETS: u8 = 4;
/// Bytes of data in a packet: eRPC's, whose MTU is 1 KiB on the paper's Ethernet.
const PACKET: u32 = 1024;
/// Packets that are sent at once.
const BURST: u32 = 16;

/// Answers a raw message; returns false for any other event.
pub(super) fn answer(end: &mut End, event: &Event) -> bool {
    let Event::Message { endpoint, bytes } = event else { return false };
    let Some([RAW, mode, _, _, a, b, c, d]) = bytes.first_chunk() else { return false };
    let len = u32::from_le_bytes([*a, *b, *c, *d]);
    let reply = match *mode {
        RELEASE => return true,
        PACKETS => {
            answer_in_packets(end, *endpoint, len);
            return true;
        }
        0 => {
            let mut reply = vec![0; REPLY_HEADER + len as usize];
            end.frames.read(0, &mut reply[REPLY_HEADER..]).expect("within the frames");
            reply
        }
        1 => vec![0; REQUEST],
        _ => {
            let transfer = Transfer {
                local: end.frames_region,
                local_offset: 0,
                remote: RemoteRegion(1),
                remote_offset: 0,
                len,
            };
            // An id that requests do not use.
            let request = WorkRequest { id: 0, operation: Operation::Write(transfer) };
            end.fabric.post(*endpoint, &[request]).expect("one is under way");
            vec![0; REQUEST]
        }
    };
    end.fabric.send(*endpoint, reply).expect("one is under way");
    end.fabric.flush(*endpoint);
    true
}

/// Sends the data in packets, a message each.
fn answer_in_packets(end: &mut End, endpoint: EndpointId, len: u32) {
    let mut sent = 0;
    while sent < len {
        let part = PACKET.min(len - sent);
        let mut packet = vec![0; REPLY_HEADER + part as usize];
        end.frames.read(sent.into(), &mut packet[REPLY_HEADER..]).expect("within the frames");
        end.fabric.send(endpoint, packet).expect("there is room for the packets of an answer");
        sent += part;
        if sent.is_multiple_of(BURST * PACKET) {
            end.fabric.flush(endpoint);
        }
    }
    end.fabric.flush(endpoint);
}

impl Caller {
    /// Nanoseconds of a request whose answer comes in packets of 1 KiB, as eRPC sends it.
    pub(crate) fn packet_calls(&mut self, len: u32, count: usize) -> f64 {
        let mut request = vec![0; REQUEST];
        request[..2].copy_from_slice(&[RAW, PACKETS]);
        request[4..8].copy_from_slice(&len.to_le_bytes());
        time_each(count, || {
            for _ in 0..count {
                self.send(request.clone());
                let mut missing = len.div_ceil(PACKET);
                while missing > 0 {
                    self.end.look();
                    let events = self.end.events.drain(..);
                    let is_packet = |event: &Event| match event {
                        Event::Message { bytes, .. } => bytes.len() > REPLY_HEADER,
                        _ => false,
                    };
                    let came = events.filter(is_packet).count();
                    missing -= u32::try_from(came).expect("few").min(missing);
                }
            }
        })
    }

    /// Nanoseconds of the operations of which a mode consists.
    pub(crate) fn raw_calls(&mut self, mode: Mode, len: u32, count: usize) -> f64 {
        time_each(count, || (0..count).for_each(|_| self.raw_call(mode, len)))
    }

    /// Nanoseconds of a one-sided operation.
    pub(super) fn raw_transfers(&mut self, is_read: bool, len: u32, count: usize) -> f64 {
        let operation = self.operation(is_read, len);
        time_each(count, || (0..count).for_each(|_| self.raw_transfer(operation)))
    }

    fn raw_call(&mut self, mode: Mode, len: u32) {
        let kind = match mode {
            Mode::Pure => 0,
            Mode::ThenOneSided => 1,
            Mode::ZeroCopy => 2,
        };
        let mut request = vec![0; REQUEST];
        request[..2].copy_from_slice(&[RAW, kind]);
        request[4..8].copy_from_slice(&len.to_le_bytes());
        self.send(request.clone());
        self.wait(|event| matches!(event, Event::Message { .. }));
        if mode == Mode::ThenOneSided {
            self.raw_transfer(self.operation(true, len));
            // Allows the server to reuse the place.
            request[1] = RELEASE;
            self.send(request);
        }
    }

    fn send(&mut self, message: Vec<u8>) {
        let End { fabric, endpoint, .. } = &mut self.end;
        fabric.send(*endpoint, message).expect("one is under way");
        fabric.flush(*endpoint);
    }

    fn raw_transfer(&mut self, operation: Operation) {
        let request = WorkRequest { id: 0, operation };
        let End { fabric, endpoint, .. } = &mut self.end;
        fabric.post(*endpoint, &[request]).expect("one is under way");
        fabric.flush(*endpoint);
        self.wait(|event| matches!(event, Event::Completed { result: Ok(()), .. }));
    }

    fn wait(&mut self, wanted: impl Fn(&Event) -> bool) {
        loop {
            self.end.look();
            for event in self.end.events.drain(..) {
                assert!(!matches!(event, Event::Disconnected { .. }), "{event:?}");
                if wanted(&event) {
                    return;
                }
            }
        }
    }
}
