//! The network services of foldline: the drop-in proxy, the MCP server, and a demo that runs the proxy
//! against a scripted agent and provider.
//!
//! This crate reads no environment variables and no settings file; callers pass in everything it needs.

pub mod activity;
pub mod demo;
pub mod mcp;
pub mod proxy;
