//! Runs the conformance suite on the verbs fabric, plain and decorated, on hosts with an RDMA port.

mod common;

use common::{Verbs, is_there};
use rackpool_fabric::conformance::decorated::{Late, Slow};

mod verbs {
    rackpool_fabric::conformance_tests!(crate::Verbs, if crate::is_there());
}

mod verbs_with_faults {
    rackpool_fabric::conformance_tests!(crate::Late(crate::Verbs), if crate::is_there());
}

mod verbs_throttled {
    rackpool_fabric::conformance_tests!(crate::Slow::new(crate::Verbs), if crate::is_there());
}
