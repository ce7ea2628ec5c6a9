//! RRPC over verbs, plain and with faults, on hosts with an RDMA port.
#![allow(clippy::unwrap_used, reason = "a panic is a test's failure")]

#[path = "../../fabric-verbs/tests/common/mod.rs"]
mod common;
mod suite;

use common::{Verbs, is_there};
use rackpool_fabric::conformance::decorated::Late;

mod verbs {
    crate::rrpc_tests!(crate::Verbs, if crate::is_there());
}

mod verbs_with_faults {
    crate::rrpc_tests!(crate::Late(crate::Verbs), if crate::is_there());
}
