//! The ABI of libibverbs as the packages rdma-sys and ibverbs declare it, for comparison with
//! `crates/fabric-verbs`.
#![expect(unsafe_code, reason = "calls what others declare")]

pub mod calls;
#[forbid(unsafe_code)]
pub mod declared;
