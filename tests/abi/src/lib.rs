//! The ABI of libibverbs as the packages rdma-sys and ibverbs declare it, for comparison with
//! `crates/fabric-verbs`; and a peer that is written with ibverbs.
#![expect(unsafe_code, reason = "calls what others declare")]

pub mod calls;
#[forbid(unsafe_code)]
pub mod declared;
#[forbid(unsafe_code)]
pub mod handshake;
pub mod verbs;
