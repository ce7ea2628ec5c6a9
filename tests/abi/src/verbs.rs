//! A queue pair with memory, made by the bindings of ibverbs. What is not done by its safe
//! functions (devices and GIDs are found by those) is done by what they call.

use std::ffi::CString;
use std::io;
use std::net::Ipv4Addr;
use std::ptr::{self, NonNull, null_mut};

use ibverbs::ibv_wc;
use ibverbs_sys as ffi;

use crate::handshake::PairEnd;

/// The port that the safe functions of ibverbs look at.
const PORT: u8 = 1;
/// Reads that this side answers at once, and that it has in flight at most.
pub const READS: u8 = 4;
/// Work requests of each kind, with an entry each in the completion queue.
const DEPTH: u32 = 64;
const PSN: u32 = 0x00ab_cdef;

/// A GID of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    device: CString,
    index: u8,
    /// The GID.
    pub gid: [u8; 16],
}

impl Place {
    /// The RoCE v2 GID of this address, found by the safe functions of ibverbs.
    ///
    /// # Errors
    /// When the devices cannot be listed or opened, and when none has the address.
    pub fn of(address: Ipv4Addr) -> io::Result<Self> {
        let wanted = address.to_ipv6_mapped().octets();
        let devices = ibverbs::devices()?;
        for device in &devices {
            let context = device.open()?;
            for entry in context.gid_table() {
                let [prefix, id] = [entry.gid.subnet_prefix(), entry.gid.interface_id()];
                let gid: Vec<u8> = [prefix, id].into_iter().flat_map(u64::to_be_bytes).collect();
                let fits = gid == wanted
                    && entry.gid_type == ffi::IBV_GID_TYPE_ROCE_V2
                    && entry.port_num == u32::from(PORT);
                if let (true, Some(name), Ok(index)) =
                    (fits, device.name(), u8::try_from(entry.gid_index))
                {
                    return Ok(Self { device: name.to_owned(), index, gid: wanted });
                }
            }
        }
        Err(io::Error::other(format!("no RDMA device has the address {address}")))
    }
}

/// The operation of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Reads from an address with a key.
    Read(u64, u32),
    /// Writes to an address with a key.
    Write(u64, u32),
    /// Writes to an address with a key, and delivers a number.
    WriteWithImmediate(u64, u32, u32),
    /// Sends, with a number.
    SendWithImmediate(u32),
}

/// A queue pair of the reliable connected type, and memory that its peer may access.
#[derive(Debug)]
pub struct Verbs {
    pair: NonNull<ffi::ibv_qp>,
    queue: NonNull<ffi::ibv_cq>,
    registration: NonNull<ffi::ibv_mr>,
    memory: Memory,
    domain: NonNull<ffi::ibv_pd>,
    context: Context,
    index: u8,
    /// MTU of the port, 1 to 5.
    pub mtu: u8,
    /// LID of the port.
    pub lid: u16,
}

impl Verbs {
    /// Opens the device, registers `len` bytes of zeroes, and makes a queue pair in which receives
    /// can be posted.
    ///
    /// # Errors
    /// When the library refuses something. Objects made before are left to the end of the process.
    pub fn new(place: &Place, len: usize) -> io::Result<Self> {
        let context = Context::open(place)?;
        let (mtu, lid) = context.port()?;
        // SAFETY: an open context.
        let domain = made(unsafe { ffi::ibv_alloc_pd(context.0.as_ptr()) })?;
        let memory = Memory::new(len);
        let access = ffi::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE
            | ffi::ibv_access_flags::IBV_ACCESS_REMOTE_READ
            | ffi::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE;
        let (at, flags) = (memory.at.as_ptr().cast(), access.0.cast_signed());
        // SAFETY: memory of that length, which is freed after the registration has ended.
        let registration = made(unsafe { ffi::ibv_reg_mr(domain.as_ptr(), at, len, flags) })?;
        let entries = (2 * DEPTH).cast_signed();
        let at = context.0.as_ptr();
        // SAFETY: an open context; no channel.
        let queue = unsafe { ffi::ibv_create_cq(at, entries, null_mut(), null_mut(), 0) };
        let queue = made(queue)?;
        let mut init = ffi::ibv_qp_init_attr {
            send_cq: queue.as_ptr(),
            recv_cq: queue.as_ptr(),
            cap: ffi::ibv_qp_cap {
                max_send_wr: DEPTH,
                max_recv_wr: DEPTH,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            qp_type: ffi::ibv_qp_type::IBV_QPT_RC,
            sq_sig_all: 1,
            ..Default::default()
        };
        // SAFETY: a domain and a queue of one context.
        let pair = made(unsafe { ffi::ibv_create_qp(domain.as_ptr(), &raw mut init) })?;
        let index = place.index;
        let made = Self { pair, queue, registration, memory, domain, context, index, mtu, lid };
        let mut attr = ffi::ibv_qp_attr {
            qp_state: ffi::ibv_qp_state::IBV_QPS_INIT,
            port_num: PORT,
            qp_access_flags: access.0,
            ..Default::default()
        };
        made.modify(
            &mut attr,
            ffi::ibv_qp_attr_mask::IBV_QP_STATE
                | ffi::ibv_qp_attr_mask::IBV_QP_PKEY_INDEX
                | ffi::ibv_qp_attr_mask::IBV_QP_PORT
                | ffi::ibv_qp_attr_mask::IBV_QP_ACCESS_FLAGS,
        )?;
        Ok(made)
    }

    /// Queue pair number.
    #[must_use]
    pub fn number(&self) -> u32 {
        // SAFETY: the library initialised it.
        unsafe { self.pair.as_ref() }.qp_num
    }

    /// First packet sequence number of this side.
    #[must_use]
    pub const fn psn(&self) -> u32 {
        PSN
    }

    /// The address of the memory, and its remote key.
    #[must_use]
    pub fn remote(&self) -> (u64, u32) {
        // SAFETY: the library initialised it.
        let key = unsafe { self.registration.as_ref() }.rkey;
        (self.memory.at.as_ptr().expose_provenance() as u64, key)
    }

    /// Connects the queue pair.
    ///
    /// # Errors
    /// When the library refuses it.
    pub fn connect(&self, theirs: &PairEnd) -> io::Result<()> {
        let mut attr = ffi::ibv_qp_attr {
            qp_state: ffi::ibv_qp_state::IBV_QPS_RTR,
            path_mtu: self.mtu.min(theirs.mtu).into(),
            dest_qp_num: theirs.number,
            rq_psn: theirs.psn,
            max_dest_rd_atomic: READS,
            min_rnr_timer: 12,
            ..Default::default()
        };
        attr.ah_attr.is_global = 1;
        attr.ah_attr.port_num = PORT;
        attr.ah_attr.dlid = theirs.lid;
        attr.ah_attr.grh.dgid.raw = theirs.gid;
        attr.ah_attr.grh.sgid_index = self.index;
        attr.ah_attr.grh.hop_limit = 64;
        self.modify(
            &mut attr,
            ffi::ibv_qp_attr_mask::IBV_QP_STATE
                | ffi::ibv_qp_attr_mask::IBV_QP_AV
                | ffi::ibv_qp_attr_mask::IBV_QP_PATH_MTU
                | ffi::ibv_qp_attr_mask::IBV_QP_DEST_QPN
                | ffi::ibv_qp_attr_mask::IBV_QP_RQ_PSN
                | ffi::ibv_qp_attr_mask::IBV_QP_MAX_DEST_RD_ATOMIC
                | ffi::ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER,
        )?;
        let mut attr = ffi::ibv_qp_attr {
            qp_state: ffi::ibv_qp_state::IBV_QPS_RTS,
            sq_psn: PSN,
            timeout: 16,
            retry_cnt: 7,
            rnr_retry: 3,
            max_rd_atomic: READS.min(theirs.reads_answered),
            ..Default::default()
        };
        self.modify(
            &mut attr,
            ffi::ibv_qp_attr_mask::IBV_QP_STATE
                | ffi::ibv_qp_attr_mask::IBV_QP_TIMEOUT
                | ffi::ibv_qp_attr_mask::IBV_QP_RETRY_CNT
                | ffi::ibv_qp_attr_mask::IBV_QP_RNR_RETRY
                | ffi::ibv_qp_attr_mask::IBV_QP_SQ_PSN
                | ffi::ibv_qp_attr_mask::IBV_QP_MAX_QP_RD_ATOMIC,
        )
    }

    fn modify(&self, attr: &mut ffi::ibv_qp_attr, mask: ffi::ibv_qp_attr_mask) -> io::Result<()> {
        // SAFETY: a queue pair and its attributes.
        check(unsafe { ffi::ibv_modify_qp(self.pair.as_ptr(), attr, mask.0.cast_signed()) })
    }

    /// Posts a work request for a part of the memory.
    ///
    /// # Errors
    /// When the library refuses it.
    ///
    /// # Panics
    /// When the part exceeds the memory.
    pub fn post(&mut self, id: u64, offset: usize, len: usize, action: Action) -> io::Result<()> {
        let (opcode, remote, immediate) = match action {
            Action::Read(at, key) => (ffi::ibv_wr_opcode::IBV_WR_RDMA_READ, (at, key), 0),
            Action::Write(at, key) => (ffi::ibv_wr_opcode::IBV_WR_RDMA_WRITE, (at, key), 0),
            Action::WriteWithImmediate(at, key, number) => {
                (ffi::ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM, (at, key), number)
            }
            Action::SendWithImmediate(number) => {
                (ffi::ibv_wr_opcode::IBV_WR_SEND_WITH_IMM, (0, 0), number)
            }
        };
        let mut sge = self.sge(offset, len);
        let mut wr = ffi::ibv_send_wr {
            wr_id: id,
            sg_list: &raw mut sge,
            num_sge: 1,
            opcode,
            send_flags: ffi::ibv_send_flags::IBV_SEND_SIGNALED.0,
            ..Default::default()
        };
        wr.__bindgen_anon_1.imm_data = immediate.to_be();
        (wr.wr.rdma.remote_addr, wr.wr.rdma.rkey) = remote;
        let post = self.ops().post_send.ok_or(io::ErrorKind::Unsupported)?;
        let mut refused = null_mut();
        // SAFETY: a list of one request, which the library copies before it returns.
        check(unsafe { post(self.pair.as_ptr(), &raw mut wr, &raw mut refused) })
    }

    /// Posts a receive into a part of the memory.
    ///
    /// # Errors
    /// When the library refuses it.
    ///
    /// # Panics
    /// When the part exceeds the memory.
    pub fn receive(&mut self, id: u64, offset: usize, len: usize) -> io::Result<()> {
        let mut sge = self.sge(offset, len);
        let mut wr =
            ffi::ibv_recv_wr { wr_id: id, sg_list: &raw mut sge, num_sge: 1, ..Default::default() };
        let post = self.ops().post_recv.ok_or(io::ErrorKind::Unsupported)?;
        let mut refused = null_mut();
        // SAFETY: a list of one receive, which the library copies before it returns.
        check(unsafe { post(self.pair.as_ptr(), &raw mut wr, &raw mut refused) })
    }

    /// The next completion, if there is one.
    ///
    /// # Errors
    /// When the queue fails.
    pub fn poll(&mut self) -> io::Result<Option<ibv_wc>> {
        let mut found = ibv_wc::default();
        let poll = self.ops().poll_cq.ok_or(io::ErrorKind::Unsupported)?;
        // SAFETY: room for one completion.
        match unsafe { poll(self.queue.as_ptr(), 1, &raw mut found) } {
            0 => Ok(None),
            1 => Ok(Some(found)),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Copies bytes into the memory.
    ///
    /// # Panics
    /// When they exceed it.
    pub fn put(&mut self, offset: usize, bytes: &[u8]) {
        let at = self.memory.part(offset, bytes.len());
        // SAFETY: inside the memory (checked), which no slice of Rust's overlaps.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), at, bytes.len()) };
    }

    /// Copies bytes out of the memory.
    ///
    /// # Panics
    /// When they exceed it.
    #[must_use]
    pub fn take(&self, offset: usize, len: usize) -> Vec<u8> {
        let at = self.memory.part(offset, len);
        let mut bytes = vec![0; len];
        // SAFETY: inside the memory (checked); the device may only change bytes meanwhile.
        unsafe { ptr::copy_nonoverlapping(at, bytes.as_mut_ptr(), len) };
        bytes
    }

    fn sge(&self, offset: usize, len: usize) -> ffi::ibv_sge {
        let address = self.memory.part(offset, len).expose_provenance() as u64;
        // SAFETY: the library initialised it.
        let lkey = unsafe { self.registration.as_ref() }.lkey;
        let length = u32::try_from(len).expect("less than 4 GiB");
        ffi::ibv_sge { addr: address, length, lkey }
    }

    fn ops(&self) -> ffi::ibv_context_ops {
        // SAFETY: the library initialised it when the device was opened and never changes it.
        unsafe { (*self.context.0.as_ptr()).ops }
    }
}

impl Drop for Verbs {
    fn drop(&mut self) {
        // SAFETY: made by this crate and not yet destroyed; what depends on it comes first.
        unsafe { ffi::ibv_destroy_qp(self.pair.as_ptr()) };
        // SAFETY: as above.
        unsafe { ffi::ibv_destroy_cq(self.queue.as_ptr()) };
        // SAFETY: as above.
        unsafe { ffi::ibv_dereg_mr(self.registration.as_ptr()) };
        // SAFETY: as above.
        unsafe { ffi::ibv_dealloc_pd(self.domain.as_ptr()) };
    }
}

/// An opened device.
#[derive(Debug)]
struct Context(NonNull<ffi::ibv_context>);

impl Context {
    fn open(place: &Place) -> io::Result<Self> {
        let mut count = 0;
        // SAFETY: the function only writes the count.
        let list = made(unsafe { ffi::ibv_get_device_list(&raw mut count) })?;
        let mut opened = Err(io::Error::other("the device is gone"));
        for at in 0..usize::try_from(count).unwrap_or(0) {
            // SAFETY: the list has `count` entries.
            let entry = unsafe { list.add(at) };
            // SAFETY: as above; the list is freed below.
            let device = unsafe { *entry.as_ptr() };
            // SAFETY: a device of the list.
            let name = unsafe { ffi::ibv_get_device_name(device) };
            // SAFETY: a string that lives as long as the device.
            if unsafe { std::ffi::CStr::from_ptr(name) } == place.device.as_c_str() {
                // SAFETY: a device of the list.
                opened = made(unsafe { ffi::ibv_open_device(device) });
            }
        }
        // SAFETY: the list from above; an opened device stays.
        unsafe { ffi::ibv_free_device_list(list.as_ptr()) };
        opened.map(Self)
    }

    /// MTU and LID of the port.
    fn port(&self) -> io::Result<(u8, u16)> {
        let mut attr = ffi::ibv_port_attr::default();
        let into = (&raw mut attr).cast();
        // SAFETY: an open context; the function writes the part of the answer up to the flags.
        check(unsafe { ffi::ibv_query_port(self.0.as_ptr(), PORT, into) })?;
        Ok((u8::try_from(attr.active_mtu).unwrap_or(0), attr.lid))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: everything made with it has been destroyed.
        unsafe { ffi::ibv_close_device(self.0.as_ptr()) };
    }
}

/// Memory for the device.
#[derive(Debug)]
struct Memory {
    at: NonNull<u8>,
    layout: std::alloc::Layout,
}

impl Memory {
    fn new(len: usize) -> Self {
        let layout = std::alloc::Layout::from_size_align(len.max(1), 4096).expect("a length");
        // SAFETY: not of length 0.
        let at = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) }).expect("memory");
        Self { at, layout }
    }

    /// The address of a part, which must lie inside.
    fn part(&self, offset: usize, len: usize) -> *mut u8 {
        let end = offset.checked_add(len).expect("an end");
        assert!(end <= self.layout.size(), "{len} B at {offset} exceed the memory");
        self.at.as_ptr().wrapping_add(offset)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { std::alloc::dealloc(self.at.as_ptr(), self.layout) };
    }
}

fn made<T>(object: *mut T) -> io::Result<NonNull<T>> {
    NonNull::new(object).ok_or_else(io::Error::last_os_error)
}

fn check(code: i32) -> io::Result<()> {
    match code {
        0 => Ok(()),
        ..0 => Err(io::Error::last_os_error()),
        number => Err(io::Error::from_raw_os_error(number)),
    }
}
