//! The provider's laws: what a request must obey, where a conversation may be cut, how orphans are
//! mended, and what a rewritten request owes to the client's.
//!
//! [`law`](Law) holds the one table of named laws; a [`Profile`] is the selection that a format, a model
//! and a server make from it. Each file below checks the laws of one topic, in one walk over the
//! request. Nothing here edits a request, and nothing knows what a fold is.

mod arguments;
mod cache_marks;
mod compare;
mod cuts;
mod law;
mod local;
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

pub use compare::{Rewriting, Thinking, compare};
pub use cuts::{Cuts, cuts};
pub use law::{Law, Topic};
pub use profile::{Profile, Server};
pub use reference::reference;
pub(crate) use repair::likely_format;
pub use repair::{Repairs, repair, repair_as, repair_edits};

use crate::conversation::{Conversation, PartId};
use crate::wire::{Format, Request};

/// A law that is broken, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Violation {
    /// Which law.
    pub law: Law,
    /// Where it is broken.
    pub at: Place,
    /// What is wrong there.
    pub detail: String,
}

/// A place in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Place {
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

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Request => write!(f, "request"),
            Place::Field(name) => write!(f, "field {name}"),
            Place::Instruction(at) => write!(f, "instruction {at}"),
            Place::Tool(at) => write!(f, "tool {at}"),
            Place::Message(at) => write!(f, "message {at}"),
            Place::Part(at) => write!(f, "part {at}"),
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.at, self.law, self.detail)
    }
}

/// All laws that a request breaks, topic after topic, and in each in the order of the messages.
///
/// ```
/// use foldline::laws::{self, Law, Profile};
/// use foldline::wire::{Format, Request};
///
/// let body = br#"{"messages":[{"role":"tool","tool_call_id":"c1","content":"ok"}]}"#;
/// let request = Request::parse(Format::OpenAiChat, body)?;
/// let broken = laws::check(&request, &Profile::of_request(&request));
/// assert_eq!(broken[0].law, Law::ResultHasCall);
/// assert_eq!(broken[0].to_string(), "part 0.0: result-has-call: no call before it has the id `c1`");
/// # Ok::<(), foldline::Error>(())
/// ```
pub fn check(request: &Request<'_>, profile: &Profile) -> Vec<Violation> {
    let mut findings = Findings { profile, found: Vec::new() };
    if request.is_continuation() {
        roles::no_previous_response(request, &mut findings);
    } else {
        pairing::check(request.conversation(), Ending::Sent, &mut findings);
        pairing::check_wire(request, &mut findings);
        roles::check(request.conversation(), &mut findings);
        roles::check_wire(request, &mut findings);
    }
    text::check(request, &mut findings);
    reasoning::check(request, &mut findings);
    tools::check(request, &mut findings);
    arguments::check(request.conversation(), &mut findings);
    arguments::check_wire(request, &mut findings);
    cache_marks::check(request, &mut findings);
    media::check(request, &mut findings);
    local::check(request.conversation(), &mut findings);
    local::check_wire(request, &mut findings);
    findings.found
}

/// The laws that a conversation breaks, as far as they can be seen without the request: pairs, roles,
/// empty texts, arguments. Calls at the end whose results have not come yet break none.
pub fn check_conversation(conversation: &Conversation<'_>, profile: &Profile) -> Vec<Violation> {
    let mut findings = Findings { profile, found: Vec::new() };
    pairing::check(conversation, Ending::Open, &mut findings);
    roles::check(conversation, &mut findings);
    text::check_conversation(conversation, &mut findings);
    arguments::check(conversation, &mut findings);
    local::check(conversation, &mut findings);
    findings.found
}

/// What calls without result at the end of a conversation are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// A request is sent with them: an error.
    Sent,
    /// In flight: their results come later.
    Open,
}

/// What was found so far, and by which laws to judge.
struct Findings<'p> {
    profile: &'p Profile,
    found: Vec<Violation>,
}

impl Findings<'_> {
    fn has(&self, law: Law) -> bool {
        self.profile.has(law)
    }

    fn format(&self) -> Format {
        self.profile.format()
    }

    /// Notes a broken law, if it applies.
    fn broken(&mut self, law: Law, at: Place, detail: impl fmt::Display) {
        if self.has(law) {
            self.found.push(Violation { law, at, detail: detail.to_string() });
        }
    }

    /// Notes a broken law at a part, if it applies.
    fn broken_part(&mut self, law: Law, at: PartId, detail: impl fmt::Display) {
        self.broken(law, Place::Part(at), detail);
    }
}
