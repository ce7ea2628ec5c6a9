//! The part of the ABI of libibverbs that this crate uses, from `infiniband/verbs.h`.
//!
//! Names are those of the header without `ibv_`. Unused fields are kept for the layout, under
//! summary names. See `docs/adr/0008-verbs-are-loaded-at-run-time.md`.

use std::ffi::{c_char, c_int, c_uint, c_void};

/// Opaque: used by address only.
#[repr(C)]
pub(super) struct Device([u8; 0]);
#[repr(C)]
pub(super) struct Pd([u8; 0]);
#[repr(C)]
pub(super) struct Cq([u8; 0]);

/// A GID: 16 bytes with the alignment of the header's union, which also contains two 8-byte halves.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Gid(pub(super) [u8; 16]);

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct GidEntry {
    pub(super) gid: Gid,
    pub(super) gid_index: u32,
    pub(super) port_num: u32,
    pub(super) gid_type: u32,
    pub(super) ndev_ifindex: u32,
}

pub(super) const GID_TYPE_ROCE_V2: u32 = 2;

/// The function pointers that the header's inline functions call.
#[repr(C)]
pub(super) struct ContextOps {
    _before_poll: [*const c_void; 11],
    pub(super) poll_cq: Option<unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int>,
    pub(super) req_notify_cq: Option<unsafe extern "C" fn(*mut Cq, c_int) -> c_int>,
    _between: [*const c_void; 12],
    pub(super) post_send:
        Option<unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int>,
    pub(super) post_recv:
        Option<unsafe extern "C" fn(*mut Qp, *mut RecvWr, *mut *mut RecvWr) -> c_int>,
    _after: [*const c_void; 5],
}

/// The start of a context. The library allocates it; only pointers to it are passed.
#[repr(C)]
pub(super) struct Context {
    _device: *mut Device,
    pub(super) ops: ContextOps,
}

#[repr(C)]
pub(super) struct DeviceAttr {
    _names: [u64; 10],
    pub(super) max_mr_size: u64,
    _page_size_cap: u64,
    _ids: [u32; 3],
    _max_qp: c_int,
    pub(super) max_qp_wr: c_int,
    _device_cap_flags: c_uint,
    pub(super) max_sge: c_int,
    _max_sge_rd: c_int,
    _max_cq: c_int,
    pub(super) max_cqe: c_int,
    _max_mr: c_int,
    _max_pd: c_int,
    pub(super) max_qp_rd_atom: c_int,
    _max_ee_rd_atom: c_int,
    _max_res_rd_atom: c_int,
    pub(super) max_qp_init_rd_atom: c_int,
    _more: [c_int; 16],
    _max_pkeys: u16,
    _local_ca_ack_delay: u8,
    pub(super) phys_port_cnt: u8,
}

#[repr(C)]
pub(super) struct PortAttr {
    pub(super) state: c_uint,
    _max_mtu: c_uint,
    pub(super) active_mtu: c_uint,
    _gid_tbl_len: c_int,
    _port_cap_flags: u32,
    pub(super) max_msg_sz: u32,
    _counters: [u32; 2],
    _pkey_tbl_len: u16,
    pub(super) lid: u16,
    _sm_lid: u16,
    _more: [u8; 8],
    pub(super) link_layer: u8,
    _flags: u8,
    _port_cap_flags2: u16,
}

pub(super) const PORT_ACTIVE: c_uint = 4;
pub(super) const LINK_LAYER_INFINIBAND: u8 = 1;

#[repr(C)]
pub(super) struct Mr {
    _context: *mut Context,
    _pd: *mut Pd,
    pub(super) addr: *mut c_void,
    pub(super) length: usize,
    _handle: u32,
    pub(super) lkey: u32,
    pub(super) rkey: u32,
}

pub(super) const ACCESS_LOCAL_WRITE: c_int = 1;
pub(super) const ACCESS_REMOTE_WRITE: c_int = 2;
pub(super) const ACCESS_REMOTE_READ: c_int = 4;

#[repr(C)]
pub(super) struct CompChannel {
    _context: *mut Context,
    pub(super) fd: c_int,
    _refcnt: c_int,
}

/// A work completion.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Wc {
    pub(super) wr_id: u64,
    pub(super) status: c_uint,
    pub(super) opcode: c_uint,
    _vendor_err: u32,
    pub(super) byte_len: u32,
    /// Big endian.
    pub(super) imm_data: u32,
    _qp_num: u32,
    _src_qp: u32,
    pub(super) wc_flags: c_uint,
    _pkey_index: u16,
    _slid: u16,
    _sl: u8,
    _dlid_path_bits: u8,
}

pub(super) const WC_SUCCESS: c_uint = 0;
pub(super) const WC_WR_FLUSH_ERR: c_uint = 5;
pub(super) const WC_RETRY_EXC_ERR: c_uint = 12;
pub(super) const WC_RNR_RETRY_EXC_ERR: c_uint = 13;
pub(super) const WC_RECV_RDMA_WITH_IMM: c_uint = 129;
pub(super) const WC_WITH_IMM: c_uint = 2;

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct QpCap {
    pub(super) max_send_wr: u32,
    pub(super) max_recv_wr: u32,
    pub(super) max_send_sge: u32,
    pub(super) max_recv_sge: u32,
    pub(super) max_inline_data: u32,
}

#[repr(C)]
pub(super) struct QpInitAttr {
    pub(super) qp_context: *mut c_void,
    pub(super) send_cq: *mut Cq,
    pub(super) recv_cq: *mut Cq,
    pub(super) srq: *mut c_void,
    pub(super) cap: QpCap,
    pub(super) qp_type: c_uint,
    pub(super) sq_sig_all: c_int,
}

pub(super) const QPT_RC: c_uint = 2;

/// The start of a queue pair.
#[repr(C)]
pub(super) struct Qp {
    _context: *mut Context,
    _pointers: [*mut c_void; 5],
    _handle: u32,
    pub(super) qp_num: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct GlobalRoute {
    pub(super) dgid: Gid,
    _flow_label: u32,
    pub(super) sgid_index: u8,
    pub(super) hop_limit: u8,
    _traffic_class: u8,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct AhAttr {
    pub(super) grh: GlobalRoute,
    pub(super) dlid: u16,
    _sl: u8,
    _src_path_bits: u8,
    _static_rate: u8,
    pub(super) is_global: u8,
    pub(super) port_num: u8,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct QpAttr {
    pub(super) qp_state: c_uint,
    _cur_qp_state: c_uint,
    pub(super) path_mtu: c_uint,
    _path_mig_state: c_uint,
    _qkey: u32,
    pub(super) rq_psn: u32,
    pub(super) sq_psn: u32,
    pub(super) dest_qp_num: u32,
    pub(super) qp_access_flags: c_uint,
    _cap: QpCap,
    pub(super) ah_attr: AhAttr,
    _alt_ah_attr: AhAttr,
    _pkey_indices: [u16; 2],
    _draining: [u8; 2],
    pub(super) max_rd_atomic: u8,
    pub(super) max_dest_rd_atomic: u8,
    pub(super) min_rnr_timer: u8,
    pub(super) port_num: u8,
    pub(super) timeout: u8,
    pub(super) retry_cnt: u8,
    pub(super) rnr_retry: u8,
    _alt: [u8; 2],
    _rate_limit: u32,
}

impl QpAttr {
    /// Attributes for a change to `qp_state`; all others are zero.
    pub(super) fn to(qp_state: c_uint) -> Self {
        Self { qp_state, ..Self::default() }
    }
}

pub(super) const QPS_INIT: c_uint = 1;
pub(super) const QPS_RTR: c_uint = 2;
pub(super) const QPS_RTS: c_uint = 3;
pub(super) const QPS_ERR: c_uint = 6;

pub(super) const QP_STATE: c_int = 1 << 0;
pub(super) const QP_ACCESS_FLAGS: c_int = 1 << 3;
pub(super) const QP_PKEY_INDEX: c_int = 1 << 4;
pub(super) const QP_PORT: c_int = 1 << 5;
pub(super) const QP_AV: c_int = 1 << 7;
pub(super) const QP_PATH_MTU: c_int = 1 << 8;
pub(super) const QP_TIMEOUT: c_int = 1 << 9;
pub(super) const QP_RETRY_CNT: c_int = 1 << 10;
pub(super) const QP_RNR_RETRY: c_int = 1 << 11;
pub(super) const QP_RQ_PSN: c_int = 1 << 12;
pub(super) const QP_MAX_QP_RD_ATOMIC: c_int = 1 << 13;
pub(super) const QP_MIN_RNR_TIMER: c_int = 1 << 15;
pub(super) const QP_SQ_PSN: c_int = 1 << 16;
pub(super) const QP_MAX_DEST_RD_ATOMIC: c_int = 1 << 17;
pub(super) const QP_DEST_QPN: c_int = 1 << 20;

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Sge {
    pub(super) addr: u64,
    pub(super) length: u32,
    pub(super) lkey: u32,
}

/// A send work request, with the part of its union that one-sided operations use.
#[repr(C)]
pub(super) struct SendWr {
    pub(super) wr_id: u64,
    pub(super) next: *mut Self,
    pub(super) sg_list: *mut Sge,
    pub(super) num_sge: c_int,
    pub(super) opcode: c_uint,
    pub(super) send_flags: c_uint,
    /// Big endian.
    pub(super) imm_data: u32,
    pub(super) remote_addr: u64,
    pub(super) rkey: u32,
    pub(super) unused: [u32; 19],
}

pub(super) const WR_RDMA_WRITE: c_uint = 0;
pub(super) const WR_RDMA_WRITE_WITH_IMM: c_uint = 1;
pub(super) const WR_SEND_WITH_IMM: c_uint = 3;
pub(super) const WR_RDMA_READ: c_uint = 4;

pub(super) const SEND_FENCE: c_uint = 1;
pub(super) const SEND_SIGNALED: c_uint = 2;
pub(super) const SEND_INLINE: c_uint = 8;

#[repr(C)]
pub(super) struct RecvWr {
    pub(super) wr_id: u64,
    pub(super) next: *mut Self,
    pub(super) sg_list: *mut Sge,
    pub(super) num_sge: c_int,
}

pub(super) type GetDeviceList = unsafe extern "C" fn(*mut c_int) -> *mut *mut Device;
pub(super) type FreeDeviceList = unsafe extern "C" fn(*mut *mut Device);
pub(super) type GetDeviceName = unsafe extern "C" fn(*mut Device) -> *const c_char;
pub(super) type OpenDevice = unsafe extern "C" fn(*mut Device) -> *mut Context;
pub(super) type CloseDevice = unsafe extern "C" fn(*mut Context) -> c_int;
pub(super) type QueryDevice = unsafe extern "C" fn(*mut Context, *mut DeviceAttr) -> c_int;
pub(super) type QueryPort = unsafe extern "C" fn(*mut Context, u8, *mut PortAttr) -> c_int;
pub(super) type QueryGidTable =
    unsafe extern "C" fn(*mut Context, *mut GidEntry, usize, u32, usize) -> isize;
pub(super) type AllocPd = unsafe extern "C" fn(*mut Context) -> *mut Pd;
pub(super) type DeallocPd = unsafe extern "C" fn(*mut Pd) -> c_int;
pub(super) type RegMr = unsafe extern "C" fn(*mut Pd, *mut c_void, usize, c_int) -> *mut Mr;
pub(super) type DeregMr = unsafe extern "C" fn(*mut Mr) -> c_int;
pub(super) type CreateCompChannel = unsafe extern "C" fn(*mut Context) -> *mut CompChannel;
pub(super) type DestroyCompChannel = unsafe extern "C" fn(*mut CompChannel) -> c_int;
pub(super) type CreateCq =
    unsafe extern "C" fn(*mut Context, c_int, *mut c_void, *mut CompChannel, c_int) -> *mut Cq;
pub(super) type DestroyCq = unsafe extern "C" fn(*mut Cq) -> c_int;
pub(super) type GetCqEvent =
    unsafe extern "C" fn(*mut CompChannel, *mut *mut Cq, *mut *mut c_void) -> c_int;
pub(super) type AckCqEvents = unsafe extern "C" fn(*mut Cq, c_uint);
pub(super) type CreateQp = unsafe extern "C" fn(*mut Pd, *mut QpInitAttr) -> *mut Qp;
pub(super) type ModifyQp = unsafe extern "C" fn(*mut Qp, *mut QpAttr, c_int) -> c_int;
pub(super) type DestroyQp = unsafe extern "C" fn(*mut Qp) -> c_int;

#[cfg(any(test, feature = "layout"))]
pub(super) mod table;
#[cfg(test)]
mod tests;
