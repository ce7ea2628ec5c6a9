use std::ptr::null_mut;

use rackpool_fabric::DeviceCounters;

use super::abi;
use super::memory::Slice;

/// Memory of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Remote {
    pub(crate) address: u64,
    pub(crate) key: u32,
}

/// The operation of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// RDMA read from the peer's memory.
    Read(Remote),
    /// RDMA write to the peer's memory; with `after_reads`, fenced behind the earlier reads.
    Write { to: Remote, after_reads: bool },
    /// RDMA write that also completes a receive of the peer and delivers the immediate value to it.
    WriteWithImmediate { to: Remote, immediate: u32 },
    /// Send of at least 0 bytes to the buffer of the peer's next receive, with the immediate value.
    SendWithImmediate(u32),
}

/// A work request of the send queue.
#[derive(Clone, Copy)]
pub(crate) struct Request<'a> {
    pub(crate) id: u64,
    pub(crate) action: Action,
    pub(crate) local: Option<Slice<'a>>,
    /// True if the request is signalled. The last request of a list always is.
    pub(crate) signaled: bool,
}

/// Work requests in the form of the library: a chain that is posted with one doorbell.
pub(super) struct SendList {
    /// The most bytes that a request can carry inline.
    inline: u32,
    entries: Vec<(abi::SendWr, abi::Sge)>,
}

impl SendList {
    pub(super) const fn new(inline: u32) -> Self {
        Self { inline, entries: Vec::new() }
    }

    pub(super) fn clear(&mut self) {
        self.entries.clear();
    }

    pub(super) fn push(&mut self, request: Request<'_>) {
        let (opcode, remote, imm_data, mut send_flags) = match request.action {
            Action::Read(from) => (abi::WR_RDMA_READ, Some(from), 0, 0),
            Action::Write { to, after_reads } => {
                let fence = if after_reads { abi::SEND_FENCE } else { 0 };
                (abi::WR_RDMA_WRITE, Some(to), 0, fence)
            }
            Action::WriteWithImmediate { to, immediate } => {
                (abi::WR_RDMA_WRITE_WITH_IMM, Some(to), immediate, 0)
            }
            Action::SendWithImmediate(immediate) => (abi::WR_SEND_WITH_IMM, None, immediate, 0),
        };
        let len = request.local.map_or(0, |local| local.len);
        if len <= self.inline && len > 0 && opcode != abi::WR_RDMA_READ {
            send_flags |= abi::SEND_INLINE;
        }
        if request.signaled {
            send_flags |= abi::SEND_SIGNALED;
        }
        let remote = remote.unwrap_or(Remote { address: 0, key: 0 });
        let wr = abi::SendWr {
            wr_id: request.id,
            next: null_mut(),
            sg_list: null_mut(),
            num_sge: request.local.is_some().into(),
            opcode,
            send_flags,
            imm_data: imm_data.to_be(),
            remote_addr: remote.address,
            rkey: remote.key,
            unused: [0; 19],
        };
        let nothing = abi::Sge { addr: 0, length: 0, lkey: 0 };
        self.entries.push((wr, request.local.map_or(nothing, sge)));
    }

    /// Links the requests into a chain and signals the last one, whose completion covers all before
    /// it. Returns the first request, or null if the list is empty, and the counts of what the
    /// chain requests from the device. The pointer is valid until the list is changed.
    pub(super) fn link(&mut self) -> (*mut abi::SendWr, DeviceCounters) {
        if let Some((last, _)) = self.entries.last_mut() {
            last.send_flags |= abi::SEND_SIGNALED;
        }
        let (mut next, mut asked) = (null_mut(), DeviceCounters::default());
        for (wr, sge) in self.entries.iter_mut().rev() {
            wr.next = next;
            wr.sg_list = sge;
            next = wr;
            asked.requests += 1;
            asked.signalled += u64::from(wr.send_flags & abi::SEND_SIGNALED != 0);
            asked.inlined += u64::from(wr.send_flags & abi::SEND_INLINE != 0);
        }
        asked.doorbells = u64::from(!next.is_null());
        (next, asked)
    }
}

pub(super) const fn sge(slice: Slice<'_>) -> abi::Sge {
    abi::Sge { addr: slice.address, length: slice.len, lkey: slice.key }
}

#[cfg(test)]
mod tests {
    use super::*;

    const THERE: Remote = Remote { address: 0x4000, key: 5 };
    const INLINE: u32 = 220;

    fn request(id: u64, action: Action, len: u32, signaled: bool) -> Request<'static> {
        let local = (len > 0).then(|| Slice::unmapped(0x1000 + id, len));
        Request { id, action, local, signaled }
    }

    fn flags(list: &SendList, flag: u32) -> Vec<u64> {
        let has = |(wr, _): &&(abi::SendWr, _)| wr.send_flags & flag != 0;
        list.entries.iter().filter(has).map(|(wr, _)| wr.wr_id).collect()
    }

    #[test]
    fn a_list_is_one_chain_and_its_last_request_is_signalled() {
        let mut list = SendList::new(INLINE);
        let write = Action::Write { to: THERE, after_reads: false };
        for id in 0..5 {
            list.push(request(id, write, 4096, id == 1));
        }
        let (first, asked) = list.link();
        let expected =
            DeviceCounters { requests: 5, doorbells: 1, signalled: 2, ..DeviceCounters::default() };
        assert_eq!(asked, expected);
        assert_eq!(flags(&list, abi::SEND_SIGNALED), [1, 4]);
        // Each request points to its successor, the last one to null, and each to its own
        // scatter-gather entry.
        let places: Vec<_> =
            list.entries.iter_mut().map(|(wr, sge)| (&raw mut *wr, &raw mut *sge)).collect();
        assert_eq!(first, places[0].0);
        for (at, (wr, sge)) in list.entries.iter().enumerate() {
            assert_eq!(wr.next, places.get(at + 1).map_or(null_mut(), |(wr, _)| *wr));
            assert_eq!(wr.sg_list, places[at].1);
            assert_eq!((wr.num_sge, sge.addr, sge.length), (1, 0x1000 + at as u64, 4096));
        }
        list.clear();
        let (first, asked) = list.link();
        assert_eq!(
            (first, asked),
            (null_mut(), DeviceCounters::default()),
            "nothing rings for nothing"
        );
    }

    #[test]
    fn a_last_request_that_asks_for_its_completion_gets_one() {
        let mut list = SendList::new(INLINE);
        list.push(request(0, Action::Read(THERE), 8, false));
        list.push(request(1, Action::Read(THERE), 8, true));
        assert_eq!(list.link().1.signalled, 1);
        assert_eq!(flags(&list, abi::SEND_SIGNALED), [1]);
    }

    #[test]
    fn what_is_sent_and_fits_goes_within_its_request() {
        let write = Action::Write { to: THERE, after_reads: true };
        let large = Action::WriteWithImmediate { to: THERE, immediate: 1 };
        let all = [
            (write, 1),
            (write, INLINE),
            (write, INLINE + 1),
            (Action::SendWithImmediate(2), INLINE),
            (Action::SendWithImmediate(2), INLINE + 1),
            (large, 2049),
            // No inline flag for an empty send: it carries no bytes.
            (Action::SendWithImmediate(3), 0),
            (Action::Read(THERE), 8),
        ];
        for (inline, expected) in [(INLINE, &[0, 1, 3][..]), (0, &[])] {
            let mut list = SendList::new(inline);
            for (id, (action, len)) in (0..).zip(all) {
                list.push(request(id, action, len, false));
            }
            let (_, asked) = list.link();
            assert_eq!(flags(&list, abi::SEND_INLINE), expected, "of {inline} B");
            assert_eq!(asked.inlined, expected.len() as u64);
            assert_eq!(flags(&list, abi::SEND_FENCE), [0, 1, 2]);
        }
    }
}
