//! Checks the layouts and constants against numbers, and the numbers against the C headers.

use std::mem::offset_of;
use std::path::Path;
use std::process::Command;

use rackpool_skip::skipped;

use super::*;

const HEADER: &str = "infiniband/verbs.h";

/// The C expression, its value on x86-64 and aarch64, and the value in this crate.
const TABLE: &[(&str, usize, usize)] = &[
    ("sizeof(union ibv_gid)", 16, size_of::<Gid>()),
    ("sizeof(struct ibv_gid_entry)", 32, size_of::<GidEntry>()),
    ("offsetof(struct ibv_gid_entry, gid_index)", 16, offset_of!(GidEntry, gid_index)),
    ("offsetof(struct ibv_gid_entry, port_num)", 20, offset_of!(GidEntry, port_num)),
    ("offsetof(struct ibv_gid_entry, gid_type)", 24, offset_of!(GidEntry, gid_type)),
    ("offsetof(struct ibv_context, ops.poll_cq)", 96, offset_of!(Context, ops.poll_cq)),
    (
        "offsetof(struct ibv_context, ops.req_notify_cq)",
        104,
        offset_of!(Context, ops.req_notify_cq),
    ),
    ("offsetof(struct ibv_context, ops.post_send)", 208, offset_of!(Context, ops.post_send)),
    ("offsetof(struct ibv_context, ops.post_recv)", 216, offset_of!(Context, ops.post_recv)),
    ("sizeof(struct ibv_context_ops)", 256, size_of::<ContextOps>()),
    ("offsetof(struct ibv_device_attr, max_mr_size)", 80, offset_of!(DeviceAttr, max_mr_size)),
    ("offsetof(struct ibv_device_attr, max_qp_wr)", 112, offset_of!(DeviceAttr, max_qp_wr)),
    ("offsetof(struct ibv_device_attr, max_sge)", 120, offset_of!(DeviceAttr, max_sge)),
    ("offsetof(struct ibv_device_attr, max_cqe)", 132, offset_of!(DeviceAttr, max_cqe)),
    (
        "offsetof(struct ibv_device_attr, max_qp_rd_atom)",
        144,
        offset_of!(DeviceAttr, max_qp_rd_atom),
    ),
    (
        "offsetof(struct ibv_device_attr, max_qp_init_rd_atom)",
        156,
        offset_of!(DeviceAttr, max_qp_init_rd_atom),
    ),
    ("offsetof(struct ibv_device_attr, phys_port_cnt)", 227, offset_of!(DeviceAttr, phys_port_cnt)),
    ("sizeof(struct ibv_device_attr)", 232, size_of::<DeviceAttr>()),
    ("offsetof(struct ibv_port_attr, state)", 0, offset_of!(PortAttr, state)),
    ("offsetof(struct ibv_port_attr, active_mtu)", 8, offset_of!(PortAttr, active_mtu)),
    ("offsetof(struct ibv_port_attr, max_msg_sz)", 20, offset_of!(PortAttr, max_msg_sz)),
    ("offsetof(struct ibv_port_attr, lid)", 34, offset_of!(PortAttr, lid)),
    ("offsetof(struct ibv_port_attr, link_layer)", 46, offset_of!(PortAttr, link_layer)),
    ("sizeof(struct ibv_port_attr)", 52, size_of::<PortAttr>()),
    ("offsetof(struct ibv_mr, addr)", 16, offset_of!(Mr, addr)),
    ("offsetof(struct ibv_mr, length)", 24, offset_of!(Mr, length)),
    ("offsetof(struct ibv_mr, lkey)", 36, offset_of!(Mr, lkey)),
    ("offsetof(struct ibv_mr, rkey)", 40, offset_of!(Mr, rkey)),
    ("sizeof(struct ibv_mr)", 48, size_of::<Mr>()),
    ("offsetof(struct ibv_comp_channel, fd)", 8, offset_of!(CompChannel, fd)),
    ("sizeof(struct ibv_comp_channel)", 16, size_of::<CompChannel>()),
    ("offsetof(struct ibv_wc, wr_id)", 0, offset_of!(Wc, wr_id)),
    ("offsetof(struct ibv_wc, status)", 8, offset_of!(Wc, status)),
    ("offsetof(struct ibv_wc, opcode)", 12, offset_of!(Wc, opcode)),
    ("offsetof(struct ibv_wc, byte_len)", 20, offset_of!(Wc, byte_len)),
    ("offsetof(struct ibv_wc, imm_data)", 24, offset_of!(Wc, imm_data)),
    ("offsetof(struct ibv_wc, wc_flags)", 36, offset_of!(Wc, wc_flags)),
    ("sizeof(struct ibv_wc)", 48, size_of::<Wc>()),
    ("offsetof(struct ibv_qp_cap, max_send_wr)", 0, offset_of!(QpCap, max_send_wr)),
    ("offsetof(struct ibv_qp_cap, max_recv_wr)", 4, offset_of!(QpCap, max_recv_wr)),
    ("offsetof(struct ibv_qp_cap, max_send_sge)", 8, offset_of!(QpCap, max_send_sge)),
    ("offsetof(struct ibv_qp_cap, max_recv_sge)", 12, offset_of!(QpCap, max_recv_sge)),
    ("offsetof(struct ibv_qp_cap, max_inline_data)", 16, offset_of!(QpCap, max_inline_data)),
    ("sizeof(struct ibv_qp_cap)", 20, size_of::<QpCap>()),
    ("offsetof(struct ibv_qp_init_attr, send_cq)", 8, offset_of!(QpInitAttr, send_cq)),
    ("offsetof(struct ibv_qp_init_attr, recv_cq)", 16, offset_of!(QpInitAttr, recv_cq)),
    ("offsetof(struct ibv_qp_init_attr, srq)", 24, offset_of!(QpInitAttr, srq)),
    ("offsetof(struct ibv_qp_init_attr, cap)", 32, offset_of!(QpInitAttr, cap)),
    ("offsetof(struct ibv_qp_init_attr, qp_type)", 52, offset_of!(QpInitAttr, qp_type)),
    ("offsetof(struct ibv_qp_init_attr, sq_sig_all)", 56, offset_of!(QpInitAttr, sq_sig_all)),
    ("sizeof(struct ibv_qp_init_attr)", 64, size_of::<QpInitAttr>()),
    ("offsetof(struct ibv_qp, qp_num)", 52, offset_of!(Qp, qp_num)),
    ("offsetof(struct ibv_global_route, dgid)", 0, offset_of!(GlobalRoute, dgid)),
    ("offsetof(struct ibv_global_route, sgid_index)", 20, offset_of!(GlobalRoute, sgid_index)),
    ("offsetof(struct ibv_global_route, hop_limit)", 21, offset_of!(GlobalRoute, hop_limit)),
    ("sizeof(struct ibv_global_route)", 24, size_of::<GlobalRoute>()),
    ("offsetof(struct ibv_ah_attr, grh)", 0, offset_of!(AhAttr, grh)),
    ("offsetof(struct ibv_ah_attr, dlid)", 24, offset_of!(AhAttr, dlid)),
    ("offsetof(struct ibv_ah_attr, is_global)", 29, offset_of!(AhAttr, is_global)),
    ("offsetof(struct ibv_ah_attr, port_num)", 30, offset_of!(AhAttr, port_num)),
    ("sizeof(struct ibv_ah_attr)", 32, size_of::<AhAttr>()),
    ("offsetof(struct ibv_qp_attr, qp_state)", 0, offset_of!(QpAttr, qp_state)),
    ("offsetof(struct ibv_qp_attr, path_mtu)", 8, offset_of!(QpAttr, path_mtu)),
    ("offsetof(struct ibv_qp_attr, rq_psn)", 20, offset_of!(QpAttr, rq_psn)),
    ("offsetof(struct ibv_qp_attr, sq_psn)", 24, offset_of!(QpAttr, sq_psn)),
    ("offsetof(struct ibv_qp_attr, dest_qp_num)", 28, offset_of!(QpAttr, dest_qp_num)),
    ("offsetof(struct ibv_qp_attr, qp_access_flags)", 32, offset_of!(QpAttr, qp_access_flags)),
    ("offsetof(struct ibv_qp_attr, ah_attr)", 56, offset_of!(QpAttr, ah_attr)),
    ("offsetof(struct ibv_qp_attr, max_rd_atomic)", 126, offset_of!(QpAttr, max_rd_atomic)),
    (
        "offsetof(struct ibv_qp_attr, max_dest_rd_atomic)",
        127,
        offset_of!(QpAttr, max_dest_rd_atomic),
    ),
    ("offsetof(struct ibv_qp_attr, min_rnr_timer)", 128, offset_of!(QpAttr, min_rnr_timer)),
    ("offsetof(struct ibv_qp_attr, port_num)", 129, offset_of!(QpAttr, port_num)),
    ("offsetof(struct ibv_qp_attr, timeout)", 130, offset_of!(QpAttr, timeout)),
    ("offsetof(struct ibv_qp_attr, retry_cnt)", 131, offset_of!(QpAttr, retry_cnt)),
    ("offsetof(struct ibv_qp_attr, rnr_retry)", 132, offset_of!(QpAttr, rnr_retry)),
    ("sizeof(struct ibv_qp_attr)", 144, size_of::<QpAttr>()),
    ("offsetof(struct ibv_sge, addr)", 0, offset_of!(Sge, addr)),
    ("offsetof(struct ibv_sge, length)", 8, offset_of!(Sge, length)),
    ("offsetof(struct ibv_sge, lkey)", 12, offset_of!(Sge, lkey)),
    ("sizeof(struct ibv_sge)", 16, size_of::<Sge>()),
    ("offsetof(struct ibv_send_wr, next)", 8, offset_of!(SendWr, next)),
    ("offsetof(struct ibv_send_wr, sg_list)", 16, offset_of!(SendWr, sg_list)),
    ("offsetof(struct ibv_send_wr, num_sge)", 24, offset_of!(SendWr, num_sge)),
    ("offsetof(struct ibv_send_wr, opcode)", 28, offset_of!(SendWr, opcode)),
    ("offsetof(struct ibv_send_wr, send_flags)", 32, offset_of!(SendWr, send_flags)),
    ("offsetof(struct ibv_send_wr, imm_data)", 36, offset_of!(SendWr, imm_data)),
    ("offsetof(struct ibv_send_wr, wr.rdma.remote_addr)", 40, offset_of!(SendWr, remote_addr)),
    ("offsetof(struct ibv_send_wr, wr.rdma.rkey)", 48, offset_of!(SendWr, rkey)),
    ("sizeof(struct ibv_send_wr)", 128, size_of::<SendWr>()),
    ("offsetof(struct ibv_recv_wr, next)", 8, offset_of!(RecvWr, next)),
    ("offsetof(struct ibv_recv_wr, sg_list)", 16, offset_of!(RecvWr, sg_list)),
    ("offsetof(struct ibv_recv_wr, num_sge)", 24, offset_of!(RecvWr, num_sge)),
    ("sizeof(struct ibv_recv_wr)", 32, size_of::<RecvWr>()),
    ("IBV_GID_TYPE_ROCE_V2", 2, GID_TYPE_ROCE_V2 as usize),
    ("IBV_PORT_ACTIVE", 4, PORT_ACTIVE as usize),
    ("IBV_LINK_LAYER_INFINIBAND", 1, LINK_LAYER_INFINIBAND as usize),
    ("IBV_ACCESS_LOCAL_WRITE", 1, ACCESS_LOCAL_WRITE as usize),
    ("IBV_ACCESS_REMOTE_WRITE", 2, ACCESS_REMOTE_WRITE as usize),
    ("IBV_ACCESS_REMOTE_READ", 4, ACCESS_REMOTE_READ as usize),
    ("IBV_WC_SUCCESS", 0, WC_SUCCESS as usize),
    ("IBV_WC_WR_FLUSH_ERR", 5, WC_WR_FLUSH_ERR as usize),
    ("IBV_WC_RETRY_EXC_ERR", 12, WC_RETRY_EXC_ERR as usize),
    ("IBV_WC_RNR_RETRY_EXC_ERR", 13, WC_RNR_RETRY_EXC_ERR as usize),
    ("IBV_WC_RECV_RDMA_WITH_IMM", 129, WC_RECV_RDMA_WITH_IMM as usize),
    ("IBV_WC_WITH_IMM", 2, WC_WITH_IMM as usize),
    ("IBV_QPT_RC", 2, QPT_RC as usize),
    ("IBV_QPS_INIT", 1, QPS_INIT as usize),
    ("IBV_QPS_RTR", 2, QPS_RTR as usize),
    ("IBV_QPS_RTS", 3, QPS_RTS as usize),
    ("IBV_QPS_ERR", 6, QPS_ERR as usize),
    ("IBV_QP_STATE", 1, QP_STATE as usize),
    ("IBV_QP_ACCESS_FLAGS", 8, QP_ACCESS_FLAGS as usize),
    ("IBV_QP_PKEY_INDEX", 16, QP_PKEY_INDEX as usize),
    ("IBV_QP_PORT", 32, QP_PORT as usize),
    ("IBV_QP_AV", 128, QP_AV as usize),
    ("IBV_QP_PATH_MTU", 256, QP_PATH_MTU as usize),
    ("IBV_QP_TIMEOUT", 512, QP_TIMEOUT as usize),
    ("IBV_QP_RETRY_CNT", 1024, QP_RETRY_CNT as usize),
    ("IBV_QP_RNR_RETRY", 2048, QP_RNR_RETRY as usize),
    ("IBV_QP_RQ_PSN", 4096, QP_RQ_PSN as usize),
    ("IBV_QP_MAX_QP_RD_ATOMIC", 8192, QP_MAX_QP_RD_ATOMIC as usize),
    ("IBV_QP_MIN_RNR_TIMER", 32768, QP_MIN_RNR_TIMER as usize),
    ("IBV_QP_SQ_PSN", 65536, QP_SQ_PSN as usize),
    ("IBV_QP_MAX_DEST_RD_ATOMIC", 131072, QP_MAX_DEST_RD_ATOMIC as usize),
    ("IBV_QP_DEST_QPN", 1048576, QP_DEST_QPN as usize),
    ("IBV_WR_RDMA_WRITE", 0, WR_RDMA_WRITE as usize),
    ("IBV_WR_RDMA_WRITE_WITH_IMM", 1, WR_RDMA_WRITE_WITH_IMM as usize),
    ("IBV_WR_SEND_WITH_IMM", 3, WR_SEND_WITH_IMM as usize),
    ("IBV_WR_RDMA_READ", 4, WR_RDMA_READ as usize),
    ("IBV_SEND_FENCE", 1, SEND_FENCE as usize),
    ("IBV_SEND_SIGNALED", 2, SEND_SIGNALED as usize),
    ("IBV_SEND_INLINE", 8, SEND_INLINE as usize),
];

#[test]
fn structs_and_constants_are_those_of_the_abi() {
    for (name, expected, here) in TABLE {
        assert_eq!(here, expected, "{name}");
    }
}

/// Where the headers (libibverbs-dev) are installed, the C compiler evaluates the expressions.
#[test]
fn the_numbers_are_those_of_the_installed_headers() {
    if !Path::new("/usr/include").join(HEADER).exists() {
        return skipped(&format!("{HEADER} is not installed"));
    }
    let folder = tempfile::tempdir().unwrap();
    let (source, program) = (folder.path().join("abi.c"), folder.path().join("abi"));
    let mut text = format!("#include <stddef.h>\n#include <stdio.h>\n#include <{HEADER}>\n");
    text.push_str("int main(void) {\n");
    for (name, ..) in TABLE {
        text.push_str(&format!("printf(\"%zu\\n\", (size_t)({name}));\n"));
    }
    text.push_str("return 0; }\n");
    std::fs::write(&source, text).unwrap();
    let compiled = Command::new("cc").arg(&source).arg("-o").arg(&program).status().unwrap();
    assert!(compiled.success());
    let printed = String::from_utf8(Command::new(&program).output().unwrap().stdout).unwrap();
    let numbers: Vec<usize> = printed.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(numbers.len(), TABLE.len());
    for ((name, expected, _), number) in TABLE.iter().zip(numbers) {
        assert_eq!(*expected, number, "{name}");
    }
}
