//! The checks of a request or a conversation, topic by topic.

use crate::conversation::Conversation;
use crate::laws::profile::LawProfile;
use crate::laws::violation::{LawViolation, TrailingCalls, ViolationCollector};
use crate::laws::{
    api_version, arguments, cache_breakpoints, chat_template, media, pairing, reasoning, roles, text, tools,
};
use crate::wire::Request;

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
    if request.is_partial() {
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
    api_version::check(request, &mut findings);
    chat_template::check(request.conversation(), &mut findings);
    chat_template::check_request(request, &mut findings);
    findings.violations
}

/// Returns the violations that can be found without the request: pairing, roles, empty texts,
/// arguments. Trailing calls that still wait for their results are not violations.
pub fn check_conversation(conversation: &Conversation<'_>, profile: &LawProfile) -> Vec<LawViolation> {
    check_messages(conversation, profile, TrailingCalls::InFlight)
}

/// Returns the violations that can be found without the request, for messages that are about to be sent: like
/// [`check_conversation`], but a call without a result is a violation also at the end.
pub fn check_before_sending(conversation: &Conversation<'_>, profile: &LawProfile) -> Vec<LawViolation> {
    check_messages(conversation, profile, TrailingCalls::Unanswered)
}

fn check_messages(conversation: &Conversation<'_>, profile: &LawProfile, calls: TrailingCalls) -> Vec<LawViolation> {
    let mut findings = ViolationCollector { profile, violations: Vec::new() };
    pairing::check(conversation, calls, &mut findings);
    roles::check(conversation, &mut findings);
    text::check_conversation(conversation, &mut findings);
    arguments::check(conversation, &mut findings);
    chat_template::check(conversation, &mut findings);
    findings.violations
}
