//! Search: tokenizing, redaction, ranking and snippets.

pub(crate) mod document;
pub(crate) mod query;
pub(crate) mod redact;
pub(crate) mod snippet;
pub(crate) mod terms;
pub(crate) mod tokenize;
