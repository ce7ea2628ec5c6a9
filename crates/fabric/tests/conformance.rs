//! Runs the conformance suite on all providers, plain and decorated.

mod common;

use rackpool_fabric::conformance::decorated::{Late, Slow};

mod emulated {
    rackpool_fabric::conformance_tests!(crate::common::Emulated::new());
}

mod tcp {
    rackpool_fabric::conformance_tests!(crate::common::Tcp::default());
}

mod tcp_with_a_key {
    use rackpool_model::FabricKey;

    rackpool_fabric::conformance_tests!(crate::common::Tcp {
        key: Some(super::FabricKey::new([7; 32]))
    });
}

mod emulated_with_faults {
    rackpool_fabric::conformance_tests!(crate::Late(crate::common::Emulated::new()));
}

mod tcp_with_faults {
    rackpool_fabric::conformance_tests!(crate::Late(crate::common::Tcp::default()));
}

mod emulated_throttled {
    rackpool_fabric::conformance_tests!(crate::Slow::new(crate::common::Emulated::new()));
}

mod tcp_throttled {
    rackpool_fabric::conformance_tests!(crate::Slow::new(crate::common::Tcp::default()));
}
