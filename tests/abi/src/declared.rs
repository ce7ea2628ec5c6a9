//! The declarations of both packages, by the names of the C header.

use std::collections::BTreeMap;
use std::mem::{align_of, offset_of, size_of};

use rackpool_fabric_verbs::layout::{Sizes, size_in, sizes_in, sizes_of};

/// What a package declares.
#[derive(Debug, Default)]
pub struct Declared {
    /// By name, with the keyword.
    pub structs: BTreeMap<&'static str, Struct>,
    /// The values, by name.
    pub constants: BTreeMap<&'static str, usize>,
    /// The sizes of exported functions, by name.
    pub functions: BTreeMap<&'static str, Sizes>,
    /// The offset in `struct ibv_context`, and the sizes, of function pointers, by field.
    pub slots: BTreeMap<&'static str, (usize, Sizes)>,
}

/// A struct or union of a package.
#[derive(Debug)]
pub struct Struct {
    /// Its bytes.
    pub size: usize,
    /// Its alignment in bytes.
    pub align: usize,
    /// The offset and the bytes of each public field, by name.
    pub fields: BTreeMap<&'static str, (usize, usize)>,
}

/// A struct: its name in C, its type, and the fields whose path in Rust is their name in C; then by
/// name in C the others, and after a semicolon those of structs in unions.
macro_rules! structure {
    ($package:ident $name:literal $type:ident { $($field:ident)* }
        $($c:literal: $($path:ident).+),*
        $(; $($inner_c:literal: $union:ident.$struct:ident.$inner:ident),*)?
    ) => {
        ($name, Struct {
            size: size_of::<$package::$type>(),
            align: align_of::<$package::$type>(),
            fields: BTreeMap::from([
                $((stringify!($field), (
                    offset_of!($package::$type, $field),
                    size_in(|value: &$package::$type| &raw const value.$field),
                )),)*
                $(($c, (
                    offset_of!($package::$type, $($path).+),
                    size_in(|value: &$package::$type| &raw const value.$($path).+),
                )),)*
                $($(($inner_c, (
                    offset_of!($package::$type, $union.$struct.$inner),
                    size_within(
                        |value: &$package::$type| &raw const value.$union.$struct,
                        |value| &raw const value.$inner,
                    ),
                )),)*)?
            ]),
        })
    };
}

/// The bytes of a field of a struct in a union, given by an expression for the address of the
/// struct, and one for that of the field.
fn size_within<T, Inner, F>(
    _inner: fn(&T) -> *const Inner,
    field: fn(&Inner) -> *const F,
) -> usize {
    size_in(field)
}

/// The structs that both packages declare with public fields of the same names.
macro_rules! structs {
    ($package:ident) => {
        BTreeMap::from([
            structure!($package "union ibv_gid" ibv_gid { raw }),
            structure!($package "struct ibv_gid_entry" ibv_gid_entry {
                gid gid_index port_num gid_type ndev_ifindex
            }),
            structure!($package "struct ibv_context_ops" ibv_context_ops {
                _compat_query_device poll_cq req_notify_cq _compat_cq_event post_send post_recv
                _compat_create_ah
            }),
            structure!($package "struct ibv_context" ibv_context { device ops }),
            structure!($package "struct ibv_device_attr" ibv_device_attr {
                fw_ver max_mr_size page_size_cap vendor_id max_qp max_qp_wr device_cap_flags
                max_sge max_sge_rd max_cq max_cqe max_mr max_pd max_qp_rd_atom max_ee_rd_atom
                max_res_rd_atom max_qp_init_rd_atom max_ee_init_rd_atom max_pkeys
                local_ca_ack_delay phys_port_cnt
            }),
            structure!($package "struct ibv_port_attr" ibv_port_attr {
                state max_mtu active_mtu gid_tbl_len port_cap_flags max_msg_sz bad_pkey_cntr
                pkey_tbl_len lid sm_lid lmc link_layer flags port_cap_flags2
            }),
            structure!($package "struct ibv_mr" ibv_mr {
                context pd addr length handle lkey rkey
            }),
            structure!($package "struct ibv_comp_channel" ibv_comp_channel { context fd refcnt }),
            structure!($package "struct ibv_qp_cap" ibv_qp_cap {
                max_send_wr max_recv_wr max_send_sge max_recv_sge max_inline_data
            }),
            structure!($package "struct ibv_qp_init_attr" ibv_qp_init_attr {
                qp_context send_cq recv_cq srq cap qp_type sq_sig_all
            }),
            structure!($package "struct ibv_qp" ibv_qp { context qp_context handle qp_num }),
            structure!($package "struct ibv_global_route" ibv_global_route {
                dgid flow_label sgid_index hop_limit traffic_class
            }),
            structure!($package "struct ibv_ah_attr" ibv_ah_attr {
                grh dlid sl src_path_bits static_rate is_global port_num
            }),
            structure!($package "struct ibv_qp_attr" ibv_qp_attr {
                qp_state cur_qp_state path_mtu path_mig_state qkey rq_psn sq_psn dest_qp_num
                qp_access_flags cap ah_attr alt_ah_attr pkey_index en_sqd_async_notify
                max_rd_atomic max_dest_rd_atomic min_rnr_timer port_num timeout retry_cnt
                rnr_retry alt_port_num rate_limit
            }),
            structure!($package "struct ibv_sge" ibv_sge { addr length lkey }),
            structure!($package "struct ibv_recv_wr" ibv_recv_wr { wr_id next sg_list num_sge }),
        ])
    };
}

macro_rules! constants {
    ($package:ident $($name:ident $($of:ident)? $(.$flag:tt)?),*) => {
        BTreeMap::from([$((
            stringify!($name),
            constants!(@value $package $name $($of)? $(.$flag)?) as usize,
        )),*])
    };
    (@value $package:ident $name:ident) => { $package::$name };
    (@value $package:ident $name:ident $module:ident) => { $package::$module::$name };
    (@value $package:ident $name:ident $flags:ident .0) => { $package::$flags::$name.0 };
}

macro_rules! all_constants {
    ($package:ident) => {
        constants!($package
            IBV_GID_TYPE_ROCE_V2,
            IBV_PORT_ACTIVE ibv_port_state,
            IBV_ACCESS_LOCAL_WRITE ibv_access_flags.0,
            IBV_ACCESS_REMOTE_WRITE ibv_access_flags.0,
            IBV_ACCESS_REMOTE_READ ibv_access_flags.0,
            IBV_WC_SUCCESS ibv_wc_status,
            IBV_WC_WR_FLUSH_ERR ibv_wc_status,
            IBV_WC_RETRY_EXC_ERR ibv_wc_status,
            IBV_WC_RNR_RETRY_EXC_ERR ibv_wc_status,
            IBV_WC_RECV_RDMA_WITH_IMM ibv_wc_opcode,
            IBV_WC_WITH_IMM ibv_wc_flags.0,
            IBV_QPT_RC ibv_qp_type,
            IBV_QPS_INIT ibv_qp_state,
            IBV_QPS_RTR ibv_qp_state,
            IBV_QPS_RTS ibv_qp_state,
            IBV_QPS_ERR ibv_qp_state,
            IBV_QP_STATE ibv_qp_attr_mask.0,
            IBV_QP_ACCESS_FLAGS ibv_qp_attr_mask.0,
            IBV_QP_PKEY_INDEX ibv_qp_attr_mask.0,
            IBV_QP_PORT ibv_qp_attr_mask.0,
            IBV_QP_AV ibv_qp_attr_mask.0,
            IBV_QP_PATH_MTU ibv_qp_attr_mask.0,
            IBV_QP_TIMEOUT ibv_qp_attr_mask.0,
            IBV_QP_RETRY_CNT ibv_qp_attr_mask.0,
            IBV_QP_RNR_RETRY ibv_qp_attr_mask.0,
            IBV_QP_RQ_PSN ibv_qp_attr_mask.0,
            IBV_QP_MAX_QP_RD_ATOMIC ibv_qp_attr_mask.0,
            IBV_QP_MIN_RNR_TIMER ibv_qp_attr_mask.0,
            IBV_QP_SQ_PSN ibv_qp_attr_mask.0,
            IBV_QP_MAX_DEST_RD_ATOMIC ibv_qp_attr_mask.0,
            IBV_QP_DEST_QPN ibv_qp_attr_mask.0,
            IBV_WR_RDMA_WRITE ibv_wr_opcode,
            IBV_WR_RDMA_WRITE_WITH_IMM ibv_wr_opcode,
            IBV_WR_SEND_WITH_IMM ibv_wr_opcode,
            IBV_WR_RDMA_READ ibv_wr_opcode,
            IBV_SEND_FENCE ibv_send_flags.0,
            IBV_SEND_SIGNALED ibv_send_flags.0,
            IBV_SEND_INLINE ibv_send_flags.0
        )
    };
}

/// Exported functions, each with as many `_` as it has parameters.
macro_rules! functions {
    ($package:ident $($name:ident($($parameter:tt),*)),*) => {
        BTreeMap::from([$((
            stringify!($name),
            sizes_of($package::$name as unsafe extern "C" fn($($parameter),*) -> _),
        )),*])
    };
}

macro_rules! all_functions {
    ($package:ident) => {
        functions!($package
            ibv_get_device_list(_),
            ibv_free_device_list(_),
            ibv_get_device_name(_),
            ibv_open_device(_),
            ibv_close_device(_),
            ibv_query_device(_, _),
            ibv_query_port(_, _, _),
            ibv_alloc_pd(_),
            ibv_dealloc_pd(_),
            ibv_reg_mr(_, _, _, _),
            ibv_dereg_mr(_),
            ibv_create_comp_channel(_),
            ibv_destroy_comp_channel(_),
            ibv_create_cq(_, _, _, _, _),
            ibv_destroy_cq(_),
            ibv_get_cq_event(_, _, _),
            ibv_ack_cq_events(_, _),
            ibv_create_qp(_, _),
            ibv_modify_qp(_, _, _),
            ibv_destroy_qp(_)
        )
    };
}

macro_rules! slots {
    ($package:ident $($field:ident)*) => {
        BTreeMap::from([$((stringify!($field), (
            offset_of!($package::ibv_context, ops.$field),
            sizes_in(|ops: &$package::ibv_context_ops| ops.$field),
        ))),*])
    };
}

/// The declarations of rdma-sys, made of the installed headers. That package leaves out names that
/// begin with an underscore, and the link layers.
#[must_use]
pub fn rdma_sys() -> Declared {
    let mut structs = structs!(rdma_sys);
    structs.extend([
        structure!(rdma_sys "struct ibv_wc" ibv_wc {
            wr_id status opcode vendor_err byte_len qp_num src_qp wc_flags pkey_index slid sl
            dlid_path_bits
        } "imm_data": imm_data_invalidated_rkey_union.imm_data),
        structure!(rdma_sys "struct ibv_send_wr" ibv_send_wr {
            wr_id next sg_list num_sge opcode send_flags
        }
            "imm_data": imm_data_invalidated_rkey_union.imm_data;
            "wr.rdma.remote_addr": wr.rdma.remote_addr,
            "wr.rdma.rkey": wr.rdma.rkey
        ),
    ]);
    Declared {
        structs,
        constants: all_constants!(rdma_sys),
        functions: all_functions!(rdma_sys),
        slots: slots!(rdma_sys poll_cq req_notify_cq post_send post_recv),
    }
}

/// The declarations of ibverbs, made of the headers of the rdma-core that it contains. Its
/// completions have private fields, which only [`crate::calls::completion`] reaches.
#[must_use]
pub fn ibverbs() -> Declared {
    let mut structs = structs!(ibverbs_sys);
    structs.extend([
        structure!(ibverbs_sys "struct ibv_wc" ibv_wc {
            imm_data qp_num src_qp wc_flags pkey_index slid sl dlid_path_bits
        }),
        structure!(ibverbs_sys "struct ibv_send_wr" ibv_send_wr {
            wr_id next sg_list num_sge opcode send_flags
        }
            "imm_data": __bindgen_anon_1.imm_data;
            "wr.rdma.remote_addr": wr.rdma.remote_addr,
            "wr.rdma.rkey": wr.rdma.rkey
        ),
    ]);
    let mut constants = all_constants!(ibverbs_sys);
    constants.extend(constants!(ibverbs_sys IBV_LINK_LAYER_INFINIBAND));
    let mut functions = all_functions!(ibverbs_sys);
    functions.extend(functions!(ibverbs_sys _ibv_query_gid_table(_, _, _, _, _)));
    Declared {
        structs,
        constants,
        functions,
        slots: slots!(ibverbs_sys poll_cq req_notify_cq post_send post_recv),
    }
}
