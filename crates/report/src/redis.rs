//! The results of Redis on the same machine.

use rackpool_ycsb::WorkloadResult;
use serde::{Deserialize, Serialize};

/// YCSB through Redis, or why there is none.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Redis {
    /// The workloads ran.
    Compared {
        /// Name and version of the server: `Redis 7.0.15`.
        server: String,
        /// The load and the workloads, in the order they ran.
        results: Vec<WorkloadResult>,
    },
    /// Redis was not compared.
    NotCompared {
        /// The reason.
        why: String,
    },
}

impl Redis {
    /// The results; none if Redis was not compared.
    #[must_use]
    pub fn results(&self) -> &[WorkloadResult] {
        match self {
            Self::Compared { results, .. } => results,
            Self::NotCompared { .. } => &[],
        }
    }
}
