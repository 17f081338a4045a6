//! The provider's laws: the rules that a request must obey, the points where a conversation may be
//! cut, the repair of orphans, and the comparison of a rewritten request with the client's.
//!
//! [`law`](Law) holds the one table of named laws; a [`LawProfile`] is the subset that applies to a
//! format, a model and a server. Each file checks the laws of one topic, in one walk over the
//! request. Nothing here edits a request, and nothing depends on folds.

mod api_version;
mod arguments;
pub(crate) mod cache_breakpoints;
pub(crate) mod chat_template;
mod check;
mod compare;
mod cuts;
mod law;
mod media;
mod pairing;
mod profile;
mod reasoning;
mod reference;
mod repair;
mod roles;
mod server_kind;
#[cfg(test)]
mod tests;
mod text;
mod tools;
mod violation;

pub use check::{check, check_before_sending, check_conversation};
pub use compare::{RewriteContext, ThinkingTreatment, compare};
pub use cuts::{CutPoints, free_cuts};
pub use law::{Law, LawTopic};
pub use profile::LawProfile;
pub use reference::reference_page;
pub(crate) use repair::guess_format;
pub use repair::{RepairCounts, repair, repair_as, repair_edits};
pub use server_kind::ServerKind;
pub use violation::{LawViolation, RequestLocation};
