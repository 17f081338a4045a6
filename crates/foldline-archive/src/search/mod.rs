//! The search index: tokenizing, redaction, queries and snippets.

pub(crate) mod index;
pub(crate) mod query;
pub(crate) mod redact;
pub(crate) mod snippet;
pub(crate) mod tokenize;
