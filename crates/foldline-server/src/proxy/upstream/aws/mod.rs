//! Requests to Amazon Bedrock that are signed with AWS credentials of the proxy.

pub(crate) mod credentials;
pub(crate) mod profile;
pub(crate) mod signature;
pub(crate) mod signer;
