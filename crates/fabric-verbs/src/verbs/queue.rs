use std::io;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use rackpool_fabric::DeviceCounters;

use super::device::{Context, Domain};
use super::memory::Slice;
use super::sends::{Request, SendList, sge};
use super::{abi, check, last_error};

/// Completions taken in one poll.
const AT_ONCE: usize = 32;
/// Inline bytes to request; a device that does not support inline data gets none.
const INLINE_WANTED: u32 = 220;
/// Exponent of the retransmission timeout: 4.096 us times 2 to the power of this, 0.27 s.
const ACK_TIMEOUT: u8 = 16;
/// The number of retransmissions before the connection fails.
const RETRIES: u8 = 7;
/// The number of retries if the peer has no receive posted, which the flow control prevents.
const RECEIVER_RETRIES: u8 = 3;
/// Code of the delay before such a retry: 0.64 ms.
const RECEIVER_TIMER: u8 = 12;
const HOP_LIMIT: u8 = 64;

/// A completion channel, through which completion queues send notifications.
pub(crate) struct Channel {
    raw: NonNull<abi::CompChannel>,
    context: Arc<Context>,
}

// SAFETY: as for the context.
unsafe impl Send for Channel {}
// SAFETY: as for the context.
unsafe impl Sync for Channel {}

impl Channel {
    /// Creates a channel with a non-blocking descriptor.
    pub(crate) fn new(context: &Arc<Context>) -> io::Result<Self> {
        // SAFETY: an open context.
        let raw = unsafe { (context.library.create_comp_channel)(context.raw.as_ptr()) };
        let raw = NonNull::new(raw).ok_or_else(last_error)?;
        let channel = Self { raw, context: Arc::clone(context) };
        let flags = rustix::fs::fcntl_getfl(&channel)?;
        rustix::fs::fcntl_setfl(&channel, flags | rustix::fs::OFlags::NONBLOCK)?;
        Ok(channel)
    }

    /// Takes and acknowledges all pending notifications.
    pub(crate) fn drain(&self) {
        let library = self.context.library;
        loop {
            let (mut queue, mut user) = (null_mut(), null_mut());
            let into = &raw mut queue;
            // SAFETY: a channel of this context, and room for the answer.
            if unsafe { (library.get_cq_event)(self.raw.as_ptr(), into, &raw mut user) } != 0 {
                return;
            }
            // SAFETY: the queue exists: its destruction removes its events from the channel and
            // waits until those that were taken are acknowledged.
            unsafe { (library.ack_cq_events)(queue, 1) };
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the library initialised the channel and does not write the descriptor again.
        let fd = unsafe { self.raw.as_ref() }.fd;
        // SAFETY: the descriptor is open for the life of the channel.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: every queue of the channel keeps a reference to it, so none exists any more.
        unsafe { (self.context.library.destroy_comp_channel)(self.raw.as_ptr()) };
    }
}

/// How a work request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Done,
    /// The queue pair failed before the request was executed.
    Flushed,
    /// The peer did not answer.
    NoAnswer,
    /// Any other error: a number of `ibv_wc_status`.
    Failed(u32),
}

/// The completion of a work request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completion {
    /// The id of the request.
    pub(crate) id: u64,
    pub(crate) status: Status,
    /// Receives only: bytes received.
    pub(crate) len: u32,
    /// Receives only: the immediate value.
    pub(crate) immediate: Option<u32>,
    /// Receives only: true for an RDMA write with immediate, which does not use the receive's
    /// buffer.
    pub(crate) written: bool,
}

/// A completion queue.
pub(crate) struct CompletionQueue {
    raw: NonNull<abi::Cq>,
    channel: Arc<Channel>,
}

// SAFETY: as for the context.
unsafe impl Send for CompletionQueue {}
// SAFETY: as for the context.
unsafe impl Sync for CompletionQueue {}

impl CompletionQueue {
    pub(crate) fn new(channel: &Arc<Channel>, entries: u32) -> io::Result<Self> {
        let context = &channel.context;
        let entries = i32::try_from(entries).unwrap_or(i32::MAX);
        let (create, at) = (context.library.create_cq, context.raw.as_ptr());
        // SAFETY: an open context and one of its channels.
        let raw = unsafe { create(at, entries, null_mut(), channel.raw.as_ptr(), 0) };
        let raw = NonNull::new(raw).ok_or_else(last_error)?;
        Ok(Self { raw, channel: Arc::clone(channel) })
    }

    /// Takes up to 32 completions, without a system call. Returns their number.
    pub(crate) fn poll(&self, into: &mut Vec<Completion>) -> io::Result<usize> {
        let mut found = [const { MaybeUninit::<abi::Wc>::uninit() }; AT_ONCE];
        let Some(poll) = self.ops().poll_cq else { return Err(unsupported()) };
        let space = found.as_mut_ptr().cast();
        #[expect(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "it is 32")]
        let at_once = AT_ONCE as i32;
        // SAFETY: `space` has room for `at_once` completions.
        let count = unsafe { poll(self.raw.as_ptr(), at_once, space) };
        let count = usize::try_from(count).map_err(|_| last_error())?;
        for one in found.iter().take(count) {
            // SAFETY: the library initialised the first `count` entries.
            into.push(Completion::new(unsafe { one.assume_init_ref() }));
        }
        Ok(count)
    }

    /// Requests a notification of the next completion.
    pub(crate) fn notify(&self) -> io::Result<()> {
        let Some(notify) = self.ops().req_notify_cq else { return Err(unsupported()) };
        // SAFETY: a queue of this context.
        check(unsafe { notify(self.raw.as_ptr(), 0) })
    }

    fn ops(&self) -> &abi::ContextOps {
        self.channel.context.ops()
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: every pair of the queue keeps a reference to it, so none exists any more.
        unsafe { (self.channel.context.library.destroy_cq)(self.raw.as_ptr()) };
    }
}

impl Context {
    fn ops(&self) -> &abi::ContextOps {
        // SAFETY: the library initialised it when the device was opened and never changes it.
        unsafe { &(*self.raw.as_ptr()).ops }
    }
}

impl Completion {
    fn new(wc: &abi::Wc) -> Self {
        let with_immediate = wc.wc_flags & abi::WC_WITH_IMM != 0;
        Self {
            id: wc.wr_id,
            status: match wc.status {
                abi::WC_SUCCESS => Status::Done,
                abi::WC_WR_FLUSH_ERR => Status::Flushed,
                abi::WC_RETRY_EXC_ERR | abi::WC_RNR_RETRY_EXC_ERR => Status::NoAnswer,
                other => Status::Failed(other),
            },
            len: wc.byte_len,
            immediate: with_immediate.then(|| u32::from_be(wc.imm_data)),
            written: wc.opcode == abi::WC_RECV_RDMA_WITH_IMM,
        }
    }
}

fn unsupported() -> io::Error {
    io::ErrorKind::Unsupported.into()
}

/// Work requests that a queue pair can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Depth {
    pub(crate) send: u32,
    pub(crate) receive: u32,
}

/// The attributes that connect a queue pair to its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Path {
    pub(crate) port: u8,
    pub(crate) gid_index: u8,
    /// MTU as in the ABI: 1 to 5 for 256 to 4096 B.
    pub(crate) mtu: u8,
    pub(crate) own_psn: u32,
    pub(crate) reads_answered: u8,
    pub(crate) reads_asked: u8,
    pub(crate) peer_pair: u32,
    pub(crate) peer_psn: u32,
    pub(crate) peer_gid: [u8; 16],
    pub(crate) peer_lid: u16,
}

/// A queue pair of the reliable connected type.
pub(crate) struct QueuePair {
    raw: NonNull<abi::Qp>,
    sends: SendList,
    receives: Vec<(abi::RecvWr, abi::Sge)>,
    domain: Arc<Domain>,
    _queue: Arc<CompletionQueue>,
}

// SAFETY: as for the context; the pointers in the lists are set and used within one call.
unsafe impl Send for QueuePair {}

impl QueuePair {
    /// Creates a pair whose sends and receives both complete on `queue`.
    pub(crate) fn new(
        domain: &Arc<Domain>,
        queue: &Arc<CompletionQueue>,
        depth: Depth,
    ) -> io::Result<Self> {
        let create = |inline: u32| {
            let mut init = abi::QpInitAttr {
                qp_context: null_mut(),
                send_cq: queue.raw.as_ptr(),
                recv_cq: queue.raw.as_ptr(),
                srq: null_mut(),
                cap: abi::QpCap {
                    max_send_wr: depth.send,
                    max_recv_wr: depth.receive,
                    max_send_sge: 1,
                    max_recv_sge: 1,
                    max_inline_data: inline,
                },
                qp_type: abi::QPT_RC,
                sq_sig_all: 0,
            };
            let create = domain.context.library.create_qp;
            // SAFETY: a domain and a completion queue of the same context.
            let raw = unsafe { create(domain.raw.as_ptr(), &raw mut init) };
            Some((NonNull::new(raw)?, init.cap.max_inline_data.min(inline)))
        };
        // A device reports its inline capacity only in the answer to a request for it.
        let (raw, inline) = create(INLINE_WANTED).or_else(|| create(0)).ok_or_else(last_error)?;
        let (domain, queue) = (Arc::clone(domain), Arc::clone(queue));
        let (sends, receives) = (SendList::new(inline), Vec::new());
        Ok(Self { raw, sends, receives, domain, _queue: queue })
    }

    /// The queue pair number, by which the peer addresses the pair.
    pub(crate) fn number(&self) -> u32 {
        // SAFETY: the library initialised the pair and does not write the number again.
        unsafe { self.raw.as_ref() }.qp_num
    }

    /// Moves the pair to INIT, in which receives can be posted.
    pub(crate) fn initialize(&self, port: u8) -> io::Result<()> {
        let mut attr = abi::QpAttr::to(abi::QPS_INIT);
        attr.port_num = port;
        attr.qp_access_flags = (abi::ACCESS_REMOTE_READ | abi::ACCESS_REMOTE_WRITE).cast_unsigned();
        let mask = abi::QP_STATE | abi::QP_PKEY_INDEX | abi::QP_PORT | abi::QP_ACCESS_FLAGS;
        self.modify(&mut attr, mask)
    }

    /// Moves the pair from INIT through RTR to RTS: connected.
    pub(crate) fn connect(&self, path: &Path) -> io::Result<()> {
        let mut attr = abi::QpAttr::to(abi::QPS_RTR);
        attr.path_mtu = path.mtu.into();
        attr.dest_qp_num = path.peer_pair;
        attr.rq_psn = path.peer_psn;
        attr.max_dest_rd_atomic = path.reads_answered;
        attr.min_rnr_timer = RECEIVER_TIMER;
        attr.ah_attr.is_global = 1;
        attr.ah_attr.port_num = path.port;
        attr.ah_attr.dlid = path.peer_lid;
        attr.ah_attr.grh.dgid = abi::Gid(path.peer_gid);
        attr.ah_attr.grh.sgid_index = path.gid_index;
        attr.ah_attr.grh.hop_limit = HOP_LIMIT;
        let mask = abi::QP_STATE
            | abi::QP_AV
            | abi::QP_PATH_MTU
            | abi::QP_DEST_QPN
            | abi::QP_RQ_PSN
            | abi::QP_MAX_DEST_RD_ATOMIC
            | abi::QP_MIN_RNR_TIMER;
        self.modify(&mut attr, mask)?;
        let mut attr = abi::QpAttr::to(abi::QPS_RTS);
        attr.sq_psn = path.own_psn;
        attr.timeout = ACK_TIMEOUT;
        attr.retry_cnt = RETRIES;
        attr.rnr_retry = RECEIVER_RETRIES;
        attr.max_rd_atomic = path.reads_asked;
        let mask = abi::QP_STATE
            | abi::QP_TIMEOUT
            | abi::QP_RETRY_CNT
            | abi::QP_RNR_RETRY
            | abi::QP_SQ_PSN
            | abi::QP_MAX_QP_RD_ATOMIC;
        self.modify(&mut attr, mask)
    }

    /// Moves the pair to ERROR: it neither sends nor accepts anything more, and all its requests
    /// complete.
    pub(crate) fn fail(&self) -> io::Result<()> {
        let mut attr = abi::QpAttr::to(abi::QPS_ERR);
        self.modify(&mut attr, abi::QP_STATE)
    }

    fn modify(&self, attr: &mut abi::QpAttr, mask: i32) -> io::Result<()> {
        // SAFETY: a queue pair, and attributes of which the library reads those in the mask.
        check(unsafe { (self.domain.context.library.modify_qp)(self.raw.as_ptr(), attr, mask) })
    }

    /// Starts a list of work requests.
    pub(crate) fn batch(&mut self) -> Batch<'_, '_> {
        self.sends.clear();
        Batch { pair: self, memory: PhantomData }
    }

    /// Posts receives, given as an id and a buffer each.
    pub(crate) fn receive<'a>(
        &mut self,
        buffers: impl IntoIterator<Item = (u64, Slice<'a>)>,
    ) -> io::Result<()> {
        self.receives.clear();
        self.receives.extend(buffers.into_iter().map(|(id, buffer)| {
            let sg_list = null_mut();
            let wr = abi::RecvWr { wr_id: id, next: null_mut(), sg_list, num_sge: 1 };
            (wr, sge(buffer))
        }));
        let mut next = null_mut();
        for (wr, sge) in self.receives.iter_mut().rev() {
            wr.next = next;
            wr.sg_list = sge;
            next = wr;
        }
        if next.is_null() {
            return Ok(());
        }
        let Some(post) = self.domain.context.ops().post_recv else { return Err(unsupported()) };
        let mut refused = null_mut();
        // SAFETY: a list whose pointers were just set; the library copies it before it returns.
        check(unsafe { post(self.raw.as_ptr(), next, &raw mut refused) })
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: made by create_qp and not yet destroyed.
        unsafe { (self.domain.context.library.destroy_qp)(self.raw.as_ptr()) };
    }
}

/// A list of work requests under construction.
pub(crate) struct Batch<'pair, 'memory> {
    pair: &'pair mut QueuePair,
    memory: PhantomData<Slice<'memory>>,
}

impl<'memory> Batch<'_, 'memory> {
    /// Appends a request.
    pub(crate) fn push(&mut self, request: Request<'memory>) {
        self.pair.sends.push(request);
    }

    /// Posts the list with one doorbell. Returns the counts of requests to the device. After an
    /// error, the queue pair must be abandoned.
    pub(crate) fn post(self) -> io::Result<DeviceCounters> {
        let pair = self.pair;
        let (first, asked) = pair.sends.link();
        if first.is_null() {
            return Ok(asked);
        }
        let Some(post) = pair.domain.context.ops().post_send else { return Err(unsupported()) };
        let mut refused = null_mut();
        // SAFETY: a list whose pointers were just set; the library copies it, and inline data,
        // which is still mapped, before it returns.
        check(unsafe { post(pair.raw.as_ptr(), first, &raw mut refused) })?;
        Ok(asked)
    }
}
