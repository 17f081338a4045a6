//! Violations of laws: a law, a location and a description.

use std::fmt;

use crate::conversation::PartId;
use crate::laws::law::Law;
use crate::laws::profile::LawProfile;
use crate::wire::rules::DialectRules;

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

/// Treatment of calls without a result at the end of a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TrailingCalls {
    /// An error, because the request is sent with them.
    Unanswered,
    /// In flight; their results arrive later.
    InFlight,
}

/// The violations found so far and the laws to check.
pub(crate) struct ViolationCollector<'p> {
    pub(crate) profile: &'p LawProfile,
    pub(crate) violations: Vec<LawViolation>,
}

impl ViolationCollector<'_> {
    pub(crate) fn has(&self, law: Law) -> bool {
        self.profile.has(law)
    }

    /// Returns true if any of these laws applies, so that a walk over the request is worth its time.
    pub(crate) fn has_any(&self, laws: &[Law]) -> bool {
        laws.iter().any(|law| self.profile.has(*law))
    }

    /// Returns the facts about the dialect that checks depend on.
    pub(crate) fn rules(&self) -> &'static DialectRules {
        self.profile.rules()
    }

    /// Records a violation if the law applies.
    pub(crate) fn report(&mut self, law: Law, at: RequestLocation, detail: impl fmt::Display) {
        if self.has(law) {
            self.violations.push(LawViolation { law, at, detail: detail.to_string() });
        }
    }

    /// Records a violation at a part if the law applies.
    pub(crate) fn report_part(&mut self, law: Law, at: PartId, detail: impl fmt::Display) {
        self.report(law, RequestLocation::Part(at), detail);
    }
}
