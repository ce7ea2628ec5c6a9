//! The names in C of what the parent module declares, with the numbers on x86-64 and aarch64.

use std::mem::{align_of, offset_of, size_of};

use super::*;
use crate::layout::{Constant, Field, Signature, Sizes, Struct, size_in, sizes_in};

/// Lists structs. The compiler refuses a list that lacks a field of a struct. Unused fields begin
/// with an underscore; what stands behind `and` is no field in C.
macro_rules! structs {
    ($($name:literal $size:literal $kind:ident $own:ident {
        $($offset:literal $c:literal $field:tt),* $(; and $($rest:tt),*)?
    })*) => {
        vec![$({
            const _: fn($own) = |$own { $($field: _,)* $($($rest: _,)*)? }| {};
            Struct {
                name: $name,
                size: size_of::<$own>(),
                expected_size: $size,
                align: align_of::<$own>(),
                is_start: stringify!($kind) == "start",
                fields: vec![$(Field {
                    name: $c,
                    offset: offset_of!($own, $field),
                    expected_offset: $offset,
                    size: (!stringify!($field).starts_with('_'))
                        .then(|| size_in(|value: &$own| &raw const value.$field)),
                }),*],
            }
        }),*]
    };
}

/// The structs and unions.
#[must_use]
#[expect(clippy::too_many_lines, reason = "a table")]
pub fn structs() -> Vec<Struct> {
    structs! {
        "union ibv_gid" 16 whole Gid { 0 "raw" 0 }
        "struct ibv_gid_entry" 32 whole GidEntry {
            0 "gid" gid,
            16 "gid_index" gid_index,
            20 "port_num" port_num,
            24 "gid_type" gid_type,
            28 "ndev_ifindex" ndev_ifindex
        }
        "struct ibv_context_ops" 256 whole ContextOps {
            0 "_compat_query_device" _before_poll,
            88 "poll_cq" poll_cq,
            96 "req_notify_cq" req_notify_cq,
            104 "_compat_cq_event" _between,
            200 "post_send" post_send,
            208 "post_recv" post_recv,
            216 "_compat_create_ah" _after
        }
        "struct ibv_context" 264 start Context { 0 "device" _device, 8 "ops" ops }
        "struct ibv_device_attr" 232 whole DeviceAttr {
            0 "fw_ver" _names,
            80 "max_mr_size" max_mr_size,
            88 "page_size_cap" _page_size_cap,
            96 "vendor_id" _ids,
            108 "max_qp" _max_qp,
            112 "max_qp_wr" max_qp_wr,
            116 "device_cap_flags" _device_cap_flags,
            120 "max_sge" max_sge,
            124 "max_sge_rd" _max_sge_rd,
            128 "max_cq" _max_cq,
            132 "max_cqe" max_cqe,
            136 "max_mr" _max_mr,
            140 "max_pd" _max_pd,
            144 "max_qp_rd_atom" max_qp_rd_atom,
            148 "max_ee_rd_atom" _max_ee_rd_atom,
            152 "max_res_rd_atom" _max_res_rd_atom,
            156 "max_qp_init_rd_atom" max_qp_init_rd_atom,
            160 "max_ee_init_rd_atom" _more,
            224 "max_pkeys" _max_pkeys,
            226 "local_ca_ack_delay" _local_ca_ack_delay,
            227 "phys_port_cnt" phys_port_cnt
        }
        // Newer headers append `active_speed_ex`; the exported `ibv_query_port` writes nothing
        // behind `flags`.
        "struct ibv_port_attr" 52 start PortAttr {
            0 "state" state,
            4 "max_mtu" _max_mtu,
            8 "active_mtu" active_mtu,
            12 "gid_tbl_len" _gid_tbl_len,
            16 "port_cap_flags" _port_cap_flags,
            20 "max_msg_sz" max_msg_sz,
            24 "bad_pkey_cntr" _counters,
            32 "pkey_tbl_len" _pkey_tbl_len,
            34 "lid" lid,
            36 "sm_lid" _sm_lid,
            38 "lmc" _more,
            46 "link_layer" link_layer,
            47 "flags" _flags,
            48 "port_cap_flags2" _port_cap_flags2
        }
        "struct ibv_mr" 48 whole Mr {
            0 "context" _context,
            8 "pd" _pd,
            16 "addr" addr,
            24 "length" length,
            32 "handle" _handle,
            36 "lkey" lkey,
            40 "rkey" rkey
        }
        "struct ibv_comp_channel" 16 whole CompChannel {
            0 "context" _context,
            8 "fd" fd,
            12 "refcnt" _refcnt
        }
        "struct ibv_wc" 48 whole Wc {
            0 "wr_id" wr_id,
            8 "status" status,
            12 "opcode" opcode,
            16 "vendor_err" _vendor_err,
            20 "byte_len" byte_len,
            24 "imm_data" imm_data,
            28 "qp_num" _qp_num,
            32 "src_qp" _src_qp,
            36 "wc_flags" wc_flags,
            40 "pkey_index" _pkey_index,
            42 "slid" _slid,
            44 "sl" _sl,
            45 "dlid_path_bits" _dlid_path_bits
        }
        "struct ibv_qp_cap" 20 whole QpCap {
            0 "max_send_wr" max_send_wr,
            4 "max_recv_wr" max_recv_wr,
            8 "max_send_sge" max_send_sge,
            12 "max_recv_sge" max_recv_sge,
            16 "max_inline_data" max_inline_data
        }
        "struct ibv_qp_init_attr" 64 whole QpInitAttr {
            0 "qp_context" qp_context,
            8 "send_cq" send_cq,
            16 "recv_cq" recv_cq,
            24 "srq" srq,
            32 "cap" cap,
            52 "qp_type" qp_type,
            56 "sq_sig_all" sq_sig_all
        }
        "struct ibv_qp" 56 start Qp {
            0 "context" _context,
            8 "qp_context" _pointers,
            48 "handle" _handle,
            52 "qp_num" qp_num
        }
        "struct ibv_global_route" 24 whole GlobalRoute {
            0 "dgid" dgid,
            16 "flow_label" _flow_label,
            20 "sgid_index" sgid_index,
            21 "hop_limit" hop_limit,
            22 "traffic_class" _traffic_class
        }
        "struct ibv_ah_attr" 32 whole AhAttr {
            0 "grh" grh,
            24 "dlid" dlid,
            26 "sl" _sl,
            27 "src_path_bits" _src_path_bits,
            28 "static_rate" _static_rate,
            29 "is_global" is_global,
            30 "port_num" port_num
        }
        "struct ibv_qp_attr" 144 whole QpAttr {
            0 "qp_state" qp_state,
            4 "cur_qp_state" _cur_qp_state,
            8 "path_mtu" path_mtu,
            12 "path_mig_state" _path_mig_state,
            16 "qkey" _qkey,
            20 "rq_psn" rq_psn,
            24 "sq_psn" sq_psn,
            28 "dest_qp_num" dest_qp_num,
            32 "qp_access_flags" qp_access_flags,
            36 "cap" _cap,
            56 "ah_attr" ah_attr,
            88 "alt_ah_attr" _alt_ah_attr,
            120 "pkey_index" _pkey_indices,
            124 "en_sqd_async_notify" _draining,
            126 "max_rd_atomic" max_rd_atomic,
            127 "max_dest_rd_atomic" max_dest_rd_atomic,
            128 "min_rnr_timer" min_rnr_timer,
            129 "port_num" port_num,
            130 "timeout" timeout,
            131 "retry_cnt" retry_cnt,
            132 "rnr_retry" rnr_retry,
            133 "alt_port_num" _alt,
            136 "rate_limit" _rate_limit
        }
        "struct ibv_sge" 16 whole Sge { 0 "addr" addr, 8 "length" length, 12 "lkey" lkey }
        "struct ibv_send_wr" 128 whole SendWr {
            0 "wr_id" wr_id,
            8 "next" next,
            16 "sg_list" sg_list,
            24 "num_sge" num_sge,
            28 "opcode" opcode,
            32 "send_flags" send_flags,
            36 "imm_data" imm_data,
            40 "wr.rdma.remote_addr" remote_addr,
            48 "wr.rdma.rkey" rkey;
            and unused
        }
        "struct ibv_recv_wr" 32 whole RecvWr {
            0 "wr_id" wr_id,
            8 "next" next,
            16 "sg_list" sg_list,
            24 "num_sge" num_sge
        }
    }
}

macro_rules! constants {
    ($($name:literal $expected:literal $own:ident,)*) => {
        vec![$(Constant { name: $name, value: $own as usize, expected: $expected }),*]
    };
}

/// The constants and the values of enumerations.
#[must_use]
pub fn constants() -> Vec<Constant> {
    constants! {
        "IBV_GID_TYPE_ROCE_V2" 2 GID_TYPE_ROCE_V2,
        "IBV_PORT_ACTIVE" 4 PORT_ACTIVE,
        "IBV_LINK_LAYER_INFINIBAND" 1 LINK_LAYER_INFINIBAND,
        "IBV_ACCESS_LOCAL_WRITE" 1 ACCESS_LOCAL_WRITE,
        "IBV_ACCESS_REMOTE_WRITE" 2 ACCESS_REMOTE_WRITE,
        "IBV_ACCESS_REMOTE_READ" 4 ACCESS_REMOTE_READ,
        "IBV_WC_SUCCESS" 0 WC_SUCCESS,
        "IBV_WC_WR_FLUSH_ERR" 5 WC_WR_FLUSH_ERR,
        "IBV_WC_RETRY_EXC_ERR" 12 WC_RETRY_EXC_ERR,
        "IBV_WC_RNR_RETRY_EXC_ERR" 13 WC_RNR_RETRY_EXC_ERR,
        "IBV_WC_RECV_RDMA_WITH_IMM" 129 WC_RECV_RDMA_WITH_IMM,
        "IBV_WC_WITH_IMM" 2 WC_WITH_IMM,
        "IBV_QPT_RC" 2 QPT_RC,
        "IBV_QPS_INIT" 1 QPS_INIT,
        "IBV_QPS_RTR" 2 QPS_RTR,
        "IBV_QPS_RTS" 3 QPS_RTS,
        "IBV_QPS_ERR" 6 QPS_ERR,
        "IBV_QP_STATE" 1 QP_STATE,
        "IBV_QP_ACCESS_FLAGS" 8 QP_ACCESS_FLAGS,
        "IBV_QP_PKEY_INDEX" 16 QP_PKEY_INDEX,
        "IBV_QP_PORT" 32 QP_PORT,
        "IBV_QP_AV" 128 QP_AV,
        "IBV_QP_PATH_MTU" 256 QP_PATH_MTU,
        "IBV_QP_TIMEOUT" 512 QP_TIMEOUT,
        "IBV_QP_RETRY_CNT" 1024 QP_RETRY_CNT,
        "IBV_QP_RNR_RETRY" 2048 QP_RNR_RETRY,
        "IBV_QP_RQ_PSN" 4096 QP_RQ_PSN,
        "IBV_QP_MAX_QP_RD_ATOMIC" 8192 QP_MAX_QP_RD_ATOMIC,
        "IBV_QP_MIN_RNR_TIMER" 32768 QP_MIN_RNR_TIMER,
        "IBV_QP_SQ_PSN" 65536 QP_SQ_PSN,
        "IBV_QP_MAX_DEST_RD_ATOMIC" 131_072 QP_MAX_DEST_RD_ATOMIC,
        "IBV_QP_DEST_QPN" 1_048_576 QP_DEST_QPN,
        "IBV_WR_RDMA_WRITE" 0 WR_RDMA_WRITE,
        "IBV_WR_RDMA_WRITE_WITH_IMM" 1 WR_RDMA_WRITE_WITH_IMM,
        "IBV_WR_SEND_WITH_IMM" 3 WR_SEND_WITH_IMM,
        "IBV_WR_RDMA_READ" 4 WR_RDMA_READ,
        "IBV_SEND_FENCE" 1 SEND_FENCE,
        "IBV_SEND_SIGNALED" 2 SEND_SIGNALED,
        "IBV_SEND_INLINE" 8 SEND_INLINE,
    }
}

macro_rules! functions {
    ($($name:literal $own:ident,)*) => { vec![$(($name, $own::sizes())),*] };
}

/// The exported functions that are loaded at run time, each with its name and its sizes.
#[must_use]
pub fn functions() -> Vec<(&'static str, Sizes)> {
    functions! {
        "ibv_get_device_list" GetDeviceList,
        "ibv_free_device_list" FreeDeviceList,
        "ibv_get_device_name" GetDeviceName,
        "ibv_open_device" OpenDevice,
        "ibv_close_device" CloseDevice,
        "ibv_query_device" QueryDevice,
        "ibv_query_port" QueryPort,
        "_ibv_query_gid_table" QueryGidTable,
        "ibv_alloc_pd" AllocPd,
        "ibv_dealloc_pd" DeallocPd,
        "ibv_reg_mr" RegMr,
        "ibv_dereg_mr" DeregMr,
        "ibv_create_comp_channel" CreateCompChannel,
        "ibv_destroy_comp_channel" DestroyCompChannel,
        "ibv_create_cq" CreateCq,
        "ibv_destroy_cq" DestroyCq,
        "ibv_get_cq_event" GetCqEvent,
        "ibv_ack_cq_events" AckCqEvents,
        "ibv_create_qp" CreateQp,
        "ibv_modify_qp" ModifyQp,
        "ibv_destroy_qp" DestroyQp,
    }
}

/// The function pointers in a context that stand for inline functions of the header: the name of
/// the field in `struct ibv_context_ops`, its offset in `struct ibv_context`, and the sizes.
#[must_use]
pub fn slots() -> Vec<(&'static str, usize, Sizes)> {
    macro_rules! slots {
        ($($field:ident),*) => {
            vec![$((
                stringify!($field),
                offset_of!(Context, ops.$field),
                sizes_in(|ops: &ContextOps| ops.$field),
            )),*]
        };
    }
    slots!(poll_cq, req_notify_cq, post_send, post_recv)
}
