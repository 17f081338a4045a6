//! The doors of foldline that speak a protocol: the drop-in proxy and the MCP server, and a
//! rehearsal that shows the proxy at work.
//!
//! This crate speaks to others. It reads no environment and no settings file: what it needs is handed
//! to it.

pub mod demo;
pub mod mcp;
pub mod proxy;
