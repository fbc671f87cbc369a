//! The worker processes: how many, how large, how they end.

use serde::{Deserialize, Serialize};

use super::pod::PodTemplate;
#[cfg(feature = "kube")]
use crate::limits;

/// Settings of the worker processes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Workers {
    /// Number of workers. 0 stops delivery and receiving; rows may still be written.
    #[cfg_attr(feature = "kube", schemars(range(min = limits::REPLICAS.min, max = limits::REPLICAS.max)))]
    pub replicas: u32,

    /// How long a worker that fell silent keeps its work before others take over.
    #[cfg_attr(feature = "kube", schemars(range(min = limits::LEASE_SECONDS.min, max = limits::LEASE_SECONDS.max)))]
    pub lease_seconds: u32,

    /// Time a worker has after a stop signal. It hands back what it could not finish five seconds before the end.
    #[cfg_attr(feature = "kube", schemars(range(min = limits::GRACE_SECONDS.min, max = limits::GRACE_SECONDS.max)))]
    pub termination_grace_period_seconds: u32,

    /// Processor time and memory of a worker.
    pub resources: Resources,

    /// How many workers an orderly eviction, such as a node drain, may take away at once.
    pub pod_disruption_budget: DisruptionBudget,

    /// Additions to the pods. It cannot choose containers, volumes, host settings or the service account: what a pod
    /// may be is what reaches the Secrets of the namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_template: Option<PodTemplate>,
}

impl Default for Workers {
    fn default() -> Self {
        Self {
            replicas: 1,
            lease_seconds: 15,
            termination_grace_period_seconds: 60,
            resources: Resources::default(),
            pod_disruption_budget: DisruptionBudget::default(),
            pod_template: None,
        }
    }
}

/// Processor time and memory of a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Resources {
    /// What the scheduler keeps free for it.
    pub requests: Amounts,

    /// What it can have at most.
    pub limits: Amounts,
}

impl Default for Resources {
    fn default() -> Self {
        let amounts = |cpu: Option<&str>, memory: &str| Amounts {
            cpu: cpu.map(str::to_owned),
            memory: Some(memory.to_owned()),
        };
        Self {
            requests: amounts(Some("100m"), "64Mi"),
            limits: amounts(None, "256Mi"),
        }
    }
}

/// Amounts of processor time and memory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Amounts {
    /// Processors, such as `100m` or `2`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "kube", schemars(length(min = 1, max = limits::QUANTITY_BYTES), regex(pattern = limits::QUANTITY_PATTERN)))]
    pub cpu: Option<String>,

    /// Memory, such as `256Mi`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "kube", schemars(length(min = 1, max = limits::QUANTITY_BYTES), regex(pattern = limits::QUANTITY_PATTERN)))]
    pub memory: Option<String>,
}

/// How many workers an orderly eviction may take away at once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct DisruptionBudget {
    /// Whether there is a budget.
    pub enabled: bool,

    /// Most workers that may be away at once.
    #[cfg_attr(feature = "kube", schemars(range(min = limits::MAX_UNAVAILABLE.min, max = limits::MAX_UNAVAILABLE.max)))]
    pub max_unavailable: u32,
}

impl Default for DisruptionBudget {
    fn default() -> Self {
        Self {
            enabled: true,
            max_unavailable: 1,
        }
    }
}
