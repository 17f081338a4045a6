//! The proxy's own endpoints, metrics and statistics.

pub(crate) mod answer_cache;
pub(crate) mod api;
pub(crate) mod assets;
pub(crate) mod metrics;
pub(crate) mod own_change;
pub(crate) mod policy_comparison;
pub(crate) mod readiness;
pub(crate) mod routes;
pub(crate) mod stats;
