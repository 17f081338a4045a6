//! The doors of foldline that speak a protocol. So far the MCP server; the proxy and its dashboard
//! join it here.
//!
//! This crate speaks to others. It reads no environment and no settings file: what it needs is handed
//! to it.

pub mod mcp;
