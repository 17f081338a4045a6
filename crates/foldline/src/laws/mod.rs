//! The provider's laws: the rules that a request must obey, the points where a conversation may be
//! cut, the repair of orphans, and the comparison of a rewritten request with the client's.
//!
//! [`law`](Law) holds the one table of named laws; a [`LawProfile`] is the subset that applies to a
//! format, a model and a server. Each file checks the laws of one topic, in one walk over the
//! request. Nothing here edits a request, and nothing depends on folds.

mod arguments;
pub(crate) mod cache_breakpoints;
pub(crate) mod chat_template;
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
#[cfg(test)]
mod tests;
mod text;
mod tools;

use std::fmt;

pub use compare::{RewriteContext, ThinkingTreatment, compare};
pub use cuts::{CutPoints, free_cuts};
pub use law::{Law, LawTopic};
pub use profile::{LawProfile, ServerKind};
pub use reference::reference_page;
pub(crate) use repair::guess_format;
pub use repair::{RepairCounts, repair, repair_as, repair_edits};

use crate::conversation::{Conversation, PartId};
use crate::wire::{Format, Request};

/// A broken law and its location.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LawViolation {
    /// The broken law.
    pub law: Law,
    /// Location of the violation.
    pub at: RequestLocation,
    /// Description of the violation.
    pub detail: String,
}

/// A location in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RequestLocation {
    /// The request as a whole.
    Request,
    /// A field at the top of the request.
    Field(&'static str),
    /// An instruction outside the messages, by its index.
    Instruction(usize),
    /// A declared tool, by its index.
    Tool(usize),
    /// A message, by its index.
    Message(usize),
    /// A part of a message.
    Part(PartId),
}

impl fmt::Display for RequestLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RequestLocation::Request => write!(f, "request"),
            RequestLocation::Field(name) => write!(f, "field {name}"),
            RequestLocation::Instruction(at) => write!(f, "instruction {at}"),
            RequestLocation::Tool(at) => write!(f, "tool {at}"),
            RequestLocation::Message(at) => write!(f, "message {at}"),
            RequestLocation::Part(at) => write!(f, "part {at}"),
        }
    }
}

impl fmt::Display for LawViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.at, self.law, self.detail)
    }
}

/// Returns all violations of a request, by topic, and within a topic in message order.
///
/// ```
/// use foldline::laws::{self, Law, LawProfile};
/// use foldline::wire::{Format, Request};
///
/// let body = br#"{"messages":[{"role":"tool","tool_call_id":"c1","content":"ok"}]}"#;
/// let request = Request::parse(Format::OpenAiChat, body)?;
/// let violations = laws::check(&request, &LawProfile::for_request(&request));
/// assert_eq!(violations[0].law, Law::ResultHasCall);
/// assert_eq!(violations[0].to_string(), "part 0.0: result-has-call: no call before it has the id `c1`");
/// # Ok::<(), foldline::Error>(())
/// ```
pub fn check(request: &Request<'_>, profile: &LawProfile) -> Vec<LawViolation> {
    let mut findings = ViolationCollector { profile, violations: Vec::new() };
    if request.is_continuation() {
        roles::check_no_previous_response(request, &mut findings);
    } else {
        pairing::check(request.conversation(), TrailingCalls::Unanswered, &mut findings);
        pairing::check_request(request, &mut findings);
        roles::check(request.conversation(), &mut findings);
        roles::check_request(request, &mut findings);
    }
    text::check(request, &mut findings);
    reasoning::check(request, &mut findings);
    tools::check(request, &mut findings);
    arguments::check(request.conversation(), &mut findings);
    arguments::check_request(request, &mut findings);
    cache_breakpoints::check(request, &mut findings);
    media::check(request, &mut findings);
    chat_template::check(request.conversation(), &mut findings);
    chat_template::check_request(request, &mut findings);
    findings.violations
}

/// Returns the violations that can be found without the request: pairing, roles, empty texts,
/// arguments. Trailing calls that still wait for their results are not violations.
pub fn check_conversation(conversation: &Conversation<'_>, profile: &LawProfile) -> Vec<LawViolation> {
    let mut findings = ViolationCollector { profile, violations: Vec::new() };
    pairing::check(conversation, TrailingCalls::InFlight, &mut findings);
    roles::check(conversation, &mut findings);
    text::check_conversation(conversation, &mut findings);
    arguments::check(conversation, &mut findings);
    chat_template::check(conversation, &mut findings);
    findings.violations
}

/// Treatment of calls without a result at the end of a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TrailingCalls {
    /// An error, because the request is sent with them.
    Unanswered,
    /// In flight; their results arrive later.
    InFlight,
}

/// The violations found so far and the laws to check.
pub(crate) struct ViolationCollector<'p> {
    profile: &'p LawProfile,
    violations: Vec<LawViolation>,
}

impl ViolationCollector<'_> {
    fn has(&self, law: Law) -> bool {
        self.profile.has(law)
    }

    fn format(&self) -> Format {
        self.profile.format()
    }

    /// Records a violation if the law applies.
    fn report(&mut self, law: Law, at: RequestLocation, detail: impl fmt::Display) {
        if self.has(law) {
            self.violations.push(LawViolation { law, at, detail: detail.to_string() });
        }
    }

    /// Records a violation at a part if the law applies.
    fn report_part(&mut self, law: Law, at: PartId, detail: impl fmt::Display) {
        self.report(law, RequestLocation::Part(at), detail);
    }
}
