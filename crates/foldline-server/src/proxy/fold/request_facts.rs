//! Facts about a request that its record needs, gathered while its conversation is in memory.

use std::collections::BTreeMap;

use foldline::conversation::{ToolDefinition, task_title};
use foldline::engine::Crease;
use foldline::tokens::Tokens;
use foldline::wire::Request;
use foldline::{FoldedRequest, Message, Meter, Part, Policy, Prices, Role};
use xxhash_rust::xxh3::Xxh3;

use crate::activity::sent_body::BodyFingerprint;
use crate::activity::{FoldRecord, ToolWeight, WindowParts};
use crate::proxy::fold::prefix_id::PrefixHashes;
use crate::proxy::unfold_tool::tool::UNFOLD_TOOL;

/// Facts about a request.
#[derive(Clone, Debug)]
pub(crate) struct RequestFacts {
    pub(crate) session: String,
    /// First words of the task, if the session is new.
    pub(crate) title: Option<String>,
    pub(crate) prefixes: PrefixHashes,
    /// Crease that was made for this request.
    pub(crate) crease: Option<Crease>,
    /// Request point of the newest crease.
    newest_crease: Option<usize>,
    pub(crate) folds: Vec<FoldRecord>,
    /// Declared tools if they have changed, and their hash.
    pub(crate) tools: Vec<ToolWeight>,
    pub(crate) tools_hash: u64,
    pub(crate) calls: BTreeMap<String, u64>,
    pub(crate) window: WindowParts,
    /// Body that is sent.
    pub(crate) body: BodyFingerprint,
}

/// Facts that were recorded of the session before.
#[derive(Clone, Copy, Debug, Default)]
struct KnownSession {
    is_new: bool,
    messages: usize,
    tools_hash: u64,
}

/// The tokens of a request, and what limits them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WindowLimits<'l> {
    pub(crate) meter: &'l Meter,
    pub(crate) prices: &'l Prices,
    pub(crate) policy: &'l Policy,
    pub(crate) budget: Tokens,
    /// False if the prompt is sent as it was received.
    pub(crate) is_folded: bool,
}

/// A folded request, from which its facts are gathered.
#[derive(Clone, Copy)]
pub(crate) struct FactSource<'f, 'r> {
    pub(crate) request: &'f Request<'r>,
    pub(crate) applied: &'f FoldedRequest,
    pub(crate) prefixes: &'f PrefixHashes,
    /// Crease that was made for this request.
    pub(crate) crease: Option<&'f Crease>,
    /// True if nothing of the conversation was decided before.
    pub(crate) from_scratch: bool,
    pub(crate) limits: WindowLimits<'f>,
    /// Body that is sent.
    pub(crate) body: &'f [u8],
}

impl RequestFacts {
    /// Gathers the facts of a request of a session. `recorded` are the messages of its last request and the hash of its
    /// tools; none if the session is new.
    pub(crate) fn gather(session: String, recorded: Option<(usize, u64)>, source: FactSource<'_, '_>) -> Self {
        let (messages, tools_hash) = recorded.unwrap_or_default();
        let known = KnownSession { is_new: recorded.is_none(), messages, tools_hash };
        let FactSource { request, applied, prefixes, crease, from_scratch, limits, body } = source;
        let messages = &request.conversation().messages;
        let (tools_hash, tools) = tool_weights(request, limits.meter, known);
        let has_new_folds =
            crease.is_some() || from_scratch || known.is_new || applied.has_ingest_folds(known.messages);
        Self {
            session,
            title: if known.is_new { task_title(messages) } else { None },
            prefixes: prefixes.clone(),
            crease: crease.cloned(),
            newest_crease: applied.creases().last().map(|crease| crease.request_point),
            folds: if has_new_folds && limits.is_folded { fold_records(applied) } else { Vec::new() },
            tools,
            tools_hash,
            calls: new_calls(messages, known),
            window: window_parts(request, applied, limits),
            body: BodyFingerprint::for_body(body, request),
        }
    }
}

impl RequestFacts {
    /// Returns true if there was a crease after a request with this many messages, of this proxy or another.
    pub(crate) fn has_crease_after(&self, messages: usize) -> bool {
        self.crease.is_some() || self.newest_crease.is_some_and(|point| point > messages)
    }
}

/// Returns the calls of each tool in messages that are new.
fn new_calls(messages: &[Message<'_>], known: KnownSession) -> BTreeMap<String, u64> {
    // A conversation that began before this process recorded its earlier calls, or they were never seen.
    let newest_turn = messages.iter().rposition(|message| message.role == Role::Assistant).unwrap_or(0);
    let from = if known.is_new { newest_turn } else { known.messages.min(messages.len()) };
    let mut calls = BTreeMap::new();
    for part in messages[from..].iter().flat_map(|message| &message.parts) {
        if let Part::ToolCall(call) = part {
            *calls.entry(call.name.clone().into_owned()).or_default() += 1;
        }
    }
    calls
}

/// Returns the hash of the tools that the client declares, and their weights if they are not those that were recorded.
fn tool_weights(request: &Request<'_>, meter: &Meter, known: KnownSession) -> (u64, Vec<ToolWeight>) {
    let is_own = |tool: &&ToolDefinition<'_>| request.has_injected_tool() && tool.name == UNFOLD_TOOL.name;
    let tools = || request.conversation().tools.iter().filter(|tool| !is_own(tool));
    let mut hasher = Xxh3::new();
    tools().for_each(|tool| hasher.update(tool.definition.as_bytes()));
    let hash = hasher.digest();
    if hash == known.tools_hash && !known.is_new {
        return (hash, Vec::new());
    }
    let weight = |tool: &ToolDefinition<'_>| ToolWeight {
        name: if tool.name.is_empty() { "hosted tool".into() } else { tool.name.clone().into_owned() },
        tokens: meter.text(&tool.definition),
    };
    (hash, tools().map(weight).collect())
}

/// Returns the contents of the window.
fn window_parts(request: &Request<'_>, applied: &FoldedRequest, limits: WindowLimits<'_>) -> WindowParts {
    let WindowLimits { meter, prices, policy, budget, is_folded } = limits;
    let conversation = request.conversation();
    let (system, tools) = (meter.system(&conversation.system), meter.tools(&conversation.tools));
    let breakdown = applied.token_breakdown();
    let total = if is_folded { applied.tokens } else { applied.raw_tokens };
    let folded = if is_folded { breakdown.folded } else { 0 };
    let overhead = system + tools;
    let live = total.saturating_sub(overhead + breakdown.user + folded);
    let room = budget.saturating_sub(overhead) as f64;
    let forced_at = overhead + (room * policy.trigger_ratio) as Tokens;
    let price = (prices.write - prices.read).max(0.0) * room * policy.target_ratio;
    WindowParts {
        window_tokens: meter.row().window,
        budget_tokens: budget,
        system_tokens: system,
        tools_tokens: tools,
        user_tokens: breakdown.user,
        folded_tokens: folded,
        live_tokens: live,
        free_tokens: budget.saturating_sub(total),
        crease_in_tokens: forced_at.saturating_sub(total),
        crease_usd_at_most: (prices.base_usd > 0.0).then(|| prices.dollars(price)),
    }
}

/// Returns the folds of a request, as they are recorded.
fn fold_records(applied: &FoldedRequest) -> Vec<FoldRecord> {
    let record = |fold: foldline::engine::FoldDetail| FoldRecord {
        handle: fold.handle.map(|handle| handle.as_str().to_owned()),
        tool: fold.tool,
        target: fold.target,
        pass: fold.pass.to_owned(),
        tokens_before: fold.tokens_before,
        tokens_after: fold.tokens_after,
        marker: fold.marker,
    };
    applied.fold_details().into_iter().map(record).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use foldline::wire::Format;

    #[test]
    fn only_new_calls_are_counted() {
        let round = |id: &str, tool: &str| {
            format!(
                r#"{{"role":"assistant","content":null,"tool_calls":[{{"id":"{id}","type":"function","function":{{"name":"{tool}","arguments":"{{}}"}}}}]}},{{"role":"tool","tool_call_id":"{id}","content":"x"}}"#
            )
        };
        let body = format!(
            r#"{{"messages":[{{"role":"user","content":"go"}},{},{}]}}"#,
            round("a", "read"),
            round("b", "edit")
        );
        let request = Request::parse(Format::OpenAiChat, body.as_bytes()).unwrap();
        let messages = &request.conversation().messages;
        let calls = |known| new_calls(messages, known).into_keys().collect::<Vec<_>>();
        assert_eq!(calls(KnownSession { messages: 1, ..KnownSession::default() }), ["edit", "read"]);
        assert_eq!(calls(KnownSession { messages: 3, ..KnownSession::default() }), ["edit"]);
        assert_eq!(calls(KnownSession { is_new: true, ..KnownSession::default() }), ["edit"]);
    }
}
