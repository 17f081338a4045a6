//! The side of the provider: connections, models and windows, response heads, relaying.

pub(crate) mod aws;
pub(crate) mod backoff;
pub(crate) mod client;
pub(crate) mod connector;
pub(crate) mod credentials;
pub(crate) mod diagnosis;
pub(crate) mod learned_window;
pub(crate) mod model_transport;
pub(crate) mod models;
pub(crate) mod outbound;
pub(crate) mod pass_through;
pub(crate) mod relay;
pub(crate) mod response_head;
pub(crate) mod send;
pub(crate) mod unknown_paths;
pub(crate) mod window_probe;
